"""Transfers between laptop and cluster: what is copied, and when."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun import api
from hpcrun.actions.top import Top
from hpcrun.cli.show_status import StatusQuery
from hpcrun.cli.watch_status import _WatchedQuery
from hpcrun.context import Context, load_context
from hpcrun.errors import OutOfReach
from hpcrun.monitor.poll import Monitor, WatchedRuns
from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller
from tests.remote.far import FarTransport
from tests.slurm_answers import squeue_row
from tests.waiting import until

SWEEP = """\
command: [hostname]
env: {A: '{a}'}
resources: {gpus_per_node: 0}
sweep: {a: [1, 2, 3]}
"""


class Cluster:
    """A scripted Slurm with one job, which writes its records and its log where it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = ""
        self.refusal = ""
        self.work_dir = Path()

    def sbatch(self, argv: Sequence[str], cwd: str) -> tuple[int, str, str]:
        assert (Path(cwd) / argv[-1]).is_file()
        if self.refusal:
            return 1, "", self.refusal
        self.work_dir, self.state = Path(cwd), "PENDING"
        return 0, "7\n", ""

    def squeue(self, argv: Sequence[str], cwd: str) -> tuple[int, str, str]:
        row = squeue_row("7", self.state, Z=str(self.work_dir)) if self.state else ""
        return 0, row if "--noheader" in argv else "JOBID\n" + row, ""

    def begin(self) -> None:
        self.state = "RUNNING"
        attempt = self.work_dir / "attempts" / "0"
        attempt.mkdir(parents=True)
        begin = {"attempt": 0, "job_id": "7", "host": "n1", "pid": 1, "nodes": "n1"}
        (attempt / "begin.json").write_text(json.dumps(begin | {"begun_at": time.time()}))
        (self.work_dir / "logs" / "0").mkdir(parents=True)
        self.write("step 1 loss 2.5\n")

    def end(self) -> None:
        self.state = "FAILED"
        end = {"attempt": 0, "job_id": "7", "exit_code": 3, "signal": None, "stopped_by": None}
        end |= {"first_failure": None, "begun_at": time.time(), "ended_at": time.time()}
        (self.work_dir / "attempts" / "0" / "end.json").write_text(json.dumps(end))

    def write(self, text: str) -> None:
        with (self.work_dir / "logs" / "0" / "rank-0.log").open("a") as log:
            log.write(text)


@pytest.fixture
def hpcrun(tmp_path: Path, clean_environ: dict[str, str]) -> Caller:
    """A project on a machine without Slurm."""
    return Caller(tmp_path, clean_environ)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "cluster")


@pytest.fixture
def far(hpcrun: Caller, cluster: Cluster) -> FarTransport:
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    slurm = {"sbatch": cluster.sbatch, "squeue": cluster.squeue, "scancel": lambda *_: (0, "", "")}
    slurm["sacct"] = lambda *_: (1, "", "Slurm accounting storage is disabled")
    transport = FarTransport(hpcrun.runs, cluster.folder, slurm)
    hpcrun.connect = lambda env, **options: transport
    return transport


def context_of(hpcrun: Caller, far: FarTransport) -> Context:
    context = load_context(hpcrun.environ, hpcrun.project)
    return structs.replace(context, connect=lambda env, **options: far)


def submitted(hpcrun: Caller) -> Path:
    done = hpcrun("submit", "job.yaml", "--json")
    assert done.code == 0, done
    return Path(done.json["run_dir"])


def parsed(hpcrun: Caller, *words: str) -> list[float]:
    """Return the last losses of the named runs."""
    done = hpcrun("parse", *words, "--json")
    assert done.code == 0, done
    return [run["metrics"]["loss"]["last"]["value"] for run in done.json["runs"]]


