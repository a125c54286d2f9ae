"""The examples of the documentation are run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from support import python
from support.composition import composed, validate
from support.paths import ROOT


def test_the_subclass_example_runs_and_resumes(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/trainer.md").read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    for said in ("Step 100/100", "Resuming from runs/demo/checkpoints/step-00000100"):
        done = python.run("train.py", cwd=tmp_path, check=True)
        assert said in done.stderr


CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
"""A block with a title is a file that the commands below it use."""
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [page for page in [ROOT / "README.md", *DOCS] if CONSOLE.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_commands_print_what_the_page_shows(page, tmp_path, tmp_path_factory):
    """The files and commands of a page one after the other in one folder. The output is as shown,
    where `...` stands for anything: alone for any lines, within a line for any of its text."""
    folder = tmp_path_factory.mktemp("bin")
    command = python.command(folder, PRELOADED.get(page.stem, ()), CHILDREN.get(page.stem, ()))
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    shell |= {python.PYTHON: str(command), "PATH": path}
    for language, title, block in BLOCK.findall(page.read_text()):
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(block)
        if language != "console":
            continue
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = shown.partition("\n")
            printed = output(command, shell, tmp_path)
            assert re.fullmatch(pattern(expected), plain(printed)), f"$ {command}\n{printed}"
            # A page on losses has a hook that loses its count.
            assert "would start over" not in printed or page.stem == "prove"


PRELOADED = {
    **dict.fromkeys(("fine_tuning", "lora", "gpt124m"), python.TRANSFORMERS),
    **dict.fromkeys(("images", "template"), ("sklearn.datasets",)),
}
"""Modules that a page's commands import."""
CHILDREN = {
    "prove": (("launcher.dispatch.child_job guard_job.py", 4),),
    "search": (("launcher.dispatch.child_job", 8),),
}
"""Processes that each of a page's commands starts."""


def output(command: str, shell: dict[str, str], cwd: Path) -> str:
    """Output of a command."""
    both: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    words = ["bash", "-c", command]
    return str(subprocess.run(words, cwd=cwd, env=shell, timeout=400, **both).stdout)


ONES_OWN = re.compile(r"=first\b|=mine\b|\.\.\.|<|--config-|my_|path/to|hydra/|--info|--help")
"""Pattern of commands that need a reader's own files, or that only show something."""

AFTER_FIRST = re.compile(r",(?![^\[]*\]).*")
"""The further values of a sweep; a comma within brackets belongs to a list."""


def commands() -> list[str]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "slurm/lab/README.md"]
    blocks = [
        block
        for page in pages
        for language, title, block in BLOCK.findall(page.read_text())
        if language in ("", "bash", "sh") and not title
    ]
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if line.startswith("python -m launcher ")]
    return sorted({line for line in lines if not ONES_OWN.search(line)})


@pytest.mark.parametrize("command", commands())
def test_commands_are_valid(command, tmp_path, monkeypatch):
    """Each would be accepted: the words are those of today's configuration."""
    monkeypatch.chdir(tmp_path)
    for file in ("corpus/a/b.txt", "tokens/train.npy", "tokens/val.npy"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    words = [word for word in split(command, comments=True)[3:] if "=" in word or word[0] == "~"]
    words = [
        f"'{word}'" if re.match(r"run.(id|init_from)=\d", word) else AFTER_FIRST.sub("", word)
        for word in words
    ]
    validate(composed(words))


def pattern(expected: str) -> str:
    lines = plain(expected).splitlines()
    return "".join(
        r"(?:.*\n)*" if line == "..." else "[^\n]*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in lines
    )


def plain(text: str) -> str:
    """Lines without the padding of a table at their end."""
    return "".join(line.rstrip() + "\n" for line in text.splitlines())
