"""A reference is hashed by what it means: without the places of a project and its runs."""

import os

import pytest
from omegaconf import OmegaConf

from launcher.config.compose.composer import compose
from launcher.config.identity.difference import diff
from launcher.config.identity.record_entry import read_identity
from launcher.config.identity.run_id import digest, identity_to_hash
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.run_config import read
from support.composition import composed, mistakes

PLACES = {
    "the outputs": "${paths.outputs}/.tokens",
    "the run's folder": "${run.dir}/cache",
    "the id": "x-${run.id}",
    "a path of both": "${launcher.path:${paths.outputs}}/${run.name}/x",
    "the working folder": "${hydra:runtime.cwd}/data",
    "the output folder": "${hydra:runtime.output_dir}",
    "a variable with the working folder": "${oc.env:PWD}/data",
    "a variable below the working folder": "${oc.env:DATA}",
    "a key with the working folder": "${paths.data}/x",
    "a node with the working folder": "${hydra:runtime}",
    "a path that is made absolute": "${launcher.absolute:data}",
    "a reference to a reference": "${own.first}",
}
VALUES = {
    "a number of the run": "${run.note}",
    "a number of the paths": "${paths.seed}",
    "a choice of Hydra": "${hydra:runtime.choices.model}",
    "a text with the name of a place in it": "${paths.text}",
    "a list of the run": "${run.labels}",
    "a path below the working folder": "${paths.data}",
    "a variable": "${oc.env:ELSEWHERE}",
    "a tag": "run.tag",
}


def clone(folder, monkeypatch, **variables: str) -> None:
    """Go to a clone of a project, as a shell does."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    for name, value in ({"PWD": str(folder), "DATA": f"{folder}/set"} | variables).items():
        monkeypatch.setenv(name, value)


def identity_of(*overrides: str) -> tuple[str, dict]:
    """The id of a configuration and the identity, by both ways to them."""
    config = compose(["model=mlp", "data=digits", *overrides])
    run, issues = read(config)
    known = read_identity(run.plain["run"])
    assert not issues and known is not None
    # Now its id is one that was given, and the values have not been resolved before.
    assert digest(identity_to_hash(config, to_plain(config))) == known[0]
    return known


@pytest.mark.parametrize("written", PLACES.values(), ids=PLACES)
def test_two_clones_of_a_project_have_equal_ids(written, tmp_path, monkeypatch):
    own = (
        f"+own.key={written!r}", "+paths.data='${hydra:runtime.cwd}/set'",
        "+own.first='${hydra:runtime.cwd}/first'",
    )  # fmt: skip
    identities = []
    for folder in ("one/project", "other"):
        clone(tmp_path / folder, monkeypatch)
        identities.append(identity_of(*own))
        places = (f"paths.outputs={tmp_path}/runs", "run.name=mine", "run.id=typed")
        identities.append(identity_of(*own, *places))
    differences = [diff(identities[0][1], identity) for _, identity in identities]
    assert not any(differences) and len({id for id, _ in identities}) == 1


@pytest.mark.parametrize("written", VALUES.values(), ids=VALUES)
def test_values_that_differ_are_two_runs(written, tmp_path, monkeypatch):
    """They may begin with the same place, or be written alike."""
    ids = []
    for number, model in ((5, "mlp"), (6, "gpt")):
        clone(tmp_path, monkeypatch, ELSEWHERE=f"/data/{number}")
        (key, value) = ("run.tag", "${run.note}") if written == "run.tag" else ("+own.key", written)
        id, _ = identity_of(
            f"{key}={value!r}", f"run.note={number}", f"+paths.seed={number}",
            f"+paths.text=my-outputs-{number}", f"run.labels=[{number}]",
            f"+paths.data='{tmp_path}/set{number}'",
            *([f"model={model}", "data=text"] if "choices" in written else []),
        )  # fmt: skip
        ids.append(id)
    assert ids[0] != ids[1]


def test_an_equal_value_is_one_run_however_it_is_written(tmp_path, monkeypatch):
    clone(tmp_path, monkeypatch)
    words = ("run.note=5", "+paths.seed=5")
    seeds = ("5", "'${run.note}'", "'${paths.seed}'")
    assert len({identity_of(f"seed={seed}", *words)[0] for seed in seeds}) == 1


@pytest.mark.parametrize("folder", ["/", "a"])
def test_the_root_is_no_place(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder if folder == "/" else tmp_path)
    monkeypatch.setenv("ELSEWHERE", "/data/5")
    _, identity = identity_of("+own.key='${oc.env:ELSEWHERE}'")
    assert identity["own"]["key"] == "/data/5"


@pytest.mark.parametrize("override", [
    "seed=${hydra:job.num}", "run.tag=t${hydra:job.id}", "+own.key=[1,'${hydra:job.num}']",
    "+own.key=${run.note}", "+own.key=${hydra.job.num}",
])  # fmt: skip
def test_a_jobs_number_names_no_run(override):
    key = override.partition("=")[0].removeprefix("+")
    (message,) = [
        line for line in mistakes([override, "run.note=${hydra:job.num}"]) if "job's" in line
    ]
    assert message.startswith(f"{key}=") and message.endswith(f"; sweep {key} itself.")


def test_a_jobs_number_may_be_anywhere_else():
    assert not mistakes(["run.note=${hydra:job.num}", "dispatch.nproc=1"])


def test_what_a_start_accepts_names_no_run():
    without_hooks = "run.identity_exclude=[job,run,hydra,paths]"
    ids = {identity_of(without_hooks, f"run.resume={mode}")[0] for mode in ("auto", "must")}
    assert len(ids) == 1


def test_a_configuration_is_left_as_it_was():
    config = composed(["run.note=${hydra:job.num}"])
    before = to_plain(config.hydra.job)
    read(config)
    assert to_plain(config.hydra.job) == before and OmegaConf.is_missing(config.hydra.job, "num")
    assert os.getcwd()
