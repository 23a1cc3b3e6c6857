"""What runs agents: performs commands, journals facts, shows events. Time, ids and threads come through ports only."""
