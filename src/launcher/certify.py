"""The command `python -m launcher.certify -- COMMAND`; see `launcher.proof.certify`."""

import sys

from launcher.proof.certify import main

if __name__ == "__main__":
    sys.exit(main())
