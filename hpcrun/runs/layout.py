"""The layout of the run directory: all file names in it, and its creation."""

from __future__ import annotations

import contextlib
import os
import re
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from stat import S_IMODE

from msgspec import Struct

from hpcrun.errors import InputError

# Run ids consist of the time (UTC), the job's name, and four characters for the fraction of the
# second and a random number. The characters are in ASCII order, so ids sort by time.
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
RUN_ID = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._+-]+-[0-9a-z]{4}")
# Values of variables that are not recorded; the file is removed when the run ends.
SECRETS = "secrets.env"
# The response of sbatch, in the directory of a run, or of a sweep for all its runs.
SUBMITTED = "submitted.json"
# In the directory of a run, or of a sweep, that is a stage of a pipeline.
PIPELINE = "pipeline.json"
# In the directory of a training whose checkpoints are evaluated, and of each evaluation.
EVALUATIONS = "evaluations.json"
# A directory with one of these entries was created by a submission, possibly an interrupted one,
# because one of them is created first.
OWN_FILES = frozenset({"attempts", "plan.json", "job.sbatch", "sweep.json", SUBMITTED})
# The suffix of the directory of a sweep's array, whose name begins with the sweep's id.
ARRAY = ".array"
# The id of a sweep's task is head, index, tail; the id of its sweep is head and tail.
TASK_ID = re.compile(r"(.+)\.(\d+)(-[0-9a-z]{4})")


def make_run_id(name: str, stamp: str, fraction: float, chance: int) -> str:
    """Create a run id from a UTC stamp, the fraction of its second, a job name and a random number.

    Two of the last four characters order the runs of one second; the other two are random.

    >>> make_run_id("it's a test", "20261120-081455", 0.5, 123456)
    '20261120-081455-it-s-a-test-hhgg'
    """
    slug = re.sub(r"[^A-Za-z0-9._+]+", "-", name).strip("-.")[:40] or "job"
    base = len(_ALPHABET)
    number = int(fraction * base**2) * base**2 + chance % base**2
    tail = ""
    for _ in range(4):
        number, digit = divmod(number, base)
        tail = _ALPHABET[digit] + tail
    return f"{stamp}-{slug}-{tail}"


def task_run_id(sweep_id: str, index: int | str) -> str:
    """Create the run id of a sweep's task, which sorts next to the other tasks in a listing.

    >>> task_run_id("20261120-081455-lr-7k3q", 3)
    '20261120-081455-lr.3-7k3q'
    """
    head, _, tail = sweep_id.rpartition("-")
    return f"{head}.{index}-{tail}"


def sweep_folder_name(run_id: str) -> str:
    """Return the name of the sweep's directory for a task's run id; "" for other names.

    >>> sweep_folder_name("20261120-081455-lr.3-7k3q"), sweep_folder_name("20261120-081455-lr-7k3q")
    ('20261120-081455-lr-7k3q.array', '')
    """
    match = TASK_ID.fullmatch(run_id)
    return f"{match[1]}{match[3]}{ARRAY}" if match else ""


def parse_creation_time(run_id: str) -> float:
    """Return the creation time in a run id, in seconds since the epoch.

    Raises:
        ValueError: The id contains no valid date.

    >>> parse_creation_time("20261120-081455-zero2-4gpu-7k3q")
    1795162495.0
    """
    date = int(run_id[:4]), int(run_id[4:6]), int(run_id[6:8])
    time = int(run_id[9:11]), int(run_id[11:13]), int(run_id[13:15])
    return datetime(*date, *time, tzinfo=timezone.utc).timestamp()


