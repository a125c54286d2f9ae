"""`launcher.certify`: its verdict on each fault, and on small trainings."""

import math

import pytest

from launcher.proof.certify import Launch, build_parser, findings_at_stop, findings_of_resume, main

pytestmark = pytest.mark.slow

TRAINING = """
import json, os, signal, sys, time
from pathlib import Path

fault = sys.argv[1]
os.chdir(sys.argv[2])
file = Path("state.json")
step, weight = json.loads(file.read_text()) if file.exists() else (0, 1.0)
is_stopped = Path.cwd().name == "stopped" and not file.exists()
if fault == "ignores the signal":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while step < 12:
    step += 1
    weight *= 0.9
    if step == 5:
        file.with_suffix(".tmp").write_text(json.dumps([step, weight]))
        os.replace(file.with_suffix(".tmp"), file)
    print(f"step {step} loss {-weight!r}", flush=True)
    time.sleep(60 if step == 7 and is_stopped else 0)  # the stop comes meanwhile
if fault == "fails at the end" and len(sys.argv) > 3:
    sys.exit(3)
"""


@pytest.fixture
def certified(tmp_path, monkeypatch, capfd):
    """Checks a training; gives (exit code, lines of the page, messages)."""
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, list[str], str]:
        code = main(words)
        output, errors = capfd.readouterr()
        return code, output.splitlines(), errors

    return call


@pytest.mark.parametrize(
    ("words", "fault", "verdict", "finding"),
    [
        ("", "nothing", "exact", "  It repeats "),
        ("--kill", "nothing", "exact", " with SIGKILL, exit code -9."),
        ("--grace=0.2 --at=7", "ignores the signal", "did not exit", "--grace=0.2 seconds"),
        ("--resume-args=again", "fails at the end", "failed", "ended with exit code 3."),
    ],
)
def test_a_training_is_stopped_and_resumed(tmp_path, certified, words, fault, verdict, finding):
    """`{dir}` is the folder of each start; the name of an existing file gets its full path."""
    code, lines, errors = certified(*words.split(), "--", "python", "train.py", fault, "{dir}")
    assert lines[0] == f"Verdict: {verdict}", (lines, errors)
    assert lines[1].startswith("  Stopped at step ") and any(finding in line for line in lines)
    assert code == int(verdict != "exact") and not (tmp_path / "state.json").exists()


STRAIGHT = {float(step): 0.9**step for step in range(1, 9)}
FIRST = {step: STRAIGHT[step] for step in (1.0, 2.0, 3.0, 4.0)}
REST = {step: STRAIGHT[step] for step in (5.0, 6.0, 7.0, 8.0)}


@pytest.mark.parametrize(
    ("second", "verdict", "finding"),
    [
        (REST, None, "All 4 losses after it are equal."),
        (STRAIGHT, "restarted", "begins with step 1 again"),
        ({}, "did not resume", "its exit code was 1."),
        ({step: REST[step] for step in (7.0, 8.0)}, "skipped steps", "2 steps were never printed"),
        (REST | {6.0: REST[6.0] * 1.0001}, "close", "1 losses differ, the first at step 6"),
        (REST | {6.0: math.nan}, "other losses", "relative difference is inf."),
    ],
)
def test_each_fault_of_a_resume_is_named(second, verdict, finding):
    ended = Launch(second, code=0 if second else 1)
    findings = [*findings_of_resume(Launch(STRAIGHT), Launch(FIRST), ended)]
    assert next((each.verdict for each in findings if each.verdict), None) == verdict, findings
    assert any(finding in each.text for each in findings), findings


def test_a_training_that_does_not_repeat_is_named():
    other = Launch(FIRST | {2.0: 0.5})
    *_, finding = findings_at_stop(Launch(STRAIGHT), other, build_parser().parse_args(["x"]))
    assert finding.verdict == "does not repeat" and "the loss of step 2 is" in finding.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss", "(", "x"], "argument --loss: ( is not a regular expression"),
        (["--step", r"step\d+", "x"], r"argument --step: step\d+ needs a group"),
        (["--", "echo", "step 1"], "0 lines of the output have a step"),
        (
            ["--at", "3", "--", "printf", r"step %d loss 1\n", "1", "2", "3"],
            "--at=3: must be before the last step, 3.",
        ),
        (["--", "no-such-program"], "no-such-program: cannot be started"),
        (["--", "sh", "-c", "exit 4"], "ended with exit code 4:"),
    ],
)
def test_a_program_that_cannot_be_checked_is_rejected(certified, words, message):
    code, _, errors = certified(*words)
    assert code == 2 and message in errors and "Traceback" not in errors
