"""Which code a stored configuration may name. Nothing is imported by the check: the package that
comes with the stored configuration writes a file when it is."""

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from launcher.config.source import find_module
from launcher.config.trust import Origin, names_in, names_typed
from launcher.errors import ConfigError
from support.projects import write_project

EVIL = (
    "open('marker', 'w').close()\nfrom torch.nn import Linear\nfrom trusted_package import"
    " MyModel\n"
)
STORED = "outputs/run/1a2b"
OWN_NET = {
    "_target_": "launcher.models.supervised.Supervised",
    "module": {"_target_": "torch.nn.Linear"},
}


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Origin:
    """A stored configuration in a project, with a module next to it."""
    monkeypatch.chdir(write_project(tmp_path / "project", "trusted_package"))
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    script = types.ModuleType("a_script")  # like `__main__` of a script, it has no `__spec__`
    script.os = os  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_script", script)
    folder = tmp_path / "project" / STORED
    folder.mkdir(parents=True)
    for place in (folder, tmp_path / "project" / "outputs"):
        (place / "evil.py").write_text(EVIL)
    # a command has one current folder, so a module that is found once is not looked for again
    find_module.cache_clear()
    return Origin(folder / "config.yaml", folder)


def checked(origin: Origin, node: Any, **others: Any) -> DictConfig:
    tree: Any = OmegaConf.create({"model": node, **others})
    return origin.checked(tree, ["model"], False)


