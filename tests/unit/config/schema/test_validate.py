"""Every fault of a configuration is a sentence that names the key, the value and the fix."""

import math
import sys
from dataclasses import MISSING, fields
from typing import Any

import pytest
from omegaconf import OmegaConf

from launcher.config.compose import session
from launcher.config.schema.signature import UNKNOWN, signature_of
from launcher.config.schema.validate import _check_type, _keys, without_own_keys
from launcher.config.schema.value_types import fits
from launcher.config.settings import SECTIONS, section
from launcher.config.tree import walk
from launcher.errors import ConfigError
from support.composition import composed, mistakes, run_of, sentences, validate
from support.paths import ROOT
from support.projects import write_project

NO_TAG = (  # Hydra 1.4 deletes it
    ("~run.tag", "cannot be deleted, since it is not set.")
    if session.VERSION
    else ("run.tag", "is missing, and run needs it; add +run.tag=<text or a whole number or")
)


@pytest.mark.parametrize("overrides", [
    [],
    ["model=mlp", "data=digits"],
    ["job=evaluate", "~optimizer", "~scheduler", "~trainer.max_steps", "job.checkpoint=best"],
    ["job=export", "trainer.micro_batch_size=7"],
    *([f"job={job}", "trainer.max_epochs=1"] for job in ("train", "evaluate", "export")),
    ["hooks=[]", "tracker=[]"],
    ["~hooks", "~tracker", "~scheduler", "~optimizer._partial_"],
    ["model=mlp", "data=digits", "+data.image_size=16", "model.hidden_dim=${data.image_size}"],
    ["hooks.progress=null", "trainer.max_grad_norm=null", "optimizer.lr=1", "run.tag=3"],
    ["trainer.compile={backend:eager}"],
    ["trainer.compile={backend:aot_eager}", "trainer.activation_checkpointing=full"],
    ['optimizer.lr="${oc.decode:${oc.env:LAUNCHER_UNSET,0.02}}"'],
    ["scheduler.warmup_steps=1epoch"],
    ["scheduler=wsd", "scheduler.warmup_steps=0.5 epochs"],
    ["+width=16", "+paths.data=/data", "trainer.max_steps=${width}"],
])  # fmt: skip
def test_a_valid_configuration_passes(overrides):
    assert sentences(*overrides) == []


POSITIVE = "should be a whole number greater than 0"
SLURM = "dispatch=slurm dispatch.nodes="
MEDIA = "hooks=[default,media] hooks.media.bins="
OWN = "data.dataset._target_=torch.utils.data.Dataset"
CUSTOM = "data=custom data.vocab_size=8 data.seq_len=8"


