"""Differences of configurations."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.config.identity.difference import by_choice, columns, describe, diff, in_a_line


def test_each_key_that_differs_is_described():
    saved = {"seed": 0, "model": {"width": 64, "depth": 2}, "a": {"b": True}, "same": 1}
    current = {"seed": 0, "model": {"width": 128, "norm": "rms"}, "a": {"b": 1}, "same": 1.0}
    changes = diff(saved, current)
    assert describe(changes) == [
        "a.b: true -> 1",
        "model.depth: 2 -> gone",
        "model.norm=rms (new)",
        "model.width: 64 -> 128",
    ]
    assert in_a_line(changes) == ", ".join(describe(changes))
    assert in_a_line(diff({}, {"n": dict(zip("abcdef", range(6), strict=True))})).count("new") == 5
    assert diff(saved, saved) == {}


def test_several_configurations_are_compared_at_once():
    rows = [{"model.width": 1, "tag": None}, {"model.width": 1}, {"model.width": 2, "tag": "a"}]
    assert columns(diff(*rows)) == {"model.width": ["1", "1", "2"], "tag": ["null", None, "a"]}


def test_a_class_that_one_lacks_is_one_key():
    own = {"_target_": "mine.Own", "a": 1}
    assert describe(diff({}, {"a": {"b": {"c": 1}}, "d": {}})) == ["a.b.c=1 (new)", "d={} (new)"]
    assert diff({"hooks": {}}, {"hooks": {"own": own}}, ignored=["hook"])["hooks.own"][1] == own
    assert diff({"hooks": {}}, {"hooks": {"own": own}}, ignored=["hooks"]) == {}


def test_an_option_stands_for_the_keys_of_its_group():
    changes = diff({"model": {"a": 1}, "data": {"b": 1}}, {"model": {"c": 1}, "data": {"b": 2}})
    choices = {"model": "gpt", "tracker": "none"}, {"model": "mlp", "tracker": "wandb"}
    assert describe(by_choice(changes, *choices)) == ["model: gpt -> mlp", "data.b: 1 -> 2"]


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "1"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
)


@given(one=st.dictionaries(st.sampled_from("abc"), TREES), keys=st.lists(st.sampled_from("abc")))
def test_only_what_was_changed_differs(one, keys):
    other = {**one, **dict.fromkeys(keys, "changed")}
    assert diff(one, other).keys() == set(keys)
    assert diff(one, other, ignored=keys) == {}
