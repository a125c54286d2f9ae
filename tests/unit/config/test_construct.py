"""A part is built from its stored settings: variables of the environment are read, other text
stays."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf

from launcher.config.construct import construct, instantiate
from launcher.config.identity.equivalence import canonical
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.run_config import resolve_node
from launcher.config.secrets import config_to_store


def test_stored_settings_get_the_environment_and_keep_shell_variables(monkeypatch):
    monkeypatch.setenv("MINE", "short")
    dispatch = {
        "_target_": "launcher.dispatch.slurm.SlurmDispatch",
        "partition": "${oc.env:MINE}",
        "account": "${my.account}",
        "setup": ["cd \\${HOME}/${oc.env:MINE}", "echo \\${MINE}"],
        "time": 5,
    }
    config = OmegaConf.create({"dispatch": dispatch, "my": {"account": "a-${oc.env:MINE}"}})
    resolved = OmegaConf.to_container(config, resolve=True)
    built = construct(resolve_node(config_to_store(to_plain(config), resolved), "dispatch"))
    assert (built.partition, built.account, built.time) == ("short", "a-short", 5)
    assert built.setup == ["cd ${HOME}/short", "echo ${MINE}"]


@dataclass
class Inner:
    width: int = 1

    def size(self) -> int:
        return self.width


@dataclass
class Outer:
    value: Any = None
    other: Any = None


INNER, OUTER = f"{__name__}.Inner", f"{__name__}.Outer"


@pytest.mark.parametrize(("value", "expected"), [
    ([1, [2, {"a": [3]}]], [1, [2, {"a": [3]}]]),
    ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
    ([{"_target_": INNER, "width": 2}], [Inner(2)]),
    ({"a": [{"_target_": INNER}], "b": {"_target_": INNER}}, {"a": [Inner()], "b": Inner()}),
    ({"_target_": OUTER, "value": [{"_target_": INNER}]}, Outer([Inner()])),
])  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"_partial_": True}])
def test_classes_get_plain_containers_and_objects(value, expected, more):
    built = instantiate({"_target_": OUTER, "value": value, **more})
    got = built().value if more else built.value
    assert got == expected and "Config" not in str(types(got))


def types(value: Any) -> Any:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return type(value), [types(item) for item in items]


def test_a_node_that_is_not_built_is_plain():
    node = {"_target_": OUTER, "_recursive_": False, "value": {"_target_": INNER}, "other": [1]}
    built = instantiate(node)
    assert (type(built.value), type(built.other)) == (dict, list)
    assert instantiate(built.value, "data.dataset") == Inner()


def test_another_conversion_may_be_chosen():
    node = {"_target_": OUTER, "_convert_": "none", "value": [1], "other": {"a": 1}}
    built = instantiate(node)
    assert (type(built.value), type(built.other)) == (ListConfig, DictConfig)
    node["_convert_"] = "all"
    assert json.dumps(vars(instantiate(node))) == '{"value": [1], "other": {"a": 1}}'
    plain = {key: value for key, value in node.items() if key != "_convert_"}
    assert canonical({"model": node}) == canonical({"model": plain})


@pytest.mark.parametrize("text", ["${HOME}", "\\${HOME}", "a\\\\${x}", "${oc.env}", "$x {y}"])
@pytest.mark.parametrize("convert", ["object", "all", "partial"])
def test_a_text_that_looks_like_an_interpolation_stays(text, convert):
    inner = {"_target_": OUTER, "value": text}
    node = {"_target_": OUTER, "_convert_": convert, "value": [text, inner], "other": {"a": text}}
    built = instantiate(node)
    assert (built.value[0], built.value[1].value, built.other["a"]) == (text, text, text)


def test_the_message_has_the_path_of_the_part():
    with pytest.raises(InstantiationException, match=r"full_key: data\.sources\.web"):
        instantiate({"_target_": "no_such_module.Rows"}, "data.sources.web")
