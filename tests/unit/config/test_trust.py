"""Which code a configuration may name that this user has not signed. Nothing is imported by the
check: the package that comes with the stored configuration writes a file when it is."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.config.trust import (
    check_code,
    check_overrides,
    installed_targets,
    own_targets,
    read_config,
)
from launcher.errors import ConfigError
from launcher.rundir import signing
from support.projects import write_project

EVIL = "open('marker', 'w').close()\nfrom torch.nn import Linear\n"
STORED = "outputs/run/1a2b"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The file of a stored configuration in a project, with a module next to it."""
    monkeypatch.chdir(write_project(tmp_path / "project", "trusted_package"))
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    folder = tmp_path / "project" / STORED
    folder.mkdir(parents=True)
    for place in (folder, tmp_path / "project" / "outputs"):
        (place / "evil.py").write_text(EVIL)
    return folder / "config.yaml"


def checked(file: Path, node: Any, trust: bool = False, **others: Any) -> Any:
    file.write_text(yaml.safe_dump({"model": node, **others}))
    return read_config(file, trust, ["model"])


MLP, CUSTOM = "launcher.models.mlp.MLP", "launcher.data.custom.CustomData"
FUNCTIONS = "launcher.hooks.functions.FunctionHook"
ALLOWED = {
    "a class of Launcher": {"_target_": MLP},
    "a function in its YAML": {"_target_": "launcher.optim.optimizers.adamw", "_partial_": True},
    "a schedule in its YAML": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"},
    "what is inside a list": {
        "_target_": "launcher.models.supervised.Supervised",
        "_args_": [{"_target_": MLP}],
    },
    "an event with a setting": {"_target_": MLP, "on_error": "raise"},
    "no part": {"a": [1, None, "text"], "trust_remote_code": False, "weights_only": True},
}


@pytest.mark.parametrize("node", ALLOWED.values(), ids=ALLOWED)
def test_allowed(file, node):
    assert checked(file, node) == {"model": node}


def test_the_targets_of_comments_are_not_launchers_own():
    assert "launcher.models.mlp.MLP" in own_targets()
    assert all(target.startswith(("launcher.", "torch.optim.")) for target in own_targets())


