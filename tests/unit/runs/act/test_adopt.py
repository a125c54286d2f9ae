"""A run can become the run of another configuration."""

from pathlib import Path

import pytest

from launcher.config.identity.lookup import RunIndex, check_identity
from launcher.errors import ConfigError
from launcher.rundir.record_format import read_record
from support.composition import run_of
from support.named_runs import begin, config_of

pytestmark = pytest.mark.slow

COMMAND = ("model=mlp", "data=digits")


def found(outputs: Path, *overrides: str) -> str:
    return run_of([*COMMAND, f"paths.outputs={outputs}", *overrides], RunIndex()).run.id


@pytest.fixture
def adopted(outputs):
    config = config_of(outputs)
    begin(config).end_attempt("preempted", end_step=0)
    return str(config.run.id)


def test_the_command_resumes_the_run_that_it_has_adopted(outputs, adopted, runs):
    code, output, _ = runs("adopt", adopted, "--", *COMMAND, "optimizer.lr=0.5", "seed=7")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert code == 0 and lines[:3] == ["identity before now", "optimizer.lr 0.003 0.5", "seed 0 7"]
    assert found(outputs, "optimizer.lr=0.5", "seed=7", "~model.dropout") == adopted
    record = read_record(outputs / "mlp-digits" / adopted / "run.json")
    assert record["identity"]["seed"] == 7 and record["identity_id"] != adopted == record["id"]
    with pytest.raises(ConfigError, match="seed: 7 -> 0"):
        check_identity(config_of(outputs).plain["run"])
    assert runs("adopt", adopted, *COMMAND)[0] == 0  # the first configuration again
    assert found(outputs) == adopted


def test_adopt_rejects_an_unfit_run_and_changes_nothing(outputs, adopted, runs):
    other = config_of(outputs, "seed=3")
    begin(other).end_attempt("preempted", end_step=0)
    assert runs("adopt", other.run.id, "--", *COMMAND, "seed=7")[0] == 0
    record = (outputs / "mlp-digits" / adopted / "run.json").read_bytes()
    for words, message in (
        ([*COMMAND, "run.name=mine"], "add run.name=mlp-digits."),
        ([*COMMAND, "optimizer.lr=x"], "optimizer.lr='x': should be a number"),
        ([*COMMAND, "seed=7"], f"{other.run.id} is the run of this configuration already"),
    ):
        code, _, error = runs("adopt", adopted, "--", *words)
        assert code == 2 and message in error and len(error.splitlines()) == 1
        assert (outputs / "mlp-digits" / adopted / "run.json").read_bytes() == record
