"""What the batch script needs to know before it starts the ranks, and at Slurm's warning."""

import os
import sys
import time
from typing import Mapping, Tuple

from hpcrun.jobside.records import write_record
from hpcrun.jobside.slurm import Job, is_preempted, parse_time

# Assumed if Slurm does not tell how much time is left.
UNKNOWN_LEFT_S = 60


def _say(line: str) -> None:
    sys.stderr.buffer.write(os.fsencode(line + "\n"))
    sys.stderr.buffer.flush()


def prepare(environ: Mapping[str, str]) -> Tuple[str, str]:
    """Record the checkpoint from which the ranks resume.

    Returns its path, and for how many seconds the ranks may save after a request to end; each is ""
    if there is none.
    """
    job = Job(environ, _say)
    newest = _find_checkpoint(job)
    write_record(job.path("resume"), newest)
    write_record(job.path("mark"), _mark_of(newest) if newest else "")
    saves = job.is_slurm and (environ.get("HPCRUN_SURVIVE") or environ.get("HPCRUN_SAVES"))
    return newest, str(job.grace()) if saves else ""


def _find_checkpoint(job: Job) -> str:
    folder = job.environ.get("HPCRUN_CHECKPOINT_DIR", "")
    if not os.path.isdir(folder):
        return ""
    from hpcrun.jobside.checkpoints import newest_checkpoint  # deferred: slow to load

    world = int(job.environ.get("HPCRUN_WORLD_SIZE") or 1)
    newest = newest_checkpoint(folder, world, job.environ.get("HPCRUN_CHECKPOINT_MARKER", ""), _say)
    if newest:
        job.say("hpcrun: there is a checkpoint to go on from: {}".format(newest))
    elif job.attempt > 0 and _has_files(folder):
        job.say(
            "hpcrun: what lies in {} is no whole checkpoint of a form known to hpcrun:"
            " checkpoint.marker names the last file that a script writes".format(folder)
        )
    return newest


def _mark_of(checkpoint: str) -> str:
    from hpcrun.jobside.checkpoints import mark_of  # deferred: slow to load

    return mark_of(checkpoint)


def _has_files(folder: str) -> bool:
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                if os.path.getsize(os.path.join(root, name)):
                    return True
            except OSError:
                continue
    return False


def time_left(environ: Mapping[str, str]) -> Tuple[str, int]:
    """Return why Slurm has sent its warning, and in how many seconds it ends the job.

    Some sites configure the warning for preemptions (send_user_signal); the ranks are not informed
    until the grace time ends.
    """
    job = Job(environ, _say)
    shown = job.show()
    at = parse_time(shown.get("EndTime", ""))
    left = UNKNOWN_LEFT_S if at is None else int(at - time.time())
    return "preempted" if is_preempted(shown) else "time_limit", left
