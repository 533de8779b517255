"""What is followed where hpcrun did not submit it: a Slurm job, or all tasks of an array.

Effects: reads files, few Slurm commands. Never changes or cancels anything.
"""

from __future__ import annotations

import glob
import random
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.state.foreign import ForeignStatus, foreign_status
from hpcrun.controller.watch.watched import SLURM_EVERY, SLURM_SOON, Status
from hpcrun.errors import InputError, OutOfReach
from hpcrun.logs.files import LogFile
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.job_output import JobOutput
from hpcrun.slurm.nodelist import expand
from hpcrun.slurm.states import UNKNOWN, is_final
from hpcrun.transport import Transport

# Such a job tells its end by silence at most: by one that is longer than those before, and so many
# questions a minute are enough.
SILENT_AFTER = 3.0
SILENT_FACTOR = 3.0
ASKED_A_MINUTE = 4
# Of an array's tasks that wait, so many are looked out for; in names of files Slurm writes this
# number (NO_VAL) where theirs is going to be.
NEXT_TASKS = 64
_NO_TASK = "4294967294"
_LAST_WORDS = (b"slurmstepd: error: ***", b"srun: Job step aborted", b"Terminated")


class WatchedJob:
    """A job that hpcrun did not submit, or all tasks of an array."""

    def __init__(self, context: Context, job_id: str) -> None:
        """Ask Slurm for the job. Raises InputError where it knows none, OutOfReach."""
        self.transport: Transport = slurm_transport(context)
        self._context = context
        self._job_id = job_id
        self._shown: dict[str, tuple[str, str]] = {}
        self._statuses: list[ForeignStatus] = []
        now = time.monotonic()
        self._heard_at = now
        self._asked = deque([now], maxlen=ASKED_A_MINUTE)
        self._longest_silence = 0.0
        self.outputs = scheduler.job_outputs(self.transport, job_id)
        if self.outputs:
            self._statuses = [_foreign(job) for job in self.outputs]
        else:
            self._statuses = foreign_status(context, job_id)
            self.outputs = _guessed(self._statuses)
        runs = all(each.verdict.state == "RUNNING" for each in self._statuses)
        self._next = now + (SLURM_EVERY if runs else SLURM_SOON)

    @property
    def statuses(self) -> list[ForeignStatus]:
        return self._statuses

    def paths(self) -> list[LogFile]:
        """Where the output goes, whether something is there yet or not."""
        found: dict[str, LogFile] = {}
        jobs = [each for job in self.outputs for each in _tasks_of(job)]
        jobs.sort(key=lambda job: int(job.task) if job.task.isdigit() else -1)
        for job in jobs:
            for name in dict.fromkeys((job.stdout, job.stderr)):
                path = _filled(name, job.nodes)
                if path and path not in found and path != "/dev/null":
                    found[path] = LogFile(
                        Path(path),
                        attempt=job.restarts,
                        job_id=job.job_id,
                        task=job.task if len(jobs) > 1 else "",
                        is_err=name != job.stdout,
                    )
        return list(found.values())

    def files(self) -> list[LogFile]:
        return [file for file in self.paths() if file.path.is_file()]

    def look(self) -> list[Status]:
        if time.monotonic() >= self._next or self._is_silent(time.monotonic()):
            self._ask()
            wait = SLURM_EVERY * random.uniform(0.9, 1.1)
            if any(each.verdict.state in ("COMPLETING", "CONFIGURING") for each in self._statuses):
                wait = SLURM_SOON
            self._asked.append(time.monotonic())
            self._next = self._asked[-1] + wait
        found: list[Status] = []
        for status in self._statuses:
            state = (status.verdict.state, status.verdict.reason)
            if self._shown.get(status.job_id) != state:
                self._shown[status.job_id] = state
                found.append(status)
        return found

    def _is_silent(self, now: float) -> bool:
        """Tell whether the job may be over: it has said nothing for long, since Slurm was asked."""
        silence = now - self._heard_at
        may_ask = len(self._asked) < ASKED_A_MINUTE or now - self._asked[0] > 60
        long = max(SILENT_AFTER, SILENT_FACTOR * self._longest_silence)
        return may_ask and self._heard_at > self._asked[-1] and silence > long

    def heard(self, file: LogFile, data: bytes | None) -> None:
        now = time.monotonic()
        self._longest_silence = max(self._longest_silence, now - self._heard_at)
        self._heard_at = now
        if data is None or any(words in data for words in _LAST_WORDS):
            self._next = min(self._next, max(now + 0.5, self._asked[-1] + SLURM_SOON))

    def settle(self, sleep: Callable[[float], None]) -> None:
        sleep(0.5)

    def attempt_line(self, file: LogFile) -> str:
        job = next((job for job in self.outputs if job.job_id == file.job_id), None)
        where = f" on {job.nodes}" if job is not None and job.nodes else ""
        return f"attempt {file.attempt or 0}{where}: Slurm has started the job again"

    def _ask(self) -> None:
        try:
            outputs = scheduler.job_outputs(self.transport, self._job_id)
            if outputs:
                self.outputs = outputs
                self._statuses = [_foreign(job) for job in outputs]
            else:
                self._statuses = foreign_status(self._context, self._job_id)
                known = {file.job_id for file in self.files()}
                lost = [each for each in _guessed(self._statuses) if each.job_id not in known]
                self.outputs = [*self.outputs, *lost]
        except OutOfReach as error:
            verdict = Verdict(state=UNKNOWN, final=False, source="scontrol", reason=error.message)
            self._statuses = [
                each if each.verdict.final else structs.replace(each, verdict=verdict)
                for each in self._statuses
            ]
        except InputError:
            reason = "Slurm has forgotten the job: how it ended is not known"
            gone = Verdict(state=UNKNOWN, final=True, source="scontrol", reason=reason)
            self._statuses = [
                each if each.verdict.final else structs.replace(each, verdict=gone)
                for each in self._statuses
            ]


