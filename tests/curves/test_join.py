"""Rows without a step: bars, step lines, epochs, order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from hpcrun.curves.curve import Curve, Restart
from hpcrun.curves.row import Mark
from tests.curves.rows import Line, at, both, build

_RATE = (("step_seconds", 0.5),)


def bar(step: int, total: int | None = 100, name: str = "", **more: Any) -> Line:
    """Return a drawn training bar."""
    return Line(_RATE, step, bar=name, total=total, form="bar", **more)


def dicts(steps: Iterable[int], drawn_after: bool = True) -> list[Line]:
    """Return the HF Trainer's output: the bar, a dictionary, the bar again."""
    lines = []
    for step in steps:
        lines += [bar(step), at(0, None, 100.0 - step, epoch=step / 40)]
        lines += [bar(step)] if drawn_after else []
    return lines


def evaluation(value: float, batches: int = 4, name: str = "") -> list[Line]:
    """Return an evaluation: its own bar, then a dictionary."""
    drawn = [bar(batch, batches, name) for batch in range(batches + 1)]
    return [*drawn, at(0, None, value, name="eval_loss")]


class TestBars:
    def test_dictionary_has_the_step_of_the_previous_bar(self) -> None:
        curve = build(dicts(range(5, 55, 5)))
        assert both(curve, "loss") == ([*range(5, 55, 5)], [100.0 - s for s in range(5, 55, 5)])
        assert curve.total_steps == 100
        assert curve.steps("epoch") == curve.steps("loss")

    def test_dictionary_has_the_step_of_the_next_bar_if_bars_lag(self) -> None:
        lines = []
        for step in range(10, 90, 10):
            lines += [bar(step - step % 3 - 1), at(0, None, 1.0), bar(step)]
        assert build(lines).steps("loss") == [*range(10, 90, 10)]

    def test_printed_epochs_reveal_lagging_bars(self) -> None:
        """Steps too fast for the bar: it is drawn for the dictionaries alone, after each."""
        lines = [bar(0)]
        for step in range(1, 20):
            lines += [at(0, None, 1.0, epoch=step / 8), bar(step)]
        curve = build(lines)
        assert curve.steps("loss") == curve.steps("epoch") == [*range(1, 20)]
        lines = []
        for step, drawn in ((8, 8), (16, 16), (24, 24), (32, 31)):
            lines += [bar(drawn), at(0, None, 1.0, epoch=step / 8), bar(step)]
            lines += [bar(drawn), at(0, None, 2.0, name="eval_loss", epoch=step / 8), bar(step)]
        assert build(lines).steps("eval_loss") == [8, 16, 24, 32]
        # A loop that prints while the bar stands at the steps that are done; rounded, no epoch
        # tells, and the bar before counts.
        lines = [bar(0)]
        for step in range(1, 20):
            lines += [at(0, None, 1.0, epoch=round(step / 800, 2)), bar(step)]
        assert build(lines).steps("loss") == [*range(19)]

    def test_bars_of_other_work_count_no_steps(self) -> None:
        loading = [bar(n, 2, "Loading checkpoint shards") for n in range(3)]
        mapping = [bar(n, 700, "Map") for n in (0, 700)]
        lines = [*loading, *mapping, bar(0)]
        for step in range(10, 60, 10):
            lines += dicts([step])
            if step % 20 == 0:
                lines += [*evaluation(step / 100), bar(step)]
        curve = build(lines)
        assert curve.steps("loss") == [*range(10, 60, 10)]
        assert both(curve, "eval_loss") == ([20, 40], [0.2, 0.4])
        assert curve.steps("step_seconds") == [*range(0, 60, 10)]
        assert curve.total_steps == 100

    def test_evaluation_with_many_batches_counts_no_steps(self) -> None:
        lines = [*dicts([10]), *evaluation(0.5, 500), *dicts([20]), *evaluation(0.4, 500)]
        curve = build([*lines, *dicts([30])])
        assert curve.steps("loss") == [10, 20, 30]
        assert curve.steps("eval_loss") == [10, 20]

    def test_buffered_dictionaries_have_no_steps(self) -> None:
        lines = []
        for lump in range(3):
            lines += [bar(step) for step in range(lump * 30, lump * 30 + 30)]
            lines += [at(0, None, float(number)) for number in range(10)]
        curve = build(lines)
        assert both(curve, "loss") == ([None] * 30, [float(n) for n in range(10)] * 3)
        assert [note[:25] for note in curve.notes] == ["the losses come in groups"]

    @pytest.mark.parametrize("digits", [2, 4])
    def test_buffered_dictionaries_get_steps_from_their_epochs(self, digits: int) -> None:
        """100 steps are two epochs; the output comes at every 30th step."""
        lines: list[Line] = []
        for lump in range(0, 100, 30):
            lines += [bar(step) for step in range(lump, min(lump + 30, 100) + 1)]
            for step in range(lump + 5, min(lump + 30, 100) + 1, 5):
                epoch = round(step / 50, digits)
                lines.append(at(0, None, 100.0 - step, epoch=epoch))
                if step % 20 == 0:
                    lines.append(at(0, None, step / 100, name="eval_loss", epoch=epoch))
        curve = build(lines)
        assert both(curve, "loss") == ([*range(5, 105, 5)], [*range(95, -5, -5)])
        assert both(curve, "eval_loss") == ([20, 40, 60, 80, 100], [0.2, 0.4, 0.6, 0.8, 1.0])
        assert ["computed from their epochs" in note for note in curve.notes] == [True]

    @pytest.mark.parametrize("epoch", (math.nan, math.inf))
    def test_invalid_epochs_give_buffered_dictionaries_no_steps(self, epoch: float) -> None:
        lumps = [at(0, None, 1.0 / n, epoch=epoch) for n in range(1, 21)]
        curve = build([bar(10), *lumps, bar(50), *lumps, bar(100)])
        assert curve.steps("loss") == [None] * 40

    def test_buffer_before_the_first_heading_gets_no_steps(self) -> None:
        lump = [at(0, None, 1.0 / n) for n in range(1, 21)]
        lines = [bar(10), *lump, bar(50), Line(mark=Mark(epoch=2.0)), *lump, bar(100)]
        assert build(lines).steps("loss") == [None] * 40

    def test_bar_counting_bytes_gives_no_steps(self) -> None:
        """Tried one by one, the distances between its losses would take hours."""
        lump = [at(0, None, 1.0, epoch=round(0.1 + n * 0.17, 2)) for n in range(6)]
        lines = [bar(step * 10**9, 10**11) for step in range(1, 100)]
        assert build([*lines, *lump]).steps("loss") == [None] * 6

    def test_many_bars_before_the_training_are_ignored(self) -> None:
        """Each rank prepares its share of the data, and draws a bar of its own total."""
        lines = [bar(n, 1000 + rank) for rank in range(90) for n in (0, 500, 1000 + rank)]
        lines += dicts(range(1, 31), drawn_after=False)
        assert build(lines).steps("loss") == [*range(1, 31)]

    def test_closing_summary_is_no_point(self) -> None:
        closing = Line((("train_runtime", 9.0), ("loss", 55.0)), epoch=3.0)
        curve = build([*dicts(range(10, 60, 10)), closing, bar(100)])
        assert curve.values("loss")[-1] == 50.0
        assert curve.values("train_runtime") == [9.0]

    def test_step_with_a_training_runtime_is_a_point(self) -> None:
        lines = []
        for step in (10, 20, 30):
            values = (("loss", 40.0 - step), ("lr", 1e-4), ("train_runtime", step / 5))
            lines += [bar(step), Line(values, epoch=step / 10), bar(step)]
        curve = build([*lines, bar(40)])
        assert curve.steps("loss") == [10, 20, 30]
        assert curve.steps("train_runtime") == [10, 20, 30]

    def test_bar_without_rows_yields_its_speed(self) -> None:
        sampling = [Line((("step_seconds", 0.01),), n, bar="", total=400) for n in range(0, 400, 9)]
        curve = build([*sampling, *(bar(n, 500) for n in range(1, 261))])
        assert curve.steps("step_seconds") == [*range(1, 261)]
        assert "loss" not in curve.metrics

    def test_points_without_steps_keep_their_order(self) -> None:
        assert both(build([at(0, None, 3.0), at(0, None, 2.0)]), "loss") == (
            [None, None],
            [3.0, 2.0],
        )


