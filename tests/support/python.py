"""`python ...` as a user types it, forked from a process that has imported torch where that is
possible."""

import atexit
import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from support import proxy
from support.paths import SOURCE, TESTS
from support.proxy import NUMBER

CAN_FORK = sys.platform == "linux"
DEEPSPEED = ("deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer")
"""Imports of DeepSpeed: 6 CPU-seconds for each rank."""
TRANSFORMERS = (
    *("peft", "launcher.models.huggingface"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "llama", "vit")),
)
"""Imports of models of transformers, which take longer than what the tests do with them."""
PYTHON = "LAUNCHER_TESTS_PYTHON"
"""The variable with which `sys.executable` of a forked process is another command."""
SESSION = os.environ.get("LAUNCHER_TESTS_SESSION", str(os.getpid()))
"""The first process of pytest, of which the others inherit it."""


def start(
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.STDOUT,
    new_session: bool = True,
    pass_fds: tuple[int, ...] = (),
    preloaded: tuple[str, ...] = (),
    children: proxy.Children = (),
    real: bool = False,
) -> "Forked | subprocess.Popen[str]":
    """Start `python <words>`, where the words begin with `-m`, `-c` or a script.

    Args:
        env: as for `subprocess.Popen`, and so are cwd, stdout, stderr and pass_fds.
        preloaded: modules that the process may find imported, next to torch.
        children: a module, and how many processes that run it by `python -m` are forked as well;
            then a module for the children of each of these, and so on.
        real: a new interpreter. Needed where imports, the interpreter's options or its hash seed
            are the point.
    """
    environment = dict(os.environ if env is None else env)
    if real or not CAN_FORK:
        return subprocess.Popen(
            [sys.executable, *words],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=new_session,
            text=True,
        )
    kind, what, *arguments = words if words[0] in ("-m", "-c") else ("", *words)
    if (kind, what) == ("-m", "launcher.runs"):
        # It replaces itself by another command.
        environment.setdefault(PYTHON, str(interpreter()))
    request = {
        "program": (kind, what, arguments),
        "env": environment,
        "cwd": str(Path(cwd or ".").resolve()),
        "new_session": new_session,
        "pass_fds": pass_fds,
        "children": children,
        "ignored": [],
        "proxy": False,
    }
    return Forked(words, request, stdout, stderr, connection(preloaded))


def run(
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 400,
    check: bool = False,
    preloaded: tuple[str, ...] = (),
    real: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; killed with all of its session after `timeout` seconds."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = start(
            *words, env=env, cwd=cwd, stdout=stdout, stderr=stderr, preloaded=preloaded, real=real
        )
        try:
            process.wait(timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        stdout.seek(0)
        stderr.seek(0)
        assert process.returncode is not None
        done = subprocess.CompletedProcess(words, process.returncode, stdout.read(), stderr.read())
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


class Forked:
    """The part of `subprocess.Popen` that the tests use, for a process that the server forks."""

    def __init__(
        self,
        args: tuple[str, ...],
        request: dict[str, Any],
        stdout: Any,
        stderr: Any,
        server: socket.socket,
    ):
        self.args = args
        self.returncode: int | None = None
        ours: list[int] = []
        self.stdout, output = _output(stdout, ours)
        self.stderr, errors = (
            (None, output) if stderr == subprocess.STDOUT else _output(stderr, ours)
        )
        nothing = os.open(os.devnull, os.O_RDONLY)
        self._server = server
        files = [nothing, output, errors, *request["pass_fds"]]
        socket.send_fds(server, [json.dumps(request).encode()], files)
        for fd in (nothing, *ours):
            os.close(fd)
        pid = self._number()
        if pid is None:
            raise RuntimeError("the fork server has ended")
        self.pid = pid

    def _number(self) -> int | None:
        data = self._server.recv(NUMBER.size)
        return NUMBER.unpack(data)[0] if data else None

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._server], [], [], seconds)[0]:
            self.returncode = self._number()
            self._server.close()
            if self.returncode is None:
                raise RuntimeError("the fork server has ended")
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:
        """Its output, where not both streams are pipes of their own."""
        texts = [
            stream.read() if stream is not None else "" for stream in (self.stdout, self.stderr)
        ]
        self.wait(timeout)
        return texts[0], texts[1]


def _output(where: Any, ours: list[int]) -> tuple[IO[str] | None, int]:
    """Our end of a stream, if it is a pipe, and the child's."""
    if where == subprocess.PIPE:
        reading, writing = os.pipe()
        ours.append(writing)
        return open(reading), writing
    if where == subprocess.DEVNULL:
        ours.append(os.open(os.devnull, os.O_WRONLY))
        return None, ours[-1]
    return None, where if isinstance(where, int) else where.fileno()


def preloaded(overrides: Iterable[Any]) -> tuple[str, ...]:
    """Modules that processes with these overrides import."""
    chosen = [override for override in overrides if isinstance(override, str)]
    if "strategy=deepspeed" in chosen:
        return DEEPSPEED
    return TRANSFORMERS if {"model=huggingface", "model=pretrained"} & {*chosen} else ()


def command(folder: Path, preloaded: tuple[str, ...] = (), children: proxy.Children = ()) -> Path:
    """A command `python` for a shell, whose processes are forked where that is possible."""
    path = folder / "python"
    if not CAN_FORK:
        path.symlink_to(sys.executable)
        return path
    connection(preloaded).close()  # there is a server
    return proxy.write(path, address(preloaded), children)


def forking() -> dict[str, str]:
    """The environment of a process whose `sys.executable` is forked too, wherever it starts it."""
    return {**os.environ, PYTHON: str(interpreter())}


@cache
def interpreter() -> Path:
    """A command for those that a forked process starts or becomes (see `command`)."""
    folder = Path(tempfile.mkdtemp(prefix="tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return command(folder)


def address(preloaded: tuple[str, ...] = ()) -> str:
    """The server's name among the abstract sockets, which all namespaces of nodes share."""
    return f"\0launcher-tests-{SESSION}-{'-'.join(preloaded)}"[:100]


def connection(preloaded: tuple[str, ...]) -> socket.socket:
    """A connection to the server of this session, which is started if there is none. Those that
    import more are forked from the first one."""
    while True:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            ours.connect(address(preloaded))
            return ours
        except ConnectionRefusedError:
            ours.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            try:
                listening.bind(address(preloaded))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                time.sleep(0.01)  # another process was quicker, and is about to listen
                continue
            listening.listen(1000)
            start_server(listening.fileno(), preloaded)


def start_server(listening: int, preloaded: tuple[str, ...]) -> None:
    """Start one that ends with the session."""
    process = start(
        *("-m", "support.fork_server", str(listening), SESSION, *preloaded),
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            # Otherwise inductor starts processes that import torch.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # Otherwise pyarrow, which scikit-learn imports, starts a thread.
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        },
        cwd=TESTS,
        stdout=1,
        stderr=2,
        pass_fds=(listening,),
        real=not preloaded,
    )
    SERVERS.append(process)


SERVERS: list[Any] = []
"""Started by this process: they are not waited for."""
