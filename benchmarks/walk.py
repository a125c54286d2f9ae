"""Print the files of src that hold the value of `optimizer.lr` before a run trains.

A file holds it if one of its functions has an argument, a local variable or a result that is the
number, its text, or a container with it at any depth. Objects are not searched: whoever has the
trainer would hold everything.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src" / "launcher"
TYPED = "0.0012345678"
MAX_DEPTH = 8
FIRST_STEP = "_run_step"


@dataclass
class Walk:
    """Follows a value through the functions of Launcher.

    Attributes:
        files: the functions that hold the value, by file.
        moves: how often the value came from one file to another.
    """

    files: dict[str, set[str]] = field(default_factory=dict)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    _last: str = ""

    def observe(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(SOURCE)):
            return
        if code.co_name == FIRST_STEP:
            sys.setprofile(None)
            return
        values = [*frame.f_locals.values(), *([result] if event == "return" else [])]
        if any(holds(value) for value in values):
            name = str(Path(code.co_filename).relative_to(SOURCE))
            self.files.setdefault(name, set()).add(code.co_qualname)
            if name != self._last:
                self.moves[self._last, name] += 1
                self._last = name


def holds(value: object, depth: int = MAX_DEPTH) -> bool:
    """Return whether a value is, or contains, the typed number or its text."""
    if isinstance(value, str):
        return TYPED in value
    if isinstance(value, float):
        return value == float(TYPED)
    if depth == 0:
        return False
    return any(holds(part, depth - 1) for part in parts_of(value))


def parts_of(value: object) -> Iterable[object]:
    # A DictConfig would resolve its interpolations.
    if isinstance(value, Mapping) and type(value).__module__ != "omegaconf.dictconfig":
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else ()


def walk() -> Walk:
    """Train one step of a small run in an empty folder; return what was seen before it."""
    from launcher.cli.main import main

    seen = Walk()
    overrides = [f"optimizer.lr={TYPED}", "trainer.max_steps=1", "device=cpu"]
    # A follower of the run may still write when the run has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        sys.setprofile(seen.observe)
        main([*overrides, "model=mlp", "data=digits"])
        os.chdir("/")
    return seen


if __name__ == "__main__":
    seen = walk()
    for name, functions in sorted(seen.files.items()):
        print(f"{name:44}{len(functions):4}  {', '.join(sorted(functions)[:4])}")
    print(f"{len(seen.files)} files hold optimizer.lr; {seen.moves.total()} moves between files")
    for (source, target), count in seen.moves.most_common(8):
        print(f"  {count:4}  {source} -> {target}")
