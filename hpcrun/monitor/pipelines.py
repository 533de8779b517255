"""Finds the runs of a pipeline, and determines the states of its stages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.monitor.targets import find_group, find_run_or_sweep, list_names
from hpcrun.ownership import foreign_owner
from hpcrun.runs import (
    NOT_SUBMITTED,
    OK_STATES,
    PIPELINE,
    RUN_ID,
    TASK_ID,
    History,
    JobStatus,
    PipelineRecord,
    RefusedEvaluation,
    RunFolder,
    SweepFolder,
    Verdict,
    parse_sweep_id,
    read_record,
    runs_of,
)
from hpcrun.slurm import ACTIVE, UNKNOWN, WAITING
from hpcrun.spec import Stage

# The state of a stage that does not start because of the ends of the stages before it.
SKIPPED = "SKIPPED"


class Pipeline(Struct, frozen=True, kw_only=True):
    """The runs of a pipeline.

    Attributes:
        record: The record of the newest run.
        members: The runs or sweeps of each stage, oldest first.
        current: Those that count: the last one, or the last one of each checkpoint. Those before
            it were resubmitted.
    """

    record: PipelineRecord
    members: dict[str, list[RunFolder | SweepFolder]]
    current: dict[str, list[RunFolder | SweepFolder]]

    def newest(self) -> dict[str, RunFolder | SweepFolder]:
        """Return the newest run or sweep of each stage, in the order of the stages."""
        stages = self.record.stages
        return {name: self.members[name][-1] for name in stages if name in self.members}

    def runs(self) -> list[RunFolder]:
        """Return the newest runs of all stages."""
        return [run for each in self.current.values() for one in each for run in runs_of(one)]

    @property
    def is_whole(self) -> bool:
        """True if no stage remained to be submitted; stages may have been deleted since."""
        return any(one.pipeline_whole.exists() for each in self.members.values() for one in each)

    def superseded(self) -> set[RunFolder]:
        """Return the runs of stages that were resubmitted."""
        every = {run for each in self.members.values() for one in each for run in runs_of(one)}
        return every - {*self.runs()}


def read_pipeline(folders: Iterable[RunFolder | SweepFolder]) -> Pipeline | None:
    """Return the pipeline that runs belong to, None if they are no pipeline.

    Args:
        folders: The runs of a group, oldest first.
    """
    record, members = None, dict[str, list[RunFolder | SweepFolder]]()
    newest: dict[tuple[str, str | None], RunFolder | SweepFolder] = {}
    for folder in folders:
        found = None
        with contextlib.suppress(HpcrunError):
            found = read_record(folder.pipeline, PipelineRecord)
        if found is not None and found.stage in found.stages:
            record = found
            members.setdefault(found.stage, []).append(folder)
            newest[found.stage, found.checkpoint] = folder
    if record is None:
        return None
    current: dict[str, list[RunFolder | SweepFolder]] = {}
    for (stage, _), folder in newest.items():
        current.setdefault(stage, []).append(folder)
    return Pipeline(record=record, members=members, current=current)


def find_pipeline(context: Context, word: str | None) -> Pipeline | None:
    """Find a pipeline by its id; None if there is none. Its records are fetched."""
    try:
        if word is None or find_run_or_sweep(context.runs_dir, word) is not None:
            return None
    except InputError:  # it matches several runs
        return None
    return read_pipeline(find_group(context, word))


def list_pipelines(context: Context, name: str) -> list[Pipeline]:
    """List the pipelines of a file of the project, newest first, by the records known here.

    Those whose submission was interrupted are included.
    """
    found: dict[str, list[RunFolder | SweepFolder]] = {}
    for folder in list_names(context.runs_dir):
        sweep_id = parse_sweep_id(folder)
        path = context.runs_dir / folder
        if not RUN_ID.fullmatch(sweep_id or folder) or TASK_ID.fullmatch(folder):
            continue
        if not (path / PIPELINE).is_file() or foreign_owner(path):
            continue
        record = None
        with contextlib.suppress(HpcrunError):
            record = read_record(path / PIPELINE, PipelineRecord)
        if record is not None and (record.name, record.project) == (name, str(context.project)):
            one = RunFolder(path) if sweep_id is None else SweepFolder(path)
            found.setdefault(record.id, []).append(one)
    pipelines = (read_pipeline(reversed(folders)) for folders in found.values())
    return [each for each in pipelines if each is not None]


class StageStatus(Struct, frozen=True, kw_only=True):
    """The state of a stage of a pipeline.

    Attributes:
        statuses: The states of its newest run, or of the runs of its newest sweep.
        skipped: Why the stage does not start; "" if it may.
        refused: Why the job of its training has not submitted a run of it; "" if it has.
        remaining: How many checkpoints have no run of it, although its training has ended and none
            of its runs waits or runs.
    """

    name: str
    stage: Stage
    statuses: list[JobStatus]
    skipped: str = ""
    refused: str = ""
    remaining: int = 0

    @property
    def state(self) -> str:
        """SKIPPED, NOT_SUBMITTED, or that of its runs: of several, one that decides."""
        if self.skipped:
            return SKIPPED
        states = [status.state for status in self.statuses]
        for each in (ACTIVE, WAITING, {UNKNOWN}):
            if found := [state for state in states if state in each]:
                return found[0]
        return next((each for each in states if each not in OK_STATES), [*states, NOT_SUBMITTED][0])

    @property
    def final(self) -> bool:
        """True if the stage is skipped, or all its runs have ended."""
        return bool(self.skipped) or (
            bool(self.statuses) and all(status.final for status in self.statuses)
        )

    @property
    def ok(self) -> bool:
        """True if all its runs succeeded."""
        return bool(self.statuses) and all(status.ok for status in self.statuses)

    def rows(self) -> list[JobStatus]:
        """Return rows of a listing, named after the stage."""
        if not self.statuses:
            verdict = Verdict(state=self.state, final=self.final)
            empty = JobStatus(verdict=verdict, history=History(run_id=""))
            training = self.stage.for_each_checkpoint_of
            waits = f"no complete checkpoint of {training} was submitted yet" if training else ""
            remark = self.skipped or self.refused or self._describe_remaining() or waits
            return [structs.replace(empty, name=self.name, remark=remark)]
        rows = [structs.replace(status, name=self.name) for status in self.statuses]
        if note := self.refused or self._describe_remaining():
            rows[-1] = structs.replace(rows[-1], remark=note)
        if not self.skipped:
            return rows
        return [
            structs.replace(
                row,
                verdict=structs.replace(row.verdict, state=SKIPPED, reason="", notes=[]),
                remark=self.skipped,
            )
            for row in rows
        ]

    def _describe_remaining(self) -> str:
        if not self.remaining:
            return ""
        count = "1 checkpoint" if self.remaining == 1 else f"{self.remaining} checkpoints"
        return f"{count} without an evaluation; hpcrun wait submits them"


def describe_stages(pipeline: Pipeline, statuses: Sequence[JobStatus]) -> list[StageStatus]:
    """Return the states of all stages, from those of the pipeline's newest runs."""
    of_run = {status.run.path: status for status in statuses if status.run is not None}
    found: dict[str, StageStatus] = {}
    for name, stage in pipeline.record.stages.items():
        runs = [run for one in pipeline.current.get(name, []) for run in runs_of(one)]
        own = [of_run[run.path] for run in runs if run.path in of_run]
        one = StageStatus(name=name, stage=stage, statuses=own)
        if stage.for_each_checkpoint_of is None and all(_never_started(status) for status in own):
            one = structs.replace(one, skipped=find_obstacle(stage, found))
        for training in pipeline.members.get(stage.for_each_checkpoint_of or "", [])[-1:]:
            before = found.get(stage.for_each_checkpoint_of or "")
            one = structs.replace(one, refused=_read_refusal(training, name))
            if before is not None and before.final and all(status.final for status in own):
                one = structs.replace(one, remaining=_count_remaining(training, name))
        found[name] = one
    return list(found.values())


