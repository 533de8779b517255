"""Submit a prepared run or sweep: create the directories, copy the code, and call sbatch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from stat import S_IMODE

from msgspec import Struct, structs

from hpcrun.actions.checks.checkpoints import refuse_shared_folders
from hpcrun.actions.cluster_host import find_local_path
from hpcrun.actions.notify import write_notify_config
from hpcrun.actions.prepare import Prepared
from hpcrun.context import Context, is_in_mirror, job_environment, slurm_transport
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.files import add_notice
from hpcrun.monitor import build_submitted_record, status_of
from hpcrun.plan import AFTER_VARIABLE, Plan, after_checkpoint_dir
from hpcrun.remote import RunCommand
from hpcrun.render import quote_bash
from hpcrun.runs import (
    SECRETS,
    SUBMITTED,
    RunFolder,
    Successor,
    create_run_folder,
    find_owner_run,
    read_record,
    remove_group_write,
    take_snapshot,
    write_file,
    write_record,
)
from hpcrun.secrets import mark_secrets
from hpcrun.signals import defer_signals
from hpcrun.slurm import SCRIPT, Estimate, client

# The reference trainer is a separate program: it is copied into the run and never imported.
REFERENCE = Path(__file__).parent.parent / "workloads" / "reference"
# These variables point into /run/user of the login node, which would make enroot fail (enroot#13).
VARIABLES_OF_THIS_LOGIN = (
    *("XDG_RUNTIME_DIR", "XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS"),
    *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"),
)

# Two notes within this many seconds may belong to two hpcruns that did not see each other.
_AT_ONCE = 120.0


def write_run(context: Context, made: Prepared, written: list[Path]) -> None:
    """Create the directory of a run, or of an array and its runs, with all files of the job.

    The directories are added to ``written``. Raises InputError.
    """
    check_secrets(context, made.plan)
    code = made.path / "code"
    for one in (made, *made.runs):
        # an existing directory of another run must not be removed on failure
        if not one.path.exists():
            written.append(one.path)
        run = create_run_folder(one.path, is_array=one.is_sweep)
        if one is made:
            mode = S_IMODE(run.path.stat().st_mode)
            # nobody may access a copy that still has the modes of the project
            run.path.chmod(0o700)
            write_code(context, made.plan, code)
            for name in made.code_folders:
                _create_empty_folder(code, name)
            remove_group_write(code)
            run.path.chmod(mode)
        _write_files(one)
        if context.cluster.host is not None:
            run.as_submitted.parent.mkdir(0o755, exist_ok=True)
            write_record(run.as_submitted, _digest_records(run))
            write_record(run.submitted_from, str(context.project))
        if not one.is_sweep:
            _check_copied(context, one, code, f"{made.folder}/code")
            write_secrets(context, one.plan, run)
        write_notify_config(context, made, one)
        for template in one.evaluations.values():
            _write_template(context, one, template)


def _write_files(made: Prepared) -> None:
    for file in made.files:
        if "/" in file.name:
            # see create_run_folder
            (made.path / file.name).parent.mkdir(0o755, parents=True, exist_ok=True)
        write_file(made.path / file.name, file.text.encode("utf-8", "surrogateescape"))


def _write_template(context: Context, training: Prepared, made: Prepared) -> None:
    """Write the files of the runs that evaluate the checkpoints of a training."""
    run = create_run_folder(made.path)
    _write_files(made)
    code, plan = RunFolder(training.path).code, made.plan
    if training.plan.reference_trainer or plan.reference_trainer or not code.is_dir():
        code = run.code
        write_code(context, plan, code)
        remove_group_write(code)
    _check_copied(context, made, code, f"{plan.run_dir}/code")
    write_secrets(context, plan, run)
    write_notify_config(context, made, made)


def _create_empty_folder(code: Path, name: str) -> None:
    """Create a directory in a copy of the code, with a file, because only files are uploaded."""
    path = code / name
    inside = [one for one in (path, *path.parents) if one.is_relative_to(code)]
    # A link of the project may point to a directory outside of the copy.
    if not path.exists() and not any(one.is_symlink() for one in inside):
        path.mkdir(parents=True)
        (path / ".gitkeep").touch()


# The records of an earlier run from which a new run is made.
_RECORDS = ("spec.yaml", "plan.json", "task.json", "sweep.json", "script.json")


def _digest_records(run: RunFolder) -> dict[str, str]:
    """Return the digests of a run's records."""
    files = [run.path / name for name in _RECORDS if (run.path / name).is_file()]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def verify_submitted_records(context: Context, path: Path) -> bool:
    """Return False for a run on a remote cluster that was not submitted from this machine.

    The records of a remote cluster are copied from there each time.

    Raises:
        InputError: The records differ from the submitted ones, which determine what a new run sends
            from this machine.
    """
    run = RunFolder(path)
    if not is_in_mirror(path, context.environ):
        return True
    known = read_record(run.as_submitted, dict[str, str])
    if known is None:
        return False
    now = _digest_records(run)
    if changed := [name for name in {**known, **now} if known.get(name) != now.get(name)]:
        raise InputError(
            f"{path.name}: {', '.join(changed)} on the cluster differs from what was "
            "submitted here",
            fix="hpcrun submit JOB submits your own job file again",
        )
    return True


