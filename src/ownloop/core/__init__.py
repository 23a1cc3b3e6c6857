"""The pure core: values, the machine, the contracts. No await is run, no clock read, nothing opened."""
