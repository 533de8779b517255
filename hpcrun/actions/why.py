"""Explain why jobs failed, from their logs and records.

The diagnosis of a finished run is stored in its directory. Nothing is changed or cancelled.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct, structs

from hpcrun.actions.job_memory import (
    estimate_options,
    find_own_deepspeed_file,
    read_own_deepspeed,
)
from hpcrun.actions.logs import LogQuery, logs_of, masker_of
from hpcrun.actions.start_folder import find_start_folder
from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError
from hpcrun.files import open_plain, read_plain
from hpcrun.jobside import IDLE_ATTEMPTS_NOTE, MAX_IDLE_ATTEMPTS
from hpcrun.logs import LogFile, find_attempt, list_log_files, list_role_log_files
from hpcrun.monitor import (
    add_accounting,
    find_group,
    find_targets_by_word,
    status_of,
    unknown_run_error,
)
from hpcrun.ownership import foreign_owner, name_of_user
from hpcrun.plan import Plan, parse_memory_mb, parse_seconds
from hpcrun.runs import (
    END_STATES,
    LOST,
    NOT_LAUNCHED,
    SURVIVABLE_ENDS,
    JobStatus,
    RunFolder,
    Verdict,
    has_checkpoints,
    read_history,
    read_optional_record,
    read_plan,
    runs_of,
    write_record,
)
from hpcrun.slurm import JobAccounting, client, parse_exit_code
from hpcrun.text import format_bytes, format_duration, replace_unprintable
from hpcrun.version import __version__
from hpcrun.views import describe_common_facts, describe_diverged_loss, format_cause
from hpcrun.why import (
    CachedDiagnosis,
    Cause,
    Diagnosis,
    EndRecords,
    FailureEvidence,
    JobSettings,
    LogFindings,
    LogReader,
    diagnose,
    smaller_options,
)

# Bytes that are read at once, and the last bytes of each log that `status` examines.
_BLOCK_BYTES, END_BYTES = 1 << 20, 1 << 18
# In shorter logs the lines before the examined part are counted, for line numbers.
_COUNTED_BYTES, _UNKNOWN_LINE = 32 << 20, -(1 << 60)
_STDIN = Path("-")
# The number of logs of ranks and of nodes that are examined; the ranks that failed first precede.
_MAX_RANK_LOGS, _MAX_NODE_LOGS = 24, 8
# From this share of the requested memory on, memory may be the cause of a failure.
_NEARLY_ALL = 0.95
# Files with these suffixes are no logs.
_OTHER_SUFFIXES = {
    ".py",
    ".yaml",
    ".yml",
    ".json",
    ".pt",
    ".bin",
    ".safetensors",
    ".png",
    ".sh",
    ".md",
}


class JobDiagnosis(Struct, frozen=True, kw_only=True):
    """The diagnosis of one job.

    ``source``: the job or the logs that the user named; ``state``: the job's, "" for a log;
    ``working``: the run, if it has begun and has not failed; ``warning``: what its loss shows.
    """

    source: str
    diagnosis: Diagnosis
    state: str = ""
    final: bool = True
    working: RunFolder | None = None
    warning: str = ""


# ---- jobs and logs named by words


def explain_jobs(context: Context, words: Sequence[str]) -> list[JobDiagnosis]:
    """Explain why runs, jobs, or the job that wrote some logs failed.

    Without words the newest run is explained. Raises InputError, OutOfReach.
    """
    logs = [Path(word) for word in words if _is_log_path(context, word)]
    answers = []
    if logs:
        files = [file for path in logs for file in _list_logs(context, path)]
        if not files:
            raise InputError(f"{logs[0]}: no log in this folder", fix="name the log files")
        found = [_read_log(file) for file in files]
        ranks = [_parse_rank(file) for file in files]
        for log, rank in zip(found, ranks, strict=True):
            for event in log.events:
                event.rank = rank if event.rank is None else event.rank
        known = [rank for rank in ranks if rank is not None]
        diagnosis = diagnose(FailureEvidence(logs=found, ranks=known))
        source = " ".join(str(path) for path in logs)
        answers.append(JobDiagnosis(source=source, diagnosis=_mask_secrets(context, diagnosis, ())))
    rest = [word for word in words if Path(word) not in logs]
    for word in rest:
        answers += _explain_target(context, word)
    if not words:
        answers += _explain_target(context, None)
    return answers


def _is_log_path(context: Context, word: str) -> bool:
    path = context.cwd / word
    if word == "-":
        return True
    if path.is_dir():
        return not (path / "plan.json").exists() and not (path / "sweep.json").exists()
    return path.exists() and not path.is_dir()


def _list_logs(context: Context, name: Path) -> list[Path]:
    """List the logs in a directory, those of stderr first; - is standard input."""
    path = context.cwd / name
    if not path.is_dir():
        return [path if name != _STDIN else name]
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    files = [
        each for each in files if each.suffix.lower() not in _OTHER_SUFFIXES and each.stat().st_size
    ]
    return sorted(files, key=lambda each: "err" not in each.suffix)


def _parse_rank(path: Path) -> int | None:
    """Parse the rank in the name of a log, as hpcrun, torchrun and srun write it.

    >>> [_parse_rank(Path(name)) for name in ("rank-3.log", "attempt_0/3/stderr.log", "4711.out")]
    [3, 3, None]
    """
    found = re.search(r"(?i)rank[-_.]?(\d{1,6})(?!\d)", path.name)
    if found is None and path.stem in ("stdout", "stderr"):
        found = re.fullmatch(r"(\d{1,6})", path.parent.name)
    return int(found[1]) if found is not None else None


def _explain_target(context: Context, word: str | None) -> Iterator[JobDiagnosis]:

    target = find_targets_by_word(context, [word], whole=True)[word]
    group = find_group(context, word, whole=True) if target is None else []
    if target is None and not group:
        raise unknown_run_error(context, word, or_file=True)
    if isinstance(target, str):
        yield from _explain_slurm_job(context, target)
        return
    named = [target] if target is not None else group
    runs = [run for each in named for run in runs_of(each)]
    for status in status_of(context, runs, level="detail"):
        diagnosis = find_cause(context, status, whole=True)
        has_failed = diagnosis.cause is not None or diagnosis.verdict is not None
        yield JobDiagnosis(
            source=status.job_id or status.run_id,
            diagnosis=diagnosis,
            state=status.state,
            final=status.final,
            working=None if has_failed or status.last is None else status.run,
            warning="" if has_failed else describe_diverged_loss(status),
        )


def _explain_slurm_job(context: Context, job_id: str) -> Iterator[JobDiagnosis]:
    """Explain why a job that hpcrun did not submit failed, from its output files."""

    logs = logs_of(context, job_id, LogQuery())
    output = logs.output
    statuses = logs.monitor.statuses
    for status in statuses:
        files = output.files() if output is not None else []
        own = [file for file in files if len(statuses) < 2 or file.job_id == status.job_id]
        own.sort(key=lambda file: not file.is_err)
        yield JobDiagnosis(
            source=status.job_id or job_id,
            diagnosis=_diagnose_output(context, status, [file.path for file in own]),
            state=status.state,
            final=status.final,
        )


def _diagnose_output(
    context: Context, status: JobStatus, files: Sequence[Path], end: int | None = None
) -> Diagnosis:
    """Diagnose a job from its output files, or their last ``end`` bytes, and Slurm's record."""
    status = add_accounting(context, status)
    found = [_read_log(file, end) for file in files if file.is_file()]
    recorded = _collect_records(status, context) if status.final else EndRecords()
    evidence = FailureEvidence(logs=found, records=recorded, job=_collect_settings(status, context))
    return _mask_secrets(context, diagnose(evidence), ())


