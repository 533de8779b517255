"""The metric in logs, the records of trials, and the values that optuna draws from them."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.api import parse
from hpcrun.assets import build_archive
from hpcrun.curves import list_spellings
from hpcrun.jobside.sampler import draw_values
from hpcrun.jobside.search import (
    MetricReader,
    MetricRecorder,
    Pruner,
    Trial,
    TrialWatch,
    find_first_rung,
    judge_rung,
    list_rungs,
    prepare_trial,
    read_trials,
    record_end,
)
from hpcrun.jobside.successors import Claim, next_attempt
from hpcrun.runs import RunFolder
from hpcrun.runs.trials import read_search_result
from tests.source import ROOT

SPACE: dict[str, Any] = {
    "lr": {"kind": "log", "low": 1e-5, "high": 0.1},
    "layers": {"kind": "int", "low": 2, "high": 12},
    "act": ["relu", "gelu"],
}


def search_in(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return a search whose trials are in the folder."""
    made = {
        "version": 1,
        "method": "tpe",
        "seed": 0,
        "metric": "eval_loss",
        "goal": "minimize",
        "trials": 4,
        "number": 0,
        "before": f"{folder}/t.",
        "after": "-aaaa",
        "pythons": [sys.executable],
        "space": SPACE,
        "every": 0.5,
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    ("metric", "line", "value"),
    [
        ("eval_loss", "{'eval_loss': 2.5, 'eval_runtime': 3, 'epoch': 1.0}", 2.5),
        ("eval_loss", '{"step": 10, "eval/loss": 2.5e-1}', 0.25),
        ("eval_loss", "step 10 | val loss 2.5 | val ppl 12", 2.5),
        ("eval_loss", "Validation: step 10 loss = 2.5", 2.5),
        ("val_loss", "eval loss: 2.5", 2.5),
        ("eval_loss", "step 10 loss 2.5", None),
        ("eval_loss", "best eval loss: 2.5", None),
        ("eval_loss", "step 10 train_loss 2.5", None),
        ("eval_loss", "step 10 test loss 2.5", None),
        ("eval_loss", "eval_loss_scale 2.5", None),
        ("eval_loss", "eval loss: nan", math.nan),
        ("loss", "step 10 loss 2.5", 2.5),
        ("loss", "step 10 train loss: 2.5, val loss: 3", 2.5),
        ("loss", "val loss: 3, step 10", None),
        ("loss", "step 10 aux_loss 2.5", None),
        ("train_loss", "step 10 loss 2.5", None),
        ("train_loss", "{'train_runtime': 3.2, 'train_loss': 2.5}", 2.5),
        ("loss", "{'train_runtime': 3.2, 'train_loss': 2.5}", None),
        ("loss", "step 1 | aux loss: 0.2 | loss: 3.0", 3.0),
        ("loss", "step 3 critic loss 0.2 policy loss 0.1 loss 3.0", 3.0),
        ("eval_loss", "eval at step 20: aux loss 0.1, loss 1.4", 1.4),
        ("eval_loss", "{'eval_loss': '2.31', 'epoch': '1'}", 2.31),
        ("eval_loss", "eval_loss=1,234.5", 1234.5),
        ("eval_loss", "\x1b[33mvalidate step: 100  \x1b[32mloss:  4.5\x1b[39m", 4.5),
        ("eval_loss", "Validation: [9/10] loss 3.2 (3.0)", 3.0),
        ("accuracy", "top-5 accuracy 90 accuracy 70", 70.0),
        ("val acc@1", "val Acc@1: 70.5", 70.5),
        ("eval_accuracy", "eval_accuracy = 0.875", 0.875),
        ("accuracy", "step 3 accuracy: .5", 0.5),
        ("reward", "reward: -12.5", -12.5),
        ("test_f1", "test/f1: 0.5", 0.5),
    ],
)
def test_metric_is_read_from_lines(metric: str, line: str, value: float | None) -> None:
    reader = MetricReader(metric)
    reader.feed(line)
    found = [value for _, value in reader.points]
    assert found == pytest.approx([] if value is None else [value], nan_ok=True)


