"""What programs call."""

from __future__ import annotations

import os
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpcrun
import hpcrun.errors
from hpcrun.errors import InputError
from hpcrun.plan.types import Plan
from tests.cli.calling import ROOT, Caller, replay
from tests.cli.slurm_rows import row
from tests.waiting import PATIENCE

LOG = (
    "".join(f"step={i} loss={3 - i / 10:.1f} lr=0.1\n" for i in range(1, 6))
    + "step=5 eval_loss=2\n"
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return path


def test_a_log_as_columns(log: Path) -> None:
    run = hpcrun.parse(log)
    assert run.points == 5 and run.warnings == ()
    columns = run.columns()
    assert list(columns) == ["step", "loss", "eval_loss", "lr"]
    assert columns["step"] == [1, 2, 3, 4, 5]
    assert columns["loss"] == [2.9, 2.8, 2.7, 2.6, 2.5]
    assert columns["eval_loss"][-1] == 2.0
    assert all(value != value for value in columns["eval_loss"][:-1])
    assert len(run.samples) == 11
    assert [sample.value for sample in run.samples if sample.name == "eval_loss"] == [2.0]


@pytest.mark.slow
def test_all_points_are_kept(log: Path) -> None:
    log.write_text("".join(f"step={i} loss=2.5\n" for i in range(30_000)))
    assert len(hpcrun.parse("train.log").columns()["loss"]) == 30_000


def test_a_pattern_of_ones_own(log: Path) -> None:
    log.write_text("at 1 we got L 2.5!\nat 2 we got L 2.25!\n")
    assert hpcrun.parse(log).points == 0
    run = hpcrun.parse(log, patterns=[r"at (?P<step>\d+) .* L (?P<loss>[\d.]+)"])
    assert run.columns() == {"step": [1, 2], "loss": [2.5, 2.25]}
    with pytest.raises(InputError, match="has no named group"):
        hpcrun.parse(log, patterns=["L .*"])


def test_what_is_not_there(log: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log: no such file, run or job"):
        hpcrun.parse("none.log")
    with pytest.raises(AttributeError, match="no attribute 'prase'"):
        hpcrun.prase  # noqa: B018


def test_importing_hpcrun_imports_nothing_else() -> None:
    program = "import sys, hpcrun; print([name for name in sys.modules if 'hpcrun.' in name])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['hpcrun.version']\n"


def test_names() -> None:
    assert set(hpcrun.__all__) <= set(dir(hpcrun))
    for name in hpcrun.__all__:
        assert getattr(hpcrun, name).__doc__, name
    # Python would put the module in the function's place as soon as anybody imports it.
    modules = {module.name for module in pkgutil.iter_modules(hpcrun.__path__)}
    assert not modules & set(hpcrun.__all__)
    assert list(hpcrun.__all__) == sorted(hpcrun.__all__)


# ---- jobs, with commands that answer what Slurm once answered

JOB = {"command": ["echo", "hello"], "resources": {"gpus_per_node": 0}}


@pytest.fixture
def project(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Caller:
    """A project that this very process stands in, and a Slurm that takes everything as job 7."""
    caller = Caller(tmp_path, clean_environ)
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in caller.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(caller.project)
    replay(tmp_path / "bin", "sbatch", (0, "7\n", ""))
    return caller


def slurm_says(project: Caller, run: hpcrun.Run, state: str) -> Path:
    tools = project.tools
    return replay(tools, "squeue", (0, row(run.folder, "7", state, "Priority"), ""))


def test_a_job_that_is_a_dict(project: Caller) -> None:
    run = hpcrun.submit(
        JOB, set={"name": "mine", "env.A": "yes", "resources": {"time": 90}}, args=[1, "x"]
    )
    assert repr(run) == f"<Run {run.id}, job 7>"
    assert "-mine-" in run.id and run.folder.parent == project.runs and run.job_id == "7"
    plan: Plan = run.plan
    assert plan.program[-3:] == ["hello", "1", "x"] and run.values == {}
    assert "A=yes" in (run.folder / "job.sbatch").read_text()
    assert hpcrun.find("7") == hpcrun.find(run.id) == run and len({run, hpcrun.find("7")}) == 1
    assert hpcrun.newest(3) == [run] and hpcrun.newest(0) == []
    assert f"run_id {run.id}" in project("show", run.id).out.replace("# ", "run_id ")


def test_a_job_by_name_and_by_path(project: Caller) -> None:
    text = "command: [hostname]\nresources: {gpus_per_node: 0}\n"
    path = project.write("jobs/mine.yaml", text)
    assert hpcrun.submit("mine").plan.name == "mine"
    assert hpcrun.submit("jobs/mine.yaml").plan.name == "mine"
    assert hpcrun.submit(path).plan.name == "mine"
    os.chdir("/")
    assert hpcrun.submit("mine", cwd=project.project).plan.project_dir == str(project.project)
    project.write("sub/other.yaml", "extends: sub/base.yaml\nname: of-base\n")
    project.write("sub/base.yaml", text)
    assert hpcrun.submit("sub/other.yaml", cwd=project.project).plan.name == "of-base"
    with pytest.raises(InputError, match="cwd: /nowhere: no such folder"):
        hpcrun.submit("mine", cwd="/nowhere")


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        ("zero2-4gpus", {}, "zero2-4gpus: no such job\n  fix: did you mean zero2-4gpu?"),
        (Path("zero2-4gpu"), {}, "./zero2-4gpu: no such job file"),
        (["echo"], {}, "job: list: expected a job's name, a path or a dict"),
        ({"comand": []}, {}, "job: comand: unknown key; did you mean command?"),
        (JOB, {"set": {"bath": 1}}, "set: bath: unknown key; did you mean batch?"),
        (JOB, {"set": {"a=b": 1}}, "set: 'a=b': expected a key"),
        (JOB, {"set": {"env.A": "{nope}"}}, "set: env.A: "),
        (JOB, {"set": {"env.A": {1, 2}}}, "set: env.A: a set cannot be part of a job"),
        (
            JOB,
            {"args": "--lr 3"},
            "args: '--lr 3': expected a list of arguments\n  fix: as in ['--lr', '3']",
        ),
        (JOB, {"args": [None]}, "args: None: expected a text, a path or a number"),
        (JOB, {"after": "nothing"}, "nothing: no such run"),
        (JOB, {"cluster": "moon"}, "moon: no such cluster"),
        ({**JOB, "sweep": {"env.A": [1, 2]}}, {}, "job is a sweep\n  fix: hpcrun.submit_sweep("),
    ],
    ids=str,
)
def test_what_is_wrong_is_reported_and_nothing_is_left(
    project: Caller, job: str, options: dict[str, str], message: str
) -> None:
    for call in (hpcrun.submit, hpcrun.dry_run):
        if call is hpcrun.dry_run and "a sweep" in message:
            continue
        with pytest.raises(InputError) as caught:
            call(job, **options)  # type: ignore[arg-type]
        assert message in str(caught.value)
    assert not project.runs.exists()


def test_a_refusal_leaves_nothing(project: Caller) -> None:
    replay(project.tools, "sbatch", (1, "", "sbatch: error: invalid partition\n"))
    with pytest.raises(hpcrun.SchedulerRefused, match="invalid partition"):
        hpcrun.submit(JOB)
    assert list(project.runs.iterdir()) == []


def test_a_dry_run_is_data(project: Caller) -> None:
    dry = hpcrun.dry_run("zero2-4gpu", set={"script": None, "command": ["true"]}, args=["x"])
    assert dry.plan.world_size == 4 and dry.runs == () and dry.values == {}
    assert dry.files["job.sbatch"].startswith("#!/bin/bash")
    assert "plan.json" in dry.files and "zero2-4gpu" in repr(dry)
    sweep = hpcrun.dry_run({**JOB, "sweep": {"env.A": [1, 2]}})
    assert [run.values for run in sweep.runs] == [{"env.A": "1"}, {"env.A": "2"}]
    assert "--array=0-1" in sweep.files["job.sbatch"] and "task.json" in sweep.runs[1].files
    assert not project.runs.exists()


def test_a_sweep_is_a_sequence_of_runs(project: Caller) -> None:
    sweep = hpcrun.submit_sweep({**JOB, "name": "s"}, set={"sweep": {"env.A": [1, 2, 3]}})
    assert len(sweep) == 3 and sweep.job_id == "7" and sweep[1].job_id == "7_1"
    assert [run.values["env.A"] for run in sweep] == ["1", "2", "3"]
    assert sweep[:2] == [sweep[0], sweep[1]] and sweep[-1] in sweep
    assert hpcrun.find("7_2") == sweep[2] and list(hpcrun.find_sweep("7")) == list(sweep)
    with pytest.raises(InputError, match="a sweep of 3 runs"):
        hpcrun.find("7")
    with pytest.raises(InputError, match="is a run, not a sweep"):
        hpcrun.find_sweep("7_1")
    with pytest.raises(InputError, match="not a sweep"):
        hpcrun.submit_sweep(JOB)


def test_a_status(project: Caller) -> None:
    run = hpcrun.submit(JOB)
    asked = slurm_says(project, run, "PENDING")
    status = run.status()
    assert (status.state, status.reason, status.final, status.ok) == (
        "PENDING",
        "Priority",
        False,
        False,
    )
    assert (status.job_id, status.exit_code, status.step, status.loss) == ("7", None, None, None)
    with pytest.raises(AttributeError):
        status.state = "x"  # type: ignore[misc]
    # All that docs/api.md lists of it.
    (listed,) = re.findall(
        r"^\| `Status` \| `([^`]+)` \|", (ROOT / "docs/api.md").read_text(), re.M
    )
    assert len([getattr(status, name) for name in listed.split()]) == 14
    before = asked.read_text().count("--noheader")
    assert hpcrun.status_of([run, run, *hpcrun.newest()]) == [status] * 3
    assert asked.read_text().count("--noheader") == before + 1
    assert hpcrun.status_of([]) == []


def test_a_wait_that_is_over(project: Caller) -> None:
    run = hpcrun.submit(JOB)
    slurm_says(project, run, "PENDING")
    with pytest.raises(hpcrun.WaitTimeout) as caught:
        run.wait(timeout=0)
    assert str(caught.value) == f"{run.id} is PENDING after 0 s"
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, hpcrun.HpcrunError)
    slurm_says(project, run, "COMPLETED")
    assert run.wait(timeout=PATIENCE).ok and hpcrun.wait([run, run])[1].state == "COMPLETED"
    assert run.cancel() is False
    assert hpcrun.wait([]) == []


