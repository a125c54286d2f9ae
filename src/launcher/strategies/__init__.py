"""How model and optimizer are distributed over processes and devices. `base` has the interface of a strategy."""
