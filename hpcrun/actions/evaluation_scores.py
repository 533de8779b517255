"""Add the scores of evaluations to the curve of the training whose checkpoints they evaluated."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from hpcrun.context import Context
from hpcrun.curves import LOSS, Curve, Series, build_series
from hpcrun.errors import HpcrunError
from hpcrun.jobside import parse_position
from hpcrun.monitor import list_group
from hpcrun.runs import (
    END_STATES,
    PipelineRecord,
    RunFolder,
    SweepFolder,
    read_history,
    read_plan,
    read_record,
)

# How often the runs of the pipeline are listed while the training's log is followed.
_LIST_EVERY_S = 10.0
# What the number in a checkpoint's name counts, by the word before it.
_STEP_WORDS = frozenset({"step", "steps", "iter", "iteration", "update"})
_EPOCH_WORDS = frozenset({"epoch", "ep"})
_OTHER_WORDS = frozenset({"batch", "token", "tokens"})

ReadCurve = Callable[[RunFolder], Curve]


class _Evaluation(Struct, frozen=True, kw_only=True):
    """An evaluation that has succeeded.

    Attributes:
        scores: The metrics that it logged once.
        repeated: The names of those that it logged several times.
    """

    stage: str
    checkpoint: str
    scores: dict[str, float]
    repeated: list[str]


class EvaluationScores:
    """The scores of a training's checkpoints, from the logs of the runs that evaluated them."""

    def __init__(self, context: Context, training: RunFolder, read_curve: ReadCurve) -> None:
        self._context, self._training, self._read_curve = context, training, read_curve
        self._known: dict[RunFolder, _Evaluation] = {}
        self._current: list[_Evaluation] = []
        self._is_newest = True
        self._due = 0.0

    def update(self) -> bool:
        """Read the evaluations that have ended since; return True if there were any."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _LIST_EVERY_S
        before = self._current
        with contextlib.suppress(HpcrunError):
            self._list_evaluations()
        return self._current != before

    def _list_evaluations(self) -> None:
        own, plan = read_record(self._training.pipeline, PipelineRecord), read_plan(self._training)
        if own is None or own.checkpoint is not None or plan is None:
            return
        newest: dict[tuple[str, str], _Evaluation] = {}
        folder = os.path.normpath(plan.checkpoint_dir)
        for run in list_group(self._context.runs_dir, own.id):
            record = None
            with contextlib.suppress(HpcrunError):
                record = read_record(run.pipeline, PipelineRecord)
            if record is None:
                continue
            if record.stage == own.stage:
                self._is_newest = run == self._training
            if isinstance(run, SweepFolder) or record.checkpoint is None:
                continue
            training = record.stages[record.stage].for_each_checkpoint_of
            is_own = os.path.normpath(record.checkpoint).startswith(f"{folder}/")
            if training == own.stage and is_own and (one := self._read(run, record)):
                newest[record.stage, record.checkpoint] = one
        self._current = [*newest.values()]

    def _read(self, run: RunFolder, record: PipelineRecord) -> _Evaluation | None:
        """Return the evaluation of a run; None if it has not succeeded."""
        if run not in self._known:
            end = read_history(run).end
            if end is None or end.exit_code or end.next or end.stopped_by or end.why in END_STATES:
                return None
            metrics = self._read_curve(run).metrics
            self._known[run] = _Evaluation(
                stage=record.stage,
                checkpoint=record.checkpoint or "",
                scores={
                    name: series.values[0]
                    for name, series in metrics.items()
                    if series.summary.count == 1
                },
                repeated=[name for name, series in metrics.items() if series.summary.count > 1],
            )
        return self._known[run]

    def add(self, curve: Curve) -> Curve:
        """Return the training's curve with the scores as further metrics, STAGE.METRIC."""
        stages: dict[str, list[_Evaluation]] = {}
        for one in self._current:
            stages.setdefault(one.stage, []).append(one)
        for name, evaluations in stages.items():
            curve = _add_stage(curve, name, evaluations, is_newest=self._is_newest)
        return curve


