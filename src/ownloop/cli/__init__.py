"""The terminal. Uses `ownloop.service` and nothing below it; nobody imports it."""
