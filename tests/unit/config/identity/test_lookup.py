"""A run that is found by its id must have the configuration of the command."""

import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.identity.lookup import RunIndex, check_identity, describe_nearest_run
from launcher.config.identity.record_entry import read_identity
from launcher.config.run_config import RunConfig, from_stored, load_job, read
from launcher.config.secrets import config_to_store
from launcher.errors import ConfigError
from launcher.rundir import run_on_disk
from support.composition import run_of
from support.named_runs import begin, config_of
from support.paths import ROOT

pytestmark = pytest.mark.slow


OWN_HOOK = "launcher.hooks.base.BaseHook"


def named(outputs: Path, *overrides: str) -> tuple[RunConfig, str | None]:
    """A configuration with the run that it finds, and the id of an equivalent one."""
    words = ["model=mlp", "data=digits", f"paths.outputs={outputs}", *overrides]
    config = run_of(words, RunIndex())
    return config, None if config.continued is None else config.continued.folder.path.name


def replace(folder: Path, **changes: Any) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_run_of_the_same_configuration_is_accepted(tmp_path):
    config = config_of(tmp_path)
    check_identity(config.plain["run"])
    data = begin(config).data
    assert data["identity_version"] == 1
    assert data["identity"]["optimizer"]["lr"] == config.plain["optimizer"]["lr"]
    check_identity(config.plain["run"])
    check_identity(config_of(tmp_path, "device=cpu", "hooks.logging.interval=3").plain["run"])


def test_another_configuration_in_the_folder_is_rejected_with_the_difference(tmp_path):
    config = config_of(tmp_path, "seed=3")
    identity = begin(config).data["identity"]
    identity["optimizer"]["lr"] = 7
    identity["trainer"]["deterministic"] = 1  # not `true`
    del identity["seed"]
    replace(Path(config.run.dir), identity=identity)
    with pytest.raises(ConfigError) as caught:
        check_identity(config.plain["run"])
    (sentence,) = caught.value.messages
    assert sentence.startswith(f"run.dir='{config.run.dir}': is of another configuration")
    assert "(optimizer.lr: 7 -> 0.003, seed=3 (new), trainer.deterministic: 1 -> false)" in sentence
    assert "run.tag=<word>" in sentence
    # Named outright.
    check_identity(
        config_of(tmp_path, "seed=3", f"run.id={config.run.id}", "model.dropout=0.5").plain["run"]
    )
    replace(Path(config.run.dir), identity_version=0)
    check_identity(config.plain["run"])


def test_id_of_a_run_stays_when_it_resumes_with_other_values(tmp_path):
    first = config_of(tmp_path)
    begin(first).end_attempt("preempted", end_step=0)
    begin(config_of(tmp_path, f"run.id={first.run.id}", "model.dropout=0.5"))
    check_identity(first.plain["run"])


def test_values_from_the_environment_are_compared_as_others(tmp_path, monkeypatch):
    own = ("+trainer.own=[${oc.env:OWN_VALUE}]", "+data.own='a-${oc.env:OWN_VALUE}'")
    monkeypatch.setenv("OWN_VALUE", "1e3")
    config = config_of(tmp_path, *own)
    text = json.dumps(begin(config).data)
    assert "a-1e3" in text and "oc.env:OWN_VALUE" not in text
    same = config_of(tmp_path, "+trainer.own=['1e3']", "+data.own=a-1e3")
    assert same.run.id == config.run.id
    check_identity(same.plain["run"])
    for value, expected in (("1e3", config.run.id), ("6", None)):
        monkeypatch.setenv("OWN_VALUE", value)
        assert named(tmp_path, *own, "~trainer.deterministic")[1] == expected