# ---- a run


def add_cause(context: Context, status: JobStatus) -> JobStatus:
    """Add the diagnosis to a failed job, from the ends of its logs; return other jobs unchanged.

    Slurm knows the logs of other programs' jobs only for some minutes after their end.
    """
    if not status.final or status.ok:
        return status
    with contextlib.suppress(OSError, HpcrunError):  # unreadable logs do not fail a status query
        if status.run is None:
            status = _add_output_paths(context, status)
            named = [*reversed(status.job.outputs)] if status.job else []
            files, _ = context.transport().copy_outputs(named, whole=False)
            found = _diagnose_output(context, status, files, END_BYTES)
            says = found.cause is not None and (found.cause.id != "silent" or bool(files))
            return structs.replace(status, diagnosis=found) if says else status
        return structs.replace(status, diagnosis=find_cause(context, status))
    return status


def _add_output_paths(context: Context, status: JobStatus) -> JobStatus:
    """Add the output files of a job that hpcrun did not submit; only scontrol knows them."""
    job = status.job
    if job is None or job.outputs or status.out_of_reach:
        return status
    with contextlib.suppress(HpcrunError):
        for shown in client.show_jobs(slurm_transport(context), job.job_id):
            if shown.job_id == job.job_id:
                known = ("stdout", "stderr", "exit_code", "step_code", "node_list")
                more = {name: getattr(shown, name) for name in known}
                return structs.replace(status, job=structs.replace(job, **more))
    return status


