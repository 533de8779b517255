"""Mapping of cluster paths to paths on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.actions.cluster_host import find_local_path
from hpcrun.context import Context, load_context
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import find_owner_run, list_successors, read_task

RUN, LATER = "20261120-081455-train-7k3q", "20261120-081500-train-8x2z"


@pytest.fixture
def far(tmp_path: Path, clean_environ: dict[str, str]) -> Context:
    """A cluster on another machine; the mirror contains one of its runs."""
    found = load_context(clean_environ, tmp_path)
    (tmp_path / "mirror" / RUN).mkdir(parents=True)
    return structs.replace(
        found,
        cluster=structs.replace(found.cluster, host="far"),
        runs_dir=tmp_path / "mirror",
    )


def test_path_of_a_run_maps_into_the_mirror(far: Context) -> None:
    run = far.runs_dir / RUN
    assert find_local_path(far, Path(f"/scratch/runs/{RUN}/checkpoints")) == run / "checkpoints"
    assert find_local_path(far, Path(f"/scratch/runs/{RUN}")) == run
    here = structs.replace(far, cluster=structs.replace(far.cluster, host=None))
    assert find_local_path(here, run) == run


@pytest.mark.parametrize(
    "path",
    [
        f"/scratch/{RUN}/../../home/victim/checkpoints",
        f"/scratch/{RUN}/checkpoints/../../../home/victim",
        f"{RUN}/../..",
        "/scratch/checkpoints",
        f"/scratch/{LATER}/checkpoints",
        "/etc/passwd",
        "..",
    ],
)
def test_path_outside_the_runs_has_no_local_path(far: Context, path: str) -> None:
    assert find_local_path(far, Path(path)) is None
    assert find_owner_run(find_local_path(far, Path(path))) is None


@pytest.mark.parametrize("place", ["..", "/", "/tmp", "../..", f"/x/{LATER}/..", "/x/.hidden"])
def test_successor_is_resolved_next_to_its_run(far: Context, place: str) -> None:
    run = RunFolder(far.runs_dir / RUN)
    run.successors.mkdir()
    (run.successors / "one.json").write_text(json.dumps({"run_dir": place}))
    assert list_successors(run, is_mirror=True) == []
    assert list_successors(run, is_mirror=False) == []


def test_successor_in_a_mirror_is_not_resolved_at_the_cluster_path(
    far: Context, tmp_path: Path
) -> None:
    run, unrelated = RunFolder(far.runs_dir / RUN), tmp_path / "unrelated" / LATER
    run.successors.mkdir()
    unrelated.mkdir(parents=True)
    (run.successors / "one.json").write_text(json.dumps({"run_dir": str(unrelated)}))
    assert list_successors(run, is_mirror=True) == []
    assert list_successors(run, is_mirror=False) == [unrelated]
    (far.runs_dir / LATER).mkdir()
    assert list_successors(run, is_mirror=True) == [far.runs_dir / LATER]


@pytest.mark.parametrize("sweep_id", ["../../victim", "..", "/etc", "x/20261120-081455-lr-7k3q"])
def test_task_record_cannot_name_a_sweep_in_another_folder(tmp_path: Path, sweep_id: str) -> None:
    run = RunFolder(tmp_path / "20261120-081455-lr.0-7k3q")
    run.path.mkdir()
    task = {"sweep_id": sweep_id, "index": 0, "values": {}}
    run.task.write_text(json.dumps(task))
    assert read_task(run) is None
    run.task.write_text(json.dumps(task | {"sweep_id": "20261120-081455-lr-7k3q"}))
    assert read_task(run) is not None
