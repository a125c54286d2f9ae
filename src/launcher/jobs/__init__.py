"""What `job=` chooses: one kind of work on a run a file."""
