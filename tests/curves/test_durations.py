"""How long a run took, the most memory it used, and whether it is over, by its log."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hpcrun.curves.lines.times import read_total_time, states_end
from hpcrun.curves.report.facts import running_facts, steps_left
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.parsing import parse_chunks

HEAD, TAIL = "loading the model\n", "wandb: uploading\nbye\n"


def parse(lines: Sequence[str]) -> ParsedRun:
    return parse_chunks("a.log", [(0, ["".join(f"{line}\n" for line in lines).encode()])])


def steps(count: int = 40, form: str = "step {step} loss {loss:.4f} lr 1e-4") -> list[str]:
    """Return lines of a training with noise."""
    noise = random.Random(count)
    return [form.format(step=i, loss=3 - i / 50 + noise.random() / 9) for i in range(1, count + 1)]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Training time 0:15:19", 919),
        ("Total training time: 1:03:31", 3811),
        ("Total training time: 1 day, 1:03:31 (1.2 s / it)", 90211),
        ("Training completed in 15.5 minutes", 930),
        ("Training finished in 1h 2m 3s", 3723),
        ("100 epochs completed in 2.5 hours.", 9000),
        ("Done! total time: 75.0 s", 75),
        ("Elapsed time: 00:10:00", 600),
        ("total runtime (s): 512.5", 512.5),
        ("training took 3 hours, 2 minutes and 1 seconds", 10921),
        ("real\t15m19.000s", 919),
    ],
)
def test_stated_total_is_the_time(line: str, seconds: float) -> None:
    curve = parse([*steps(), line]).curve
    assert curve.seconds == pytest.approx(seconds) and curve.seconds_from == "stated"
    assert curve.is_over


def test_bar_of_evaluations_is_not_the_time_of_the_training() -> None:
    bar = [f"Computing: {n * 4}%|##  | {n}/25 [00:{n:02d}<00:01, 1.0it/s]" for n in range(1, 26, 6)]
    lines: list[str] = []
    for step in range(10, 401, 10):
        lines += [*bar, f"Iter {step}: Val loss 2.5, Val took 30s"] if step % 100 == 10 else []
        lines.append(f"Iter {step}: Train loss {3 - step / 500:.3f}, It/sec 0.250")
    curve = parse(lines).curve
    assert curve.seconds == pytest.approx(1600) and curve.seconds_from == "sum of steps"


@pytest.mark.parametrize(
    "line",
    [
        "eta: 0:15:19",
        "Total time per step: 1.5 s",
        "average training time: 12 s",
        "estimated total time: 12 hours",
        "time limit: 1:00:00",
        "Evaluation time: 0:01:02",
        "total inference time: 13 s",
        "Time to load the checkpoint: 12 s",
        "Total tokens: 1:1",
    ],
)
def test_other_times_are_no_total(line: str) -> None:
    assert read_total_time(line) is None


def test_train_runtime_counts_although_time_stamps_cover_less() -> None:
    lines = steps(form="2026-11-20 08:00:01 step {step} loss {loss:.4f}")
    summary = "{'train_runtime': 919.2, 'train_samples_per_second': 3.1, 'train_loss': 2.5}"
    curve = parse([*lines, summary]).curve
    assert (curve.seconds, curve.seconds_from) == (919.2, "stated")


def test_totals_of_ranks_count_once_and_only_the_last_training_counts() -> None:
    total = "Training time 0:10:00"
    assert parse([*steps(), total, total]).curve.seconds == 600
    curve = parse([*steps(), "Training time 0:30:00", *steps(), total]).curve
    assert (curve.seconds, curve.trainings) == (600, 2)


def test_elapsed_time_of_the_progress_bar_is_the_time() -> None:
    lines = []
    for step in range(1, 61):
        passed = step * 63
        clock = f"{passed // 3600}:{passed // 60 % 60:02d}:{passed % 60:02d}"
        lines.append(f"{step / 60:4.0%}|###   | {step}/60 [{clock}<00:10, 63.0s/it]")
        lines.append(f"{{'loss': {3 - step / 99:.4f}, 'learning_rate': 1e-05, 'epoch': 0.1}}")
    curve = parse(lines).curve
    assert (curve.seconds, curve.seconds_from) == (3780.0, "progress bar")


@pytest.mark.parametrize("form", ["{}", "[{}] INFO", "[rank0]: {} - trainer -", "INFO {}"])
def test_time_stamps_of_any_lines_count(form: str) -> None:
    stamp = "2026-11-20 {:02d}:00:00"
    lines = [
        f"{form.format(stamp.format(hour))} step {hour} loss {9 / hour:.3f}" for hour in (9, 10, 11)
    ]
    lines = [f"{form.format(stamp.format(6))} loading data", *lines]
    lines.append(f"{form.format(stamp.format(15))} saved the model")
    curve = parse(lines).curve
    assert (curve.seconds, curve.seconds_from) == (9 * 3600, "time stamps")


def test_dates_of_builds_and_files_are_no_time_stamps() -> None:
    lines = [
        "Python 3.8.10 (default, Nov 26 2021, 20:14:08)",
        "-rw-r--r-- 1 root root 11634 Nov 28 16:15 train.py",
        *[f"2026-11-20 08:{i:02d}:00 step {i} loss {3 - i / 99:.3f}" for i in range(1, 31)],
    ]
    assert parse(lines).curve.seconds == 29 * 60


@pytest.mark.parametrize(
    ("first", "last"),
    [("12/09/24", "13/09/24"), ("09/12/24", "09/13/24"), ("11/09/2025", "12/09/2025")],
)
@pytest.mark.parametrize("between", [(), ("12", "13")])
def test_order_of_day_and_month_is_one_for_the_whole_log(
    first: str, last: str, between: tuple[str, ...]
) -> None:
    lines = [f"{first} {hour:02d}:00:00 step {hour} loss 2.{hour}" for hour in range(10, 20)]
    lines += [f"{last} {hour:02d}:00:00 step {hour + 24} loss 1.{hour}" for hour in range(10, 20)]
    curve = parse(lines).curve
    assert curve.seconds == 33 * 3600
    times = curve.metrics["loss"].times
    assert times is not None and max(times) - min(times) == 33 * 3600


def test_dotted_dates_follow_the_whole_log() -> None:
    def seconds(*days: str) -> float | None:
        dated = enumerate(days)
        return parse(
            [f"{day} 08:00:00 step {n} loss {3 - n / 9:.2f}" for n, day in dated]
        ).curve.seconds

    assert seconds("11.10.2025", "12.10.2025", "13.10.2025") == 2 * 86400
    assert seconds("10.11.2025", "10.12.2025", "10.13.2025") == 2 * 86400


def test_time_of_day_passes_midnight() -> None:
    lines = [f"23:59:{i:02d} step {i} loss 2.5{i}" for i in range(10, 60, 10)]
    lines += [f"00:00:{i:02d} step {60 + i} loss 2.4{i}" for i in range(10, 60, 10)]
    assert parse(lines).curve.seconds == 100


def test_seconds_since_1970_are_time_stamps() -> None:
    event = (
        ':::MLLOG {{"time_ms": {}, "key": "{}", "value": {}, "metadata": {{"samples_count": {}}}}}'
    )
    start = 1700000000000
    lines = [event.format(start, "run_start", "null", 0)]
    lines += [event.format(start + i * 1000, "train_loss", 3 - i / 50, i) for i in range(1, 40)]
    lines += [event.format(start + 90_000, "run_stop", "null", 40)]
    assert parse(lines).curve.seconds == 90
    lines = [
        f'{{"step": {i}, "loss": {3 - i / 9}, "timestamp": {1700000000 + 9 * i}.5}}'
        for i in range(9)
    ]
    curve = parse(lines).curve
    assert curve.seconds == 72 and list(curve.metrics) == ["loss"]


@pytest.mark.parametrize(
    "form",
    [
        "epoch {} training time: 60.5",
        "Epoch {} train loss 2.{} time: 60.5s",
        "Epoch: 0{} | Epoch Time: 1m 1s",
        "[Epoch {}] Training cost: 60.5, loss=2.{}",
        "Epoch[{}] Time cost=60.500",
    ],
)
def test_times_of_epochs_are_added_up(form: str) -> None:
    lines = []
    for epoch in range(1, 6):
        lines += [f"epoch {epoch} step {step} loss {3 - epoch / 9:.3f}{step}" for step in (1, 2, 3)]
        lines.append(form.format(epoch, epoch))
    curve = parse(lines).curve
    assert curve.seconds == pytest.approx(302.5, rel=0.01) and curve.seconds_from == "sum of epochs"


@pytest.mark.parametrize(
    ("form", "seconds"),
    [
        ("Time: 60.5s", 302.5),
        ("Time taken: 1m 1s", 305),
        ("Epoch time: 60500 ms, per step time: 12.5 ms", 302.5),
        ("Training time takes approximately:  1.5 minutes at current epoch", 450),
        ("time cost (min): 1.5", 450),
    ],
)
def test_lines_that_state_only_a_time_are_added_up(form: str, seconds: float) -> None:
    lines = []
    for epoch in range(1, 6):
        lines += [f"epoch {epoch} step {step} loss {3 - epoch / 9:.3f}{step}" for step in (1, 2, 3)]
        lines.append(form)
    curve = parse(lines).curve
    assert curve.seconds == pytest.approx(seconds) and curve.seconds_from == "sum of epochs"


def test_times_that_each_process_prints_count_once() -> None:
    lines = []
    for epoch in range(1, 4):
        for process in range(4):
            lines.append(f"epoch: {epoch} step: 250, loss is {3 - epoch / 5}{process}")
            lines.append(f"Train epoch time: 60500.{process} ms, per step time: 242.0 ms")
    assert parse(lines).curve.seconds == pytest.approx(181.5, rel=0.001)


@pytest.mark.parametrize(("count", "seconds"), [(20, 33.5), (25, None)])
def test_times_of_steps_take_no_room_of_headings(
    count: int, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcrun.curves.store._MAX_MARKS", 10)
    monkeypatch.setattr("hpcrun.curves.store.MAX_LAPS", 170)
    monkeypatch.setattr("hpcrun.curves.durations.MAX_LAPS", 170)
    lines = []
    for epoch in range(1, 9):
        lines.append(f"Epoch {epoch}/8")
        lines += [f"step took 0.2{n % 3} s" for n in range(count)]
        lines.append(f"loss: {3 - epoch / 9:.4f}")
    curve = parse(lines).curve
    assert (curve.axis, curve.steps("loss")) == ("epoch", [*range(1, 9)])
    assert curve.seconds == (seconds and pytest.approx(seconds, rel=0.02))


def test_two_lines_with_a_time_are_not_the_time_of_the_training() -> None:
    lines = ["loading", "took 3.5 s", *steps(), "evaluation took 9 s", "took 2.5 s"]
    assert parse(lines).curve.seconds is None


def test_columns_of_durations_are_the_time() -> None:
    head = "| epoch | loss | top-1 | time |"
    rows = [f"| {n} | 0.{9 - n} | 6{n}.5 | {n // 3} hr {n % 3 * 20:02d} min |" for n in range(1, 9)]
    curve = parse([head, *rows]).curve
    assert (curve.seconds, curve.seconds_from) == (9600, "stated")


def test_columns_of_times_of_day_are_no_durations() -> None:
    rows = [f"{n}\t17:54:{n + 10}\t0.{9 - n}" for n in range(1, 9)]
    assert parse(["epoch\ttime\tloss", *rows]).curve.seconds is None


def test_times_of_steps_are_added_up() -> None:
    curve = parse(steps(100, "step {step} loss {loss:.3f} step_time 250ms")).curve
    assert curve.seconds == pytest.approx(25) and curve.seconds_from == "sum of steps"


@pytest.mark.parametrize(
    "line",
    [
        "Early stopping at step 40",
        "EarlyStopping triggered",
        '{"event": "stopping_early"}',
        "Training complete.",
        "2026-11-20 08:00:00 INFO Training finished",
        "{'train_runtime': 919.2, 'train_loss': 2.5}",
    ],
)
def test_nothing_is_left_to_do_when_the_run_is_over(line: str) -> None:
    lines = steps(form="step {step}/1000 loss {loss:.4f}")
    assert steps_left(parse(lines).curve) == 960
    run = parse([*lines, line])
    assert steps_left(run.curve) is None
    assert "to go" not in dict(running_facts(run))


def test_counters_of_early_stopping_do_not_end_a_run() -> None:
    for line in (
        "EarlyStopping counter: 3 out of 10",
        "early_stopping_patience: 5",
        "Training step done",
    ):
        assert not states_end(line), line


MEMORY_AT_START = [
    "MA 2.79 GB         Max_MA {} GB         CA 8.0 GB         Max_CA 9 GB ",
    "[2026-11-20 08:00:00] [INFO] [utils.py:1:see] MA 1.0 GB  Max_MA {} GB  CA 8.0 GB  Max_CA 9 GB",
]


@pytest.mark.parametrize("form", MEMORY_AT_START)
@pytest.mark.parametrize("value", [("17.90 GB", 17.90e9), ("17.90 GiB", 17.90 * 2**30)])
def test_memory_of_the_start_is_not_the_peak(form: str, value: tuple[str, float]) -> None:
    text, peak = value
    lines = steps(form=f"step {{step}} loss {{loss:.4f}} peak_mem={text}")
    run = parse([form.format(40.0), form.format(21.0), *lines])
    assert run.curve.peak_memory == pytest.approx(peak)
    assert dict(running_facts(run))["peak memory"] == f"{peak / 2**30:.1f} GiB"


def test_largest_peak_of_the_training_counts() -> None:
    lines = steps(form="step {step} loss {loss:.4f} memory 3.5 GiB")
    between = "MA 2.79 GB         Max_MA 12.5 GB         CA 8.0 GB         Max_CA 9 GB "
    run = parse([between.replace("12.5", "60.0"), *lines[:20], between, *lines[20:]])
    assert run.curve.peak_memory == pytest.approx(12.5e9)
    assert parse([between, *steps()]).curve.peak_memory is None


@pytest.mark.parametrize(
    "form",
    [
        '{{"loss": {loss}, "iteration": {n}, "elapsed_time": {seconds}}}',
        '{{"loss": {loss}, "global_step": {n}, "time/time_elapsed": {seconds}}}',
        "step {n} loss {loss} elapsed_time {seconds}s",
        "{n}:\tlearn: {loss}\ttest: 0.5\tbest: 0.5 ({n})\ttotal: {seconds}s\tremaining: 1m 2s",
    ],
)
def test_rising_elapsed_times_are_the_time(form: str) -> None:
    lines = [form.format(n=n, loss=3 - n / 9, seconds=15.5 * n) for n in range(1, 9)]
    curve = parse(lines).curve
    assert curve.seconds == pytest.approx(124) and curve.seconds_from == "stated"


def test_elapsed_times_of_single_steps_are_not_the_time() -> None:
    form = "2026-11-20 08:00:{n:02d} step {n} loss {loss:.3f} elapsed_time {seconds}s"
    lines = [form.format(n=n, loss=3 - n / 9, seconds=0.5 + n % 2 / 10) for n in range(1, 30)]
    assert parse(lines).curve.seconds == pytest.approx(28)


def test_times_spent_since_the_line_before_add_up() -> None:
    form = "epoch: 1, iter: {n}, lr=0.1, spent {seconds:.2f} s, tr_loss: {loss:.3f}"
    lines = [form.format(n=n, loss=3 - n / 900, seconds=275.5) for n in range(0, 900, 100)]
    curve = parse(lines).curve
    assert curve.seconds == pytest.approx(9 * 275.5) and curve.seconds_from == "sum of steps"


@pytest.mark.parametrize(
    ("form", "counter", "seconds"),
    [
        ("iteration {n} loss {loss} time_elapsed {t}", [i // 2 for i in range(2, 200)], 99),
        ("step {n} loss {loss} elapsed_time {t}", [2 * i for i in range(1, 60)], 118),
    ],
)
def test_counter_that_repeats_values_or_restarts_is_not_summed_by_line(
    form: str, counter: list[int], seconds: float
) -> None:
    lines = [
        form.format(n=n, loss=f"{3 - n / 900:.4f}", t=t) for n, t in enumerate(counter, start=1)
    ]
    twice = [line for n, line in enumerate(lines) for _ in range(1 + (n % 20 == 19))]
    for log, expected in ((lines, seconds), (twice, seconds), (twice + twice, 2 * seconds)):
        curve = parse(log).curve
        assert (curve.seconds, curve.seconds_from) == (expected, "stated")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("two ranks", [t + r / 10 for t in range(2, 60) for r in (1, 0)]),
        ("two ranks, restarted", [t + r / 10 for t in [*range(2, 60)] * 2 for r in (1, 0)]),
        ("continued from a checkpoint", [*range(10, 100, 10), *range(60, 160, 10)]),
        ("two values", [10, 20]),
    ],
)
def test_possible_counter_is_no_time(name: str, values: list[float]) -> None:
    lines = [f"step {n} loss {3 - n / 900:.4f} elapsed_time {t}" for n, t in enumerate(values, 1)]
    assert parse(lines).curve.seconds is None, name


@pytest.mark.parametrize(
    "values",
    [
        [random.Random(n).lognormvariate(0, 0.8) for n in range(200)],
        [random.Random(n).uniform(0.5, 3) for n in range(200)],
        [60.0, *(random.Random(n).uniform(0.9, 1.1) for n in range(50))],
        [round(random.Random(n).uniform(0.1, 0.3), 1) for n in range(100)],
        [5.0, 3.0, 2.0, 1.5, 1.2, 1.1, 1.0],
    ],
)
def test_durations_that_fluctuate_or_fall_are_summed(values: list[float]) -> None:
    lines = [
        f"step {n} loss {3 - n / 900:.4f} elapsed_time {t:.4f}" for n, t in enumerate(values, 1)
    ]
    curve = parse(lines).curve
    assert curve.seconds == pytest.approx(sum(values), abs=0.1)
    assert curve.seconds_from == "sum of steps"


@pytest.mark.parametrize("bar", ["", "{n}0%|##   | {n}/10 [00:{n}1<00:50, 11.0s/it]"])
def test_char_rnn_states_its_elapsed_time(bar: str) -> None:
    lines = [f"{bar.format(n=n)}[{n}m 3s ({n}00 {n}0%) {3 - n / 10:.4f}]" for n in range(1, 6)]
    curve = parse(lines).curve
    assert curve.values("loss") == [2.9, 2.8, 2.7, 2.6, 2.5]
    assert (curve.steps("loss"), curve.seconds) == ([100, 200, 300, 400, 500], 303)
