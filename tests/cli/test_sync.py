"""hpcrun sync: metrics of runs in trackers, read with the readers of each."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.actions.sync import SentPoints, SyncRecord
from hpcrun.errors import OutOfReach
from hpcrun.trackers import MetricPoint
from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import row
from tests.waiting import PATIENCE
from tests.wandb_server import WandbServer, serving_wandb

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of MLflow's requirements
]

BEGUN = 1795162500.0
# `make venv` installs MLflow apart from other packages.
MLFLOW = str(Path(sys.prefix, "mlflow"))
USAGE = (
    "hpcrun-usage 1 n1 15 job 4 job 64000000000 nvidia:GPU-a:81920\n"
    f"{BEGUN + 15} 15 30000000000 1073741824 2147483648 1 90 1024 1024 300\n"
    f"{BEGUN + 30} 30 60000000000 2147483648 2147483648 2 180 2048 2048 600\n"
)


def lines(first: int, last: int, base: float = 0.0) -> str:
    return "".join(f"step={step} loss={base + step / 8}\n" for step in range(first, last + 1))


class SyncedRun:
    """A submitted run, whose attempts and logs a test writes."""

    def __init__(self, hpcrun: Caller) -> None:
        self.hpcrun = hpcrun
        hpcrun.environ["MY_API_KEY"] = "sk-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
        hpcrun.write(
            "job.yaml",
            "name: tiny\ncommand: [hostname]\nargs: [--lr, 1e-4, --flag]\n"
            "env: {API_TOKEN: abc123def}\n"
            "secrets: [MY_API_KEY]\nresources: {gpus_per_node: 0}\n",
        )
        replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
        done = hpcrun("submit", "job.yaml")
        assert done.code == 0, done
        (self.path,) = hpcrun.runs.iterdir()
        self.state("RUNNING")

    def state(self, word: str) -> None:
        aside = self.hpcrun.tools / "aside"
        aside.mkdir(exist_ok=True)
        replay(aside, "squeue", (0, row(self.path, "7", word), ""))
        (aside / "squeue").replace(self.hpcrun.tools / "squeue")

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}").write_text(text)
        path.with_name(f".{path.name}").replace(path)

    def begin(self, attempt: int) -> None:
        begin = {"attempt": attempt, "job_id": "7", "host": "n1", "pid": 1, "nodes": "n1"}
        text = json.dumps(begin | {"begun_at": BEGUN + 100 * attempt})
        self.write(f"attempts/{attempt}/begin.json", text)

    def end(self, attempt: int, code: int = 0, **more: str) -> None:
        end: dict[str, Any] = {"attempt": attempt, "job_id": "7", "exit_code": code}
        end |= {
            "signal": None,
            "stopped_by": None,
            "first_failure": None,
            "begun_at": BEGUN,
            "ended_at": BEGUN + 300,
        } | more
        self.write(f"attempts/{attempt}/end.json", json.dumps(end))

    def log(self, attempt: int, text: str) -> None:
        self.write(f"logs/{attempt}/rank-0.log", text)

    def append(self, attempt: int, text: str) -> None:
        with (self.path / f"logs/{attempt}/rank-0.log").open("a") as file:
            file.write(text)

    def sync(self, *options: str) -> str:
        done = self.hpcrun("sync", *options)
        assert (done.code, done.out) == (0, ""), done
        return done.err


@pytest.fixture(autouse=True)
def mlflow_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MLFLOW)


@pytest.fixture
def run(hpcrun: Caller) -> SyncedRun:
    made = SyncedRun(hpcrun)
    made.begin(0)
    made.log(0, lines(1, 20) + "step=20 eval_loss=9.5\nstep=21 loss=nan\n")
    made.write("usage/0/node-0", USAGE)
    return made


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


# ---- TensorBoard


def test_tensorboard_has_each_point_once_and_replaces_repeated_steps(run: SyncedRun) -> None:
    told = run.sync("--to", "tensorboard", "--dir", "tb")
    assert told == f"{run.path.name}: 31 new points: tensorboard --logdir {run.hpcrun.project}/tb\n"
    folder = run.hpcrun.project / "tb" / run.path.name
    found = read_events(folder)
    assert found["train/loss"][:20] == [(step, step / 8) for step in range(1, 21)]
    assert found["train/loss"][20][0] == 21 and math.isnan(found["train/loss"][20][1])
    assert found["eval/loss"] == [(20, 9.5)]
    system = read_events(folder / "system")
    assert system["gpu0_percent"] == [(15, 90.0), (30, 90.0)]
    assert system["gpu0_memory_gib"] == [(15, 1.0), (30, 2.0)]
    assert system["cpu_percent"] == [(30, 50.0)]
    assert "0 new points" in run.sync("--to", "tensorboard", "--dir", "tb")
    # The job was requeued, and repeats steps 15 to 20 with other values.
    run.begin(1)
    run.log(1, lines(15, 30, base=100.0))
    run.end(1)
    run.state("COMPLETED")
    assert "16 new points" in run.sync("7", "--to", "tensorboard", "--dir", "tb")
    again = read_events(folder)
    assert again["train/loss"] == [
        (step, step / 8 + (0.0 if step < 15 else 100.0)) for step in range(1, 31)
    ]
    assert again["eval/loss"] == []  # of the steps that the restart has discarded, as in parse
    assert read_events(folder / "system") == system


def test_points_sent_but_not_recorded_are_not_doubled_in_tensorboard(run: SyncedRun) -> None:
    """As after kill -9 between sending and recording, and in the middle of a record."""
    run.sync("--to", "tensorboard")
    (state,) = (run.path / "cache/sync").iterdir()
    points = state / "points"
    points.write_bytes(points.read_bytes()[: 20 * 11 + 7])
    run.append(0, lines(22, 25))
    run.sync("--to", "tensorboard")
    folder = run.hpcrun.project / "tensorboard" / run.path.name
    assert [step for step, _ in read_events(folder)["train/loss"]] == [*range(1, 26)]
    (state / "sync.json").unlink()  # a cache may be deleted
    run.sync("--to", "tensorboard")
    assert [step for step, _ in read_events(folder)["train/loss"]] == [*range(1, 26)]


def test_tensorboard_has_repeated_points_whose_value_did_not_change(run: SyncedRun) -> None:
    """A restart discards the later steps in TensorBoard, also those that come again unchanged."""
    tail = "".join(f"step={step} eval_acc={step / 32}\n" for step in range(5, 31, 5))
    run.log(0, lines(1, 30) + tail)
    run.sync("--to", "tensorboard")
    folder = run.hpcrun.project / "tensorboard" / run.path.name
    system = read_events(folder / "system")
    run.begin(1)
    run.log(1, lines(11, 14, base=100.0))
    assert "4 new points" in run.sync("--to", "tensorboard")
    run.append(1, f"step=15 eval_acc={15 / 32}\n")
    assert "1 new points" in run.sync("--to", "tensorboard")
    run.append(1, lines(16, 30, base=100.0))
    run.sync("--to", "tensorboard")
    found = read_events(folder)
    assert found["eval/acc"] == [(5, 5 / 32), (10, 10 / 32), (15, 15 / 32)]
    steps = [*range(1, 15), *range(16, 31)]
    assert found["train/loss"] == [
        (step, step / 8 + (0.0 if step < 11 else 100.0)) for step in steps
    ]
    assert read_events(folder / "system") == system and system
    assert "0 new points" in run.sync("--to", "tensorboard")


def test_sync_keeps_points_of_earlier_trainings_of_a_growing_log(run: SyncedRun) -> None:
    run.log(0, lines(1, 20))
    run.sync("--to", "tensorboard")
    run.append(0, "Training finished.\n" + lines(1, 10, base=100.0))
    run.sync("--to", "tensorboard")
    run.append(0, lines(11, 20, base=100.0))
    run.end(0)
    run.state("COMPLETED")
    run.sync("-f", "--to", "tensorboard")
    found = read_events(run.hpcrun.project / "tensorboard" / run.path.name)["train/loss"]
    values = [base + step / 8 for base in (0.0, 100.0) for step in range(1, 21)]
    assert [value for _, value in found] == values
    assert [step for step, _ in found] == sorted({step for step, _ in found})


def test_deleted_tensorboard_folder_is_written_again(run: SyncedRun) -> None:
    run.sync("--to", "tensorboard")
    folder = run.hpcrun.project / "tensorboard"
    before = read_events(folder / run.path.name)
    shutil.rmtree(folder)
    assert "31 new points" in run.sync("--to", "tensorboard")
    assert str(read_events(folder / run.path.name)) == str(before)  # with the same NaN


def test_settings_in_tensorboard_survive_a_rewritten_step_0(run: SyncedRun) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for base in (0.0, 100.0):
        run.log(0, lines(0, 3, base))
        run.sync("--to", "tensorboard")
    accumulator = EventAccumulator(
        str(run.hpcrun.project / "tensorboard" / run.path.name), size_guidance={"tensors": 0}
    )
    accumulator.Reload()
    (event,) = accumulator.Tensors("hpcrun")
    text = event.tensor_proto.string_val[0].decode()
    assert "| args.--lr | 1e-4 |" in text and f"| run_id | {run.path.name} |" in text
    assert accumulator.Scalars("train/loss")[0].value == 100.0


def test_each_run_of_a_sweep_is_a_run_of_its_own(hpcrun: Caller) -> None:
    hpcrun.write(
        "lr.yaml",
        "name: lr\ncommand: [echo, '{lr}']\nresources: {gpus_per_node: 0}\n"
        "sweep: {lr: [1e-4, 3e-4]}\n",
    )
    replay(hpcrun.tools, "sbatch", (0, "9\n", ""))
    replay(hpcrun.tools, "squeue", (0, "", ""))
    made = hpcrun("submit", "lr.yaml", "--json").json
    for index, each in enumerate(made["runs"]):
        log = Path(each["run_dir"]) / "logs/0/rank-0.log"
        log.parent.mkdir()
        log.write_text(lines(1, 2 + index))
        begin = {"attempt": 0, "job_id": f"9_{index}", "host": "n1", "pid": 1, "nodes": "n1"}
        attempt = Path(each["run_dir"]) / "attempts/0"
        attempt.mkdir()
        (attempt / "begin.json").write_text(json.dumps(begin | {"begun_at": BEGUN}))
    done = hpcrun("sync", made["sweep_id"], "--to", "tensorboard")
    assert done.code == 0, done
    for index, each in enumerate(made["runs"]):
        found = read_events(hpcrun.project / "tensorboard" / each["run_id"])
        assert len(found["train/loss"]) == 2 + index


def test_follow_sends_points_of_a_growing_log_and_ends_with_the_run(run: SyncedRun) -> None:
    process = run.hpcrun.start("sync", "-f", "--to", "tensorboard")
    folder = run.hpcrun.project / "tensorboard" / run.path.name
    deadline = time.monotonic() + PATIENCE
    while not (folder.exists() and len(read_events(folder).get("train/loss", [])) == 21):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    second = run.hpcrun("sync", "--to", "tensorboard")
    assert second.code == 2 and "another hpcrun sync" in second.err
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = run.hpcrun.start("sync", "-f", "--to", "tensorboard")
    run.append(0, lines(22, 30))
    run.end(0, code=1)
    run.state("FAILED")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    assert b"9 new points" in err
    assert [step for step, _ in read_events(folder)["train/loss"]] == [*range(1, 31)]


def test_follow_continues_after_an_outage(run: SyncedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcrun.trackers.tensorboard import TensorboardTracker

    real = TensorboardTracker.send
    failures: list[int] = []

    def send(tracker: TensorboardTracker, points: list[MetricPoint], since: int | None) -> None:
        if len(failures) < 2:
            failures.append(len(points))
            if len(failures) == 2:
                run.append(0, lines(22, 30))
                run.end(0)
                run.state("COMPLETED")
            raise OutOfReach("the tracker does not respond")
        real(tracker, points, since)

    monkeypatch.setattr(TensorboardTracker, "send", send)
    monkeypatch.setattr("hpcrun.actions.sync.SEND_INTERVAL_S", 0.1)
    told = run.sync("-f", "--to", "tensorboard")
    assert told.startswith("the tracker does not respond; trying again\n")
    assert told.count("trying again") == 1 and "40 new points" in told
    folder = run.hpcrun.project / "tensorboard" / run.path.name
    assert [step for step, _ in read_events(folder)["train/loss"]] == [*range(1, 31)]


# ---- MLflow


def mlflow_client(uri: str) -> Any:
    from mlflow.tracking.client import MlflowClient

    return MlflowClient(tracking_uri=uri)


def requeue_with_lost_points(run: SyncedRun) -> Path:
    """Cut the record of sent points, and restart the run; return the folder of the record."""
    (state,) = (run.path / "cache/sync").iterdir()
    points = state / "points"
    points.write_bytes(points.read_bytes()[: 20 * 11 + 7])
    run.begin(1)
    run.log(1, lines(15, 30, base=100.0))
    run.end(1)
    run.state("COMPLETED")
    return state


def check_mlflow(run: SyncedRun, uri: str) -> None:
    """Sync a run twice, with a requeue and a lost record in between, and read it back."""
    run.hpcrun.environ["MLFLOW_TRACKING_URI"] = uri
    told = run.sync("--to", "mlflow", "--project", "exp")
    shown = f"{uri}/#/experiments/1/runs/" if uri.startswith("http") else "MLflow run "
    assert f"31 new points: {shown}" in told
    state = requeue_with_lost_points(run)
    run.sync("--to", "mlflow", "--project", "exp")
    client = mlflow_client(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("exp").experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    values = [(each.step, each.value) for each in history if not math.isnan(each.value)]
    # The steps that were repeated have both values.
    first = [(step, step / 8) for step in range(1, 21)]
    assert sorted(values) == sorted([*first, *((step, 100 + step / 8) for step in range(15, 31))])
    assert found.data.metrics["train/loss"] == 100 + 30 / 8
    assert found.data.metrics["eval/loss"] == 9.5
    gpu = client.get_metric_history(found.info.run_id, "system/gpu0_percent")
    assert [(each.step, each.value) for each in gpu] == [(15, 90.0), (30, 90.0)]
    assert (found.info.run_name, found.info.status) == ("tiny", "FINISHED")
    assert (found.data.params["args.--lr"], found.data.params["args.--flag"]) == ("1e-4", "")
    assert found.data.tags["hpcrun.run_id"] == run.path.name
    assert found.data.tags["hpcrun.slurm_jobs"] == "7"
    told = json.dumps(found.to_dictionary())
    assert "abc123def" not in told and "9f8e7d" not in told
    # A lost cache finds the same run, and the database ignores what it has.
    (state / "sync.json").unlink()
    run.sync("--to", "mlflow", "--project", "exp")
    assert len(client.search_runs([found.info.experiment_id])) == 1
    assert len(client.get_metric_history(found.info.run_id, "train/loss")) == len(history)


def test_mlflow_database_has_one_run_with_history_config_and_system_metrics(
    run: SyncedRun, tmp_path: Path
) -> None:
    path = tmp_path / "mlflow.db"
    uri = f"sqlite:///{path}"
    check_mlflow(run, uri)
    # A run that was deleted, and a database that was, are written again.
    client = mlflow_client(uri)
    experiment = client.get_experiment_by_name("exp").experiment_id
    (found,) = client.search_runs([experiment])
    client.delete_run(found.info.run_id)
    run.end(1, why="pruned")  # by the search of its sweep
    assert "39 new points" in run.sync("--to", "mlflow", "--project", "exp")
    (again,) = client.search_runs([experiment])
    assert again.info.run_id != found.info.run_id
    assert again.data.params == found.data.params
    assert "PRUNED" in run.hpcrun("status", "7").out and again.info.status == "FINISHED"
    with contextlib.closing(sqlite3.connect(path)) as database:
        for table in ("runs", "metrics", "latest_metrics", "params", "tags"):
            database.execute(f"DELETE FROM {table}")
        database.commit()
    assert "39 new points" in run.sync("--to", "mlflow", "--project", "exp")
    assert "0 new points" in run.sync("--to", "mlflow", "--project", "exp")


def test_names_that_mlflow_refuses_are_distinct_and_the_same_in_each_call(run: SyncedRun) -> None:
    from hpcrun.trackers.mlflow import _valid_name

    names = ["acc@5", "acc#5", "acc_5", "损失", "精度", "", "a/../b", "a" * 300, "a" * 301]
    valid = [_valid_name(name) for name in names]
    assert len(set(valid)) == len(names) and max(map(len, valid)) == 250
    assert valid == [_valid_name(name) for name in names]


@pytest.mark.parametrize(
    ("uri", "code", "expected"),
    [
        ("sqlite:///{folder}", 4, "unable to open database file"),
        ("sqlite:////proc/nowhere/mlflow.db", 1, "No such file"),
        ("mysql://ada:pw12@/34@127.0.0.1/x", 2, "pip install mysqlclient"),
        ("mysql+pw1234://ada:pw1234@127.0.0.1/x", 1, "Can't load plugin"),
        ("mysql://ada:pw1234@127.0.0.1:pw1234/x", 1, "invalid literal"),
    ],
)
def test_unusable_mlflow_database_is_one_error_without_the_password(
    run: SyncedRun, uri: str, code: int, expected: str
) -> None:
    run.hpcrun.environ["MLFLOW_TRACKING_URI"] = uri.format(folder=run.path)
    done = run.hpcrun("sync", "--to", "mlflow")
    assert done.code == code and expected in done.err, done
    assert done.err.startswith("error: ") and len(done.err.splitlines()) <= 2, done
    assert "pw12" not in done.err and "34" not in done.err


@pytest.fixture
def mlflow_server(tmp_path: Path, clean_environ: dict[str, str]) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    argv = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--workers", "1", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            env=clean_environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONPATH": MLFLOW},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + 5 * PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            break
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.thorough  # the server takes long to start, and the database is tested above
def test_mlflow_server_has_the_same_as_a_database(run: SyncedRun, mlflow_server: str) -> None:
    check_mlflow(run, mlflow_server)


def test_unreachable_mlflow_is_out_of_reach_and_loses_nothing(
    run: SyncedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run.hpcrun.environ |= {
        "MLFLOW_TRACKING_URI": "http://ada:pw123456@127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    done = run.hpcrun("sync", "--to", "mlflow")
    assert done.code == 4 and "MLflow: " in done.err
    assert "pw123456" not in done.err
    assert not any("pw123456" in path.read_text("latin-1")
                   for path in (run.path / "cache").rglob("*") if path.is_file())  # fmt: skip


# ---- W&B


def read_wandb(path: Path) -> list[Any]:
    """Read the records of a file of W&B, whose format is that of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, found = path.read_bytes(), 7, b"", []
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            found.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return found


