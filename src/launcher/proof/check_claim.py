"""Check a claim about a run: by its data, an evaluation, or steps that are trained again."""

import argparse
import os
import secrets
import tempfile
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.gpus import count_gpus
from launcher.process.plural import plural
from launcher.proof.claim_file import Claim
from launcher.proof.claim_levels import Check, OtherMachine, Refuted
from launcher.runs.act.repeat_command import add_trust

HOLDS = 0
REFUTED = 1
OTHER_MACHINE = 3
LEVELS = (0, 1, 2, 3)
THREADS = "OMP_NUM_THREADS"


def add_arguments(parser: Parser) -> None:
    parser.argument("claim", "CLAIM", "a file that `runs claim` has written", type=path_argument)
    parser.argument(
        "--level",
        "N",
        "0: identity, code, data (default); 1: and the metric, evaluated again; 2: and segments,"
        " trained again; 3: and the whole, trained again",
        type=int,
        default=0,
    )
    parser.argument("--segments", "K", "of level 2 (default: 3)", type=int, default=3)
    parser.argument("--from", "FOLDER", "the run's folder", dest="folder", type=path_argument)
    parser.argument("--word", "TEXT", "chooses the segments (default: a random one)")
    parser.argument("--ranks", "N", "ranks that train here (default: the claim's)", type=int)
    parser.argument(
        "--scratch", "DIR", "where to train (default: the temporary folder)", type=path_argument
    )
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check a claim; return 0 if it holds, 1 if it is refuted, 3 on another kind of machine."""
    if arguments.level not in LEVELS:
        raise ConfigError(f"--level={arguments.level}: should be 0, 1, 2 or 3.")
    if arguments.segments < 1:
        raise ConfigError(f"--segments={arguments.segments}: must be at least 1.")
    if arguments.level and arguments.folder is None:
        raise ConfigError(f"--level={arguments.level}: needs --from=FOLDER, the run's folder.")
    if arguments.folder is not None and not arguments.folder.is_dir():
        raise ConfigError(f"--from={arguments.folder}: there is no such folder.")
    claim = Claim.read(arguments.claim)
    ranks = ranks_for(claim, arguments.ranks) if arguments.level else claim.ranks
    word = arguments.word or secrets.token_hex(4)
    # Another number of threads would change the last bits.
    os.environ[THREADS] = str(claim.predicate["machine"]["threads"])
    with tempfile.TemporaryDirectory(prefix=".launcher-check-", dir=arguments.scratch) as root:
        check = Check(claim, arguments.folder, ranks, word, arguments.trust, Path(root), say)
        try:
            climb(check, arguments.level, arguments.segments)
        except (Refuted, CorruptCheckpoint) as error:
            damaged = "" if isinstance(error, Refuted) else "a checkpoint is damaged: "
            say(f"Refuted: {damaged}{error}.")
            return REFUTED
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}).") from error
        except OtherMachine as error:
            say(f"Another kind of machine: {error}.")
            return OTHER_MACHINE
    return HOLDS


def climb(check: Check, level: int, segments: int) -> None:
    check.statement()
    if level >= 1:
        check.evaluation()
    if level == 2:
        check.segments(segments)
    if level == 3:
        check.whole()


def ranks_for(claim: Claim, named: int | None) -> int:
    """Return the number of ranks that train here; without lanes it is the claim's."""
    is_on_cpu = claim.predicate["machine"]["device"] == "cpu"
    room = named or (os.cpu_count() if is_on_cpu else count_gpus()) or 1
    if named is None and claim.ranks <= room:
        return claim.ranks
    if named == claim.ranks:
        return named
    if claim.predicate["lanes"] is None:
        raise ConfigError(
            f"{claim.name}: was trained on {plural(claim.ranks, 'rank')}, and {room} would compute"
            f" other bits without trainer.lanes; use --ranks={claim.ranks}, or a larger machine."
        )
    ranks = named or 1
    say(f"Trained on {plural(claim.ranks, 'rank')}, checked on {ranks}, with the same lanes.")
    return ranks


def say(line: str) -> None:
    print(line, flush=True)
