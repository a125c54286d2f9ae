"""Composing, checking and naming a configuration, all before torch is imported."""
