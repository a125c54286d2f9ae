"""The port at which ranks find rank 0 if whatever started them has given them none.

They have exchanged nothing yet, so each derives the port from the job's id.
"""

from zlib import crc32

MEETING = "LAUNCHER_MEETING"
"""Environment variable with the job of ranks that were given no port."""
PORTS = range(15000, 32768)
"""Ports below the range that systems use for outgoing connections."""


def port_of(job: str) -> int:
    """Return the port for a text that all ranks know and no other job has."""
    return PORTS[crc32(job.encode()) % len(PORTS)]
