"""The port of Ray's dashboard, as the job has recorded it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.actions.shell import find_dashboard_port
from hpcrun.errors import InputError
from hpcrun.runs import JobStatus, RunFolder, Verdict, read_history


def make_status(path: Path) -> JobStatus:
    run = RunFolder(path)
    verdict = Verdict(state="RUNNING", final=False)
    return JobStatus(run=run, history=read_history(run), verdict=verdict, job_id="7")


def test_dashboard_port_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    for attempt in (0, 1):
        folder = tmp_path / "attempts" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "ray.json").write_text(f'{{"address": "n1", "dashboard": {9000 + attempt}}}')
    assert find_dashboard_port(make_status(tmp_path)) == 9001


def test_a_job_without_ray_has_no_dashboard(tmp_path: Path) -> None:
    (tmp_path / "attempts/0").mkdir(parents=True)
    with pytest.raises(InputError, match="no dashboard of Ray"):
        find_dashboard_port(make_status(tmp_path))
