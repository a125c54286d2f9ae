"""Declarations of parts, also of parts of a user's package that derive from ours."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import launcher
from launcher.config.identity.equivalence import canonical
from launcher.config.identity.record_entry import command_record, read_identity
from launcher.config.options import main_folder, options, own_option
from launcher.config.run_config import RunConfig
from launcher.config.schema.checks import checkpointing
from launcher.config.schema.declared import DECLARATIONS, declared
from launcher.config.schema.hook_dependencies import uncounted_keys
from launcher.config.schema.validate import crosschecks
from launcher.config.secrets import config_to_store
from launcher.dispatch.local import LocalDispatch
from launcher.dispatch.skip_reasons import folder_of
from launcher.proof.resume_check import check
from support.composition import id_of, run_of

GROUPS = ("job", "strategy", "hooks", "data", "tracker", "model")
PACKAGE = "derived_parts"


def targets() -> dict[str, str]:
    """The classes of the options, by the option."""
    nodes = {
        f"{group}={name}": own_option(group, name)
        for group in GROUPS
        for name in options([main_folder()], group)
    }
    found = {
        option: node.get("_target_") or (node.get(option.partition("=")[2]) or {}).get("_target_")
        for option, node in nodes.items()
    }
    # A function, such as the target of strategy=auto, has no subclass.
    return {
        option: target
        for option, target in found.items()
        if target is not None and target.rpartition(".")[2][0].isupper()
    }


TARGETS = targets()


def name_of(option: str) -> str:
    """The name of the class that derives from the class of an option."""
    group, _, name = option.partition("=")
    return f"My{group.title()}{name.title()}".replace("_", "")


def derived(option: str) -> str:
    return f"{PACKAGE}.parts.{name_of(option)}"


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory) -> Iterator[Path]:
    """Two lines for each class; some are imported as the public names of `launcher`."""
    folder = tmp_path_factory.mktemp("project")
    lines = ["import launcher"]
    for option, target in TARGETS.items():
        module, _, name = target.rpartition(".")
        base = f"launcher.{name}" if name in dir(launcher) else f"Base{name_of(option)}"
        if not base.startswith("launcher."):
            lines.append(f"from {module} import {name} as {base}")
        lines.append(f"class {name_of(option)}({base}):\n    pass")
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "__init__.py").touch()
    (folder / PACKAGE / "parts.py").write_text("\n".join(lines))
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.mark.parametrize("option", TARGETS)
def test_a_derived_class_declares_what_its_base_declares(option):
    own, base = derived(option), TARGETS[option]
    assert [declared(own, name) for name in DECLARATIONS] == [
        declared(base, name) for name in DECLARATIONS
    ]


@pytest.mark.parametrize("option", [option for option in TARGETS if option[:5] != "model"])
def test_what_is_read_from_source_is_what_the_class_has(option):
    module, _, name = TARGETS[option].rpartition(".")
    cls = getattr(import_module(module), name)
    # Only a strategy has a name in messages.
    names = DECLARATIONS.keys() - ({"name"} if option[:8] != "strategy" else set())
    for attribute in names:
        value = getattr(cls, attribute, DECLARATIONS[attribute][0])
        assert callable(value) or declared(TARGETS[option], attribute) == value


def with_target(option: str, *words: str) -> RunConfig:
    """A run of `option` whose class is the derived one."""
    target = f"{option.partition('=')[0]}._target_={derived(option)}"
    return run_of(["model=mlp", "data=digits", option, target, *words])


@pytest.mark.parametrize(("option", "words", "ranks"), [
    ("strategy=none", [], 1), ("strategy=ddp", [], 4), ("job=export", [], 1), ("job=train", [], 4),
    ("job=resume_check", ["dispatch.nproc=2"], 1), ("job=evaluate", [], 4),
])  # fmt: skip
def test_ranks_of_a_machine(monkeypatch, option, words, ranks):
    monkeypatch.setattr("launcher.dispatch.local.count_gpus", lambda: 4)
    run = with_target(option, "device=cuda", *words)
    assert LocalDispatch(nproc=run.plain["dispatch"]["nproc"]).count(run) == ranks


def test_two_ranks_of_a_strategy_of_one_process_are_rejected_before_torch():
    run = with_target("strategy=none", "dispatch.nproc=2")
    [issue] = crosschecks(run.plain)
    assert str(issue).startswith("strategy=none: uses one rank, and gets more (dispatch.nproc=2)")


@pytest.mark.parametrize("name", options([main_folder()], "job"))
def test_a_job_that_trains_is_its_run(name):
    run = with_target(f"job={name}")
    is_training = name == "train"
    assert run.trains == is_training
    assert (folder_of(run).path == run.folder.path.absolute()) == is_training


@pytest.mark.parametrize(("option", "words", "key"), [
    ("job=predict", [], "data.predict"), ("job=lr_find", ["job.folder=/dev/null"], "job.folder"),
    ("job=evaluate", ["data=tokens", "data.files=none.npy"], "data.files"),
    ("strategy=deepspeed", ["strategy.zero_stage=0", "strategy.offload_optimizer=true"],
     "strategy.offload_optimizer"),
])  # fmt: skip
def test_what_a_part_reads_and_writes_is_checked(option, words, key):
    assert [issue.key for issue in crosschecks(with_target(option, *words).plain)] == [key]


def test_a_job_without_files_needs_none():
    run = with_target("job=export", "data=tokens", "data.files=none.npy")
    assert not list(crosschecks(run.plain))


def test_a_derived_hook_saves_and_resumes():
    words = ["~hooks.checkpointing", f"+hooks.mine._target_={derived('hooks=checkpointing')}"]
    run = run_of(["model=mlp", "data=digits", *words, "trainer.pause_at=2"])
    assert checkpointing(run.plain["hooks"]) is run.plain["hooks"]["mine"] and not list(
        crosschecks(run.plain)
    )
    check(run, 2, 1)


@pytest.mark.parametrize(("words", "has_issue"), [
    (["data=digits"], True), (["data=custom"], True), (["data=digits", "hooks.mine=null"], False),
    (["data=custom", "data.test_dataset._target_=mine.Rows"], False),
    # A source of the user's own may make a test set without a key.
    (["data=digits", f"data._target_={derived('data=digits')}"], False),
])  # fmt: skip
def test_a_test_set_is_asked_for_with_the_other_mistakes(words, has_issue):
    mine = [f"+hooks.mine._target_={derived('hooks=evaluation')}", "+hooks.mine.test=last"]
    more = [] if "hooks.mine=null" in words else mine
    words = ["model=mlp", *(word for word in words if word != "hooks.mine=null"), *more]
    issues = [str(issue) for issue in crosschecks(run_of(words).plain)]
    text = (
        "hooks.mine.test=last: the data have no test set; set data.test_dataset, or leave it out."
    )
    assert issues == ([text] if has_issue else [])


def test_a_derived_hook_logs_what_its_base_logs():
    words = ["hooks=[checkpointing,early_stopping]"]
    mine = f"+hooks.mine._target_={derived('hooks=evaluation')}"
    found, none = (list(crosschecks(run_of([*words, *more]).plain)) for more in ([], [mine]))
    assert "needs hooks.evaluation" in str(found[0]) and none == []


HOOKS = [option for option in TARGETS if option.startswith("hooks=")]
OBSERVING = [option for option in HOOKS if not declared(TARGETS[option], "changes_numbers")]


def test_the_hooks_that_observe():
    names = sorted(option.removeprefix("hooks=") for option in OBSERVING)
    assert names == [
        "checkpointing", "evaluation", "export", "gradients", "logging", "media", "memory",
        "nan_report", "profiler", "progress", "samples", "throughput", "watchdog",
    ]  # fmt: skip


@pytest.mark.parametrize("option", HOOKS)
def test_a_hook_that_observes_changes_no_id(option):
    """Under any name, in a user's package, and if its option is named and null."""
    added = id_of(f"+hooks.mine._target_={derived(option)}")
    assert (added == id_of()) == (option in OBSERVING)
    assert id_of(f"+hooks.{option.partition('=')[2]}x=null") == id_of()


