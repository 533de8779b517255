"""Searches on the command line: the space, the first values, and the Python that draws others."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from tests.cli.calling import Caller, replay

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
