"""The run folder: every name in it, in one place; and how one is made."""

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

# Run ids: time (UTC), the job's name, four characters for the second's fraction and chance. These
# sort as text in the order of the digits that they stand for.
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
RUN_ID = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._+-]+-[0-9a-z]{4}")
# Values of variables that are not recorded; it goes when the run is over.
SECRETS = "secrets.env"
# What sbatch answered; in the folder of a run, or of a sweep for all its runs.
SUBMITTED = "submitted.json"
# A folder with one of these is from a submission, also from one that was killed: one is made before
# all else.
OWN_FILES = frozenset({"attempts", "plan.json", "job.sbatch", "sweep.json", SUBMITTED})
# The folder of a sweep's array is named after the sweep, whose id has the form of a run's.
ARRAY = ".array"
# The id of a sweep's task: head, number, tail; the sweep's own id is head and tail.
TASK_ID = re.compile(r"(.+)\.(\d+)(-[0-9a-z]{4})")


def make_run_id(name: str, stamp: str, fraction: float, chance: int) -> str:
    """Make a run id of a UTC stamp, the fraction of its second, a job name and a random number.

    Two of the last four characters order the runs of one second, two are random.

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
    """Name the run of a sweep's task, so that it stands beside the others in a listing.

    >>> task_run_id("20261120-081455-lr-7k3q", 3)
    '20261120-081455-lr.3-7k3q'
    """
    head, _, tail = sweep_id.rpartition("-")
    return f"{head}.{index}-{tail}"


def sweep_folder_name(run_id: str) -> str:
    """Name the folder of the sweep that a run would be of, by its id alone; "" for other names.

    >>> sweep_folder_name("20261120-081455-lr.3-7k3q"), sweep_folder_name("20261120-081455-lr-7k3q")
    ('20261120-081455-lr-7k3q.array', '')
    """
    match = TASK_ID.fullmatch(run_id)
    return f"{match[1]}{match[3]}{ARRAY}" if match else ""


def parse_creation_time(run_id: str) -> float:
    """Return when a run id was made, in seconds since the epoch. Raises ValueError for no date.

    >>> parse_creation_time("20261120-081455-zero2-4gpu-7k3q")
    1795162495.0
    """
    date = int(run_id[:4]), int(run_id[4:6]), int(run_id[6:8])
    time = int(run_id[9:11]), int(run_id[11:13]), int(run_id[13:15])
    return datetime(*date, *time, tzinfo=timezone.utc).timestamp()


class RunPath:
    """A file or folder below the path of another, as a property of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder | SweepFolder, owner: type) -> Path:
        return folder.path / self.name


class RunFolder(Struct, frozen=True):
    """Where everything of a run lies. Each file has one writer, named here."""

    path: Path

    # submit; of a run of a sweep code/ and submitted.json lie in the sweep's folder
    code = RunPath("code")
    plan = RunPath("plan.json")
    script = RunPath("job.sbatch")
    task = RunPath("task.json")
    submitted = RunPath(SUBMITTED)
    secrets = RunPath(SECRETS)  # 0600
    secret_marks = RunPath("secret_marks.json")  # 0600; no values: secrets/mask.py
    # the job: attempts/N/{begin.json,beat,hostfile,failures/,end.json,stall.json,
    # stacks/} logs/N/{rank-R,node-K}.log logs/flight-R
    attempts = RunPath("attempts")
    logs = RunPath("logs")
    # Slurm
    batch_log = RunPath("logs/batch.log")
    # cancel
    cancelled = RunPath("cancelled.json")
    # readers
    seen = RunPath("cache/seen.json")
    why = RunPath("cache/why.json")
    account = RunPath("cache/account.json")
    looks = RunPath("cache/looks.json")  # top
    # submit, where the run is another machine's: digests of the records that were sent there
    as_submitted = RunPath("cache/as-submitted.json")
    submitted_from = RunPath("cache/submitted-from.json")
    # resubmit, and submit --after, in the earlier run: NEW_RUN.json for each that uses this one's
    # checkpoints; resubmit also writes resubmitted.json in the new one
    successors = RunPath("successors")

    @property
    def run_id(self) -> str:
        return self.path.name

    def samples_of(self, log: Path) -> Path:
        """Name the file that has what readers found in a log, where the run is a mirror."""
        return self.path / "cache" / f"samples-{log.parent.name}-{log.stem}"


class SweepFolder(Struct, frozen=True):
    """Where the array of a sweep lies, beside its runs; it is the WorkDir of all tasks."""

    path: Path

    # submit
    record = RunPath("sweep.json")
    code = RunPath("code")
    submitted = RunPath(SUBMITTED)
    # readers, of its end
    seen = RunPath("cache/seen.json")

    @property
    def sweep_id(self) -> str:
        return self.path.name.removesuffix(ARRAY)

    def run(self, index: int) -> RunFolder:
        return RunFolder(self.path.parent / task_run_id(self.sweep_id, index))


def sweep_folder(runs_dir: Path, sweep_id: str) -> SweepFolder:
    """Name the folder of a sweep.

    >>> sweep_folder(Path("/runs"), "20261120-081455-lr-7k3q").path.name
    '20261120-081455-lr-7k3q.array'
    """
    return SweepFolder(runs_dir / f"{sweep_id}{ARRAY}")


def parse_sweep_id(name: str) -> str | None:
    """Read the sweep's id off the name of its folder; None for any other name.

    >>> parse_sweep_id("20261120-081455-lr-7k3q.array"), parse_sweep_id("20261120-081455-lr-7k3q")
    ('20261120-081455-lr-7k3q', None)
    """
    sweep_id = name.removesuffix(ARRAY)
    return sweep_id if sweep_id != name and RUN_ID.fullmatch(sweep_id) else None


# ---- making one


def create_run_folder(path: Path, *, is_array: bool = False) -> RunFolder:
    """Make a new run folder with its empty parts, or that of a sweep's array. Raises InputError.

    Nobody else can write there, whatever the umask, which the job inherits: it runs what is there.
    The modes are named, since a default ACL replaces the umask.
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
            fix="set runs_dir in hpcrun.yaml to a folder that you can write and the nodes can see",
        ) from error
    finally:
        os.umask(umask)
    return folder


def expire_nfs_caches(run: RunFolder) -> None:
    """Have an NFS client ask for what the nodes wrote (acdirmax): modes are set as they are."""
    inner = (parent.glob("[0-9]*") for parent in (run.attempts, run.logs))
    for folder in chain((run.path, run.attempts, run.logs), chain.from_iterable(inner)):
        with contextlib.suppress(OSError):
            folder.chmod(S_IMODE(folder.stat().st_mode))