def cases() -> list[tuple[str, str, bool]]:
    rows = re.findall(
        r"^\|[^|]+\| (yes|no) \| `([^`]+)` \| `([^`]+)` \|$",
        (ROOT / "docs" / "naming.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 11
    return [(before, now, same == "yes") for same, before, now in rows]


@pytest.mark.parametrize(("before", "now", "is_same"), cases())
def test_the_table_of_changes_is_true(tmp_path, before, now, is_same):
    first = config_of(tmp_path, *before.split())
    begin(first)
    config, found = named(tmp_path, *now.split())
    assert found == (first.run.id if is_same else None)
    assert (config.run.dir == first.run.dir) == is_same


def test_the_runs_of_a_name_are_read_once_for_all_jobs(tmp_path, monkeypatch):
    for seed in range(4):
        begin(config_of(tmp_path, f"seed={seed}"))
    read = run_on_disk.read_record
    paths: list[str] = []
    monkeypatch.setattr(run_on_disk, "read_record", lambda path: paths.append(path) or read(path))
    runs = RunIndex()
    for seed in range(6):
        words = ["model=mlp", "data=digits", f"paths.outputs={tmp_path}", "~model.dropout"]
        config = run_of([*words, f"seed={seed}"], runs)
        assert (config.continued is None) == (seed >= 4)
    assert len(paths) == len(set(paths)) == 4


def test_an_empty_folder_is_no_run(tmp_path):
    first = config_of(tmp_path, "~model.dropout")
    begin(first)
    Path(config_of(tmp_path).run.dir).mkdir()
    assert named(tmp_path)[1] == first.run.id


def test_the_run_of_the_own_id_comes_before_an_equivalent_one(tmp_path):
    begin(config_of(tmp_path, "~model.dropout"))
    config = config_of(tmp_path)
    begin(config)
    assert named(tmp_path)[0].run.id == config.run.id


@pytest.mark.parametrize("own", ["here", "${run.id}-here"])
def test_a_folder_of_another_name_stays_beside_an_equivalent_run(tmp_path, own):
    first = config_of(tmp_path, "~model.dropout")
    begin(first)
    folder = Path(first.run.dir).parent
    config, found = named(tmp_path, f"run.dir='{folder}/{own}'")
    assert found == first.run.id
    assert Path(config.run.dir) == folder / own.replace("${run.id}", first.run.id)


def test_several_equivalent_runs_are_rejected_and_a_copy_is_none(tmp_path):
    first = config_of(tmp_path, "~model.dropout")
    begin(first)
    shutil.copytree(first.run.dir, Path(first.run.dir).parent / "copy")
    assert named(tmp_path)[1] == first.run.id
    begin(config_of(tmp_path, "~model.dropout", "~trainer.deterministic"))
    with pytest.raises(ConfigError, match="2 runs have an equivalent configuration") as caught:
        named(tmp_path)
    assert first.run.id in str(caught.value) and "run.id=<id>" in str(caught.value)
    assert named(tmp_path, f"run.id={first.run.id}")[0].run.id == first.run.id


def test_a_run_that_was_named_outright_is_only_found_by_that_name(tmp_path):
    begin(config_of(tmp_path, "run.id=mine"))
    assert named(tmp_path)[1] is None


def test_new_keys_are_one_line(tmp_path):
    first = config_of(tmp_path, "~model.dropout", "seed=3")
    begin(first)
    config, _ = named(tmp_path, "seed=3")
    assert config.continuation == f"Continues {first.run.id}: model.dropout=0 (new)."


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["optimizer.lr=0.5", "seed=4"], "optimizer.lr: 0.003 -> 0.5, seed: 3 -> 4"),
        (["optimizer=sgd"], "optimizer: adamw -> sgd, seed: 3 -> 0"),
        (["strategy=ddp"], "strategy: auto -> ddp, seed: 3 -> 0"),
        (["seed=3", f"+hooks.own={{_target_:{OWN_HOOK},a:1}}"], "hooks.own={_target_:"),
        (["seed=3", "~model.dropout", "device=cpu"], None),
        (["optimizer=sgd", "trainer.max_steps=1", "data.batch_size=2"], None),
    ],
)
def test_a_new_run_names_the_nearest_one(tmp_path, overrides, changes):
    first = config_of(tmp_path, "seed=3")
    begin(first)
    best = {"metric": "val/loss", "value": 1.5, "step": 1}
    replace(first.folder.path, state="completed", best=best)
    config = config_of(tmp_path, *overrides)
    record = begin(config).data
    line = describe_nearest_run(config.folder.path, record)
    beginning = f"New run. The nearest is {first.run.id} (completed, val/loss 1.5); {changes}"
    assert line is None if changes is None else str(line).startswith(beginning)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a${}\\:.", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c.d"]), inner, max_size=3)
    ),
)


@settings(max_examples=40)
@given(tree=JSON)
def test_an_identity_survives_every_form_in_which_a_configuration_is_stored(tree):
    run = {"id": "${launcher.id:}", "name": "n", "dir": "d", "identity_exclude": []}
    config: Any = OmegaConf.create({**config_to_store({}, {"own": tree}), "run": run})
    named, _ = read(config)
    before = read_identity(named.plain["run"])
    assert before is not None and before[0] == named.run.id
    frozen = json.loads(json.dumps(named.stored))  # as a submission has it
    assert read_identity(from_stored(frozen).plain["run"]) == before
    with TemporaryDirectory() as folder:  # as ranks get it
        named.save(Path(folder) / "job.yaml")
        again = load_job(Path(folder) / "job.yaml")
    assert read_identity(again.plain["run"]) == before
    assert repr(again.plain) == repr(named.plain) and repr(again.stored) == repr(named.stored)