def test_wandb_offline_directory_has_points_config_and_no_machine(run: SyncedRun) -> None:
    run.hpcrun.environ["WANDB_MODE"] = "offline"
    run.hpcrun.environ["HOME"] = str(run.hpcrun.project)
    # W&B writes its files in another process, for which this one waits at its end.
    done = run.hpcrun.process("sync", "--to", "wandb", "--dir", "wb", "--project", "p")
    (folder,) = (run.hpcrun.project / "wb/wandb").glob("offline-run-*")
    assert f"wandb sync '{folder.parent}'/offline-run-*-{run.path.name}\n" in done.err, done
    assert (done.code, len(done.err.splitlines())) == (0, 1), done
    (file,) = folder.glob("*.wandb")
    records = read_wandb(file)
    rows = [
        {
            "".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in each.history.item
        }
        for each in records
        if each.WhichOneof("record_type") == "history"
    ]
    losses = [
        (each["train/global_step"], each["train/loss"]) for each in rows if "train/loss" in each
    ]
    assert losses[:20] == [(step, step / 8) for step in range(1, 21)]
    gpu = [(row["system/seconds"], row["system/gpu0_percent"]) for row in rows
           if "system/gpu0_percent" in row]  # fmt: skip
    assert gpu == [(15, 90.0), (30, 90.0)]
    (made,) = [each.run for each in records if each.WhichOneof("record_type") == "run"]
    assert (made.run_id, made.display_name, made.project) == (run.path.name, "tiny", "p")
    config = {item.key or "/".join(item.nested_key): item.value_json for item in made.config.update}
    assert config["args.--lr"] == '"1e-4"'
    everything = file.read_bytes()
    assert b"abc123def" not in everything and b"9f8e7d" not in everything
    kinds = {each.WhichOneof("record_type") for each in records}
    assert made.host == "default" and not kinds & {"environment", "stats", "output_raw"}


