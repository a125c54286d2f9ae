"""A process that has imported torch and forks one that is like a new `python ...` for each request.

An interpreter that imports torch costs 2.5 CPU-seconds, a fork 0.05. Nothing is done here but
imports, and no thread is started, so the child is as new as an interpreter's. It ends as one does,
too, with its own exit code, traceback, threads that are waited for and atexit functions.
All processes of pytest, and the jobs of a SLURM cluster (see `support.proxy`), share one server.

What a child does not do is clear its modules at the end, which would first copy every page that it
shares with the server; and its hash seed and interpreter flags are the server's. A test of those
needs a real process. Linux only.

A child can start children of its own in the same way: before it runs its program it forks those
that wait, and its `subprocess.Popen` lets one of them run a command of the module that the request
names. They are its own children, with its session and its streams, as those that it would start.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib.util
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
import weakref

from launcher.process.quick_end import quick_end  # first of those that register with `atexit`
from support.proxy import NUMBER

PRELOADED = (
    "launcher.cli.main",
    "launcher.data.digits",
    "launcher.dispatch.local",
    "launcher.hooks.progress",
    "launcher.jobs.train",
    "launcher.models.mlp",
    "launcher.strategies.none",
    "launcher.train.attempt",
    "multiprocessing.pool",
    "rich.progress",
    "safetensors.torch",
    "torch._inductor.compile_fx",
)
"""Imports of the default run. The tests of imports have new interpreters."""
OPTIONAL = ("torchmetrics",)
"""Imports of several tests, as long as torch's."""
MAX_REQUEST = 1 << 20
OWN_PATH = sys.path[1:]


def main(listening: socket.socket, session: int) -> dict | None:
    """Answer requests until the session of pytest has ended. Returns a request in the child that is
    to do it, None at the end."""
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    selector.register(os.pidfd_open(session), selectors.EVENT_READ, "end")
    while True:
        for key, _ in selector.select():
            if key.data == "end":
                return None
            if key.data is not None:
                pid, client = key.data
                selector.unregister(key.fileobj)
                os.close(key.fd)
                report(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                client.close()
                continue
            client, _ = listening.accept()
            message, files, _, _ = socket.recv_fds(client, MAX_REQUEST, 16)
            if not message:  # the client has ended
                client.close()
                continue
            request = json.loads(message)
            pid = os.fork()
            if pid == 0:
                selector.close()
                if request["proxy"]:
                    follow(client)
                if request["new_session"]:
                    os.setsid()
                report(client, os.getpid())  # from here on it can be sent signals
                client.detach()
                become(request, files)
                return request
            for fd in files:
                os.close(fd)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))


def follow(client: socket.socket) -> None:
    """Enter the client's namespaces, which are a node's of a SLURM cluster. Returns in a child,
    which ends with the client."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    (pid, _, _) = struct.unpack("3i", credentials)
    for kind in ("uts", "pid", "mnt"):
        if os.path.samefile(f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}"):
            continue
        namespace = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {kind}")
        os.close(namespace)
    pid = os.fork()
    if pid == 0:
        return
    if client in select.select([client, os.pidfd_open(pid)], [], [])[0]:
        os.killpg(pid, signal.SIGKILL)
    report(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


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
    given = [*filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [
        *([] if request["env"].get("PYTHONSAFEPATH") else [request["cwd"]]),
        *given,
        *(path for path in OWN_PATH if path not in given),
    ]
    sys.executable = request["env"].get("LAUNCHER_TESTS_PYTHON", sys.executable)
    for signum in request["ignored"]:
        if signum not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(signum, signal.SIG_IGN)
    importlib.invalidate_caches()
    tempfile.tempdir = None  # the server's, from its own environment
    sys.modules["numpy"].random.seed()  # torch and `random` seed themselves


def with_children(module: str, count: int) -> dict | None:
    """Fork children that wait for one of some modules or files, `a.module job.py`. Returns None in
    this process, and in a child the request that it is to do."""
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

    modules, owner = module.split(), os.getpid()

    class Popen(subprocess.Popen):
        """Its own children are forked already."""

        def _execute_child(self, args, *how):  # type: ignore[no-untyped-def, override]
            is_file = os.path.basename(args[1]) in modules if args[1:] else False
            is_module = list(args[1:2]) == ["-m"] and args[2] in modules
            if not waiting or not (is_file or is_module) or os.getpid() != owner:
                return super()._execute_child(args, *how)  # type: ignore[misc]
            pass_fds, cwd, env = how[3:6]
            pipes = how[9:15]
            inherited = [
                number if fd == -1 else fd
                for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))
            ]
            request = {
                "program": ("", args[1], args[2:]) if is_file else ("-m", args[2], args[3:]),
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
            channel.recv(1)  # from here on it can be sent signals
            channel.close()
            self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    subprocess.Popen = Popen  # type: ignore[misc]
    return None


def wait_for_request(channel: socket.socket) -> dict:
    """Wait for a request, in a child. Signals that come before it are for others, and dropped."""
    every = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    message, files, _, _ = socket.recv_fds(channel, MAX_REQUEST, 16)
    if not message:
        os._exit(0)
    request = json.loads(message)
    while signal.sigtimedwait(every, 0):
        pass
    with contextlib.suppress(ConnectionError):  # the parent has ended
        channel.send(b"\0")
    channel.close()
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


def report(client: socket.socket, number: int) -> None:
    with contextlib.suppress(ConnectionError):  # whom it concerns has ended
        client.send(NUMBER.pack(number))


def forget_modules() -> None:
    """Forget the modules of the tests, which a new interpreter would not have imported: a run
    records the source files that are not a library's. The hub's client reads its variables when it
    is imported."""
    forgotten = {"support"}
    if "HF_ENDPOINT" in os.environ:
        forgotten.add("huggingface_hub")
    for name in [name for name in sys.modules if name.partition(".")[0] in forgotten]:
        del sys.modules[name]


def execute(kind: str, what: str, arguments: list[str]) -> None:
    """`python -m what`, `python -c what` or `python what`."""
    sys.argv = [kind if kind == "-c" else what, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), module.__dict__)
    else:
        if not os.environ.get("PYTHONSAFEPATH"):
            sys.path[0] = os.path.dirname(os.path.abspath(what))
        runpy.run_path(what, run_name="__main__")


def serve() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    sys.modules["mlflow"] = None  # type: ignore[assignment]  # DeepSpeed imports it if it can, and it starts a thread
    optional = filter(importlib.util.find_spec, OPTIONAL)
    for name in (*PRELOADED, *optional, *sys.argv[3:]):
        importlib.import_module(name)
    del sys.modules["mlflow"]
    # The grammar and the plugins of Hydra, and the signatures of the classes: a tenth of a second.
    from support.composition import composed, validate

    validate(composed(["model=mlp", "data=digits"]))
    # torch would unregister its operators one by one at each child's end.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: a fork would have none of them"
    gc.collect()
    gc.freeze()
    request = main(listening, int(sys.argv[2]))
    if request is None:
        return
    listening.detach()
    generations = request["children"]
    while generations:
        (module, count), *generations = generations
        of_child = with_children(module, count)
        if of_child is None:
            break
        request = of_child
    forget_modules()
    execute(*request["program"])


if __name__ == "__main__":
    with quick_end():
        serve()
