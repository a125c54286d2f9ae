"""Find the definition of a dotted name in source code, without importing anything.

`torch.optim.AdamW` is looked up as Python would. Names that only exist in running code (extension
modules, `__getattr__`, `exec`) are `Unresolvable`.
"""

import ast
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
MAX_HOPS = 20
Binding = str | ast.stmt
"""Binding of a name: the dotted name that it is imported from, or the statement that defines it."""


_caches: list[Any] = []
_command_caches: list[Any] = []
_read: dict[Path, tuple[int, int] | None] = {}
"""The source files that were read, with their time and size then."""
_missing: set[str] = set()


def cached_by_sources(function: Callable[P, R]) -> Callable[P, R]:
    """Cache a function whose result depends on source files, until one of them has changed."""
    cached: Any = cache(function)
    _caches.append(cached)
    return cast(Callable[P, R], cached)


def cached_by_command(function: Callable[P, R]) -> Callable[P, R]:
    """Cache a function whose result depends on any files, until the next command begins."""
    cached: Any = cache(function)
    _command_caches.append(cached)
    return cast(Callable[P, R], cached)


def forget_changed_sources() -> None:
    """Empty the caches if a file that was read has changed, or a module may have come.

    In a notebook, a class is edited while the process lives. Each call there is a command.
    """
    for cached in _command_caches:
        cached.cache_clear()
    if not _missing and all(_stamp(path) == stamp for path, stamp in _read.items()):
        return
    importlib.invalidate_caches()
    _read.clear()
    _missing.clear()
    for cached in _caches:
        cached.cache_clear()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class NotFound(LookupError):
    """Raised if the module `where`, which has `names`, lacks the name; `where` may be ""."""

    def __init__(self, where: str, name: str, names: tuple[str, ...] = ()):
        super().__init__(f"{name} in {where}")
        self.where = where
        self.name = name
        self.names = names


class Unresolvable(LookupError):
    """Raised if only running code defines the name."""


@dataclass(frozen=True)
class Module:
    name: str
    path: Path | None
    """Source file, or None for a namespace package or a module without Python source."""
    folders: tuple[str, ...] = ()
    """The folders of a package's submodules."""


@dataclass(frozen=True)
class Definition:
    """A class, function or assigned value, and the module that it is in."""

    node: ast.stmt
    module: Module


@cached_by_sources
def find_module(name: str) -> Module | None:
    """Find the module of a dotted name; return None if there is none. Imports no package."""
    module = _find_module(name)
    if module is None:
        _missing.add(name)
    return module


def _find_module(name: str) -> Module | None:
    parent, _, last = name.rpartition(".")
    package = find_module(parent) if parent else None
    if parent and not (package and package.folders):
        return None
    above = package.folders if package else ()
    # A folder without __init__.py asks its parent, which is not imported, for its folders.
    namespace = Module(name, None, tuple(str(Path(folder, last)) for folder in above))
    try:
        spec = PathFinder.find_spec(name, above) if package else importlib.util.find_spec(name)
    except (ValueError, ImportError):
        return None
    except KeyError:
        return namespace
    if spec is None:
        return None
    if package and spec.origin is None:
        return namespace
    source = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    return Module(name, source, tuple(spec.submodule_search_locations or ()))


@cached_by_sources
def tree(path: Path) -> ast.Module:
    """Parse a source file, or raise `Unresolvable`. Importing it will report why."""
    _read[path] = _stamp(path)
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise Unresolvable(str(path)) from error


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, including those inside `if` and `try`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            bodies = [statement.body, statement.orelse]
            if isinstance(statement, ast.Try):
                bodies += [*(each.body for each in statement.handlers), statement.finalbody]
            for inner in bodies:
                yield from statements(inner)


def bind(body: list[ast.stmt], package: str = "") -> tuple[dict[str, Binding], list[str]]:
    """The names that a module's or class's body binds, and the modules that it imports `*` from."""
    names: dict[str, Binding] = {}
    stars: list[str] = []
    for statement in statements(body):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(statement, ast.ImportFrom):
            relative = "." * statement.level + (statement.module or "")
            origin = importlib.util.resolve_name(relative, package)
            for alias in statement.names:
                if alias.name == "*":
                    stars.append(origin)
                else:
                    names[alias.asname or alias.name] = f"{origin}.{alias.name}"
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    return names, stars


@cached_by_sources
def bindings(module: Module) -> tuple[dict[str, Binding], list[str]]:
    """Return the names that a module binds, or raise `Unresolvable`."""
    if module.path is None:
        return {}, []
    try:
        package = module.name if module.folders else module.name.rpartition(".")[0]
        return bind(tree(module.path).body, package)
    # A relative import may lead beyond the top-level package.
    except ImportError as error:
        raise Unresolvable(module.name) from error


def locate(dotted: str, hops: int = 0) -> Module | Definition:
    """Return the module or definition of a dotted name.

    Raises:
        NotFound: no such module, or no such name in it.
        Unresolvable: only running code defines it.
    """
    first, *rest = dotted.split(".")
    owner: Module | Definition | None = find_module(first)
    if owner is None:
        raise NotFound("", first)
    for name in rest:
        owner = _member(owner, name, hops)
    return owner


def refer(module: Module, node: ast.AST, hops: int = 0) -> Module | Definition:
    """Resolve an expression like `nn.Module` in the source of a module; raises as `locate` does."""
    name = name_of_expression(node)
    if not name:
        raise Unresolvable(ast.dump(node))
    owner: Module | Definition = module
    for part in name.split("."):
        owner = _member(owner, part, hops)
    return owner


def _member(owner: Module | Definition, name: str, hops: int) -> Module | Definition:
    """A name at the top level of a module, imports followed."""
    # A method may be inherited, or made by a metaclass.
    if isinstance(owner, Definition) or hops > MAX_HOPS:
        raise Unresolvable(name)
    full = f"{owner.name}.{name}"
    names, stars = bindings(owner)
    bound = names.get(name)
    if isinstance(bound, str) and bound != full:  # `from . import name` binds the submodule
        return locate(bound, hops + 1)
    if isinstance(bound, ast.stmt):
        value = getattr(bound, "value", None)
        if value is not None and name_of_expression(value):
            return refer(owner, value, hops + 1)
        return Definition(bound, owner)
    submodule = find_module(full)
    if submodule is not None:
        return submodule
    for star in stars:
        try:
            return locate(f"{star}.{name}", hops + 1)
        except NotFound:
            continue
    if (owner.path is None and not owner.folders) or (owner.path and _is_dynamic(owner.path)):
        raise Unresolvable(full)
    public = [each for each in names if not each.startswith("_")]
    submodules = [module.name for module in pkgutil.iter_modules(owner.folders)]
    raise NotFound(owner.name, name, (*public, *submodules))


def _is_dynamic(path: Path) -> bool:
    nodes = list(ast.walk(tree(path)))
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    calls = [name_of_expression(node.func) for node in nodes if isinstance(node, ast.Call)]
    return "__getattr__" in functions or bool({"globals", "setattr", "exec", "vars"} & {*calls})


def name_of_expression(node: ast.AST) -> str:
    """Return `a.b.c` for a Name or an Attribute of names, and "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := name_of_expression(node.value)):
        return f"{base}.{node.attr}"
    return ""


def last_name(node: ast.AST) -> str:
    """Return the last part of the name of an expression, or of the function that it calls."""
    called = node.func if isinstance(node, ast.Call) else node
    return name_of_expression(called).rpartition(".")[2]
