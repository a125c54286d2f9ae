"""The command line: Hydra's, with one message for every error of a configuration."""
