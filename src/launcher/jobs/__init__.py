"""Jobs that `job=` chooses: one file for each kind of work on a run."""
