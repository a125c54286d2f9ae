"""The command of a child that runs a stored configuration."""

import sys

ENTRY = (sys.executable, "-m", "launcher.dispatch.child_job")
"""The command without its arguments, see there."""
