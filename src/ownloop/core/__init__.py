"""The pure core: values, the run machine, the session fold, the contracts. No await is run, no clock read, nothing opened."""
