"""Jobs that hold an allocation for a shell, until the user ends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.job_actions import cancel_jobs
from hpcrun.actions.prepare import draft_command_job, prepare_job
from hpcrun.actions.submit import submit_job
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.monitor import Monitor, Targets, WatchedRuns, describe_stage
from hpcrun.runs import JobStatus, RunFolder, attempt_indices
from hpcrun.signals import defer_signals
from hpcrun.spec import Origin

# Seconds between two checks of a job's records; Slurm is queried as by hpcrun wait.
_CHECK_INTERVAL_S = 1.0


class Session:
    """A job that holds an allocation; ``job_id`` is "" before its submission."""

    job_id = ""

    def __init__(
        self,
        context: Context,
        name: str,
        command: Sequence[str],
        overrides: Sequence[str],
    ) -> None:
        """Prepare the job. Raises InputError.

        Args:
            overrides: Changes of the job, in the notation of --set.
        """
        spec = draft_command_job([name], overrides)
        self._made = made = prepare_job(
            context,
            spec,
            extra_args=command,
            origin=Origin(name, tuple(overrides)),
            checks=Checks(),
        )
        if made.is_sweep or made.plan.node_range:
            raise InputError(
                f"{name}: a single job of a fixed size is needed",
                fix="leave out sweep, and name one number of nodes",
            )
        self._context = context
        self.run = RunFolder(made.path)
        self.notes = list(made.plan.notes)
        self._monitor = Monitor(context, [WatchedRuns([self.run])])

    def submit(self) -> None:
        """Submit the job. Raises InputError, SchedulerRefused, OutOfReach."""
        with defer_signals():  # an interrupted call must know its job
            submission = submit_job(self._context, self._made)
            self.job_id = submission.job_id
            self.notes += submission.notes

    @property
    def targets(self) -> Targets:
        return Targets(runs=[self.run], sweeps=[], jobs=[])

    def wait_until_started(self, tell: Callable[[str], None]) -> None:
        """Wait until the job's program runs, and report what it waits for.

        Raises HpcrunError if the job ends before.
        """
        told = ""
        while True:
            status = self.poll()
            newest = max(attempt_indices(self.run), default=None)
            if newest is not None and (self.run.attempts / str(newest) / "launched").exists():
                return
            text = f"job {self.job_id} waits for {describe_stage(status, self.run)}"
            if text != told:
                tell(text)
            told = text
            time.sleep(_CHECK_INTERVAL_S)

    def poll(self) -> JobStatus:
        """Return the state of the job. Raises HpcrunError if it has ended."""
        self._monitor.poll()
        (status,) = self._monitor.statuses
        if status.final:
            raise HpcrunError(
                f"job {self.job_id} is {status.state}", fix=f"hpcrun logs {self.job_id} shows why"
            )
        return status

    def cancel(self) -> None:
        """Cancel the job, unless it has ended. Raises HpcrunError."""
        for result in cancel_jobs(self._context, self.targets):
            if result.error is not None:
                raise result.error


def prepare_shell_job(context: Context, overrides: Sequence[str]) -> Session:
    """Prepare a job in which nothing runs but what a shell starts. Raises HpcrunError."""
    return Session(context, "shell", ["sleep", "infinity"], overrides)
