"""A process that has imported torch and forks one that is like a new `python ...` for each request.

An interpreter that imports torch costs 2.5 CPU-seconds, a fork 0.05. No module of launcher is
imported here, and no thread is started, so the child is as new as an interpreter's. It ends as one
does, too, with its own exit code, traceback, threads that are waited for and atexit functions.

What a child does not do is clear its modules at the end, which would first copy every page that it
shares with the server; and its hash seed and interpreter flags are the server's. A test of those
needs a real process. Linux only.

A child can start children of its own in the same way: before it runs its program it forks those
that wait, and its `subprocess.Popen` lets one of them run a command of the module that the request
names. They are its own children, with its session and its streams, as those that it would start.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

PRELOADED = (
    "hydra",
    "hydra._internal.hydra",
    "multiprocessing.pool",
    "numpy",
    "rich.progress",
    "safetensors.torch",
    "torch",
    "torch._dynamo",
    "xxhash",
    "yaml",
)
NUMBER = struct.Struct("i")
MAX_REQUEST = 1 << 20
OWN_PATH = sys.path[1:]


def main(control: socket.socket) -> dict | None:
    """Answer requests until the client has ended. Returns a request in the child that is to do it,
    None at the end."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                pid, status = key.data
                selector.unregister(key.fileobj)
                os.close(key.fd)
                report(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(status)
                continue
            message, fds, _, _ = socket.recv_fds(control, MAX_REQUEST, 16)
            if not message:
                return None
            request = json.loads(message)
            status, *files = fds
            pid = os.fork()
            if pid == 0:
                selector.close()
                if request["new_session"]:
                    os.setsid()
                report(status, os.getpid())  # from here on it can be sent signals
                become(request, files)
                return request
            for fd in files:
                os.close(fd)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))


def become(request: dict, files: list[int]) -> None:
    """Take over the state of a new process, in the child."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    targets = [0, 1, 2, *request["pass_fds"]]
    out_of_the_way = [fcntl.fcntl(fd, fcntl.F_DUPFD, 200) for fd in files]
    for fd, target in zip(out_of_the_way, targets, strict=True):
        os.dup2(fd, target, inheritable=True)
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - set(targets):
        with contextlib.suppress(OSError):  # the one that listed them
            os.close(fd)
    unbuffered = bool(request["env"].get("PYTHONUNBUFFERED"))
    sys.stdout = sys.__stdout__ = stream(1, unbuffered)
    sys.stderr = sys.__stderr__ = stream(2, unbuffered)
    sys.path[:] = [
        request["cwd"],
        *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep)),
        *OWN_PATH,
    ]
    importlib.invalidate_caches()
    tempfile.tempdir = None  # the server's, from its own environment
    sys.modules["numpy"].random.seed()  # torch and `random` seed themselves


def with_children(module: str, count: int) -> dict | None:
    """Fork children that wait. Returns None in this process, and in a child the request that it is
    to do."""
    waiting: list[tuple[int, socket.socket]] = []
    for _ in range(count):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            for channel in (ours, *(channel for _, channel in waiting)):
                channel.close()
            return wait_for_request(theirs)
        theirs.close()
        waiting.append((pid, ours))

    class Popen(subprocess.Popen):
        """Its own children are forked already."""

        def _execute_child(self, args, *how):  # type: ignore[no-untyped-def, override]
            if not waiting or list(args[:3]) != [sys.executable, "-m", module]:
                return super()._execute_child(args, *how)  # type: ignore[misc]
            pass_fds, cwd, env = how[3:6]
            pipes = how[9:15]
            inherited = [
                number if fd == -1 else fd
                for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))
            ]
            request = {
                "program": ("-m", module, list(args[3:])),
                "env": dict(os.environ if env is None else env),
                "cwd": cwd or os.getcwd(),
                "pass_fds": list(pass_fds),
                "ignored": [
                    each
                    for each in signal.valid_signals()
                    if signal.getsignal(each) == signal.SIG_IGN
                ],
                "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            }
            self.pid, channel = waiting.pop(0)
            socket.send_fds(channel, [json.dumps(request).encode()], [*inherited, *pass_fds])
            channel.close()
            self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    subprocess.Popen = Popen  # type: ignore[misc]
    return None


def wait_for_request(channel: socket.socket) -> dict:
    """Wait for a request, in a child. It does not exist yet for others, so no signal reaches it."""
    every = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    message, files, _, _ = socket.recv_fds(channel, MAX_REQUEST, 16)
    if not message:
        os._exit(0)
    request = json.loads(message)
    Path("/proc/self/comm").write_text(f"rank {request['env'].get('RANK', '')}")
    while signal.sigtimedwait(every, 0):
        pass
    for signum in request["ignored"]:
        if signum not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(signum, signal.SIG_IGN)
    become(request, files)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    return request


def stream(fd: int, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    errors = "backslashreplace" if fd == 2 else "strict"
    if unbuffered:
        return io.TextIOWrapper(raw, errors=errors, write_through=True)  # type: ignore[type-var]
    return io.TextIOWrapper(
        io.BufferedWriter(raw), errors=errors, line_buffering=fd == 2 or os.isatty(fd)
    )


def report(status: int, number: int) -> None:
    try:
        os.write(status, NUMBER.pack(number))
    except BrokenPipeError:  # whom it concerns has ended
        pass


def execute(kind: str, what: str, arguments: list[str]) -> None:
    """`python -m what`, `python -c what` or `python what`."""
    sys.argv = [kind if kind == "-c" else what, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), module.__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(what))
        runpy.run_path(what, run_name="__main__")


def end(code: int) -> None:
    """End as an interpreter does, without clearing its modules: that takes 0.2 CPU-seconds of each
    rank."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def serve() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.modules["mlflow"] = None  # type: ignore[assignment]  # DeepSpeed imports it if it can, and it starts a thread
    for name in (*PRELOADED, *sys.argv[2:]):
        importlib.import_module(name)
    del sys.modules["mlflow"]
    assert not [name for name in sys.modules if name.split(".")[0] == "launcher"]
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: a fork would have none of them"
    gc.collect()
    gc.freeze()
    request = main(control)
    if request is None:
        return
    control.detach()
    if request["children"] is not None:
        request = with_children(*request["children"]) or request
    try:
        execute(*request["program"])
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        end(error.code or 0)
    end(0)


if __name__ == "__main__":
    serve()
