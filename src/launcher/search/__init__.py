"""Hyperparameter search, which decides from the runs on disk which values to try next."""
