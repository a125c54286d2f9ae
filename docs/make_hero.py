"""Make docs/pictures/hero.svg, the first picture of the README, from two real runs.

    python docs/make_hero.py [FOLDER]

One run is left alone. The other is the same command on a SLURM cluster (`slurm/lab/`: root, Debian
or Ubuntu), where it is preempted twice and its node loses power once. The picture shows what
`python -m launcher.runs` prints about both. FOLDER keeps the runs: the same command resumes, and
only draws once they are complete.
"""

import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "slurm" / "lab"
PICTURE = ROOT / "docs" / "pictures" / "hero.svg"
WORDS = ["trainer.max_steps=300"]
SEEN = ["hooks.logging.interval=1", "hooks.evaluation.interval=50"]
SAVED = ["hooks.checkpointing.interval=40"]
PREEMPTED = (70, 250)
"""Steps at which another job takes the node."""
POWER_CUT = 185
NODES = ("node1", "node2")
LAB_SETTINGS = {
    "SLURM_LAB_NODES": str(len(NODES)),
    "SLURM_LAB_GRACE": "30",
    "SLURM_LAB_KILLWAIT": "15",
    "SLURM_LAB_MESSAGE_TIMEOUT": "5",
}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="hero-")).absolute()
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    alone, preempted = folder / "alone", folder / "preempted"
    os.environ["OMP_NUM_THREADS"] = "1"
    launcher("launcher", *WORDS, *SEEN, *SAVED, f"paths.outputs={alone}")
    if not is_complete(preempted):
        train_on_slurm(folder, preempted)
    PICTURE.write_text(draw(alone, preempted))
    print(PICTURE)


def train_on_slurm(folder: Path, outputs: Path) -> None:
    """Submit the run, and disturb it until it is complete."""
    os.environ.update(LAB_SETTINGS, SLURM_LAB_STATE=str(folder / "lab"))
    shell(LAB / "up.sh", "--fresh")
    os.environ["SLURM_CONF"] = str(folder / "lab" / "etc" / "slurm.conf")
    try:
        slurm = ["dispatch=slurm", "dispatch.partition=preempt", f"paths.outputs={outputs}"]
        print(launcher("launcher", *WORDS, *SEEN, *SAVED, *slurm))
        for step in sorted((*PREEMPTED, POWER_CUT)):
            wait_for(lambda step=step: steps_done(outputs) >= step, outputs)
            node = shell("squeue", "--noheader", "-o", "%N").strip()
            before = len(record(outputs)["attempts"])
            if step == POWER_CUT:
                shell(LAB / "node.sh", "crash", node)
            else:
                job = ["-p", "main", "-w", node, "--exclusive", "-o", "/dev/null"]
                shell("sbatch", *job, "--wrap", "sleep 1")
            wait_for(lambda before=before: len(record(outputs)["attempts"]) > before, outputs)
        wait_for(lambda: is_complete(outputs), outputs)
    finally:
        shell(LAB / "down.sh")


def launcher(module: str, *arguments: object) -> str:
    return shell(sys.executable, "-m", module, *arguments)


def shell(*command: object) -> str:
    """Return what a command prints."""
    return subprocess.run(
        [*map(str, command)], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ).stdout


def wait_for(condition: Callable[[], bool], outputs: Path) -> None:
    while not condition():
        if record(outputs).get("state") == "failed":
            raise SystemExit(f"the run in {outputs} failed; see its log")
        time.sleep(0.3)


def run_folder(outputs: Path) -> Path | None:
    return next((path.parent for path in outputs.glob("*/*/run.json")), None)


def record(outputs: Path) -> dict[str, Any]:
    folder = run_folder(outputs)
    return json.loads((folder / "run.json").read_text()) if folder else {"attempts": []}


def is_complete(outputs: Path) -> bool:
    return record(outputs).get("state") == "completed"


def metrics(outputs: Path) -> list[dict[str, Any]]:
    folder = run_folder(outputs)
    file = folder / "metrics.jsonl" if folder else None
    return [json.loads(line) for line in file.read_text().splitlines()] if file else []


def steps_done(outputs: Path) -> int:
    try:
        return metrics(outputs)[-1]["step"]
    except (OSError, ValueError, IndexError):
        return 0


WIDTH, HEIGHT = 1000, 500
BACK = "#0f172a"
INK = "#e2e8f0"
DIM = "#94a3b8"
LINE = "#334155"
ATTEMPTS = ("#38bdf8", "#f59e0b", "#a78bfa", "#34d399")
LEFT = 56
RIGHT = 440
TOP = 96
BOTTOM = 340
"""The borders of the chart."""


