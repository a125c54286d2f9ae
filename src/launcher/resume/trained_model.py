"""Load a trained model in your own program."""

from pathlib import Path

from hydra.errors import InstantiationException
from torch import nn

from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.checkpoint.manifest import NAME as MANIFEST
from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.checkpoint.shards import ShardReader
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.config.construct import instantiate
from launcher.config.explain import explain
from launcher.config.run_config import resolve_node
from launcher.config.trust import read_config
from launcher.errors import ConfigError, TrainingError
from launcher.models.own_memory import give_own_memory
from launcher.process.files import expand
from launcher.resume.weights_source import fit_names
from launcher.rundir.folder import RunFolder, find_folders, run_name
from launcher.strategies.weights import load_weights, model_tensors, names_of_tied

EXPORTED = "model.safetensors"
SHARDS = "model-*-of-*.safetensors"


def load_model(
    run: str | Path,
    checkpoint: str | int = "latest",
    weights: str | None = None,
    outputs: str | Path = "outputs",
    trust: bool = False,
) -> nn.Module:
    """Load the model of a run, a checkpoint or an export, on the CPU and in evaluation mode.

    `config.yaml` in the folder names the class and the arguments. The class must be importable, so
    the project's folder is the current one, or on PYTHONPATH. Building the model runs the code of
    that class, so you must have signed `config.yaml`, as each of your runs does, or it must name
    parts of Launcher only.

    Args:
        run: the id of a run, the beginning of its id, its name, `<name>/<id>`, or the folder of a
            run, of a checkpoint, or an export.
        checkpoint: a run's checkpoint: latest, best or a step.
        weights: an average of `hooks.ema`, as `ema`, or `ema/0.999` if there are several. Default
            None: the weights themselves, which are the only ones that an export has.
        outputs: the folder of the runs, to find one by its id.
        trust: build any other class too. Use it only for the runs of an author whom you trust.
    Raises:
        ConfigError: there is no such run or checkpoint, it is damaged, its class cannot be imported
            or is not allowed, or the weights do not fit the class.
    """
    path = _folder(run, expand(outputs))
    exported = [path / EXPORTED] if (path / EXPORTED).exists() else sorted(path.glob(SHARDS))
    if exported and weights is not None:
        raise ConfigError(
            f"weights={weights}: {path} is an export; set job.weights when exporting."
        )
    is_checkpoint = (path / MANIFEST).exists()
    if (exported or is_checkpoint) and checkpoint != "latest":
        raise ConfigError(f"checkpoint={checkpoint}: {path} is not a run; name the run's folder.")
    if not exported:
        which = path if is_checkpoint else checkpoint
        path = find_checkpoint(RunFolder(path).checkpoints, which, "checkpoint", hashes=False)
    return _load(path, exported, weights, trust)


def _load(path: Path, exported: list[Path], weights: str | None, trust: bool) -> nn.Module:
    """Load the files of an export in a folder, or the checkpoint that the folder is."""
    try:
        model = _build(path / "config.yaml", trust)
        if exported:
            names = [*model_tensors(model), *names_of_tied(model)]
            saved = fit_names(ShardReader(exported), names)
        else:
            saved = StoredCheckpoint(path).use_weights(weights)
        give_own_memory(model)
        load_weights(model, saved)
    except (CorruptCheckpoint, TrainingError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return model.eval()


def _folder(run: str | Path, outputs: Path) -> Path:
    """Find the folder that a path or the name of a run in `outputs` means."""
    path = expand(run)
    is_one = any((path / name).exists() for name in ("checkpoints", MANIFEST, EXPORTED)) or any(
        path.glob(SHARDS)
    )
    folders = [path] if is_one else find_folders(outputs, str(run))
    if len(folders) == 1:
        return folders[0]
    if folders:
        names = ", ".join(run_name(folder) for folder in folders[:8])
        problem = f"names {len(folders)} runs, {names}; write name/id, or more of the id"
    elif path.is_dir():
        problem = f"this folder has no checkpoint and no {EXPORTED}"
    else:
        problem = (
            f"there is no such folder, and no run of this id in {outputs}; another folder of runs"
            " is given with outputs=..."
        )
    raise ConfigError(f"load_model('{run}'): {problem}")


def _build(file: Path, trust: bool) -> nn.Module:
    # The checkpoint of a `BaseTrainer` has no configuration.
    if not file.exists():
        raise ConfigError(
            f"{file}: does not exist; build the model yourself, and load the tensors into it."
        )
    config = read_config(file, trust, ["model"], "trust=True")
    try:
        model: nn.Module = instantiate(resolve_node(config, "model"), "model")
    except (InstantiationException, ConfigError) as error:
        if not (messages := explain(error)):
            raise
        raise ConfigError(*(f"{file}: {message}" for message in messages)) from error
    return model
