"""The version: the one place that states it; the build reads it from here."""

__version__ = "0.1.0"