def identity_of(*words: str) -> dict:
    entry = read_identity(run_of(list(words)).plain["run"])
    assert entry is not None
    return entry[1]


@pytest.mark.parametrize("option", HOOKS)
def test_a_run_of_before_the_declaration_is_found(option):
    """Its identity has the hook, since its name or class was not known to observe."""
    identity = identity_of()
    before = identity | {"hooks": {"mine": {"_target_": derived(option)}}}
    assert (canonical(before) == canonical(identity)) == (option in OBSERVING)


def test_a_run_of_another_list_of_excluded_keys_is_found():
    """It had the observing hooks in its identity."""
    words = ["run.identity_exclude=[job,run,hydra,paths,dispatch,device]"]
    now = identity_of(*words)
    before = now | {"hooks": run_of(words).plain["hooks"]}
    assert "hooks" not in now or now["hooks"] == {}
    assert canonical(before) == canonical(now)


STOPPING = "hooks=[default,early_stopping]"


@pytest.mark.parametrize(("word", "counts"), [
    ("hooks.evaluation.interval=7", True), ("hooks.logging.interval=7", False),
    (f"hooks.evaluation._target_={PACKAGE}.parts.MyHooksEvaluation", True),
])  # fmt: skip
def test_what_measures_a_steering_metric_stays_in_identities(word, counts):
    one, other = identity_of(STOPPING), identity_of(STOPPING, word)
    assert (canonical(one) != canonical(other)) == counts