class TestWhatBarsShow:
    @staticmethod
    def drawn(step: int, loss: float, epoch: int, **more: float) -> Line:
        values = (("loss", loss), *more.items(), *_RATE)
        return Line(values, step, float(epoch), bar="Epoch", total=4, form="bar")

    def epochs(self, count: int) -> list[Line]:
        """Draw as Lightning does: each step twice, an evaluation's loss until the next."""
        lines: list[Line] = []
        shown: dict[str, float] = {}
        for epoch in range(count):
            for step in range(5):
                loss = 10.0 * epoch + step
                stale = loss - 1 if step else 10.0 * epoch - 6
                if step or epoch:
                    lines.append(self.drawn(step, stale, epoch, **shown))
                if step:
                    lines.append(self.drawn(step, loss, epoch, **shown))
            shown = {"eval_loss": 0.5 - epoch / 10}
            lines.append(self.drawn(4, 10.0 * epoch + 4, epoch, **shown))
        return lines

    def test_last_value_of_each_step_is_used(self) -> None:
        curve = build(self.epochs(3))
        assert curve.steps("loss") == [*range(1, 13)]
        assert curve.values("loss") == [1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24]
        assert (curve.restarts, curve.notes, curve.total_steps) == ((), (), None)

    def test_evaluation_loss_repeated_on_a_bar_is_one_point(self) -> None:
        assert both(build(self.epochs(3)), "eval_loss") == ([4, 8, 12], [0.5, 0.4, 0.3])

    def test_lines_take_precedence_over_bars(self) -> None:
        lines = []
        for epoch in range(1, 6):
            lines += [self.drawn(4, 0.25, epoch), Line(mark=Mark(epoch=epoch))]
            lines += [at(0, None, 10.0 - epoch), at(0, None, 5.0, name="eval_loss")]
        curve = build(lines)
        assert both(curve, "loss") == ([1, 2, 3, 4, 5], [9.0, 8.0, 7.0, 6.0, 5.0])
        assert curve.steps("eval_loss") == [1, 2, 3, 4, 5]

    def test_bar_per_step_takes_precedence_over_a_line_per_epoch(self) -> None:
        lines = []
        for epoch in range(3):
            lines += [self.drawn(step, float(step), epoch) for step in range(1, 5)]
            lines.append(at(0, None, 99.0, epoch=float(epoch)))
        assert build(lines).steps("loss") == [*range(1, 13)]

    def test_evaluation_bar_is_placed_at_the_training_step(self) -> None:
        lines = []
        for step in range(10, 40, 10):
            lines += [at(0, step, 1.0)]
            lines += [
                Line((("eval_loss", step + n / 10),), n, split="eval", bar="Val", total=3)
                for n in range(1, 4)
            ]
        assert both(build(lines), "eval_loss") == ([10, 20, 30], [10.3, 20.3, 30.3])


