"""Two identities name the same run if they differ only in keys that have their defaults."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.config.identity.equivalence import canonical, identity_key
from launcher.config.settings import TrainerSettings

NET = f"{__name__}.Net"
VALUES: dict[str, list[Any]] = {
    "width": [8, 9, 8.5, "8", True, None],
    "rates": [[0.9, 0.95], [0.9], [0.95, 0.9], []],
    "options": [None, {}, {"a": 1}, {"a": {}}],
    "flag": [False, True, 0, 1, "false"],
}
DEFAULTS: dict[str, Any] = {"width": 8, "rates": [0.9, 0.95], "options": None, "flag": False}


class Net:
    def __init__(
        self,
        width: int = 8,
        rates: tuple[float, ...] = (0.9, 0.95),
        options: dict[str, Any] | None = None,
        flag: bool = False,
        inner: Any = None,
    ):
        pass


@st.composite
def nodes(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    """A node with each of its values; `inner` is a node too, or a list of them."""
    node: dict[str, Any] = {"_target_": NET}
    for name, values in VALUES.items():
        node[name] = draw(st.sampled_from(values))
    if depth and (inner := draw(st.sampled_from(["none", "node", "list"]))) != "none":
        node["inner"] = draw(
            nodes(depth - 1) if inner == "node" else st.lists(nodes(depth - 1), max_size=2)
        )
    return node


identities = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 3),
        "model": nodes(),
        "hooks": st.dictionaries(st.sampled_from("ab"), nodes(), max_size=2),
    }
)


def every_node(tree: Any) -> list[dict[str, Any]]:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    own = [tree] if isinstance(tree, dict) and "_target_" in tree else []
    return [*own, *(node for item in inner for node in every_node(item))]


def kind(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


@given(tree=identities, data=st.data())
def test_identities_without_any_of_their_defaults_are_equivalent(tree, data):
    less = copy.deepcopy(tree)
    for node in every_node(less):
        for name, default in DEFAULTS.items():
            if kind(node[name]) == kind(default) and data.draw(st.booleans()):
                del node[name]
    if not less["hooks"] and data.draw(st.booleans()):
        del less["hooks"]
    assert identity_key(less) == identity_key(tree)


@given(tree=identities, data=st.data())
def test_identities_that_differ_in_a_value_are_never_equivalent(tree, data):
    other = copy.deepcopy(tree)
    node = data.draw(st.sampled_from(every_node(other)))
    name = data.draw(st.sampled_from(sorted(VALUES)))
    values = [value for value in VALUES[name] if kind(value) != kind(node[name])]
    node[name] = data.draw(st.sampled_from(values))
    assert identity_key(other) != identity_key(tree)
    # The key is gone that had another value than the default.
    if kind(node[name]) != kind(DEFAULTS[name]):
        del node[name]
        is_default = kind(every_node(tree)[every_node(other).index(node)].get(name)) == kind(
            DEFAULTS[name]
        )
        assert (identity_key(other) == identity_key(tree)) == is_default


def test_settings_have_the_defaults_of_their_schema():
    assert TrainerSettings(max_steps=1).max_grad_norm == 1.0
    tree = {
        "trainer": {
            "max_steps": 1,
            "max_grad_norm": 1,
            "compile": {"mode": "default", "fullgraph": True},
        }
    }
    assert canonical(tree) == {"trainer": {"max_steps": 1, "compile": {"fullgraph": True}}}
