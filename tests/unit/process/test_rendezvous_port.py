"""Ranks that were given no port find rank 0, whoever listens at its ports."""

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from launcher.errors import ConfigError, TrainingError
from launcher.process import rendezvous_port
from launcher.process.rendezvous_port import announce, find, ports_of
from support import python
from support.runner import ENVIRONMENT

JOB = f"test {os.getpid()}"
STRANGERS: dict[str, Callable[[socket.socket], object]] = {
    "that closes": lambda connection: connection.close(),
    "that is silent": lambda connection: connection.recv(1),
    "of another job": lambda connection: connection.sendall(b"test 1 20000\n"),
    "with a line": lambda connection: connection.sendall(b"220 mail ready\r\n"),
    "with bytes": lambda connection: connection.sendall(b"\xff\xfe\n"),
    "with a job and no port": lambda connection: connection.sendall(f"{JOB} x\n".encode()),
}


@pytest.fixture
def listen() -> Iterator[Callable[[int, Callable[[socket.socket], object]], None]]:
    """Let a program listen at a port, which does something with each connection."""
    opened = []

    def start(port: int, act: Callable[[socket.socket], object]) -> None:
        try:
            opened.append(listening := socket.create_server(("", port)))
        except OSError:
            # Another program of this machine listens there.
            return

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                opened.append(connection)
                act(connection)

        threading.Thread(target=serve, daemon=True).start()

    yield start
    for each in opened:
        each.close()


def test_ranks_find_rank_0_behind_every_other_program(
    listen: Callable[[int, Callable[[socket.socket], object]], None],
) -> None:
    for port, act in zip(ports_of(JOB), STRANGERS.values(), strict=False):
        listen(port, act)
    announce(JOB, 12345, 2)
    assert [find(JOB, "127.0.0.1", 60) for _ in range(2)] == [12345] * 2


def test_rank_0_needs_a_free_port(
    listen: Callable[[int, Callable[[socket.socket], object]], None],
) -> None:
    for port in ports_of(f"{JOB} full"):
        listen(port, STRANGERS["that closes"])
    with pytest.raises(ConfigError, match=r"The ports .* of this machine are in use; set MASTER_"):
        announce(f"{JOB} full", 12345, 1)


def test_a_rank_0_that_does_not_come_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous_port, "REPORTED_AFTER", 0.05)
    with (
        caplog.at_level("INFO"),
        pytest.raises(TrainingError, match=r"Rank 0 was not found at 127.0.0.1 in 0.2 s, at the"),
    ):
        find(f"{JOB} alone", "127.0.0.1", 0.2)
    assert caplog.text.count("Rank 0 does not answer yet at 127.0.0.1, ports ") == 1


def test_ports_of_a_job_are_its_own_and_below_those_of_outgoing_connections() -> None:
    assert ports_of(JOB) == ports_of(JOB) != ports_of(f"{JOB}0")
    assert all(
        port in rendezvous_port.PORTS for job in map(str, range(1000)) for port in ports_of(job)
    )


RANK = """
import sys

from launcher.dispatch.environment import join_ranks
from launcher.process import ranks

assert join_ranks()
store, own = ranks.store(120), sys.argv[1]
store.set(own, own)
print(store.get(str(1 - int(own))).decode())
# Rank 0 serves the store until the other has read.
store.set("read", own) if own == "1" else store.get("read")
"""


def met(env: dict[str, str], of_rank: Callable[[str], dict[str, str]]) -> list[str]:
    """Let two ranks meet; return the text that each has read from the other."""
    tasks = [python.start("-c", RANK, rank, env=ENVIRONMENT | env | of_rank(rank)) for rank in "01"]
    texts = [task.communicate()[0] for task in tasks]
    assert [task.wait() for task in tasks] == [0, 0], texts
    return [text.split()[0] for text in texts]


def test_tasks_of_submitit_meet_although_another_program_has_their_port(
    listen: Callable[[int, Callable[[socket.socket], object]], None],
) -> None:
    job = str(os.getpid())
    listen(ports_of(f"submitit {job}")[0], STRANGERS["that is silent"])
    env = {
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_NTASKS": "2",
        "SUBMITIT_LOCAL_JOB_ID": job,
    }
    assert met(env, lambda rank: {"SUBMITIT_LOCAL_GLOBALID": rank}) == ["1", "0"]


def test_ranks_of_torchrun_in_a_job_meet_at_their_own_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    inherited = {"LAUNCHER_MEETING": f"{JOB} around"}
    assert met(env | inherited, lambda rank: {"RANK": rank}) == ["1", "0"]
