"""The training loop, and the composition root that builds it from a configuration."""
