"""Finds the output files of a job that hpcrun did not submit, and detects when it ends."""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from hpcrun.context import Context, slurm_transport
from hpcrun.errors import OutOfReach
from hpcrun.logs import LogFile
from hpcrun.monitor.poll import QueryPace, WatchedSlurmJobs
from hpcrun.monitor.status import status_of_jobs
from hpcrun.runs import JobStatus, Verdict
from hpcrun.slurm import (
    SlurmJob,
    client,
    expand_known_hosts,
    is_final,
    parse_exit_code,
    parse_task_numbers,
)

# The job may have ended if it printed its last lines, or if it has been silent for SILENT_FACTOR
# times its longest silence and for MIN_SILENCE_S. It is then queried, at the earliest
# MIN_QUERY_GAP_S after the last query.
MIN_SILENCE_S, SILENT_FACTOR = 3.0, 3.0
MIN_QUERY_GAP_S = 5.0
_LAST_LINES = (b"slurmstepd: error: ***", b"srun: Job step aborted", b"Terminated")
# How late the last lines may arrive from the nodes, in seconds.
MAX_LINE_DELAY_S = 0.5
# Output of a remote cluster is fetched at this interval in seconds, and after a pause of this
# multiple of the duration of the fetch.
TRIP_EVERY, TRIP_PAUSE = 0.5, 4
# Stands for files that do not exist yet; a path on the cluster must not be looked up on this
# machine.
_NOWHERE = Path("/dev/null")
# How many pending tasks of an array have their files looked up. In file names Slurm writes NO_VAL
# in place of the task number.
MAX_PENDING_TASKS = 64
_NO_TASK = "4294967294"
# The largest width of a number in a file name (sbatch.1, filename pattern).
_MAX_WIDTH = 10


class JobOutput(WatchedSlurmJobs):
    """One job, or the tasks of an array, whose output is read; silence may mean that it ended.

    Only scontrol shows the output files; it shows the state, too.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__([job_id])
        self.jobs: list[SlurmJob] = []
        # Why files cannot be read, by their paths on the cluster.
        self.faults: dict[str, str] = {}
        self._context: Context | None = None
        self._places: dict[str, Path] = {}  # local copies of files of a remote cluster
        self._fetched_at = 0.0
        self._longest_silence = 0.0
        self._written_at = time.monotonic()
        self._may_be_over = False

    def files(self) -> list[LogFile]:
        """List the output files, whether they exist yet or not."""
        found: dict[str, LogFile] = {}
        jobs = [each for job in self.jobs for each in _expand_pending_tasks(job)]
        jobs.sort(key=lambda job: int(job.task) if job.task.isdecimal() else -1)
        for job in jobs:
            for name in dict.fromkeys((job.stdout, job.stderr)):
                is_here = self._context is None or self._context.cluster.host is None
                path = _expand_filename(name, job, is_here=is_here)
                if path and path not in found and path != "/dev/null":
                    place = Path(path) if is_here else self._places.get(path, _NOWHERE / "none")
                    found[path] = LogFile(
                        place,
                        attempt=job.restarts,
                        job_id=job.job_id,
                        task=job.task if len(jobs) > 1 else "",
                        is_err=name != job.stdout,
                        there="" if is_here else path,
                    )
        return list(found.values())

    def record_output(self, data: bytes | None) -> None:
        """Record new lines; None means that a file was truncated."""
        now = time.monotonic()
        self._longest_silence = max(self._longest_silence, now - self._written_at)
        self._written_at = now
        self._may_be_over |= data is None or any(line in data for line in _LAST_LINES)

    def check_files(self, context: Context, pace: QueryPace) -> None:
        """Check whether the job may have ended since the last query, and fetch its output."""
        now = time.monotonic()
        if now >= pace.next_fetch and self.jobs:
            try:
                self._fetch_output(context)
                pace.fetch_error = ""
            except OutOfReach as error:
                pace.fetch_error = error.message
                if error.is_final:
                    raise
            took = time.monotonic() - now
            pace.next_fetch = now + took + max(TRIP_EVERY, TRIP_PAUSE * took)
        long = max(MIN_SILENCE_S, SILENT_FACTOR * self._longest_silence)
        is_silent = self._may_be_over or now - self._written_at > long
        if self._written_at > pace.last and is_silent:
            pace.request_query(now, apart=MIN_QUERY_GAP_S)

    def finish(self, status: JobStatus, since: float) -> JobStatus | None:
        if time.monotonic() < since + MAX_LINE_DELAY_S:
            return None
        if self._context is not None and self._fetched_at < since + MAX_LINE_DELAY_S:
            with suppress(OutOfReach):  # earlier output is shown
                self._fetch_output(self._context)
        return status

    def _fetch_output(self, context: Context) -> None:
        """Fetch new output from a remote cluster."""
        self._context = context
        if context.cluster.host is None:
            return
        self._fetched_at = time.monotonic()
        names = [file.there for file in self.files()]
        places, self.faults = context.transport().copy_outputs(names)
        self._places = dict(zip(names, places, strict=True))

    def _query_jobs(self, context: Context, job_ids: Sequence[str]) -> dict[str, list[JobStatus]]:
        (job_id,) = job_ids
        self._may_be_over = False
        jobs = client.show_jobs(slurm_transport(context), job_id)
        if jobs:
            self.jobs = jobs
            self._fetch_output(context)
            return {job_id: [_build_status(job) for job in jobs]}
        statuses = status_of_jobs(context, job_ids, ended=True)
        known = {job.job_id for job in self.jobs}
        for job in [status.job for status in statuses[job_id] if status.job is not None]:
            # Slurm has forgotten the output file: try sbatch's default path.
            path = str(Path(job.work_dir) / f"slurm-{job.job_id}.out")
            if job.job_id in known or not job.work_dir:
                continue
            (place,), _ = context.transport().copy_outputs([path])
            if place.is_file():
                self.jobs.append(structs.replace(job, stdout=path, stderr=path, node_list=""))
        self._fetch_output(context)
        return statuses

    def _note_silence(self, silence: OutOfReach, job_ids: Sequence[str]) -> None:
        if self._is_first:  # the output files are unknown
            raise silence
        super()._note_silence(silence, job_ids)


def _build_status(job: SlurmJob) -> JobStatus:
    """Build the status of a job from scontrol's answer."""
    final = is_final(job.state)
    reason = "" if job.reason in ("None", "NonZeroExitCode") else job.reason.split(" ")[0]
    verdict = Verdict(
        state=job.state,
        final=final,
        source="scontrol",
        reason=reason,
        exit_code=parse_exit_code(job.exit_code) if final else None,
    )
    return JobStatus.of_job(job.job_id, verdict, job)


