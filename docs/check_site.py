"""Open each page of build/site in headless Chromium, and report what a reader would stumble over.

    python docs/check_site.py [--pictures]

The pages are 400, 768 and 1280 pixels wide. Nothing may be wider than its page or lie over
something else, the search must find a page, and each address of `docs/addresses.txt` must exist.
`--pictures` writes the pictures of `docs/pictures/site/`, to be looked at. `make docs` runs it
where Chromium is installed.
"""

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SITE = DOCS.parent / "build" / "site"
ADDRESSES = DOCS / "addresses.txt"
PICTURES = DOCS / "pictures" / "site"
WIDTHS = (400, 768, 1280)
SHOWN = ("index", "migrate")
"""The pages of the pictures."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in BROWSERS if (path := shutil.which(name))), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-component-update", "--disable-background-networking", "--disable-sync"),
    "--hide-scrollbars",
)
PROBE = """<!doctype html>
<iframe id="frame" style="width: %(width)dpx; height: 900px; border: 0"></iframe>
<pre id="result"></pre>
<script>
const pages = %(pages)s, problems = [], frame = document.getElementById("frame");
let next = 0, found = null;
const clipped = (element, style) => {
  for (let e = element; e; e = e.parentElement) if (style(e).overflowX !== "visible") return true;
  return false;
};
const named = e => e.tagName + " " + e.textContent.trim().slice(0, 40);
// Boxes that hold text or a picture, from the top: two of them overlap, unless one is in the other.
function overlaps(root, style) {
  const kinds = "p, li, td, th, h1, h2, h3, h4, pre, img, .md-code__button";
  const boxes = [...root.querySelectorAll(kinds)]
    .filter(e => style(e).visibility !== "hidden" && !e.closest("[hidden], .md-search"))
    .map(e => [e, e.getBoundingClientRect()]).filter(([, box]) => box.width && box.height)
    .sort(([, a], [, b]) => a.top - b.top);
  const bad = [];
  boxes.forEach(([one, a], i) => {
    for (let j = i + 1; j < boxes.length && boxes[j][1].top < a.bottom - 3; j++) {
      const [other, b] = boxes[j], across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const [first, second] = [one, other].map(e => e.closest(".md-typeset__scrollwrap"));
      if (across > 3 && first === second && !one.contains(other) && !other.contains(one))
        bad.push(named(one) + " and " + named(other));
    }
  });
  return bad;
}
frame.onload = () => setTimeout(async () => {
  const style = e => frame.contentWindow.getComputedStyle(e);
  const root = frame.contentDocument.documentElement, page = pages[next - 1];
  if (root.scrollWidth > root.clientWidth) problems.push([page, "wider than its window"]);
  for (const e of root.querySelectorAll(".md-content *")) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > root.clientWidth + 1 && !clipped(e, style))
      problems.push([page, "wider than the page: " + named(e)]);
  }
  for (const pair of overlaps(root.querySelector(".md-content"), style))
    problems.push([page, "overlap: " + pair]);
  if (found === null) found = await search(root);
  step();
}, 50);
async function search(root) {
  const input = root.querySelector(".md-search__input");
  input.focus();
  input.value = "preempted";
  for (let tries = 0; tries < 50; tries++) {
    input.dispatchEvent(new Event("keyup"));
    await fetch("/wait");  // The search is a worker, for which the time of the page does not wait.
    const count = root.querySelectorAll(".md-search-result__item").length;
    if (count) { root.querySelector("#__search").checked = false; return count; }
  }
  return 0;
}
function step() {
  if (next < pages.length) frame.src = pages[next++];
  else document.getElementById("result").textContent =
    JSON.stringify({problems, count: next, found});
}
step();
</script>"""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on this machine, so that pages can be read in frames, and searched."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print no line for each file."""

        def do_GET(self) -> None:
            if self.path == "/wait":
                time.sleep(0.2)
            super().do_GET()

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def browse(*words: str) -> str:
    """Return what Chromium prints."""
    with tempfile.TemporaryDirectory() as profile:
        command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=600).stdout


def problems(site: Path) -> Iterator[str]:
    """Yield a line for each thing that a reader would stumble over."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    for address in ADDRESSES.read_text().split():
        if address not in pages:
            yield f"{address}: an address that was published, and is gone"
    for width in WIDTHS:
        probe = site / "probe.html"
        probe.write_text(PROBE % {"width": width, "pages": json.dumps(pages)})
        with served(site) as address:
            words = ("--virtual-time-budget=120000", f"--window-size={max(width, 500) + 40},1000")
            printed = browse(*words, "--dump-dom", f"{address}/probe.html")
        probe.unlink()
        found = re.search(r'<pre id="result">(.+?)</pre>', printed, re.DOTALL)
        if found is None:
            yield f"{width} pixels: Chromium did not read the pages"
            continue
        result = json.loads(html.unescape(found[1]))
        if result["count"] != len(pages):
            yield f"{width} pixels: Chromium read {result['count']} of {len(pages)} pages"
        if not result["found"]:
            yield f"{width} pixels: the search finds nothing"
        for page, problem in result["problems"]:
            yield f"{page}, {width} pixels: {problem}"


def take_pictures(site: Path) -> None:
    """Write a picture of the first screen of each page of `SHOWN` at each width.

    A window of Chromium is at least 500 pixels wide, so the page is in a frame.
    """
    PICTURES.mkdir(exist_ok=True)
    frame = site / "frame.html"
    for page in SHOWN:
        for width in WIDTHS:
            style = f"width: {width}px; height: 1000px; border: 0; position: fixed; left: 0; top: 0"
            frame.write_text(f'<!doctype html><iframe src="{page}.html" style="{style}"></iframe>')
            picture = PICTURES / f"{page}-{width}.png"
            with served(site) as address:
                words = ("--virtual-time-budget=5000", f"--window-size={width},1000")
                browse(*words, f"--screenshot={picture}", f"{address}/frame.html")
            print(picture)
    frame.unlink()


def main() -> int:
    if CHROMIUM is None:
        print("No Chromium: widths, overlaps and the search of the pages are not checked.")
        return 0
    if "--pictures" in sys.argv:
        take_pictures(SITE)
    found = list(problems(SITE))
    print("\n".join(found), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
