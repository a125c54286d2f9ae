"""Instructions counted by valgrind's callgrind between two points of a Python program.

The load of the machine does not matter.

The program tells callgrind by itself when to count, by the instruction sequence that valgrind takes
as a request.
"""

import ctypes
import mmap
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

DUMP_AT, START, STOP = (0x43540000 + number for number in (3, 4, 5))  # 'CT', see callgrind.h
REQUEST = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
"""`mov rax, rdi; xor edx, edx`, then valgrind's no-operation (four rotations of rdi, `xchg rbx,
rbx`), and `mov rax, rdx; ret`. See valgrind.h."""


def is_available() -> bool:
    return shutil.which("valgrind") is not None and platform.machine() in ("x86_64", "AMD64")


class Counter:
    """Counter in the program that callgrind runs: counts between `start` and `stop`.

    Elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._code = mmap.mmap(
            -1, len(REQUEST), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
        self._code.write(REQUEST)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        self._call = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(address)

    def _request(self, number: int, argument: bytes | None = None) -> None:
        words = (ctypes.c_void_p * 6)(
            number, ctypes.cast(argument, ctypes.c_void_p) if argument else None
        )
        self._call(ctypes.addressof(words))

    def start(self) -> None:
        self._request(START)

    def stop(self, name: str) -> None:
        self._request(STOP)
        self._request(DUMP_AT, name.encode())


def count(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> tuple["subprocess.CompletedProcess[str]", dict[str, int]]:
    """Run a program; the instructions of each part of it that a `Counter` names."""
    with tempfile.TemporaryDirectory() as out:
        valgrind = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--fair-sched=try",
            f"--callgrind-out-file={out}/out",
        ]
        done = subprocess.run(
            [*valgrind, *command], capture_output=True, text=True, env=environment, cwd=folder
        )
        dumps = [path.read_text() for path in Path(out).glob("out*")]
    totals = {}
    for dump in dumps:
        name = re.search(r"^desc: Trigger: Client Request: (.*)$", dump, re.M)
        total = re.search(r"^totals: (\d+)", dump, re.M)
        if name is not None and total is not None:
            totals[name[1]] = int(total[1])
    return done, totals