@pytest.mark.parametrize(("words", "key", "fix"), [
    ("seed=-1", "seed=-1", "should be a whole number from 0 to below 4294967296."),
    ("seed=???", "seed", "needs a value; e.g. seed=..."),
    ("seed=${sede}", "seed=${sede}", "there is no sede"),
    ("+seeds=3", "seeds=3", "nothing refers to it by ${seeds}; did you mean seed?"),
    ("device=gpu", "device='gpu'", "should be one of auto, cpu, cuda, mps."),
    ("device=cuda:7", "device='cuda:7'", "set CUDA_VISIBLE_DEVICES=7, and use device=cuda."),
    # trainer
    ("trainer.max_steps=0", "trainer.max_steps=0", f"{POSITIVE} or null."),
    ("trainer.max_steps=0.5epoch", "trainer.max_steps='0.5epoch'", "; set trainer.max_epochs=0.5"),
    ("+trainer.max_step=3", "trainer.max_step=3", "did you mean trainer.max_steps?"),
    ("~trainer.max_grad_norm", "trainer.max_grad_norm", "is missing, and trainer needs it; add"),
    ("trainer.pause_at=9 ~hooks.checkpointing", "trainer.pause_at=9", "needs hooks.checkpointing"),
    ("trainer.compile=1", "trainer.compile=1", "true or false or a mapping of keys to values"),
    ("trainer.compile={mode:fastest}", "trainer.compile.mode='fastest'", "one of default, reduce-"),
    *(
        (
            f"model=huggingface trainer.compile={{backend:{backend}}} {key}={value}",
            f"trainer.compile.backend={backend}: with {key}={value}",
            f"use trainer.compile.backend=aot_eager, or {key}=none.",
        )
        for key in ["trainer.activation_checkpointing"]
        for backend, value in (("eager", "full"), ("my_own", 2))
    ),
    # batches and ranks
    ("dispatch.nproc=0", "dispatch.nproc=0", "should be "),
    (
        f"{SLURM}2 data.batch_size=10 dispatch.tasks_per_node=2",
        "data.batch_size=10", "4 ranks (2 per node x 2 nodes); use 8 or 12.",
    ),
    (
        f"{SLURM}1-4 data.batch_size=64", "dispatch.nodes=1-4",
        "by 3 ranks (3 nodes, 1 per node); use a smaller range or data.batch_size=60 or 72.",
    ),
    (f"{SLURM}20-21 data.batch_size=7", "dispatch.nodes=20-21", "or data.batch_size=420."),
    (f"{SLURM}2 strategy=none", "strategy=none", "gets more (1 per node x 2 nodes); use one."),
    (f"{SLURM}1-2 strategy=none", "strategy=none", "gets more (1 per node x 1-2 nodes); use one."),
    ("dispatch.nproc=2 strategy=none", "strategy=none", "gets more (dispatch.nproc=2); use one."),
    (
        f"{SLURM}1-30000 data.batch_size=7", "dispatch.nodes=1-30000",
        "by 2 ranks (2 nodes, 1 per node); use a smaller range.",
    ),
    (f"{SLURM}3-4 trainer.lanes=8", "trainer.lanes=8", "3-4 nodes); use 2 or 4 ranks."),
    ("data.batch_size=3 dispatch.nproc=2", "data.batch_size=3", "(dispatch.nproc=2); use 2 or 4."),
    # schedule
    (
        "scheduler.warmup_steps=10 scheduler.warmup_ratio=0.5", "scheduler.warmup_steps=10",
        "only one may be; e.g. scheduler.warmup_ratio=null.",
    ),
    (
        "trainer.max_steps=5 scheduler.warmup_steps=10 scheduler.warmup_ratio=null",
        "scheduler.warmup_steps=10", "the run has only 5 steps; use at most 5.",
    ),
    ("scheduler.warmup_steps=5 scheduler.warmup_ratio=???", "scheduler.warmup_ratio", "needs a v"),
    ("scheduler.warmup_steps=1epok", "scheduler.warmup_steps='1epok'", "should be a whole number"),
    ("scheduler.min_lr_ratio=1epoch", "scheduler.min_lr_ratio='1epoch'", "a number from 0 to 1"),
    # what a service rejects
    *(
        (f"tracker=wandb tracker.wandb.tags=[{tag}]", "tracker.wandb.tags=['", "of at most 64.")
        for tag in ("''", "a" * 65)
    ),
    # run and paths
    ("run.resume=atuo", "run.resume='atuo'", "one of auto, never, must; e.g. run.resume=auto."),
    ("run.resume=/a/step-00000004", "run.resume='/a/step-00000004'", "one of auto, never, must"),
    *(
        (f"run.resume={value}", f"run.resume={shown}", f"runs rollback RUN {step}` goes back to a")
        for value, shown, step in (
            ("1400", 1400, 1400), ("step-0010", "'step-0010'", 10), ("best", "'best'", "best"),
        )
    ),
    ("~run.resume", "run.resume", "run needs it; add +run.resume=<one of auto, never, must>."),
    ("~run.tag", *NO_TAG),
    ("+run.tga=x", "run.tga='x'", "run takes no tga; did you mean run.tag?"),
    ("run.name=a/b", "run.name='a/b'", "valid folder name of at most 128 bytes: letters, "),
    ("run.name=" + 129 * "x", "run.name='xxx", "name of at most 128 bytes"),
    ("run.id='" + 65 * "é" + "'", "run.id='éé", "name of at most 128 bytes"),
    ("run.id=true", "run.id=true", "should be text; a text needs quotes: 'run.id=\"true\"'."),
    ("run.sweep=1.5", "run.sweep=1.5", "should be text or a whole number or null."),
    ("run.init_from=/no/where", "run.init_from='/no/where'", "and no run of this id, or several."),
    ("paths.outputs='~nobody_here/x'", "paths.outputs='~nobody_here/x'", "is no user nobody_here."),
    ("paths.outputs=/dev/null/x", "paths.outputs='/dev/null/x'", "not a folder; use another"),
    ("job=lr_find job.folder=/dev/null/x", "job.folder='/dev/null/x'", "not a folder; use another"),
    ("data.files='~nobody_here/x'", "data.files='~nobody_here/x'", "matches no file (looked in "),
    ("data.files=''", "data.files=''", "matches no file (looked in "),
    # parts
    ("precision.name=fp8", "precision.name='fp8'", "one of fp32, tf32, bf16, fp16; e.g. "),
    ("+precision.scale=3", "precision.scale=3", "did you mean precision.init_scale?"),
    *((f"model._target_={value}", f"model._target_={shown}", "should name a class or function, by")
      for value, shown in [("", "''"), ("torch..nn", "'torch..nn'"), ("null", "null"), ("3", "3")]),
    ("+model._convert_=plain", "model._convert_='plain'", "one of none, partial, object, all."),
    ("+model._recursive_=3", "model._recursive_=3", "should be true or false."),
    ("optimizer.no_decay=[norm]", "optimizer.no_decay=['norm']", "each item one of norms, biases,"),
    ("hooks.checkpointing.exit_signals=1.5", "hooks.checkpointing.exit_signals=1.5", "should be"),
    ("strategy=deepspeed strategy.sub_group_size=-1", "strategy.sub_group_size=-1", "at least 0"),
    ("run.dir=", "run.dir=''", "should be text that is not empty"),
    ("~model._target_", "model", "name its class or function, e.g. model._target_=my_"),
    ("model._target_=no_such.Model", "model._target_='no_such.Model'", "no module no_such; is its"),
    (
        "precision._target_=launcher.optim.precision.Precison", "precision._target_='launcher.op",
        "did you mean launcher.optim.precision.Precision?",
    ),
    ("~model", "model", "the run needs one; choose model="),
    ("optimizer.lr=abc", "optimizer.lr='abc'", "should be a number"),
    ("optimizer.betas=0.9", "optimizer.betas=0.9", "a list of 2, each item a number from 0 to bel"),
    ("experiment=conf/experiment/gpt_tiny.yaml", "experiment=conf/", "mean experiment=gpt_tiny?"),
    ("experiment=gpt_tiny hooks=[]", "hooks.evaluation", "or remove the keys: ~hooks.evaluation."),
    ("hooks.logging.interval=often", "hooks.logging.interval='often'", "should be a whole"),
    ("hooks.checkpointing.exit_delay=-1", "hooks.checkpointing.exit_delay=-1", "number from 0 to"),
    ("hooks.checkpointing.exit_code=300", "hooks.checkpointing.exit_code=300", "number from 0 to"),
    ("hooks.checkpointing.keep_steps=[0]", "hooks.checkpointing.keep_steps=[0]", "greater than 0"),
    ("dispatch.grace=1e300", "dispatch.grace=1e+300", "greater than 0 and of at most 1000000000"),
    (f"data.batch_size={10**23}", f"data.batch_size={10**23}", "more than 64 bits; use another"),
    (f"{MEDIA}{10**9}", f"hooks.media.bins={10**9}", "of at most 10000"),
    # parts
    ("data=digits model=supervised model.module=null", "model.module=null", "should be a part"),
    (f"{CUSTOM} data.dataset=null", "data.dataset=null", "should be a part with a _target_."),
    (f"{CUSTOM} {OWN} data.val_datasets={{a:null}}", "data.val_datasets={a:null}",
     "a mapping of names to parts or null."),
    (
        f"{CUSTOM} {OWN} data.collate_fn._target_=torch.utils.data.default_collate",
        "data.collate_fn.batch",
        "or +data.collate_fn._partial_=true for the function itself.",
    ),
    (
        f"{CUSTOM} data=mixture data.sources={{a:null,b:{{_target_:torch.nn.ReLU}}}}",
        "data.sources={a:null}", "should be a mapping of names to parts.",
    ),
    (
        "hooks.checkpointing.exit_signals=[SIGKILL]", "hooks.checkpointing.exit_signals='SIGKILL'",
        "that a process can handle; e.g. hooks.checkpointing.exit_signals=[SIGUSR1].",
    ),
    ("hooks.checkpointing.exit_signals=NOPE", "hooks.checkpointing.exit_signals='NOPE'", "is not"),
    # interpolations
    (
        "data=digits", "model.vocab_size=${data.vocab_size}, model.seq_len=${data.seq_len}",
        "data=digits has no vocab_size and no seq_len; choose data=custom, ",
    ),
    ("model.dim=${data.dimm}", "model.dim=${data.dimm}", "no dimm; set model.dim=... directly."),
    (
        "trainer.max_non_finite_grad_retries=2"
        " trainer.micro_batch_size=${trainer.max_non_finite_grad_retries}0",
        "trainer.micro_batch_size='20'", "should be a whole number",
    ),
    (
        "trainer.max_consecutive_skipped_steps=${trainer.max_grad_norm} trainer.max_grad_norm=0.5",
        "trainer.max_consecutive_skipped_steps=0.5", "taken from trainer.max_grad_norm, should be",
    ),
    (
        "optimizer.lr=${oc.env:LAUNCHER_UNSET,0.02}", "optimizer.lr='0.02'",
        "write 'optimizer.lr=\"${oc.decode:${oc.env:LAUNCHER_UNSET,0.02}}\"'.",
    ),
    (
        "optimizer.lr=${oc.env:LAUNCHER_UNSET}", "optimizer.lr=${oc.env:LAUNCHER_UNSET}",
        "set it, or give a default: ${oc.env:LAUNCHER_UNSET,...}",
    ),
])  # fmt: skip
def test_a_fault_is_one_message_with_its_key_and_the_fix(words, key, fix):
    (message,) = sentences(*words.split())
    assert message.startswith(key) and fix in message


