"""Tools: Python functions that a model may call. `decorator` defines them, `executor` checks and runs them."""