def losses_of(server: WandbServer, run: SyncedRun) -> list[tuple[int, float]]:
    rows = server.runs[run.path.name].history
    return [
        (row["train/global_step"], row["train/loss"])
        for row in rows
        if math.isfinite(row.get("train/loss", math.nan))
    ]


def test_wandb_gets_a_requeued_run_as_one_run_in_several_calls(run: SyncedRun) -> None:
    run.hpcrun.environ["HOME"] = str(run.hpcrun.project)
    with serving_wandb() as server:
        run.hpcrun.environ |= server.environ
        done = run.hpcrun.process("sync", "--to", "wandb", "--dir", "wb", "--project", "p")
        assert done.code == 0 and "/ada/p/runs/" in done.err, done
        first = [(step, step / 8) for step in range(1, 21)]
        assert losses_of(server, run) == first
        # The second attempt repeats the last step and continues.
        run.begin(1)
        run.log(1, lines(20, 25, base=1.0))
        run.end(0, 1)
        run.end(1)
        run.state("COMPLETED")
        done = run.hpcrun.process("sync", "--to", "wandb", "--dir", "wb", "--project", "p")
        assert done.code == 0, done
    assert losses_of(server, run) == first + [(step, 1 + step / 8) for step in range(20, 26)]
    (stored,) = server.runs.values()
    assert stored.fields["displayName"] == "tiny" and stored.ends[-1] == (True, 0)
    assert stored.config["args.--lr"] == "1e-4" and stored.config["hpcrun"]["slurm_jobs"] == "7"
    assert f"hpcrun status {run.path.name}" in stored.fields["notes"]
    gpu = [row["system/gpu0_percent"] for row in stored.history if "system/gpu0_percent" in row]
    assert gpu == [90.0, 90.0]
    assert b"abc123def" not in server.requests and b"9f8e7d" not in server.requests


