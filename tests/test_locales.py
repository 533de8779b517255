"""Jobs with very many ranks, in locales with a decimal comma and, as Turkish, other letters i."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.jobside.records import write_json
from tests.harness_job import RANK, Job, job
from tests.waiting import until

__all__ = ["job"]  # the fixture
NODES = 1024
pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=["tr_TR.UTF-8", pytest.param("de_DE.UTF-8", marks=pytest.mark.thorough)],
)
def locale(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return the variables that select a locale, which is compiled.

    Without its source (of Debian's package locales) the tests run in the C locale.
    """
    name = str(request.param)
    folder = tmp_path_factory.mktemp("locales")
    language, _, charmap = name.partition(".")
    if Path("/usr/share/i18n/locales", language).exists() and shutil.which("localedef"):
        subprocess.run(["localedef", "-i", language, "-f", charmap, folder / name], check=True)
        shown = subprocess.run(
            ["bash", "-c", "LC_ALL=$1; printf %.1f 0,5", "-", name],
            env={"PATH": os.environ["PATH"], "LOCPATH": str(folder)},
            capture_output=True,
            check=True,
        )
        assert shown.stdout == b"0,5"
    return {"LC_ALL": name, "LOCPATH": str(folder)}


def test_times_and_codes_of_a_job_are_recorded(job: Job, locale: dict[str, str]) -> None:
    begun = time.time()
    job.write("export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1\n" + RANK + " bash -c 'echo İI ıi; exit 7'")
    code, out = job.finish(job.start(**locale))
    assert code == 7, out
    assert begun - 1 < job.end.begun_at <= job.end.ended_at < time.time() + 1
    assert (job.failure.rank, job.failure.exit_code, job.failure.node) == (0, 7, 0)
    assert begun - 1 < job.failure.at < time.time() + 1
    assert "İI ıi\n" in job.log()
    assert json.loads((job.run.attempts / "0/begin.json").read_text())["version"] == 1


def test_failure_of_the_earliest_of_many_ranks_is_the_jobs(
    job: Job, locale: dict[str, str]
) -> None:
    folder = job.run.attempts / "0" / "failures"
    job.write('until [ -e "$HPCRUN_RUN_DIR/written" ]; do sleep 0.05; done; exit 1')
    process = job.start(**locale)
    until(folder.is_dir, "the attempt")
    for rank in reversed(range(NODES)):
        at = 1_700_000_000_000_000 + (rank * 613 + 100) % NODES
        record = {"rank": rank, "local_rank": rank % 8, "node": rank // 8, "host": f"n{rank // 8}"}
        record |= {"exit_code": 3 + rank % 200, "signal": None, "at": at / 1e6, "why": None}
        write_json(str(folder / f"{at}-rank-{rank}.json"), "failure", record)
    (job.run.path / "written").touch()
    code, out = job.finish(process)
    first = min(range(NODES), key=lambda rank: (rank * 613 + 100) % NODES)
    assert (job.failure.rank, job.failure.host) == (first, f"n{first // 8}"), out
    assert code == job.end.exit_code == 3 + first % 200


def test_hostfile_of_many_nodes_is_complete(tmp_path: Path, locale: dict[str, str]) -> None:
    harness = (shipped_folder("templates") / "harness.sh").read_text()
    functions = harness.replace("${BASH_SOURCE[0]%/*}", str(shipped_folder("templates")))
    functions = functions.partition("\nmode=$1\n")[0]
    names = [f"Island-i{number:04}" for number in range(NODES)]
    call = 'attempt_dir=$1; shift; write_hostfile "$@" && check_hostfile'
    environ = {"PATH": os.environ["PATH"], "HPCRUN_NODES": str(NODES), "HPCRUN_RANKS_PER_NODE": "8"}
    subprocess.run(
        ["bash", "-c", f"{functions}\n{call}", "-", tmp_path, *names],
        env={**environ, **locale},
        check=True,
    )
    lines = (tmp_path / "hostfile").read_text().splitlines()
    assert lines == [f"{name} slots=8" for name in names]
