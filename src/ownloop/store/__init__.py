"""The stores: journal, inbox and records of all sessions. They know the core and nothing else."""