class RunPath:
    """A descriptor for a path below the path of a RunFolder or SweepFolder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder | SweepFolder, owner: type) -> Path:
        return folder.path / self.name


class RunFolder(Struct, frozen=True):
    """The paths in a run's directory, with the only writer of each in a comment."""

    path: Path

    # Written by submit. For a run of a sweep, code/ and submitted.json are in the sweep's
    # directory.
    code = RunPath("code")
    plan = RunPath("plan.json")
    script = RunPath("job.sbatch")
    task = RunPath("task.json")
    search = RunPath("search.json")
    # Written by the job of a trial whose values a search has drawn.
    trial = RunPath("trial.json")
    submitted = RunPath(SUBMITTED)
    pipeline = RunPath(PIPELINE)
    pipeline_whole = RunPath("pipeline-whole.json")  # all stages of the pipeline were submitted
    evaluations = RunPath("evaluations")  # templates and claims of evaluations
    evaluations_refused = RunPath("evaluations-refused.json")
    evaluations_remaining = RunPath("evaluations-remaining.json")
    evaluations_cancelled = RunPath("evaluations-cancelled.json")
    # Written on a cluster behind ssh when sbatch has accepted the job (remote/far.py).
    answered = RunPath("answered.json")
    secrets = RunPath(SECRETS)  # mode 0600
    notify = RunPath("notify.json")  # mode 0600; URLs of webhooks
    secret_marks = RunPath("secret_marks.json")  # mode 0600; digests only, see secrets/mask.py
    # Written by the job: attempts/N/{begin.json,beat,hostfile,failures/,end.json,stall.json,
    # pace.json,stacks/} logs/N/{rank-R,node-K}.log logs/flight-R
    attempts = RunPath("attempts")
    logs = RunPath("logs")
    # Written by each node: usage/N/node-K
    usage = RunPath("usage")
    # Written by Slurm.
    batch_log = RunPath("logs/batch.log")
    # Links to the output of the user's own sbatch script, written by the job.
    batch_err = RunPath("logs/batch.err")
    # Written by submit for the user's own sbatch script: its name, arguments and text.
    batch_script = RunPath("script.json")
    # Written by cancel.
    cancelled = RunPath("cancelled.json")
    # Caches written by readers.
    seen = RunPath("cache/seen.json")
    why = RunPath("cache/why.json")
    account = RunPath("cache/account.json")
    looks = RunPath("cache/looks.json")  # written by top
    # Written by submit for a run on another machine: digests of the records that were sent there.
    as_submitted = RunPath("cache/as-submitted.json")
    submitted_from = RunPath("cache/submitted-from.json")
    # Written in the earlier run by resubmit and by submit --after: NEW_RUN.json for each run that
    # uses this run's checkpoints. resubmit also writes resubmitted.json in the new run.
    successors = RunPath("successors")

    @property
    def run_id(self) -> str:
        return self.path.name

    def for_role(self, role: str) -> RunFolder:
        """Return the directory of a role, which is laid out as that of a run; "": the main role."""
        return RunFolder(self.path / "roles" / role) if role else self

    def samples_of(self, log: Path) -> Path:
        """Return the file for values cached from a log, for a run in the mirror."""
        return self.path / "cache" / f"samples-{log.parent.name}-{log.stem}"


class SweepFolder(Struct, frozen=True):
    """The paths in the directory of a sweep's array, beside its runs; the WorkDir of all tasks."""

    path: Path

    # Written by submit.
    record = RunPath("sweep.json")
    notify = RunPath("notify.json")  # as in a run
    code = RunPath("code")
    submitted = RunPath(SUBMITTED)
    pipeline = RunPath(PIPELINE)
    pipeline_whole = RunPath("pipeline-whole.json")  # all stages of the pipeline were submitted
    answered = RunPath("answered.json")  # as in a run
    # A cache of the sweep's end, written by readers.
    seen = RunPath("cache/seen.json")

    @property
    def sweep_id(self) -> str:
        return self.path.name.removesuffix(ARRAY)

    def run(self, index: int) -> RunFolder:
        return RunFolder(self.path.parent / task_run_id(self.sweep_id, index))


def sweep_folder(runs_dir: Path, sweep_id: str) -> SweepFolder:
    """Return the directory of a sweep.

    >>> sweep_folder(Path("/runs"), "20261120-081455-lr-7k3q").path.name
    '20261120-081455-lr-7k3q.array'
    """
    return SweepFolder(runs_dir / f"{sweep_id}{ARRAY}")


def parse_sweep_id(name: str) -> str | None:
    """Return the sweep's id for the name of its directory; None for any other name.

    >>> parse_sweep_id("20261120-081455-lr-7k3q.array"), parse_sweep_id("20261120-081455-lr-7k3q")
    ('20261120-081455-lr-7k3q', None)
    """
    sweep_id = name.removesuffix(ARRAY)
    return sweep_id if sweep_id != name and RUN_ID.fullmatch(sweep_id) else None


# ---- creation


def create_run_folder(path: Path, *, is_array: bool = False) -> RunFolder:
    """Create the directory of a new run, or of a sweep's array, with its empty subdirectories.

    Modes are set explicitly, because the job executes files of the directory and nobody else may
    write there: neither the umask, which the job inherits, nor a default ACL may change them.

    Raises:
        InputError: The directory cannot be created.
    """
    folder = RunFolder(path)
    umask = os.umask(0o077)
    os.umask(umask | 0o022)
    try:
        path.mkdir(0o755, parents=True)
        if not is_array:
            folder.attempts.mkdir(0o755)
            folder.logs.mkdir(0o755)
    except OSError as error:
        what = "cannot make the sweep's folder" if is_array else "cannot make the run folder"
        raise InputError(
            f"{error.filename or path}: {what}: {error.strerror}",
            fix="set runs_dir in hpcrun.yaml to a folder that you can write to and that all "
            "nodes can see",
        ) from error
    finally:
        os.umask(umask)
    return folder


def expire_nfs_caches(run: RunFolder) -> None:
    """Make an NFS client revalidate its cached attributes (acdirmax) by setting the modes again."""
    inner = (parent.glob("[0-9]*") for parent in (run.attempts, run.logs))
    for folder in chain((run.path, run.attempts, run.logs), chain.from_iterable(inner)):
        with contextlib.suppress(OSError):
            folder.chmod(S_IMODE(folder.stat().st_mode))
