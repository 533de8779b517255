"""Searches on the command line: the space, the first values, and the Python that draws others."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hpcrun.jobside import sampler
from hpcrun.jobside.search import record_end
from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import row
from tests.json_schemas import check_json

SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--act", choices=["relu", "gelu"])
parser.parse_args()
"""
JOB = """\
script: toy.py
args: [--lr, "{lr}", --act, "{act}"]
resources: {gpus_per_node: 0}
sweep: {search: METHOD, trials: 3, metric: eval_loss, lr: {log: [1e-5, 1e-2]}, act: [relu, gelu]}
"""


@pytest.fixture
def project(hpcrun: Caller) -> Caller:
    hpcrun.write("toy.py", SCRIPT)
    for method in ("random", "tpe"):
        hpcrun.write(f"{method}.yaml", JOB.replace("METHOD", method))
    replay(hpcrun.tools, "sbatch", (0, "17\n", ""))
    replay(hpcrun.tools, "squeue", (0, "", ""))
    replay(hpcrun.tools, "sacct", (1, "", "Slurm accounting storage is disabled"))
    return hpcrun


def without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name)
    )


def test_dry_run_shows_the_space_and_the_first_trials(project: Caller) -> None:
    done = project("submit", "random.yaml", "--dry-run")
    assert done.code == 0, done
    text = " ".join(done.out.split())
    assert "search random draws values, minimizes eval_loss" in text
    assert "space lr: 1e-05 to 0.01, log space act: relu or gelu" in text
    shown = project("submit", "random.yaml", "--dry-run", "--json").json
    values = [run["values"] for run in shown["runs"]]
    assert all(each["lr"] in done.out for each in values)
    again = project("submit", "random.yaml", "--dry-run", "--json").json
    assert [run["values"] for run in again["runs"]] == values


def test_dry_run_of_values_drawn_later_shows_where_they_go(project: Caller) -> None:
    done = project("submit", "tpe.yaml", "--dry-run")
    assert done.code == 0, done
    assert "tpe draws values when each run starts, minimizes eval_loss" in done.out
    assert '--lr "$HPCRUN_TRIAL_lr"' in done.out, "expanded by bash on the node"
    assert "\nTASK " not in done.out, "no empty table of values"


def test_example_values_are_checked_and_do_not_reach_the_job(project: Caller) -> None:
    project.write("wrong.yaml", JOB.replace("METHOD", "tpe").replace("relu, gelu", "relu, tanh"))
    wrong = project("submit", "wrong.yaml", "--dry-run")
    assert wrong.code == 2 and "--act: invalid choice: 'tanh'" in wrong.err, wrong
    done = project("submit", "tpe.yaml", "--json")
    assert done.code == 0, done
    assert [run["values"] for run in done.json["runs"]] == [{}, {}, {}]
    plans = [json.loads(path.read_text()) for path in project.runs.glob("*tpe.*/plan.json")]
    assert len(plans) == 3
    for plan in plans:
        assert plan["program"][-3:] == ["${HPCRUN_TRIAL_lr}", "--act", "${HPCRUN_TRIAL_act}"]


