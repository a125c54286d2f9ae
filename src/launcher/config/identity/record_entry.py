"""Data that run.json stores about a configuration and the command that composed it."""

import json

from launcher.config.schema.hook_dependencies import COUNTING, uncounted_keys
from launcher.config.tree import Node, Tree, flat, get, map_leaves, of_the_run, pick, with_text_keys
from launcher.rundir.record_format import RecordData, json_value


def command_record(config: Node, hydra: Node | None) -> RecordData:
    """Return what a run stores of its command.

    `identity_id` is the id that the command gives; it is null for a run that `run.id=...` names.
    `uncounted` has the keys that change no number by what the classes declare now.
    """
    sources = get(hydra, "runtime.config_sources", [])
    folders = [source["path"] for source in sources if source["provider"] == "command-line"]
    run = get(config, "run", {})
    entry = read_identity(run)
    return {
        "overrides": None if hydra is None else get(hydra, "overrides.task", []),
        "choices": for_json(get(hydra, "runtime.choices", {})),
        "config_dir": folders[0] if folders else None,
        "config": for_json(flat(of_the_run(config))),
        "identity": None if entry is None else entry[1],
        "uncounted": sorted(uncounted_keys(*pick(config, COUNTING))),
        "identity_id": entry[0] if entry is not None and entry[0] == run.get("id") else None,
    }


def read_identity(run: Node) -> tuple[str, Tree] | None:
    """Return the id that a configuration gives its run and the identity, or None if not known."""
    text = run.get("identity")
    entry = None if text is None else json.loads(text)
    return None if entry is None else (entry["id"], entry["identity"])


def for_json(tree: Node) -> Tree:
    plain: Tree = with_text_keys(map_leaves(tree, lambda value, keys: json_value(value)))
    return plain