class TestStepLines:
    def test_evaluation_belongs_to_the_previous_step(self) -> None:
        lines = [at(0, None, 9.0, name="eval_loss")]
        for step in range(10, 100, 10):
            lines += [at(0, step, 1.0)]
            lines += [at(0, None, step / 100, name="eval_loss")] if step % 30 == 0 else []
        curve = build(lines)
        assert both(curve, "eval_loss") == ([0, 30, 60, 90], [9.0, 0.3, 0.6, 0.9])

    def test_evaluation_belongs_to_the_next_step_if_regular(self) -> None:
        lines = []
        for step in range(103):
            lines += [at(0, None, float(step), name="eval_loss")] if step % 25 == 0 else []
            lines += [at(0, step, 1.0)]
        assert both(build(lines), "eval_loss") == (
            [0, 25, 50, 75, 100],
            [0.0, 25.0, 50.0, 75.0, 100.0],
        )

    def test_metric_on_the_next_line_belongs_to_the_step(self) -> None:
        lines = []
        for step in range(9):
            lines += [at(0, step, 1.0), at(0, None, step / 2, name="reward")]
        assert both(build(lines), "reward") == ([*range(9)], [s / 2 for s in range(9)])

    def test_step_on_its_own_line_is_used(self) -> None:
        lines = []
        for epoch in range(1, 4):
            for batch in (4, 8, 12, 16):
                lines += [Line((), batch, float(epoch), total=16), at(0, None, 1.0)]
        curve = build(lines)
        assert curve.steps("loss") == [*range(4, 52, 4)]
        assert (curve.restarts, curve.notes) == ((), ())

    def test_last_evaluation_is_placed(self) -> None:
        lines: list[Line] = []
        for step in range(76):
            lines += [at(0, None, 1.0, name="eval_loss")] if step % 25 == 0 else []
            lines += [at(0, step, 1.0)]
        lines.append(at(0, None, 2.0, name="eval_loss"))
        assert both(build(lines), "eval_loss") == ([0, 25, 50, 75], [1.0, 1.0, 1.0, 2.0])


