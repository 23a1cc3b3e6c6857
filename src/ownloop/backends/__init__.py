"""Adapters to LLMs: one module per provider's wire, pure translation apart from transport. They know the core only."""
