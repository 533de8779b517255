"""What a verb did about each of the jobs that it was told to act on."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import ForeignStatus, ask_foreign, unknown_job
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.controller.targets import Targets, owner_of, user_name
from hpcrun.errors import HpcrunError, InputError
from hpcrun.slurm.states import UNKNOWN

Known = RunStatus | ForeignStatus


class Outcome(Struct, frozen=True, kw_only=True):
    """What was done about one job: ``state`` is the one before, ``over`` whether it is final.

    ``left`` says why it was left alone; ``error`` what went wrong. Neither, and not ``done``: it is
    still to be acted on.
    """

    run_id: str | None
    job_id: str | None
    state: str
    over: bool = False
    done: bool = False
    left: str = ""
    error: HpcrunError | None = None

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"job {self.job_id}" if self.job_id else self.run_id or ""


def find_known(context: Context, targets: Targets) -> tuple[list[tuple[str, Known]], list[Outcome]]:
    """Ask about all that is named: runs by their ids, other jobs by the words that name them.

    Returns also those that nobody knows. Raises OutOfReach.
    """
    runs = targets.all_runs()
    known: list[tuple[str, Known]] = [
        (status.job_id or "", status) for status in (status_of(context, runs) if runs else [])
    ]
    unknown: list[Outcome] = []
    for word, found in ask_foreign(context, targets.foreign).items():
        known += [(word, status) for status in found]
        if not found:
            error = unknown_job(word)
            unknown.append(Outcome(run_id=None, job_id=word, state=UNKNOWN, error=error))
    return known, unknown


def begin(known: Known) -> Outcome:
    """Tell how a job stands before anything was done about it."""
    return Outcome(
        run_id=known.run.run_id if isinstance(known, RunStatus) else None,
        job_id=known.job_id,
        state=known.verdict.state,
        over=known.verdict.final,
    )


def interrupted(told: Sequence[Outcome], what: str) -> KeyboardInterrupt:
    """Say what Slurm had done before Ctrl-C, to which nothing is lost of it."""
    names = [one.name for one in told if one.done]
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    text = f"Slurm had been told already: {', '.join(names[:5])}{rest}: {what} all the same"
    return KeyboardInterrupt(text) if names else KeyboardInterrupt()


def not_mine(known: Known, fix: str) -> InputError | None:
    """Say whose job it is, if not the caller's; the word OWNER in ``fix`` becomes the name."""
    if isinstance(known, RunStatus):
        owner = owner_of(known.run.path)
    else:
        row = known.queue or known.account
        owner = row.user if row else ""
    if owner in ("", user_name()):
        return None
    return InputError(f"{begin(known).name} is {owner}'s", fix=fix.replace("OWNER", owner))


def conf_of(known: Known) -> str | None:
    """The slurm.conf of the Slurm that has the job; None: the context's."""
    submitted = known.history.submitted if isinstance(known, RunStatus) else None
    return submitted.slurm_conf if submitted else None
