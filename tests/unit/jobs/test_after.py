"""The commands of `job.after` that are missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.jobs.after import DONE, missing

EVALUATE, TEST, EXPORT = ["evaluate"], ["evaluate", "--split", "test"], ["export"]
LINE = {"checkpoint": "outputs/a/b/checkpoints/step-00000007", "step": 7}


@pytest.mark.parametrize(
    ("state", "noted", "lines", "expected"),
    [
        ("completed", None, [], [EVALUATE, TEST, EXPORT]),
        ("paused", None, [], []),
        ("failed", None, [], []),
        ("completed", {"step": 7, "done": [EVALUATE, EXPORT]}, [], [TEST]),
        ("completed", {"step": 7, "done": [EVALUATE, TEST, EXPORT]}, [], []),
        # The run has been trained on since.
        ("completed", {"step": 5, "done": [EVALUATE, EXPORT]}, [], [EVALUATE, TEST, EXPORT]),
        ("completed", "{", [], [EVALUATE, TEST, EXPORT]),
        ("completed", [1], [], [EVALUATE, TEST, EXPORT]),
        # A command was killed after its last write.
        ("completed", None, [LINE | {"val/loss": 1.0}], [TEST, EXPORT]),
        ("completed", None, [LINE | {"test/loss": 1.0}], [EVALUATE, EXPORT]),
        ("completed", None, [LINE | {"tasks/a/acc": 1.0}], [EVALUATE, TEST, EXPORT]),
        ("completed", None, [LINE | {"val/loss": 1.0, "weights": "ema"}], [EVALUATE, TEST, EXPORT]),
        ("completed", None, ['{"checkpoint": "c', LINE | {"val/loss": 1.0}], [TEST, EXPORT]),
        (
            "completed",
            None,
            [LINE | {"checkpoint": "checkpoints/step-00000003", "val/loss": 1.0}],
            [EVALUATE, TEST, EXPORT],
        ),
    ],
)
def test_what_is_missing(
    tmp_path: Path, state: str, noted: Any, lines: list[Any], expected: list[list[str]]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"state": state, "step": 7}))
    if noted is not None:
        text = noted if isinstance(noted, str) else json.dumps(noted)
        (tmp_path / DONE).write_text(text)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (tmp_path / "evaluations.jsonl").write_text("".join(f"{text}\n" for text in texts))
    assert missing(["evaluate", "export"], tmp_path, True) == expected
    without = [command for command in expected if command != TEST]
    assert missing(["evaluate", "export", "export"], tmp_path, False) == without


def test_no_run_has_nothing_missing(tmp_path: Path) -> None:
    assert missing(["evaluate"], tmp_path, False) == []
