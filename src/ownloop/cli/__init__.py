"""The terminal. Acts on sessions through `ownloop.service` alone; nobody imports it.

`main` runs a command, `commands` are their options and their help; `chat`, `run`, `sessions` and `models` are the
commands. `opening` hosts the agent of a file (`load`) on a store (`place`), or opens the sessions alone. `conversation`
follows one session, `screen` shows its events (calls as `cards`) by `output`, or `lines` for programs; `ask` puts its
requests to the person at the `prompt`, as `approval` or `question`; `slash` are the commands inside a chat. `signals`
are Ctrl-C and its kin, `pipes` our ends of pipes.
"""