def describe_failure(context: Context, run: RunFolder) -> str:
    """Describe in one sentence why a run failed, without a query to Slurm; "" if it did not."""
    history = read_history(run)
    end, seen = history.end, history.seen
    if end is None or end.exit_code == 0 or end.next is not None:
        return ""
    state = seen.state if seen is not None else END_STATES.get(end.why or "", "FAILED")
    verdict = Verdict(state=state, final=True, exit_code=end.exit_code)
    status = JobStatus(run=run, history=history, verdict=verdict, job_id=history.job_id)
    diagnosis = add_cause(context, structs.replace(status, plan=read_plan(run))).diagnosis
    return format_cause(diagnosis.cause) if diagnosis is not None and diagnosis.cause else ""


def find_cause(context: Context, status: JobStatus, *, whole: bool = False) -> Diagnosis:
    """Diagnose a run from its logs; unless ``whole``, only from their ends.

    The diagnosis of a finished run is stored, and made again only if its logs have grown.
    """
    run, last = status.run, status.last
    if run is None or status.ok:
        return Diagnosis()
    status = add_accounting(context, status)
    if last is None:
        evidence = FailureEvidence(
            records=_collect_records(status, context), job=_collect_settings(status, context)
        )
        # Slurm itself cancelled a job that waited for another one: its reason says more.
        is_told = not status.final or status.reason == "DependencyNeverSatisfied"
        return Diagnosis() if is_told else diagnose(evidence)
    recorded = (
        _collect_records(status, context)
        if status.final or status.end is not None
        else EndRecords()
    )
    # The logs are those of an attempt before the end.
    files = [] if status.ended_between else _choose_logs(run, status)
    # Slurm's answer may change, and another version has other rules.
    stamp = [__version__, status.state, str(last.index), str(status.account is not None)]
    stamp += [str(_file_size(file)) for file in files]
    kept = None if whole else read_optional_record(run.why, CachedDiagnosis)
    if kept is not None and kept.stamp == stamp:
        return kept.diagnosis
    found = [_read_run_log(file, run, status, whole=whole) for file in files]
    ranks = [file.rank for file in files if file.rank is not None]
    evidence = FailureEvidence(
        logs=found, ranks=ranks, records=recorded, job=_collect_settings(status, context)
    )
    diagnosis = _name_role(diagnose(evidence), status)
    diagnosis = _mask_secrets(context, diagnosis, [run])
    if status.final and not foreign_owner(run.path):
        with contextlib.suppress(OSError, HpcrunError):
            run.why.parent.mkdir(0o755, exist_ok=True)
            write_record(run.why, CachedDiagnosis(stamp=stamp, diagnosis=diagnosis))
    return diagnosis


def _file_size(file: LogFile) -> int:
    try:
        return file.path.stat().st_size
    except OSError:
        return -1