def test_all_faults_are_reported_at_once_and_a_repeated_value_at_its_source():
    faults = sentences("trainer.max_steps=0", "seed=x", "device=gpu", "optimizer.lr=abc")
    assert [fault.partition("=")[0] for fault in faults] == [
        "seed",
        "device",
        "trainer.max_steps",
        "optimizer.lr",
    ]


@pytest.mark.parametrize("data", ["parquet", "jsonl"])
def test_a_missing_value_has_no_second_error_about_what_follows_from_it(data, tmp_path):
    """The tokenizer determines data.vocab_size, and with it model.vocab_size."""
    (tmp_path / "x").touch()
    (sentence,) = sentences(f"data={data}", f"data.files={tmp_path}/x")
    assert sentence.startswith("data.tokenizer: needs a value; e.g. data.tokenizer=...")


def test_the_users_own_keys_are_not_passed_to_the_constructor():
    words = ["+data.image_size=16", "data.batch_size=${trainer.max_steps}"]
    run = run_of(composed(["model=mlp", "data=digits", *words]))
    data = without_own_keys(run.plain["data"])
    assert set(run.plain["data"]) - set(data) == {"image_size"}
    assert data["batch_size"] == run.trainer.max_steps


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_project(tmp_path, package="schema_package")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "conf"


