"""A configuration as plain containers has the values that OmegaConf has."""

from typing import Any

import pytest
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config import identity  # noqa: F401 - registers the resolvers
from launcher.config.written import Written

TREE: dict[str, Any] = {
    "run": {"name": "${launcher.name:}", "id": "${launcher.id:}", "not_identity": ["paths"], "tag": None},
    "paths": {"outputs": "~/out", "dir": "${launcher.path:${paths.outputs}}/${run.name}/${run.id}"},
    "model": {"_target_": "a.Gpt", "size": "${data.size}", "classes": "${oc.select:data.classes,null}"},
    "data": {"_target_": "a.Text", "size": 3, "on": True, "none": None, "list": [1, "${data.size}"], "own": "${.size}"},
    "same": "${data}",
    "deep": "${same.size}",
    "text": "size ${data.size}, ${data.on}, ${data.none}",
    "sum": "${data.list}",
    "escaped": r"\${data.size}",
    "environment": "${oc.env:LAUNCHER_NO_SUCH_VARIABLE,7}",
    "present": "${oc.select:data.size,null}",
    "lost": "${data.nothing}",
    "missing": "???",
    "needs": "${missing}",
    "optional": "${oc.select:missing,null}",
    "circle": "${other_circle}",
    "other_circle": "${circle}",
    "item": "${data.list[1]}",
    "nested": "${${which}.size}",
    "which": "data",
    "odd": "costs $5",
}


def outcome(get: Any) -> Any:
    try:
        value = get()
    except (OmegaConfBaseException, TypeError) as error:
        return type(error)
    return OmegaConf.to_container(value, resolve=False) if isinstance(value, Container) else value


@pytest.mark.parametrize("key", [*TREE, "paths.dir", "run.id", "run.name", "model.size", "model.classes", "data.own",
                                 "same.size", "same.own", "nothing", "data.size.more"])  # fmt: skip
def test_a_value_is_as_in_omegaconf(key: str) -> None:
    config = OmegaConf.create(TREE | {"circle": None, "lost": None} if key == "run.id" or "dir" in key else TREE)

    def walked() -> Any:
        value: Any = config
        for name in key.split("."):
            value = value[name]
        return value

    assert outcome(lambda: Written.of(config).at(key.split("."))) == outcome(walked)
    assert outcome(lambda: Written.of(config).select(key)) == outcome(lambda: OmegaConf.select(config, key))


def test_values_of_usual_interpolations_need_no_omegaconf() -> None:
    def refuse() -> DictConfig:
        raise AssertionError

    tree = {key: TREE[key] for key in ("run", "paths", "model", "data", "same", "deep", "text", "present")}
    tree["data"] = {key: value for key, value in tree["data"].items() if key != "own"}
    written = Written(tree, refuse)
    for key in ("paths.dir", "model.size", "model.classes", "deep", "text", "present"):
        written.select(key)
    assert (written.select("deep"), written.select("text")) == (3, "size 3, True, None")
