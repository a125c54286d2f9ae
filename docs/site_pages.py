"""A hook of mkdocs that makes pages of files at the top of the repository.

Links work in both places.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "results.md",
}
REPOSITORY_FILE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")
"""A link to a file that the site does not have: its text stays."""
LOADED = re.compile(r"<(?:script|link|img)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
"""Tags that would load something from the network."""


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        content = (
            (ROOT / name)
            .read_text(encoding="utf-8")
            .replace("](../docs/", "](")
            .replace("](docs/", "](")
        )
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}").replace(f"]({name}", f"]({page}")
    return REPOSITORY_FILE.sub(r"\1", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if loaded := LOADED.search(output):
        raise PluginError(
            f"{page.file.src_uri}: {loaded[0]}: the site should work without a network."
        )
    return output


# After the plugins, which write these files.
@event_priority(-200)
def on_post_build(config: Any) -> None:
    for name in ("search/search_index.js", "iframe-worker.js"):
        if not Path(config.site_dir, name).is_file():
            raise PluginError(
                f"The site has no {name}: its search does not work in a browser that opens it as a"
                " file."
            )
