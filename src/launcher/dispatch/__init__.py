"""Dispatches: a run is executed on this machine, or on a cluster."""
