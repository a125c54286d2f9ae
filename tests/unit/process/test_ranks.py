"""Two processes that exchange values, fail, and agree, as the ranks of a run."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch

from launcher.errors import ConfigError, TrainingError
from launcher.process import ranks, signals

COUNT = 2
CONTEXT = multiprocessing.get_context("fork")


def on_ranks(act: Callable[[int], Any]) -> list[Any]:
    """Call a function on each rank, and return each rank's value or its error's description."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    answers, last = CONTEXT.SimpleQueue(), CONTEXT.Barrier(COUNT)
    processes = [
        CONTEXT.Process(target=work, args=(act, rank, port, answers, last)) for rank in range(COUNT)
    ]
    for process in processes:
        process.start()
    values = dict(answers.get() for _ in processes)
    for process in processes:
        process.join()
    return [values[rank] for rank in range(COUNT)]


def work(act: Callable[[int], Any], rank: int, port: int, answers: Any, last: Any) -> None:
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ.update(place | {"RANK": str(rank), "WORLD_SIZE": str(COUNT), "LOCAL_RANK": "0"})
    try:
        value = act(rank)
    except BaseException as error:
        value = f"{type(error).__name__}: {error}"
    # The store ends with rank 0.
    answers.put((rank, value))
    last.wait()


def joined(act: Callable[[int], Any]) -> Callable[[int], Any]:
    def call(rank: int) -> Any:
        ranks.join(torch.device("cpu"), timeout=60)
        try:
            return act(rank)
        finally:
            ranks.leave()

    return call


EXCHANGES: dict[str, tuple[Callable[[int], Any], list[Any]]] = {
    "all_gather": (lambda rank: ranks.all_gather({"of": rank}), [[{"of": 0}, {"of": 1}]] * 2),
    "broadcast": (lambda rank: ranks.broadcast(f"of {rank}"), ["of 0"] * 2),
    "maximum": (lambda rank: ranks.maximum(3 - rank), [3, 3]),
    "maxima": (lambda rank: ranks.maxima([rank, -rank]), [[1, 0]] * 2),
    "sum": (lambda rank: ranks.sum_over_ranks(torch.ones(2) * rank).tolist(), [[1.0, 1.0]] * 2),
    "gather": (
        lambda rank: [each.item() for each in ranks.gather_tensors(torch.tensor(float(rank)))],
        [[0.0, 1.0]] * 2,
    ),
}


@pytest.mark.parametrize(("act", "expected"), EXCHANGES.values(), ids=EXCHANGES)
def test_values_are_exchanged_in_the_order_of_the_ranks(act, expected):
    assert on_ranks(joined(act)) == expected


def test_a_process_alone_exchanges_with_itself():
    assert ranks.all_gather("mine") == ["mine"] and ranks.broadcast("mine") == "mine"
    assert ranks.maxima([3, 1]) == [3, 1] and ranks.on_main(lambda: "mine") == "mine"
    assert ranks.exchange("mine", 0.0) == ["mine"]


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


DECISIONS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a value": (lambda: {"step": 3}, [{"step": 3}] * 2),
    "rejected": (raising(ConfigError("seed=x: bad")), ["ConfigError: seed=x: bad"] * 2),
    "failed": (
        raising(OSError("full")),
        ["OSError: full", "TrainingError: Rank 0 failed: OSError: full"],
    ),
    "stopped": (raising(signals.SignalExit(signal.SIGTERM)), ["SignalExit: 143"] * 2),
}


@pytest.mark.parametrize(("act", "expected"), DECISIONS.values(), ids=DECISIONS)
def test_a_decision_of_rank_0_or_its_error_reaches_all_ranks(act, expected):
    """No process group is needed: the ranks may not have joined one yet."""
    assert on_ranks(lambda rank: ranks.on_main(act)) == expected


def test_only_rank_0_decides():
    assert on_ranks(lambda rank: ranks.on_main(lambda: rank)) == [0, 0]


def test_the_first_failure_of_a_rank_is_read_by_all():
    def fail_in_turn(rank: int) -> str | None:
        ranks.store()
        if rank == 1:
            ranks.report_failure(TrainingError("first"))
        ranks.exchange("reported", 60)
        if rank == 0:
            ranks.report_failure(TrainingError("second"))
        ranks.exchange("reported again", 60)
        return ranks.read_failure()

    assert on_ranks(fail_in_turn) == ["rank 1: TrainingError: first"] * 2


def test_texts_of_a_rank_that_sends_none_are_not_waited_for_without_end():
    def send_on_rank_0(rank: int) -> object:
        ranks.store()
        return ranks.exchange("mine", 0.0) if rank == 0 else "nothing sent"

    assert on_ranks(send_on_rank_0) == [None, "nothing sent"]


def test_a_signal_of_one_rank_is_agreed_on_by_all():
    def agree(rank: int) -> list[int]:
        agreement = ranks.Agreement()
        seen = []
        for value in (0, signal.SIGTERM if rank == 1 else 0, 0):
            agreement.begin(value)
            seen.append(agreement.result(value))
        return seen

    assert on_ranks(joined(agree)) == [[0, signal.SIGTERM, 0]] * 2
