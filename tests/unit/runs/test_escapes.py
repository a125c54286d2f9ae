import json
import re
import sys

import pytest

from launcher.process.printable import printable
from launcher.runs.__main__ import VERBS

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b1mbold\x08\x7f\r"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
KEPT = ("name", "id", "state", "started")  # needed to find the run


@pytest.fixture
def hostile(make_run):
    """Two runs with escape sequences in every text of their files, and in the names of files."""
    for number in (1, 2):
        folder = make_run(
            "gpt",
            f"aaaa000{number}",
            config={"model": {"name": f"{HOSTILE}{number}"}},
            overrides=[f"model.name={HOSTILE}{number}"],
            choices={"model": HOSTILE},
            state="failed",
            rows=[{"step": 1, f"train/{HOSTILE}": 1.0, "train/loss": 2.0}],
        )
        record = json.loads(folder.record_path.read_text())
        folder.record_path.write_text(json.dumps(spoiled(record)))
        folder.log_path().write_bytes(b"before \x1b[2J\xc2\x9b after\n" + HOSTILE.encode())
        checkpoint = folder.checkpoints / "step-00000008"
        checkpoint.mkdir(parents=True)
        manifest = {"step": 8, "files": {HOSTILE: HOSTILE}}
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        (folder.checkpoints / f"corrupt-step-00000004{HOSTILE}").mkdir()


def spoiled(value):
    if isinstance(value, dict):
        return {key: spoiled(each) if key not in KEPT else each for key, each in value.items()}
    if isinstance(value, list):
        return [spoiled(each) for each in value]
    return value + HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb not in ("resume", "evaluate", "export", "fork")]
)
def test_no_verb_prints_escape_sequences_of_a_run(runs, hostile, verb):
    arguments = {
        "compare": ["gpt/aaaa0001", "gpt/aaaa0002"],
        "rollback": ["gpt/aaaa0001", "5"],
        "list": [],
    }.get(verb, ["gpt/aaaa0001"])
    _, output, error = runs(verb, *arguments)
    assert output or error
    assert "is not a run" not in error
    assert not CONTROL.search(output.replace("\r", "")) and not CONTROL.search(error)
    assert "\r" not in output or verb == "logs"


def test_a_repeated_command_is_announced_without_escape_sequences(
    runs, hostile, monkeypatch, capfdbinary
):
    monkeypatch.setattr("os.execv", lambda *_: sys.exit(0))
    with pytest.raises(SystemExit):
        runs("resume", "gpt/aaaa0001", "--trust")
    output, error = (each.decode() for each in capfdbinary.readouterr())
    assert not CONTROL.search(output) and not CONTROL.search(error) and "model.name=" in error


@pytest.mark.parametrize(
    ("text", "colored", "plain"),
    [
        ("a\tb\nc", "a\tb\nc", "a\tb\nc"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m", "\\x1b[1;31mred\\x1b[0m"),
        ("\x1b[2J\x1b]0;t\x07", "\\x1b[2J\\x1b]0;t\\x07", "\\x1b[2J\\x1b]0;t\\x07"),
        ("café …\xa0\udcff", "café …\xa0\udcff", "café …\xa0\udcff"),
    ],
)
def test_printable(text, colored, plain):
    assert printable(text, colors=True) == colored
    assert printable(text) == plain
