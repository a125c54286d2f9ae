"""The command line: Hydra's, in which every error of a configuration is one message."""
