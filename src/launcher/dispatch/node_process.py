"""The process of this machine that imports torch once and forks ranks, or jobs of a sweep.

A forked child is like a new interpreter with the same command, environment and streams, but for the
modules that it finds imported. These are torch, NumPy and the modules of Launcher that its
configuration names, never modules of the project, which each child imports. The children have the
same parent, which does nothing else: it holds no lock and has no thread that they could miss.

It is not the command itself. The thread counts of OpenMP and BLAS are fixed when the libraries
load, and depend on the number of ranks.

A child is a new interpreter where a fork is not right: on other systems than Linux, with DeepSpeed,
and if a library has started a thread or opened the GPU when it was imported.
"""

import gc
import importlib
import io
import json
import logging
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from launcher.config.schema.declared import declared
from launcher.config.tree import Node, get, walk
from launcher.process import collector, signals, times
from launcher.process.child import start_child
from launcher.process.process_id import PARENT, RANK_VARIABLES

logger = logging.getLogger(__name__)
ROLE = "node"
"""Argument of `launcher.dispatch.child_job` that makes it this process."""
IMPORTS = ("torch", "torch._dynamo", "numpy", "launcher.train.attempt")
"""The second is imported by each optimizer of torch, and takes as long as torch itself. It looks at
the files of all modules that are imported before it."""
LIMIT = 120.0
"""Seconds that the imports may take after a signal."""
READY = b"ready"


def imports_for(config: Node) -> tuple[str, ...] | None:
    """Return what a process imports that forks runs of this configuration, or None if none may."""
    if sys.platform != "linux" or declared(get(config, "strategy._target_"), "is_deepspeed"):
        return None
    targets = (value for key, value in walk(config) if key.endswith("_target_"))
    modules = {target.rpartition(".")[0] for target in targets if isinstance(target, str)}
    return (*IMPORTS, *sorted(name for name in modules if name.startswith("launcher.")))