@pytest.mark.parametrize(
    ("metric", "name", "last"),
    [
        ("loss", "megatron_lm", 3.084589),
        ("eval_loss", "megatron_lm", 3.124589),
        ("val_loss", "megatron_lm", 3.124589),
        ("loss", "olmo", 6.396),
        ("loss", "nanotron", 4.35),
        ("loss", "detectron2_console", 0.6181),
        ("loss", "ddp_srun_label", 1.3326),
        ("test_loss", "timm_train", 3.1),
    ],
)
def test_names_that_parse_translates_are_read(metric: str, name: str, last: float) -> None:
    reader = MetricReader(metric, list_spellings(metric))
    for line in (ROOT / f"tests/curves/logs/{name}.log").read_text().splitlines():
        reader.feed(line)
    assert reader.points[-1][1] == last


def test_metric_keeps_one_spelling_and_one_process() -> None:
    reader = MetricReader("loss", list_spellings("loss"))
    for line in ("[rank 1] step 1 lm loss: 9", "[rank 0] step 1 lm loss: 8, dpo loss: 7"):
        reader.feed(line)
    assert reader.points == [(1, 8.0)]
    for line in ("step 2 lm loss 6 loss 5", "step 3 total_loss: 4", "[rank 1] step 3 loss 3"):
        reader.feed(line)
    assert reader.points == [(2, 5.0)]


def test_step_at_the_end_of_a_line_counts() -> None:
    reader = MetricReader("eval_loss")
    reader.feed("eval_loss 1.93 at step 3")
    assert reader.points == [(3, 1.93)]


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("axolotl_dicts", ["loss"]),
        ("hf5_plain", ["loss", "eval_loss", "train_loss"]),
        ("hf4_plain", ["loss", "eval_loss", "train_loss"]),
        ("trl_sft", ["loss", "train_loss"]),
        ("torchtitan", ["loss", "eval_loss"]),
        ("fairseq_simple", ["eval_loss"]),
        ("build_nanogpt", ["loss", "eval_loss"]),
        ("keras_lines", ["loss", "eval_loss"]),
    ],
)
def test_metric_of_a_search_is_that_of_parse(tmp_path: Path, name: str, metrics: list[str]) -> None:
    path = ROOT / "tests/curves/logs" / f"{name}.log"
    parsed = parse(path, cwd=tmp_path)
    for metric in metrics:
        reader = MetricReader(metric)
        for line in path.read_text().splitlines():
            reader.feed(line)
        assert reader.points[-1][1] == pytest.approx(parsed.curve.values(metric)[-1]), metric


def test_metric_without_a_step_gets_that_of_an_earlier_line() -> None:
    reader = MetricReader("eval_loss")
    for line in (
        "eval_loss: 9",
        "step 100 loss 3.0",
        "{'eval_loss': 2.5}",
        " 40%|####      | 200/500 [00:12<00:18, 16.6it/s]",
        "eval_loss 2.25",
    ):
        reader.feed(line)
    assert reader.points == [(1, 9.0), (100, 2.5), (200, 2.25)]


def test_long_runs_keep_the_newest_of_many_values() -> None:
    reader = MetricReader("loss")
    for step in range(10_001):
        reader.feed(f"step {step} loss {step}.5")
    assert 2000 <= len(reader.points) <= 4000
    assert reader.points[0] == (0, 0.5) and reader.points[-1] == (10_000, 10_000.5)
    assert sorted(reader.points) == reader.points


def write_attempt(run: Path, number: int, log: str, end: dict[str, Any] | None) -> dict[str, str]:
    """Write an attempt with its log; return the environment of its job."""
    (run / f"attempts/{number}").mkdir(parents=True)
    (run / f"logs/{number}").mkdir(parents=True)
    (run / f"logs/{number}/rank-0.log").write_text(log)
    environ = {"HPCRUN_RUN_DIR": str(run), "HPCRUN_ATTEMPT": str(number)}
    record_end(environ)
    if end is not None:
        common = {"version": 1, "attempt": number, "job_id": "7", "exit_code": 0, "signal": None}
        common |= {"stopped_by": None, "first_failure": None, "begun_at": 1.0, "ended_at": 2.0}
        (run / f"attempts/{number}/end.json").write_text(json.dumps(common | end))
    return environ


def write_trial(folder: Path, search: dict[str, Any], number: int, values: Any) -> Path:
    run = folder / f"t.{number}-aaaa"
    run.mkdir(parents=True)
    (run / "search.json").write_text(json.dumps({**search, "number": number}))
    if values:
        (run / "trial.json").write_text(json.dumps({"version": 1, "values": values}))
    return run


