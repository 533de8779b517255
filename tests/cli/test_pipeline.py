"""Pipelines, with replayed answers of Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest

from hpcrun.jobside.evaluations import EvaluationWatch
from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import row
from tests.json_schemas import check_json

JOB = "command: [echo, NAME]\nresources: {gpus_per_node: 0, time: 60}\n"
MAIN = """\
prepare: {job: tokenize}
train: {job: train, after: prepare}
export: {job: export, after: train, args: [--from, "{after_checkpoint_dir}"]}
report: {job: export, after: [prepare, train], when: failure}
tidy: {job: tokenize, after: [train, export], when: always}
"""


@pytest.fixture
def slurm(hpcrun: Caller) -> Caller:
    """Write a pipeline and its jobs, and an sbatch that counts jobs from 17 and logs its calls."""
    for name in ("tokenize", "train", "export"):
        hpcrun.write(f"jobs/{name}.yaml", JOB.replace("NAME", name))
    hpcrun.write("pipelines/main.yaml", MAIN)
    replay(hpcrun.tools, "squeue", (0, "", ""))
    replay(hpcrun.tools, "sacct", (1, "", "Slurm accounting storage is disabled"))
    sbatch = hpcrun.tools / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\necho "$*" >>"{hpcrun.tools}/calls"\n'
        f'case "$PWD" in *-export-*) [ ! -e "{hpcrun.tools}/full" ] || '
        '{ echo "sbatch: error: no room" >&2; exit 1; } ;; esac\n'
        f'echo "$PWD" >>"{hpcrun.tools}/folders"\n'
        f'n=16; while read -r _; do n=$((n + 1)); done <"{hpcrun.tools}/calls"; echo "$n"\n'
    )
    sbatch.chmod(0o755)
    return hpcrun


def calls(slurm: Caller) -> list[str]:
    """Return the dependencies with which sbatch was called, "" for none."""
    log = slurm.tools / "calls"
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        words = [word for word in line.split() if word.startswith("--dependency=")]
        found.append(words[0].removeprefix("--dependency=") if words else "")
        assert ("--kill-on-invalid-dep=yes" in line) == bool(words)
    return found


DEPENDENCIES = ["", "afterok:17", "afterok:18", "afternotok:17?afternotok:18"]
DEPENDENCIES += ["afterany:18,afterany:19"]


def test_pipeline_is_a_group_of_dependent_jobs(slurm: Caller) -> None:
    done = slurm("submit", "main", "--json")
    assert done.code == 0, done
    check_json("submit", done.json)
    assert calls(slurm) == DEPENDENCIES
    jobs = {one["stage"]: one["submission"] for one in done.json["stages"]}
    assert [*jobs] == ["prepare", "train", "export", "report", "tidy"]
    folder = f"{jobs['train']['run_dir']}/checkpoints"
    assert folder in Path(jobs["export"]["run_dir"], "plan.json").read_text()
    group = done.json["group"]
    assert group.startswith("main-")
    shown = slurm("status", group)
    assert [line.split()[1] for line in shown.out.splitlines()[1:6]] == [*jobs], shown
    found = slurm("status", group, "--json").json
    check_json("status", found)
    assert [stage["stage"] for stage in found["pipeline"]["stages"]] == [*jobs]
    assert slurm("show", f"{group}.train", "--json").json["run_id"] == jobs["train"]["run_id"]


def test_dry_run_shows_every_script_and_writes_nothing(slurm: Caller) -> None:
    done = slurm("submit", "main", "--dry-run")
    assert done.code == 0 and done.out.count("==> job.sbatch <==") == 5, done
    assert "export   export    when train succeeded" in done.out
    assert "report   export    when prepare or train failed" in done.out
    answer = slurm("submit", "main", "--dry-run", "--json").json
    check_json("submit", answer)
    assert [one["stage"] for one in answer["stages"]][:2] == ["prepare", "train"]
    assert not list(slurm.runs.glob("*")) and not calls(slurm)


def queue(slurm: Caller, **states: str) -> None:
    """Make squeue show the jobs of stages in these states, in the order of MAIN, from 17."""
    stages = ["prepare", "train", "export", "report", "tidy"]
    folders = {
        json.loads((run / "pipeline.json").read_text())["stage"]: run
        for run in slurm.runs.glob("*")
    }
    rows = [
        row(folders[stage], str(17 + stages.index(stage)), *state.split("/"))
        for stage, state in states.items()
        if stage in folders
    ]
    replay(slurm.tools, "squeue", (0, "".join(rows), ""))


LIVE = {"prepare": "RUNNING", "train": "PENDING/Dependency", "export": "PENDING/Dependency"}


def test_interrupted_submission_is_continued_without_doubling(slurm: Caller) -> None:
    (slurm.tools / "full").touch()
    first = slurm("submit", "main")
    assert first.code == 3 and "Submitted main-" in first.out, first
    assert "submitted before the error: prepare (17), train (18)" in first.err
    group = first.out.split()[1]
    assert f"hpcrun submit main submits the rest, hpcrun cancel {group}" in first.err
    (slurm.tools / "full").unlink()
    (slurm.tools / "calls").write_text("first\nsecond\n")
    queue(slurm, **LIVE)
    shown = slurm("status", group)
    assert shown.out.count("NOT_SUBMITTED") == 3, shown
    done = slurm("submit", "main", "--json")
    assert done.code == 0, done
    check_json("submit", done.json)
    assert done.json["group"] == group
    assert [one["stage"] for one in done.json["earlier"]] == ["prepare", "train"]
    assert calls(slurm)[2:] == DEPENDENCIES[2:]
    queue(slurm, **LIVE, report="PENDING/Dependency", tidy="PENDING/Dependency")
    again = slurm("submit", "main")
    assert again.code == 2 and f"{group}, the same pipeline, has not ended" in again.err, again
    assert len(calls(slurm)) == 5


@pytest.mark.parametrize("deleted", ["prepare", "tidy"])
def test_pipeline_whose_runs_were_deleted_is_submitted_anew(slurm: Caller, deleted: str) -> None:
    group = slurm("submit", "main", "--json").json["group"]
    never = "CANCELLED/DependencyNeverSatisfied"
    good = dict.fromkeys(("prepare", "train", "export", "tidy"), "COMPLETED")
    for run in slurm.runs.glob("*"):
        if json.loads((run / "pipeline.json").read_text())["stage"] == deleted:
            shutil.rmtree(run)
    queue(slurm, **good, report=never)
    done = slurm("submit", "main", "--json")
    assert done.code == 0 and done.json["group"] != group, done
    assert len(done.json["stages"]) == 5


def test_changed_file_does_not_continue_an_interrupted_submission(slurm: Caller) -> None:
    (slurm.tools / "full").touch()
    slurm("submit", "main")
    queue(slurm, **LIVE)
    slurm.write("pipelines/main.yaml", MAIN + "last: {job: train, after: tidy}\n")
    done = slurm("submit", "main")
    assert done.code == 2 and "submitted only in part (prepare, train), and" in done.err, done


def test_interrupted_submission_with_evaluations_is_continued(slurm: Caller) -> None:
    evaluation = EVAL.replace("export", "tokenize")
    last = "last: {job: export, after: train}"
    slurm.write("pipelines/main.yaml", f"train: {{job: train}}\n{evaluation}\n{last}\n")
    (slurm.tools / "full").touch()
    assert slurm("submit", "main", "--as", "one").code == 3
    (slurm.tools / "full").unlink()
    (training,) = slurm.runs.glob("*-train-*")
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    slurm("wait", "one", "--timeout", "1")
    (run,) = slurm.runs.glob("*-tokenize-*")
    show_queue(slurm, {training: "COMPLETED", run: "COMPLETED"})
    waited = slurm("wait", "one")
    assert waited.code == 1 and "one: never submitted: last. Try: hpcrun submit" in waited.err
    changed = slurm("submit", "main", "--set", "last.env.A=1")
    assert changed.code == 2 and "has changed since" in changed.err, changed
    assert "cancel" not in changed.err and "--as NAME submits another one" in changed.err
    show_queue(slurm, {training: "COMPLETED", run: "FAILED"})
    done = slurm("submit", "main", "--json")
    assert done.code == 0, done
    assert [one["stage"] for one in done.json["stages"]] == ["last"]
    assert [one["stage"] for one in done.json["earlier"]] == ["train"]


def test_lost_reply_of_sbatch_is_not_submitted_again(slurm: Caller) -> None:
    assert slurm("submit", "main", "--as", "first").code == 0
    run = next(slurm.runs.glob("*-train-*"))
    (run / "submitted.json").unlink()
    done = slurm("submit", "main", "--as", "first")
    assert done.code == 4 and f"it is unknown whether Slurm has {run.name}" in done.err, done
    assert len(calls(slurm)) == 5


def test_stage_is_skipped_if_its_predecessor_failed(slurm: Caller) -> None:
    group = slurm("submit", "main", "--json").json["group"]
    never = "CANCELLED/DependencyNeverSatisfied"
    queue(slurm, prepare="FAILED", train=never, export=never, report="COMPLETED", tidy="COMPLETED")
    stages = slurm("status", group, "--json").json["pipeline"]["stages"]
    assert [(one["state"], one["skipped"]) for one in stages] == [
        ("FAILED", None),
        ("SKIPPED", "prepare FAILED"),
        ("SKIPPED", "train SKIPPED"),
        ("COMPLETED", None),
        ("COMPLETED", None),
    ]
    assert "SKIPPED" in slurm("status", group).out
    assert slurm("wait", group).code == 1
    assert slurm("resubmit", group, "--from", "export").code == 2


def test_failure_stage_that_is_not_needed_does_not_fail_the_pipeline(slurm: Caller) -> None:
    group = slurm("submit", "main", "--json").json["group"]
    good = dict.fromkeys(("prepare", "train", "export", "tidy"), "COMPLETED")
    queue(slurm, **good, report="CANCELLED/DependencyNeverSatisfied")
    done = slurm("wait", group)
    assert done.code == 0, done
    stages = slurm("status", group, "--json").json["pipeline"]["stages"]
    assert [one["skipped"] for one in stages][2:] == [None, "prepare and train succeeded", None]


def test_resubmit_from_a_stage_repeats_it_and_its_followers(slurm: Caller) -> None:
    group = slurm("submit", "main", "--json").json["group"]
    ends = {"prepare": "COMPLETED", "train": "FAILED", "report": "COMPLETED", "tidy": "COMPLETED"}
    queue(slurm, **ends, export="CANCELLED/DependencyNeverSatisfied")
    named = slurm("resubmit", group)
    assert named.code == 2 and f"hpcrun resubmit {group} --from prepare" in named.err, named
    done = slurm("resubmit", group, "--from", "train", "--set", "train.env.A=1", "--json")
    assert done.code == 0, done
    check_json("resubmit", done.json)
    assert [one["stage"] for one in done.json["stages"]] == ["train", "export", "report", "tidy"]
    assert calls(slurm)[5:] == ["", "afterok:22", "afternotok:22", "afterany:22,afterany:23"]
    runs = {one["stage"]: one["submission"]["runs"][0]["run_id"] for one in done.json["stages"]}
    assert slurm("show", f"{group}.train", "--json").json["run_id"] == runs["train"]
    stages = slurm("status", group, "--json").json["pipeline"]["stages"]
    assert [one["run_ids"] for one in stages][1:] == [[run] for run in runs.values()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["main", "train"], "main.yaml is a pipeline, which is submitted alone"),
        (["main", "-N", "2"], "--nodes does not apply to main.yaml, a pipeline"),
        (["main", "--test-only"], "--test-only does not apply to main.yaml"),
        (
            ["main", "--set", "resources.nodes=2"],
            "expected STAGE.KEY=VALUE; the stages are",
        ),
        (["main", "--as", "1"], "--as: expected a name that begins with a letter"),
        (["both"], "both: both a pipeline, "),
        (["bad"], "bad.yaml: a.job: nowhere: no such job"),
    ],
)
def test_pipelines_refuse_what_does_not_apply(
    slurm: Caller, words: list[str], message: str
) -> None:
    slurm.write("pipelines/both.yaml", "a: {job: train}\n")
    slurm.write("jobs/both.yaml", JOB)
    slurm.write("pipelines/bad.yaml", "a: {job: nowhere}\n")
    done = slurm("submit", *words)
    assert done.code == 2 and message in done.err, done
    assert not calls(slurm)


def test_jobs_lists_the_pipelines(slurm: Caller) -> None:
    slurm.write("pipelines/bad.yaml", "a: {job: train, after: b}\n")
    found = slurm("jobs", "--json").json
    check_json("jobs", found)
    assert [(one["name"], one["stages"]) for one in found["pipelines"]] == [
        ("bad", []),
        ("main", ["prepare", "train", "export", "report", "tidy"]),
    ]
    assert "there is no stage b" in found["pipelines"][0]["error"]
    assert "a pipeline of prepare, train, export" in slurm("jobs").out


def test_logs_shows_the_current_stage(slurm: Caller) -> None:
    group = slurm("submit", "main", "--json").json["group"]
    none = slurm("logs", group)
    assert none.code == 2 and f"{group}: no stage has begun yet" in none.err, none
    for stage, at in (("prepare", 1), ("train", 2)):
        run = next(
            run
            for run in slurm.runs.glob("*")
            if json.loads((run / "pipeline.json").read_text())["stage"] == stage
        )
        (run / "logs" / "0").mkdir(parents=True)
        (run / "logs" / "0" / "rank-0.log").write_text(f"the output of {stage}\n")
        (run / "attempts" / "0").mkdir(parents=True)
        begin = {"attempt": 0, "job_id": str(16 + at), "host": "n", "pid": 1, "nodes": "n"}
        (run / "attempts/0/begin.json").write_text(json.dumps({**begin, "begun_at": 1.0}))
        queue(slurm, prepare="COMPLETED" if at == 2 else "RUNNING", train="RUNNING")
        assert slurm("logs", group).out == f"the output of {stage}\n"
    assert slurm("logs", f"{group}.prepare").out == "the output of prepare\n"


def check_at_end(slurm: Caller, training: Path) -> None:
    """Submit what is due as the job of a training does when it ends."""
    environ = {
        "PATH": f"{slurm.tools}:{os.environ['PATH']}",
        "HPCRUN_RUN_DIR": str(training),
        "HPCRUN_CHECKPOINT_DIR": str(training / "checkpoints"),
    }
    EvaluationWatch(environ, print).check(has_ended=True)


def write_checkpoints(run: Path, *steps: int) -> None:
    """Write complete checkpoints, in the form of torch.save, and an incomplete one."""
    folder = run / "checkpoints"
    folder.mkdir(exist_ok=True)
    for step in steps:
        with zipfile.ZipFile(folder / f"step-{step}.pt", "w") as file:
            file.writestr("step", str(step))
    (folder / f"step-{steps[-1] + 1}.pt").write_bytes(b"PK\x03\x04 and no end")


EVAL = (
    'eval: {job: export, for_each_checkpoint_of: train, args: [--at, "{checkpoint}"], parallel: 2}'
)


@pytest.fixture
def training(slurm: Caller) -> Path:
    """Submit a pipeline with evaluations; return the run of its training."""
    slurm.write("pipelines/main.yaml", f"train: {{job: train}}\n{EVAL}\n")
    done = slurm("submit", "main", "--as", "one")
    assert (
        done.code == 0 and "eval: for each checkpoint of train, submitted by its job\n" in done.out
    ), done
    (run,) = slurm.runs.glob("*-train-*")
    return run


def evaluations(slurm: Caller) -> dict[str, Path]:
    """Return the runs that evaluate checkpoints, by the name of the checkpoint."""
    found: dict[str, Path] = {}
    for run in slurm.runs.glob("*-export-*"):
        path = json.loads((run / "pipeline.json").read_text())["checkpoint"]
        assert Path(path).name not in found, "evaluated twice"
        assert path in (run / "plan.json").read_text()
        found[Path(path).name] = run
    return found


def show_queue(slurm: Caller, states: dict[Path, str]) -> None:
    rows = [
        row(run, json.loads((run / "submitted.json").read_text())["job_id"], state)
        for run, state in states.items()
    ]
    replay(slurm.tools, "squeue", (0, "".join(rows), ""))
    script = slurm.tools / "squeue"
    over = " ".join(str(run) for run, state in states.items() if state != "RUNNING")
    active = (
        f'case "$*" in *"--format=%i %Z") n=16; while read -r d; do n=$((n + 1)); '
        f'case " {over} " in *" $d "*) ;; *) echo "$n $d" ;; esac; done <"{slurm.tools}/folders"; '
        f'cat "{slurm.tools}/others" 2>/dev/null; exit 0 ;; esac\n'
    )
    script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{active}"))


def test_each_complete_checkpoint_is_evaluated_once(slurm: Caller, training: Path) -> None:
    write_checkpoints(training, 4, 8, 12)
    show_queue(slurm, {training: "RUNNING"})
    for _ in range(2):
        assert slurm("wait", "one", "--timeout", "1").code in (4, 124)
        assert sorted(evaluations(slurm)) == ["step-4.pt", "step-8.pt"], "the oldest two"
    runs = evaluations(slurm)
    show_queue(slurm, {training: "COMPLETED"} | dict.fromkeys(runs.values(), "COMPLETED"))
    slurm("wait", "one", "--timeout", "1")
    assert sorted(evaluations(slurm)) == ["step-12.pt", "step-4.pt", "step-8.pt"]
    runs = evaluations(slurm)
    show_queue(slurm, {training: "COMPLETED"} | dict.fromkeys(runs.values(), "COMPLETED"))
    shutil.rmtree(runs["step-4.pt"])
    assert slurm("wait", "one").code == 0
    assert sorted(evaluations(slurm)) == ["step-12.pt", "step-8.pt"], "deleted, not repeated"
    (stage,) = slurm("status", "one", "--json").json["pipeline"]["stages"][1:]
    assert (stage["state"], len(stage["run_ids"])) == ("COMPLETED", 2)


def test_evaluation_refused_by_slurm_is_submitted_later(slurm: Caller, training: Path) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    (slurm.tools / "full").touch()
    assert slurm("wait", "one").code == 3
    assert not evaluations(slurm)
    (slurm.tools / "full").unlink()
    slurm("wait", "one", "--timeout", "1")
    assert [*evaluations(slurm)] == ["step-4.pt"]


def test_cancelled_training_gets_no_more_evaluations(slurm: Caller, training: Path) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "CANCELLED"})
    cancelled = {"cancelled_at": 1.0, "user": "ada"}
    (training / "cancelled.json").write_text(json.dumps(cancelled))
    assert slurm("wait", "one").code == 1
    assert not evaluations(slurm)


def test_cancelled_evaluation_is_not_repeated_and_the_others_follow(
    slurm: Caller, training: Path
) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "RUNNING"})
    slurm("wait", "one", "--timeout", "1")
    (run,) = evaluations(slurm).values()
    write_checkpoints(training, 4, 8)
    show_queue(slurm, {training: "COMPLETED", run: "CANCELLED"})
    (run / "cancelled.json").write_text(json.dumps({"cancelled_at": 1.0, "user": "ada"}))
    slurm("wait", "one", "--timeout", "1")
    assert sorted(evaluations(slurm)) == ["step-4.pt", "step-8.pt"]


def test_cancelled_pipeline_gets_no_more_evaluations_until_it_is_resubmitted(
    slurm: Caller, training: Path
) -> None:
    replay(slurm.tools, "scancel", (0, "", ""))
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    slurm("wait", "one", "--timeout", "1")
    (run,) = evaluations(slurm).values()
    write_checkpoints(training, 4, 8)
    show_queue(slurm, {training: "COMPLETED", run: "RUNNING"})
    # Slurm gets the request after the mark was written.
    script = slurm.tools / "scancel"
    mark = training / "evaluations-cancelled.json"
    script.write_text(f"#!/bin/sh\n[ -e '{mark}' ]\n")
    done = slurm("cancel", "one")
    assert done.code == 0, done
    show_queue(slurm, {training: "COMPLETED", run: "CANCELLED"})
    assert slurm("wait", "one").code == 1
    assert [*evaluations(slurm)] == ["step-4.pt"]
    assert slurm("resubmit", "one", "--from", "train").code == 0
    (again,) = {*slurm.runs.glob("*-train-*")} - {training}
    folder = Path(json.loads((again / "plan.json").read_text())["checkpoint_dir"])
    write_checkpoints(folder.parent, 12)
    show_queue(slurm, {training: "COMPLETED", run: "CANCELLED", again: "COMPLETED"})
    slurm("wait", "one", "--timeout", "1")
    assert "step-12.pt" in evaluations(slurm)


def test_secrets_of_evaluations_are_removed_by_cancel_and_written_again_by_resubmit(
    slurm: Caller,
) -> None:
    replay(slurm.tools, "scancel", (0, "", ""))
    slurm.write("jobs/export.yaml", JOB.replace("NAME", "export") + "secrets: [TOKEN_OF_EVAL]\n")
    slurm.write("pipelines/main.yaml", f"train: {{job: train}}\n{EVAL}\n")
    slurm.environ["TOKEN_OF_EVAL"] = "first"
    assert slurm("submit", "main", "--as", "one").code == 0
    (training,) = slurm.runs.glob("*-train-*")
    (secrets,) = training.glob("evaluations/eval/*/secrets.env")
    show_queue(slurm, {training: "RUNNING"})
    assert slurm("cancel", "one").code == 0 and not secrets.exists()
    show_queue(slurm, {training: "CANCELLED"})
    del slurm.environ["TOKEN_OF_EVAL"]
    refused = slurm("resubmit", "one", "--from", "train")
    assert refused.code == 2 and "TOKEN_OF_EVAL: not set in your environment" in refused.err
    slurm.environ["TOKEN_OF_EVAL"] = "second"
    assert slurm("resubmit", "one", "--from", "train").code == 0
    assert "second" in secrets.read_text() and secrets.stat().st_mode & 0o777 == 0o600
    (again,) = {*slurm.runs.glob("*-train-*")} - {training}
    write_checkpoints(again, 4)
    show_queue(slurm, {training: "CANCELLED", again: "COMPLETED"})
    slurm("wait", "one", "--timeout", "1")
    (run,) = evaluations(slurm).values()
    assert (run / "secrets.env").read_text() == secrets.read_text()


def end_training(slurm: Caller, training: Path, stopped: str) -> str:
    """Let the job of the training record its end; return its messages."""
    (training / "attempts/0").mkdir(parents=True, exist_ok=True)
    environ = {
        "PATH": f"{slurm.tools}:{os.environ['PATH']}",
        "HPCRUN_RUN_DIR": str(training),
        "HPCRUN_CHECKPOINT_DIR": str(training / "checkpoints"),
        "HPCRUN_WORLD_SIZE": "1",
    }
    command = f"exec '{sys.executable}' jobside.pyz end 143 1.0 '{stopped}' '' 3>&1"
    argv = ["bash", "-c", command]
    done = subprocess.run(argv, cwd=training, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stderr


def test_training_that_is_stopped_submits_evaluations_unless_it_was_cancelled(
    slurm: Caller, training: Path
) -> None:
    write_checkpoints(training, 4, 8, 12)
    show_queue(slurm, {training: "RUNNING"})
    (training / "evaluations-cancelled.json").touch()
    end_training(slurm, training, "TERM")
    assert not evaluations(slurm)
    (training / "evaluations-cancelled.json").unlink()
    end_training(slurm, training, "TERM")
    runs = evaluations(slurm)
    assert sorted(runs) == ["step-4.pt", "step-8.pt"]
    # The nodes of both evaluations die.
    show_queue(slurm, {training: "TIMEOUT"} | dict.fromkeys(runs.values(), "NODE_FAIL"))
    shown = slurm("status", "one").out
    assert "1 checkpoint without an evaluation; hpcrun wait submits them" in shown
    slurm("wait", "one", "--timeout", "1")
    assert len(evaluations(slurm)) == 3
    assert "without an evaluation" not in slurm("status", "one").out


def test_status_shows_that_slurm_was_silent_when_evaluations_were_due(
    slurm: Caller, training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    script = (slurm.tools / "squeue").read_text()
    (slurm.tools / "squeue").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr("hpcrun.jobside.evaluations.END_PATIENCE_S", 0.0)
    check_at_end(slurm, training)
    (slurm.tools / "squeue").write_text(script)
    assert not evaluations(slurm)
    shown = slurm("status", "one").out
    assert "did not answer the job that submits it (squeue: no answer); hpcrun wait does" in shown
    slurm("wait", "one", "--timeout", "1")
    assert [*evaluations(slurm)] == ["step-4.pt"]
    assert "squeue: no answer" not in slurm("status", "one").out


def test_ended_training_repeats_its_last_check_while_slurm_is_silent(
    slurm: Caller, training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    first = slurm.tools / "first"
    silent = f"#!/bin/sh\n[ -e '{first}' ] || {{ touch '{first}'; exit 1; }}\n"
    script = slurm.tools / "squeue"
    script.write_text(script.read_text().replace("#!/bin/sh\n", silent, 1))
    monkeypatch.setattr("hpcrun.jobside.evaluations.END_RETRY_S", 0.0)
    check_at_end(slurm, training)
    assert [*evaluations(slurm)] == ["step-4.pt"]


def test_jobs_of_the_user_in_the_root_folder_do_not_block_evaluations(
    slurm: Caller, training: Path
) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    (slurm.tools / "others").write_text("7 /\n8 \n9 /home/ada/\n")
    slurm("wait", "one", "--timeout", "1")
    assert [*evaluations(slurm)] == ["step-4.pt"]


def test_evaluation_whose_job_id_was_lost_is_recorded_when_it_is_in_the_queue(
    slurm: Caller, training: Path
) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "RUNNING"})
    slurm("wait", "one", "--timeout", "1")
    (run,) = evaluations(slurm).values()
    record = (run / "submitted.json").read_text()
    (run / "submitted.json").unlink()
    (mark,) = training.glob("evaluations/eval/claims/*/submitted")
    mark.unlink()
    slurm("wait", "one", "--timeout", "1")
    again = json.loads((run / "submitted.json").read_text())
    assert again["submitted_at"] == pytest.approx(json.loads(record)["submitted_at"], abs=60)
    assert {**again, "submitted_at": 0} == {**json.loads(record), "submitted_at": 0}
    assert mark.exists() and len(evaluations(slurm)) == 1


@pytest.mark.parametrize("run_id", ["20260101-000000-export-0000", ""])
def test_evaluation_that_was_not_submitted_is_claimed_again(
    slurm: Caller, training: Path, run_id: str
) -> None:
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    claims = training / "evaluations" / "eval" / "claims"
    claim = claims / quote(str(training / "checkpoints" / "step-4.pt"), safe="") / "0"
    claim.parent.mkdir(parents=True)
    claim.write_text(run_id)
    done = slurm("wait", "one", "--timeout", "1")
    assert (done.code, evaluations(slurm)) == (124, {}), "it may be in progress"
    assert "timed out; checkpoints are still to be evaluated" in done.err
    os.utime(claim, (1.0, 1.0))
    slurm("wait", "one", "--timeout", "1")
    assert [*evaluations(slurm)] == ["step-4.pt"]


def test_evaluations_do_not_need_the_profile_of_their_training(slurm: Caller) -> None:
    profile = (slurm.project / "hpcrun.yaml").read_text()
    slurm.write("hpcrun.yaml", f"{profile}name: big\n")
    other = Path(slurm.environ["HOME"], ".config/hpcrun/clusters/other.yaml")
    other.parent.mkdir(parents=True)
    other.write_text(f"{profile}name: other\n")
    slurm.write("pipelines/main.yaml", f"train: {{job: train}}\n{EVAL}\n")
    assert slurm("submit", "main", "--as", "one").code == 0
    (training,) = slurm.runs.glob("*-train-*")
    write_checkpoints(training, 4)
    show_queue(slurm, {training: "COMPLETED"})
    slurm.write("hpcrun.yaml", f"{profile}name: new\n")
    slurm("wait", "one", "--cluster", "other", "--timeout", "1")
    (run,) = evaluations(slurm).values()
    assert json.loads((run / "submitted.json").read_text())["cluster"] == "big"


def test_evaluations_are_not_repeated_after_the_first_training_was_deleted(
    slurm: Caller, training: Path
) -> None:
    show_queue(slurm, {training: "COMPLETED"})
    assert slurm("resubmit", "one", "--from", "train").code == 0
    (again,) = {*slurm.runs.glob("*-train-*")} - {training}
    folder = Path(json.loads((again / "plan.json").read_text())["checkpoint_dir"])
    assert folder.parent == again
    write_checkpoints(again, 4)
    show_queue(slurm, {training: "COMPLETED", again: "COMPLETED"})
    slurm("wait", "one", "--timeout", "1")
    (run,) = evaluations(slurm).values()
    shutil.rmtree(training)
    show_queue(slurm, {again: "COMPLETED", run: "COMPLETED"})
    assert slurm("wait", "one").code == 0
    assert [*evaluations(slurm)] == ["step-4.pt"]


def test_checkpoint_whose_path_has_a_placeholder_is_refused(slurm: Caller, training: Path) -> None:
    write_checkpoints(training, 4)
    (training / "checkpoints/step-4.pt").rename(training / "checkpoints/{nodes}-4.pt")
    shutil.copy(training / "checkpoints/{nodes}-4.pt", training / "checkpoints/step-8.pt")
    show_queue(slurm, {training: "COMPLETED"})
    slurm("wait", "one", "--timeout", "1")
    assert [*evaluations(slurm)] == ["step-8.pt"], "the others follow"
    runs = evaluations(slurm)
    show_queue(slurm, {training: "COMPLETED"} | dict.fromkeys(runs.values(), "COMPLETED"))
    done = slurm("wait", "one")
    assert done.code == 1 and done.err.count("{nodes}-4.pt: such a path cannot be eval") == 1, done


def test_training_of_evaluations_must_keep_its_checkpoints(slurm: Caller) -> None:
    slurm.write("jobs/train.yaml", JOB + "checkpoint: {keep: 2}\n")
    slurm.write("pipelines/main.yaml", f"train: {{job: train}}\n{EVAL}\n")
    done = slurm("submit", "main")
    assert done.code == 2 and "may remove checkpoints before stage eval" in done.err, done


def write_log(run: Path, log: str, exit_code: int | None = 0) -> None:
    """Write the log of a run, and its end unless it goes on (None)."""
    (run / "logs/0").mkdir(parents=True, exist_ok=True)
    (run / "logs/0/rank-0.log").write_text(log)
    attempt = run / "attempts/0"
    attempt.mkdir(parents=True, exist_ok=True)
    end = {"attempt": 0, "job_id": "17", "exit_code": exit_code, "signal": None}
    end |= {"stopped_by": None, "first_failure": None, "begun_at": 1e9, "ended_at": 1e9 + 40}
    if exit_code is not None:
        (attempt / "end.json").write_text(json.dumps(end))


@pytest.fixture
def evaluated(slurm: Caller, training: Path) -> Caller:
    """Evaluate the checkpoints of the steps 4 and 8; the training goes on to step 14."""
    write_checkpoints(training, 4, 8)
    show_queue(slurm, {training: "RUNNING"})
    slurm("wait", "one", "--timeout", "1")
    lines = (f"step={n} loss={3 - n / 10} eval_loss={3 - n / 9}\n" for n in range(2, 16, 2))
    write_log(training, "".join(lines), None)
    for name, run in evaluations(slurm).items():
        accuracy = 0.4 if name == "step-4.pt" else 0.5
        batches = "".join(f"step={n} loss=1.{n}\n" for n in range(1, 4))
        write_log(run, f"{batches}[EVAL] mIoU: {accuracy}\n")
    return slurm


def test_evaluations_are_drawn_at_the_steps_of_their_checkpoints(evaluated: Caller) -> None:
    (run,) = evaluated.runs.glob("*-train-*")
    for word in ("one", run.name, "one.train"):
        (found,) = evaluated("parse", "--json", word).json["runs"]
        score = found["metrics"]["eval.eval_mIoU"]
        assert (found["source"], score["count"]) == (run.name, 2)
        assert score["first"] == {"step": 4, "value": 0.4}
        assert score["last"] == {"step": 8, "value": 0.5}
        assert found["metrics"]["eval_loss"]["count"] == 7, "the training's own"
        assert not {"eval.loss", "eval.eval_loss"} & {*found["metrics"]}
        assert (
            "eval: not drawn, because an evaluation logged it several times: loss" in found["notes"]
        )
    assert "eval.eval_mIoU" in evaluated("parse", "one").out
    drawn = evaluated("parse", "one", "--metric", "eval.eval_mIoU", "--html", "page.html")
    assert f"{run.name}: eval.eval_mIoU" in drawn.out
    assert "eval.eval_mIoU" in (evaluated.project / "page.html").read_text()


def test_scores_of_failed_evaluations_are_not_drawn(evaluated: Caller) -> None:
    write_log(evaluations(evaluated)["step-8.pt"], "[EVAL] mIoU: 0.5\n", 1)
    write_log(evaluations(evaluated)["step-4.pt"], "[EVAL] mIoU: 0.4\n")
    (found,) = evaluated("parse", "--json", "one").json["runs"]
    assert found["metrics"]["eval.eval_mIoU"]["last"] == {"step": 4, "value": 0.4}


# ---- a sweep after a sweep

SWEPT = "train: {job: train}\nexport: {job: export, after: train, when: each, args: [ARGS]}\n"


def write_sweeps(slurm: Caller, train: str, export: str, args: str = "") -> None:
    slurm.write("pipelines/main.yaml", SWEPT.replace("ARGS", args))
    for name, keys in (("train", train), ("export", export)):
        slurm.write(f"jobs/{name}.yaml", JOB.replace("NAME", name) + keys)


def test_each_run_of_a_sweep_starts_after_its_counterpart(slurm: Caller) -> None:
    sweep = "sweep: {env.LR: [1, 2, 3]}\n"
    write_sweeps(slurm, sweep, sweep, '--from, "{after_checkpoint_dir}"')
    dry = slurm("submit", "main", "--dry-run").out
    assert "each run when that of train succeeded" in dry
    done = slurm("submit", "main", "--as", "one", "--json")
    assert done.code == 0, done
    assert calls(slurm) == ["", "aftercorr:17"]
    for index in range(3):
        (train,) = slurm.runs.glob(f"*-train.{index}-*")
        (export,) = slurm.runs.glob(f"*-export.{index}-*")
        assert f"{train}/checkpoints" in (export / "job.sbatch").read_text()


def test_each_run_of_a_submitted_sweep_starts_after_its_counterpart(slurm: Caller) -> None:
    sweep = "sweep: {env.LR: [1, 2]}\n"
    write_sweeps(slurm, sweep, sweep + 'args: [--from, "{after_checkpoint_dir}"]\n')
    train = slurm("submit", "train", "--json").json["sweep_id"]
    folder = slurm.runs / f"{train}.array"
    tasks = [row(folder, "17_0", "COMPLETED"), row(folder, "17_1", "RUNNING")]
    replay(slurm.tools, "squeue", (0, "".join(tasks), ""))
    done = slurm("submit", "export", "--after-each", train)
    assert done.code == 0, done
    (array,) = slurm.runs.glob("*-export-*.array")
    script = (array / "job.sbatch").read_text()
    assert "#SBATCH --dependency=aftercorr:17\n" in script and "kill-on-invalid-dep=yes" in script
    for index in range(2):
        (before,) = slurm.runs.glob(f"*-train.{index}-*")
        (run,) = slurm.runs.glob(f"*-export.{index}-*")
        assert f"{before}/checkpoints" in (run / "job.sbatch").read_text()
    for words, message in (
        (["tokenize", "--after-each", train], "but tokenize is not a sweep"),
        (["export", "--after-each", before.name], f"{before.name}: not a sweep"),
        (["export", "--after-each", train, "--after", "9"], "cannot be used with --after"),
        (["export", "--after-each", train, "--set", "sweep={env.LR: [1, 3]}"], "LR 2 in "),
        (["export", "--after-each", train, "--set", "sweep={env.LR: [1]}"], "have 2 and 1 runs"),
        (["main", "--after-each", train], "--after-each"),
        (["export", "--after-each", "nothing"], "no such run"),
    ):
        refused = slurm("submit", *words)
        assert refused.code == 2 and message in refused.err, refused
    tasks = [row(folder, "17_0", "COMPLETED"), row(folder, "17_1", "FAILED")]
    replay(slurm.tools, "squeue", (0, "".join(tasks), ""))
    refused = slurm("submit", "export", "--after-each", train)
    assert refused.code == 2 and "its run 17_1 is FAILED" in refused.err, refused
    tasks = [row(folder, f"17_{index}", "COMPLETED") for index in range(2)]
    replay(slurm.tools, "squeue", (0, "".join(tasks), ""))
    done = slurm("submit", "export", "--after-each", train, "--dry-run")
    assert done.code == 0 and "--dependency" not in done.out, done


def test_values_that_a_search_draws_are_no_pair_of_other_values(slurm: Caller) -> None:
    args = "args: ['--lr={lr}']\n"
    drawn = "sweep: {search: tpe, trials: 2, metric: loss, lr: {log: [1.0e-3, 1.0e-2]}}\n"
    write_sweeps(slurm, drawn + args, "sweep: {lr: [0.002, 0.003]}\n" + args)
    train = slurm("submit", "train", "--json").json["sweep_id"]
    folder = slurm.runs / f"{train}.array"
    tasks = [row(folder, f"17_{index}", "PENDING") for index in range(2)]
    replay(slurm.tools, "squeue", (0, "".join(tasks), ""))
    export = ["submit", "export", "--after-each", train, "--dry-run"]
    refused = slurm(*export)
    assert refused.code == 2 and "lr is drawn when run 0 of" in refused.err, refused
    assert (
        slurm(*export, "--set", "sweep={lr: null, env.SEED: [1, 2]}", "--set", "args=[]").code == 0
    )
    for index, rate in enumerate(("0.002", "0.004")):
        (run,) = slurm.runs.glob(f"*-train.{index}-*")
        trial = {"version": 1, "values": {"lr": rate}}
        (run / "trial.json").write_text(json.dumps(trial))
    refused = slurm(*export)
    assert refused.code == 2 and "run 1 has lr 0.004 in" in refused.err, refused


@pytest.mark.parametrize("words", [["one.export"], ["one", "--from", "export"]])
def test_resubmitted_runs_of_a_sweep_use_their_own_counterparts(
    slurm: Caller, words: list[str]
) -> None:
    sweep = "sweep: {env.LR: [1, 2]}\n"
    write_sweeps(slurm, sweep, sweep, '--from, "{after_checkpoint_dir}"')
    assert slurm("submit", "main", "--as", "one").code == 0
    earlier = [*slurm.runs.glob("*-export.*")]
    for run in slurm.runs.glob("*.[01]-*"):
        write_log(run, "", 0)
        (run / "checkpoints").mkdir(exist_ok=True)
    done = slurm("resubmit", *words)
    assert done.code == 0, done
    assert calls(slurm) == ["", "aftercorr:17", ""]
    for index in range(2):
        (train,) = slurm.runs.glob(f"*-train.{index}-*")
        (export,) = {*slurm.runs.glob(f"*-export.{index}-*")} - {*earlier}
        assert f"{train}/checkpoints" in (export / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("train", "export", "message"),
    [
        ("sweep: {env.LR: [1, 2]}", "", "but export is not a sweep"),
        ("", "sweep: {env.LR: [1, 2]}", "but train is not a sweep"),
        ("sweep: {env.LR: [1, 2]}", "sweep: {env.LR: [1, 2, 3]}", "they have 2 and 3 runs"),
        ("sweep: {env.LR: [1, 2]}", "sweep: {env.LR: [2, 1]}", "run 0 has env.LR 1 in train and 2"),
        (
            "sweep: {env.A: [1, 2]}\nsweep_per_node: 2",
            "sweep: {env.B: [1, 2]}",
            "sweep_per_node must be the same",
        ),
    ],
)
def test_sweeps_whose_runs_do_not_correspond_are_refused(
    slurm: Caller, train: str, export: str, message: str
) -> None:
    write_sweeps(slurm, train, export)
    done = slurm("submit", "main")
    assert done.code == 2 and message in done.err, done
    assert not calls(slurm)
