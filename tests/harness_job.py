"""A job that templates/harness.sh runs without Slurm."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.assets import build_archive, shipped_folder
from hpcrun.render.files import ARCHIVE, FIXED, HOSTS_SCRIPT
from hpcrun.render.quoting import quote_bash
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Attempt, End, Failure, read_history
from tests.waiting import until

RANK = 'exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank'


class Job:
    """A run folder with a job.sbatch and a node.sh written by the test."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.run = RunFolder(path)
        self.run.attempts.mkdir()
        self.run.logs.mkdir()
        for name in (*FIXED, HOSTS_SCRIPT):
            (path / name).write_bytes((shipped_folder("templates") / name).read_bytes())
        (path / ARCHIVE).write_bytes(build_archive())
        # Whatever the job starts is found by it, in whatever session.
        self.mark = uuid.uuid4().hex
        self.write()

    def write(
        self,
        node: str = "echo trained",
        *,
        setup: str = "",
        directives: str = "#SBATCH --no-requeue",
        nodes: int = 1,
        world: int = 1,
    ) -> None:
        self.run.script.write_text(
            f"#!/bin/bash\n{directives}\n"
            f"export HPCRUN_RUN_DIR={quote_bash(str(self.run.path))}\n"
            '[ "${1-}" = body ] || exec bash -- "$HPCRUN_RUN_DIR/harness.sh" batch\n'
            f"export HPCRUN_NODES={nodes} HPCRUN_RANKS_PER_NODE={world}\n"
            'export HPCRUN_CACHE_DIR="$HPCRUN_RUN_DIR/cache"\n'
            f"export HPCRUN_WORLD_SIZE={world} HPCRUN_FABRIC=single-node\n{setup}\n"
            ': >"$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/launched"\n'
            'exec bash -- "$HPCRUN_RUN_DIR/harness.sh" launch srun --nodes=1\n'
        )
        (self.run.path / "node.sh").write_text(f"#!/bin/bash\n{node}\n")

    def start(self, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", str(self.run.script)],
            cwd=self.run.path,
            env={"PATH": os.environ["PATH"], "HPCRUN_TEST_MARK": self.mark, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[bytes], stdin: bytes = b"") -> tuple[int, str]:
        out, _ = process.communicate(stdin)
        return process.returncode, out.decode()

    def go(self, stdin: bytes = b"", **env: str) -> tuple[int, str]:
        return self.finish(self.start(**env), stdin)

    def wait_for(self, name: str) -> None:
        until((self.run.path / name).exists, name)

    @property
    def last(self) -> Attempt:
        last = read_history(self.run).last
        assert last is not None
        return last

    @property
    def end(self) -> End:
        assert self.last.end is not None
        return self.last.end

    @property
    def failure(self) -> Failure:
        assert self.end.first_failure is not None
        return self.end.first_failure

    def log(self, attempt: int = 0) -> str:
        """Return the output of the node and the ranks."""
        files = sorted((self.run.logs / str(attempt)).glob("*.log"))
        return "".join(file.read_text() for file in files)

    def processes(self) -> list[str]:
        """Return the running processes with this job's mark in their environment."""
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (proc / "environ").read_bytes():
                    found.append(f"{proc.name}: {(proc / 'cmdline').read_bytes()!r}")
            except OSError:
                continue
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path / 'it\'s a "run" $(x)')
    yield made
    until(lambda: not made.processes(), "the end of its processes")