ALLOWED = {
    "a class of Launcher": {"_target_": "launcher.models.mlp.MLP"},
    "a class of Launcher that a package exports": {"_target_": "launcher.hooks.base.BaseHook"},
    "a function in Launcher's YAML": {
        "_target_": "launcher.optim.optimizers.adamw",
        "_partial_": True,
    },
    "a class of torch.nn": {"_target_": "torch.nn.Linear", "in_features": 1},
    "a class of torch.optim": {"_target_": "torch.optim.AdamW", "_partial_": True},
    "a schedule of torch": {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR"},
    "a dataset of torch": {"_target_": "torch.utils.data.TensorDataset"},
    "a class of the project": {"_target_": "trusted_package.MyModel", "width": 3},
    "what is inside a list": {
        "_target_": "torch.nn.Sequential",
        "_args_": [{"_target_": "torch.nn.ReLU"}],
    },
    "an event with a setting": {"_target_": "launcher.models.mlp.MLP", "on_error": "raise"},
    "what cannot be imported": {"_target_": "no_such_module.Net"},
    "no part": {"a": [1, None, "text"], "trust_remote_code": False, "weights_only": True},
}


@pytest.mark.parametrize("node", ALLOWED.values(), ids=ALLOWED)
def test_allowed(origin: Origin, node: dict[str, Any]) -> None:
    assert checked(origin, node) == {"model": node}


TARGETS = [
    "os.system",
    "builtins.eval",
    "subprocess.run",
    "subprocess.Popen",
    "torch.load",
    "torch.nn.Module.load_state_dict",
    "torch.nn.functional.relu",
    "torch.utils.data.datapipes.iter.FileOpener",
    "torch.optim.adam.torch.load",
    "torch.utils.data",
    "numpy.load",
    "functools.partial",
    "hydra.utils.instantiate",
    "launcher.runs.rerun.os.system",
    "launcher.dispatch.local.shutil.copy",
    "launcher.dispatch.spawner.Spawner",
    "launcher.runs.rerun.run_to_end",
    "launcher.config.construct.construct",
    "launcher.config.construct.get_object",
    "launcher.data.custom.make",
    "launcher.train.load.load_model",
    "launcher.models.mlp.torch.load",
    "launcher.models.mlp.MLP.load_state_dict",
    "trusted_package.os.system",
    "outputs.run.1a2b.evil.Net",
    "outputs.run.1a2b.evil.Linear",
    "outputs.run.1a2b.evil.MyModel",
    "outputs.evil.MyModel",
    "a_script.os.system",
    "__main__.os.system",
    "",
    ".",
    "os..system",
    3,
    None,
    ["os.system"],
    {"a": "os.system"},
]


def node_of(target: Any) -> dict[str, Any]:
    return {"_target_": target, "_args_": ["touch marker"]}


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_target_that_is_not_allowed(origin: Origin, target: Any) -> None:
    with pytest.raises(ConfigError) as rejected:
        checked(origin, node_of(target))
    assert len(rejected.value.messages) == 1
    assert rejected.value.messages[0].startswith(f"model._target_={target}".split("=")[0])
    assert not Path("marker").exists() and not any("evil" in name for name in sys.modules)


EVAL = {"_target_": "builtins.eval", "_args_": ["open('marker', 'w')"]}
PLACES = {
    "partial": {**EVAL, "_partial_": True},
    "nested": {"_target_": "launcher.models.supervised.Supervised", "module": EVAL},
    "deep": {"a": {"b": [{"c": [[EVAL]]}]}},
    "in a list": [1, EVAL],
    "an argument by its position": {"_target_": "torch.nn.Sequential", "_args_": [EVAL]},
    "in a node that is built later": {
        "_target_": "launcher.data.custom.CustomData",
        "_recursive_": False,
        "x": EVAL,
    },
    "in a node without a target": {
        "_partial_": True,
        "_recursive_": True,
        "_convert_": "all",
        "x": EVAL,
    },
    "under a number": {0: EVAL},
    "a target from elsewhere": {**EVAL, "_target_": "${name}"},
    "a part of a target from elsewhere": {**EVAL, "_target_": "builtins.${part}"},
    "a node from elsewhere": "${evil}",
    "a node inside from elsewhere": {"x": "${evil}"},
    "text that becomes a node": "${oc.create:'{_target_: builtins.eval}'}",
    "text that becomes a node later": {"x": "\\${oc.create:'{_target_: builtins.eval}'}"},
    "text that becomes a node even later": {"x": "\\\\\\${oc.decode:'{_target_: builtins.eval}'}"},
    "a variable of the environment": {**EVAL, "_target_": "${oc.env:EVIL}"},
    "a default of the environment": {**EVAL, "_target_": "${oc.env:NO_SUCH,builtins.eval}"},
    "a function by its path": {
        "_target_": "launcher.hooks.functions.FunctionHook",
        "on_start": "os.abort",
    },
    "a function of the stored folder": {
        "_target_": "x.FunctionHook",
        "on_start": "outputs.run.1a2b.evil.run",
    },
    "code of a model": {
        "_target_": "launcher.models.mlp.MLP",
        "config": {"trust_remote_code": True},
    },
    "a pickle of a model": {
        "_target_": "launcher.models.mlp.MLP",
        "config": {"weights_only": False},
    },
    "a kernel of the hub": {
        "_target_": "launcher.models.mlp.MLP",
        "config": {"attn_implementation": "some/one"},
    },
}


@pytest.mark.parametrize("node", PLACES.values(), ids=PLACES)
def test_where_code_may_hide(origin: Origin, node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", "builtins.eval")
    with pytest.raises(
        ConfigError, match=r"only the stored configuration .*config\.yaml names it.* add --trust"
    ):
        checked(origin, node, name="builtins.eval", part="eval", evil=EVAL)
    tree: Any = OmegaConf.create(
        {"model": node, "name": "builtins.eval", "part": "eval", "evil": EVAL}
    )
    assert origin.checked(tree, ["model"], trust=True)


SHELL = {
    "setup": ["touch marker"],
    "modules": ["x; touch marker"],
    "python": "/tmp/python",
    "srun": ["--task-prolog=/tmp/x"],
    "sbatch": {"hold": True, "nodelist": "n[1-3]", "chdir": "/tmp"},
    "container": "docker://evil",
    "container_mounts": ["/:/host"],
    "interface": "ib0; touch marker",
    "account": "me\ntouch marker",
}


@pytest.mark.parametrize("key", SHELL)
def test_the_lines_of_a_job(origin: Origin, key: str) -> None:
    """Lines of the project's own YAML files are allowed, even if they have shell variables."""
    slurm = {
        "_target_": "launcher.dispatch.slurm.SlurmDispatch",
        "partition": "gpu[1-3]",
        "nodes": "1-4",
        "time": 5,
        "interface": "ib0",
    }
    config: Any = OmegaConf.create({"dispatch": {**slurm, key: SHELL[key]}})
    with pytest.raises(ConfigError, match=rf"^dispatch\.{key}[^ ]*(=[^:]*)?: only") as rejected:
        origin.checked(config, ["dispatch"], False)
    assert "hold" not in str(rejected.value)
    Path("conf/dispatch").mkdir()
    Path("conf/dispatch/own.yaml").write_text(yaml.safe_dump({**slurm, key: SHELL[key]}))
    assert origin.checked(config, ["dispatch"], False)
    variables: Any = OmegaConf.create(
        {"dispatch": {**slurm, "setup": ["source \\${HOME}/x", "ls ${oc.env:HOME}"]}}
    )
    with pytest.raises(ConfigError, match="HOME"):
        origin.checked(variables, ["dispatch"], False)
    Path("conf/dispatch/own.yaml").write_text(OmegaConf.to_yaml(variables.dispatch))
    assert origin.checked(variables, ["dispatch"], False)


def test_a_reference_in_an_own_line_is_not_a_licence(origin: Origin) -> None:
    Path("conf/dispatch").mkdir()
    Path("conf/dispatch/own.yaml").write_text("setup: ['source ${paths.env}/activate']\n")
    config: Any = OmegaConf.create(
        {"dispatch": {"setup": ["source ${paths.env}/activate"]}, "paths": {"env": "x; y"}}
    )
    with pytest.raises(ConfigError, match="x; y"):
        origin.checked(config, ["dispatch"], False)


def test_targets_of_own_files_and_the_command_line_are_trusted(origin: Origin) -> None:
    node = {"_target_": "numpy.load", "file": "x"}
    with pytest.raises(
        ConfigError, match=r"model\._target_=numpy\.load: only the stored configuration"
    ):
        checked(origin, node)
    config: Any = OmegaConf.create({"model": node})
    for word in ("model._target_=numpy.load", "+model.more={a:[{_target_:numpy.load}]}"):
        assert origin.checked(config, ["model"], False, names_typed([word]))
    with pytest.raises(ConfigError):
        origin.checked(
            config,
            ["model"],
            False,
            names_typed(["model.file=numpy.load", "~model.x", "model=a,b"]),
        )
    Path("conf/model/own.yaml").write_text(
        "# {_target_: numpy.save}\nx: [{_target_: numpy.load}]\n"
    )
    assert checked(origin, node)
    with pytest.raises(ConfigError):
        checked(origin, {"_target_": "numpy.save"})  # named in a comment


@pytest.mark.parametrize(
    ("node", "elsewhere"),
    [
        (
            {"x": "\\${oc.create:'{_target_: builtins.eval}'}"},
            {"x": "${oc.create:'{_target_: builtins.eval}'}"},
        ),
        ({"attn_implementation": {"text": "some/one"}}, {"text": "some/one"}),
        ({"on_start": "os.abort"}, {"start": "os.abort"}),
    ],
)
def test_a_value_that_is_text_elsewhere_names_nothing(
    origin: Origin, node: Any, elsewhere: Any
) -> None:
    """`run.tag` is on the command line of `runs evaluate` too, and its text is not checked
    there."""
    config: Any = OmegaConf.create({"model": node})
    with pytest.raises(ConfigError, match="only the stored configuration"):
        origin.checked(config, ["model"], False, names_in(elsewhere))


def test_a_class_that_is_gone_is_named(origin: Origin) -> None:
    with pytest.raises(
        ConfigError,
        match=r"model\._target_='trusted_package\.MyModl': no MyModl in trusted_package; did",
    ):
        checked(origin, {"_target_": "trusted_package.MyModl"})


def test_a_stored_folder_around_the_current_one(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder's code is importable, and comes with the stored configuration."""
    for place in (".", "code"):
        (origin.folder / place).mkdir(exist_ok=True)
        (origin.folder / place / "lying_here.py").write_text("class Net: ...\n")
        monkeypatch.chdir(origin.folder / place)
        monkeypatch.syspath_prepend(str(origin.folder / place))
        with pytest.raises(ConfigError, match="lying_here"):
            checked(origin, {"_target_": "lying_here.Net"})
