"""What the documentation shows is run."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_subclass_example_runs_and_goes_on(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/trainer.md").read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    for said in ("Step 100/100", "Going on from runs/demo/checkpoints/step-00000100"):
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stderr