class TestTwoCounters:
    """The epoch, the step within it, and its length on one line."""

    @pytest.mark.parametrize("first", [0, 1])
    def test_steps_are_counted_across_epochs(self, first: int) -> None:
        lines = [
            at(0, step, 1.0, epoch=float(epoch), total=15)
            for epoch in range(first, first + 4)
            for step in range(0, 15, 5)
        ]
        curve = build(lines)
        assert curve.steps("loss") == [*range(0, 60, 5)]
        assert (curve.restarts, curve.notes) == ((), ())

    def test_epoch_headings_define_the_steps(self) -> None:
        lines = []
        for epoch in (1, 2):
            lines.append(Line(mark=Mark(epoch=epoch)))
            lines += [at(0, step, 1.0, total=9) for step in (3, 6, 9)]
        assert build(lines).steps("loss") == [*range(3, 21, 3)]

    @pytest.mark.parametrize(("largest", "total"), ((1e17, 10**6), (-1e17, 10**6), (1e6, 10**15)))
    def test_invalid_epochs_and_lengths_are_ignored(self, largest: float, total: int) -> None:
        lines = [
            at(0, step, 1.0, epoch=epoch, total=total)
            for epoch in (0.0, 1.0, largest)
            for step in range(1, 5)
        ]
        assert len(build(lines).steps("loss")) == 12

    def test_counter_continuing_across_epochs_is_global(self) -> None:
        lines = [at(0, step, 1.0, epoch=float(step // 10), total=40) for step in range(40)]
        curve = build(lines)
        assert (curve.steps("loss"), curve.total_steps) == ([*range(40)], 40)

    def test_evaluation_has_the_training_step_across_epochs(self) -> None:
        lines = []
        for epoch in range(3):
            lines += [at(0, step, 1.0, epoch=float(epoch), total=10) for step in (0, 5)]
            lines.append(at(0, None, epoch / 10, name="eval_loss"))
        assert both(build(lines), "eval_loss") == ([5, 15, 25], [0.0, 0.1, 0.2])

    def test_training_of_another_length_is_separate(self) -> None:
        """A linear probe behind the pretraining: shorter epochs, another loss."""
        lines = []
        for length, epochs, loss in ((100, 4, 5.0), (40, 2, 1.0)):
            lines += [
                at(0, step, loss, epoch=float(epoch), total=length)
                for epoch in range(epochs)
                for step in range(0 if length == 100 else 10, length, 10)
            ]
        curve = build(lines)
        assert both(curve, "loss") == ([10, 20, 30, 50, 60, 70], [1.0] * 6)
        assert (curve.trainings, curve.restarts) == (2, ())

    def test_last_training_of_similar_length_is_shown(self) -> None:
        """Other data of the same kind, or another size of batches."""
        lines = [
            at(0, step, 1.0, epoch=float(epoch), total=length)
            for length in (100, 80)
            for epoch in range(3)
            for step in range(0, length, 10)
        ]
        curve = build(lines)
        assert (curve.steps("loss"), curve.trainings) == ([*range(0, 240, 10)], 2)
        assert ["contains 2 trainings" in note for note in curve.notes] == [True]

    def test_resumption_in_an_earlier_epoch_replaces_steps(self) -> None:
        def epochs(*numbers: int) -> list[Line]:
            return [
                at(0, step, float(number), epoch=float(number), total=10)
                for number in numbers
                for step in range(10)
            ]

        curve = build(epochs(0, 1, 2, 3) + epochs(2, 3, 4))
        assert curve.steps("loss") == [*range(50)]
        assert curve.restarts == (Restart(0, lost_at=39, resumed_at=20, replayed=20),)


class TestEpochs:
    def check(self, curve: Curve) -> None:
        assert both(curve, "loss") == ([1, 2, 3], [3.0, 2.0, 1.0])

    def test_epoch_on_the_line_is_the_step(self) -> None:
        self.check(build([at(0, None, 4.0 - epoch, epoch=float(epoch)) for epoch in (1, 2, 3)]))

    def test_epoch_on_the_previous_line_is_the_step(self) -> None:
        lines = []
        for epoch in (1, 2, 3):
            lines += [Line(mark=Mark(epoch=epoch)), at(0, None, 4.0 - epoch)]
        self.check(build(lines))

    def test_epoch_is_the_step_next_to_a_constant_counter(self) -> None:
        self.check(build([at(0, 1563, 4.0 - epoch, epoch=float(epoch)) for epoch in (1, 2, 3)]))

    def test_several_rows_per_epoch_have_no_epoch_steps(self) -> None:
        lines = [at(0, None, float(n), epoch=float(epoch)) for epoch in (1, 2) for n in range(5)]
        assert build(lines).steps("loss") == [None] * 10

    def test_requeue_replays_epochs(self) -> None:
        lines = [at(0, None, 1.0, epoch=float(epoch)) for epoch in range(1, 6)]
        lines += [at(1, None, 2.0, epoch=float(epoch)) for epoch in range(4, 8)]
        curve = build(lines)
        assert both(curve, "loss") == ([*range(1, 8)], [1.0] * 3 + [2.0] * 4)
        assert curve.restarts == (Restart(1, lost_at=5, resumed_at=4, replayed=2),)