def _add_stage(
    curve: Curve, stage: str, evaluations: list[_Evaluation], *, is_newest: bool
) -> Curve:
    notes: list[str] = []
    placed: dict[int, _Evaluation] = {}
    problem = ""
    for one in evaluations:
        name = one.checkpoint.rpartition("/")[2]
        word, number = parse_position(name)
        unit = _find_unit(word)
        if number is None or number != int(number) or unit == "other":
            problem = f"the name of {name} has no number of a step or an epoch"
        elif curve.trainings > 1:
            problem = f"the log contains {curve.trainings} trainings"
        elif curve.axis not in ("step", "epoch"):
            problem = "the training's log has neither steps nor epochs"
        elif unit and unit != curve.axis:
            problem = f"the name of {name} counts {unit}s, and the training's log {curve.axis}s"
        elif int(number) in placed:
            other = placed[int(number)].checkpoint.rpartition("/")[2]
            problem = f"{other} and {name} have the same number"
        else:
            placed[int(number)] = one
        if problem:
            note = f"{stage}: the scores are not drawn: {problem}"
            return structs.replace(curve, notes=(*curve.notes, note))
        if not unit and not notes:
            notes.append(f"{stage}: {name} is drawn at {curve.axis} {int(number or 0)}")
    last, gap = _find_end(curve)
    # The end of a log may be in a buffer when a checkpoint is saved.
    limit = max(last + gap, curve.total_steps or 0) if is_newest else last
    beyond = sorted(number for number in placed if number > limit)
    if beyond and is_newest:
        text = f"{stage}: {curve.axis} {beyond[0]} is beyond the training's log: not drawn"
        notes.append(text)
    kept = {number: placed[number] for number in sorted(placed) if number <= limit}
    silent = [one for one in evaluations if not one.scores and not one.repeated]
    if silent:
        count = f"{len(silent)} of {len(evaluations)} evaluations"
        notes.append(f"{stage}: {count} logged no score that hpcrun reads")
    repeated = dict.fromkeys(name for one in evaluations for name in one.repeated)
    if repeated:
        names = ", ".join(repeated)
        notes.append(f"{stage}: not drawn, because an evaluation logged it several times: {names}")
    scores = _build_scores(stage, kept)
    if clash := next((name for name in scores if name in curve.metrics), None):
        notes.append(
            f"{stage}: not drawn, because the training logged a metric of that name: {clash}"
        )
    metrics = {**curve.metrics, **{n: x for n, x in scores.items() if n not in curve.metrics}}
    return structs.replace(curve, metrics=metrics, notes=(*curve.notes, *notes))


def _build_scores(stage: str, placed: Mapping[int, _Evaluation]) -> dict[str, Series]:
    names = dict.fromkeys(name for one in placed.values() for name in one.scores)
    found = {}
    for name in names:
        points = {number: one.scores[name] for number, one in placed.items() if name in one.scores}
        found[f"{stage}.{name}"] = build_series([*points], [*points.values()])
    return found


def _find_unit(word: str) -> str:
    """Return what a checkpoint's number counts: step, epoch, other; "" if the name is ambiguous."""
    parts = {part for part in word.replace("-", "_").replace("=", "_").split("_") if part}
    for unit, words in (("step", _STEP_WORDS), ("epoch", _EPOCH_WORDS), ("other", _OTHER_WORDS)):
        if parts & words:
            return unit
    return ""


def _find_end(curve: Curve) -> tuple[int, int]:
    """Return the last step of the training, and the largest distance between two."""
    names = [LOSS] if LOSS in curve.metrics else [*curve.metrics]
    steps = sorted({step for name in names for step in curve.steps(name) if step is not None})
    gaps = (after - before for before, after in zip([0, *steps], steps, strict=False))
    return (steps[-1] if steps else 0), max(gaps, default=0)
