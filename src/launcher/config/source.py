"""Where a dotted name is defined, told from source text alone: nothing is imported, so torch stays out.

`torch.optim.AdamW` is looked up as Python would: the module's file, in it a class, a function, an
assignment, or an import to follow. Names that only running code can make (extension modules, `__getattr__`,
`exec`) are `Opaque`.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAX_HOPS = 20


class NotThere(LookupError):
    """The name surely does not exist. `kind` is "module" or "name"; `where` lacks `name` and has `names`."""

    def __init__(self, kind: str, where: str, name: str, names: tuple[str, ...] = ()):
        super().__init__(f"{kind} {name} in {where}")
        self.kind, self.where, self.name, self.names = kind, where, name, names


class Opaque(LookupError):
    """What the name means cannot be told without running code."""


@dataclass(frozen=True)
class Module:
    name: str
    path: Path | None
    """Source file; None for a namespace package and for a module without Python source."""
    folders: tuple[str, ...] = ()
    """Where its submodules lie, if it is a package."""

    @property
    def package(self) -> str:
        return self.name if self.folders else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Definition:
    """A class, function or assigned value: its syntax node and the module that it stands in."""

    node: ast.AST
    module: Module


@cache
def find_module(name: str) -> Module | None:
    """The module of a dotted name, or None if there is none. Imports no package on the way."""
    parent, _, last = name.rpartition(".")
    if not parent:
        try:
            spec = importlib.util.find_spec(name)
        except (ValueError, ImportError):
            return None
        if spec is None:
            return None
        source = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
        return Module(name, source, tuple(spec.submodule_search_locations or ()))
    package = find_module(parent)
    for folder in map(Path, package.folders if package else ()):
        if (folder / last / "__init__.py").is_file():
            return Module(name, folder / last / "__init__.py", (str(folder / last),))
        if (folder / f"{last}.py").is_file():
            return Module(name, folder / f"{last}.py")
        if any(folder.glob(f"{last}.*.so")) or any(folder.glob(f"{last}.*.pyd")):
            return Module(name, None)
        if (folder / last).is_dir():
            return Module(name, None, (str(folder / last),))
    return None


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        Opaque: it cannot be read or parsed; importing it will say why.
    """
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise Opaque(str(path)) from error


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those inside `if` and `try` included."""
    for statement in body:
        yield statement
        for nested in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try):
                yield from statements(getattr(statement, nested, []))
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from statements(handler.body)


def names(module: Module) -> tuple[str, ...]:
    """The public classes and functions that a module defines or imports, for hints."""
    found: list[str] = []
    for statement in statements(tree(module.path).body) if module.path else ():
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found.append(statement.name)
        elif isinstance(statement, ast.ImportFrom):
            found += [alias.asname or alias.name for alias in statement.names]
    return tuple(name for name in dict.fromkeys(found) if not name.startswith("_") and name != "*")


def locate(dotted: str, hops: int = 0) -> Module | Definition:
    """What a dotted name is.

    Raises:
        NotThere: no such module, or no such name in it.
        Opaque: only running code can tell.
    """
    parts = dotted.split(".")
    module = find_module(parts[0])
    if module is None:
        raise NotThere("module", "", parts[0])
    for index, part in enumerate(parts[1:], 1):
        deeper = find_module(f"{module.name}.{part}")
        if deeper is None or _defines(module, part):
            return _member(look_up(module, part, hops), parts[index + 1 :])
        module = deeper
    return module


def look_up(module: Module, name: str, hops: int = 0) -> Module | Definition:
    """What a name means at the top level of a module, imports followed.

    Raises:
        NotThere, Opaque: as `locate`.
    """
    if hops > MAX_HOPS or (module.path is None and not module.folders):
        raise Opaque(f"{module.name}.{name}")
    found: ast.stmt | None = None
    stars: list[str] = []
    for statement in statements(tree(module.path).body) if module.path else ():
        if _binds(statement, name):
            found = statement
        elif isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            stars.append(origin(module, statement))
    if found is not None:
        return _follow(module, found, name, hops + 1)
    for star in stars:
        try:
            return locate(f"{star}.{name}", hops + 1)
        except NotThere:
            continue
    if (deeper := find_module(f"{module.name}.{name}")) is not None:
        return deeper
    if module.path and _is_dynamic(module):
        raise Opaque(f"{module.name}.{name}")
    kind = "module" if module.path is None else "name"
    raise NotThere(kind, module.name, name, names(module) + _submodules(module))


def origin(module: Module, statement: ast.ImportFrom) -> str:
    """The absolute name of the module that a `from ... import` takes from."""
    if not statement.level:
        return statement.module or ""
    base = module.package.split(".")
    base = base[: len(base) - statement.level + 1]
    return ".".join([*base, *([statement.module] if statement.module else [])])


def qualify(module: Module, name: str) -> str | None:
    """The dotted name that an imported name stands for in a module; None if it is not imported there."""
    for statement in statements(tree(module.path).body) if module.path else ():
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return f"{origin(module, statement)}.{alias.name}"
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                if (alias.asname or alias.name.split(".")[0]) == name:
                    return alias.name if alias.asname else name
    return None


def dotted_name(node: ast.AST) -> str | None:
    """`a.b.c` of a Name or an Attribute of names; None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted_name(node.value)):
        return f"{base}.{node.attr}"
    return None


