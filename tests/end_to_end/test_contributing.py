"""The examples of CONTRIBUTING.md and of docs/extend.md: one file and one YAML each, and nothing
else is edited."""

import json
import os
import re
import shutil
from shlex import split

import pytest

from support import python
from support.paths import ROOT

BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)
TITLED = re.compile(r'```(?:python|yaml) title="(\S+)"\n(.*?)```', re.DOTALL)


@pytest.fixture
def checkout(tmp_path):
    """A copy of the code and the configuration with the model of CONTRIBUTING.md added, and in
    `mine/` the files of the page, as a user has them."""
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()))
    assert len(blocks) == 2
    own = TITLED.findall((ROOT / "docs" / "extend.md").read_text())
    assert len(own) == 8
    blocks |= {f"mine/{name}": text for name, text in own}
    for name, text in blocks.items():
        assert not (tmp_path / name).exists()
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_new_parts_are_one_file_and_one_yaml(checkout):
    overrides = split("model=linear data=digits strategy=anomaly trainer.max_steps=3 device=cpu")
    overrides += split(
        "tracker=csv hooks=[default,weight_norm] hooks.weight_norm.interval=2 run.name=a run.id=b"
    )
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = ["-m", "launcher", "--config-dir", "conf", *overrides]
    # The tests' server forks processes of the code that is installed.
    python.run(*command, cwd=checkout / "mine", env=environment, real=True, check=True)
    folder = checkout / "mine" / "outputs" / "a" / "b"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "weights/norm" in row] == [2, 3]
    mirrored = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    assert [int(step) for step, key, _ in mirrored if key == "weights/norm"] == [2, 3]
    record = json.loads((folder / "run.json").read_text())
    assert (record["state"], record["strategy"]) == ("completed", "anomaly")
