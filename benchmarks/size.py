"""Print the size of each package of src, and the share that a default run imports: `make size`."""

import ast
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
BRANCHES = ast.If, ast.IfExp, ast.ExceptHandler
SHARES = {"participles": "functions", "decisions": "statements", "reached": "code"}
COLUMNS = ("files", "lines", "code", "tokens", "functions", "over 40")
IRREGULAR = "built|done|drawn|found|given|held|hidden|kept|known|lost|meant|seen|sent|shown|written"
PARTICIPLE = re.compile(rf"_*([a-z]{{2,}}ed|{IRREGULAR})(_|$)")
OBSERVER = """import os, sys
file = os.open(os.environ["IMPORTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(event, args):
    if event == "import" and args[0].startswith(("launcher", "hydra_plugins")):
        os.write(file, args[0].encode() + b"\\n")
sys.addaudithook(note)
"""


def measure(text: str) -> Counter[str]:
    """Count what a file contains. A decision is an if, and, or, `x if y else z` or except."""
    nodes = list(ast.walk(ast.parse(text)))
    prose = [n for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    prose = [n for n in prose if isinstance(n.value.value, str)]
    rows = {row for n in prose for row in range(n.lineno, (n.end_lineno or 0) + 1)}
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    # Ends of lines and indents are blank.
    tokens = [t for t in tokens if t.string.strip() and t.string[0] != "#"]
    tokens = [t for t in tokens if t.start[0] not in rows]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    words = sum(len(n.values) - 1 for n in nodes if isinstance(n, ast.BoolOp))
    counts = Counter(files=1, lines=text.count("\n"), tokens=len(tokens), functions=len(functions))
    counts["code"] = len({row for t in tokens for row in range(t.start[0], t.end[0] + 1)})
    counts["over 40"] = sum((n.end_lineno or 0) - n.lineno >= 40 for n in functions)
    counts["participles"] = sum(PARTICIPLE.match(n.name) is not None for n in functions)
    counts["decisions"] = words + sum(isinstance(n, BRANCHES) for n in nodes)
    counts["statements"] = sum(isinstance(n, ast.stmt) for n in nodes)
    return counts


def imported_by_a_default_run() -> set[str]:
    """Train one step in an empty folder; return the modules that its processes import."""
    command = [sys.executable, "-m", "launcher", "trainer.max_steps=1", "device=cpu"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(OBSERVER)
        environment = os.environ | {"PYTHONPATH": folder, "IMPORTED": f"{folder}/imported"}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return set(Path(folder, "imported").read_text().split())


def table(source: Path, imported: set[str]) -> list[str]:
    """Return the headings, a line for each package, and a line for all of them."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        counts = measure(path.read_text())
        if ".".join(parts).removesuffix(".__init__") in imported:
            counts["reached"] = counts["code"]
        rows["/".join(parts[:-1][:2])] += counts
        rows["all"] += counts
    lines = [" " * 26 + "".join(f"{head:>12}" for head in (*COLUMNS, *SHARES))]
    for name, row in sorted(rows.items(), key=lambda item: item[1]["code"]):
        counts = "".join(f"{row[key]:12,}" for key in COLUMNS)
        shares = (f"{100 * row[one] / max(1, row[of]):10.1f} %" for one, of in SHARES.items())
        lines.append(f"{name:26}{counts}{''.join(shares)}")
    return lines


if __name__ == "__main__":
    print("\n".join(table(SOURCE, imported_by_a_default_run())))
