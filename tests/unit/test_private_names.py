"""Private names of other libraries stand in this list; each may break with the library's next
version."""

import ast
import re
from collections.abc import Iterator

import pytest

from support.paths import ROOT

SRC = ROOT / "src" / "launcher"
# `_target_` and its like are keys of a configuration.
PRIVATE = re.compile(r"_(?!_).*(?<!_)")
DOCUMENTED = {"_current_frames", "_exit", "_fields", "_replace"}
"""Public in spite of their names: of `sys`, `os` and named tuples."""
BY_TEXT = "getattr", "hasattr", "setattr", "__dict__.get", "__dict__.pop"
"""Functions that take an attribute's name."""
ALLOWED = {
    # A DataLoader has no public way to see its worker processes, nor to end them.
    ("data/workers.py", "_shutdown_workers"),
    ("data/workers.py", "_workers"),
    # The operator that scaled_dot_product_attention dispatches to on the CPU.
    ("hooks/flops.py", "_scaled_dot_product_flash_attention_for_cpu"),
    # Torch counts the changes of a tensor in place, as its notes on autograd describe.
    ("models/changes.py", "_version"),
    ("process/object_marks.py", "_version"),
    # Transformers' own marks: which tensors are set, and which modules stay whole.
    ("models/huggingface.py", "_is_hf_initialized"),
    ("models/huggingface.py", "_no_split_modules"),
    # Torch's own mark, by which GradScaler decides who unscales.
    ("strategies/native.py", "_step_supports_amp_scaling"),
    # The module inside a compiled one.
    ("strategies/weights.py", "_orig_mod"),
}


def own_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines: functions, classes, variables, arguments, attributes of
    `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def foreign_names(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names that a module uses and nothing in `own` defines."""
    for node in ast.walk(tree):
        used: list[str] = []
        if isinstance(node, ast.Import):
            used = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("launcher"):
            used = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            used = [node.attr]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(BY_TEXT):
            used = [str(each.value) for each in node.args[:2] if isinstance(each, ast.Constant)]
        yield from (
            name for name in used if PRIVATE.fullmatch(name) and name not in own | DOCUMENTED
        )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from hydra._internal.hydra import Hydra", ["_internal"]),
        ("import omegaconf._utils", ["_utils"]),
        ("import torch\nfor p in module._parameters: pass", ["_parameters"]),
        ("getattr(model, '_orig_mod', model)", ["_orig_mod"]),
        ("trial._storage = 1", ["_storage"]),
        ("import os\nos._exit(1)\nself._mine\nconfig._target_\nx.__dict__", []),
    ],
)
def test_private_names_of_others_are_seen(source, names):
    assert list(foreign_names(ast.parse(source), {"_mine"})) == names


def test_private_names_of_other_libraries_are_those_of_the_list():
    trees = {
        path.relative_to(SRC).as_posix(): ast.parse(path.read_text()) for path in SRC.rglob("*.py")
    }
    own = {name for tree in trees.values() for name in own_names(tree)}
    assert {
        (file, name) for file, tree in trees.items() for name in foreign_names(tree, own)
    } == ALLOWED
