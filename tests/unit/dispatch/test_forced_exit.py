"""How long a hang is waited for: what is configured, and less where SLURM gives less."""

import signal
from collections.abc import Callable

import pytest
from omegaconf import OmegaConf

from launcher.dispatch import forced_exit
from launcher.run import deadline
from launcher.slurm import scheduler


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[int], float | None]]:
    """What `arm` would wait for after a signal, with what SLURM says of itself."""

    def of(slurm: dict[str, str] | None, **dispatch: float | None) -> Callable[[int], float | None]:
        forced_exit.slurm_grace.cache_clear()
        monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        if slurm is not None:
            monkeypatch.setenv("SLURM_JOB_ID", "12")
            monkeypatch.setattr(scheduler, "config_values", lambda *names: {k: slurm[k] for k in names if k in slurm})
            monkeypatch.setattr(scheduler, "partition_values", lambda partition: slurm)
        found: list[Callable[[int], float | None]] = []
        monkeypatch.setattr(deadline, "arm", found.append)
        forced_exit.arm(OmegaConf.create({"dispatch": dispatch}))
        return found[0]

    return of


@pytest.mark.parametrize(
    ("slurm", "dispatch", "term", "warning"),
    [
        (None, {"grace": 120.0}, 120.0, 120.0),
        (None, {"grace": None}, None, None),
        ({"KillWait": "30 sec", "GraceTime": "0"}, {"grace": 120.0}, 25.0, 120.0),
        ({"KillWait": "30 sec", "GraceTime": "300"}, {"signal_delay": 90}, 295.0, 85.0),
        ({"KillWait": "4 sec"}, {}, 2.0, None),
        ({}, {"grace": 50.0}, 50.0, 50.0),  # SLURM does not answer
    ],
)
def test_the_shortest_counts(
    armed: Callable[..., Callable[[int], float | None]],
    slurm: dict[str, str] | None,
    dispatch: dict[str, float | None],
    term: float | None,
    warning: float | None,
) -> None:
    wait = armed(slurm, **dispatch)
    assert (wait(signal.SIGTERM), wait(signal.SIGUSR2)) == (term, warning)