def full_name(module: Module, node: ast.AST) -> str:
    """The absolute name that `nn.Module` in the source of a module stands for; "" if it is no dotted name."""
    first, dot, rest = (dotted_name(node) or "").partition(".")
    return (qualify(module, first) or first) + dot + rest


def refer(module: Module, node: ast.AST, hops: int = 0) -> Module | Definition:
    """What an expression like `nn.Module` in the source of a module is.

    Raises:
        NotThere, Opaque: as `locate`; Opaque also for anything but dotted names.
    """
    name = dotted_name(node)
    if name is None:
        raise Opaque(ast.dump(node))
    first, *rest = name.split(".")
    return _member(look_up(module, first, hops), rest, hops)


def _member(found: Module | Definition, rest: list[str], hops: int = 0) -> Module | Definition:
    """Attributes of what was found: of a module, or a method of a class."""
    for part in rest:
        if isinstance(found, Module):
            found = look_up(found, part, hops)
        elif isinstance(found.node, ast.ClassDef):
            bound = [one for one in statements(found.node.body) if _binds(one, part)]
            if not bound:  # inherited, or made by a metaclass
                raise Opaque(part)
            found = Definition(bound[-1], found.module)
        else:
            raise Opaque(part)
    return found


def _binds(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        overload = any((dotted_name(mark) or "").endswith("overload") for mark in statement.decorator_list)
        return statement.name == name and not overload
    if isinstance(statement, ast.ImportFrom):
        return any((alias.asname or alias.name) == name for alias in statement.names)
    if isinstance(statement, ast.Import):
        return any((alias.asname or alias.name.split(".")[0]) == name for alias in statement.names)
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
    target = getattr(statement, "target" if isinstance(statement, ast.AnnAssign) else "name", None)
    return isinstance(target, ast.Name) and target.id == name


def _follow(module: Module, statement: ast.stmt, name: str, hops: int) -> Module | Definition:
    if isinstance(statement, ast.ImportFrom | ast.Import):
        target = qualify(module, name) or name
        if target == f"{module.name}.{name}" and (submodule := find_module(target)):  # from . import name
            return submodule
        return locate(target, hops)
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign | ast.AnnAssign) and value is not None and dotted_name(value):
        return refer(module, value, hops)
    return Definition(statement, module)


def _defines(module: Module, name: str) -> bool:
    """Whether the module itself binds a name, which then hides a submodule of the same name."""
    if module.path is None:
        return False
    return any(_binds(one, name) and not isinstance(one, ast.Import) for one in statements(tree(module.path).body))


def _is_dynamic(module: Module) -> bool:
    assert module.path is not None
    return any(
        (isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
        or (isinstance(node, ast.Call) and dotted_name(node.func) in ("globals", "setattr", "exec", "vars"))
        for node in ast.walk(tree(module.path))
    )


def _submodules(module: Module) -> tuple[str, ...]:
    found = [path for folder in module.folders for path in Path(folder).glob("[a-z]*") if path.suffix in ("", ".py")]
    return tuple(sorted({path.stem for path in found}))
