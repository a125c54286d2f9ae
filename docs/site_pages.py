"""A hook of mkdocs: files at the top of the repository become pages of the site; links work in both places."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
REPOSITORY_FILE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")
"""A link to a file that the site does not have: its text stays."""


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        content = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}").replace(f"]({name}", f"]({page}")
    return REPOSITORY_FILE.sub(r"\1", markdown)
