"""Open each page of build/site in headless Chromium, and report what overflows its page.

The pages are 400 and 1280 pixels wide. `make docs` runs it where Chromium is installed.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SITE = Path(__file__).resolve().parents[1] / "build" / "site"
WIDTHS = (400, 1280)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in BROWSERS if (path := shutil.which(name))), None)
PROBE = """<!doctype html>
<iframe id="frame" style="width: %(width)dpx; height: 900px; border: 0"></iframe>
<pre id="result"></pre>
<script>
const pages = %(pages)s, wide = [], frame = document.getElementById("frame");
let next = 0;
const clipped = (element, style) => {
  for (let e = element; e; e = e.parentElement) if (style(e).overflowX !== "visible") return true;
  return false;
};
frame.onload = () => setTimeout(() => {
  const style = e => frame.contentWindow.getComputedStyle(e);
  const root = frame.contentDocument.documentElement, page = pages[next - 1];
  if (root.scrollWidth > root.clientWidth) wide.push([page, "the page"]);
  for (const e of root.querySelectorAll(".md-content *")) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > root.clientWidth + 1 && !clipped(e, style))
      wide.push([page, e.tagName + " " + e.textContent.slice(0, 60)]);
  }
  step();
}, 50);
function step() {
  if (next < pages.length) frame.src = pages[next++];
  else document.getElementById("result").textContent = JSON.stringify({wide, count: next});
}
step();
</script>"""


def problems(site: Path, chromium: str) -> Iterator[str]:
    """Yield a line for each element that is wider than its page."""
    pages = [path.as_uri() for path in sorted(site.glob("*.html"))]
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder) / "probe.html"
            probe.write_text(PROBE % {"width": width, "pages": json.dumps(pages)})
            # The pages are frames of another file, which a browser otherwise does not let it read.
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-web-security"]
            options += ["--allow-file-access-from-files", "--virtual-time-budget=60000"]
            options += [f"--user-data-dir={folder}/profile", f"--window-size={width + 40},1000"]
            done = subprocess.run(
                [chromium, *options, "--dump-dom", probe.as_uri()], capture_output=True, text=True
            )
        found = re.search(r'<pre id="result">(.+?)</pre>', done.stdout, re.DOTALL)
        result = json.loads(html.unescape(found[1] if found else '{"wide": [], "count": 0}'))
        if result["count"] != len(pages):
            yield f"{width} pixels: Chromium read {result['count']} of {len(pages)} pages"
        for page, element in result["wide"]:
            yield f"{Path(page).name}, {width} pixels: wider than the page: {element}"


if __name__ == "__main__":
    if CHROMIUM is None:
        print("No Chromium: the width of the pages is not checked.")
        sys.exit()
    found = list(problems(Path(sys.argv[1]) if len(sys.argv) > 1 else SITE, CHROMIUM))
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
