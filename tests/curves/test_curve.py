"""The curve of a run's logs: one value per step; passes, restarts, ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.curves.curve import Curve, Restart
from hpcrun.curves.derive import derive_curve
from hpcrun.curves.report.thin import quantile
from hpcrun.curves.row import Mark
from hpcrun.curves.store import MAX_METRICS, Store
from tests.curves.parsing import parse_chunks
from tests.curves.rows import Line, at, both, build, pieces_of


def losses(steps: Iterable[int], start: float = 0.0, **more: Any) -> list[Line]:
    """Return a loss at each step, increasing by one from ``start``."""
    return [at(0, step, start + number, **more) for number, step in enumerate(steps)]


class TestAttempts:
    def test_later_attempt_replaces_replayed_steps(self) -> None:
        first = [at(0, step, 10.0 - step) for step in range(1, 6)]
        second = [at(1, step, 20.0 - step) for step in range(4, 9)]
        curve = build(first + second)
        assert both(curve, "loss") == (
            [1, 2, 3, 4, 5, 6, 7, 8],
            [9.0, 8.0, 7.0, 16.0, 15.0, 14.0, 13.0, 12.0],
        )
        assert curve.restarts == (Restart(1, lost_at=5, resumed_at=4, replayed=2),)

    def test_steps_lost_by_a_restart_are_removed(self) -> None:
        lines = [at(0, step, 1.0) for step in range(1, 101)]
        lines += [at(0, 100, 1.0, name="eval_loss"), at(1, 51, 2.0), at(1, 52, 2.0)]
        curve = build(lines)
        assert curve.steps("loss") == list(range(1, 53))
        assert "eval_loss" not in curve.metrics

    def test_initial_evaluation_replaces_no_training_steps(self) -> None:
        lines = [at(0, step, 1.0) for step in range(1, 101)] + [at(0, 50, 3.0, name="eval_loss")]
        lines += [at(1, 0, 9.0, name="eval_loss"), at(1, 81, 2.0)]
        curve = build(lines)
        assert curve.steps("loss") == list(range(1, 82))
        assert curve.steps("eval_loss") == [0, 50]

    def test_attempt_without_metrics_is_a_restart(self) -> None:
        curve = build([at(0, 1, 1.0), at(2, 2, 1.0)], attempts=[0, 1, 2])
        assert curve.restarts == (Restart(1, 1, None, 0), Restart(2, 1, 2, 0))

    def test_first_logging_attempt_is_a_restart_without_a_lost_step(self) -> None:
        curve = build([at(1, 5, 1.0)], attempts=[0, 1])
        assert curve.restarts == (Restart(1, None, 5, 0),)

    def test_run_without_a_loss_has_restarts(self) -> None:
        lines = [at(0, step, 0.1, name="lr") for step in range(10)]
        lines += [at(1, step, 0.2, name="lr") for step in (6, 7)]
        curve = build(lines)
        assert both(curve, "lr") == ([*range(8)], [0.1] * 6 + [0.2] * 2)
        assert curve.restarts == (Restart(1, lost_at=9, resumed_at=6, replayed=4),)

    def test_points_without_steps_are_never_replaced(self) -> None:
        curve = build([at(0, None, 3.0), at(1, None, 2.0)])
        assert both(curve, "loss") == ([None, None], [3.0, 2.0])
        assert curve.restarts == (Restart(1, None, None, 0),)

    def test_restart_within_an_epoch_replays_that_epoch(self) -> None:
        lines = [at(0, step, 1.0, epoch=float(epoch)) for epoch in range(3) for step in range(5)]
        lines += [at(1, step, 2.0, epoch=2.0) for step in range(2, 5)]
        curve = build(lines)
        assert curve.steps("loss") == [*range(5), *range(5), *range(5)]
        assert curve.values("loss") == [1.0] * 12 + [2.0] * 3
        assert curve.restarts == (Restart(1, lost_at=4, resumed_at=2, replayed=3),)

    def test_restart_in_an_earlier_epoch_replaces_later_steps(self) -> None:
        lines = [at(0, step, 1.0, epoch=float(epoch)) for epoch in range(1, 4) for step in range(5)]
        lines += [at(1, step, 2.0, epoch=2.0) for step in (3, 4)]
        lines += [at(1, 0, 2.0, epoch=3.0)]
        curve = build(lines)
        assert curve.steps("loss") == [*range(5), *range(5), 0]
        assert curve.values("loss") == [1.0] * 8 + [2.0] * 3

    def test_steps_repeated_per_epoch_are_no_replay(self) -> None:
        lines = [at(e, s, 1.0, epoch=float(e)) for e in range(3) for s in range(5)]
        curve = build(lines)
        assert len(curve.steps("loss")) == 15
        assert [restart.replayed for restart in curve.restarts] == [0, 0]


class TestOneLog:
    def test_interleaved_values_of_one_step_are_one_point(self) -> None:
        curve = build([at(0, s, float(i)) for i, s in enumerate([1, 1, 2, 1, 2, 3, 2, 3])])
        assert both(curve, "loss") == ([1, 2, 3], [3.0, 6.0, 7.0])

    def test_step_printed_in_two_formats_is_one_point(self) -> None:
        lines = []
        for step in range(1, 50):
            lines += [at(0, step, 2.5, form="deepspeed"), at(0, step, 2.4996, form="megatron")]
        curve = build(lines)
        assert both(curve, "loss") == ([*range(1, 50)], [2.4996] * 49)
        assert (curve.notes, curve.restarts) == ((), ())

    def test_counter_restarting_each_epoch_is_no_replay(self) -> None:
        lines = [at(0, s, e + s / 10, epoch=float(e)) for e in range(3) for s in range(2)]
        curve = build(lines)
        assert both(curve, "loss") == ([0, 1] * 3, [0.0, 0.1, 1.0, 1.1, 2.0, 2.1])
        assert curve.restarts == ()

    def test_epoch_marks_separate_epochs(self) -> None:
        lines = []
        for epoch in range(3):
            lines += [Line(mark=Mark(epoch=epoch)), *losses(range(4), 10.0 * epoch)]
        curve = build(lines)
        assert curve.steps("loss") == [*range(4)] * 3
        assert (curve.restarts, curve.notes) == ((), ())

    def test_counter_restarting_without_an_epoch_is_another_run(self) -> None:
        curve = build(losses(range(4)) + losses(range(4), 10.0))
        assert curve.values("loss") == [0, 1, 2, 3, 10, 11, 12, 13]
        assert curve.restarts == ()
        assert curve.notes == (
            "the step counter restarts after step 3: "
            "read as another run in the same file, not as a requeue",
        )

    def test_short_trainings_are_shown(self) -> None:
        curve = build([line for n in (5, 2, 1, 4) for line in losses(range(1, n + 1), 10.0 * n)])
        assert curve.steps("loss") == [1, 2, 3, 4, 5, 1, 2, 1, 1, 2, 3, 4]
        assert curve.restarts == ()
        assert ["restarts after step 5 and at 2 other" in note for note in curve.notes] == [True]

    def test_hidden_points_are_counted(self) -> None:
        curve = build(losses([*range(10, 110, 10), 60, 50, 40, 30]))
        assert curve.steps("loss") == [*range(10, 110, 10)]
        assert ["10 of 14 losses are shown" in note for note in curve.notes] == [True]

    def test_counter_restarting_at_its_total_begins_another_epoch(self) -> None:
        curve = build(losses(range(1, 9), total=8) + losses(range(1, 9), 10.0, total=8))
        assert curve.steps("loss") == [*range(1, 9)] * 2
        assert ["the next epoch, or another run" in note for note in curve.notes] == [True]

    def test_many_runs_in_a_log_have_one_note(self) -> None:
        lengths = (8, 9, 8, 30, 7)
        curve = build([line for length in lengths for line in losses(range(1, 1 + length))])
        assert curve.summary("loss").count == sum(lengths)  # type: ignore[union-attr]
        (note,) = curve.notes
        assert "restarts after step 8 and at 2 other places: read as another run" in note

    @pytest.mark.parametrize(
        ("back_to", "restarts", "text"),
        [(30, 1, "falls from 0.5 to 0.3: the run was resumed"), (1, 0, "contains 2 trainings")],
    )
    def test_falling_epochs_without_steps_are_handled(
        self, back_to: int, restarts: int, text: str
    ) -> None:
        parts = [*range(1, 51), *range(back_to, 90)]
        curve = build([Line((("loss", 2.5),), epoch=part / 100) for part in parts])
        assert curve.steps("loss") == [None] * (len(parts) if restarts else 89)
        assert curve.restarts == (Restart(0, None, None, 0),) * restarts
        assert [text in note for note in curve.notes] == [True]

    def test_unannounced_resumption_is_detected(self) -> None:
        curve = build(losses(range(0, 200, 10)) + losses(range(120, 300, 10), 50.0))
        assert curve.steps("loss") == [*range(0, 300, 10)]
        assert curve.values("loss")[11:14] == [11.0, 50.0, 51.0]
        assert curve.restarts == (Restart(0, lost_at=190, resumed_at=120, replayed=71),)

    def test_announced_resumption_is_detected(self) -> None:
        lines = [*losses(range(20)), Line(mark=Mark(restart=True)), *losses([18, 19, 20], 50.0)]
        curve = build(lines)
        assert curve.restarts == (Restart(0, lost_at=19, resumed_at=18, replayed=2),)
        assert both(curve, "loss") == ([*range(21)], [*range(18), 50.0, 51.0, 52.0])

    def test_restart_message_before_any_value_is_no_restart(self) -> None:
        assert build([Line(mark=Mark(restart=True)), *losses(range(5))]).restarts == ()

    @pytest.mark.parametrize("late", [[150], [180], [150, 160]], ids=str)
    def test_late_line_is_no_restart(self, late: list[int]) -> None:
        curve = build(losses(range(0, 200, 10)) + losses(late, 50.0))
        assert curve.restarts == ()
        assert curve.steps("loss") == [*range(0, 200, 10)]
        assert curve.values("loss")[late[0] // 10] == 50.0

    def test_interleaved_processes_are_one_curve_with_a_note(self) -> None:
        lines = [at(0, step, step + who / 10) for step in range(0, 500, 20) for who in range(4)]
        curve = build(lines)
        assert curve.steps("loss") == [*range(0, 500, 20)]
        assert curve.restarts == ()
        assert [note[:25] for note in curve.notes] == ["each step appears 4 times"]

    def test_drifting_processes_are_no_restarts(self) -> None:
        drifts = (0, 100, 160)
        lines = [at(0, step - drift, 1.0) for step in range(200, 900, 20) for drift in drifts]
        assert build(lines).restarts == ()

    @pytest.mark.slow
    def test_many_different_metrics_are_limited(self) -> None:
        lines = [
            Line(tuple((f"m{step}_{metric}", 1.0) for metric in range(100)), step=step)
            for step in range(120)
        ]
        curve = build([*lines, *losses(range(120, 130))])
        assert len(curve.metrics) == MAX_METRICS + 1 and len(curve.steps("loss")) == 10
        assert ["more than 10,000 metrics" in note for note in curve.notes] == [True]

    def test_closing_summary_without_a_step_is_excluded(self) -> None:
        assert both(build([at(0, 1, 3.0), at(0, None, 9.0)]), "loss") == ([1], [3.0])

    def test_few_losses_with_steps_do_not_outweigh_many_without(self) -> None:
        epochs = [at(0, None, 60.0 - epoch, epoch=float(epoch)) for epoch in range(60)]
        assert build([*epochs, at(0, 700, 0.25)]).steps("loss") == [*range(60)]

    def test_epochs_of_many_losses_outweigh_steps_of_few(self) -> None:
        epochs = [at(0, None, 60.0 - epoch, epoch=float(epoch)) for epoch in range(60)]
        saved = [at(0, step, 0.25) for step in range(0, 200, 10)]
        assert build([*epochs, *saved]).steps("loss") == [*range(60)]

    def test_constant_step_is_ignored(self) -> None:
        stuck = [at(0, 0, 100.0 - n) for n in range(80)]
        assert both(build(stuck), "loss") == ([None] * 80, [100.0 - n for n in range(80)])
        assert build(stuck[:64]).steps("loss") == [0]  # as many processes may print it

    def test_excluded_losses_without_steps_have_a_note(self) -> None:
        lines = [line for n in range(20) for line in (at(0, n, 1.0), *[at(0, None, 2.0)] * 3)]
        curve = build(lines)
        assert curve.steps("loss") == [*range(20)]
        assert curve.notes == ("60 losses without a step are not shown",)

    def test_times_are_taken_from_the_rows(self) -> None:
        curve = build([at(0, 1, 3.0, time=100.0), at(0, 2, 2.0, time=101.5)])
        assert curve.metrics["loss"].times == [100.0, 101.5]
        assert build([at(0, 1, 3.0, time=100.0), at(0, 2, 2.0)]).metrics["loss"].times is None

    def test_total_steps_are_those_of_the_training(self) -> None:
        lines = [*losses(range(1, 9), total=100), at(0, 8, 1.0, name="eval_loss", total=5000)]
        assert build(lines).total_steps == 100

    def test_epochs_are_counted_from_the_first_epoch_of_all_rows(self) -> None:
        lines = [at(0, step, 3.0, epoch=0.0) for step in (10, 20)]
        for epoch in (1.0, 2.0):
            lines += losses((10, 20, 30), epoch=epoch, total=30)
        assert build(lines).steps("loss") == [10, 20, 40, 50, 60, 70, 80, 90]

    def test_total_next_to_epochs_may_be_per_epoch(self) -> None:
        first = losses(range(1, 9), epoch=0.0, total=100)
        assert build(first).total_steps is None
        assert build(first + losses(range(9, 12), epoch=1.0, total=100)).total_steps == 100


class TestRanksAndFiles:
    def test_lowest_rank_is_used(self) -> None:
        lines = [at(0, step, float(rank), rank=rank) for step in range(9) for rank in (3, 1, 2)]
        curve = build(lines)
        assert both(curve, "loss") == ([*range(9)], [1.0] * 9)
        assert curve.notes == ()

    def test_each_metric_is_taken_from_the_rank_that_logs_it(self) -> None:
        lines = []
        for step in range(9):
            lines += [at(0, step, 2.0, rank=7), at(0, step, 0.1, name="lr", rank=0)]
        curve = build(lines)
        assert curve.values("loss") == [2.0] * 9
        assert curve.values("lr") == [0.1] * 9

    def test_rank_with_a_single_line_is_ignored(self) -> None:
        lines = [at(0, 0, 9.0, rank=0)] + [at(0, step, 2.0, rank=63) for step in range(9)]
        assert build(lines).values("loss") == [2.0] * 9

    def test_many_ranks_are_handled(self) -> None:
        lines = [at(0, 0, 9.0, rank=rank) for rank in range(64)]
        lines += [at(0, step, 2.0, rank=63) for step in range(9)]
        assert build(lines).values("loss") == [2.0] * 9

    def test_first_file_is_used_unless_another_has_more(self) -> None:
        lines = [at(0, step, float(file), file=file) for file in (0, 1) for step in range(9)]
        lines += [at(0, step, 0.1, name="lr", file=1) for step in range(9)]
        curve = build(lines)
        assert curve.values("loss") == [0.0] * 9
        assert curve.values("lr") == [0.1] * 9

    def test_source_is_chosen_per_attempt(self) -> None:
        lines = [at(0, step, 1.0) for step in range(9)]
        lines += [at(1, 5, 0.1, name="lr"), *(at(1, step, 2.0, file=1) for step in (5, 6))]
        assert both(build(lines), "loss") == ([*range(7)], [1.0] * 5 + [2.0] * 2)

    def test_restart_in_several_files_is_counted_once(self) -> None:
        lines = [at(a, step, 1.0, file=f) for a in (0, 1) for f in (0, 1) for step in range(9)]
        assert build(lines).restarts == (Restart(1, lost_at=8, resumed_at=0, replayed=9),)

    def test_logs_may_grow_in_parallel(self) -> None:
        store = Store()
        for first in (0, 3):
            for file in (0, 1):
                name = "loss" if file else "lr"
                store.begin(0, file)
                store.add(pieces_of([at(0, step, 1.0, name=name) for step in range(first, 3)]))
        assert derive_curve(store).steps("loss") == derive_curve(store).steps("lr") == [0, 1, 2]

    def test_adding_to_an_unstarted_log_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="begin"):
            Store().add([])


def test_note_names_the_metric_used_as_loss() -> None:
    values = (("loss_disc", 3.0), ("loss_fm", 2.0), ("grad_norm", 1.0))
    (note,) = build([Line(values, step=step) for step in range(5)]).notes
    assert "using loss_disc" in note and "(loss_fm)" in note
    with_loss = (("loss", 3.0), *values)
    assert build([Line(with_loss, step=step) for step in range(5)]).notes == ()


def test_summary_has_first_last_and_best_values() -> None:
    values = [3.0, math.nan, 1.0, math.inf, 2.0]
    summary = build([at(0, i, v) for i, v in enumerate(values)]).summary("loss")
    assert summary is not None
    assert (summary.count, summary.first, summary.last) == (5, (0, 3.0), (4, 2.0))
    assert (summary.min, summary.max) == ((2, 1.0), (3, math.inf))


def test_summary_without_values_is_none() -> None:
    assert build([]).summary("loss") is None
    only_nan = build([at(0, 1, math.nan)]).summary("loss")
    assert only_nan is not None
    assert only_nan.min is None and only_nan.max is None


def test_reading_a_growing_log_does_not_change_the_curve() -> None:
    lines = losses(range(9)) + losses([3, 4, 5], 20.0) + losses([6, 7, 8, 9], 30.0)
    watched = Store()
    watched.begin(0)
    for index, line in enumerate(lines):
        watched.add(pieces_of([line], index))
        derive_curve(watched)
    assert derive_curve(watched) == build(lines)


@pytest.mark.slow
@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_quantile_matches_numpy(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found is not None
    assert found == np.quantile(values, share)
    assert min(values) - 1e-6 <= found <= max(values) + 1e-6
    assert quantile(values, 0.0) == min(values)
    assert quantile(values, 1.0) == pytest.approx(max(values))


_STEPS = st.one_of(st.none(), st.integers(0, 30))
_LINES = st.lists(
    st.one_of(
        st.builds(
            Line,
            values=st.lists(
                st.tuples(st.sampled_from(["loss", "lr", "eval_loss"]), st.floats(0, 9)),
                max_size=2,
                unique_by=lambda pair: pair[0],
            ).map(tuple),
            step=_STEPS,
            epoch=st.sampled_from([None, None, 0.0, 0.5, 1.0, 2.0]),
            attempt=st.just(0),
            split=st.sampled_from(["train", "train", "eval"]),
            rank=st.sampled_from([None, None, 0, 1]),
            bar=st.sampled_from([None, None, "", "Epoch 1"]),
            total=st.sampled_from([None, 30]),
            form=st.sampled_from(["a", "b"]),
        ),
        st.builds(
            Line,
            mark=st.builds(Mark, epoch=st.sampled_from([None, 1.0, 2.0]), restart=st.booleans()),
        ),
    ),
    max_size=50,
)


@pytest.mark.slow
@given(_LINES, st.sets(st.integers(0, 50)))
def test_curve_is_independent_of_chunks(lines: list[Line], cuts: set[int]) -> None:
    assert build(lines, cuts=cuts) == build(lines)


@pytest.mark.slow
@given(_LINES)
def test_curve_contains_only_values_of_the_log(lines: list[Line]) -> None:
    text = {(name, value) for line in lines for name, value in line.values}
    text |= {("epoch", line.epoch) for line in lines if line.epoch is not None}
    shown: set[float | None] = {line.step for line in lines}
    shown |= {line.epoch for line in lines}
    shown |= {math.floor(line.epoch) for line in lines if line.epoch is not None}
    headings = {line.mark.epoch for line in lines if line.mark and line.mark.epoch is not None}
    # Rows above the first heading belong to the epoch before it.
    shown |= headings | {epoch - 1 for epoch in headings}
    shown |= {1.0, None}  # of the bar
    # Within epochs of 30 steps, or of 31, from 0 to 30; the one behind the last may be cut off.
    counted = [line.step for line in lines if line.step is not None]
    shown |= {step + end * epoch for step in counted for end in (30, 31) for epoch in range(4)}
    if any(line.split == "eval" for line in lines):
        # Above all steps: as far before the first one as the second one is after it.
        steps = {step for step in shown if step is not None}
        shown |= {max(0, 2 * first - second) for first in steps for second in steps}
    for name, series in build(lines).metrics.items():
        assert {(name, value) for value in series.values} <= text
        assert set(series.steps) <= shown


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.floats(0, 9)), max_size=60))
def test_every_point_is_in_the_log_at_its_step(rows: list[tuple[int, int, float]]) -> None:
    lines = [at(attempt, step, value) for attempt, step, value in rows]
    text = {(line.step, line.values[0][1]) for line in lines}
    steps, values = both(build(lines), "loss")
    assert set(zip(steps, values, strict=True)) <= text


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 20), min_size=1, unique=True).map(sorted), max_size=4))
def test_latest_attempt_wins(attempts: list[list[int]]) -> None:
    lines = [at(a, step, float(a)) for a, steps in enumerate(attempts) for step in steps]
    expected: dict[int | None, float] = {}
    for attempt, steps in enumerate(attempts):
        expected = {step: value for step, value in expected.items() if (step or 0) < steps[0]}
        expected |= dict.fromkeys(steps, float(attempt))
    curve: Curve = build(lines)
    assert dict(zip(*both(curve, "loss"), strict=True)) == expected
    assert curve.steps("loss") == sorted(expected)  # type: ignore[type-var]


_BARS = (
    b" 50%|#####     | 20/40 [00:02<00:02,  9.81it/s]\r"
    b"100%|##########| 40/40 [00:03<00:00, 12.30it/s]\n"
)
_SUMMARY = (
    b"{'train_runtime': 3.2, 'train_samples_per_second': 98.2, 'train_steps_per_second': 12.2, "
    b"'train_loss': 3.6, 'epoch': 2.0}\n"
)
_EVALUATION = (
    b"{'eval_loss': 3.9, 'eval_runtime': 0.1, 'eval_steps_per_second': 9.0, 'epoch': 1.0}\n"
)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (_BARS + _SUMMARY, "no step was logged"),
        (_BARS + _EVALUATION + _SUMMARY, "no step was logged"),
        (_BARS + _EVALUATION, "no step was logged"),
        (_BARS, "only progress bars"),
        (b"{'loss': 4.0, 'epoch': 1.0}\n{'loss': 3.0, 'epoch': 2.0}\n" + _SUMMARY, ""),
        (b"step 1 loss 2.0\nstep 2 loss 1.0\n", ""),
        (b"step 1 accuracy 0.1\nstep 2 accuracy 0.3\n", ""),
    ],
)
def test_missing_steps_of_the_trainer_are_explained(log: bytes, says: str) -> None:
    notes = " ".join(parse_chunks("a.log", [(0, [log])]).curve.notes)
    assert ("logging_steps=10" in notes) == bool(says) and says in notes, notes