def _choose_logs(run: RunFolder, status: JobStatus) -> list[LogFile]:
    """Choose the logs of the last attempt to examine, those of the first failure first."""
    last = status.last.index if status.last is not None else 0
    first = status.end.first_failure if status.end is not None else None
    files = [file for file in list_log_files(run) if file.attempt in (last, None)]
    role = (first.role or "") if first is not None else ""
    if role:
        # The errors of other roles are consequences: they lost their peer, or were terminated.
        of_role = [file for file in list_role_log_files(run) if file.role == role]
        of_role = [file for file in of_role if file.attempt in (last, None)]
        files = [*of_role, *(file for file in files if file.attempt is None)]
    failed = _list_failed_ranks(run.for_role(role), last)
    order = {rank: at for at, rank in enumerate(failed)}
    if first is not None and first.rank is not None:
        order[first.rank] = -1
    ranks = [file for file in files if file.rank is not None]
    ranks.sort(key=lambda file: (order.get(file.rank or 0, 1 << 30), file.rank or 0))
    nodes = [file for file in files if file.node is not None]
    nodes.sort(key=lambda file: (first is None or file.node != first.node, file.node or 0))
    batch = [file for file in files if file.attempt is None]
    return [*ranks[:_MAX_RANK_LOGS], *nodes[:_MAX_NODE_LOGS], *batch]


def _name_role(diagnosis: Diagnosis, status: JobStatus) -> Diagnosis:
    """Name the role that failed first in the cause of a failure of a job with roles."""
    cause, failure = diagnosis.cause, status.end.first_failure if status.end is not None else None
    plan = status.plan or (read_plan(status.run) if status.run is not None else None)
    if cause is None or failure is None or plan is None or not plan.roles:
        return diagnosis
    name = f"role {failure.role or plan.role}"
    if name in cause.title:
        return diagnosis
    return structs.replace(diagnosis, cause=structs.replace(cause, title=f"{name}: {cause.title}"))


