"""The identity of a run: what is hashed, and the run on disk that a configuration means."""
