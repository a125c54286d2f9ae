"""Pages keep their addresses, and tables of results say where they are from."""

import re

import yaml

from support.paths import ROOT

RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text()
MARK = re.compile(r"^\*\d{4}-\d\d-\d\d, [0-9a-f]{8}: .+, torch [\d.+cu]+\.\*$", re.MULTILINE)
"""A date, a commit, a processor or card, and torch."""


def pages_of(menu):
    """The pages of a part of the menu."""
    if isinstance(menu, str):
        return [menu.replace(".md", ".html")]
    items = menu.values() if isinstance(menu, dict) else menu
    return [page for item in items for page in pages_of(item)]


def test_each_page_of_the_menu_has_an_address_that_stays():
    """`docs/check_site.py` fails if a published address is gone from the site."""
    menu = re.search(r"^nav:\n(.*)", (ROOT / "mkdocs.yml").read_text(), re.DOTALL | re.MULTILINE)
    assert menu
    addresses = (ROOT / "docs" / "addresses.txt").read_text().split()
    assert addresses == sorted(addresses)
    assert sorted(pages_of(yaml.safe_load(menu[1]))) == addresses


def test_each_table_of_results_has_a_date_a_commit_and_a_machine():
    """But for the first, which is of the others."""
    before = re.split(r"^(?:\|.*\n)+", RESULTS, flags=re.MULTILINE)
    for number, text in enumerate(before[1:-1], 1):
        heading = re.findall(r"^## (.+)", "".join(before[: number + 1]), re.MULTILINE)[-1]
        assert MARK.search(text), f"{heading}: no line like *2026-11-28, f0b18f1b: AMD EPYC, ...*"


def test_readme_says_what_matters_first():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 140
    assert lines.index("## Install") < lines.index("## Your code")
