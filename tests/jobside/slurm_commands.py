"""Scripts in place of Slurm's commands that record their calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.jobside.slurm import (
    Job,
)

# Stands in for scontrol, squeue, sbatch and the like: each call is noted, and answered by a file
# whose name begins its arguments.
STAND_IN = """#!/bin/bash
echo "${0##*/} $*" >>"$CALLS"
for file in "$ANSWERS/${0##*/}"*; do
    [ -e "$file" ] || continue
    words=${file##*/}
    words=${words#"${0##*/}"}
    words=${words//_/ }
    case " $*" in "$words"*) . "$file" ;; esac
done
exit 0
"""


class StandIns:
    """Slurm's commands as scripts, with the answers of a test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.answers, self.calls = folder / "run", folder / "answers", folder / "calls"
        self.answers.mkdir()
        (self.run / "attempts/0").mkdir(parents=True)
        (self.run / "logs").mkdir()
        programs = folder / "bin"
        programs.mkdir()
        for name in ("scontrol", "squeue", "sbatch", "sacct", "scancel", "sacctmgr"):
            (programs / name).write_text(STAND_IN)
            (programs / name).chmod(0o755)
        self.said: list[str] = []
        for name, value in {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "ANSWERS": str(self.answers),
        }.items():
            monkeypatch.setenv(name, value)
        self.environ = {
            "HPCRUN_RUN_DIR": str(self.run),
            "SLURM_JOB_ID": "7",
            "SLURMD_NODENAME": "n1",
        }

    def answer(self, call: str, text: str, *, code: int = 0, error: str = "") -> None:
        """Set the answer to calls that begin so."""
        script = f"cat <<'END'\n{text}\nEND\n" if text else ""
        script += f"echo '{error}' >&2\n" if error else ""
        (self.answers / call.replace(" ", "_")).write_text(f"{script}exit {code}\n")

    def job(self, **env: str) -> Job:
        job = Job({**os.environ, **self.environ, **env}, self.said.append)
        job.sleep = lambda seconds: None
        return job

    def called(self, *words: str) -> list[str]:
        """Return the calls that begin with one of some words."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if not words or line.startswith(words)]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return StandIns(tmp_path, monkeypatch)
