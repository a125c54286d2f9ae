"""The levels at which a claim is checked, each by equality with what is computed here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.checkpoint.chain import BrokenChain, Link, read_chain
from launcher.config.identity.run_id import digest as id_of
from launcher.config.identity.run_id import identity_to_hash
from launcher.config.run_config import read_tree
from launcher.errors import ConfigError
from launcher.process.plural import plural
from launcher.proof.claim_file import (
    Claim,
    beyond_identity,
    data_of,
    describe_sweep,
    digest_lines,
)
from launcher.proof.segment import Segment, choose
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name
from launcher.rundir.history import as_number, read_rows
from launcher.rundir.imported_sources import source_changes
from launcher.rundir.provenance import describe_machine, machine_state, versions
from launcher.rundir.repositories import has_commit
from launcher.runs.stored_run import StoredRun

LIBRARIES = ("torch", "numpy")
"""Libraries whose other version may compute other bits."""


class Refuted(Exception):
    """The claim is wrong. The message says what, and where."""


class OtherMachine(Exception):
    """The numbers differ, and this machine may compute other bits."""


@dataclass
class Check:
    """One claim, and what a verifier has: a working tree, the data, and perhaps the run's folder.

    Args:
        claim: the claim.
        folder: the folder of the run, with its checkpoints and its chain, or None.
        ranks: the number of ranks that train here.
        word: a word of the verifier, which the claimant does not know.
        trust: run whatever code the stored configuration names.
        scratch: where to train.
        say: prints a line.
    """

    claim: Claim
    folder: Path | None
    ranks: int
    word: str
    trust: bool
    scratch: Path
    say: Callable[[str], None]

    # -------------------------------------------------------------------------------------- level 0
    def statement(self) -> None:
        """Check the identity, the code and the data that are here."""
        claim, predicate = self.claim, self.claim.predicate
        if (own := claim.id_of_identity()) != claim.id:
            raise Refuted(f"the id of its identity is {own}, and it claims {claim.id}")
        code, data = predicate["code"], predicate["data"]
        if code["commit"] is not None and not has_commit(code["commit"]):
            raise ConfigError(
                f"commit {code['commit']}: the current folder has no such commit; go to a clone"
                " that has it (git fetch --all)."
            )
        self._check_sources(code)
        here = data_of(predicate["identity"])
        if "files" in data:
            self._check_files(data["files"], here.get("files", {}))
        elif here != data:
            count = here.get("count", len(here.get("files", {})))
            raise Refuted(
                f"the {plural(data['count'], 'data file')} that it names are not those here"
                f" ({plural(count, 'file')})"
            )
        if excluded := predicate["beyond_identity"].get("excluded"):
            self.say(f"The run keeps {', '.join(map(str, excluded))} out of its identity.")
        for sweep in predicate.get("sweeps") or ():
            self.say(f"Not checked: {describe_sweep(sweep)}.")
        self.say("Level 0 holds: the identity has this id, and code and data here are the claim's.")

    def _check_sources(self, code: dict[str, Any]) -> None:
        from launcher.checkpoint.drift import read_sources

        sources = code.get("sources")
        if sources is None:
            if self.folder is None:
                self.say(f"Not checked: {plural(code['count'], 'source file')}; --from has them.")
                return
            sources = read_sources(self._checkpoint(self.claim.step))
            lines = [f"{name} {digest}" for name, digest in sources.items()]
            if digest_lines(lines) != code["sha256"]:
                raise Refuted("sources.json of its newest checkpoint is not what it claims")
        if changes := source_changes(sources, {}):
            raise ConfigError(
                f"{changes[0]} Check out commit {code['commit']} with the changes that trained the"
                " run (runs reproduce prints how)."
            )

    def _check_files(self, claimed: dict[str, str], here: dict[str, str]) -> None:
        if missing := [name for name in claimed if name not in here]:
            raise ConfigError(f"{missing[0]}: the data of the claim are not here.")
        if wrong := [name for name in here if here[name] != claimed.get(name)]:
            raise Refuted(f"{wrong[0]} is not the file that it claims to be trained with")

    # -------------------------------------------------------------------------------------- level 1
    def evaluation(self) -> None:
        """Check the digest of the weights, and evaluate them again."""
        from launcher.checkpoint.stored import weights_digest

        claim, metric = self.claim, self.claim.predicate["metric"]
        # Otherwise the weights could be of another training than the states of the chain.
        self._verify_state(claim.step)
        if weights_digest(self._checkpoint(claim.step)) != claim.weights:
            raise Refuted(f"the weights of step {claim.step} are not those that it claims")
        if metric is None:
            self.say("Level 1 holds: the weights are the claim's. It names no metric.")
            return
        self.say(f"Level 1: evaluates step {claim.step} on {plural(self.ranks, 'rank')}.")
        segment = self._segment(claim.step, claim.step, "evaluation")
        value = segment.evaluate("evaluation", metric["split"]).get(metric["name"])
        if value is None:
            raise Refuted(f"the evaluation here has no {metric['name']}")
        if float(value).hex() != metric["value"]:
            claimed = float.fromhex(metric["value"])
            text = f"{metric['name']} is {value!r} here, and it claims {claimed!r}"
            if other := other_machine(claim, segment.config["device"]):
                raise OtherMachine(f"{text}; {other}")
            raise Refuted(text)
        self.say(f"Level 1 holds: {metric['name']} is {value!r}, bit-equal.")

    # ------------------------------------------------------------------------------- levels 2 and 3
    def segments(self, count: int) -> None:
        """Train segments between kept checkpoints again, chosen by the claim and the word."""
        steps = [step for step in self._kept() if step in self.chain]
        all_segments = list(pairwise([0, *steps]))
        chosen = choose(all_segments, count, f"{self.claim.digest} {self.word}")
        part = f"{len(chosen)} of {len(all_segments)}"
        trained = sum(end - start for start, end in chosen)
        self._announce(2, f"{part} segments (--word={self.word})", trained)
        if len(chosen) < len(all_segments):
            self.say(f"A wrong state in one of them is found with a chance of {part}.")
        for start, end in chosen:
            self._train(start, end)
        self.say(f"Level 2 holds: {part} segments make the states of the chain, {self._what}.")

    def whole(self) -> None:
        """Train the run from its start."""
        self._announce(3, "the whole training", self.claim.step)
        self._train(0, self.claim.step)
        self.say(f"Level 3 holds: the training makes the state of the chain, {self._what}.")

    def _announce(self, level: int, what: str, steps: int) -> None:
        hours = self.claim.predicate["device_hours"] * steps / self.claim.step
        total = f"{steps:,} of {plural(self.claim.step, 'step')}"
        self.say(f"Level {level}: {what}, {total}, {hours:.2g} device hours by the claim.")

    @property
    def _what(self) -> str:
        here, then = self.ranks, self.claim.ranks
        if here == then:
            return "numbers and random states"
        return f"the numbers; random states are of {then} ranks, and here are {here}"

    def _train(self, start: int, end: int) -> None:
        """Train from a state of the chain to the next, and compare."""
        from launcher.checkpoint.digests import digests_of

        before = f"the state at step {end} is not what steps {start} to {end} make of"
        origin = "the start" if start == 0 else f"the state at {start}"
        if start:
            self._verify_state(start)
        name = f"steps-{start}-{end}"
        segment = self._segment(start, end, name)
        copy = segment.train(name, start)
        numbers, rest = digests_of(copy.folder.checkpoints / step_name(end))
        link = self.chain[end]
        # The states of hooks have the name of the run that trained a shared step.
        has_rest = self.ranks == self.claim.ranks and link.run == self.claim.name
        if numbers == link.numbers and (rest == link.rest or not has_rest):
            self.say(f"  steps {start} to {end}: the same.")
            return
        what = "" if numbers != link.numbers else " (its numbers are, its random states are not)"
        if other := other_machine(self.claim, segment.config["device"]):
            spread = loss_spread(self._folder, copy.folder, start, end)
            raise OtherMachine(f"{before} {origin} here; {other}; {spread}")
        raise Refuted(f"{before} {origin}{what}")

    def _verify_state(self, step: int) -> None:
        """Check that a checkpoint is the one in the chain, before it is loaded."""
        from launcher.checkpoint.digests import digests_of

        link = self.chain[step]
        if digests_of(self._checkpoint(step)) != (link.numbers, link.rest):
            raise Refuted(f"the checkpoint of step {step} is not the one in its chain")

    # ----------------------------------------------------------------------------- the run's folder
    @cached_property
    def _folder(self) -> RunFolder:
        if self.folder is None:
            raise ConfigError("--from=FOLDER: is missing; levels 1 to 3 need the run's folder.")
        return RunFolder(self.folder)

    def _kept(self) -> list[int]:
        return [
            step for step in checkpoint_steps(self._folder.checkpoints) if step <= self.claim.step
        ]

    def _checkpoint(self, step: int) -> Path:
        path = self._folder.checkpoints / step_name(step)
        if not path.is_dir():
            raise ConfigError(f"--from={self._folder.path}: has no checkpoint of step {step}.")
        return path

    @cached_property
    def chain(self) -> dict[int, Link]:
        """The lines of the chain by step, as the claim commits to them."""
        claimed, file = self.claim.predicate["chain"], self._folder.chain_path
        try:
            links = [link for link in read_chain(file) if link.step <= self.claim.step]
        except BrokenChain as error:
            raise Refuted(str(error)) from error
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read ({error.strerror}).") from error
        if not links or (links[-1].digest, len(links)) != (claimed["root"], claimed["length"]):
            raise Refuted(f"{file.name} is not the chain to which it commits")
        numbers = {f"{link.step} {link.numbers}" for link in links}
        if wrong := [line for line in claimed["lines"] if line not in numbers]:
            raise Refuted(f"step {wrong[0].split()[0]} of {file.name} is not what it claims")
        return {link.step: link for link in links}

    def _segment(self, start: int, end: int, name: str) -> Segment:
        """Return a segment whose configuration is the claim's."""
        path = self._checkpoint(end)
        tree, found = self._read_configuration(path / "config.yaml")
        if found != self.claim.id:
            raise Refuted(
                f"the configuration at step {end} has the id {found}, and it claims {self.claim.id}"
            )
        if beyond_identity(tree) != self.claim.predicate["beyond_identity"]:
            raise Refuted(f"what the identity leaves out at step {end} is not what it claims")
        run, root = StoredRun.read(self._folder.path), self.scratch / name
        return Segment(run, start, end, root, self.trust, self.ranks)

    def _read_configuration(self, file: Path) -> tuple[dict[str, Any], str]:
        """Return a stored configuration, and the id that it gives a run."""
        try:
            tree = read_tree(file)
            return tree, id_of(identity_to_hash(_config(tree), tree))
        # Whoever wrote the file may have written anything.
        except (OmegaConfBaseException, YAMLError, LookupError, ValueError, TypeError) as error:
            raise Refuted(f"{file} is not a configuration ({type(error).__name__})") from error