def test_a_users_option_must_not_have_the_name_of_one_of_ours(project):
    """Hydra would use ours silently."""
    (project / "optimizer").mkdir(exist_ok=True)
    (project / "optimizer" / "adamw.yaml").write_text("_target_: torch.optim.AdamW\nlr: 5.0\n")
    assert sentences("optimizer=sgd", config_dir=project) == []
    [sentence] = sentences("optimizer=adamw", config_dir=project)
    assert sentence.startswith("optimizer=adamw: also an option of ")
    assert f"the option of {project}; rename it." in sentence


def test_a_users_class_is_its_own_schema_and_is_not_imported(project):
    too_small = "should be a whole number greater than 0."
    nested = "+model.depth={_target_: schema_package.MyModel, width: -1}"
    for words, expected in {
        "": [],
        "model.width=0 +model.dept=3": [
            f"model.width=0: {too_small}",
            "model.dept=3: MyModel takes no dept; did you mean model.depth?",
        ],
        "~model.width": ["model.width: is missing, and MyModel needs it; add +model.wi"],
    }.items():
        messages = sentences("model=mine", *words.split(), config_dir=project)
        for message, start in zip(messages, expected, strict=True):
            assert message.startswith(start)
    assert sentences("model=mine", nested, config_dir=project) == [
        f"model.depth.width=-1: {too_small}"
    ]
    assert "schema_package" not in sys.modules