def check_secrets(context: Context, plan: Plan) -> None:
    """Raise InputError if a secret has no value."""
    missing = [name for name in plan.secrets if name not in context.environ]
    if missing:
        raise InputError(
            f"secrets: {', '.join(missing)}: not set in your environment",
            fix=f"export {missing[0]}=... and submit again",
        )


def write_code(context: Context, plan: Plan, code: Path) -> None:
    """Copy the code that the plan runs to ``code``, unless it runs in place. Raises InputError."""
    if context.code is not None and (plan.reference_trainer or plan.snapshot):
        if not context.code.is_dir():
            raise InputError(
                f"{context.code}: no such folder", fix="--code now uses the current code"
            )
        total = sum(len(names) for _, _, names in os.walk(context.code))
        done = count(1)
        with context.bar("copying", "files") as show:

            def copy(source: str, target: str) -> None:
                shutil.copy2(source, target)
                show(next(done), total)

            shutil.copytree(context.code, code, symlinks=True, copy_function=copy)
    elif plan.reference_trainer:
        code.mkdir()
        for source in REFERENCE.glob("*.py"):
            shutil.copy2(source, code)
    elif plan.snapshot:
        with context.bar("copying", "files") as show:
            is_far = context.cluster.host is not None
            out = take_snapshot(
                context.project, code, leave_out=context.runs_dir, show=show, is_sent=is_far
            )
        if is_far and out:
            which = (
                f"{out[0]} points" if len(out) == 1 else (f"{out[0]} and {len(out) - 1} more point")
            )
            add_notice(
                f"{which} outside the project: the cluster gets the link, not its content; "
                "copy the files into the project if the job needs them"
            )


def write_secrets(context: Context, plan: Plan, run: RunFolder) -> list[Path]:
    """Write the values of the job's secrets, readable only by the user; return the files."""
    if not plan.secrets:
        return []
    lines = [f"export {name}={quote_bash(context.environ[name])}\n" for name in plan.secrets]
    write_file(run.secrets, "".join(lines).encode("utf-8", "surrogateescape"), mode=0o600)
    values = {name: os.fsencode(context.environ[name]) for name in plan.secrets}
    if marks := mark_secrets(values, os.urandom(16)):
        write_record(run.secret_marks, marks, mode=0o600)
    return [run.secrets, run.secret_marks]


def _check_copied(context: Context, prepared: Prepared, code: Path, copy: str) -> None:
    """Raise InputError if the script is missing in the copy of the code, because git ignores it.

    Args:
        code: The directory of the copy.
        copy: The path of the same directory for the job.
    """
    script = prepared.spec.script
    path = prepared.plan.program[1] if script is not None else ""
    is_far = context.cluster.host is not None
    own = code / path.removeprefix(f"{copy}/")
    if not path.startswith(f"{copy}/"):
        return
    if is_far and not Path(os.path.realpath(own)).is_relative_to(os.path.realpath(code)):
        raise InputError(
            f"script: {script}: a symbolic link to a file outside the project, whose content is "
            "not uploaded",
            fix="copy the file into the project",
        )
    if not own.exists():
        raise InputError(
            f"script: {script}: it is not in the run's copy of the code, which has only files "
            "that git does not ignore",
            fix="remove it from .gitignore"
            + ("" if is_far else ", or set snapshot: false to run the code in place"),
        )