def test_wandb_sync_uploads_the_offline_folders_of_two_calls_as_one_run(run: SyncedRun) -> None:
    run.hpcrun.environ |= {"WANDB_MODE": "offline", "HOME": str(run.hpcrun.project)}
    run.hpcrun.process("sync", "--to", "wandb", "--project", "p")
    run.append(0, lines(22, 30))
    printed = run.hpcrun.process("sync", "--to", "wandb", "--project", "p").err
    command = printed[printed.index("wandb sync") :].strip()
    with serving_wandb() as server:
        environ = run.hpcrun.environ | server.environ
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        environ["WANDB_MODE"] = "online"
        subprocess.run(
            ["bash", "-c", command],
            cwd=run.hpcrun.project,  # wandb writes a log to ./wandb
            env=environ,
            check=True,
            stdout=subprocess.PIPE,
        )
    steps = [*range(1, 21), *range(22, 31)]
    assert losses_of(server, run) == [(step, step / 8) for step in steps]
    assert server.runs[run.path.name].config["args.--lr"] == "1e-4"


# ---- trackio


@pytest.mark.thorough  # it installs a package, whose version of pillow is older than matplotlib's
def test_trackio_has_one_run_with_history_config_and_system_metrics(
    run: SyncedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "trackio"], check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    monkeypatch.setattr("hpcrun.trackers.tracker.find_spec", lambda name: True)
    monkeypatch.setenv("TRACKIO_DIR", "")  # restores the variable, which the command sets
    told = run.sync("--to", "trackio", "--dir", "tk", "--project", "exp")
    assert f"31 new points: trackio show --project exp (in {run.hpcrun.project}/tk)" in told
    state = requeue_with_lost_points(run)
    run.sync("--to", "trackio", "--dir", "tk", "--project", "exp")
    (state / "sync.json").unlink()
    run.sync("--to", "trackio", "--dir", "tk", "--project", "exp")
    program = (
        "import json, sys; from trackio.sqlite_storage import SQLiteStorage as S\n"
        "(run,) = S.get_run_records('exp'); name = {'run': run['name'], 'run_id': run['id']}\n"
        "print(json.dumps([run, S.get_logs('exp', **name), S.get_system_logs('exp', **name),"
        " S.get_run_config('exp', **name)]))"
    )
    environ = run.hpcrun.environ | {"TRACKIO_DIR": str(run.hpcrun.project / "tk")}
    shown = subprocess.run([python, "-c", program], env=environ, stdout=subprocess.PIPE, check=True)
    found, logs, system, config = json.loads(shown.stdout)
    assert (found["id"], found["name"]) == (run.path.name, "tiny")
    losses = [(row["step"], row["train/loss"]) for row in logs if "train/loss" in row]
    first = [(step, step / 8) for step in range(1, 21)]
    repeated = [(step, 100 + step / 8) for step in range(15, 31)]
    assert sorted(pair for pair in losses if pair[0] != 21) == sorted(
        pair for pair in (*first, *repeated) if pair[0] != 21
    )
    assert [row["gpu0_percent"] for row in system if "gpu0_percent" in row] == [90.0, 90.0]
    assert system[0]["timestamp"] == "2026-11-20T08:15:15+00:00"
    assert config["args.--lr"] == "1e-4" and config["hpcrun"]["slurm_jobs"] == "7"
    assert "abc123def" not in json.dumps(config) and "9f8e7d" not in json.dumps(config)