def _expand_pending_tasks(job: SlurmJob) -> list[SlurmJob]:
    """Expand the pending tasks of an array that may start next."""
    if not job.task.startswith("["):
        return [job]
    return [
        structs.replace(
            job,
            job_id=f"{job.array}_{number}",
            stdout=job.stdout.replace(_NO_TASK, str(number)),
            stderr=job.stderr.replace(_NO_TASK, str(number)),
        )
        for number in parse_task_numbers(job.task.strip("[]"), MAX_PENDING_TASKS) or ()
        if _NO_TASK in job.stdout
    ]


def _expand_filename(path: str, job: SlurmJob, *, is_here: bool = True) -> str:
    """Fill the fields of a file name that scontrol prints unexpanded.

    These are the fields that the node fills in when it opens the file (%N %n %t %s %J), and, up to
    26.05, all fields with a width. A width pads numbers only, to at most 10 digits.

    ``is_here``: the file is on this machine, whose file system shows the node's name.

    >>> job = SlurmJob(job_id="7_3", source="", state="", number="9", user="ada", node_list="n1")
    >>> _expand_filename("/o/%8j-%4a-%10u-%3n-%J-%s.txt", job, is_here=False)
    '/o/00000009-0003-ada-000-9-batch.txt'
    """
    numbers = {"A": job.array, "J": job.number, "j": job.number, "n": "0", "t": "0"}
    numbers["a"] = job.task if job.task.isdecimal() else _NO_TASK
    texts = {"s": "batch", "u": job.user, "x": job.name}

    def fill(field: re.Match[str]) -> str:
        width, letter = min(int(field[1] or 0), _MAX_WIDTH), field[2]
        return texts[letter] if letter in texts else numbers[letter].zfill(width)

    path = re.sub(r"%([0-9]*)([ntsJ])", fill, path)
    path = re.sub(r"%([0-9]+)([Aajux])", fill, path)
    if not re.search(r"%[0-9]*N", path):
        return path
    host = next(iter(expand_known_hosts(job.node_list)), "%N")
    likely = Path(re.sub(r"%[0-9]*N", host, path))
    if not is_here or likely.exists():
        return str(likely)
    # NodeName and host name may differ.
    pattern = re.sub(r"%[0-9]*N", "*", glob.escape(Path(path).name))
    found = list(likely.parent.glob(pattern)) if likely.parent.is_dir() else []
    return str(found[0] if len(found) == 1 else likely)
