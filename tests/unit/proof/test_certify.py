"""`launcher.certify` on small trainings, each with another fault."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from launcher.proof.certify import main

TRAINING = """
import json, os, random, signal, sys, time
from pathlib import Path

FAULT = sys.argv[1]
SIGN = -1 if FAULT == "saves seldom" else 1
file = Path("state.json")
step, weight, epoch = 0, 1.0, 0
if file.exists() and FAULT != "saves nothing":
    step, weight, epoch = json.loads(file.read_text())
    if FAULT == "cannot load":
        raise ValueError("cannot load")
    if FAULT == "forgets a bit":
        weight *= 1.0001
    if FAULT == "diverges":
        weight = float("nan")
    if FAULT == "skips":
        step += 2
    if FAULT == "loses its epoch":
        epoch = 0
if FAULT == "ignores the signal":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while step < 12:
    step += 1
    weight *= 0.9
    epoch = epoch + 1 if step % 4 == 1 else epoch
    noise = random.random() if FAULT == "draws" else 0.0
    every = 5 if FAULT == "saves seldom" else 1
    if step % every == 0:
        file.with_suffix(".tmp").write_text(json.dumps([step, weight, epoch]))
        os.replace(file.with_suffix(".tmp"), file)
    print(f"epoch {epoch} step {step} loss {SIGN * weight + noise!r}", flush=True)
    time.sleep(0.02 if step < 7 or FAULT != "ignores the signal" else 0.5)
if FAULT == "fails at the end" and len(sys.argv) > 2:
    sys.exit(3)
"""


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def certified(training: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Checks a training with a fault, the last word; gives (exit code, report, messages)."""

    def call(words: str, fault: str) -> tuple[int, dict[str, Any], str]:
        command = ["--json", "--epoch", r"epoch (\d+)", "--", "python", "train.py", fault]
        code = main([*words.split(), *command])
        output, errors = capfd.readouterr()
        return code, json.loads(output, parse_constant=no_number) if output else {}, errors

    return call


def no_number(text: str) -> NoReturn:
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize(
    ("words", "fault", "verdict", "finding"),
    [
        ("", "nothing", "exact", "losses after it are equal."),
        ("--kill", "nothing", "exact", "with SIGKILL, exit code -9."),
        ("", "saves nothing", "restarted", "begins with step 1 again"),
        ("", "saves seldom", "exact", "It repeats"),
        ("", "forgets a bit", "close", "losses differ, the first at step"),
        ("", "diverges", "other losses", "losses differ, the first at step"),
        ("", "skips", "skipped steps", "2 steps were never printed"),
        ("", "loses its epoch", "wrong epoch", "is in epoch "),
        ("", "draws", "does not repeat", "Before the stop, the loss of step 1"),
        ("", "cannot load", "did not resume", "its exit code was 1."),
        ("--grace=0.2 --at=7", "ignores the signal", "did not exit", "--grace=0.2 seconds"),
        ("--resume-args=again", "fails at the end", "failed", "ended with exit code 3."),
    ],
)
def test_each_fault_is_named(
    training: Path, certified: Any, words: str, fault: str, verdict: str, finding: str
) -> None:
    code, report, errors = certified(words, fault)
    assert report["verdict"] == verdict, (report, errors)
    assert any(finding in text for text in report["findings"]), report
    assert code == int(verdict != "exact") and not (training / "state.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--loss (", "argument --loss: ( is not a regular expression"),
        (r"--step step\d+", r"argument --step: step\d+ needs a group"),
        ("--loss perplexity=(.*)", "0 lines of the output have a step"),
        ("--at 12", "--at=12: must be before the last step, 12."),
    ],
)
def test_certify_rejects_a_program_it_cannot_check(
    certified: Any, words: str, message: str
) -> None:
    code, _, errors = certified(words, "nothing")
    assert code == 2 and message in errors and "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "no-such-program"], "no-such-program: cannot be started"),
        (["--", "python", "-c", "raise SystemExit(4)"], "ended with exit code 4:"),
        (
            ["--timeout=0.5", "--", "python", "-c", "import time; time.sleep(60)"],
            "within --timeout=0.5 seconds",
        ),
    ],
)
def test_a_command_that_cannot_start_or_fails_is_reported(
    capfd: Any, words: list[str], message: str
) -> None:
    assert main(words) == 2 and message in capfd.readouterr().err


def test_a_folder_in_the_arguments_and_a_page_for_people(training: Path, capfd: Any) -> None:
    (training / "train.py").write_text(f"import os, sys\nos.chdir(sys.argv.pop())\n{TRAINING}")
    assert main(["--", "python", "train.py", "nothing", "{dir}"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "Verdict: exact" and lines[1].startswith("  Stopped at step ")