def _foreign(job: JobOutput) -> ForeignStatus:
    final = is_final(job.state)
    verdict = Verdict(
        state=job.state,
        final=final,
        source="scontrol",
        reason=job.reason,
        exit_code=job.exit_code if final else None,
    )
    return ForeignStatus(job_id=job.job_id, verdict=verdict, queue=None, account=None)


def _tasks_of(job: JobOutput) -> list[JobOutput]:
    """Of what waits of an array, the tasks that begin next: their files may come at any time."""
    if not job.task.startswith("["):
        return [job]
    numbers: list[int] = []
    for piece in job.task.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", piece)
        if match:
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            numbers += range(first, min(last + 1, first + NEXT_TASKS * step), max(1, step))
    array = job.job_id.partition("_")[0]
    return [
        structs.replace(
            job,
            job_id=f"{array}_{number}",
            stdout=job.stdout.replace(_NO_TASK, str(number)),
            stderr=job.stderr.replace(_NO_TASK, str(number)),
        )
        for number in numbers[:NEXT_TASKS]
        if _NO_TASK in job.stdout
    ]


def _filled(path: str, nodes: str) -> str:
    """Fill what Slurm leaves open in a file's name until a node opens it: %N %n %t %s.

    A batch script is task 0 on the first node (sbatch(1), filename pattern).
    """
    if not re.search(r"%[0-9]*[Nnts]", path):
        return path
    path = re.sub(r"%([0-9]*)[nt]", lambda found: "0".zfill(int(found[1] or 0)), path)
    path = re.sub(r"%[0-9]*s", "batch", path)
    host = ""
    with suppress(InputError):
        host = expand(nodes)[0] if nodes else ""
    likely = Path(re.sub(r"%[0-9]*N", host or "%N", path))
    if likely.exists():
        return str(likely)
    # A node may have another name than its host.
    pattern = re.sub(r"%[0-9]*N", "*", glob.escape(Path(path).name))
    found = list(likely.parent.glob(pattern)) if likely.parent.is_dir() else []
    return str(found[0] if len(found) == 1 else likely)


def _guessed(statuses: Sequence[ForeignStatus]) -> list[JobOutput]:
    """Slurm has forgotten where the output went: look where sbatch puts it by default."""
    found = []
    for status in statuses:
        folder = status.account.work_dir if status.account is not None else ""
        path = Path(folder) / f"slurm-{status.job_id}.out"
        if folder and path.is_file():
            found.append(
                JobOutput(
                    job_id=status.job_id, state=status.verdict.state, reason="", exit_code=None,
                    restarts=0, nodes="", stdout=str(path), stderr=str(path),
                )
            )  # fmt: skip
    return found
