"""Forked children are like new interpreters: what they have, how they end, and what ends them."""

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.dispatch.node_process import Child, Children, imports_for
from launcher.process import signals
from support import python
from support.processes import of_session
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(not python.CAN_FORK, reason="there is no fork of it")
COMMAND = """
import os, sys
from launcher.dispatch import child_job

def run_child(role, path, result=None):
    exec(compile(path.read_text(), "program", "exec"), {"__name__": "program"})
    return 0

child_job.run_child = run_child
child_job.main()
"""
FORKED, NEW = ("json",), None
KINDS = pytest.mark.parametrize("imports", [FORKED, NEW], ids=["forked", "new"])


@pytest.fixture
def children():
    made = Children((sys.executable, "-c", COMMAND))
    yield made
    made.close()


def start(children: Children, folder: Path, program: str, imports: Any, **keys: Any) -> Child:
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(program)
    env = {**os.environ, "PYTHONUNBUFFERED": "", **keys.pop("env", {})}
    arguments = ["job", str(folder / "program.py")]
    return children.start(arguments, folder / "log", env, imports, **keys)


def outcome(children: Children, folder: Path, program: str, imports: Any) -> tuple[int, list[str]]:
    """The exit code, and the lines of the log that name no place in a file."""
    code = start(children, folder, program, imports).wait()
    lines = (folder / "log").read_text().splitlines()
    return code, [line for line in lines if not line.startswith("  ")]


ENDS = {
    "to the end": "print('done', end='')",
    "a code": "sys.exit(3)",
    "a code of several bytes": "sys.exit(259)",
    "a negative code": "sys.exit(-1)",
    "no code": "sys.exit()",
    "a truth": "sys.exit(True)",
    "a text": "print('before'); sys.exit('the reason')",
    "an object": "sys.exit([1, 2])",
    "an exception": "print('before'); raise LookupError('lost')",
    "an interrupt": "print('before'); raise KeyboardInterrupt",
    "at once": "print('lost'); os._exit(4)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "its signal": "signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)",
    "functions at exit": "atexit.register(print, 'first'); atexit.register(print, 'second')",
    "an error at exit": "atexit.register(int, 'x'); atexit.register(print, 'second'); sys.exit(5)",
    "a log that is kept until the end": (
        "import logging, logging.handlers\n"
        "end = logging.StreamHandler(sys.stdout)\n"
        "logging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=end))\n"
        "logging.getLogger().warning('kept')"
    ),
    "a thread that is waited for": (
        "threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()"
    ),
    "a process that is waited for": (
        "import multiprocessing\n"
        "context = multiprocessing.get_context('fork')\n"
        "context.Process(target=lambda: (time.sleep(0.2), print('late', flush=True))).start()"
    ),
    "a stream of C": "ctypes.CDLL(None).printf(b'from C')",
    "another stream": "print('one'); sys.stdout = open(1, 'w', closefd=False); print('two')",
    "no stream": "print('one'); sys.stdout = None",
    "a closed stream": "sys.stdout.close()",
    "a full disk": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')",
    "a temporary folder": (
        "import tempfile\n"
        "kept = tempfile.TemporaryDirectory()\n"
        "atexit.register(lambda: print(os.path.exists(kept.name)))"
    ),
}
PRELUDE = "import atexit, ctypes, os, signal, sys, threading, time\n"


def test_a_forked_child_ends_like_a_new_interpreter(tmp_path, children):
    ends: dict[str, dict[str, Any]] = {}
    for kind, imports in (("forked", FORKED), ("new", NEW)):
        folder = tmp_path / kind
        folder.mkdir()
        ends[kind] = {
            name: outcome(children, folder / name, PRELUDE + program, imports)
            for name, program in ENDS.items()
        }
    assert ends["forked"] == ends["new"]
    codes = {name: code for name, (code, _) in ends["new"].items()}
    assert codes["a code"] == 3 and codes["a text"] == codes["an exception"] == 1
    assert codes["an interrupt"] == -signal.SIGINT and codes["a full disk"] == 120