def test_only_runs_are_waited_for() -> None:
    for call in (hpcrun.wait, hpcrun.status_of):
        with pytest.raises(InputError, match="'x': expected a run, as submit"):
            call(["x"])  # type: ignore[list-item]


def test_numbers_and_lists_are_asked_for_by_name(project: Caller) -> None:
    run = hpcrun.submit(JOB)
    for name in ("wait", "status_of"):
        with pytest.raises(InputError, match=rf"expected a list of runs\n.*hpcrun.{name}\(\[run"):
            getattr(hpcrun, name)(run)
    for timeout in ("x", float("nan")):
        with pytest.raises(InputError, match=r"timeout: .*: expected seconds"):
            run.wait(timeout=timeout)  # type: ignore[arg-type]
    for count in ("5", -1, 2.5):
        with pytest.raises(InputError, match=f"count: {count!r}: expected how many runs"):
            hpcrun.newest(count)  # type: ignore[arg-type]


def test_silence_is_reported_and_not_raised(project: Caller) -> None:
    run = hpcrun.submit(JOB)
    status = run.status()  # there is no squeue here
    assert status.state == "UNKNOWN" and not status.final
    assert "squeue: command not found" in status.out_of_reach


def test_logs_and_metrics(project: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    run = hpcrun.submit(JOB)
    assert list(run.logs()) == [] and run.metrics().points == 0
    folder = run.folder / "logs" / "0"
    folder.mkdir()
    token = "hf_" + "aB3" * 12
    (folder / "rank-0.log").write_bytes(
        b"step=1 loss=2.5\r\nstep=2 loss=2.25\n\xff\xe2\x80\xa8 last"
    )
    (folder / "rank-1.log").write_text(f"token {token}\n")
    assert list(run.logs(rank=0)) == ["step=1 loss=2.5", "step=2 loss=2.25", "\ufffd\u2028 last"]
    assert list(run.logs())[3:] == ["[rank1]: token ***"]
    assert list(run.logs(rank=1, raw=True)) == [f"token {token}"]
    with pytest.raises(InputError, match="logs of ranks 0-1"):
        run.logs(rank=2)
    assert run.metrics().columns() == {"step": [1, 2], "loss": [2.5, 2.25]}
    assert hpcrun.parse(run.id).columns() == run.metrics().columns()


def test_a_pickle_holds_no_environment(project: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-value")
    run = hpcrun.submit(JOB)
    data = pickle.dumps([run, hpcrun.submit_sweep({**JOB, "sweep": {"env.A": [1]}})])
    assert b"a-secret-value" not in data
    back, sweep = pickle.loads(data)
    assert back == run and back.plan == run.plan and sweep[0].values == {"env.A": "1"}
    slurm_says(project, run, "RUNNING")
    assert back.status().state == "RUNNING"  # with this process's PATH


def test_errors_travel_between_processes() -> None:
    problem = hpcrun.errors.Problem("x", "unknown key", "a.yaml", 3)
    for error in (
        InputError("wrong", fix="mend it"),
        hpcrun.SpecError([problem], notes=["a note"]),
        hpcrun.OutOfReach("gone", maybe_done=True),
        hpcrun.CommandFailed(["ls"], 2, "", "no"),
        hpcrun.WaitTimeout("late"),
    ):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error) and str(back) == str(error)
        assert set(vars(back)) == set(vars(error)) and back.exit_code == error.exit_code
