"""The process, or the jobs of SLURM, that evaluate checkpoints while training continues.

Rank 0 starts them, in a thread, one checkpoint at a time.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.config.messages import as_typed
from launcher.process import signals
from launcher.process.identity import without_rank
from launcher.rundir.evaluations import Evaluations
from launcher.rundir.folder import RunFolder

logger = logging.getLogger("launcher")
POLL = 0.1
"""Seconds between two looks for a checkpoint that is being written."""
MAX_FAILURES = 3
"""Failures in a row after which it is not started again."""
FAILED = 2**31 - 1
"""Value of `ready` once it is not started again."""
LOG = "evaluation.log"


class EvaluationProcess:
    """Evaluates the requested checkpoints in their order.

    Args:
        options: arguments of `launcher.jobs.evaluate_beside`.
        env: variables of its environment.
    """

    def __init__(self, folder: RunFolder, options: Mapping[str, object], env: Mapping[str, str]):
        self.folder, self.files = folder, Evaluations(folder)
        self.options, self.env = dict(options), {**without_rank(os.environ), **env}
        self.ready = 0
        """The step of the newest result. All earlier requests are ready too."""
        self.failure = ""
        self._queue: list[int] = []
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def request(self, step: int) -> None:
        """Evaluate the checkpoint of a step, as soon as it is written."""
        with self._changed:
            self._queue.append(step)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="evaluation", daemon=True)
                self._thread.start()

    def cancel(self, step: int) -> None:
        with self._changed:
            if step in self._queue:
                self._queue.remove(step)

    def close(self) -> None:
        """End the process. Results that are missing are made by the next attempt."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
            process = self._process
        if process is not None:
            process.kill()
        if self._thread is not None:
            self._thread.join()

    # -------------------------------------------------------------------------------- in the thread
    def _work(self) -> None:
        failures = 0
        while (step := self._next()) is not None:
            if self.files.result(step) is not None or self._evaluates(step):
                failures = 0
                self._is_done(step)
            elif step in self._queue and not self._is_closing:
                failures += 1
                code = None if self._process is None else self._process.wait()
                self._process = None
                if failures == MAX_FAILURES:
                    self.failure = self._last_line() or f"exit code {code}"
                    self.ready = FAILED
                    return
                logger.warning(
                    "The process that evaluates step %d has ended (exit code %s); it is started"
                    " again. Its log: %s",
                    step,
                    code,
                    self.folder.logs / LOG,
                )
        self._end()

    def _next(self) -> int | None:
        """Wait for a request whose checkpoint is written. Return None at the end."""
        with self._changed:
            while not self._is_closing:
                if not self._queue:
                    self._changed.wait()
                elif self._can_begin(step := self._queue[0]):
                    return step
                else:
                    self._changed.wait(POLL)
        return None

    def _can_begin(self, step: int) -> bool:
        return self.files.has_checkpoint(step) or self.files.result(step) is not None

    def _is_done(self, step: int) -> None:
        with self._changed:
            if step in self._queue:
                self._queue.remove(step)
            self.ready = max(self.ready, step)

    def _evaluates(self, step: int) -> bool:
        """Let the process evaluate a checkpoint; return whether there is a result."""
        try:
            process = self._started()
            if process is None:
                return False
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            return process.stdout.readline() != "" and self.files.result(step) is not None
        except OSError as error:
            logger.debug("Evaluating step %d: %s", step, error)
            return False

    def _started(self) -> "subprocess.Popen[str] | None":
        """Start the process, which ends when its standard input does."""
        with self._changed:
            if self._process is None and not self._is_closing:
                arguments = [str(self.folder.path), json.dumps(self.options)]
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                self._process = self._popen(["launcher.jobs.evaluate_beside", *arguments], **pipes)
            return self._process

    def _popen(self, words: Sequence[str], **streams: Any) -> "subprocess.Popen[str]":
        """Start a process in a new session, where no signal to this process's group reaches it."""
        with signals.blocked(), open(self.folder.logs / LOG, "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                stderr=log,
                text=True,
                env=self.env,
                start_new_session=True,
                **{"stdout": log, **streams},
            )

    def _end(self) -> None:
        with self._changed:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _last_line(self) -> str:
        try:
            lines = (self.folder.logs / LOG).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class EvaluationJobs(EvaluationProcess):
    """Evaluates each requested checkpoint in a job of SLURM, which a process submits.

    The process also waits for the job. A job that is still there when training is stopped
    completes, and the next attempt has its result.

    Args:
        dispatch: settings of `dispatch=slurm`.
    """

    def __init__(
        self, folder: RunFolder, options: Mapping[str, object], dispatch: Mapping[str, Any]
    ):
        super().__init__(folder, options, {})
        self.dispatch = dict(dispatch)

    def _evaluates(self, step: int) -> bool:
        words = [
            *("launcher.runs", "evaluate", str(self.folder.path.absolute()), "--trust"),
            *("dispatch=slurm", "dispatch.wait=true", f"job.checkpoint={step}"),
            f"job.beside={as_typed(self.options)}",
            *(f"dispatch.{name}={as_typed(value)}" for name, value in self.dispatch.items()),
        ]
        try:
            with self._changed:
                if self._is_closing:
                    return False
                process = self._process = self._popen(words, stdin=subprocess.DEVNULL)
            process.wait()
        except OSError as error:
            logger.debug("Evaluating step %d: %s", step, error)
            return False
        return self.files.result(step) is not None
