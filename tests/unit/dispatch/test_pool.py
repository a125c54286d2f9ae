"""Several jobs at a time: the GPUs of each, their ends, and what they return."""

import sys
from collections.abc import Callable

import pytest

from launcher.config.run_config import RunConfig
from launcher.dispatch import pool as pool_module
from launcher.dispatch.local import LocalDispatch
from launcher.dispatch.pool import Pool, devices, gpu_share
from launcher.errors import ConfigError
from support.waiting import wait_for


@pytest.mark.parametrize(
    ("gpus", "slots", "shares"),
    [
        ([], 2, [[], []]),
        (["0", "1", "2", "3"], 2, [["0", "1"], ["2", "3"]]),
        (["0", "1", "2"], 2, [["0"], ["1"]]),
        (["4"], 3, [["4"], ["4"], ["4"]]),
        (["0", "1"], 3, [["0"], ["1"], ["0"]]),
    ],
)
def test_each_slot_has_its_share(gpus, slots, shares):
    assert [gpu_share(gpus, slot, slots) for slot in range(slots)] == shares


def test_only_visible_devices_are_divided():
    assert devices({"CUDA_VISIBLE_DEVICES": "3, GPU-1"}, 2) == ["3", "GPU-1"]
    assert devices({}, 2) == ["0", "1"]


def program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the jobs be this program; its arguments are `job`, the job's file and the result's.

    They are new interpreters, since the program forks nothing.
    """
    monkeypatch.setattr(pool_module, "imports_for", lambda config: None)
    monkeypatch.setattr(
        pool_module, "ENTRY", (sys.executable, "-c", f"import os, signal, sys, time\n{code}")
    )


def wait(pool: Pool, is_done: Callable[[dict[int, int]], bool]) -> dict[int, int]:
    codes: dict[int, int] = {}
    wait_for(lambda: codes.update(pool.reap()) or is_done(codes))
    return codes


def test_jobs_get_gpus_and_the_next_one_takes_the_free_slot(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "count_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = "os.environ['CUDA_VISIBLE_DEVICES'].join('[]')"
    program(monkeypatch, f"open(sys.argv[3], 'w').write({result})")
    pool = Pool(tmp_path, 2)
    for number in (0, 1):
        pool.start(number, RunConfig({"seed": number}, {}))
    assert pool.running() == {0, 1}
    assert wait(pool, lambda codes: len(codes) == 2) == {0: 0, 1: 0}
    pool.start(2, RunConfig({}, {}))
    wait(pool, lambda codes: 2 in codes)
    assert [pool.value(number) for number in range(4)] == [[0, 1], [2, 3], [0, 1], None]


def test_ends_are_told_apart(tmp_path, monkeypatch):
    code = "number = int(sys.argv[2][-9:-5])\n"
    code += "print('first line'); print('the reason', flush=True)\n"
    code += "sys.exit([0, 1, 2][number]) if number < 3 else os.kill(os.getpid(), signal.SIGKILL)"
    program(monkeypatch, code)
    pool = Pool(tmp_path, 4)
    for number in range(4):
        pool.start(number, RunConfig({}, {}))
    codes = wait(pool, lambda codes: len(codes) == 4)
    assert codes == {0: 0, 1: 1, 2: 2, 3: -9}
    assert [pool.why(number, codes[number]) for number in (1, 2, 3)] == [
        "ended with exit code 1: the reason",
        "the reason",
        "was killed by signal 9",
    ]


def test_close_lets_all_of_them_save(tmp_path, monkeypatch):
    code = "def save(*_): open(sys.argv[2] + '.saved', 'w'); sys.exit(143)\n"
    code += "signal.signal(signal.SIGTERM, save)\n"
    # A child of a pool starts with signals blocked, until it has its handlers.
    code += "open(sys.argv[2] + '.ready', 'w')\n"
    code += "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})\ntime.sleep(600)"
    program(monkeypatch, code)
    pool = Pool(tmp_path, 3)
    for number in range(3):
        pool.start(number, RunConfig({}, {}))
    wait(pool, lambda codes: len([*tmp_path.glob("jobs/*.ready")]) == 3)
    assert pool.close() == {0: 143, 1: 143, 2: 143}
    assert len([*tmp_path.glob("jobs/*.saved")]) == 3


@pytest.mark.parametrize(
    ("parallel", "gpus", "slots"), [(1, 8, 1), (3, 0, 3), ("auto", 4, 4), ("auto", 0, 1)]
)
def test_slots(parallel, gpus, slots, monkeypatch):
    monkeypatch.setattr("launcher.dispatch.local.count_gpus", lambda: gpus)
    assert LocalDispatch(parallel=parallel).slots() == slots  # type: ignore[arg-type]


def test_a_rank_rejects_parallel(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"dispatch\.parallel=2: is not for one of several ranks"):
        LocalDispatch(parallel=2).slots()
    assert LocalDispatch().slots() == 1
