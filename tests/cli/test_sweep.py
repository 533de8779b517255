"""Sweeps on the command line, with replayed answers of Slurm.

tests/cluster tests the real Slurm.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrun.actions import submit as submission
from hpcrun.slurm import client
from tests.cli.calling import Caller, Done, replay
from tests.needs import require_command
from tests.slurm_answers import sacct_row, squeue_row

CAPTURED = Path(__file__).parent.parent / "captured"
VERSIONS = sorted(path.name for path in CAPTURED.iterdir())
JOB = """\
command: [echo, "{word}"]
resources: {gpus_per_node: 0}
sweep: {word: [a, b, c, d, e, f, g]}
sweep_limit: 2
"""


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for commands, and write a sweep of seven runs."""
    hpcrun.write("words.yaml", JOB)
    tools = hpcrun.tools
    replay(tools, "sbatch", (0, "17\n", ""))
    replay(tools, "squeue", (0, "", ""))
    replay(tools, "sacct", (1, "", "Slurm accounting storage is disabled"))
    return tools


def submit(hpcrun: Caller, *options: str) -> Any:
    done = hpcrun("submit", "words.yaml", "--json", *options)
    assert done.code == 0, done
    return done.json


def array_of(hpcrun: Caller) -> Path:
    (folder,) = hpcrun.runs.glob("*.array")
    return folder


def states(hpcrun: Caller, word: str) -> dict[str, str]:
    done = hpcrun("status", "--json", word)
    assert done.err == "", done
    return {run["job_id"]: run["state"] for run in done.json["runs"]}


def long_ago(hpcrun: Caller) -> None:
    """Change the time of the submission to an hour ago."""
    path = array_of(hpcrun) / "submitted.json"
    record = json.loads(path.read_text())
    record["submitted_at"] -= 3600
    path.write_text(json.dumps(record))


@pytest.mark.slow
def test_sweep_is_submitted_with_one_sbatch(hpcrun: Caller, tools: Path) -> None:
    asked = replay(tools, "sbatch", (0, "17\n", ""))
    answer = submit(hpcrun)
    folder = array_of(hpcrun)
    assert asked.read_text() == f"{folder}|--parsable job.sbatch\n"
    assert answer["sweep_dir"] == str(folder) and answer["job_id"] == "17"
    assert [run["values"] for run in answer["runs"]] == [{"word": word} for word in "abcdefg"]
    directives = (folder / "job.sbatch").read_text()
    assert "#SBATCH --array=0-6%2\n" in directives
    for index, run in enumerate(map(Path, (run["run_dir"] for run in answer["runs"]))):
        assert run.parent == folder.parent and f".{index}-" in run.name
        files = {path.name for path in run.iterdir()}
        assert {"job.sbatch", "node.sh", "harness.sh", "plan.json", "spec.yaml"} <= files
        assert not {"code", "submitted.json"} & files
        # The folder of the task in the array's script is correct.
        message = f"HPCRUN_RUN_DIR={str(run).replace(f'.{index}-', '.')}"
        assert message.rpartition(".")[0] in directives
        assert "sweep" not in (run / "spec.yaml").read_text()
    assert "sweep:" in (folder / "spec.yaml").read_text()
    require_command("shellcheck")
    subprocess.run(["shellcheck", str(folder / "job.sbatch")], check=True)