class Submission(Struct, frozen=True):
    """A job that Slurm accepted, and remarks for the user about its submission."""

    job_id: str
    notes: list[str] = []


def submit_job(context: Context, made: Prepared) -> Submission:
    """Write the folder of a run, or of an array and its runs, and submit it with one sbatch.

    Raises:
        SchedulerRefused: Slurm rejected the job; the folders are removed again.
        OutOfReach: It is unknown whether Slurm accepted the job. The folders stay, and a later
            ``hpcrun status`` finds out.
    """
    slurm_transport(context)  # raises an error before anything is written
    runs = made.each()
    notes = link_checkpoints(
        context, runs, [find_predecessor_folder(run.plan) for run in runs], reads=True
    )
    with notes, remove_on_failure(context) as written:
        write_run(context, made, written)
        if made.is_strict:
            refuse_shared_folders(context, [run.plan for run in runs], made.dependency)
        return run_sbatch(context, made, written)


@contextlib.contextmanager
def link_checkpoints(
    context: Context,
    runs: Sequence[Prepared],
    checkpoint_dirs: Sequence[str | None],
    *,
    reads: bool = False,
) -> Iterator[None]:
    """Add a note to each directory whose checkpoints are used, before the job can start.

    The notes are removed if nothing is submitted.

    Args:
        reads: The runs only start from the checkpoints, so any number may use them.

    Raises:
        InputError: Another hpcrun resumes from the same checkpoints at this moment. If two see each
            other's notes, both are refused.
    """
    notes: list[tuple[Path, Prepared]] = []
    try:
        for run, folder in zip(runs, checkpoint_dirs, strict=True):
            owner = (
                find_owner_run(find_local_path(context, Path(folder)))
                if folder is not None
                else None
            )
            if owner is not None:
                with contextlib.suppress(FileExistsError):
                    owner.successors.mkdir()
                note = owner.successors / f"{run.plan.run_id}.json"
                notes.append((note, run))
                write_record(note, Successor(run_dir=run.plan.run_dir, reads=reads))
                context.transport().upload_files([note])
                if not reads:
                    _refuse_concurrent_resume(context, note)
        yield
    except BaseException:
        for note, run in notes:
            # the directory exists if Slurm has accepted the job, or may have
            if not run.path.is_dir():
                note.unlink(missing_ok=True)
                with contextlib.suppress(HpcrunError):
                    context.transport().upload_files([note])
        raise


def _refuse_concurrent_resume(context: Context, note: Path) -> None:
    """Raise InputError if another note is as recent as this one, by the file server's clock."""
    ours = note.stat().st_mtime
    for other in note.parent.glob("*.json"):
        record = read_record(other, Successor) if other != note else None
        if record is None or record.reads or abs(other.stat().st_mtime - ours) > _AT_ONCE:
            continue
        path = find_local_path(context, Path(record.run_dir))
        run = RunFolder(path) if path is not None and path.is_dir() else None
        if run is None or not status_of(context, [run])[0].verdict.final:
            raise InputError(
                f"{note.parent.parent}: {other.stem}, of another hpcrun at this moment, resumes "
                "from its checkpoints",
                fix=f"hpcrun status {other.stem}; --fresh to start without checkpoints",
            )


def find_predecessor_folder(plan: Plan) -> str | None:
    """Return the checkpoint directory of the predecessor, if the job itself refers to it."""
    folder = after_checkpoint_dir(plan.environment)
    if folder is None:
        return None
    own = [section.variables.values() for section in plan.environment if section.block != "run"]
    setup = plan.setup
    texts = [*plan.program, *(value for values in own for value in values)]
    texts += [*setup.commands, *setup.node_commands, *(source for source, _ in setup.stage)]
    return folder if any(folder in text or AFTER_VARIABLE in text for text in texts) else None


@contextlib.contextmanager
def remove_on_failure(context: Context) -> Iterator[list[Path]]:
    """Remove the directories that the block added to the list if it raises an error."""
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        if written:
            with contextlib.suppress(OSError, HpcrunError):
                context.transport().remove_directories(written)
        for path in written:  # also remove local directories if the cluster does not respond
            shutil.rmtree(path, ignore_errors=True)
        raise


