"""Models: `base` says what a model owes; one model a file."""
