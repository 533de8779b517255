"""Store the output of Slurm's commands in tests/captured/VERSION/COMMAND/CASE.json."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpcrun.slurm.commands import parse_sbatch
from hpcrun.slurm.jobs import parse_sacct, parse_show_job, parse_squeue, sacct_argv
from tests.versions.neutral import neutral
from tests.versions.rig import ReleaseRig

# What hpcrun makes of an answer; of the others it reads errors only.
PARSERS: dict[str, Callable[[str], Any]] = {
    "sacct": parse_sacct,
    "sbatch": parse_sbatch,
    "scontrol": parse_show_job,
    "squeue": parse_squeue,
}


def as_json(parsed: object) -> Any:
    """Return the result of a parser as JSON values, jobs without their unknown fields."""
    read = json.loads(msgspec.json.encode(parsed))
    if not isinstance(read, list):
        return read
    return [
        {key: value for key, value in row.items() if value} if isinstance(row, dict) else row
        for row in read
    ]


def dump_capture(captured: Mapping[str, Any]) -> str:
    """Return a capture as JSON, with one line for each key and for each parsed job."""
    lines = []
    for key, value in captured.items():
        if key == "parsed" and isinstance(value, list) and value:
            jobs = ",\n".join(f"  {json.dumps(job)}" for job in value)
            lines.append(f' "parsed": [\n{jobs}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@dataclass(frozen=True)
class Book:
    """The captures of one rig; ``folder`` is that of its version."""

    rig: ReleaseRig
    folder: Path
    source: str

    def clear(self) -> None:
        """Remove earlier captures."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def take(
        self,
        case: str,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        command: str = "",
        parse: bool = True,
    ) -> str:
        """Run a command, store its result, and return its standard output."""
        done = self.rig.ask(argv, cwd=cwd, env=env)
        command = command or argv[0]
        stdout = self._neutral(done.stdout)
        kept = {
            "source": self.source,
            "argv": [self._neutral(word) for word in argv],
            "exit_code": done.returncode,
            "stdout": stdout,
            "stderr": self._neutral(done.stderr),
        }
        if parse and command in PARSERS:
            kept["parsed"] = as_json(PARSERS[command](stdout))
        file = self.folder / command / f"{case}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dump_capture(kept))
        return done.stdout

    def states(self, job_id: str) -> list[str]:
        """Return the states of a job or of the tasks of an array, without storing them."""
        argv = ["squeue", "--noheader", "--states=all", "--array", f"--jobs={job_id}"]
        return self.rig.ask([*argv, "--format=%T"]).stdout.split()

    def wait(self, job_id: str, *states: str, seconds: float = 60) -> None:
        """Wait until a job, or some task of an array, has had each of ``states``.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + seconds
        while not set(states) <= set(found := self.states(job_id)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id}: {found} after {seconds:g} s, not {states}")
            time.sleep(0.3)

    def accounted(self, job_ids: Sequence[str], *states: str) -> None:
        """Wait until sacct shows each of ``states`` for some of the jobs.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + 150
        argv = sacct_argv(job_ids)
        while not set(states) <= {row.state for row in parse_sacct(self.rig.ask(argv).stdout)}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"jobs {', '.join(job_ids)}: sacct does not show {states}")
            time.sleep(0.5)

    def _neutral(self, text: str) -> str:
        rig = self.rig
        link = rig.network.link
        return neutral(text, link=link, shared=str(rig.shared), root=str(rig.root))
