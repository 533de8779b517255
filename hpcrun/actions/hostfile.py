"""Find the hosts for a hostfile: from a node list, a job or another hostfile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from stat import S_ISDIR

from msgspec import Struct, structs

from hpcrun.context import Context, read_text, slurm_transport
from hpcrun.errors import InputError
from hpcrun.files import write_atomically
from hpcrun.monitor import (
    copied_run_error,
    find_run_or_sweep,
    require_single_run,
    unknown_run_error,
)
from hpcrun.render import Form, Host, parse_hostfile
from hpcrun.runs import RUN_ID, read_history
from hpcrun.slurm import client, expand_hosts, is_final
from hpcrun.text import is_whole_number

_JOB = re.compile(r"[0-9]+(_[0-9]+)?(\+[0-9]+)?")
# A word that looks like a path is reported as a missing file instead of being treated as a host.
_LIKE_A_FILE = re.compile(
    r"(host|machine)s?(file)?|.*/.*|.*\.(txt|hosts?|hostfile|machines?|conf|ya?ml)"
)


class FoundHosts(Struct, frozen=True):
    """Hosts and their source; ``note`` is a remark for the user."""

    source: str
    hosts: list[Host]
    note: str = ""


def find_hosts(
    context: Context, word: str | None, form: Form | None, slots: int | None
) -> FoundHosts:
    """Find the hosts that a word names.

    A number is a Slurm job id, a run id its job, a file a hostfile, everything else a node list;
    None is the job in which hpcrun runs.

    Args:
        form: The format of a hostfile.
        slots: Overrides the number of slots of each host.

    Raises:
        InputError: The word names no hosts.
        OutOfReach: Slurm does not respond.
    """
    if word is None:
        word = context.environ.get("SLURM_JOB_ID")
        if word is None:
            raise InputError(
                "no hosts given, and this is not a Slurm job",
                fix="give a node list, a job or a hostfile: hpcrun hostfile 'node[01-04]'",
            )
    if not word:
        raise InputError("no hosts are named", fix="name some, as in node[01-04,07]")
    is_job = _JOB.fullmatch(word) or RUN_ID.fullmatch(word)
    mode = None if is_job else _read_mode(context.cwd / word)
    if mode is not None and S_ISDIR(mode):
        raise InputError(f"{word}: a folder", fix="name a hostfile in it")
    if is_job:
        found = _find_job_hosts(context, word)
    elif mode is not None:
        found = FoundHosts(word, parse_hostfile(read_text(context.cwd / word), word, form))
    elif _LIKE_A_FILE.fullmatch(word):
        raise InputError(f"{word}: no such file", fix="name a hostfile, a job, or a node list")
    else:
        found = FoundHosts(word, [Host(name) for name in expand_hosts(word)])
    hosts = [Host(host.name, host.slots if slots is None else slots) for host in found.hosts]
    return structs.replace(found, hosts=hosts)


def _read_mode(path: Path) -> int | None:
    """Return the mode of a file; None if it does not exist or its name is too long."""
    try:
        return path.stat().st_mode
    except PermissionError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except OSError:
        return None


def _find_job_hosts(context: Context, word: str) -> FoundHosts:
    """Query Slurm for the nodes of a job, by its id or that of its run."""
    job_id, conf = word, None
    is_name = "/" in word or RUN_ID.fullmatch(word) or is_whole_number(word)
    found = find_run_or_sweep(context.runs_dir, word) if is_name else None
    run = require_single_run(found, word) if found is not None else None
    history = read_history(run) if run is not None else None
    if history is not None and (error := copied_run_error(history, "hostfile")) is not None:
        raise error
    submitted = history.submitted if history is not None else None
    if run is not None and submitted is not None:
        if submitted.job_id is None:
            raise InputError(
                f"{run.run_id}: it ran without Slurm",
                fix=f"its hosts are in {run.attempts}/0/hostfile",
            )
        job_id, conf = submitted.job_id, submitted.slurm_conf
    elif RUN_ID.fullmatch(word):
        raise unknown_run_error(context, word)
    transport = slurm_transport(context, conf)
    jobs = client.show_jobs(transport, job_id) or client.query_accounting(transport, [job_id])
    if not jobs:
        raise InputError(
            f"{job_id}: Slurm knows no such job",
            fix="squeue --me lists yours; name a host of digits alone as [8]",
        )
    if len(jobs) > 1:
        listed = ", ".join(job.job_id for job in jobs[:4]) + (" ..." if len(jobs) > 4 else "")
        raise InputError(f"{job_id}: that is {len(jobs)} jobs", fix=f"name one: {listed}")
    job = jobs[0]
    if not job.hosts:
        why = f"{job.state}, {job.reason}" if job.reason not in ("", "None") else job.state
        raise InputError(
            f"job {job.job_id} has had no nodes ({why})"
            if is_final(job.state)
            else f"job {job.job_id} has no nodes yet ({why})",
            fix="" if is_final(job.state) else "try again when it runs: hpcrun status",
        )
    slots: Sequence[int | None] = job.slots or [None] * len(job.hosts)
    hosts = [Host(name, count) for name, count in zip(job.hosts, slots, strict=True)]
    ended = f"job {job.job_id} has ended ({job.state}): these were its nodes"
    return FoundHosts(f"job {job.job_id}", hosts, ended if is_final(job.state) else "")


def write_hostfile(context: Context, name: str, text: str) -> None:
    """Write a hostfile atomically. Raises InputError."""
    mode = _read_mode(context.cwd / name)
    if mode is not None and S_ISDIR(mode):
        raise InputError(f"{name}: a folder", fix=f"-o {Path(name) / 'hostfile'}")
    with write_atomically(context.cwd / name) as file:
        file.write(text.encode())