@pytest.mark.parametrize("key", ["hooks=evaluation test", "hooks=export checkpoint"])
def test_a_completed_run_does_what_a_derived_hook_does_at_the_end(key):
    option, name = key.split()
    assert name in declared(derived(option), "at_the_end")


@pytest.mark.parametrize("target", ["nothing.here.Hook", "builtins.dict", "torch.Tensor.add"])
def test_a_class_that_cannot_be_read_counts_as_the_most_that_it_may_do(target):
    assert declared(target, "trains") and declared(target, "changes_numbers")
    evaluation = own_option("hooks", "evaluation")["evaluation"]
    tree = {"hooks": {"evaluation": evaluation, "own": {"_target_": target}}}
    assert not uncounted_keys(tree["hooks"], None, None)
    assert canonical(tree)["hooks"].keys() == {"evaluation", "own"}


@pytest.mark.parametrize("value", ["1", "b'yes'", "None", "some()", "0.5", "{1}"])
def test_an_attribute_of_another_type_is_no_declaration(package, value):
    """A user's class may have such a name for something else, or compute the value."""
    module = f"other_{abs(hash(value))}"
    lines = [f"    {name} = {value}" for name in DECLARATIONS]
    (package / f"{module}.py").write_text("\n".join(["class Other:", *lines]))
    found = [declared({"_target_": f"{module}.Other"}, name) for name in DECLARATIONS]
    assert found == [unreadable for _, unreadable in DECLARATIONS.values()]


def test_one_class_under_two_names_is_one_class():
    """A public name, and the name of the module that defines it."""
    one, other = (
        {"hooks": {"mine": {"_target_": name}}}
        for name in ("launcher.EmaHook", "launcher.hooks.ema.EmaHook")
    )
    assert canonical(one) == canonical(other)


def test_a_run_stores_what_its_classes_declare():
    run = run_of([f"+hooks.mine._target_={derived('hooks=memory')}"])
    record = command_record(run.stored, run.hydra)
    assert {"hooks.mine", "hooks.logging", "dispatch"} < set(record["uncounted"])


def test_a_value_of_the_environment_in_a_hook_that_observes_is_stored_as_written():
    written = {"hooks": {"a": {"_target_": derived("hooks=export"), "dtype": "${oc.env:X}"}}}
    plain = {"hooks": {"a": {"_target_": derived("hooks=export"), "dtype": "fp16"}}}
    assert config_to_store(written, plain) == written


@pytest.mark.parametrize(("keys", "default", "other"), [
    ("liger: bool = True", "true", "false"), ("logits_chunk: int = 64", "64", "null"),
])  # fmt: skip
def test_a_key_of_our_models_has_no_rule_for_a_class_of_the_same_key(package, keys, default, other):
    name = keys.partition(":")[0]
    (package / f"own_{name}.py").write_text(f"class Net:\n    def __init__(self, {keys}): ...\n")
    model = ["model=mlp", f"model._target_=own_{name}.Net"]
    absent, given = id_of(*model), id_of(*model, f"+model.{name}={other}")
    assert absent != given != id_of(*model, f"+model.{name}={default}")


@pytest.mark.parametrize(("option", "word", "counts"), [
    ("model=gpt", "model.logits_chunk=null", False), ("model=gpt", "model.logits_chunk=8", True),
    ("model=huggingface", "model.liger=false", False),
    ("model=huggingface", "model.liger=true", True),
])  # fmt: skip
def test_a_later_key_is_hashed_only_where_it_differs_from_its_default(option, word, counts):
    for words in ([option], [option, f"model._target_={derived(option)}"]):
        assert (id_of(*words, word) != id_of(*words)) == counts


def test_a_later_key_of_a_function_is_declared_by_its_module(package):
    (package / "own_optimizers.py").write_text(
        "later_keys = ('beta',)\n\n\ndef mine(params, lr=0.1, beta=0.5): ...\n"
    )
    words = ["optimizer._target_=own_optimizers.mine", "optimizer.lr=0.1"]
    ids = [id_of(*words, f"+optimizer.beta={beta}") for beta in (0.5, 0.6)]
    assert ids[0] == id_of(*words) != ids[1]
