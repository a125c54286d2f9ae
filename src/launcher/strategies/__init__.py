"""Distribution of model and optimizer over processes and devices. `base` has the interface of a
strategy."""
