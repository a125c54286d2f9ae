"""A page as a browser renders it."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium to render the page"
)


def in_browser(report: Path, folder: Path, actions: str) -> Any:
    """The result that actions (a script) write into `data-result` once the page is drawn."""
    page = folder / "page.html"
    script = f"try {{ {actions} }} catch (error) {{ document.body.dataset.result = error.stack; }}"
    page.write_text(report.read_text().replace("</body>", f"<script>{script}</script></body>"))
    flags = (
        "--headless=new --no-sandbox --disable-gpu --enable-unsafe-swiftshader --dump-dom",
        f"--window-size=1200,900 --user-data-dir={folder}/profile",
    )
    command = [str(CHROMIUM), *" ".join(flags).split(), page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    (body,) = re.findall(r"<body[^>]*>", done.stdout)
    assert "data-ready=" in body and "data-broken" not in body, done.stderr[-2000:]
    (written,) = re.findall(r'data-result="([^"]*)"', body)
    assert written.startswith("{"), html.unescape(written)
    return json.loads(html.unescape(written))
