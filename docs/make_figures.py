"""Make the figures, ids and messages of README, the first page and the tutorial again.

    python docs/make_figures.py [--only NAME ...]

It takes up to half an hour. Each part ends with `as printed`, or with what differs, and then the
exit code is 1. Times depend on the machine, so they are printed next to the page's.

    ids       the ids that the pages print outside of commands that a test runs
    pages     the commands of README and the tutorial print what the pages show
    digest    one digest of the weights on 1, 2 and 4 ranks
    gpu       checks that README's figures of a GPU are in benchmarks/RESULTS.md, and lists those
              that are older than the code that they time
    goodput   a preempted sweep on SLURM (root, Debian or Ubuntu; trainloop)
    hero      the first picture (root, Debian or Ubuntu)
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
IDS = {
    "95cf": ("README.md", "experiment=gpt_tiny optimizer.lr=3e-3 seed=2"),
    "01553819206a": (
        "docs/shared_steps.md",
        "scheduler=wsd scheduler.warmup_steps=50 trainer.max_steps=1000",
    ),
    "29e455ca8367": ("slurm/lab/README.md", "dispatch=slurm dispatch.partition=preempt"),
}
"""Ids in texts, or their first digits: the page, and the command that names the run."""
MARK = re.compile(r"^\*(\d{4}-\d\d-\d\d), ([0-9a-f]{8}): (.+)\.\*$", re.MULTILINE)
"""The line above a table of RESULTS.md: date, commit, machine."""
TIMED_ON_A_GPU = ("train", "optim", "strategies", "models", "data", "hooks", "checkpoint")
"""The packages whose code `benchmarks gpu` times."""
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shell(command: str, folder: Path = ROOT) -> str:
    """Return what a command prints, and show its errors."""
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def ids() -> Iterator[str]:
    for printed, (page, words) in IDS.items():
        if printed not in (ROOT / page).read_text():
            yield f"{page} does not have {printed}"
        said = shell(f"{sys.executable} -m launcher {words} --cfg job --resolve -p run")
        (found,) = re.findall(r"^id: (\w+)", said, re.MULTILINE)
        if not found.startswith(printed):
            yield f"{page}: {printed} is {found} now"


def pages() -> Iterator[str]:
    test = "tests/end_to_end/test_docs.py::test_commands_print_what_the_page_shows"
    words = f"-q '{test}[README]' '{test}[tutorial]'"
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m pytest {words}"], cwd=ROOT)
    if done.returncode:
        yield "the commands of README or of the tutorial print something else"


def digest() -> Iterator[str]:
    """Run the commands of the page; on another kind of processor the digest may be another one."""
    page = (ROOT / "docs" / "reproducibility.md").read_text()
    commands, printed = BLOCK.findall(page[page.index("### The same digest") :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        lines = shell(commands, Path(folder)).splitlines()
    found = [line for line in lines if re.match("[0-9a-f]{64} ", line)]
    if len({line.split()[0] for line in found}) != 1:
        yield f"not one digest: {found}"
    elif found != printed.splitlines():
        print(f"one digest; on the processor of the page it was another one: {found[0]}")


def gpu() -> Iterator[str]:
    results = RESULTS.read_text()
    (ratio,) = re.findall(r"\| ([\d.]+) of the time \|", README.read_text())
    measured = re.findall(r"Launcher, no hooks \| [\d.]+ \| ([\d.]+) \| [\d.]+ \|", results)
    if ratio not in measured:
        yield f"README has {ratio}, and RESULTS.md {measured}"
    code = " ".join(f"src/launcher/{package}" for package in TIMED_ON_A_GPU)
    for date, commit, machine in dict.fromkeys(MARK.findall(results)):
        if "NVIDIA" not in machine:
            continue
        later = shell(f"git log --format='%h %as %s' {commit}..HEAD -- {code}").splitlines()
        if later:
            print(f"older than the code: {date}, {commit}, {machine}: {len(later)} commits since,")
            print(f"    the newest {later[0]}")


def goodput() -> Iterator[str]:
    options = "--every 25 --steps 800"
    new = shell(f"{sys.executable} benchmarks/goodput.py {options}")
    text = RESULTS.read_text()
    old = next(block for block in BLOCK.findall(text) if f"goodput.py {options}" in block)
    print(f"on the page:\n{old}\nnow:\n{new}")
    rows = re.compile(r"^(.*?)  .*?(\d/\d)$", re.MULTILINE)
    if rows.findall(old) != rows.findall(new):
        yield f"other runs are bit-equal: {rows.findall(new)}"


def hero() -> Iterator[str]:
    shell(f"{sys.executable} docs/make_hero.py")
    picture = "docs/pictures/hero.svg"
    if "bitwise identical" not in (ROOT / picture).read_text():
        yield "the picture does not say that the runs are bitwise identical"
    print(shell(f"git diff --stat -- {picture}") or "the picture is the same")


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    part.__name__: part for part in (ids, pages, digest, gpu, goodput, hero)
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    failed = False
    for name in parser.parse_args().only:
        problems = list(PARTS[name]())
        failed |= bool(problems)
        print(f"{name}: {'; '.join(problems) or 'as printed'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
