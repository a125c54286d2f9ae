"""Find the checkpoint that `latest`, `best`, a step or a path names, or say why there is none."""

from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, is_small, verify
from launcher.checkpoint.store import BEST, LATEST, CheckpointStore
from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.rundir.folder import step_name


def find_checkpoint(root: Path, which: str | int | Path, key: str, hashes: bool = True) -> Path:
    """Return a verified checkpoint.

    Args:
        root: the `checkpoints` folder of a run.
        which: `latest`, `best`, a step (`1400` or `step-00001400`), or the folder of a checkpoint.
        key: the key that the user set, for messages (`job.checkpoint`).
        hashes: whether to verify the tensors, which are otherwise verified as they are loaded.
    """
    path = checkpoint_path(root, which)
    if path is None:
        raise missing_checkpoint(root, str(which), key)
    try:
        verify(path, hashes or is_small)
    except CorruptCheckpoint as error:
        raise damage_error(key, which, path, error) from error
    except OSError as error:
        raise ConfigError(f"{key}={which}: {path} cannot be read ({error}).") from error
    return path


def checkpoint_path(root: Path, which: str | int | Path) -> Path | None:
    """Return the folder of the checkpoint, not verified, or None if there is none."""
    store = CheckpointStore(root)
    name = str(which)
    if name == LATEST:
        if steps := store.steps_with_broken():
            return store.path(steps[-1])
        return None
    if name == BEST:
        return None if (best := store.best()) is None else store.path(best)
    if name.removeprefix("step-").isdecimal():
        named = store.path(int(name.removeprefix("step-")))
        if named.is_dir():
            return named
    folders = (expand(name), root / name, root.parent / name)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        return None
    target = folder.resolve()
    if target.parent == root.resolve():
        return root / target.name
    return folder


def damage_error(
    key: str, which: str | int | Path, path: Path, error: CorruptCheckpoint
) -> ConfigError:
    return ConfigError(
        f"{key}={which}: {path} is damaged: {error.problem}. Use another checkpoint."
    )


def has_checkpoints(
    store: CheckpointStore, key: str = "run.resume", another: str = "run.tag=<word>"
) -> ConfigError:
    """Return the error of `run.resume=never`, with a program's words for it and a new run."""
    return ConfigError(
        f"{key}=never: {store.root} has checkpoints up to step {store.steps()[-1]}; use {another}"
        f" for another run of the same configuration, or {key}=auto to resume this one."
    )


def has_no_checkpoint(store: CheckpointStore, key: str = "run.resume") -> ConfigError:
    """Return the error of `run.resume=must` in a run without checkpoints."""
    return ConfigError(f"{key}=must: {store.root} has no checkpoint; use {key}=auto.")


def missing_checkpoint(root: Path, which: str, key: str) -> ConfigError:
    steps = CheckpointStore(root).steps()
    if not steps:
        return ConfigError(f"{key}={which}: {root.parent} has no checkpoint.")
    names = ", ".join(map(step_name, steps))
    return ConfigError(f"{key}={which}: {root.parent} has no such checkpoint; it has {names}.")
