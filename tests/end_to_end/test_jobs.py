"""job=evaluate and job=export on a run that job=train left."""

import json
import shutil
from shlex import split

import pytest
from safetensors.torch import load_file

from launcher import load_model
from launcher.checkpoint.stored import StoredCheckpoint
from support import python
from support.composition import id_of
from support.runner import launch, run_folder

COMMAND = split(
    "model=mlp data=digits model.hidden_dim=24 trainer.max_steps=8 hooks.evaluation.interval=4"
    " hooks.evaluation.max_samples=100"
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    launch(folder, *COMMAND, code=0)
    return folder


def test_evaluate_gives_what_training_logged(outputs):
    folder = run_folder(outputs)
    words = ("evaluate", folder.name, "job.checkpoint=8", "--outputs", str(outputs))
    done = python.run("-m", "launcher.runs", *words, check=True)
    assert "job=evaluate" in done.stderr, "the command that it runs"
    found = json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (then,) = [line for line in logged if line["step"] == found["step"]]
    assert found["val/loss"] == then["val/loss"] and found["val/accuracy"] == then["val/accuracy"]
    assert json.loads(done.stdout.splitlines()[-1]) == found


def test_resume_runs_the_command_again(outputs):
    run = run_folder(outputs)
    done = python.run("-m", "launcher.runs", "resume", run.name, "--outputs", str(outputs))
    assert done.returncode == 0 and f"{run} is complete" in done.stdout + done.stderr, done.stderr
    assert f"python -m launcher {' '.join(COMMAND)} run.name=" in done.stderr


def test_export_is_the_checkpoint(outputs):
    launch(outputs, *COMMAND, "job=export", code=0)
    exported = load_file(run_folder(outputs) / "export" / "model.safetensors")
    stored = StoredCheckpoint(run_folder(outputs) / "checkpoints" / "latest")
    assert exported
    assert all((tensor == stored.read(f"model/{name}")).all() for name, tensor in exported.items())
    run = run_folder(outputs)
    for folder in (run, run / "checkpoints" / "latest", run / "export"):
        loaded = load_model(folder).state_dict()
        assert loaded.keys() == exported.keys()
        assert all((loaded[name] == exported[name]).all() for name in exported)
    launch(outputs, *COMMAND, "job=export", "job.dtype=bf16", code=0)
    tensors = load_file(run_folder(outputs) / "export" / "model.safetensors").values()
    assert {str(tensor.dtype) for tensor in tensors} == {"torch.bfloat16"}


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_export_has_tied_weights_under_all_their_names(tmp_path, ranks):
    command = ("model=supervised", "model.module={_target_:support.modules.TiedLayers}")
    command += ("data=digits", "trainer.max_steps=2", f"dispatch.nproc={ranks}", "device=cpu")
    for job in ("train", "export"):
        done = launch(tmp_path, *command, f"job={job}", code=0)
    run = run_folder(tmp_path)
    assert "model.safetensors: 8 tensors of step 2." in done.output
    exported = load_file(run / "export" / "model.safetensors")
    model, copy = load_model(run), load_model(run / "export")
    model.load_state_dict(exported)
    assert copy.module.second.weight is copy.module.first.weight
    copied = copy.state_dict()
    assert all((tensor == copied[name]).all() for name, tensor in model.state_dict().items())


def test_a_new_run_from_its_weights(outputs, tmp_path):
    run = run_folder(outputs)
    done = launch(tmp_path, *COMMAND, "seed=7", f"run.init_from={run}", code=0)
    assert "Weights from" in done.output
    first = json.loads((run_folder(tmp_path) / "metrics.jsonl").read_text().splitlines()[0])
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = min(line["val/loss"] for line in logged if "val/loss" in line)
    assert first["step"] == 0 and first["val/loss"] == pytest.approx(best, rel=1e-6)


def test_job_without_a_checkpoint_is_one_message(tmp_path):
    done = launch(tmp_path / "outputs", *COMMAND, "job=evaluate", code=2)
    assert "job.checkpoint=latest" in done.output and "Traceback" not in done.output
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_the_configuration_is_the_checkpoints(outputs):
    """A command line without the run's sizes is enough; one that contradicts them is rejected."""
    folder = run_folder(outputs)
    short = ("model=mlp", "data=digits", "job=export", f"run.id={folder.name}")
    launch(outputs, *short, code=0)
    expected = (folder / "checkpoints/latest/config.yaml").read_text()
    assert (folder / "export/config.yaml").read_text() == expected
    other = launch(outputs, *short, "model.hidden_dim=64", "model.dropout=0.0", code=2)
    assert "Traceback" not in other.output, other.output
    assert "model.hidden_dim=64: the checkpoint" in other.output
    assert "has model.hidden_dim=24" in other.output
    assert "model.dropout" not in other.output, "which is equal"


def test_a_copy_whose_links_are_lost_and_a_damaged_checkpoint(outputs, tmp_path):
    shutil.copytree(outputs, tmp_path / "copy", symlinks=True)
    folder = run_folder(tmp_path / "copy")
    for link in ("latest", "best"):
        (folder / "checkpoints" / link).unlink()
    launch(tmp_path / "copy", *COMMAND, "job=evaluate", "job.checkpoint=best", code=0)
    (folder / "checkpoints" / "step-00000008" / "state.json").write_text("{}")
    for job in ("evaluate", "export"):
        rejected = launch(tmp_path / "copy", *COMMAND, f"job={job}", code=2)
        assert "Traceback" not in rejected.output, rejected.output
        assert "step-00000008 is damaged: state.json has 2 bytes" in rejected.output


def test_the_average_in_place_of_the_weights(tmp_path):
    command = [*COMMAND, "hooks=[default,ema]", "hooks.ema.decay=0.5", "hooks.ema.evaluate=true"]
    for job in ([], ["job=evaluate", "job.weights=ema"], ["job=export", "job.weights=ema"]):
        launch(tmp_path, *command, *job, code=0)
    folder = run_folder(tmp_path)
    evaluated = json.loads((folder / "evaluations.jsonl").read_text())
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert evaluated["weights"] == "ema" and evaluated["val/loss"] == logged[-1]["val/loss"]
    exported = load_file(folder / "export" / "model.safetensors")
    stored = StoredCheckpoint(folder / "checkpoints" / "latest")
    names = [name.removeprefix("ema/0.5/") for name in stored.names() if name.startswith("ema/")]
    assert set(names) == set(exported)
    assert all((exported[name] == stored.read(f"ema/0.5/{name}")).all() for name in names)


def test_the_test_set_is_evaluated_only_when_it_is_chosen(outputs, tmp_path):
    points = "support.modules.Points"
    command = split(
        "model=supervised model.loss=mse model.module._target_=torch.nn.Linear"
        " model.module.in_features=1 model.module.out_features=1 device=cpu trainer.max_steps=2"
        f" data=custom data.dataset._target_={points} data.dataset.size=8 data.batch_size=4"
        f" data.val_dataset={{_target_:{points},size:4}}"
    )
    test_set = f"data.test_dataset={{_target_: {points}, size: 6}}"
    launch(tmp_path, *command, test_set, code=0)
    folder = run_folder(tmp_path)
    assert "test/" not in (folder / "metrics.jsonl").read_text()
    words = ("evaluate", folder.name, "job.split=test", "--outputs", str(tmp_path))
    done = python.run("-m", "launcher.runs", *words, check=True)
    line = json.loads(done.stdout.splitlines()[-1])
    stored = StoredCheckpoint(folder / "checkpoints" / "latest")
    slope, bias = (stored.read(f"model/module.{name}").item() for name in ("weight", "bias"))
    errors = [(slope * x + bias - 2 * x) ** 2 for x in (index / 6 for index in range(6))]
    assert line["test/loss"] == pytest.approx(sum(errors) / 6, rel=1e-5)
    assert "val/loss" not in line
    assert id_of(*command) == folder.name, "it does not decide the numbers"
    without = launch(outputs, *COMMAND, "job=evaluate", "job.split=test", code=2)
    assert "job.split=test: the data have no such samples; set data.test_dataset" in without.output
