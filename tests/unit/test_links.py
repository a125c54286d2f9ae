"""Links between the pages of the documentation."""

import re

import pytest

from support.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/RESULTS.md"])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)")


def anchors(text):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(target.read_text()), (
            f"{path}#{anchor}: no such heading"
        )


def test_the_first_page_leads_to_every_other_page():
    """docs/index.md for who reads on GitHub; the menu is what the site has."""
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"index.md"}
    assert pages <= {path for path, _ in LINK.findall((ROOT / "docs/index.md").read_text())}


def test_the_menu_of_the_site_has_every_page():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"([\w-]+\.md)$", menu, re.MULTILINE))
    made = {"contributing.md", "changelog.md", "security.md", "results.md"}
    assert listed == made | {page.name for page in ROOT.glob("docs/*.md")}
