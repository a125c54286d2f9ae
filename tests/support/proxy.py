"""A `python ...` of a shell or of a SLURM job that the tests' server forks: the process itself
imports nothing, forwards its signals to the forked one, and ends as that one does.

The forked process enters the namespaces that a node of SLURM has, and is killed when this one is.
Its parent is another, which a rank of the launcher's own spawner would notice; those are started
otherwise (see `fork_server.with_children`).
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from types import FrameType

NUMBER = struct.Struct("i")
FORWARDED = signal.valid_signals() - {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
}
SCRIPT = """#!{python} -IS
import sys
sys.path.append({tests!r})
from support.proxy import main
main({address!r}, {children!r})
"""
Children = tuple[tuple[str, int], ...]
"""A module and how many processes that run it are forked as well (see `python.start`). What follows
are the children of these."""


def write(path: Path, address: str, children: Children = ()) -> Path:
    """Write a command that is used like the interpreter.

    Args:
        address: of the server.
    """
    tests = str(Path(__file__).parents[1])
    path.write_text(
        SCRIPT.format(python=sys.executable, tests=tests, address=address, children=children)
    )
    path.chmod(0o755)
    return path


def main(address: str, children: Children) -> None:
    """Have the program of `sys.argv` run."""
    words = [word for word in sys.argv[1:] if word != "-u"]
    if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    kind, what, *arguments = words if words[0] in ("-m", "-c") else ("", *words)
    ignored = [each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    request = {
        "program": (kind, what, arguments),
        "env": {**os.environ, **({"PYTHONUNBUFFERED": "1"} if "-u" in sys.argv else {})},
        "cwd": os.getcwd(),
        "new_session": True,
        "pass_fds": [],
        "children": children,
        "ignored": ignored,
        "proxy": True,
    }
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    server.connect(address)
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    (pid,) = NUMBER.unpack(server.recv(NUMBER.size))

    def forward(signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)

    for signum in FORWARDED:
        signal.signal(signum, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    (code,) = NUMBER.unpack(server.recv(NUMBER.size))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)
