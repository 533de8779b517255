"""Processes that die with their guard, where util-linux can do that; elsewhere jobs run without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness_job import RANK, Job

# Both ranks of a node, one after the other, as a launcher would start them.
TWO_RANKS = "\n".join(
    f"(export RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2; {RANK} echo trained) || exit"
    for rank in (0, 1)
)
NOTING = '#!/bin/bash\necho "$3" >>"$CALLS"\nexec /usr/bin/setpriv "$@"\n'
# Before util-linux 2.33, and busybox's.
WITHOUT = "#!/bin/bash\necho \"setpriv: unrecognized option '--pdeathsig'\" >&2\nexit 1\n"


def environ(folder: Path, program: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "setpriv").write_text(program)
    (folder / "setpriv").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}


def test_a_node_is_asked_once_and_not_for_each_rank(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.write(TWO_RANKS, world=2)
    env = environ(tmp_path / "bin", NOTING)
    assert job.go(b"", **env)[0] == 0
    assert job.log().count("trained\n") == 2
    called = (tmp_path / "bin" / "calls").read_text().splitlines()
    assert called.count("true") == 1
    assert called.count("--") == 3  # the node and both ranks


def test_jobs_run_where_setpriv_lacks_the_option(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.write(TWO_RANKS, world=2)
    assert job.go(b"", **environ(tmp_path / "bin", WITHOUT))[0] == 0
    assert job.log().count("trained\n") == 2


@pytest.mark.slow
def test_jobs_run_where_there_is_no_setpriv(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.write(TWO_RANKS, world=2)
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(":"):
        for program in sorted(Path(folder).glob("*")) if folder else []:
            if program.name != "setpriv" and not (tools / program.name).is_symlink():
                (tools / program.name).symlink_to(program)
    code, out = job.go(PATH=str(tools))
    assert (code, job.log().count("trained\n")) == (0, 2), out
