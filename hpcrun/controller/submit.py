"""Submits a prepared run: folder, code, sbatch. The first effect of all.

Effects: files, sbatch.
"""

from __future__ import annotations

import contextlib
import getpass
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, job_environment, slurm_transport
from hpcrun.controller.prepare import Prepared
from hpcrun.errors import InputError, OutOfReach
from hpcrun.render.quoting import quote_bash
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Submitted
from hpcrun.runs.snapshot import take_snapshot
from hpcrun.runs.store import create_run_folder, write_file, write_record

# The reference trainer: a program of its own, copied into the run, never imported.
REFERENCE = Path(__file__).parent.parent / "workloads" / "reference"


class Submission(Struct, frozen=True):
    """A run that Slurm took."""

    run: RunFolder
    job_id: str


def write_run(context: Context, prepared: Prepared) -> RunFolder:
    """Make the run folder with everything that the job gets.

    Whole or not at all: whatever goes wrong, Ctrl-C included, the folder is taken away again.
    Raises InputError.
    """
    plan = prepared.plan
    missing = [name for name in plan.secrets if name not in context.environ]
    if missing:
        raise InputError(
            f"secrets: {', '.join(missing)}: not set in your environment",
            fix=f"export {missing[0]}=... and submit again",
        )
    run = create_run_folder(Path(plan.run_dir))
    try:
        for file in prepared.files:
            write_file(run.path / file.name, file.text.encode("utf-8", "surrogateescape"))
        if plan.reference_trainer:
            run.code.mkdir()
            for source in REFERENCE.glob("*.py"):
                shutil.copy2(source, run.code)
        elif plan.snapshot:
            take_snapshot(context.project, run.code, leave_out=context.runs_dir)
            _check_copied(prepared, run)
        if plan.secrets:
            lines = [f"export {n}={quote_bash(context.environ[n])}\n" for n in plan.secrets]
            write_file(run.secrets, "".join(lines).encode("utf-8", "surrogateescape"), mode=0o600)
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


def _check_copied(prepared: Prepared, run: RunFolder) -> None:
    """Git may ignore the very script that is to run."""
    script = prepared.spec.script
    path = prepared.plan.program[1] if script is not None else ""
    if path.startswith(f"{run.code}/") and not Path(path).exists():
        raise InputError(
            f"script: {script}: git ignores it, so it is not in the run's copy of the code",
            fix="take it out of .gitignore, or say snapshot: false to run the code in place",
        )


def submit(context: Context, prepared: Prepared) -> Submission:
    """Write the run and hand it to Slurm with one sbatch.

    Raises SchedulerRefused (the run folder is taken away again), and OutOfReach when it stays
    unknown whether Slurm took the job (the folder stays: ``hpcrun status`` settles it later).
    """
    run = write_run(context, prepared)
    env = job_environment(context)
    directives = dict(prepared.plan.directives)
    for option in ("account", "partition", "qos", "constraint", "reservation"):
        # The user's own default: sbatch would let it win over a directive, so only without one.
        name = f"SBATCH_{option.upper()}"
        if option not in directives and name in context.environ:
            env[name] = context.environ[name]
    for name in prepared.plan.secrets:
        env.pop(name, None)
    transport = slurm_transport(context)
    record = submitted_record(context, None)
    with _signals_wait():
        try:
            job_id = scheduler.submit(transport, str(run.path), env)
        except OutOfReach as error:
            if not error.maybe_done:
                shutil.rmtree(run.path, ignore_errors=True)
                raise
            raise OutOfReach(
                error.message,
                fix=f"it may have taken the job all the same: hpcrun status {run.run_id} will tell",
                maybe_done=True,
            ) from error
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        record = structs.replace(record, job_id=job_id, submitted_at=time.time())
        write_record(run.submitted, record)
    return Submission(run, job_id)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold Ctrl-C and a dropped line back until Slurm's answer is recorded.

    Else a job could run that nobody knows.
    """
    caught: list[int] = []
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, lambda number, frame: caught.append(number))
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
    for one in caught:
        signal.raise_signal(one)


def submitted_record(context: Context, job_id: str | None) -> Submitted:
    """Say who took the run, when and from where."""
    return Submitted(
        job_id=job_id,
        cluster=context.cluster.name,
        slurm_conf=slurm_transport(context).env.get("SLURM_CONF"),
        submitted_at=time.time(),
        host=socket.gethostname(),
        user=getpass.getuser(),
    )
