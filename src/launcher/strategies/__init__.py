"""Strategies, which distribute model and optimizer over devices; `base` has their interface."""
