"""Let ranks find rank 0 if whatever started them has given them no port.

They have exchanged nothing yet, so each derives the same ports from the job's id. At the first free
one, rank 0 announces where its store is. At the others another program may listen, or another job.
"""

import logging
import socket
import threading
import time
from contextlib import suppress
from typing import Any
from zlib import crc32

from launcher.errors import ConfigError, TrainingError

logger = logging.getLogger(__name__)
MEETING = "LAUNCHER_MEETING"
"""Environment variable with the job of ranks that were given no port."""
PORTS = range(15000, 32768)
"""Ports below the range that systems use for outgoing connections."""
COUNT = 8
FOUND = b"+"
BOTH: Any = (
    {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
)
"""Listen for IPv4 and IPv6."""
PATIENCE = 30.0
"""Maximum seconds that a program at one of the ports may take to answer."""
REPORTED_AFTER = 60.0
"""Seconds of waiting for rank 0 after which a line says so."""


def ports_of(job: str) -> list[int]:
    """Return the ports that rank 0 tries for a text that all ranks know and no other job has."""
    numbers = (crc32(f"{job} {number}".encode()) for number in range(COUNT))
    return [PORTS[number % len(PORTS)] for number in numbers]


def announce(job: str, port: int, count: int) -> None:
    """Tell the `count` other ranks of the job on which port rank 0 serves its store."""
    for place in (places := ports_of(job)):
        with suppress(OSError):
            listening = socket.create_server(("", place), **BOTH)
            text = f"{job} {port}\n".encode()
            threading.Thread(target=_tell, args=(listening, text, count), daemon=True).start()
            return
    listed = ", ".join(map(str, places))
    raise ConfigError(
        f"The ports {listed} of this machine are in use; set MASTER_PORT=<free port>."
    )


def _tell(listening: socket.socket, text: bytes, count: int) -> None:
    with listening:
        while count:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.settimeout(PATIENCE)
                connection.sendall(text)
                count -= connection.recv(1) == FOUND


def find(job: str, address: str, timeout: float) -> int:
    """Return the port that rank 0 of the job announces, once it does."""
    start, is_reported = time.monotonic(), False
    listed = ", ".join(map(str, ports_of(job)))
    while (waited := time.monotonic() - start) < timeout:
        for place in ports_of(job):
            # A machine under load answers late, another program perhaps never.
            patience = min(1.0 + waited / 10, PATIENCE)
            with suppress(OSError, ValueError):
                return _ask(job, address, place, patience)
        if waited > REPORTED_AFTER and not is_reported:
            logger.info("Rank 0 does not answer yet at %s, ports %s.", address, listed)
            is_reported = True
        time.sleep(0.1)
    raise TrainingError(
        f"Rank 0 was not found at {address} in {timeout:g} s, at the ports {listed}."
    )


def _ask(job: str, address: str, place: int, patience: float) -> int:
    """Ask whoever listens at a port; a ValueError says that it is not rank 0 of the job."""
    with socket.create_connection((address, place), patience) as connection:
        line = connection.makefile("rb").readline(1000).decode()
        found, _, port = line.rpartition(" ")
        if found != job:
            raise ValueError(line)
        connection.sendall(FOUND)
        return int(port)