def _list_failed_ranks(run: RunFolder, attempt: int) -> list[int]:
    """List the failed ranks in the order of their failures: failures/TIME-rank-R.json."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(run.attempts / str(attempt) / "failures"))  # noqa: PTH208
    ranks = [name.rpartition("-")[2].removesuffix(".json") for name in names if "rank-" in name]
    return [int(rank) for rank in ranks if rank.isdecimal()]


def _collect_records(status: JobStatus, context: Context) -> EndRecords:
    """Collect what Slurm and the job recorded of its end."""
    end, stall = status.end, status.stall
    failure = end.first_failure if end is not None and not status.ended_between else None
    rank = failure.rank if failure is not None else None
    host = failure.host if failure is not None else None
    stalled = ""
    if stall is not None and stall.suspect is not None and failure is None:
        suspect = stall.suspect
        rank, host = suspect.rank, suspect.host
        stalled = f"rank {rank}{f' on {host}' if host else ''} is {suspect.why}"
    state = status.state if status.final and status.state not in (LOST, "UNKNOWN") else ""
    if state == "FAILED" and end is None and status.history.last is None and status.run is not None:
        state = ""
    why = (end.why or "") if end is not None and not status.ok else ""
    if why == "stopped" and status.history.shares_job:
        why = ""  # as without Slurm, which knows more
    account, cancelled, job = status.account, status.history.cancelled, status.job
    alone = end is not None and (end.next is not None or status.history.shares_job)
    if state.startswith("CANCELLED") and (
        alone or why == "requeued" or (cancelled is not None and why in SURVIVABLE_ENDS)
    ):
        why = "cancelled"  # while it waited for its next attempt, or one of several runs in a job
    by = cancelled.user if cancelled is not None else ""
    if account is not None and account.cancelled_by and not by:
        by = (
            f"its user, {account.user}"
            if account.user
            else _describe_user(context, account.cancelled_by)
        )
    output = job.stdout if job is not None and job.stdout else ""
    when = killed = ""
    if status.elapsed and status.attempts:
        when = f"after {format_duration(status.elapsed)}"
    if state == "FAILED" and status.verdict.reason == NOT_LAUNCHED and status.attempts:
        killed = "the job's script was killed"
    if status.ended_between and end is not None:
        waited = (status.ended_at or 0.0) - end.ended_at
        when = f"{format_duration(waited)} after its last attempt" if waited > 0 else ""
        when = when or "before its next attempt"
        killed = killed and "the script of its next attempt could not be launched, or was killed"
        why = "" if killed else why
    gave_up = (end.note or "") if end is not None and why != "cancelled" else ""
    if gave_up == IDLE_ATTEMPTS_NOTE and (
        same := describe_common_facts(status.history.attempts[-MAX_IDLE_ATTEMPTS:])
    ):
        gave_up += f" (the same in all of them: {same})"
    return EndRecords(
        state=state,
        when=when,
        cancelled_by=by,
        memory=_describe_memory(account),
        node_reason=account.node_reason if account is not None else "",
        node_out=account.node if account is not None else "",
        slurm_code=job.exit_code if job is not None else "",
        has_begun=bool(status.attempts) or status.run is None,
        is_over=status.final,
        killed=killed,
        output=output or (str(status.run.batch_log) if status.run is not None else ""),
        why=why,
        gave_up=replace_unprintable(gave_up),
        exit_code=status.exit_code or (parse_exit_code(job.exit_code) if job is not None else None),
        signal=failure.signal if failure is not None else None,
        rank=rank,
        host=host,
        unfit=(failure.why or "") if failure is not None else "",
        stalled=stalled,
    )


def _describe_memory(account: JobAccounting | None) -> str:
    """Describe the memory use of a job that used nearly all of it; "" for other jobs.

    >>> _describe_memory(JobAccounting(memory_asked=8 << 30, memory_used=79 << 27))
    'with 9.88 GiB used of the 8.00 GiB of host memory requested'
    >>> _describe_memory(JobAccounting(memory_asked=8 << 30, memory_used=1 << 30))
    ''
    """
    asked, used = (account.memory_asked, account.memory_used) if account else (None, None)
    if not asked or not used or used < _NEARLY_ALL * asked:
        return ""
    sizes = f"{format_bytes(used)} used of the {format_bytes(asked)}"
    return f"with {sizes} of host memory requested"


def _describe_user(context: Context, uid: str) -> str:
    """Name a user of this cluster; for a remote cluster only the uid is known."""
    if context.cluster.host is None and (name := name_of_user(int(uid))) != uid:
        return f"{name} (uid {uid})"
    return f"the user with uid {uid}"


def _collect_settings(status: JobStatus, context: Context) -> JobSettings:
    """Collect the settings of the job that its fixes use."""
    plan: Plan | None = status.plan or (read_plan(status.run) if status.run else None)
    word = status.job_id or status.run_id
    if plan is None:
        return JobSettings(name=word)
    asked = dict(plan.directives)
    memory, limit = None, status.limit
    with contextlib.suppress(ValueError):
        memory = parse_memory_mb(asked.get("mem") or "0") or None
    account, nodes = status.account, plan.nodes
    if memory is None and account is not None and account.memory_asked:
        memory = account.memory_asked // max(1, nodes) >> 20  # the site's default
    with contextlib.suppress(ValueError):
        limit = limit or parse_seconds(asked.get("time") or "") or None
    folder = find_start_folder(context, plan.start_dir, plan.project_dir)
    own_file = find_own_deepspeed_file(plan)
    config = read_own_deepspeed(folder, own_file) if own_file else plan.deepspeed_config
    zero = (config or {}).get("zero_optimization")
    zero = zero if isinstance(zero, dict) else {}
    stage = zero.get("stage", 0) if config and type(zero.get("stage", 0)) is int else None
    offload = [
        kind
        for kind in ("optimizer", "param")
        if isinstance(section := zero.get(f"offload_{kind}"), dict)
        and section.get("device", "none") != "none"
    ]
    sizes: dict[str, float] = {}
    if stage is not None and plan.effective_batch:
        options = [option for option, _ in smaller_options(stage, offload)]
        sizes = estimate_options(plan, options, context.environ, folder, context.cache_dir)
    return JobSettings(
        name=word,
        is_run=True,
        has_checkpoints=plan.resumes
        and has_checkpoints(plan, status.history.attempts, is_here=context.cluster.host is None),
        micro_batch=plan.micro_batch_per_gpu if plan.effective_batch else None,
        accumulation=plan.gradient_accumulation_steps if plan.effective_batch else None,
        accepts_accumulation=_accepts_accumulation(plan),
        framework=plan.framework,
        zero_stage=stage,
        offload=offload,
        gpu_memory=sizes,
        zero_keys=plan.zero_keys,
        deepspeed_file=own_file,
        arguments=plan.program,
        memory_mib=memory,
        limit=limit,
        exclude=asked.get("exclude") or "",
    )


def _accepts_accumulation(plan: Plan) -> bool:
    """Return False if the number of accumulation steps certainly does not reach the program."""
    if plan.deepspeed_config or plan.reference_trainer or plan.framework == "accelerate":
        return True
    if any("accumul" in argument for argument in plan.program):
        return True
    script = next((Path(each) for each in plan.program if each.endswith(".py")), None)
    if script is None:
        return True
    try:
        return b"accumul" in read_plain(script).lower()
    except (OSError, HpcrunError):  # on a remote cluster, or deleted
        return True


# ---- reading


def _read_run_log(file: LogFile, run: RunFolder, status: JobStatus, *, whole: bool) -> LogFindings:
    """Read a log of a run; its name gives rank and host to lines that do not state them."""
    last = status.last.index if status.last is not None else 0
    found = _read_log(
        file.path, None if whole else END_BYTES, attempt=last if file.attempt is None else None
    )
    plan = read_plan(run.for_role(file.role)) if file.role else status.plan
    hosts = _read_hosts(run.for_role(file.role), last)
    for event in found.events:
        if event.rank is None and file.rank is not None:
            event.rank = file.rank
        node = file.node
        if node is None and event.rank is not None and plan is not None:
            node = event.rank // max(1, plan.ranks_per_node)
        if event.host is None and node is not None and node < len(hosts):
            event.host = hosts[node]
    return found


def _read_hosts(run: RunFolder, attempt: int) -> list[str]:
    text = ""
    with contextlib.suppress(OSError):
        text = (run.attempts / str(attempt) / "hostfile").read_text("utf-8", "replace")
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def _read_log(path: Path, end: int | None = None, *, attempt: int | None = None) -> LogFindings:
    """Read a log, or its last ``end`` bytes; of a batch script's log the part of one attempt.

    Raises InputError if the log cannot be read.
    """
    try:
        if path == _STDIN:
            return _read_blocks(LogReader("-", 0), sys.stdin.buffer)
        with open_plain(path) as file:
            size, line = os.fstat(file.fileno()).st_size, 1
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                with gzip.GzipFile(fileobj=file) as inside:
                    return _read_blocks(LogReader(str(path), 0), inside)
            first = 0 if end is None else max(0, size - end)
            if attempt is not None and size <= _COUNTED_BYTES:
                file.seek(0)
                # To the end: Slurm's own lines there belong to the attempt, too.
                first = max(first, find_attempt(file.read(), attempt)[0])
            if first:
                line = _line_number_at(path, first) if size <= _COUNTED_BYTES else _UNKNOWN_LINE
            file.seek(first)
            return _read_blocks(LogReader(str(path), size, first_line=line, offset=first), file)
    except EOFError as error:
        raise InputError(f"{path}: the compressed file is cut off") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _read_blocks(reader: LogReader, file: IO[bytes] | gzip.GzipFile) -> LogFindings:
    """Read the rest of a log in blocks of whole lines. Raises OSError."""
    while block := file.read(_BLOCK_BYTES):
        if not block.endswith(b"\n"):
            block += file.readline(_BLOCK_BYTES)  # a longer line is cut
        reader.read(block)
    found = reader.finish()
    for event in found.events:
        event.line = max(0, event.line)
    return found


def _line_number_at(path: Path, offset: int) -> int:
    """Return the number of the line that contains an offset."""
    number, left = 1, offset
    with open_plain(path) as file:
        while left > 0 and (block := file.read(min(_BLOCK_BYTES, left))):
            number += block.count(b"\n")
            left -= len(block)
    return number


def _mask_secrets(context: Context, diagnosis: Diagnosis, runs: Sequence[RunFolder]) -> Diagnosis:
    """Mask secrets in the quoted lines of logs."""
    masker = masker_of(context, runs)

    def hide(text: str) -> str:
        return masker.mask(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def hidden(cause: Cause) -> Cause:
        return structs.replace(cause, title=hide(cause.title), text=hide(cause.text))

    if diagnosis.cause is None:
        return diagnosis
    return structs.replace(
        diagnosis, cause=hidden(diagnosis.cause), also=[hidden(each) for each in diagnosis.also]
    )