def test_trials_are_read_from_their_records(tmp_path: Path) -> None:
    search = search_in(tmp_path, trials=5)
    values = {"lr": "0.001", "layers": "4", "act": "relu"}
    run = write_trial(tmp_path, search, 0, values)
    write_attempt(run, 0, "step 1 eval_loss 3\nstep 2 eval_loss 2.5\n", {"why": "x", "next": "7"})
    write_attempt(run, 1, "step 2 eval_loss 2.25\nstep 3 eval_loss 2", {"why": "done"})
    run = write_trial(tmp_path, search, 1, values)
    write_attempt(run, 0, "step 1 eval_loss nan\n", {"why": "error"})
    run = write_trial(tmp_path, search, 2, values)
    write_attempt(run, 0, "step 1 eval_loss 3\n", None)
    run = write_trial(tmp_path, search, 3, {})
    found = read_trials(search)
    assert [trial.state for trial in found] == [
        *("complete", "failed", "running", "waiting", "waiting")
    ]
    assert found[0].values == values
    assert found[0].points == [(1, 3.0), (2, 2.25), (3, 2.0)], "without repeated steps"
    assert found[1].value is not None and math.isnan(found[1].value)
    assert found[4] == Trial(4, {}, "waiting", []), "its folder does not exist"
    beat = tmp_path / "t.2-aaaa/attempts/0/beat"
    beat.touch()
    os.utime(beat, (0, 0))
    assert read_trials(search)[2].state == "failed", "without a heartbeat"
    write_attempt(run, 0, "step 1 eval_loss 3\n", {"why": "preempted", "next": "8"})
    assert read_trials(search)[3].state == "running"
    (run / "cancelled.json").write_text("{}")
    assert read_trials(search)[3].state == "failed", "cancelled before its next attempt"
    # The ranking on the login node has the same states.
    runs = [RunFolder(tmp_path / f"t.{number}-aaaa") for number in range(4)]
    ranking = read_search_result(runs)
    assert ranking is not None
    states = {trial.run_id: trial.state for trial in ranking.trials}
    assert [states[run.path.name] for run in runs] == [*("complete", "failed", "failed", "failed")]


