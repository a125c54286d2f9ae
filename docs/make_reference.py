"""Writes docs/reference.md from conf/ and the signatures: `make reference`."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import launcher
from launcher.config.options import main_folder
from launcher.config.schema.reference import Key, all_groups, top_keys

HEAD = """\
# Reference: groups and keys

Made by `make reference` from `conf/` and the constructors' signatures;
`python -m launcher --help GROUP` shows the same.
A key with a + is not in the YAML file: `key=value` adds it.
Each key has an anchor, `#optimizer.lr`.
Where several options of a group have the key, this is the first of them,
and `#optimizer=sgd:lr` is another.
"""


def reference() -> str:
    """The page."""
    parts, known = [HEAD], set[str]()
    for group, options in all_groups([main_folder()]).items():
        parts.append(f"## {group}\n")
        for option in options:
            parts.append(f"### {option.group}={option.name}\n")
            if option.comment:
                parts.append(re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", option.comment) + "\n")
            if option.target:
                parts.append(f"`{option.target}`\n")
            if option.includes:
                parts.append(f"Includes `{' '.join(option.includes)}`.\n")
            parts.append(table(option.keys, known, f"{option.group}={option.name}"))
    parts += ["## Keys of no group\n", table(top_keys(main_folder()), known, "")]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def table(keys: Iterable[Key], known: set[str], option: str) -> str:
    """The rows of an option, each with an anchor of its own."""
    rows = []
    for key in keys:
        name = key.name if key.is_set else f"+{key.name}"
        group = option.partition("=")[0]
        short = key.name.removeprefix(f"{group}.")
        anchor = key.name if key.name not in known else f"{option}:{short}"
        known.add(anchor)
        rows.append(
            f'| <a id="{anchor}"></a>`{name}`'
            f" | `{shortened(key.default)}` | {cell(key.comment)} | {cell(key.type)} |"
        )
    return (
        "\n".join(["| key | default | meaning | type |", "|---|---|---|---|", *rows, ""])
        if rows
        else ""
    )


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("_", "\\_")


def shortened(text: str) -> str:
    return (text if len(text) <= 60 else f"{text[:56]} ...").replace("|", "\\|")


if __name__ == "__main__":
    # A file that does not parse has no signatures, and its keys would have no types.
    for source in Path(launcher.__path__[0]).rglob("*.py"):
        ast.parse(source.read_bytes(), str(source))
    (Path(__file__).parent / "reference.md").write_text(reference(), encoding="utf-8")