def test_search_without_optuna_names_the_pythons_that_could_have_it(
    project: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_optuna(monkeypatch)
    done = project("submit", "tpe.yaml")
    assert done.code == 2, done
    assert "sweep.search: tpe needs optuna in the job's Python, " in done.err
    assert "pip install optuna; search: random needs nothing" in done.err
    assert not list(project.runs.glob("*")), "nothing was written"
    assert project("submit", "random.yaml").code == 0


def test_trial_is_resubmitted_with_the_values_that_its_job_drew(project: Caller) -> None:
    submitted: Any = project("submit", "tpe.yaml", "--json").json
    run = project.runs / submitted["runs"][1]["run_id"]
    early = project("resubmit", run.name, "--fresh", "--dry-run")
    assert early.code == 2 and "has no values yet" in early.err + early.out, early
    search = json.loads((run / "search.json").read_text())
    assert search["number"] == 1 and search["before"] + "1" + search["after"] == str(run)
    for values, expected in (
        ({"lr": "0.002", "act": "gelu"}, ["--lr", "0.002", "--act", "gelu"]),
        ({"lr": "{run_dir}", "act": "gelu"}, None),
        ({"lr": "0.002", "act": "$(reboot)"}, None),
        ({"lr": "0.002"}, None),
    ):
        (run / "trial.json").write_text(json.dumps({"version": 1, "values": values}))
        done = project("resubmit", run.name, "--fresh", "--dry-run", "--json")
        if expected is None:
            assert done.code == 2 and "corrupt: its values are not of the search" in done.err, done
        else:
            assert done.code == 0, done
            shown = project("status", "--json", run.name).json["runs"][0]
            assert shown["task"]["values"] == values
            assert "gelu" in str(done.json) and "HPCRUN_TRIAL_lr" not in str(done.json)


def finish_trial(run: Path, value: float | None, why: str = "done") -> None:
    """Write what the job of a trial leaves: its log, its metric and its end."""
    attempt = run / "attempts/0"
    attempt.mkdir(parents=True)
    (run / "logs/0").mkdir(parents=True)
    lines = [f"step {step} loss {9 - step}.0 eval_loss {value}" for step in (1, 2)]
    (run / "logs/0/rank-0.log").write_text("\n".join(lines if value is not None else ["hello"]))
    record_end({"HPCRUN_RUN_DIR": str(run), "HPCRUN_ATTEMPT": "0"})
    end = {
        "attempt": 0,
        "job_id": "17",
        "exit_code": int(why == "failed"),
        "signal": None,
        "stopped_by": None,
    }
    end |= {"first_failure": None, "begun_at": 1.0, "ended_at": 2.0, "why": why, "next": None}
    (attempt / "end.json").write_text(json.dumps(end))


def search_with_values(project: Caller, values: list[float | None], goal: str = "minimize") -> Any:
    """Submit a random search, and finish its trials with these values; return the answer."""
    text = JOB.replace("METHOD", "random").replace("trials: 3", f"trials: {len(values)}")
    project.write("many.yaml", text.replace("eval_loss,", f"eval_loss, goal: {goal},"))
    answer = project("submit", "many.yaml", "--json").json
    for run, value in zip(answer["runs"], values, strict=True):
        finish_trial(project.runs / run["run_id"], value)
    return answer


def test_status_ranks_trials_and_names_the_best(project: Caller) -> None:
    answer = search_with_values(project, [3.0, 1.5, math.nan, 2.0, None, 2.5])
    best = answer["runs"][1]
    done = project("status", answer["sweep_id"], "--json")
    check_json("status", done.json)
    search = done.json["search"]
    assert [trial["number"] for trial in search["trials"]] == [1, 3, 5, 0, 2, 4]
    assert [trial["rank"] for trial in search["trials"]] == [1, 2, 3, 4, None, None]
    assert [trial["value"] for trial in search["trials"]][3:] == [3.0, "NaN", None]
    assert search["trials"][0]["values"] == best["values"]
    assert search["command"] == ["hpcrun", "resubmit", best["run_id"], "--fresh"]
    assert search["importance"] is None, "four complete trials show chance"
    text = project("status", answer["sweep_id"]).out
    assert "best      run 1: eval_loss 1.5 at step 2 (best of 4 complete runs)" in text
    assert f"run it    hpcrun resubmit {best['run_id']} --fresh" in text
    again = project(*search["command"][1:], "--dry-run", "--json")
    assert again.code == 0, again
    program = json.loads(again.json["plan.json"])["program"]
    assert program[-3:] == [best["values"]["lr"], "--act", best["values"]["act"]]


def test_compare_ranks_a_search_by_its_own_goal(project: Caller) -> None:
    answer = search_with_values(project, [3.0, 1.0, 2.0, 5.0, 4.0], "maximize")
    done = project("compare", "--sweep", answer["sweep_id"], "--json")
    check_json("compare", done.json)
    assert done.json["metric"] == "eval_loss" and done.json["falls"] is False
    assert [run["rank"] for run in done.json["runs"]] == [3, 5, 4, 1, 2]
    search = done.json["search"]
    assert [trial["number"] for trial in search["trials"]] == [3, 4, 0, 2, 1]
    assert search["importance"]["method"] == "correlation"
    assert set(search["importance"]["parameters"]) == {"lr", "act"}
    text = project("compare", "--sweep", answer["sweep_id"], "--html", "c.html").out
    assert "(rank correlation with the metric, 5 runs)" in text
    assert f"hpcrun resubmit {search['best']} --fresh" in text
    page = (project.project / "c.html").read_text()
    assert "Trials" in page and f"run it: hpcrun resubmit {search['best']} --fresh" in page
    other = project("compare", "--sweep", answer["sweep_id"], "--metric", "loss", "--json").json
    assert other["falls"] is True, "the goal is that of the search's metric"


def test_status_warns_if_no_log_has_the_metric(project: Caller) -> None:
    answer = search_with_values(project, [None, None, None])
    found = project("status", answer["sweep_id"])
    assert "warning   no run's log has eval_loss" in found.out
    assert project("status", answer["sweep_id"], "--json").json["search"]["lacks_metric"] is True


def test_sweep_without_a_metric_has_no_ranking(project: Caller) -> None:
    project.write("plain.yaml", JOB.replace("metric: eval_loss, ", "").replace("METHOD", "random"))
    answer = project("submit", "plain.yaml", "--json").json
    assert not list(project.runs.glob("*/search.json"))
    assert "search" not in project("status", answer["sweep_id"], "--json").json


def test_resubmitted_search_keeps_its_metric_pruning_and_drawn_values(project: Caller) -> None:
    text = JOB.replace("METHOD", "tpe").replace("trials: 3", "trials: 4, prune: asha")
    project.write("tpe.yaml", text)
    submitted: Any = project("submit", "tpe.yaml", "--json").json
    runs = [project.runs / run["run_id"] for run in submitted["runs"]]
    values = [{"lr": f"0.00{number}", "act": "gelu"} for number in (1, 2)]
    for run, drawn, value in zip(runs, values, (2.0, 3.0), strict=False):
        finish_trial(run, value, "done" if value == 2.0 else "failed")
        (run / "trial.json").write_text(json.dumps({"version": 1, "values": drawn}))
    (runs[1] / "checkpoints").mkdir()
    (runs[1] / "checkpoints/model.pt").write_text("weights")
    states = ("COMPLETED", "FAILED", "CANCELLED", "CANCELLED")
    whole = project.runs / f"{submitted['sweep_id']}.array"
    rows = [row(whole, f"17_{at}", state) for at, state in enumerate(states)]
    replay(project.tools, "squeue", (0, "".join(rows), ""))
    done = project("resubmit", submitted["sweep_id"], "--failed", "--json")
    assert done.code == 0, done
    again = [project.runs / run["run_id"] for run in done.json["runs"]]
    records = [json.loads((run / "search.json").read_text()) for run in again]
    assert [record["number"] for record in records] == [0, 1, 2]
    first = records[0]
    assert (first["metric"], first["prune"], first["trials"]) == ("eval_loss", "asha", 3)
    assert first["before"] + "0" + first["after"] == str(again[0])
    assert first["earlier"] == str(runs[1]), "tpe continues with what it has learned"
    assert json.loads((again[0] / "trial.json").read_text())["values"] == values[1]
    assert [(run / "trial.json").exists() for run in again] == [True, False, False]
    assert [trial.values for trial in sampler.read_earlier_trials(first)] == values
    assert read_status_values(project, again[0]) == values[1]
    plan = json.loads((again[0] / "plan.json").read_text())
    assert plan["program"][-3:] == ["${HPCRUN_TRIAL_lr}", "--act", "${HPCRUN_TRIAL_act}"]
    # It resumes from the last step, and prints nothing more.
    (again[0] / "search.json").write_text(json.dumps({**first, "resumes": str(runs[1])}))
    finish_trial(again[0], None)
    shown = project("status", done.json["sweep_id"], "--json").json["search"]["trials"]
    assert [trial["value"] for trial in shown] == [3.0, None, None]
    environ = {"HPCRUN_RUN_DIR": str(again[2])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "draw_values", lambda _, number, __: ({"number": number}, 0))
        drawn = json.loads(sampler.sample_trial(environ))
    assert drawn["values"] == {"number": 6}, "the earlier trials had 0 to 3"
    changed = project("resubmit", submitted["sweep_id"], "--failed", "--json", "--", "--lr", "1")
    assert changed.code == 0, changed
    other = project.runs / changed.json["runs"][0]["run_id"]
    assert json.loads((other / "search.json").read_text())["earlier"] == ""


def read_status_values(project: Caller, run: Path) -> Any:
    return project("status", "--json", run.name).json["runs"][0]["task"]["values"]
