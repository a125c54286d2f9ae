"""Optimizers, learning-rate schedules and number formats."""