def test_run_is_delivered_in_one_round_trip(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    run = submitted(hpcrun)
    assert far.trips == ["deliver"]
    assert cluster.work_dir == cluster.folder / run.name
    assert (cluster.work_dir / "harness.sh").read_bytes() == (run / "harness.sh").read_bytes()


def test_refused_run_leaves_nothing_on_either_side(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    cluster.refusal = "sbatch: error: invalid partition specified: nowhere\n"
    assert hpcrun("submit", "job.yaml").code != 0
    assert [*cluster.folder.iterdir()] == [*hpcrun.runs.iterdir()] == []
    assert far.trips == ["deliver", "remove"]


def test_unreachable_cluster_does_not_keep_the_local_copy(
    hpcrun: Caller, far: FarTransport, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OutOfReach("no route to the cluster")

    monkeypatch.setattr(far, "remove_directories", away)
    cluster.refusal = "sbatch: error: invalid partition specified: nowhere\n"
    done = hpcrun("submit", "job.yaml")
    assert done.code == 3 and "nowhere" in done.err, done
    assert [*hpcrun.runs.iterdir()] == []


def test_possibly_submitted_run_is_kept_on_both_sides(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    far.slurm["sbatch"] = lambda *_: (0, "no id\n", "")
    assert hpcrun("submit", "job.yaml").code == 4
    (run,) = hpcrun.runs.glob("2*")
    assert [there.name for there in cluster.folder.iterdir()] == [run.name]
    assert far.trips == ["deliver", "squeue"]


def test_locally_written_records_are_uploaded(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    run = submitted(hpcrun)
    cluster.begin()
    far.trips.clear()
    assert hpcrun("cancel", "7").code == 0
    assert far.trips[-2:] == ["scancel", "send"]
    sent = (cluster.work_dir / "cancelled.json").read_bytes()
    assert sent == (run / "cancelled.json").read_bytes()


def test_secrets_are_kept_on_the_cluster_for_the_next_attempt(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    job = "command: [hostname]\nresources: {gpus_per_node: 0}\nsecrets: [A_SECRET]\n"
    hpcrun.write("job.yaml", job)
    hpcrun.environ["A_SECRET"] = "of mine"
    run = submitted(hpcrun)
    cluster.begin()
    cluster.end()
    for file in (run, cluster.work_dir):
        (file / "secrets.env").unlink()  # as at the end of a job
        (file / "cancelled.json").write_text("{}")
    seen: list[bool] = []

    def scontrol(argv: Sequence[str], cwd: str) -> tuple[int, str, str]:
        seen.append((cluster.work_dir / "secrets.env").exists())
        return 0, "", ""

    far.slurm["scontrol"] = scontrol
    done = hpcrun("requeue", "7")
    assert done.code == 0, done
    assert seen == [True] and (cluster.work_dir / "secrets.env").exists()
    assert not (cluster.work_dir / "cancelled.json").exists()


def test_lost_sbatch_reply_is_resolved_from_the_cluster_folder(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    sbatch = far.slurm["sbatch"]
    far.slurm["sbatch"] = lambda *asked: (sbatch(*asked)[0], "no id\n", "")
    submitted(hpcrun)
    assert far.trips == ["deliver", "squeue"]


def test_each_command_fetches_the_output_of_its_run(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    """For every reading command, in one round trip."""
    submitted(hpcrun)
    cluster.begin()
    far.trips.clear()
    assert hpcrun("logs", "7").out == "step 1 loss 2.5\n"
    cluster.write('Traceback (most recent call last):\n  File "a.py"\nMemoryError: no room\n')
    assert "no room" in hpcrun("logs", "7", "--err").out
    cluster.write("step 2 loss 2.0\n")
    assert parsed(hpcrun, "7") == [2.0]
    cluster.write("step 3 loss 1.5\n")
    assert hpcrun("logs").out.endswith("step 3 loss 1.5\n")
    cluster.end()
    assert "attempts/0/end.json" in hpcrun("show", "7", "--json").json["files"]
    assert far.trips == ["refresh"] * 5


def test_all_named_runs_are_fetched_in_one_round_trip(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    hpcrun.write("sweep.yaml", SWEEP)
    first = submitted(hpcrun)
    cluster.begin()
    assert hpcrun("submit", "sweep.yaml", "--name", "many").code == 0
    for run in sorted(cluster.folder.glob("*-many.[0-9]-*")):
        cluster.work_dir = run
        cluster.begin()
    far.trips.clear()
    sweep = run.name.replace(".2-", "-")
    assert parsed(hpcrun, first.name, sweep, first.name) == [2.5] * 5
    assert far.trips == ["refresh"]
    assert hpcrun("logs", sweep, "--rank", "0").out.count("step 1 loss 2.5") == 3
    assert hpcrun("compare", first.name, run.name).code == 0
    assert far.trips == ["refresh"] * 3


def test_api_queries_the_cluster_each_time(
    hpcrun: Caller, far: FarTransport, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "load_context", lambda *_: context_of(hpcrun, far))
    submitted(hpcrun)
    cluster.begin()
    run = api.find("7")
    assert [*run.logs()] == ["step 1 loss 2.5"]
    cluster.write("step 2 loss 2.0\n")
    assert run.metrics().curve.values("loss") == [2.5, 2.0]
    cluster.write("step 3 loss 1.5\n")
    assert api.parse("7").curve.values("loss") == [2.5, 2.0, 1.5]
    run = api.find("7")
    cluster.end()
    status = run.status()
    assert (status.state, status.exit_code) == ("FAILED", 3)


@pytest.mark.slow
def test_top_shows_live_runs_of_the_cluster(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    run = submitted(hpcrun)
    cluster.begin()
    far.trips.clear()
    (job,) = hpcrun("top", "--no-usage", "--json").json["jobs"]
    assert (job["run_id"], job["step"], job["value"]) == (run.name, 1, 2.5)
    assert far.trips == ["squeue", "refresh"]
    top = Top(context_of(hpcrun, far), usage=False)
    while not top.has_all():
        top.poll()
    cluster.write("step 2 loss 2.0\n")

    def comes() -> bool:
        top.poll()
        return top.jobs()[0].progress.step == 2

    until(comes, "the second step")
    assert top.jobs()[0].progress.value == 2.0
    assert far.trips.count("squeue") == 2


@pytest.mark.parametrize("word", [(), ("7",)])
def test_status_reads_refreshed_records(
    hpcrun: Caller, far: FarTransport, cluster: Cluster, word: tuple[str, ...]
) -> None:
    submitted(hpcrun)
    cluster.begin()
    far.trips.clear()
    (shown,) = hpcrun("status", *word, "--json").json["runs"]
    assert far.trips == ["refresh", "squeue"]
    assert (shown["state"], shown["step"], shown["loss"]) == ("RUNNING", 1, 2.5)
    assert shown["elapsed_seconds"] < 60  # by the records, and not by squeue
    cluster.end()
    far.trips.clear()
    (shown,) = hpcrun("status", *word, "--json").json["runs"]
    assert (shown["state"], shown["exit_code"]) == ("FAILED", 3)
    # The resource usage of a run is queried from Slurm, which has no sacct here.
    assert far.trips == ["refresh", "squeue", *["sacct"] * len(word)]


def test_sweep_runs_unknown_to_slurm_are_refreshed_in_one_round_trip(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    hpcrun.write("job.yaml", SWEEP)
    done = hpcrun("submit", "job.yaml")
    assert done.code == 0, done
    for run in cluster.folder.glob("*.[0-9]-*"):
        cluster.work_dir = run
        cluster.begin()
        cluster.end()
    cluster.state = ""
    far.slurm["sacct"] = lambda *_: (1, "", "")
    far.trips.clear()
    (row,) = hpcrun("status", "--json").json["runs"]
    assert row["states"] == {"FAILED": 3}
    assert far.trips.count("refresh") == 1


def test_watcher_refreshes_once_per_query(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    run = submitted(hpcrun)
    cluster.begin()
    far.trips.clear()
    monitor = Monitor(context_of(hpcrun, far), [WatchedRuns([RunFolder(run)])])
    (status,) = monitor.poll().statuses
    assert (status.state, len(status.history.attempts)) == ("RUNNING", 1)
    monitor.poll()
    assert far.trips == ["refresh", "squeue"]
    cluster.end()
    far.trips.clear()
    done = hpcrun("wait", "7")
    assert done.code == 1 and "FAILED, exit code 3" in done.out + done.err, done
    assert far.trips == ["refresh", "squeue"]


@pytest.mark.parametrize(("trip", "fewest", "most"), [(0.0, 90, 130), (0.25, 8, 14), (5.0, 1, 3)])
def test_watcher_fetches_output_between_queries(
    hpcrun: Caller,
    far: FarTransport,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    trip: float,
    fewest: int,
    most: int,
) -> None:
    """As often as the runs are polled, but less often on a slow link."""
    run, now = submitted(hpcrun), 1000.0
    cluster.begin()
    refresh = far.fetch_changes

    def take_a_trip(run_dirs: Sequence[Path], **options: bool) -> None:
        nonlocal now
        now += trip
        refresh(run_dirs, **options)

    monkeypatch.setattr(far, "fetch_changes", take_a_trip)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monitor = Monitor(context_of(hpcrun, far), [WatchedRuns([RunFolder(run)])])
    monitor.poll()
    far.trips.clear()
    cluster.write("step 2 loss 2.0\n")
    while now < 1060:
        monitor.poll()
        now += 0.1
    assert far.trips.count("squeue") <= 2
    assert fewest <= far.trips.count("refresh") <= most + 2
    assert (run / "logs/0/rank-0.log").read_text().endswith("step 2 loss 2.0\n")
    # The end record is fetched once Slurm reports the run as ended.
    cluster.state = "FAILED"
    while monitor.poll().statuses[0].state == "RUNNING":
        now += 0.1
    cluster.end()
    while not monitor.poll().is_over:
        now += 0.1
    assert monitor.statuses[0].exit_code == 3


@pytest.mark.parametrize("word", [None, "7"])
def test_watched_status_shows_output_between_queries(
    hpcrun: Caller,
    far: FarTransport,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    word: str | None,
) -> None:
    submitted(hpcrun)
    cluster.begin()
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monitor = Monitor(context_of(hpcrun, far), [_WatchedQuery(StatusQuery(word))])
    far.trips.clear()
    assert monitor.poll().statuses[0].progress.step == 1
    cluster.write("step 2 loss 2.0\n")
    now += 3
    assert monitor.poll().statuses[0].progress.step == 2
    assert far.trips == ["refresh", "squeue", "refresh"]


def test_watcher_survives_an_unreachable_cluster(
    hpcrun: Caller, far: FarTransport, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(hpcrun)

    def away(*_: object, **options: object) -> None:
        raise OutOfReach("no route to the cluster")

    monkeypatch.setattr(far, "fetch_changes", away)
    monkeypatch.setattr(far, "run", away)
    monitor = Monitor(context_of(hpcrun, far), [WatchedRuns([RunFolder(run)])])
    (status,) = monitor.poll().statuses
    assert (status.state, status.out_of_reach) == ("UNKNOWN", "no route to the cluster")


def test_clean_removes_runs_on_both_sides(
    hpcrun: Caller, far: FarTransport, cluster: Cluster
) -> None:
    run = submitted(hpcrun)
    cluster.state = "CANCELLED"
    far.trips.clear()
    done = hpcrun("clean", run.name, "--yes")
    assert done.code == 0, done
    assert far.trips.count("remove") == 1
    assert not run.exists() and not cluster.work_dir.exists()