def test_files_that_are_left_open_are_complete(tmp_path, children):
    program = f"import sys\nsys.kept = open({str(tmp_path / 'open')!r}, 'w')\nsys.kept.write('x')"
    assert outcome(children, tmp_path / "child", program, FORKED) == (0, [])
    assert (tmp_path / "open").read_text() == "x"


STATE = """
import gc, json, os, signal, subprocess, sys, threading
names = {number: os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")
         if os.path.exists(f"/proc/self/fd/{number}")}
umask = os.umask(0)
os.umask(umask)
json.dump({
    "environment": {name: value for name, value in os.environ.items() if name != "LAUNCHER_PARENT"},
    "of C": sorted(os.fsdecode(subprocess.check_output(["env", "-0"])).split("\\0")),
    "parent": int(os.environ["LAUNCHER_PARENT"]) == os.getppid(),
    "arguments": sys.argv[1:],
    "path": sys.path,
    "folder": os.getcwd(),
    "umask": umask,
    "session": os.getsid(0),
    "group": os.getpgid(0),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": {n: str(signal.getsignal(n)).partition(" at ")[0] for n in signal.valid_signals()},
    "files": {number: name for number, name in names.items() if not name.startswith("pipe")},
    "streams": [[s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "input": sys.stdin.read(),
    "flags": str(sys.flags),
    "threads": threading.active_count(),
    "main": threading.current_thread() is threading.main_thread(),
    "collects": gc.isenabled(),
    "module": sys.modules["__main__"].__name__,
}, sys.stdout)
"""


def test_a_forked_child_has_the_state_of_a_new_interpreter(tmp_path, children):
    read, write = os.pipe()
    states = []
    for imports in (FORKED, NEW):
        env = {"OWN": "a \udcff b\n", "UNSET": ""}
        child = start(children, tmp_path / "child", STATE, imports, env=env, files={"PIPE": write})
        assert child.wait() == 0, (tmp_path / "child" / "log").read_text()
        states.append(json.loads((tmp_path / "child" / "log").read_text()))
        (tmp_path / "child" / "log").unlink()
    os.close(read), os.close(write)
    for state in states:
        assert state["environment"].pop("PIPE")
        own = ("PIPE=", "LAUNCHER_PARENT=")
        state["of C"] = [line for line in state["of C"] if not line.startswith(own)]
    assert states[0] == states[1]
    assert states[0]["parent"] and states[0]["environment"]["OWN"] == "a \udcff b\n"


def test_children_share_no_random_numbers(tmp_path, children):
    program = "import random, numpy\nprint(random.random(), numpy.random.rand())"
    drawn = []
    for number in range(3):
        _, (line,) = outcome(children, tmp_path / str(number), program, ("random", "numpy"))
        drawn += line.split()
    assert len({*drawn}) == 6


PRODUCTS = """
import hashlib, os, random, numpy, threadpoolctl, torch
torch.manual_seed(0)
one = torch.randn(700, 700)
both = one @ one, torch.from_numpy(one.numpy() @ one.numpy())
print([hashlib.sha256(each.numpy().tobytes()).hexdigest() for each in both])
print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype())
print(len(os.listdir("/proc/self/task")))
pools = threadpoolctl.threadpool_info()
print(sorted((each["internal_api"], each["num_threads"]) for each in pools))
"""


def test_products_and_thread_counts_are_those_of_a_new_interpreter(tmp_path, children):
    pytest.importorskip("threadpoolctl")
    ends = []
    for imports in (("torch", "numpy"), NEW):
        child = start(children, tmp_path / "c", PRODUCTS, imports, env={"OMP_NUM_THREADS": "2"})
        assert child.wait() == 0
        ends.append((tmp_path / "c" / "log").read_text())
        (tmp_path / "c" / "log").unlink()
    assert ends[0] == ends[1]


def test_modules_of_the_project_are_imported_by_each_child(tmp_path, children, monkeypatch):
    """The child has the text of that moment, also of a module with the name of a shared library."""
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('of the project')")
    monkeypatch.chdir(tmp_path)
    program = "import own; own.f()"
    # Bytecode is of a file with its time in seconds, and its size.
    for word in ("one", "three"):
        (tmp_path / "own.py").write_text(f"def f(): print('{word}')\n")
        assert outcome(children, tmp_path / word, program, ("colorsys",)) == (0, [word])


