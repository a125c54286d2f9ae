"""Where a run runs: on this machine, or on a cluster."""
