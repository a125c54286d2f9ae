"""The command where DeepSpeed is not installed: `python -m support.without_deepspeed ...`."""

import sys

sys.modules["deepspeed"] = None  # type: ignore[assignment]

from launcher.__main__ import main  # noqa: E402

if __name__ == "__main__":
    main()
