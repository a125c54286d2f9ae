"""The progress of training, as a person sees it."""

import logging
import sys
from datetime import timedelta
from itertools import chain, count, repeat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher import BaseHook, ProgressHook
from launcher.data import ResumableLoader
from launcher.hooks.progress import fit_bar, percent
from launcher.hooks.stats import Stats
from launcher.process import signals
from launcher.rundir import logs
from support.terminal import in_terminal, screen
from support.toy import Toy

NUMBERS = {"loss": 0.0000123, "grad_norm": 0.5, "step_time": 0.05, "data_time": 0.001}
STATS = Stats(1, NUMBERS, {}, {"a": 1e-3, "b": 1e-3}, 0, 0)


@given(
    st.integers(1, 10**7).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))
)
def test_the_percentage_is_rounded_and_100_is_the_last_step_alone(steps):
    step, total = steps
    shown = int(percent(step, total).removesuffix("%"))
    assert abs(shown - 100 * step / total) <= (1 if shown == 99 else 0.5)
    assert (shown == 100) == (step == total)


def test_a_line_of_a_log(tmp_path, caplog):
    caplog.set_level("INFO")
    ticks = iter(range(1000))
    hook = ProgressHook(
        interval=2, with_records=True, eta_warmup=1, live=False, clock=lambda: 4.0 * next(ticks)
    )
    Toy([hook], 5, tmp_path).train()
    lines = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("Step")
    ]
    assert [line.partition(" loss")[0] for line in lines] == [
        "Step 2/5: 40%",
        "Step 4/5: 80%",
        "Step 5/5: 100%",
    ]
    assert "eta" not in lines[0] and "eta 0:00:02" in lines[1], "two steps took four seconds"
    for word in ("loss ", " lr 0.05 ", " steps/s ", "grad_norm ", "data 0.", "| size 4.000 aux/l "):
        assert word in lines[0]


@pytest.mark.parametrize(
    ("batches", "accumulated", "times"),
    [
        (None, 3, None),  # of 3 batches
        (None, 6, "2"),
        (ResumableLoader(torch.zeros(4, 2), seed=0, micro_batch_size=4), 1, None),
        (ResumableLoader(torch.zeros(3, 2), seed=0, micro_batch_size=4), 1, "1.33"),
        (repeat(torch.zeros(4, 2)), 6, None),  # without a length
    ],
)
def test_a_step_of_more_samples_than_there_are_is_named(
    tmp_path, caplog, batches, accumulated, times
):
    Toy([ProgressHook()], 1, tmp_path, batches, gradient_accumulation_steps=accumulated).train()
    text = f"A step has each training sample {times} times: use a"
    # At the start, and at the end.
    warnings = [] if times is None else [text, text]
    logged = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert [message.partition(" smaller")[0] for message in logged] == warnings


@given(step=st.integers(0, 10**6), more=st.integers(0, 10**6), width=st.integers(10, 150))
def test_a_bar_never_exceeds_its_width(step, more, width):
    total = max(1, step + more)
    line = fit_bar(step, total, ProgressHook().parts(STATS, None), width)
    assert len(line) <= width and (width < 24 or line.startswith(f"{step}/{total} "))


@pytest.mark.parametrize("step", [20, 470, 123456])
def test_a_narrow_bar_has_the_loss_and_the_time_that_is_left(step):
    parts = ProgressHook().parts(STATS, timedelta(seconds=46))
    line = fit_bar(step, 200000, parts, 59)
    assert " loss 1.230e-05 eta 0:00:46" in line


class Slow(BaseHook):
    """Waits at the second step until a signal comes."""

    def on_after_step(self, trainer: object) -> None:
        while getattr(trainer, "step", 0) == 2 and not signals.first_signal():
            pass


def train(folder: Path, hooks: list[BaseHook]) -> None:
    """Train in a fork, on a terminal."""
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 - pytest has put its own in its place
    logs.console.cache_clear()
    logs.setup_logging(folder / "log")
    signals.install()
    clock = iter(range(1000))
    Toy([ProgressHook(clock=lambda: float(next(clock))), *hooks], 3, folder).train()


@pytest.mark.parametrize("width", [40, 80])
def test_the_bar_fits_and_is_erased(tmp_path, width):
    code, output = in_terminal(lambda: train(tmp_path, []), width)
    assert code == 0, output
    assert "2/3" in output and "67% loss " in output and " lr 0.05" in output
    assert ("━" in output) == (width >= 80)
    shown = "".join(screen(output, width))
    assert shown.count("%") == 1 and "Step 3/3: 100% loss" in shown, "a log line alone is left"
    assert "Step 2/3: 67%" in (tmp_path / "log").read_text(), (
        "the file has the lines that the bar showed"
    )


def test_ctrl_c_leaves_no_ghost(tmp_path):
    code, output = in_terminal(
        lambda: train(tmp_path, [Slow()]), 40, type_at=("2/3 67% loss", b"\x03")
    )
    assert code == 130 and "^C" in output
    shown = screen(output, 40)
    assert not any("%" in line or "^C" in line for line in shown), shown


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_terminals_that_can_do_less(tmp_path, environment):
    _, output = in_terminal(lambda: train(tmp_path, []), 80, environment)
    if environment.get("TERM") == "dumb":
        assert "\x1b" not in output and "Step 1/3: 33%" in output and "Step 2/3: 67%" in output
    else:
        assert "\x1b[3" not in output and "━" in output


def test_eta_follows_a_machine_that_has_become_slower(tmp_path, caplog):
    """The mean over all steps would be less than half of the newest steps' time."""
    caplog.set_level("INFO")
    seconds = chain(range(20), count(30, 10))
    hook = ProgressHook(interval=1, eta_warmup=1, live=False, clock=lambda: float(next(seconds)))
    Toy([hook], 50, tmp_path).train()
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if line.startswith("Step 40/50")]
    assert "eta 0:01:40" in line