def _read_refusal(training: RunFolder | SweepFolder, stage: str) -> str:
    record = None
    if isinstance(training, RunFolder):
        with contextlib.suppress(HpcrunError):
            record = read_record(training.evaluations_refused, RefusedEvaluation)
    if record is None or record.stage != stage:
        return ""
    if record.kind == "error":
        return record.message
    if record.kind == "silent":
        return f"Slurm did not answer the job that submits it ({record.message}); hpcrun wait does"
    return f"the training's job cannot submit it ({record.message}); hpcrun wait does"


def _count_remaining(training: RunFolder | SweepFolder, stage: str) -> int:
    if not isinstance(training, RunFolder):
        return 0
    if training.cancelled.exists() or training.evaluations_cancelled.exists():
        return 0
    with contextlib.suppress(HpcrunError):
        return (read_record(training.evaluations_remaining, dict[str, int]) or {}).get(stage, 0)
    return 0


def _never_started(status: JobStatus) -> bool:
    """Return True for a job that Slurm ended before its start, without a request of the user."""
    history = status.history
    return status.final and not (status.ok or history.last is not None or history.cancelled)


def find_obstacle(stage: Stage, others: Mapping[str, StageStatus]) -> str:
    """Return why a stage cannot start any more, by the ends of those before it; "" if it can.

    Those that are not among ``others`` have not ended.
    """
    before = [others[name] for name in stage.after if name in others]
    if stage.when in ("success", "each"):
        for one in before:
            ended = [status.state for status in one.statuses if status.final and not status.ok]
            state = one.state if one.skipped else next(iter(ended), "")
            if state not in ("", NOT_SUBMITTED):
                return f"{one.name} {state}"
    is_complete = len(before) == len(stage.after)
    if stage.when == "failure" and is_complete and all(one.ok for one in before):
        return f"{' and '.join(one.name for one in before)} succeeded"
    return ""


def has_failed(stages: Sequence[StageStatus]) -> bool:
    """Return True if a stage failed.

    Skipped stages do not count: either one before them failed, or nothing had to be done.
    """
    return any(one.final and not one.ok and not one.skipped for one in stages)


def list_unsubmitted(pipeline: Pipeline, stages: Sequence[StageStatus]) -> list[str]:
    """List the stages that an interrupted submission has left out.

    Stages are submitted in order: an earlier one that is missing has been deleted.
    """
    if pipeline.is_whole:
        return []
    single = [one for one in stages if one.stage.for_each_checkpoint_of is None]
    left: list[str] = []
    for one in single:
        is_missing = one.name not in pipeline.members or (
            bool(one.statuses) and one.state == NOT_SUBMITTED
        )
        if is_missing and not one.skipped:
            left.append(one.name)
        elif not is_missing and left:
            return []
    return left


def stage_json(one: StageStatus) -> dict[str, Any]:
    """Return the JSON of a stage's state."""
    return {
        "stage": one.name,
        "job": one.stage.job,
        "after": one.stage.after,
        "when": one.stage.when,
        "state": one.state,
        "final": one.final,
        "skipped": one.skipped or None,
        "refused": one.refused or None,
        "run_ids": [status.run_id for status in one.statuses],
    }