def draw(alone: Path, preempted: Path) -> str:
    """Return the picture: the losses of both runs by step, and what is printed about them."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>A run on SLURM that is preempted twice and loses its node once ends bitwise"
        " identical with the run that was left alone</title>",
        "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;"
        f"font-size:17px;fill:{DIM}}} .m,.m text{{font-family:ui-monospace,SFMono-Regular,Menlo,"
        "Consolas,'DejaVu Sans Mono',monospace;font-size:16px;white-space:pre}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{BACK}"/>',
        *chart(metrics(alone), metrics(preempted), record(preempted)["attempts"]),
        *terminal(printed(alone, preempted)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def chart(
    alone: list[dict[str, Any]], preempted: list[dict[str, Any]], attempts: list[dict[str, Any]]
) -> list[str]:
    losses = [line["train/loss"] for line in alone if "train/loss" in line]
    last = alone[-1]["step"]
    low = min(losses)
    high = max(losses)

    def point(step: float, loss: float) -> str:
        x = LEFT + (RIGHT - LEFT) * step / last
        return f"{x:.1f},{BOTTOM - (BOTTOM - TOP) * (loss - low) / (high - low):.1f}"

    def curve(lines: list[dict[str, Any]], color: str, width: float) -> str:
        points = " ".join(
            point(line["step"], line["train/loss"]) for line in lines if "train/loss" in line
        )
        return (
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"'
            ' stroke-linejoin="round"/>'
        )

    def x_of(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / last

    parts = [
        text(LEFT - 36, 36, "Preempted twice, its node lost once", INK, weight="600"),
        text(LEFT - 36, 64, "loss by step: alone (grey), on SLURM (coloured)"),
    ]
    for loss in range(round(low + 0.5), int(high) + 1):
        y = float(point(0, loss).partition(",")[2])
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{LINE}" stroke-width="1"/>')
        parts.append(text(LEFT - 12, y + 6, str(loss), anchor="end"))
    parts.append(curve(alone, "#64748b", 9))
    for number, color in enumerate(ATTEMPTS[: len(attempts)], 1):
        mine = [line for line in preempted if line["attempt"] == number]
        before = [line for line in preempted if line["attempt"] < number][-1:]
        parts.append(curve(before + mine, color, 2.6))
    for number, (attempt, color) in enumerate(zip(attempts, ATTEMPTS, strict=False)):
        y, start = BOTTOM + 34 + 26 * number, attempt["start_step"]
        left, right = x_of(start), x_of(attempt["end_step"])
        label = {"preempted": "preempted", "killed": "node lost", "completed": "completed"}[
            attempt["outcome"]
        ]
        parts.append(
            f'<rect x="{left:.1f}" y="{y - 8}" width="{right - left:.1f}" height="12" rx="3"'
            f' fill="{color}"/>'
        )
        if attempt["outcome"] != "completed":
            parts.append(
                f'<path d="M{right:.1f} {TOP - 8}V{y + 4}" stroke="{color}" stroke-width="1.5"'
                ' stroke-dasharray="4 4"/>'
            )
        inside = right + 130 > RIGHT
        parts.append(
            text(
                left - 8 if inside else right + 8, y + 4, label, color, "end" if inside else "start"
            )
        )
    return parts


def text(
    x: float, y: float, content: str, color: str = DIM, anchor: str = "start", weight: str = "400"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
        f' style="fill:{color}">{html.escape(content)}</text>'
    )


def printed(alone: Path, preempted: Path) -> list[tuple[str, str]]:
    """Return the lines of the terminal and their colours, from what the commands print."""
    lines = [
        ("$ python -m launcher dispatch=slurm \\", INK),
        ("    dispatch.partition=preempt \\", INK),
        (f"    {WORDS[0]}", INK),
        ("", DIM),
        ("$ python -m launcher.runs show gpt-text", INK),
        ("#  steps       outcome", DIM),
    ]
    for attempt, color in zip(record(preempted)["attempts"], ATTEMPTS, strict=False):
        steps = f"{attempt['start_step']} to {attempt['end_step']}"
        lines.append((f"{attempt['number']}  {steps:<10}  {attempt['outcome']}", color))
    folders = [run_folder(alone), run_folder(preempted)]
    said = launcher("launcher.runs", "compare", *folders).splitlines()
    (found,) = re.findall(r"(loss and .*identical at all \d+ steps)", " ".join(said))
    first, second = found[: found.index("bitwise")], found[found.index("bitwise") :]
    lines += [("", DIM), ("$ python -m launcher.runs compare alone preempted", INK)]
    lines += [(first.strip(), ATTEMPTS[3]), (second, ATTEMPTS[3])]
    lines += [("", DIM), ("$ python -m launcher.runs checkpoints --digest", INK)]
    for name, outputs in (("alone", alone), ("preempted", preempted)):
        digests = launcher("launcher.runs", "checkpoints", "--digest", "--outputs", outputs)
        digest, where = digests.splitlines()[-1].split()
        lines.append((f"{digest[:16]}  {name}/{where[-13:]}", ATTEMPTS[3]))
    return lines


def terminal(lines: list[tuple[str, str]]) -> list[str]:
    parts = [
        f'<rect x="464" y="16" width="520" height="{HEIGHT - 32}" rx="8" fill="#020617"/>',
        '<g class="m">',
    ]
    for row, (content, color) in enumerate(lines):
        parts.append(text(480, 44 + 24.5 * row, content, color))
    return [*parts, "</g>"]


if __name__ == "__main__":
    main()
