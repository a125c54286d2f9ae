"""Dispatches, which execute a run on this machine or on a cluster."""