@pytest.mark.parametrize("name", ["trainer", "run", "hpo"])
def test_defaults_of_settings_equal_those_of_the_yaml_files(name):
    """A stored configuration may lack a key that is newer than itself: the code then uses the
    declared default."""
    node = composed(["model=mlp", "data=digits"])[name]
    defaults = {
        each.name: each.default for each in fields(SECTIONS[name]) if each.default is not MISSING
    }
    assert {key: node[key] for key in defaults} == defaults


@pytest.mark.parametrize("words", [
    "paths.outputs=", "run.init_from=", "run.fork_from=", "hooks.checkpointing.path=",
    "job=lr_find job.folder=", "job=predict job.file=",
    "model=gpt data=parquet data.files=x data.cache=",
])  # fmt: skip
def test_a_path_that_an_unset_variable_left_empty_is_rejected(words):
    *others, empty = words.split()
    with pytest.raises(ConfigError) as caught:
        validate(composed(["model=mlp", "data=digits", *others, empty]))
    assert any(
        message.startswith(f"{empty}'': should be text that is not empty")
        for message in caught.value.messages
    )


def test_lists_of_one_option_of_hooks_and_of_values_are_accepted():
    assert mistakes(["optimizer=[adamw]", "hooks=[default,ema]", "optimizer.betas=[0.8,0.9]"]) == []


INFINITE = (float("inf"), float("-inf"), float("nan"), 2**63)
SIGNATURES = {
    str(node["_target_"]): signature_of(str(node["_target_"]))
    for path in sorted((ROOT / "conf").glob("*/*.yaml"))
    for _, node in walk({"option": OmegaConf.to_container(OmegaConf.load(path))})
    if isinstance(node, dict) and node.get("_target_", "???") != "???"
}


@pytest.mark.parametrize("owner", [*SIGNATURES, *SECTIONS])
def test_numbers_are_finite(owner):
    spec = SIGNATURES[owner] if owner in SIGNATURES else section(SECTIONS[owner])
    for parameter in () if spec is None else spec.parameters:
        if parameter.default is UNKNOWN:
            continue
        for given, wrap in ((0.5, lambda x: x), ([0.5], lambda x: [x]), ({"a": 0.5}, _in_a_dict)):
            if parameter.annotation is Any or not fits(given, parameter.annotation):
                continue
            for number in INFINITE:
                issues = list(_check_type("a.key", wrap(number), parameter))
                assert len(issues) == 1, (parameter, number)


def _in_a_dict(number: float) -> dict[str, float]:
    return {"a": number}


class Unbounded:
    """Args: a number whose default is infinite, and one that has no type."""

    def __init__(self, most: float = math.inf, any=None):
        pass


def test_a_number_may_be_infinite_where_its_default_is():
    spec, keys = signature_of(f"{__name__}.Unbounded"), {"most": math.inf, "any": math.inf}
    assert spec is not None and not list(_keys("x", keys, spec, partial=True))
