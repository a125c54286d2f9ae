"""The rooms of src from top to bottom, and which modules name which: for `make size` and tests."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"

# A room imports from itself and from the rows below its own, and never from its own row.
ORDER = [
    {"hydra_plugins"},
    {"__main__"},
    {"search"},
    {"api"},
    {"interactive"},
    {"cli"},
    {"certify", "guard"},
    {"proof"},
    {"dispatch"},
    {"runs"},
    {"jobs"},
    {"train"},
    {"distributed", "utils"},
    {"compat"},
    {"hooks"},
    {"run_advice"},
    {"remaining"},
    {"trackers"},
    {"resume"},
    {"checkpoint"},
    {"strategies", "data"},
    {"optim"},
    {"models"},
    {"slurm"},
    {"config"},
    {"rundir"},
    {"process"},
    {"errors", "types"},
]
ROWS = {name: number for number, names in enumerate(ORDER) for name in names}
NAME = re.compile(r"launcher(\.\w+)+\.?")


def modules() -> list[Path]:
    return sorted(path for path in SRC.rglob("*.py"))


def part(module: str) -> str:
    """Return the room of a dotted module: `launcher.hooks.base` belongs to `hooks`.

    Python decides where the file of `python -m launcher.runs` is. It is the top of its command,
    and no module imports it.
    """
    top, *rest = module.split(".")
    if rest[-1:] == ["__main__"]:
        return "__main__"
    return rest[0] if top == "launcher" and rest else top


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported(node: ast.AST, late: bool = True) -> Iterator[str]:
    """Yield the dotted names that are imported anywhere in a tree.

    Without `late`, only what importing it imports.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif late or not (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types(child)
        ):
            yield from imported(child, late)


@cache
def names_in(path: Path) -> list[str]:
    """Return the dotted names that are imported anywhere in a file."""
    return list(imported(tree(path)))


def is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def strings(path: Path) -> Iterator[str]:
    """Yield the texts in a file that are the name of a module, or of something in it."""
    for node in ast.walk(tree(path)):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and NAME.fullmatch(value):
            yield value


def arrows_up(names_of: Callable[[Path], Iterable[str]]) -> set[tuple[str, str]]:
    """Return the modules, and the names of modules above them, which `names_of` finds in a file."""
    found = set()
    for path in modules():
        module = dotted(path)
        # The package itself is lazy, and names all.
        row = ROWS.get(part(module), -1)
        found |= {(module, name) for name in names_of(path) if ROWS.get(part(name), row) < row}
    return found


def imports_of_modules() -> dict[str, set[str]]:
    """Return the modules that each module imports, also within a function or for types alone."""
    graph: dict[str, set[str]] = {dotted(path): set() for path in modules()}
    for path in modules():
        for name in names_in(path):
            target = name if name in graph else name.rpartition(".")[0]
            if target in graph and target != dotted(path):
                graph[dotted(path)].add(target)
    return graph


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import themselves by others, the first one twice; empty if none does."""
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        circle: list[str] = []
        if name in done:
            return []
        for other in sorted(graph[name]):
            circle = circle or visit(other, (*above, name))
        done.add(name)
        return circle

    for name in graph:
        if circle := visit(name, ()):
            return circle
    return []
