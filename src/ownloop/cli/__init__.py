"""The terminal: `chat` and `run`. Acts on sessions through `ownloop.service` alone; nobody imports it.

`main` parses; `chat` and `run` are the commands; `opening` hosts the agent of a file (`load`) on a store (`place`);
`conversation` follows one session, `screen` shows its events by `output`, `ask` puts its requests to the person at the
`prompt`; `signals` are Ctrl-C and its kin.
"""
