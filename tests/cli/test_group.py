"""Several submissions under one name, with replayed answers of Slurm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.calling import Caller, replay
from tests.json_schemas import check_json

JOB = 'command: [echo, "{gpus_per_node}"]\nresources: {gpus_per_node: 0, time: 60}\n'


@pytest.fixture
def slurm(hpcrun: Caller) -> Caller:
    """Write the jobs a, b and c, and an sbatch that counts its jobs from 17 and refuses job c."""
    for name in "abc":
        hpcrun.write(f"jobs/{name}.yaml", JOB)
    replay(hpcrun.tools, "squeue", (0, "", ""))
    replay(hpcrun.tools, "sacct", (1, "", "Slurm accounting storage is disabled"))
    sbatch = hpcrun.tools / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\necho x >>"{hpcrun.tools}/count"\n'
        'case "$PWD$*" in *-c-*) echo "sbatch: error: Invalid qos" >&2; exit 1 ;; esac\n'
        f'n=16; while read -r _; do n=$((n + 1)); done <"{hpcrun.tools}/count"; echo "$n"\n'
    )
    sbatch.chmod(0o755)
    return hpcrun


def write_log(run: Path, loss: float, seconds: float) -> None:
    (run / "logs" / "0").mkdir()
    lines = [f"step {n}: loss={loss + 1 / n:.4f} step_time={seconds}s\n" for n in range(1, 200)]
    (run / "logs" / "0" / "rank-0.log").write_text("".join(lines))


def test_several_jobs_are_submitted_under_one_name(slurm: Caller) -> None:
    done = slurm("submit", "a", "b", "--as", "memory", "--json")
    assert done.code == 0, done
    check_json("submit", done.json)
    assert done.json["group"] == "memory"
    assert [job["job_id"] for job in done.json["jobs"]] == ["17", "18"]
    for job, seconds in zip(done.json["jobs"], (1.0, 0.5), strict=True):
        write_log(Path(job["run_dir"]), 2.0, seconds)
    compared = slurm("compare", "memory", "--json").json
    assert [run["source"] for run in compared["runs"]] == [j["run_id"] for j in done.json["jobs"]]
    assert [run["steps_per_second"] for run in compared["runs"]] == [1.0, 2.0]
    shown = slurm("status", "memory", "--json")
    assert {run["job_id"] for run in shown.json["runs"]} == {"17", "18"}
    assert [run["source"] for run in slurm("parse", "memory", "--json").json["runs"]] == [
        run["source"] for run in compared["runs"]
    ]
    assert len(slurm("why", "memory", "--json").json["runs"]) == 2


def test_later_submissions_are_added_to_the_group(slurm: Caller) -> None:
    for job in "ab":
        done = slurm("submit", job, "--as", "memory")
        assert done.code == 0, done
    found = slurm("status", "memory", "--json").json["runs"]
    assert [run["job_id"] for run in found] == ["17", "18"]


def test_sweep_over_resources_becomes_a_group_of_arrays(slurm: Caller) -> None:
    sweep = "sweep: {resources.nodes: [1, 2], word: [x, y]}\nenv: {WORD: '{word}'}\n"
    slurm.write("jobs/scale.yaml", JOB + sweep)
    done = slurm("submit", "scale", "--json")
    assert done.code == 0, done
    check_json("submit", done.json)
    group = done.json["group"]
    assert re.fullmatch("scale-[0-9a-z]{4}", group)
    assert [len(job["runs"]) for job in done.json["jobs"]] == [2, 2]
    runs = [run for job in done.json["jobs"] for run in job["runs"]]
    for number, run in enumerate(runs):
        write_log(Path(run["run_dir"]), 2.0, 1.0 + number)
    out = slurm("compare", group).out
    for label in ("scale-nodes-1.0: word=x", "scale-nodes-1.1: word=y", "scale-nodes-2.0: word=x"):
        assert label in out, out


def test_jobs_are_checked_before_the_first_is_submitted(slurm: Caller) -> None:
    slurm.write("jobs/bad.yaml", "script: nothing.py\n")
    for words in (("a", "bad"), ("a", "b", "nowhere"), ("a", "b", "--follow")):
        done = slurm("submit", *words, "--as", "memory")
        assert done.code == 2 and done.out == "", done
    assert not (slurm.tools / "count").exists() and not list(slurm.runs.glob("*"))


def test_refusal_names_what_was_submitted_before(slurm: Caller) -> None:
    done = slurm("submit", "a", "c", "b", "--as", "memory")
    assert done.code != 0 and "Submitted a as job 17" in done.out
    assert "submitted before the error: 17 (2 not submitted)" in done.err
    assert len(slurm("status", "memory", "--json").json["runs"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--as", "7k3q!"], "--as: expected a name that begins with a letter"),
        (["a", "--as", "1"], "--as: expected a name that begins with a letter"),
        (["a", "lr=3"], "lr=3: not the name of a job"),
        (["a", "b", "3e-4"], "b 3e-4: not the name of a job"),
    ],
)
def test_invalid_groups_and_misplaced_words_are_refused(
    slurm: Caller, words: list[str], message: str
) -> None:
    done = slurm("submit", *words, "--dry-run")
    assert done.code == 2 and message in done.err, done


def test_name_of_a_run_is_refused_as_group(slurm: Caller) -> None:
    run_id = slurm("submit", "a", "--json").json["run_id"]
    tail = run_id.rpartition("-")[2]
    name = tail if tail[0].isalpha() else f"a-{tail}"
    done = slurm("submit", "b", "--as", name)
    assert done.code == 2 and f"--as {name}: a run has this name" in done.err, done


def test_commands_for_one_run_name_the_members_of_a_group(slurm: Caller) -> None:
    first = slurm("submit", "a", "b", "--as", "memory", "--json").json["jobs"][0]["run_id"]
    done = slurm("logs", "memory")
    assert done.code == 2 and "memory: a group of 2 runs" in done.err and first in done.err, done


def test_copy_of_a_run_is_not_in_the_group(slurm: Caller) -> None:
    done = slurm("submit", "a", "b", "--as", "memory", "--json")
    run = Path(done.json["jobs"][0]["run_dir"])
    copy = run.with_name(f"{run.name[:-4]}zzzz")
    copy.mkdir()
    for name in ("submitted.json", "plan.json", "spec.yaml"):
        (copy / name).write_bytes((run / name).read_bytes())
    assert len(slurm("status", "memory", "--json").json["runs"]) == 2


def test_dry_run_of_several_jobs_writes_nothing(slurm: Caller) -> None:
    done = slurm("submit", "a", "b", "--as", "memory", "--dry-run", "--json")
    check_json("submit", done.json)
    scripts = [job["job.sbatch"] for job in done.json["jobs"]]
    assert ["--job-name=a" in scripts[0], "--job-name=b" in scripts[1]] == [True, True]
    assert slurm("submit", "a", "b", "--dry-run").out.count("==> summary <==") == 2
    assert not list(slurm.runs.glob("*"))


def test_resubmitted_run_stays_in_the_group(slurm: Caller) -> None:
    jobs = slurm("submit", "a", "b", "--as", "memory", "--json").json["jobs"]
    run = Path(jobs[0]["run_dir"])
    assert json.loads((run / "submitted.json").read_text())["group"] == "memory"
    assert "group: memory" in (run / "spec.yaml").read_text()
