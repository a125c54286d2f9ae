"""Places in a checkout."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
SOURCE = ROOT / "src"
PYTHONPATH = f"{SOURCE}{os.pathsep}{TESTS}"
"""This checkout's source, wherever another one is installed from, and the hooks in `support`."""
