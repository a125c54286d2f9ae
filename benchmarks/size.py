"""Print the size and density of each package of src, its arrows up and a walk: `make size`.

An arrow up is a module that names a module of a room above its own (`benchmarks.rooms`): in an
import, or in a text that is nothing but the name. A name within a sentence is not counted, and a
name that is put together is not seen. The walk counts the files that hold a value of the command
line before the run trains, also within the whole configuration (`benchmarks.walk`).
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

from docs.check_style import PRONOUN, comments

from benchmarks.rooms import arrows_up, find_circle, imports_of_modules, names_in, strings

SOURCE = Path(__file__).resolve().parents[1] / "src"
BRANCHES = ast.If, ast.IfExp, ast.ExceptHandler
SHARES = {"participles": "functions", "decisions": "statements", "pronouns": "comments"}
COLUMNS = ("files", "lines", "code", "tokens", "functions", "over 40")
IRREGULAR = "built|done|drawn|found|given|held|hidden|kept|known|lost|meant|seen|sent|shown|written"
PARTICIPLE = re.compile(rf"_*([a-z]{{2,}}ed|{IRREGULAR})(_|$)")


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
    first_lines = comments(text)
    counts["comments"] = len(first_lines)
    counts["pronouns"] = sum(PRONOUN.match(comment) is not None for _, comment in first_lines)
    return counts


def table(source: Path) -> list[str]:
    """Return the headings, a line for each package, and a line for all of them."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).parts
        counts = measure(path.read_text())
        rows["/".join(parts[:-1][:2])] += counts
        rows["all"] += counts
    heads = (*COLUMNS, *SHARES, "tokens a line")
    lines = [" " * 26 + "".join(f"{head:>14}" for head in heads)]
    for name, row in sorted(rows.items(), key=lambda item: item[1]["code"]):
        counts = "".join(f"{row[key]:14,}" for key in COLUMNS)
        shares = (f"{100 * row[one] / max(1, row[of]):12.1f} %" for one, of in SHARES.items())
        density = row["tokens"] / max(1, row["code"])
        lines.append(f"{name:26}{counts}{''.join(shares)}{density:14.2f}")
    return lines


if __name__ == "__main__":
    print("\n".join(table(SOURCE)))
    for kind, names_of in {"import": names_in, "text": strings}.items():
        found = arrows_up(names_of)
        pairs = ", ".join(f"{module} -> {name}" for module, name in sorted(found))
        print(f"{len(found)} arrows up by {kind}{': ' + pairs if pairs else ''}")
    print(f"circle of imports: {' -> '.join(find_circle(imports_of_modules())) or 'none'}")
    walk = [sys.executable, "-m", "benchmarks.walk"]
    done = subprocess.run(walk, check=True, capture_output=True, text=True)
    print(next(line for line in done.stdout.splitlines() if "files hold" in line))
