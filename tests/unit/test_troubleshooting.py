"""docs/troubleshooting.md lists messages as the source has them."""

import re

import pytest

from support.paths import ROOT

MESSAGES = re.findall(r"^\| `(.+?)` \| \S", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
SOURCE = " ".join(path.read_text() for path in sorted((ROOT / "src/launcher").rglob("*.py")))
TEXT = re.sub(r"""["']\s*f?["']""", "", SOURCE)  # a message over several lines as one text


@pytest.mark.parametrize("message", MESSAGES)
def test_the_source_has_the_message(message: str) -> None:
    parts = [part for part in message.replace("\\`", "`").split("...") if part.strip(" .;:'()")]
    assert parts and all(part.strip(" ;:'()") in TEXT for part in parts), parts
