"""`python -m launcher schema`: the schemas accept what Launcher accepts, and reject what it
rejects."""

import json
from fnmatch import fnmatch
from functools import cache
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from launcher.cli.init import main as init
from launcher.cli.schema import CODE, main, write_schemas
from launcher.config.options import main_folder
from launcher.config.schema.editor import schemas
from launcher.errors import ConfigError
from support.paths import ROOT

CONF = [path for path in sorted((ROOT / "conf").rglob("*.yaml")) if "hydra" not in path.parts]


@cache
def validators() -> dict[str, Draft7Validator]:
    return {name: Draft7Validator(schema) for name, schema in schemas([main_folder()]).items()}


def errors(name: str, text: str) -> list[str]:
    return [error.message for error in validators()[name].iter_errors(yaml.safe_load(text))]


def test_all_of_conf_is_valid():
    for validator in validators().values():
        Draft7Validator.check_schema(validator.schema)
    assert len(CONF) > 60
    for file in CONF:
        name = "config" if file.parent == ROOT / "conf" else file.parent.name
        assert errors(name, file.read_text()) == [], file


ADAMW = "_target_: launcher.optim.optimizers.adamw\n_partial_: true\n"
EVALUATION = "evaluation:\n  _target_: launcher.hooks.evaluation.EvaluationHook\n"
CASES: dict[str, tuple[str, str, str | None]] = {
    "a number": ("optimizer", ADAMW + "lr: 0.1", None),
    "a bound": ("optimizer", ADAMW + "lr: -1", "-1 is not valid"),
    "a type": ("optimizer", ADAMW + "lr: fast", "'fast' is not valid"),
    "an unknown key": ("optimizer", ADAMW + "lrr: 1", "'lrr' was unexpected"),
    "an interpolation": ("optimizer", ADAMW + "lr: ${seed}", None),
    "another class": ("optimizer", "_target_: my.Optimizer\nanything: 1", None),
    "an enum": ("config", "device: gpu", "'gpu' is not valid"),
    "epochs": ("hooks", EVALUATION + "  interval: 2epochs", None),
    "a key of a hook": ("hooks", EVALUATION + "  intervall: 2", "'intervall' was unexpected"),
    "an option": ("experiment", "defaults: [{override /model: mlp}]", None),
    "no option": ("experiment", "defaults: [{override /model: mlpp}]", "is not valid"),
    "a section": ("trainer", "max_stepss: 1", "'max_stepss' was unexpected"),
    "a preset": ("experiment", "trainer: {max_steps: 0}", "0 is not valid"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_an_editor_marks(case):
    name, text, said = CASES[case]
    found = errors(name, text)
    assert found == [] if said is None else said in found[0]


def test_a_new_project_has_them(tmp_path):
    project = tmp_path / "its_project"
    init([str(project)])
    settings: dict[str, Any] = json.loads((project / CODE).read_text())
    for file in sorted((project / "conf").rglob("*.yaml")):
        path = str(file.relative_to(project))
        (schema,) = [key for key, glob in settings["yaml.schemas"].items() if fnmatch(path, glob)]
        validator = Draft7Validator(json.loads((project / schema).read_text()))
        assert list(validator.iter_errors(yaml.safe_load(file.read_text()))) == []
        if file.parent.name == "model":  # the class of the project itself
            assert list(validator.iter_errors({**yaml.safe_load(file.read_text()), "no_key": 1}))

    (project / CODE).write_text('{"editor.tabSize": 2, "yaml.schemas": {"a": "b"}}')
    main([str(project)])
    settings = json.loads((project / CODE).read_text())
    assert settings["editor.tabSize"] == 2 and settings["yaml.schemas"]["a"] == "b"
    (project / CODE).write_text("{} // mine")
    with pytest.raises(ConfigError, match="is not plain JSON"):
        write_schemas(project)
    with pytest.raises(ConfigError, match="there is no"):
        main([str(tmp_path / "nothing")])
