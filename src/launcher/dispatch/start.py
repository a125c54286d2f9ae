"""Starts a checked run, and explains its errors."""

from collections.abc import Callable, Sequence

from launcher.config.compose.hydra_job import Task, as_hydra_job
from launcher.config.explain import explain, log_traceback, report
from launcher.config.run_config import RunConfig
from launcher.config.secrets import without_environment
from launcher.dispatch.run_job import dispatch_run
from launcher.errors import REJECTED
from launcher.rundir.logs import ending_with_reader
from launcher.runs.objective import job_value, objective_of


def start_run(run: RunConfig, call: Callable[[RunConfig, Task], object] = as_hydra_job) -> object:
    """Start the run of a configuration, and return the value of its job.

    Args:
        run: the configuration.
        call: calls the dispatch for it. Default: with Hydra's state of a job around it.
    Raises:
        SystemExit: it was rejected, see `rejection`.
    """
    try:
        with ending_with_reader():
            result = call(run, dispatch_run)
    except Exception as error:
        messages = without_environment(explain(error), str(run.stored))
        if not messages:
            log_traceback(error, run.folder)
            raise
        raise rejection(messages) from None
    return _value(run, result) if run.trains else result


def rejection(messages: Sequence[str]) -> SystemExit:
    """Print the messages; return the exit to raise, with a note for the table of a sweep."""
    report(messages)
    rejected = SystemExit(REJECTED)
    rejected.add_note(messages[0])
    return rejected


def _value(run: RunConfig, metrics: object) -> object:
    """Return the objective's value for a sweeper that needs it, else all metrics."""
    is_sweep = run.hydra is not None and run.hydra["mode"] == "MULTIRUN"
    sweeper = run.choices["hydra/sweeper"] if is_sweep else None
    objective = objective_of(run.plain, sweeper)
    if objective is not None:
        return job_value(run.plain, objective)
    if metrics is not None:
        return metrics
    from launcher.rundir.metrics_summary import newest_metrics

    # The run was complete, so return what its first start has returned.
    newest = newest_metrics(run.folder.metrics_path)
    return {name: metric.value for name, metric in newest.items()}
