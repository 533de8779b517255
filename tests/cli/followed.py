"""A log that a command follows while a test writes it."""

from __future__ import annotations

import os
import subprocess
import time

from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import row
from tests.waiting import PATIENCE

END = {
    "attempt": 0,
    "job_id": "7",
    "exit_code": 0,
    "signal": None,
    "stopped_by": None,
    "first_failure": None,
    "begun_at": 1.0,
    "ended_at": 2.0,
}


class Followed:
    """A run with scripted answers of Slurm, and a follower."""

    def __init__(self, hpcrun: Caller) -> None:
        self.tools = hpcrun.tools
        hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
        replay(self.tools, "sbatch", (0, "7\n", ""))
        assert hpcrun("submit", "job.yaml").code == 0
        (self.run,) = hpcrun.runs.iterdir()
        self.scancel = replay(self.tools, "scancel", (0, "", ""))
        self.received = b""
        self.process: subprocess.Popen[bytes] | None = None
        self.hpcrun = hpcrun

    def squeue(self, answer: tuple[int, str, str]) -> None:
        # Replace it atomically, because the follower may query at any time.
        aside = self.tools / "aside"
        aside.mkdir(exist_ok=True)
        replay(aside, "squeue", answer)
        (aside / "squeue").replace(self.tools / "squeue")

    def state(self, word: str) -> None:
        self.squeue((0, row(self.run, "7", word), ""))

    def follow(self, *options: str) -> None:
        self.process = self.hpcrun.start("logs", "-f", "7", *options)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def hear(self, text: bytes) -> None:
        """Wait until the follower has printed a text."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE
        while text not in self.received:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                self.received += stream.read() or b""
            assert time.monotonic() < deadline, self.received
            time.sleep(0.02)

    def write(self, name: str, text: str) -> None:
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").replace(path)

    def append(self, name: str, text: str) -> None:
        with (self.run / name).open("a") as file:
            file.write(text)

    def code(self) -> int:
        assert self.process is not None
        return self.process.wait()