TARGETS = [
    "torch.nn.Linear", "torch.optim.AdamW", "trusted_package.MyModel",
    "launcher.hooks.base.BaseHook", "launcher.hooks.functions.FunctionHook",
    "os.system", "builtins.eval", "subprocess.run", "subprocess.Popen",
    "torch.load", "torch.nn.Module.load_state_dict", "torch.nn.functional.relu",
    "torch.utils.data.datapipes.iter.FileOpener", "torch.optim.adam.torch.load",
    "torch.utils.data", "numpy.load", "functools.partial", "hydra.utils.instantiate",
    "launcher.runs.act.repeat_command.os.system", "launcher.dispatch.local.shutil.copy",
    "launcher.dispatch.spawner.Spawner", "launcher.process.child.run_to_end",
    "launcher.config.construct.construct", "launcher.config.construct.get_object",
    "launcher.data.custom.make", "launcher.train.load.load_model",
    "launcher.models.mlp.torch.load", "launcher.models.mlp.MLP.load_state_dict",
    "trusted_package.os.system", "outputs.run.1a2b.evil.Net", "outputs.run.1a2b.evil.Linear",
    "outputs.run.1a2b.evil.MyModel", "outputs.evil.MyModel", "a_script.os.system",
    "__main__.os.system", "", ".", "os..system", 3, None, ["os.system"], {"a": "os.system"},
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_target_that_is_not_allowed(file, target):
    with pytest.raises(ConfigError) as rejected:
        checked(file, {"_target_": target, "_args_": ["touch marker"]})
    (message,) = rejected.value.messages
    assert message.startswith(
        f"model._target_={target}: only the stored configuration {file} names"
    )
    assert not Path("marker").exists() and not any("evil" in name for name in sys.modules)


EVAL = {"_target_": "builtins.eval", "_args_": ["open('marker', 'w')"]}
PLACES = {
    "partial": {**EVAL, "_partial_": True},
    "nested": {"_target_": "launcher.models.supervised.Supervised", "module": EVAL},
    "deep": {"a": {"b": [{"c": [[EVAL]]}]}},
    "in a list": [1, EVAL],
    "an argument by its position": {"_target_": "torch.nn.Sequential", "_args_": [EVAL]},
    "in a node that is built later": {"_target_": CUSTOM, "_recursive_": False, "x": EVAL},
    "in a node without a target": {"_partial_": True, "_recursive_": True, "x": EVAL},
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
    "a function by its path": {"_target_": FUNCTIONS, "on_start": "os.abort"},
    "a function of the stored folder": {"_target_": "x.FunctionHook", "on_start": "outputs.evil"},
    "code of a model": {"_target_": MLP, "config": {"trust_remote_code": True}},
    "a pickle of a model": {"_target_": MLP, "config": {"weights_only": False}},
    "a kernel of the hub": {"_target_": MLP, "config": {"attn_implementation": "some/one"}},
}


@pytest.mark.parametrize("node", PLACES.values(), ids=PLACES)
def test_where_code_may_hide(file, node, monkeypatch):
    monkeypatch.setenv("EVIL", "builtins.eval")
    others = {"name": "builtins.eval", "part": "eval", "evil": EVAL}
    with pytest.raises(
        ConfigError, match=r"only the stored configuration .*config\.yaml names it.* add --trust"
    ):
        checked(file, node, **others)
    assert checked(file, node, trust=True, **others)
    file.write_text(signing.sign_text(file.read_text()))
    assert read_config(file, False, ["model"])


SHELL = {
    "setup": ["touch marker"],
    "python": "/tmp/python",
    "srun": ["--task-prolog=/tmp/x"],
    "sbatch": {"hold": True, "nodelist": "n[1-3]", "chdir": "/tmp"},
    "prefix": ["/tmp/wrapper"],
    "account": "me\ntouch marker",
}


@pytest.mark.parametrize("key", SHELL)
def test_the_lines_of_a_job(key):
    slurm = {
        "_target_": "launcher.dispatch.slurm.SlurmDispatch",
        "partition": "gpu[1-3]",
        "nodes": "1-4",
        "time": 5,
        "setup": [],
        "sbatch": {},
    }
    check_code({"dispatch": slurm}, Path("x"))
    with pytest.raises(ConfigError, match=rf"^dispatch\.{key}[^ ]*(=[^:]*)?"):
        check_code({"dispatch": {**slurm, key: SHELL[key]}}, Path("x"))


@pytest.mark.parametrize(
    "tree",
    [
        {"job": {"_target_": "launcher.jobs.evaluate.EvaluateJob", "trust": True}},
        {"trainer": {"compile": {"backend": "evil"}}},
        {"trainer": {"compile": {"options": {"cpp.cxx": ["/tmp/cxx"]}}}},
        {"strategy": {"config_file": "evil.json"}},
        {"tracker": {"wandb": {"notes": "${oc.env:HOME}"}}},
    ],
)
def test_other_values_that_run_or_read_something(tree):
    with pytest.raises(ConfigError, match="only the stored configuration"):
        check_code(tree, Path("x"))


@pytest.mark.parametrize("word", [
    "model=mlp", "hooks=[default,ema]", "model.hidden_dim=3", "+run.labels=[a,b]", "~hooks.ema",
    "run.note='a text, and more'", "trainer.compile=true", "hooks.checkpointing={interval:3}",
    "run.id=12345e67",
])  # fmt: skip
def test_overrides_that_run_nothing(word):
    check_overrides([word], None, Path("x"))


def test_a_file_that_has_no_configuration(file):
    file.write_text("[1]")
    with pytest.raises(ConfigError, match=r"config\.yaml: is not a configuration\."):
        read_config(file, True)


LAB = """
from subprocess import run
from torch.nn import Linear
import os

class Net:
    code_keys = ("loss",)

class Net2(Net): ...

def adam(model): ...

chosen = os.system
"""
LAB_YAML = """
a: {_target_: lab_package.nets.Net}
b: [{_target_: lab_package.Net}, {_target_: lab_package.nets.adam, _partial_: true}]
c: {_target_: lab_package.nets.run}
d: {_target_: lab_package.nets.Linear}
e: {_target_: lab_package.nets.chosen}
f: {_target_: torch.nn.GELU}
g: {_target_: lab_package.nets.os.system}
h: {_target_: lab_package.missing.Net}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A package that is installed with options."""
    folder = tmp_path_factory.mktemp("site")
    package, information = folder / "lab_package", folder / "lab-1.dist-info"
    (package / "conf" / "model").mkdir(parents=True)
    information.mkdir()
    (package / "__init__.py").write_text("from lab_package.nets import Net\n")
    (package / "nets.py").write_text(LAB)
    (package / "conf" / "__init__.py").touch()
    (package / "conf" / "model" / "lab.yaml").write_text(LAB_YAML)
    (information / "METADATA").write_text("Name: lab\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[launcher.conf]\nlab = lab_package.conf\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.fixture
def lab(site, file):
    installed_targets.cache_clear()
    yield file
    installed_targets.cache_clear()


def test_the_trusted_targets_of_an_installed_package_are_its_own_that_its_options_name(lab):
    own = {"lab_package.nets.Net", "lab_package.Net", "lab_package.nets.adam"}
    assert {one for one in installed_targets() if one.startswith("lab")} == own


NET = "lab_package.nets.Net"
PLAIN: dict[str, Any] = {
    "numbers": {"width": 3, "rates": [0.1, None, True], "inner": {"a": 1e-4}},
    "words": {"activation": "relu", "file": "/data/cells", "name": "the first"},
    "its own parts": {"layers": [{"_target_": "lab_package.Net"}, {"_target_": MLP}]},
    "no loss": {"loss": None},
}


@pytest.mark.parametrize("arguments", PLAIN.values(), ids=PLAIN)
def test_a_class_of_an_installed_package_is_trusted_with_plain_arguments(lab, arguments):
    checked(lab, {**arguments, "_target_": NET})
    assert "lab_package" not in sys.modules


NOT_PLAIN: dict[str, Any] = {
    "another class of it": {"_target_": "lab_package.nets.Net2"},
    "what it imports": {"_target_": "lab_package.nets.run"},
    "another package": {"_target_": "torch.nn.GELU"},
    "a part of another package": {"_target_": NET, "layer": {"_target_": "torch.nn.GELU"}},
    "a key that it declares": {"loss": "mean", "_target_": NET},
    "the path of a function": {"loss_function": "os.system", "_target_": NET},
    "a path inside": {"_target_": NET, "inner": {"a": [{"b": "os:system"}]}},
    "an interpolation": {"_target_": NET, "width": "${oc.env:HOME}"},
}


@pytest.mark.parametrize("node", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_needs_trust_of_an_installed_package(lab, node):
    with pytest.raises(ConfigError, match="would run code"):
        checked(lab, node)
    assert "lab_package" not in sys.modules