def run_sbatch(context: Context, made: Prepared, written: list[Path]) -> Submission:
    """Submit the written directories, and record Slurm's response.

    Ctrl-C is deferred until Slurm's response is known. Raises the same errors as submit_job().

    Args:
        written: The directory of the submission and those of a sweep's runs; emptied once Slurm has
            accepted the job, or may have.
    """
    env, plan = sbatch_environment(context, made), made.plan
    transport = slurm_transport(context)
    record = build_submitted_record(context, plan)
    record = structs.replace(record, dependency=made.dependency)
    if made.is_sweep:  # its runs have arguments and directories of their own
        plans = [run.plan for run in made.runs]
        shared = [plan.checkpoint_dir for plan in plans if plan.shares_checkpoint_dir]
        record = structs.replace(
            record, arguments=None, checkpoint_dir=shared[0] if shared else None
        )
    job_id, notes = "", []
    try:
        with defer_signals():
            try:
                job_id = client.submit_script(
                    *(transport, written, env), options=made.options, arguments=made.arguments
                )
            except OutOfReach as error:
                if not error.maybe_done:
                    raise
                written.clear()
                shows = f"hpcrun status {plan.run_id} shows whether"
                fix = f"Slurm may have accepted the job: {shows}"
                raise OutOfReach(error.message, fix=fix, maybe_done=True) from error
            folders, folder = [*written], written[0]
            written.clear()
            record = structs.replace(record, job_id=job_id, submitted_at=time.time())
            try:
                write_record(folder / SUBMITTED, record)
                if context.cluster.host is not None:
                    for path in folders:  # the cluster has their secrets now
                        for file in (path / SECRETS, *path.glob(f"evaluations/*/*/{SECRETS}")):
                            file.unlink(missing_ok=True)
                    transport.upload_files([folder / SUBMITTED])
            except HpcrunError as error:
                notes.append(f"{error.message}; hpcrun finds the job by its folder")
    except KeyboardInterrupt as pressed:
        if not job_id:
            raise
        raise KeyboardInterrupt(
            f"Slurm had already accepted the job: {job_id}; hpcrun cancel {job_id} cancels it"
        ) from pressed
    return Submission(job_id, notes)


def estimate_start(context: Context, made: Prepared) -> Estimate:
    """Query Slurm for the expected start of the job, in this machine's local time.

    Raises SchedulerRefused, OutOfReach.
    """
    script = next(file.text for file in made.files if file.name == SCRIPT)
    env, transport = sbatch_environment(context, made), slurm_transport(context)
    estimate = client.query_expected_start(transport, script, env, made.options)
    if context.cluster.host is None:
        return estimate
    # sbatch does not get this machine's time zone, because a job's slurm.begin is in the cluster's
    # time.
    with contextlib.suppress(OutOfReach, ValueError, OverflowError, OSError):
        seconds = int(transport.run(["date", "-d", estimate.start, "+%s"], env=env).stdout)
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))
        return structs.replace(estimate, start=start)
    return estimate


def build_start_query(context: Context, made: Prepared) -> RunCommand:
    """Build the query for the expected start of the job."""
    script = next(file.text for file in made.files if file.name == SCRIPT)
    return client.build_estimate_query(script, sbatch_environment(context, made), made.options)


def sbatch_environment(context: Context, made: Prepared) -> dict[str, str]:
    """Return the environment of sbatch for a job."""
    plan, environ = made.plan, made.environ
    env = job_environment(context, plan.environment_kind, environ)
    if made.is_own_script:
        # The user's defaults for sbatch apply, as without hpcrun.
        own = {name: text for name, text in environ.items() if name.startswith("SBATCH_")}
        own.pop("SBATCH_CLUSTERS", None)  # the profile selects the cluster
        return env | own
    directives = dict(plan.directives)
    for option in ("account", "partition", "qos", "constraint", "reservation"):
        # sbatch would let the user's own default override a directive, so it is passed only without
        # one.
        name = f"SBATCH_{option.upper()}"
        if option not in directives and name in environ:
            env[name] = environ[name]
    for name in (*plan.secrets, *VARIABLES_OF_THIS_LOGIN):
        env.pop(name, None)
    return env