def other_machine(claim: Claim, wanted: str) -> str:
    """Describe how the machine of a device differs here from the claim's, or return ""."""
    from launcher.process.device import cpu_kernels, device_name, get_device

    claimed, device = claim.predicate["machine"], get_device(wanted=wanted)
    here = machine_state(device_name(device), claimed["threads"], cpu_kernels())
    if here != claimed:
        now = describe_machine(here)
        return f"it was trained on {describe_machine(claimed)}, and here is {now}"
    before, current = claim.predicate["versions"], versions(LIBRARIES)
    for name in LIBRARIES:
        if before.get(name) != current.get(name):
            return f"it was trained with {name} {before.get(name)}, not {current.get(name)}"
    return ""


def _config(tree: dict[str, Any]) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.create(tree)


def loss_spread(run: RunFolder, copy: RunFolder, start: int, end: int) -> str:
    """Describe how far the losses of two trainings are from each other."""
    curves = [
        {
            row["step"]: loss
            for row in read_rows(folder.metrics_path)
            if start < row.get("step", 0) <= end
            and (loss := as_number(row.get("train/loss"))) is not None
        }
        for folder in (run, copy)
    ]
    common = curves[0].keys() & curves[1].keys()
    if not common:
        return "there are no losses to compare"
    spread = max(
        abs(curves[0][step] - curves[1][step]) / max(abs(curves[0][step]), 1e-30) for step in common
    )
    return f"losses differ by at most {spread:.2g} of their value; nothing is said about bits"
