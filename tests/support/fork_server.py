"""A process that has imported torch and forks one that is like a new `python ...` for each request.

An interpreter that imports torch costs 2.5 CPU-seconds, a fork 0.05. No module of launcher is imported
here, and no thread is started, so the child is as new as an interpreter's. It ends as one does, too: it leaves the
loop below and runs off the end of this file, with its own exit code, traceback and atexit functions.

A child shares the server's hash seed and interpreter flags: a test of those needs a real process. Linux only.
"""

import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import socket
import struct
import sys
import types

PRELOADED = (
    "hydra",
    "hydra._internal.hydra",
    "multiprocessing.pool",
    "numpy",
    "rich.progress",
    "safetensors.torch",
    "torch",
    "xxhash",
    "yaml",
)
NUMBER = struct.Struct("i")
MAX_REQUEST = 1 << 20


def main(control: socket.socket) -> dict | None:
    """Answer requests until the client has ended. Returns a request in the child that is to do it, None at the end."""
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
                become(request, status, files)
                return request
            for fd in files:
                os.close(fd)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))


def become(request: dict, status: int, files: list[int]) -> None:
    """In the child: take over what a new process is started with."""
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    report(status, os.getpid())  # from here on it can be sent signals
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
    sys.path[0:1] = [request["cwd"], *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()
    sys.modules["numpy"].random.seed()  # torch and `random` seed themselves


def stream(fd: int, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    errors = "backslashreplace" if fd == 2 else "strict"
    if unbuffered:
        return io.TextIOWrapper(raw, errors=errors, write_through=True)  # type: ignore[type-var]
    return io.TextIOWrapper(io.BufferedWriter(raw), errors=errors, line_buffering=fd == 2 or os.isatty(fd))


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


def serve() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in (*PRELOADED, *sys.argv[2:]):
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.split(".")[0] == "launcher"]
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: a fork would have none of them"
    gc.collect()
    gc.freeze()
    request = main(control)
    if request is None:
        return
    control.detach()
    execute(*request["program"])


if __name__ == "__main__":
    serve()
