"""Strategies, which distribute model and optimizer over processes and devices.

`base` has their interface.
"""
