"""What is followed where hpcrun did not submit it: a Slurm job, or all tasks of an array.

Never changes or cancels anything.
"""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.state.foreign import ForeignStatus, ask_foreign, unknown_job
from hpcrun.controller.watch.watched_jobs import Told, WatchedJobs
from hpcrun.errors import InputError
from hpcrun.logs.files import LogFile
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.nodelist import expand
from hpcrun.slurm.states import is_final, parse_exit_code

# Such a job tells its end by silence at most: by one that is longer than those before, and so many
# questions a minute are enough.
SILENT_AFTER = 3.0
SILENT_FACTOR = 3.0
ASKED_A_MINUTE = 4
# After words that an end has, and so long after the last question at least, Slurm is asked; and
# when it says that all is over, last lines may still come from a node. In seconds.
SOON = 5.0
LATE = 0.5
# Of an array's tasks that wait, so many are looked out for; in names of files Slurm writes this
# number (NO_VAL) where theirs is going to be.
NEXT_TASKS = 64
_NO_TASK = "4294967294"
_LAST_WORDS = (b"slurmstepd: error: ***", b"srun: Job step aborted", b"Terminated")


class WatchedJob(WatchedJobs):
    """A job that hpcrun did not submit, or all tasks of an array, with the files of its output."""

    def __init__(self, context: Context, job_id: str) -> None:
        """Ask Slurm for the job. Raises InputError where it knows none, OutOfReach."""
        super().__init__(context, [job_id])
        self.outputs: list[SlurmJob] = []
        self._over_at = 0.0
        self._longest_silence = 0.0
        self._heard_at = self._asked_at = time.monotonic()
        self._jobs[job_id] = [*self._tell(context, [job_id], ended=True)[job_id]]
        if not self._jobs[job_id]:
            raise unknown_job(job_id)
        self._known |= {status.job_id: status for status in self._jobs[job_id]}
        self._is_first = False
        self._pace.hurry()
        self._pace.asked(self._asked_at)

    def _tell(self, context: Context, job_ids: Sequence[str], *, ended: bool) -> Told:
        """Ask for states and files at once; where Slurm has forgotten these, for the states."""
        (job_id,) = job_ids
        self._asked_at = time.monotonic()
        outputs = scheduler.show_jobs(slurm_transport(context), job_id)
        if outputs:
            self.outputs = outputs
            return {job_id: [_foreign(job) for job in outputs]}
        told = ask_foreign(context, job_ids, ended=True)
        known = {file.job_id for file in self.files()}
        self.outputs += [each for each in _guessed(told[job_id]) if each.job_id not in known]
        return told

    def paths(self) -> list[LogFile]:
        """Where the output goes, whether something is there yet or not."""
        found: dict[str, LogFile] = {}
        jobs = [each for job in self.outputs for each in _tasks_of(job)]
        jobs.sort(key=lambda job: int(job.task) if job.task.isdigit() else -1)
        for job in jobs:
            for name in job.outputs:
                path = _filled(name, job.node_list)
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

    def heard(self, file: LogFile, data: bytes | None) -> None:
        now = time.monotonic()
        self._longest_silence = max(self._longest_silence, now - self._heard_at)
        self._heard_at = now
        if data is None or any(words in data for words in _LAST_WORDS):
            self._pace.news(max(now, self._asked_at + SOON))

    def attempt_line(self, file: LogFile) -> str:
        job = next((job for job in self.outputs if job.job_id == file.job_id), None)
        where = f" on {job.node_list}" if job is not None and job.node_list else ""
        return f"attempt {file.attempt or 0}{where}: Slurm has started the job again"

    def _look_around(self, now: float) -> None:
        """The job may be over where it has said nothing for long, since Slurm was asked."""
        silence = now - self._heard_at
        long = max(SILENT_AFTER, SILENT_FACTOR * self._longest_silence)
        may_ask = self._pace.asked_lately(now) < ASKED_A_MINUTE
        if may_ask and self._heard_at > self._asked_at and silence > long:
            self._pace.news(now)

    def _is_settled(self, name: str, now: float) -> bool:
        """Its last lines may be on their way from the node."""
        self._over_at = self._over_at or now
        return now >= self._over_at + LATE


def _foreign(job: SlurmJob) -> ForeignStatus:
    final = is_final(job.state)
    verdict = Verdict(
        state=job.state,
        final=final,
        source="scontrol",
        reason="" if job.reason in ("None", "NonZeroExitCode") else job.reason,
        exit_code=parse_exit_code(job.exit_code) if final else None,
    )
    return ForeignStatus(job_id=job.job_id, verdict=verdict, queue=None, account=None)


def _tasks_of(job: SlurmJob) -> list[SlurmJob]:
    """Of what waits of an array, the tasks that begin next: their files may come at any time."""
    if not job.task.startswith("["):
        return [job]
    numbers: list[int] = []
    for piece in job.task.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", piece)
        if match:
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            numbers += range(first, min(last + 1, first + NEXT_TASKS * step), max(1, step))
    return [
        structs.replace(
            job,
            job_id=f"{job.array}_{number}",
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


def _guessed(statuses: Sequence[ForeignStatus]) -> list[SlurmJob]:
    """Slurm has forgotten where the output went: look where sbatch puts it by default."""
    found = []
    for status in statuses:
        folder = status.account.work_dir if status.account is not None else ""
        path = Path(folder) / f"slurm-{status.job_id}.out"
        if folder and path.is_file():
            found.append(
                SlurmJob(
                    job_id=status.job_id,
                    source="sacct",
                    state=status.verdict.state,
                    stdout=str(path),
                    stderr=str(path),
                )
            )
    return found
