"""cancel, requeue and resubmit, with replayed answers of Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.life_runs import others, submitted
from tests.cli.life_runs import tools as tools
from tests.cli.slurm_rows import calls, captured, row, submit
from tests.json_schemas import check_json

# ---- cancel


def test_cancel_uses_one_query_for_all_jobs(hpcrun: Caller, tools: Path) -> None:
    one, two = submitted(hpcrun, tools, "7", "8")
    rows = row(one, "7", "RUNNING") + row(two, "8", "COMPLETED")
    asked = replay(tools, "squeue", (0, rows + others("9_3", "PENDING"), ""))
    ended = replay(tools, "scancel", (0, "", ""))
    done = hpcrun("cancel", "7", "8", "9_[3-3]", "7", "--json")
    check_json("cancel", done.json)
    reported = [(run["job_id"], run["cancelled"], run["reason"]) for run in done.json["runs"]]
    assert (done.code, reported) == (
        0,
        [("7", True, None), ("8", False, None), ("9_3", True, None)],
    )
    assert [line.partition("|")[2] for line in calls(ended)] == ["7 9_3"]
    assert len(calls(asked)) == 2  # one for runs and one for other jobs
    assert (one / "cancelled.json").exists() and not (two / "cancelled.json").exists()


def test_cancel_pending_keeps_running_jobs(hpcrun: Caller, tools: Path) -> None:
    one, two = submitted(hpcrun, tools, "7", "8")
    replay(tools, "squeue", (0, row(one, "7", "RUNNING") + row(two, "8", "PENDING"), ""))
    ended = replay(tools, "scancel", (0, "", ""))
    done = hpcrun("cancel", "--pending", "7", "8")
    assert done.code == 0 and "job 7 is unchanged: it is RUNNING, not PENDING" in done.out
    # Slurm itself does not cancel a job that has started meanwhile.
    assert [line.partition("|")[2] for line in calls(ended)] == ["--state=PENDING 8"]


def test_failed_cancellation_does_not_prevent_others(hpcrun: Caller, tools: Path) -> None:
    (one,) = submitted(hpcrun, tools, "7")
    rows = row(one, "7", "RUNNING") + others("9", "RUNNING", "alice")
    replay(tools, "squeue", (0, rows, ""))
    ended = replay(tools, "scancel", (0, "", ""))
    done = hpcrun("cancel", "7", "9", "10")
    assert done.code == 2 and "job 7 was RUNNING and is being cancelled" in done.out
    assert "job 9 is alice's" in done.err and "10: neither a run of hpcrun nor" in done.err
    assert [line.partition("|")[2] for line in calls(ended)] == ["7"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("7_[3-1]", "not a list of tasks"),
        ("7_[0-99999999]", "not a list of tasks"),
        ("7_[0-9999999]", "more than 100000 tasks"),
        ("nowhere", "no such run"),
        ("", "empty run name"),
    ],
)
def test_unknown_jobs_are_refused(hpcrun: Caller, tools: Path, word: str, message: str) -> None:
    for verb in ("cancel", "wait", "requeue"):
        done = hpcrun(verb, word)
        assert done.code == 2 and message in done.err, done


@pytest.mark.parametrize("verb", ["cancel", "wait", "requeue", "shell"])
def test_malformed_output_of_slurm_is_reported(hpcrun: Caller, tools: Path, verb: str) -> None:
    submitted(hpcrun, tools, "7")
    for answer in ((0, "\x1f\x1e\x1f\n\udcff", ""), (1, "{}", "what?"), (139, "", "")):
        replay(tools, "squeue", (answer[0], "\x1f\x1e garbage", answer[2]))
        for word in ("7", "99"):
            words = {"wait": ["--timeout", "0"], "shell": ["--", "true"]}.get(verb, [])
            done = hpcrun(verb, word, *words)
            assert done.code in (1, 2, 4, 124), done
            assert "Traceback" not in done.err


# ---- requeue


def test_requeue_while_slurm_is_silent(hpcrun: Caller, tools: Path) -> None:
    submitted(hpcrun, tools, "7")
    replay(tools, "squeue", captured("squeue", "no-controller"))
    done = hpcrun("requeue", "7")
    assert done.code == 4 and "Slurm does not answer" in done.err


def test_requeue_of_an_ended_run_while_slurm_is_silent(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    assert hpcrun("status", "7").code == 0
    replay(tools, "squeue", captured("squeue", "no-controller"))
    done = hpcrun("requeue", "7")
    assert done.code == 4 and "Slurm does not answer" in done.err and "forgotten" not in done.err
    replay(tools, "squeue", (0, "", ""))
    done = hpcrun("requeue", "7")
    assert done.code == 2 and "Slurm no longer knows it" in done.err


@pytest.mark.slow
def test_requeue_writes_the_secrets_of_the_next_attempt(hpcrun: Caller, tools: Path) -> None:
    hpcrun.environ["A_SECRET"] = "of mine"
    words = "command: [hostname]\nresources: {gpus_per_node: 0}\nsecrets: [A_SECRET]\n"
    hpcrun.write("job.yaml", words)
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "scontrol", (0, "", ""))
    # The job script removes them when it is stopped, because the job may not restart.
    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    done = hpcrun("requeue", "7")
    assert done.code == 2 and "has secrets" in done.err and "hpcrun resubmit 7" in done.err
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    assert hpcrun("status", "7").code == 0
    assert not (run / "secrets.env").exists()
    value = hpcrun.environ.pop("A_SECRET")
    # Its secrets are not required, because they would not help.
    done = hpcrun("requeue", "7")
    assert done.code == 3 and "--no-requeue" in done.err and "hpcrun resubmit 7" in done.err
    hpcrun.environ["A_SECRET"] = value
    hpcrun.write("job.yaml", f"{words}slurm: {{requeue: true}}\n")
    (run,) = submitted(hpcrun, tools, "8")
    replay(tools, "squeue", (0, row(run, "8", "FAILED"), ""))
    assert hpcrun("status", "8").code == 0
    del hpcrun.environ["A_SECRET"]
    done = hpcrun("requeue", "8")
    assert done.code == 2 and "A_SECRET: not set in your environment" in done.err
    hpcrun.environ["A_SECRET"] = value
    assert hpcrun("requeue", "8").code == 0
    assert (run / "secrets.env").read_text() == "export A_SECRET='of mine'\n"
    assert (run / "secrets.env").stat().st_mode & 0o777 == 0o600


def test_requeue_allows_requeueing_temporarily(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    (run / "cancelled.json").write_text("{}")
    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    asked = tools / "asked"
    script = tools / "scontrol"
    script.write_text(
        f'#!/bin/sh\necho "$*" >>"{asked}"\n'
        f'if [ "$1" = requeue ] && [ "$(grep -c requeue "{asked}")" = 1 ]; then\n'
        "echo 'Requested operation is presently disabled for job 7' >&2; exit 1; fi\n"
    )
    script.chmod(0o755)
    done = hpcrun("requeue", "7", "--json")
    check_json("requeue", done.json)
    assert done.code == 0 and done.json["runs"][0]["requeued"]
    assert calls(asked) == [
        "requeue 7",
        "update JobId=7 Requeue=1",
        "requeue 7",
        "update JobId=7 Requeue=0",
    ]
    assert not (run / "cancelled.json").exists()


@pytest.mark.parametrize(
    ("state", "answer", "code", "message"),
    [
        ("PENDING", (0, "", ""), 0, "is unchanged: it is already pending"),
        ("FAILED", (1, "", "Job has already finished for job 7\n"), 3, "hpcrun resubmit 7"),
        ("RUNNING", (1, "", "Access/permission denied for job 7\n"), 3, "permission denied"),
        ("RUNNING", captured("scancel", "no-controller"), 4, "Slurm does not answer"),
        ("UNHEARD_OF", (0, "", ""), 2, "its state is not known"),
    ],
)
def test_refused_requeue_is_reported(
    hpcrun: Caller, tools: Path, state: str, answer: tuple[int, str, str], code: int, message: str
) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", state), ""))
    replay(tools, "scontrol", answer)
    done = hpcrun("requeue", "7")
    assert done.code == code and message in done.out + done.err, done


# ---- resubmit


@pytest.mark.slow
def test_resubmit_submits_a_new_run_of_the_same_job(hpcrun: Caller, tools: Path) -> None:
    hpcrun.write("train.py", "torch.load('old')\n")
    hpcrun.write(
        "job.yaml",
        'script: train.py\nlauncher: srun\nargs: ["{checkpoint_dir}"]\n'
        "resources: {gpus_per_node: 0}\npython: python3\n".replace("python: python3\n", ""),
    )
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    done = hpcrun("resubmit", "7")
    assert done.code == 2 and "two runs would write the same checkpoints" in done.err
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step1").touch()
    hpcrun.write("train.py", "torch.load('new')\n")
    before = sorted(path.name for path in hpcrun.runs.iterdir())
    swept = hpcrun("resubmit", "7", "--set", "sweep={env.A: [a]}")
    assert swept.code == 2 and "keeps the values that it had in its sweep" in swept.err
    dry = hpcrun("resubmit", "7", "--dry-run")
    assert dry.code == 0 and "resumes from" in dry.err, dry
    assert sorted(path.name for path in hpcrun.runs.iterdir()) == before
    assert not (run / "successors").exists()

    replay(tools, "sbatch", captured("sbatch", "refused-invalid-partition"))
    assert hpcrun("resubmit", "7").code == 3
    assert list((run / "successors").iterdir()) == []

    # Another hpcrun is about to do the same; its folder does not exist yet.
    note = run / "successors" / "20260101-000000-job-abcd.json"
    note.write_text(json.dumps({"run_dir": str(hpcrun.runs / note.stem)}))
    replay(tools, "sbatch", (0, "8\n", ""))
    done = hpcrun("resubmit", "7")
    assert done.code == 2 and "of another hpcrun at this moment" in done.err
    assert [path.name for path in note.parent.iterdir()] == [note.name]
    os.utime(note, (0, 0))  # long ago, so it was never submitted
    done = hpcrun("resubmit", "7", "--json", "--time", "5", "--", "--steps", "{world_size}")
    check_json("resubmit", done.json)
    (reported,) = done.json["runs"]
    again = Path(reported["run_dir"])
    assert reported["checkpoint_dir"] == str(run / "checkpoints") and reported["goes_on"]
    assert (again / "code" / "train.py").read_text() == "torch.load('old')\n"
    assert "#SBATCH --time=5\n" in (again / "job.sbatch").read_text()
    # Arguments are appended to the earlier ones, now and in further resubmissions.
    program = (again / "node.sh").read_text().replace(" \\\n   ", "")
    assert f"train.py {run}/checkpoints --steps 1\n" in program
    assert '- "{checkpoint_dir}"\n- --steps\n' in (again / "spec.yaml").read_text()
    assert json.loads((again / "resubmitted.json").read_text())["run_id"] == run.name
    # The new run uses the folder, although the old one has ended.
    replay(tools, "squeue", (0, row(run, "7", "FAILED") + row(again, "8", "PENDING"), ""))
    done = hpcrun("resubmit", "7")
    assert done.code == 2 and f"{again.name}, a later run, is PENDING" in done.err
    done = hpcrun("resubmit", "7", "--fresh", "--code", "now", "--json")
    fresh = Path(done.json["runs"][0]["run_dir"])
    assert not done.json["runs"][0]["goes_on"]
    assert (fresh / "code" / "train.py").read_text() == "torch.load('new')\n"


PROGRAMS = [
    # Only the placeholder names the folder for checkpoints.
    ("script: train.py\nargs: ['{checkpoint_dir}']", "torch.save(x, path)\n", False),
    ("script: train.py\nargs: [--lr, 1e-4]", "torch.load(path)\n", False),
    ("script: train.py\nargs: ['{checkpoint_dir}']", "torch.load(path)\n", True),
    ("script: train.py\nargs: [--resume, auto]", "", True),
    ("script: train.py\ncheckpoint: {resume: '--from {resume}'}", "", True),
    ("script: train.py", "import os; os.environ['HPCRUN_RESUME']\n", True),
    # The Trainer does not resume from its output_dir by itself.
    (
        "script: train.py\nframework: transformers\nargs: [--output_dir, '{checkpoint_dir}']",
        "Trainer(m).train(); model.load_state_dict(x)\n",
        False,
    ),
    (
        "script: train.py\nframework: transformers\nargs: [--output_dir, '{checkpoint_dir}']",
        "Trainer(m).train(resume_from_checkpoint=True)\n",
        True,
    ),
    ("command: [hostname]", "", False),
    ("command: [sh, -c, 'ls $HPCRUN_CHECKPOINT_DIR']", "", True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("job", "script", "resumes"), PROGRAMS)
def test_resubmit_resumes_where_something_has_the_program_resume(
    hpcrun: Caller, tools: Path, job: str, script: str, resumes: bool
) -> None:
    hpcrun.write("train.py", script)
    hpcrun.write("job.yaml", f"{job}\nlauncher: srun\nresources: {{gpus_per_node: 0}}\n")
    (run,) = submitted(hpcrun, tools, "7", options=["--no-check"])
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step1").touch()
    done = hpcrun("resubmit", "7", "--dry-run", "--no-check")
    assert ("resumes from" in done.err) == resumes, done
    assert ("it starts at step 0" in done.err) != resumes
    replay(tools, "sbatch", (0, "8\n", ""))
    (again,) = hpcrun("resubmit", "7", "--json", "--no-check").json["runs"]
    own = str(Path(again["run_dir"]) / "checkpoints")
    assert again["goes_on"] == resumes
    assert again["checkpoint_dir"] == (str(run / "checkpoints") if resumes else own)


@pytest.mark.parametrize("options", [[], ["--fresh"]])
def test_resubmit_does_not_overwrite_checkpoints_in_an_absolute_folder(
    hpcrun: Caller, tools: Path, tmp_path: Path, options: list[str]
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "step1").touch()
    hpcrun.write(
        "job.yaml",
        f"command: [hostname]\nresources: {{gpus_per_node: 0}}\ncheckpoint: {{dir: {folder}}}\n",
    )
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    done = hpcrun("resubmit", "7", *options)
    assert done.code == 2 and "would overwrite the checkpoints of" in done.err
    replay(tools, "sbatch", (0, "8\n", ""))
    assert hpcrun("resubmit", "7", "--set", f"checkpoint.dir={folder}-2", *options).code == 0


@pytest.mark.slow
def test_resubmit_reports_code_that_has_changed_since(hpcrun: Caller, tools: Path) -> None:
    for name in ("train.py", "model.py", "conf.yaml", "notes.txt"):
        hpcrun.write(name, "1\n")
    hpcrun.write("job.yaml", "script: train.py\nlauncher: srun\nresources: {gpus_per_node: 0}\n")
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    assert "changed since" not in hpcrun("resubmit", "7", "--dry-run").err
    for name in ("model.py", "conf.yaml", "notes.txt"):
        hpcrun.write(name, "2\n")
    dry = hpcrun("resubmit", "7", "--dry-run")
    assert "conf.yaml, model.py have changed since: the run takes the original code" in dry.err
    assert "--code now" in dry.err
    assert "changed since" not in hpcrun("resubmit", "7", "--dry-run", "--code", "now").err


def test_resubmit_accepts_a_workdir_that_git_ignores(hpcrun: Caller, tools: Path) -> None:
    """The program starts in the project, of which the run has only a copy of the code."""
    subprocess.run(["git", "init", "-q", hpcrun.project], check=True)
    hpcrun.write(".gitignore", "data/\n")
    hpcrun.write("train.py", "")
    hpcrun.write("data/x.txt", "")
    job = "script: train.py\nworkdir: data\nlauncher: srun\nresources: {gpus_per_node: 0}\n"
    hpcrun.write("job.yaml", job)
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    assert hpcrun("resubmit", "7", "--dry-run").code == 0
    (hpcrun.project / "data" / "x.txt").unlink()
    (hpcrun.project / "data").rmdir()
    done = hpcrun("resubmit", "7", "--dry-run")
    assert done.code == 2 and "workdir: data: the project has no such folder" in done.err


def test_run_of_another_cluster_is_resubmitted_there(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    config = hpcrun.project.parent / "config"
    hpcrun.environ["XDG_CONFIG_HOME"] = str(config)
    profile = (hpcrun.project / "hpcrun.yaml").read_text()
    for name in ("default", "other"):
        path = config / "hpcrun" / "clusters" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"name: {name}\n{profile}")
    hpcrun.environ["HPCRUN_CLUSTER"] = "other"
    done = hpcrun("resubmit", "7", "--dry-run", "--debug")
    assert done.code == 0 and "(--debug)" in done.out, done
    assert "#SBATCH --job-name=job\n" in done.out


def test_run_is_resubmitted_with_the_profile_of_its_project(hpcrun: Caller, tools: Path) -> None:
    profile = (hpcrun.project / "hpcrun.yaml").read_text()
    hpcrun.write("hpcrun.yaml", f"{profile}\naccount: mine\nenv: {{OF: mine}}\n")
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    mine, other = hpcrun.project, hpcrun.project.parent / "other"
    other.mkdir()
    (other / "hpcrun.yaml").write_text(f"{profile}\naccount: theirs\nenv: {{OF: theirs}}\n")
    hpcrun.project = other  # where hpcrun is called
    done = hpcrun("resubmit", "7", "--dry-run")
    assert "#SBATCH --account=mine\n" in done.out and "export OF=mine\n" in done.out, done
    # The profile that counts is there no more.
    (mine / "hpcrun.yaml").write_text(f"name: renamed\n{profile}")
    done = hpcrun("resubmit", "7", "--dry-run")
    assert done.code == 2 and "ran on default: " in done.err and "renamed" in done.err
    mine.rename(mine.parent / "moved")
    assert "the project's folder, in which the run worked, is gone" in hpcrun("resubmit", "7").err


@pytest.mark.parametrize(("option", "shown"), [("--wait", ""), ("--follow", "step 1\n")])
def test_resubmit_follow_waits_for_the_new_run(
    hpcrun: Caller, tools: Path, option: str, shown: str
) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    queue = tools / "queue"
    replay(tools, "squeue", (0, "", ""))
    queue.write_text(row(run, "7", "FAILED"))
    # The new job fails immediately; its row in the queue shows its folder.
    answer = row(run, "8", "FAILED").replace(str(run), "$PWD")
    (tools / "squeue").write_text(f'#!/bin/sh\ncat "{queue}"\n')
    (tools / "sbatch").write_text(
        "#!/bin/sh\nmkdir -p logs/0\necho step 1 >logs/0/rank-0.log\n"
        f'cat >"{queue}" <<.\n{answer}.\necho 8\n'
    )
    done = hpcrun("resubmit", "7", option)
    assert done.code == 1 and "job 8: FAILED" in done.err, done
    assert done.out.endswith(shown) and ("step 1" in done.out) == bool(shown)
    dry = hpcrun("resubmit", "7", option, "--dry-run")
    assert dry.code == 0, dry


@pytest.mark.slow
def test_run_can_start_from_the_checkpoints_of_another_run(hpcrun: Caller, tools: Path) -> None:
    hpcrun.write("train.py", "")
    text = "script: train.py\nlauncher: srun\nresources: {gpus_per_node: 0}\n"
    hpcrun.write("job.yaml", text)
    hpcrun.write("next.yaml", text + "args: [--from, '{after_checkpoint_dir}']\n")
    (first,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(first, "7", "RUNNING"), ""))
    alone = hpcrun("submit", "next.yaml")
    assert alone.code == 2 and "there is one only with --after RUN" in alone.err, alone

    def follow(job_id: str, *words: str) -> Path:
        replay(tools, "sbatch", (0, f"{job_id}\n", ""))
        done = hpcrun(*words, "--json")
        assert done.code == 0, done
        reported = done.json["runs"][0] if words[0] == "resubmit" else done.json
        return Path(reported["run_dir"])

    # Two at the same time: both only read.
    second = follow("8", "submit", "next.yaml", "--after", "7")
    third = follow("9", "submit", "next.yaml", "--after", "7", "--name", "other")
    plain = follow("10", "submit", "job.yaml", "--after", "7")
    folder = f"{first}/checkpoints"
    for run in (second, third):
        plan = json.loads((run / "plan.json").read_text())
        assert plan["program"][-1] == folder and plan["checkpoint_dir"] == f"{run}/checkpoints"
    notes = {path.stem for path in (first / "successors").iterdir()}
    assert notes == {second.name, third.name}, plain

    # Runs that start from it keep it, and it must not be written meanwhile.
    states = row(first, "7", "FAILED") + row(plain, "10", "FAILED")
    states += row(second, "8", "FAILED") + row(third, "9", "PENDING")
    replay(tools, "squeue", (0, states, ""))
    clean = hpcrun("clean", "--older-than", "0s", "--dry-run", "--json").json
    reasons = {run["id"]: run["reason"] for run in clean["runs"]}
    assert reasons[first.name] == f"{third.name} uses its checkpoints"
    Path(folder).mkdir()
    Path(folder, "step1").touch()
    refused = hpcrun("resubmit", "7")
    assert refused.code == 2 and f"{third.name}, a later run, is PENDING" in refused.err

    # Again, from the same checkpoints.
    again = follow("11", "resubmit", "8")
    assert json.loads((again / "plan.json").read_text())["program"][-1] == folder
    assert (first / "successors" / f"{again.name}.json").exists()
    shutil.rmtree(folder)
    gone = hpcrun("resubmit", "8")
    assert gone.code == 2 and "that the run begins from (--after) are not there" in gone.err
    # A job that does not use them needs none, and gets the same arguments as before.
    other = follow("12", "resubmit", "10")
    assert folder in (other / "job.sbatch").read_text()
    assert follow("13", "resubmit", "8", "--set", "args=[]").exists()
    replay(tools, "squeue", (0, states + row(other, "12", "FAILED"), ""))
    assert hpcrun("resubmit", "12", "--fresh", "--dry-run").code == 0
    # While the first run is pending, the resubmitted one waits for it, as before.
    waits = "#SBATCH --dependency=afterok:7\n"
    assert waits not in hpcrun("resubmit", "8", "--set", "args=[]", "--dry-run").out
    replay(tools, "squeue", (0, states.replace("7\x1f7\x1fFAILED", "7\x1f7\x1fPENDING"), ""))
    assert waits in hpcrun("resubmit", "8", "--dry-run").out
    never = row(first, "7", "PENDING", reason="DependencyNeverSatisfied")
    replay(tools, "squeue", (0, never + row(second, "8", "FAILED"), ""))
    assert "are not there" in hpcrun("resubmit", "8", "--dry-run").err


@pytest.mark.slow
def test_command_can_read_the_checkpoint_folder_from_its_variable(
    hpcrun: Caller, tools: Path
) -> None:
    (first,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(first, "7", "COMPLETED"), ""))
    words = ("--after", "7", "--json", "--", "sh", "-c", "ls $HPCRUN_AFTER_CHECKPOINT_DIR")
    replay(tools, "sbatch", (0, "8\n", ""))
    run = Path(hpcrun("submit", *words).json["run_dir"])
    replay(tools, "squeue", (0, row(run, "8", "FAILED"), ""))
    done = hpcrun("resubmit", "8", "--dry-run")
    assert done.code == 2 and f"{first}/checkpoints: the checkpoints" in done.err, done


def test_status_does_not_offer_missing_checkpoints(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    (run / "attempts" / "0").mkdir(parents=True)
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    assert hpcrun("status", "7").out.endswith("  hpcrun resubmit 7    again\n")
    (run / "checkpoints").mkdir()
    assert hpcrun("status", "7").out.endswith("  hpcrun resubmit 7    again\n")
    (run / "checkpoints" / "step1").touch()
    assert hpcrun("status", "7").out.endswith("run again, resuming from its checkpoints\n")


@pytest.mark.slow
def test_resubmit_json_conforms_to_its_schema(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    shown = hpcrun("resubmit", "7", "--dry-run", "--json").json
    check_json("resubmit", shown)
    assert json.loads(shown["resubmitted.json"])["run_id"] == run.name
    hpcrun.write("job.yaml", "command: [hostname]\nsweep: {env.A: [1, 2]}\n")
    replay(tools, "sbatch", (0, "9\n", ""))
    assert submit(hpcrun).code == 0
    shown = hpcrun("resubmit", "9", "--fresh", "--dry-run", "--json").json
    check_json("resubmit", shown)
    assert [one["values"] for one in shown["runs"]] == [{"env.A": "1"}, {"env.A": "2"}]
