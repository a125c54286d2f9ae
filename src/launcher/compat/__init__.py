"""Names of other trainers, for programs that are moved to Launcher."""