def test_array_script_finds_the_folder_of_its_task(hpcrun: Caller, tools: Path) -> None:
    folder = hpcrun.runs.parent / "it's $HOME; run's"
    hpcrun.write("hpcrun.yaml", f'runs_dir: "{str(folder).replace("$", "$$")}"\n')
    runs = submit(hpcrun)["runs"]
    (script,) = folder.glob("*.array/job.sbatch")
    for index in (0, 6):
        run = Path(runs[index]["run_dir"])
        (run / "harness.sh").write_text('echo "$1 $HPCRUN_RUN_DIR"\n')
        shown = subprocess.run(
            ["bash", str(script)],
            env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(index)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout == f"batch {run}\n"


def test_array_contains_directives_of_the_project(hpcrun: Caller, tools: Path) -> None:
    hpcrun.write(
        "templates/job.sbatch.j2",
        '{% extends "hpcrun/job.sbatch.j2" %}\n{% block directives %}\n{{ super() }}'
        "#SBATCH --comment={{ srun[0] }}\n{% endblock %}\n",
    )
    submit(hpcrun)
    text = (array_of(hpcrun) / "job.sbatch").read_text()
    assert "#SBATCH --comment=srun\n" in text and "srun --" not in text


def test_refused_sweep_leaves_nothing(hpcrun: Caller, tools: Path) -> None:
    message = "sbatch: error: Batch job submission failed: Invalid job array specification\n"
    replay(tools, "sbatch", (1, "", message))
    done = hpcrun("submit", "words.yaml")
    assert done.code == 3 and "MaxArraySize" in done.err, done
    assert list(hpcrun.runs.iterdir()) == []


@pytest.mark.parametrize("job", ["words.yaml", "one.yaml"])
@pytest.mark.parametrize("moment", ["create_run_folder", "write_secrets", "run_sbatch"])
def test_ctrl_c_before_the_submission_leaves_nothing(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch, job: str, moment: str
) -> None:
    hpcrun.write("one.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    asked = replay(tools, "sbatch", (0, "17\n", ""))
    real, calls = getattr(submission, moment), []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if moment == "run_sbatch":
            raise KeyboardInterrupt
        done = real(*args, **options)
        if len(calls) == (3 if job == "words.yaml" else 1):
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(submission, moment, interrupted)
    done = hpcrun("submit", job)
    assert done.code == 130 and done.out == "", done
    assert calls and list(hpcrun.runs.iterdir()) == [] and not asked.exists()


@pytest.mark.parametrize("job", ["words.yaml", "one.yaml"])
def test_ctrl_c_after_the_submission_names_the_job(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    hpcrun.write("one.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    replay(tools, "sbatch", (0, "17\n", ""))
    real = client.submit_script

    def pressed(*args: Any, **options: Any) -> str:
        signal.raise_signal(signal.SIGINT)  # delayed while Slurm is queried
        return real(*args, **options)

    monkeypatch.setattr(client, "submit_script", pressed)
    done = hpcrun("submit", job)
    assert done.code == 130 and done.out == "", done
    assert "Slurm had already accepted the job: 17; hpcrun cancel 17 cancels it" in done.err
    assert list(hpcrun.runs.glob("*/submitted.json"))


@pytest.mark.slow
def test_every_run_has_its_own_secrets(hpcrun: Caller, tools: Path) -> None:
    hpcrun.write("words.yaml", JOB + "secrets: [A_TOKEN]\n")
    refused = hpcrun("submit", "words.yaml")
    assert refused.code == 2 and "A_TOKEN: not set" in refused.err
    assert not hpcrun.runs.exists()
    hpcrun.environ["A_TOKEN"] = "of mine"
    submit(hpcrun)
    files = list(hpcrun.runs.rglob("secrets.env"))
    assert len(files) == 7 and {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_states_of_a_sweep_on_every_release(hpcrun: Caller, tools: Path, version: str) -> None:
    """Captured tasks 1 to 6, of which 3 was cancelled while running and 6 while pending."""

    def answer(command: str, case: str) -> None:
        read = json.loads((CAPTURED / version / command / f"{case}.json").read_text())
        text = read["stdout"].replace("/scratch/runs/array", str(array_of(hpcrun)))
        replay(tools, command, (read["exit_code"], text, read["stderr"]))

    taken = json.loads((CAPTURED / version / "sbatch" / "taken-array.json").read_text())
    replay(tools, "sbatch", (0, taken["stdout"], ""))
    job_id = submit(hpcrun)["job_id"]
    long_ago(hpcrun)
    answer("squeue", "array-each-task")
    wanted = ["COMPLETED", "FAILED", "RUNNING", "RUNNING", "PENDING", "PENDING"]
    shown = states(hpcrun, job_id)
    assert [shown[f"{job_id}_{index}"] for index in range(1, 7)] == wanted
    answer("squeue", "array-after-scancel")
    answer("sacct", "array-after-scancel")
    shown = states(hpcrun, job_id)
    wanted = ["COMPLETED", "FAILED", "CANCELLED", "RUNNING", "RUNNING", "CANCELLED"]
    assert [shown[f"{job_id}_{index}"] for index in range(1, 7)] == wanted
    # Without accounting, the queue's row of the remaining array shows it.
    shutil.rmtree(next(hpcrun.runs.glob("*.6-*")) / "cache")
    replay(tools, "sacct", (1, "", "Slurm accounting storage is disabled"))
    assert states(hpcrun, f"{job_id}_6") == {f"{job_id}_6": "CANCELLED"}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_sweep_cancelled_while_pending_is_cancelled(
    hpcrun: Caller, tools: Path, version: str
) -> None:
    read = json.loads((CAPTURED / version / "sacct" / "array-all-cancelled.json").read_text())
    replay(tools, "sbatch", (0, read["stdout"].partition("\x1f")[0].partition("_")[0] + "\n", ""))
    job_id = submit(hpcrun)["job_id"]
    text = read["stdout"].replace("/scratch/runs/fresh array", str(array_of(hpcrun)))
    replay(tools, "sacct", (0, text, ""))
    assert set(states(hpcrun, job_id).values()) == {"UNKNOWN"}, "submitted a moment ago"
    long_ago(hpcrun)
    assert states(hpcrun, job_id) == {f"{job_id}_{index}": "CANCELLED" for index in range(7)}


@pytest.mark.slow
def test_array_with_the_same_number_in_another_folder_is_ignored(
    hpcrun: Caller, tools: Path
) -> None:
    submit(hpcrun)
    long_ago(hpcrun)
    shown = sacct_row("17_[0-6%2]", "CANCELLED", WorkDir="/elsewhere")
    replay(tools, "sacct", (0, shown, ""))
    assert set(states(hpcrun, "17").values()) == {"LOST"}


def queue_row(folder: Path, job_id: str, state: str) -> str:
    return squeue_row(job_id, state, Z=str(folder))


@pytest.mark.slow
def test_requeued_task_has_not_ended(hpcrun: Caller, tools: Path) -> None:
    """A requeued task is the same task, or continues as another job."""
    answer = submit(hpcrun, "--set", "survive.when=[preempted]")
    folder = array_of(hpcrun)
    for index, how in ((0, '"requeue"'), (1, '"30"')):
        attempt = Path(answer["runs"][index]["run_dir"]) / "attempts" / "0"
        attempt.mkdir(parents=True)
        (attempt / "end.json").write_text(
            f'{{"attempt": 0, "job_id": "17_{index}", "exit_code": 143, "signal": 15,'
            ' "stopped_by": "TERM", "first_failure": null, "begun_at": 1.0, "ended_at": 2.0,'
            f' "why": "preempted", "next": {how}}}'
        )
    over = [queue_row(folder, f"17_{index}", "COMPLETED") for index in range(2, 7)]
    tasks = [queue_row(folder, "17_0", "PENDING"), queue_row(folder, "17_1", "PREEMPTED")]
    other = queue_row(Path(answer["runs"][1]["run_dir"]), "30", "RUNNING")
    replay(tools, "squeue", (0, "".join([*tasks, *over, other]), ""))
    for _ in range(2):  # its cached state changes nothing
        (row,) = hpcrun("status", "--json").json["runs"]
        assert row["states"] == {"PENDING": 1, "RUNNING": 1, "COMPLETED": 5}
        assert row["state"] == "RUNNING" and not row["final"]
    found = hpcrun("status", "--json", "17").json["runs"]
    assert [run["state"] for run in found[:3]] == ["PENDING", "RUNNING", "COMPLETED"]
    assert found[1]["job_id"] == "30"


@pytest.mark.slow
def test_slurm_is_queried_for_the_array_instead_of_its_tasks(hpcrun: Caller, tools: Path) -> None:
    submit(hpcrun)
    asked = replay(tools, "squeue", (0, "", ""))
    states(hpcrun, "17")
    states(hpcrun, "17_3")
    words = [line.partition("--jobs=")[2] for line in asked.read_text().splitlines()]
    assert [word for word in words if word] == ["17", "17"]


@pytest.mark.slow
def test_sweep_and_runs_are_found_by_their_ids(hpcrun: Caller, tools: Path) -> None:
    submit(hpcrun)
    sweep_id = array_of(hpcrun).name.removesuffix(".array")
    # Only digits, even if they are the end of a run id, are a Slurm id.
    end = sweep_id[-4:] if not sweep_id[-4:].isdigit() else sweep_id
    for word in ("17", sweep_id, f"{sweep_id}.array", end, sweep_id[:15]):
        assert len(states(hpcrun, word)) == 7, word
    run_id = f"{sweep_id[:-5]}.3{sweep_id[-5:]}"
    for word in ("17_3", run_id, run_id[:-5]):
        assert list(states(hpcrun, word)) == ["17_3"], word
    (listed,) = hpcrun("status", "--json").json["runs"]
    assert (listed["kind"], listed["id"], listed["sweep_id"]) == ("sweep", "17", sweep_id)
    each = hpcrun("status", "--all", "--json").json["runs"]
    assert [run["job_id"] for run in each] == [f"17_{index}" for index in range(7)]
    assert [run["values"]["word"] for run in each] == list("abcdefg")
    for index in (0, 3):
        log = hpcrun.runs / f"{sweep_id[:-5]}.{index}{sweep_id[-5:]}" / "logs/0/rank-0.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"run {index}\n")
    assert hpcrun("logs", "17").out == "[task0]: run 0\n[task3]: run 3\n"
    long_ago(hpcrun)
    followed = hpcrun("logs", "-f", "17")
    assert followed.code == 1 and followed.out == hpcrun("logs", "17").out
    assert hpcrun("show", "17", "--file", "sweep.json").json == {
        "name": "words",
        "tasks": 7,
        "limit": 2,
        "indices": [],
        "runs_per_job": 1,
    }
    assert "word=d" in hpcrun("status", "17_3").out


@pytest.mark.slow
def test_cancel_one_run_or_the_whole_sweep(hpcrun: Caller, tools: Path) -> None:
    submit(hpcrun)
    folder = array_of(hpcrun)
    asked = replay(tools, "scancel", (0, "", ""))
    rows = [queue_row(folder, f"17_{index}", "PENDING") for index in range(6)]
    rows.append(queue_row(folder, "17_6", "COMPLETED"))
    replay(tools, "squeue", (0, "".join(rows), ""))
    assert hpcrun("cancel", "17_3").code == 0
    done = hpcrun("cancel", "17")
    assert done.code == 0 and "6 of 7 runs are being cancelled: 6 PENDING" in done.out
    assert [line.rpartition("|")[2] for line in asked.read_text().splitlines()] == ["17_3", "17"]
    cancelled = sorted(path.parent.name for path in hpcrun.runs.glob("*/cancelled.json"))
    assert len(cancelled) == 6 and not any(".6-" in name for name in cancelled)


@pytest.mark.slow
def test_after_a_sweep_waits_for_all_runs(hpcrun: Caller, tools: Path) -> None:
    submit(hpcrun)
    folder = array_of(hpcrun)

    def after(word: str, *states: str) -> Done:
        rows = [queue_row(folder, f"17_{index}", state) for index, state in enumerate(states)]
        replay(tools, "squeue", (0, "".join(rows), ""))
        return hpcrun("submit", "--after", word, "--dry-run", "--", "true")

    well = ["COMPLETED"] * 6
    assert "--dependency=afterok:17\n" in after("17", *well, "RUNNING").out
    assert "--dependency=afterok:17_6\n" in after("17_6", *well, "RUNNING").out
    assert "--dependency" not in after("17", *well, "COMPLETED").out
    refused = after("17", *well, "FAILED")
    assert refused.code == 2 and "--after 17: that run 17_6 is FAILED" in refused.err


def test_dry_run_shows_the_array_and_one_run(hpcrun: Caller, tools: Path) -> None:
    done = hpcrun("submit", "words.yaml", "--dry-run")
    assert done.code == 0 and not hpcrun.runs.exists()
    assert "#SBATCH --array=0-6%2\n" in done.out
    assert "==> 7 runs, at most 2 at a time <==\nTASK  word\n0     a\n1     b\n" in done.out
    assert done.out.count("==> job.sbatch <==") == 2, "the array's, and the first run's"
    files = hpcrun("submit", "words.yaml", "--dry-run", "--json").json
    assert {"job.sbatch", "spec.yaml", "runs"} <= set(files)
    assert [run["values"]["word"] for run in files["runs"]] == list("abcdefg")
    assert "echo g" in files["runs"][6]["files"]["node.sh"]


@pytest.mark.slow
def test_run_refuses_several_combinations(hpcrun: Caller) -> None:
    hpcrun.write("words.yaml", JOB)
    refused = hpcrun("run", "words.yaml")
    assert refused.code == 2 and "words is a sweep of 7 runs" in refused.err
    assert "--set 'sweep={word: [a]}'" in refused.err
    done = hpcrun.process("run", "words.yaml", "--set", "sweep={word: [b]}")
    assert done.code == 0, done
    assert done.out.rstrip().splitlines()[-1].endswith("b") or "\nb\n" in done.out, done


def test_follow_is_refused_before_anything_is_written(hpcrun: Caller, tools: Path) -> None:
    refused = hpcrun("submit", "words.yaml", "--follow")
    assert refused.code == 2 and "a sweep has a log for each run" in refused.err
    assert not hpcrun.runs.exists()


def test_all_problems_of_all_runs_are_reported_at_once(hpcrun: Caller, tools: Path) -> None:
    hpcrun.write(
        "bad.yaml",
        'args: ["{lr}", "{nope}"]\nsweep: {lr: [1, 2], batch.micro_batch_per_gpu: [0, 1, x]}\n',
    )
    done = hpcrun("submit", "bad.yaml")
    assert done.code == 2
    assert done.err.count("must be at least 1; got 0") == 1
    assert done.err.count('expected a whole number; got "x"') == 1
    hpcrun.write("bad.yaml", 'args: ["{lr}", "{nope}"]\nsweep: {lr: [1, 2]}\n')
    done = hpcrun("submit", "bad.yaml")
    assert done.err.count("{nope}: no such placeholder") == 1, done


@pytest.mark.slow
def test_notes_of_runs_are_reported_once(hpcrun: Caller, tools: Path) -> None:
    hpcrun.write("noted.yaml", JOB + "nccl: {env: {NCCL_TIMEOUT: 1800, NCCL_RINGS: x}}\n")
    submitted = hpcrun("submit", "noted.yaml")
    dry = hpcrun("submit", "noted.yaml", "--dry-run")
    for shown in (submitted.out, dry.err):
        for name in ("NCCL_TIMEOUT", "NCCL_RINGS"):
            assert shown.count(f"nccl.env.{name}: ") == 1, shown


# ---- several runs in a job

SHARED = """\
command: [echo, "{word}"]
launcher: torchrun
resources: {gpus_per_node: 1, time: 60}
sweep: {word: [a, b, c, d, e, f, g]}
sweep_per_node: 4
"""


@pytest.mark.slow
def test_runs_that_share_a_job_have_their_own_state(hpcrun: Caller, tools: Path) -> None:
    hpcrun.write("words.yaml", SHARED)
    asked = replay(tools, "scancel", (0, "", ""))
    answer = submit(hpcrun)
    folder, runs = array_of(hpcrun), [Path(run["run_dir"]) for run in answer["runs"]]
    assert [run["job_id"] for run in answer["runs"]] == ["17_0"] * 4 + ["17_1"] * 3
    text = (folder / "job.sbatch").read_text()
    for line in ("array=0-1%1", "gres=gpu:4", "cpus-per-task=16", "output=../"):
        assert f"#SBATCH --{line}" in text, line
    assert (folder / "share.sh").exists() and "sweep" not in (runs[0] / "spec.yaml").read_text()
    require_command("shellcheck")
    subprocess.run(["shellcheck", str(folder / "job.sbatch")], check=True)

    rows = [queue_row(folder, "17_0", "RUNNING"), queue_row(folder, "17_1", "PENDING")]
    replay(tools, "squeue", (0, "".join(rows), ""))
    (runs[1] / "attempts/0").mkdir(parents=True)
    (runs[1] / "attempts/0/end.json").write_text(
        '{"attempt": 0, "job_id": "17_0", "exit_code": 3, "signal": null, "stopped_by": null,'
        ' "first_failure": null, "begun_at": 1.0, "ended_at": 2.0, "why": "failed", "next": null}'
    )
    found = hpcrun("status", "--json", "17").json["runs"]
    assert [run["job_id"] for run in found] == ["17_0"] * 4 + ["17_1"] * 3
    wanted = ["RUNNING", "FAILED", "RUNNING", "RUNNING", "PENDING", "PENDING", "PENDING"]
    assert [run["state"] for run in found] == wanted
    (row,) = hpcrun("status", "--json").json["runs"]
    assert row["states"] == {"RUNNING": 3, "FAILED": 1, "PENDING": 3}

    ambiguous = hpcrun("status", "17_0")
    assert ambiguous.code == 2 and f"name one of them, as {runs[0].name}" in ambiguous.err
    shown = hpcrun("status", "17").out
    assert runs[4].name in shown and "17_1" not in shown, "what is printed can be typed"
    done = hpcrun("cancel", runs[2].name, runs[5].name)
    assert done.code == 0 and not asked.exists(), "Slurm would end the others, too"
    assert (runs[2] / "cancelled.json").exists()
    found = hpcrun("status", "--json", "17").json["runs"]
    assert [run["state"] for run in found][4:] == ["PENDING", "CANCELLED", "PENDING"]
    refused = hpcrun("requeue", runs[0].name)
    assert refused.code == 2 and "shares its job with other runs" in refused.err
    assert hpcrun("cancel", "17").code == 0
    assert asked.read_text().splitlines()[-1].rpartition("|")[2] == "17"

    # The end of the job reaches each run as a signal; Slurm tells the cause.
    (runs[3] / "cancelled.json").unlink()
    (runs[3] / "attempts/0").mkdir(parents=True)
    (runs[3] / "attempts/0/end.json").write_text(
        '{"attempt": 0, "job_id": "17_0", "exit_code": 143, "signal": 15, "stopped_by": "TERM",'
        ' "first_failure": null, "begun_at": 1.0, "ended_at": 2.0, "why": "stopped", "next": null}'
    )
    replay(tools, "squeue", (0, queue_row(folder, "17_0", "TIMEOUT"), ""))
    shown = hpcrun("status", "17").out
    assert "TIMEOUT" in shown and "time limit" in shown and "asked to terminate" not in shown, shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("launcher: srun", "sweep_per_node: srun starts the ranks of a single run"),
        ("resources: {nodes: 2}", "sweep_per_node: the runs share one node"),
        (
            "survive: {when: [preempted]}",
            "sweep_per_node: runs that share a job cannot be restarted",
        ),
        ("sweep: {sweep_per_node: [1, 2]}", "sweep.sweep_per_node: a sweep cannot change itself"),
    ],
)
def test_runs_that_cannot_share_a_job_are_refused(
    hpcrun: Caller, tools: Path, more: str, message: str
) -> None:
    hpcrun.write("words.yaml", "script: a.py\nsweep: {word: [a]}\nenv: {A: '{word}'}\n")
    hpcrun.write("a.py", "")
    key, _, value = more.partition(": ")
    done = hpcrun("submit", "words.yaml", "--set", "sweep_per_node=2", "--set", f"{key}={value}")
    assert done.code == 2 and message in done.err, done
