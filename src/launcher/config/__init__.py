"""Everything that is said of a configuration before torch is imported."""