# ---- refusals


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        (["--to", "mlflow"], {}, "MLFLOW_TRACKING_URI is not set"),
        (["--to", "wandb"], {"HOME": "/nowhere"}, "not logged in to api.wandb.ai"),
        (["--to", "wandb"], {"WANDB_MODE": "disabled"}, "WANDB_MODE is disabled"),
        (["a.log", "--to", "tensorboard"], {}, "not a run of hpcrun"),
        (["--to", "trackio"], {"TRACKIO_SPACE_ID": "ada/x"}, "TRACKIO_SPACE_ID is set"),
    ],
)
def test_unusable_trackers_and_sources_are_refused(
    run: SyncedRun,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    environ: dict[str, str],
    expected: str,
) -> None:
    run.hpcrun.write("a.log", "step=1 loss=2\n")
    run.hpcrun.environ |= environ
    monkeypatch.setattr("hpcrun.trackers.tracker.find_spec", lambda name: True)
    done = run.hpcrun("sync", *options)
    assert done.code == 2 and expected in done.err, done
    assert not (run.path / "cache/sync").exists()


def test_missing_package_is_named(run: SyncedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrun.trackers.tracker.find_spec", lambda name: None)
    done = run.hpcrun("sync", "--to", "mlflow")
    assert done.code == 2
    assert re.search(r"needs the package mlflow-skinny\n.*pip install mlflow-skinny", done.err)


def test_run_that_has_not_begun_is_not_created_in_the_tracker(hpcrun: Caller) -> None:
    made = SyncedRun(hpcrun)
    made.state("PENDING")
    assert "not begun yet" in made.sync("--to", "tensorboard")
    assert not (hpcrun.project / "tensorboard").exists()


def test_sent_points_survive_a_new_name_and_a_cut_record(tmp_path: Path) -> None:
    sent = SentPoints(tmp_path / "a/b/c/d")
    sent.add([MetricPoint("x", 1, 0.0, 2.0), MetricPoint("y", 5, 0.0, math.nan)])
    sent.close()
    with (tmp_path / "a/b/c/d/points").open("ab") as file:
        file.write(b"cut")
    again = SentPoints(tmp_path / "a/b/c/d")
    assert again.record == SyncRecord(names=["x", "y"])
    assert (again.last_step("x"), again.last_step("y"), again.last_step("z")) == (1, 5, None)
    again.close()


def test_discarded_points_stay_unsent_in_the_next_process(tmp_path: Path) -> None:
    folder = tmp_path / "a/b/c/d"
    sent = SentPoints(folder)
    points = [MetricPoint(name, step, 0.0, 1.0) for name in ("x", "system/y") for step in range(5)]
    sent.add(points)
    sent.remember(points)
    sent.discard(5, is_system=False)  # nothing is there
    sent.discard(2, is_system=False)
    sent.discard(3, is_system=True)
    sent.add([MetricPoint("x", 2, 0.0, 9.0)])
    sent.remember([MetricPoint("x", 2, 0.0, 9.0)])
    again = sent
    for _ in range(2):
        assert (again.last_step("x"), again.last_step("system/y")) == (2, 2)
        again.close()
        again = SentPoints(folder)
    assert (folder / "points").stat().st_size == 20 * (10 + 2 + 1)
    again.reset()
    again.close()
    again = SentPoints(folder)
    assert (again.last_step("x"), again.record) == (None, SyncRecord())
    again.close()