class Forked:
    """A forked child, like a `subprocess.Popen`.

    Its parent is another process. So a descriptor of the kernel shows its end, and the parent
    reports its exit code.
    """

    def __init__(self, channel: socket.socket):
        number, processes, _, _ = socket.recv_fds(channel, 16, 1)
        if not processes:
            raise ConnectionError("the process that forks has ended, or cannot fork")
        self.pid = int(number)
        self.returncode: int | None = None
        self._process, self._channel = processes[0], channel
        os.set_inheritable(self._process, False)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self) -> int:
        code = self._look(None)
        assert code is not None
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and _is_readable(self._process, timeout):
            with self._channel:
                # A parent that was killed before reports nothing.
                self.returncode = int(self._channel.recv(16) or -signal.SIGKILL)
            os.close(self._process)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        # The child may have ended.
        with suppress(ProcessLookupError):
            if self.returncode is None:
                signal.pidfd_send_signal(self._process, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Child = Forked | subprocess.Popen[bytes]


class Children:
    """Starts children of one command, which end with it; see `launcher.process.parent`.

    Args:
        command: of a new interpreter that calls `launcher.dispatch.child_job.main`, without the
            arguments.
    """

    def __init__(self, command: Sequence[str]):
        self.command = command
        self._node: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_asked = False

    def start(
        self,
        arguments: Sequence[str],
        log: Path | None,
        env: Mapping[str, str],
        imports: Sequence[str] | None,
        files: Mapping[str, int] | None = None,
    ) -> Child:
        """Start a child.

        Args:
            arguments: of its command.
            log: gets its output. None: it has the streams of this process.
            env: its environment.
            imports: what the process imports that forks it. None: it is a new interpreter. The
                first child decides for all.
            files: descriptors that it inherits, by the variable with their number.
        """
        files, requested = files or {}, time.time()
        if imports is not None:
            if not self._is_asked:
                self._is_asked = True
                self._open(imports, env)
            if self._channel is not None:
                try:
                    request = [*arguments], dict(env), [*files], requested
                    return _fork(self._channel, request, [*files.values()], log)
                except OSError as error:
                    self._say(str(error))
        numbers = {name: str(number) for name, number in files.items()}
        command = [*self.command, *arguments]
        return start_child(command, log, {**env, **numbers}, pass_fds=list(files.values()))

    def _open(self, imports: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the process that forks, and wait until it has imported."""
        own = {name: value for name, value in env.items() if name not in RANK_VARIABLES}
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [*self.command, ROLE, str(theirs.fileno()), *imports]
            self._node = start_child(command, None, own, pass_fds=[theirs.fileno()])
        answer = self._answer(self._channel)
        if answer != READY:
            self._say(answer.decode())
            self.close()

    def _answer(self, channel: socket.socket) -> bytes:
        signaled = None
        while not _is_readable(channel.fileno(), 1.0):
            if signals.first_signal() or signal.sigpending() & {*signals.HANDLED}:
                signaled = signaled or time.monotonic()
                if time.monotonic() > signaled + LIMIT:
                    return b"its imports take too long"
        return channel.recv(1 << 12) or b"it has ended while it imported"

    def _say(self, reason: str) -> None:
        logger.debug("Children are new interpreters: %s.", reason)

    def close(self) -> None:
        """Let the process that forks end. Children that still run save and end too."""
        if self._channel is None or self._node is None:
            return
        self._channel.close()
        self._channel = None
        self._node.kill()
        self._node.wait()


def _fork(
    channel: socket.socket, request: object, files: Sequence[int], log: Path | None
) -> Forked:
    """Let the other process fork a child; `_become` is its part."""
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        text = stack.enter_context(open(os.memfd_create("request"), "w"))
        json.dump(request, text)
        text.flush()
        descriptors = [stack.enter_context(theirs).fileno(), text.fileno(), *files]
        if log is not None:
            descriptors.append(stack.enter_context(open(log, "ab")).fileno())
        socket.send_fds(channel, [b"."], descriptors)
    return Forked(ours)


def serve(descriptor: int, modules: Sequence[str]) -> list[str] | None:
    """Fork children until the command ends.

    Returns:
        In a child its arguments, and None at the end.
    """
    collector.pause()
    with socket.socket(fileno=descriptor) as channel:
        reason = _why_not(modules)
        if reason is None:
            # The collector of a child would copy the pages of all objects.
            gc.freeze()
            # A child would print again what is not flushed.
            print(end="", flush=True)
        # The command may have ended.
        with suppress(OSError):
            channel.sendall(READY if reason is None else reason.encode())
        return None if reason is not None else _Server(channel).run()


def _why_not(modules: Sequence[str]) -> str | None:
    """Import, and return why this process should not fork, or None."""
    path, current = sys.path[:], os.getcwd()
    # The libraries, not modules of the project with their names.
    sys.path[:] = [folder for folder in path if folder not in ("", current)]
    try:
        # Kernels before 5.3 have no such descriptor.
        os.close(os.pidfd_open(os.getpid()))
        for name in modules:
            importlib.import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path[:] = path
    # OpenBLAS ends its threads at a fork, and starts them again for the next product.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count = len(os.listdir("/proc/self/task"))
    if count > 1:
        return f"{count} threads run after the imports"
    return "a library has opened the GPU" if any(map(_is_gpu, _open_files())) else None


def _open_files() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        # The folder's own descriptor is closed already.
        with suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{name}")


def _is_gpu(file: str) -> bool:
    return file.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/"))


class _Server:
    """Forks children, and reports their ends."""

    def __init__(self, channel: socket.socket):
        self.channel = channel
        self.command = os.pidfd_open(int(os.environ[PARENT]))
        self.children: dict[int, tuple[int, socket.socket]] = {}
        self.selector = selectors.DefaultSelector()
        for file in (channel.fileno(), self.command):
            self.selector.register(file, selectors.EVENT_READ)

    def run(self) -> list[str] | None:
        parent = os.getpid()
        while True:
            for key, _ in self.selector.select():
                if key.fd in self.children:
                    self._report(key.fd)
                    continue
                if key.fd == self.command:
                    return None
                data, files, _, _ = socket.recv_fds(self.channel, 1, 16)
                if not data:
                    return None
                if self._fork(files):
                    return _become(parent, files[1], files[2:])

    def _fork(self, files: list[int]) -> bool:
        """Fork; return whether this is the child."""
        with socket.socket(fileno=files[0]) as channel:
            try:
                pid = os.fork()
            # Too many processes run: the command reports it.
            except OSError:
                pid = -1
            if pid == 0:
                self._leave()
                return True
            for file in files[1:]:
                os.close(file)
            if pid > 0:
                process = os.pidfd_open(pid)
                self.children[process] = pid, channel.dup()
                self.selector.register(process, selectors.EVENT_READ)
                socket.send_fds(channel, [str(pid).encode()], [process])
        return False

    def _leave(self) -> None:
        """Close what belongs to the parent."""
        self.selector.close()
        os.close(self.command)
        for process, (_, request) in self.children.items():
            os.close(process)
            request.close()

    def _report(self, process: int) -> None:
        pid, request = self.children.pop(process)
        self.selector.unregister(process)
        os.close(process)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Whom it concerns may have ended.
        with suppress(OSError), request:
            request.sendall(str(code).encode())
            # The command waits for signals, and gets this one for its own children.
            signal.pidfd_send_signal(self.command, signal.SIGCHLD)


def _become(parent: int, request: int, files: Sequence[int]) -> list[str]:
    """Take over the environment and the streams of a request; return its arguments."""
    with open(request) as file:
        file.seek(0)
        arguments, env, names, requested = json.load(file)
    times.note_request(requested)
    os.environ.clear()
    os.environ.update(env)
    os.environ.update({name: str(file) for name, file in zip(names, files, strict=False)})
    os.environ[PARENT] = str(parent)
    for log in files[len(names) :]:
        _divert(log)
    # The folders of the project may have changed.
    importlib.invalidate_caches()
    # Siblings must not draw the same numbers. `random` and torch need nothing for it.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    return [str(argument) for argument in arguments]


def _divert(log: int) -> None:
    """Let a file have the output, and nothing be the input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, log, log)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(log)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=False)


def _is_readable(descriptor: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))
