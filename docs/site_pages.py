"""A hook of mkdocs that makes pages of further files of the repository, and `llms.txt`.

Links work in both places.
"""

import os
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
    "AGENTS.md": "agents.md",
    "benchmarks/RESULTS.md": "results.md",
    "slurm/lab/README.md": "slurm_lab.md",
}
LOADED = re.compile(r"<(?:script|link|img)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
"""Tags that would load something from the network."""


def on_config(config: Any) -> Any:
    """Add what only the published site has, since it would be loaded: versions and the address."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        address = f"{os.environ['GITHUB_SERVER_URL']}/{repository}"
        config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": address}]
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        content = (ROOT / name).read_text(encoding="utf-8")
        content = re.sub(r"\]\((?:\.\./)*docs/", "](", content)
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to their pages; of others, the text stays."""
    up = "../" * page.file.src_uri.count("/")
    for name, made in PAGES.items():
        for before in (f"../{up}{name}", name):
            markdown = markdown.replace(f"]({before}", f"]({up}{made}")
    outside = re.escape(f"../{up}")
    return re.sub(rf"\[([^\]]+)\]\({outside}[^)]+\)", r"\1", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Note the first sentence of each page for `llms.txt`."""
    text = re.search(r"<p>(.+?)</p>", html, re.DOTALL)
    words = re.sub(r"<[^>]+>", "", text[1]) if text else ""
    SUMMARIES[page.file.src_uri] = " ".join(re.split(r"(?<=\.)\s", words, maxsplit=1)[0].split())
    return html


SUMMARIES: dict[str, str] = {}


def on_nav(nav: Any, **_: Any) -> Any:
    ORDER[:] = [page.file for page in nav.pages]
    return nav


ORDER: list[File] = []


def llms_txt(config: Any) -> str:
    """Return the pages of the menu, with their first sentences, in the form of llmstxt.org."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    for file in ORDER:
        title = file.page.title
        lines.append(f"- [{title}]({file.url}): {SUMMARIES.get(file.src_uri, '')}".rstrip(": "))
    return "\n".join(lines) + "\n"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if loaded := LOADED.search(output):
        raise PluginError(
            f"{page.file.src_uri}: {loaded[0]}: the site should work without a network."
        )
    return output


# After the plugins, which write these files.
@event_priority(-200)
def on_post_build(config: Any) -> None:
    Path(config.site_dir, "llms.txt").write_text(llms_txt(config), encoding="utf-8")
    for name in ("search/search_index.js", "iframe-worker.js"):
        if not Path(config.site_dir, name).is_file():
            raise PluginError(
                f"The site has no {name}: its search does not work in a browser that opens it as a"
                " file."
            )
