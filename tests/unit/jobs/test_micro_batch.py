"""The largest micro-batch that fits, and the memory that it is chosen by."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.identity import run_id
from launcher.errors import ConfigError
from launcher.jobs.memory import estimate
from launcher.jobs.micro_batch import (
    USED,
    divisors,
    earlier_size,
    largest,
    logged_choice,
    with_micro_batch_size,
    with_size,
)
from launcher.process.memory import machine_memory, rank_memory
from launcher.rundir.folder import RunFolder
from support.composition import composed

SMALL = [
    "model=gpt", "model.dim=16", "model.num_layers=1", "model.num_heads=2", "data=synthetic",
    "data.seq_len=64", "data.vocab_size=16", "data.batch_size=60", "strategy=ddp", "device=cpu",
]  # fmt: skip
AUTO = [*SMALL, "trainer.micro_batch_size=auto"]


@given(st.integers(1, 400), st.floats(0, 500))
def test_the_largest_is_found_in_few_estimates(share: int, limit: float) -> None:
    sizes, asked = divisors(share), []

    def peak(size: int) -> int:
        asked.append(size)
        return size + 3

    fitting = [n for n in range(1, share + 1) if share % n == 0 and n + 3 <= limit]
    assert largest(sizes, peak, limit) == max(fitting, default=1)
    assert len(asked) <= 2 + len(sizes).bit_length()


@pytest.mark.parametrize(("ranks", "earlier"), [(1, None), (2, None), (2, 5), (2, 7), (2, 30)])
def test_the_choice_is_the_largest_that_fits_or_the_earlier_one(
    caplog: pytest.LogCaptureFixture, ranks: int, earlier: int | None
) -> None:
    config = composed(AUTO)
    peaks = {n: estimate(with_size(config, n), ranks)[0].peak for n in divisors(60 // ranks)}
    memory = int((peaks[10] + peaks[15]) / 2 / USED)
    caplog.set_level("INFO")
    best = 12 if ranks == 1 else 10
    # 7 does not divide the share, and 30 no longer fits.
    assert logged_choice(config, ranks, memory, earlier) == (5 if earlier == 5 else best)
    text = caplog.messages[-1]
    assert ("5, as before." if earlier == 5 else f"{best}. A step needs") in text
    assert ("; 15 would need" in text) == (earlier != 5)
    assert logged_choice(config, ranks, 10**12) == 60 // ranks
    with pytest.raises(ConfigError, match=r"auto: a step of one sample needs .* of the 1\.0 kB"):
        logged_choice(config, ranks, 1000)


def test_what_is_not_estimated_needs_a_number() -> None:
    for words in (["strategy=deepspeed"], ["optimizer=lbfgs"], ["trainer.lanes=2"]):
        with pytest.raises(ConfigError, match=r"micro_batch_size=auto: .*, or set a number\.$"):
            logged_choice(composed([*AUTO, *words]), 1, 10**9)
    with pytest.raises(ConfigError, match="is not divisible by 7 ranks"):
        logged_choice(composed(AUTO), 7, 10**9)


def test_the_size_is_not_part_of_the_id() -> None:
    def of(value: str) -> str:
        words = ["run.name=a", *SMALL, f"trainer.micro_batch_size={value}"]
        return run_id(OmegaConf.create(composed(words)))

    assert of("auto") == of("null") != of("5")


def test_the_newest_attempt_with_as_many_ranks_is_followed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "gpt-synthetic" / "0123456789ab")
    assert earlier_size(folder, 1) is None
    one = {"number": 1, "started": "2026-01-01T00:00:00+00:00", "host": "a", "pid": 1}
    attempts = [
        one | {"start_step": 0, "world_size": ranks, "micro_batch_size": size}
        for ranks, size in ((1, 10), (2, 15), (1, 20), (1, None), (2, 6))
    ]
    folder.path.mkdir(parents=True)
    folder.record_path.write_text(json.dumps({"attempts": attempts}))
    assert [earlier_size(folder, ranks) for ranks in (1, 2, 3)] == [20, 6, None]
    config = with_micro_batch_size(composed(AUTO), folder)
    assert config.trainer.micro_batch_size == 20
    assert with_micro_batch_size(composed(SMALL), folder).trainer.micro_batch_size is None


def test_a_rank_has_its_share_of_the_machine_or_of_its_cgroup(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    process, cgroups = tmp_path / "cgroup", tmp_path / "fs"
    assert machine_memory(process, cgroups) == total
    inner, outer = cgroups / "memory" / "job" / "step", cgroups / "job" / "step"
    for folder in (inner, outer):
        folder.mkdir(parents=True)
    process.write_text("0::/job/step\n")
    (outer / "memory.max").write_text("max\n")
    assert machine_memory(process, cgroups) == total
    (outer.parent / "memory.max").write_text("3000000\n")
    assert machine_memory(process, cgroups) == 3000000
    process.write_text("5:cpu,cpuacct:/other\n4:memory:/job/step\n")
    (inner / "memory.limit_in_bytes").write_text("2000000\n")
    assert machine_memory(process, cgroups) == 2000000
    assert rank_memory("cpu", 0, {}) == machine_memory()
    assert rank_memory("cpu", 0, {"LOCAL_WORLD_SIZE": "4"}) == machine_memory() // 4