def test_metric_is_recorded_as_the_log_grows(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    run = write_trial(tmp_path, search, 0, {})
    environ = write_attempt(run, 0, "step 1 eval_loss 3\nstep 2 eval_lo", None)
    recorder = MetricRecorder(environ, search)
    assert recorder.read() == [(1, 3.0)]
    with (run / "logs/0/rank-0.log").open("a") as log:
        log.write("ss 2.5\n")
    assert recorder.read() == [(1, 3.0), (2, 2.5)]


def make_trials(count: int) -> list[Trial]:
    """Return finished trials, the best of which have a learning rate near 1e-3."""
    trials = []
    for number in range(count):
        lr = 10 ** (-5 + 4 * number / (count - 1))
        value = abs(math.log10(lr) + 3)
        values = {"lr": f"{lr:.6g}", "layers": "6", "act": "gelu" if number % 2 else "relu"}
        trials.append(Trial(number, values, "complete", [(1, value)]))
    return trials


def test_drawn_values_are_near_the_best_trials(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    drawn = [draw_values(search, number, make_trials(30)) for number in range(30, 50)]
    assert {based_on for _, based_on in drawn} == {30}
    near = [1e-4 <= float(values["lr"]) <= 1e-2 for values, _ in drawn]
    assert sum(near) >= 16, "half of them by chance"
    assert len({values["lr"] for values, _ in drawn}) == 20
    worst = search_in(tmp_path, goal="maximize")
    drawn = [draw_values(worst, number, make_trials(30)) for number in range(30, 50)]
    assert sum(1e-4 <= float(values["lr"]) <= 1e-2 for values, _ in drawn) <= 6


def test_trials_of_any_kind_are_accepted(tmp_path: Path) -> None:
    values = {"lr": "0.1", "layers": "2", "act": "relu"}
    trials = [
        Trial(1, values, "running", []),
        Trial(2, values, "failed", []),
        Trial(3, values, "complete", []),
        Trial(4, values, "complete", [(1, math.nan)]),
        Trial(5, values, "complete", [(1, 2.0)]),
        Trial(6, values, "pruned", [(1, 3.0)]),
        Trial(7, values, "complete", [(1, math.inf)]),
    ]
    drawn, based_on = draw_values(search_in(tmp_path), 0, trials)
    assert based_on == 4 and set(drawn) == set(SPACE)
    drawn, based_on = draw_values(search_in(tmp_path), 0, trials[:4])
    assert based_on == 0, "no value is known"


def test_values_are_drawn_once(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    run = write_trial(tmp_path, search, 0, {})
    (run / "jobside.pyz").write_bytes(build_archive())
    environ = {**os.environ, "HPCRUN_RUN_DIR": str(run)}
    drawn = prepare_trial(environ, pytest.fail)
    assert set(drawn) == set(SPACE) and 1e-5 <= float(drawn["lr"]) <= 0.1
    (run / "jobside.pyz").unlink()
    assert prepare_trial(environ, pytest.fail) == drawn, "optuna is not called again"
    assert {path.name for path in run.iterdir()} == {"search.json", "trial.json"}


def test_python_without_optuna_is_named(tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text(
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'optuna'\" >&2\nexit 1"
    )
    without.chmod(0o755)
    search = search_in(tmp_path, pythons=[str(without), "/nonexistent/python"])
    run = write_trial(tmp_path, search, 0, {})
    said: list[str] = []
    assert prepare_trial({**os.environ, "HPCRUN_RUN_DIR": str(run)}, said.append) == {}
    assert "No module named 'optuna'; /nonexistent/python: " in said[0]
    assert not (run / "trial.json").exists()


# ---- Pruning


@pytest.mark.parametrize(
    ("own", "others", "is_pruned"),
    [
        (9.0, [], False),
        (9.0, [1.0, 2.0], False),  # fewer values than the factor end no trial
        (9.0, [1.0, 2.0, 3.0], True),
        (0.5, [1.0, 2.0, 3.0], False),
        (1.0, [1.0, 1.0, 1.0], False),  # equal values
        (1.5, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], False),  # the best two of eight
        (2.5, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], True),
        (math.nan, [1.0, 2.0, math.inf], True),
        (math.inf, [math.nan] * 3, False),
        (1.0, [math.nan] * 3, False),
    ],
)
def test_trials_that_are_not_among_the_best_are_pruned(
    own: float, others: list[float], is_pruned: bool
) -> None:
    assert judge_rung(own, others, 4, "minimize").is_pruned is is_pruned


def test_goal_selects_the_better_value() -> None:
    assert not judge_rung(9.0, [1.0, 2.0, 3.0], 4, "maximize").is_pruned
    assert judge_rung(math.nan, [1.0, 2.0, 3.0], 4, "maximize").place == 4


def test_rungs_start_at_a_given_step_or_at_a_hundredth_of_a_complete_trial() -> None:
    trials = [
        Trial(0, {}, "failed", [(900_000, 1.0)]),
        Trial(1, {}, "complete", [(5000, 1.0)]),
        Trial(2, {}, "complete", [(10, 1.0)]),
    ]
    assert find_first_rung({"prune_from": 7}, trials) == 7
    assert find_first_rung({}, trials) == 50
    assert find_first_rung({}, trials[2:]) == 1
    assert find_first_rung({}, trials[:1]) is None
    assert list_rungs(50, 3, 449) == [50, 150] and list_rungs(50, 3, 49) == []


def write_points(run: Path, attempt: int, points: list[tuple[int, float]]) -> dict[str, str]:
    folder = run / f"attempts/{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metric.json").write_text(json.dumps({"version": 1, "points": points}))
    return {"HPCRUN_RUN_DIR": str(run), "HPCRUN_ATTEMPT": str(attempt)}


def search_with_pruning(folder: Path, **changes: Any) -> dict[str, Any]:
    return search_in(folder, prune="asha", prune_from=10, prune_factor=2, **changes)


def test_trial_is_judged_once_at_each_rung_over_its_attempts(tmp_path: Path) -> None:
    search = search_with_pruning(tmp_path)
    run = write_trial(tmp_path, search, 0, {})
    environ = write_points(run, 0, [(5, 9.0), (12, 8.0)])
    assert Pruner(environ, search).judge() == "", "the first one at the rung"
    better = write_trial(tmp_path, search, 1, {})
    write_points(better, 0, [(10, 1.0), (20, 0.5)])
    pruner = Pruner(environ, search)
    assert pruner.judge() == "", "it was judged there before"
    environ = write_points(run, 1, [(14, 8.0)])
    pruner = Pruner(environ, search)
    assert pruner.judge() == "", "another attempt, below the next rung"
    write_points(run, 1, [(14, 8.0), (21, 7.0)])
    text = "pruned at step 21: eval_loss 7 is number 2 of 2 at step 20, and the best 1 continue"
    assert pruner.judge() == text == pruner.judge()
    assert (
        Pruner(write_points(better, 0, [(10, 1.0), (20, 0.5)]), {**search, "number": 1}).judge()
        == ""
    )
    record = json.loads((run / "attempts/1/pruned.json").read_text())
    assert (record["rung"], record["step"], record["value"]) == (20, 21, 7.0)
    assert record["others"] == [0.5] and record["text"] == text
    rungs = json.loads((run / "attempts/1/rungs.json").read_text())["rungs"]
    assert [each["rung"] for each in rungs] == [10, 20]


def test_resubmitted_trial_is_judged_with_the_values_before_its_checkpoint(tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    old = write_trial(before, search_with_pruning(before), 0, {})
    Pruner(write_points(old, 0, [(12, 8.0), (19, 7.0)]), search_with_pruning(before)).judge()
    search = search_with_pruning(now, resumes=str(old))
    run = write_trial(now, search, 0, {})
    environ = write_points(run, 0, [(18, 6.0)])
    assert read_trials(search)[0].points == [(12, 8.0), (18, 6.0)]
    write_points(write_trial(now, search_with_pruning(now), 1, {}), 0, [(10, 1.0), (20, 0.5)])
    assert Pruner(environ, search).judge() == "", "it was judged at step 10 before"
    assert [each.points[0][0] for each in read_trials(search)[:2]] == [12, 10]


def test_nothing_is_pruned_before_the_first_rung_is_known(tmp_path: Path) -> None:
    search = {**search_with_pruning(tmp_path), "prune_from": None}
    run = write_trial(tmp_path, search, 0, {})
    environ = write_points(run, 0, [(100, math.inf)])
    for number in (1, 2):
        write_points(write_trial(tmp_path, search, number, {}), 0, [(100, 1.0)])
    assert Pruner(environ, search).judge() == ""
    (tmp_path / "t.1-aaaa/attempts/0/end.json").write_text('{"why": "done", "next": null}')
    assert (
        Pruner(environ, search).judge().startswith("pruned at step 100: eval_loss inf is number 3")
    )


class Steps:
    """The steps of a job, as Slurm answers; None without an answer."""

    def __init__(self, steps: list[str] | None) -> None:
        self.steps = steps
        self.cancelled: list[str] = []

    def list_steps(self, job: str) -> list[str] | None:
        return self.steps

    def cancel_slurm_step(self, step: str) -> bool:
        self.cancelled.append(step)
        return True


def test_pruned_attempt_is_ended_when_slurm_answers(tmp_path: Path) -> None:
    search = search_with_pruning(tmp_path)
    run = write_trial(tmp_path, search, 0, {})
    environ = write_attempt(run, 0, "step 10 eval_loss 5\n", None)
    write_points(write_trial(tmp_path, search, 1, {}), 0, [(10, 1.0)])
    steps, said = Steps(None), list[str]()
    watch = TrialWatch(environ, said.append, steps)
    watch.check()
    assert not steps.cancelled and (run / "attempts/0/pruned.json").exists()
    steps.steps = ["7.batch", "7.0", "7.extern"]
    watch.check()
    watch.check()
    assert steps.cancelled == ["7.0"] and len(said) == 1 and "pruned at step 10" in said[0]


@pytest.mark.parametrize("end", [None, {"why": "preempted", "next": None, "ended_at": 5.0}])
def test_pruned_run_does_not_continue(tmp_path: Path, end: dict[str, Any] | None) -> None:
    run = write_trial(tmp_path, search_with_pruning(tmp_path), 0, {})
    environ = {**write_points(run, 0, []), "SLURM_RESTART_COUNT": "1"}
    (run / "attempts/0/begin.json").write_text('{"attempt": 0, "job_id": "7", "begun_at": 1.0}')
    (run / "attempts/0/pruned.json").write_text('{"text": "pruned at step 9", "at": 4.0}')
    if end is not None:
        (run / "attempts/0/end.json").write_text(json.dumps(end))
    said: list[str] = []
    assert next_attempt(environ, "7", "", None, said.append) == Claim(None, 0)
    assert "it was pruned" in said[0]
    record = json.loads((run / "attempts/0/end.json").read_text())
    assert (record["why"], record["exit_code"], record["next"]) == ("pruned", 0, None)
    assert record["note"] == "pruned at step 9"
    (run / "attempts/0/again").touch()
    assert next_attempt(environ, "7", "", None, said.append) == Claim(1), "hpcrun requeue"