REASONS = {
    "2 threads run after the imports": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "ValueError: not today": "raise ValueError('not today')",
    "it has ended while it imported": "import os\nos._exit(3)",
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_child_is_a_new_interpreter_where_a_fork_is_not_right(
    tmp_path, children, monkeypatch, caplog, reason
):
    (tmp_path / "library.py").write_text(REASONS[reason])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    caplog.set_level(logging.DEBUG)
    program = "import os, sys\nprint(os.getppid())"
    for number in range(2):
        end = outcome(children, tmp_path / str(number), program, ("library",))
        assert end == (0, [str(os.getpid())])
    assert caplog.messages == [f"Children are new interpreters: {reason}."]


def test_deepspeed_is_not_forked():
    strategy = {"_target_": "launcher.strategies.deepspeed.DeepSpeedStrategy"}
    assert imports_for({"strategy": strategy}) is None
    config = {"strategy": {"_target_": "launcher.strategies.ddp.DdpStrategy"}}
    config |= {
        "model": {"_target_": "my_project.model.Net", "net": {"_target_": "torch.nn.Linear"}}
    }
    imports = imports_for(config)
    assert imports is not None and imports[-1] == "launcher.strategies.ddp"


WAITS = """
import os, sys, time
from launcher.process import signals
print("ready", flush=True)
while not signals.first_signal():
    time.sleep(0.01)
sys.exit(128 + signals.first_signal())
"""


def waiting(children: Children, folder: Path, imports: Any) -> Child:
    child = start(children, folder, WAITS, imports)
    wait_for(lambda: "ready" in (folder / "log").read_text())
    return child


@KINDS
def test_kills_of_one_child_leave_the_others(tmp_path, children, imports):
    changes = "import os, sys\nos.chdir('/'); os.umask(0o77); os.environ.clear()\n" + WAITS
    first = start(children, tmp_path / "changes", changes, imports)
    second, third = (waiting(children, tmp_path / str(number), imports) for number in range(2))
    second.kill()
    assert second.wait() == -signal.SIGKILL
    assert [first.poll(), third.poll()] == [None, None]
    end = outcome(children, tmp_path / "next", "import os\nprint(os.getcwd())", imports)
    assert end == (0, [os.getcwd()])
    for child in (first, third):
        child.terminate()
        assert child.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_before_a_child_has_its_handlers_waits_for_them(tmp_path, children, signum):
    child = start(children, tmp_path / "child", WAITS, FORKED)
    child.send_signal(signum)
    assert child.wait() == 128 + signum
    child.send_signal(signum)


def test_children_save_and_end_with_the_process_that_forks(tmp_path, children):
    first, second = (waiting(children, tmp_path / str(number), FORKED) for number in range(2))
    forking = int(Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(forking, signal.SIGKILL)
    assert [first.wait(), second.wait()] == [-signal.SIGKILL] * 2, "nobody knows their codes"
    assert outcome(children, tmp_path / "next", "print(1)", FORKED) == (0, ["1"])


PARENT = """
import os, sys
from pathlib import Path
from launcher.dispatch.node_process import Children
children = Children((sys.executable, "-c", {command!r}))
children.start(["job", sys.argv[1]], Path(sys.argv[2]), os.environ, ("json",))
os.kill(os.getpid(), 9)
"""


def test_children_save_and_end_with_a_command_that_is_killed(tmp_path):
    (tmp_path / "program.py").write_text(WAITS)
    paths = [str(tmp_path / name) for name in ("program.py", "log")]
    process = python.start("-c", PARENT.format(command=COMMAND), *paths)
    assert process.wait() == -signal.SIGKILL
    wait_for(lambda: not of_session(process.pid), "all to end")


def test_a_signal_while_the_process_that_forks_imports(tmp_path, children, monkeypatch):
    """It waits at most so long; the child gets the signal from the command."""
    (tmp_path / "library.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.setattr("launcher.dispatch.node_process.LIMIT", 0.1)
    monkeypatch.setattr(signals, "first_signal", lambda: int(signal.SIGTERM))
    assert outcome(children, tmp_path / "child", "print(1)", ("library",)) == (0, ["1"])
