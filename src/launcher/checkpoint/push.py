"""Push an export to the Hugging Face Hub, with a card that says which run it is."""

import json
import logging
import re
import shlex
from collections.abc import Iterable
from importlib.util import find_spec

from launcher.checkpoint.shards import ShardReader
from launcher.checkpoint.stored import digest_weights
from launcher.config.tree import Node
from launcher.errors import ConfigError
from launcher.process.files import replace_file
from launcher.rundir.folder import RunFolder
from launcher.rundir.history import read_rows
from launcher.rundir.run_on_disk import RunOnDisk

logger = logging.getLogger("launcher")

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
CARD = """\
---
library_name: torch-launcher
---

# {name}

| | |
|---|---|
| run | `{name}/{id}` |
| step | {step} |
| SHA-256 of the weights | `{digest}` |
{metrics}
```
{command}
```

The digest is over names, dtypes, shapes and bytes: `python -m launcher.runs checkpoints --digest`
prints it for a checkpoint. `config.yaml` is the whole configuration.
"""


def check_repository(key: str, repository: str | None) -> None:
    """Check the name of a repository, and that it can be pushed to."""
    if repository is None:
        return
    if not REPOSITORY.fullmatch(repository):
        raise ConfigError(f"{key}={repository}: should be owner/name, as on the Hub.")
    if find_spec("huggingface_hub") is None:
        raise ConfigError(
            f"{key}={repository}: needs huggingface_hub; pip install 'torch-launcher[huggingface]'."
        )


def push(
    key: str, repository: str, folder: RunFolder, step: int, unwritten: Iterable[Node] = ()
) -> None:
    """Push the files of a run's export; a repository that does not exist is made, and private.

    The same files again change nothing. The token is the library's own affair: it reads HF_TOKEN,
    or what `hf auth login` has stored. The card has the metrics of the step in metrics.jsonl, and
    in `unwritten`, the lines that it does not have yet.
    """
    from huggingface_hub import HfApi

    # The Hub's client would log a line for each request; httpx2 is its newest version's.
    for client in ("httpx", "httpx2"):
        logging.getLogger(client).setLevel(logging.WARNING)
    replace_file(folder.export / "README.md", card(folder, step, unwritten).encode())
    hub = HfApi()
    try:
        hub.create_repo(repository, private=True, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repository,
            folder_path=folder.export,
            commit_message=f"{RunOnDisk.read(folder).label}, step {step}",
            # An earlier push may have had more shards.
            delete_patterns=["model*.safetensors", "model.safetensors.index.json"],
        )
    # The library raises errors of its own, of requests and of httpx, by its version.
    except Exception as error:
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{key}={repository}: {hub.endpoint} does not take it ({cause.rstrip('.')});"
            " the export is written, and the same command pushes it again."
        ) from error
    logger.info("%s/%s: step %d, commit %s.", hub.endpoint, repository, step, commit.oid)


def card(folder: RunFolder, step: int, unwritten: Iterable[Node] = ()) -> str:
    """Return the text of the card: the run, its digest, its metrics at the step, its command."""
    run = RunOnDisk.read(folder)
    files = sorted(folder.export.glob("model*.safetensors"))
    rows = [row for row in (*read_rows(folder.metrics_path), *unwritten) if row["step"] == step]
    metrics = dict(pair for row in rows for pair in row.items() if pair[0].startswith("val/"))
    overrides = run.record.get("overrides") or []
    return CARD.format(
        name=run.name,
        id=run.id,
        step=step,
        digest=digest_weights(ShardReader(files)),
        metrics="".join(f"| {name} | {json.dumps(value)} |\n" for name, value in metrics.items()),
        command=f"python -m launcher {shlex.join(overrides)}".rstrip(),
    )
