"""The schema of a configuration: signatures read from source, and rules that join several keys."""
