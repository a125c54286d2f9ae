"""Links between the pages of the documentation."""

import re

import pytest

from support.paths import ROOT

DOCS = ROOT / "docs"
FURTHER = [ROOT / "benchmarks/RESULTS.md", ROOT / "slurm/lab/README.md"]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *FURTHER])
LINK = re.compile(r"\]\((?!https?:|mailto:|\.\./\.\./actions/)([^)#\s]*)#?([^)\s]*)\)")
"""A link to `../../actions/` leads to the workflow on the host of the repository."""


def anchors(text):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(target.read_text()), (
            f"{path}#{anchor}: no such heading"
        )
