"""Decide which of the failures in a job's logs and records came first and explains the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct, structs

from hpcrun.why import ends, fixes
from hpcrun.why.ends import EndRecords
from hpcrun.why.fixes import JobSettings
from hpcrun.why.reading import MOVED_ON, LogEvent, LogFindings
from hpcrun.why.rule import ERROR, ROOT, SYMPTOM, WEAK, Cause, Diagnosis
from hpcrun.why.rules import BY_ID, SECTIONS

_MAX_OTHER_CAUSES = 5
# The number of messages after the end of a process that only another program writes: before its
# next failure, and after the last one.
_MESSAGES_OF_LAUNCH, _MESSAGES_OF_OTHER = 20, 30
# Messages between the report of a launcher and a process that ends by another launch; torchrun's
# report itself has as many lines.
_MESSAGES_AFTER_REPORT, _REPORT_LINES = 100, 12
# Lines of progress that show that a program is alive: one that raised an exception, one that ended.
_STEPS_OF_CAUGHT, _STEPS_OF_OTHER = 3, 5
# After this number of lines of any kind nothing was ended by what stands before them.
_MANY_LINES = 1000
# Symptoms that occur at the end of successful runs, too.
_BENIGN_SYMPTOMS = ("nccl_remote_exit", "nccl_id_store")
# Complaints of a shell, which continues after them; lines that show that a process has ended.
_SHELL = ("lmod", "no_command", "shell_no_file")
_FATAL = (
    "killed",
    "oom_guess",
    "srun_oom",
    "crash",
    "bus_exit",
    "abort",
    "srun_exit",
    "srun_killed",
    "srun_crash",
    "torchrun_child",
    "torchrun_exit",
    "mpi_abort",
    "cancelled",
    "time_limit",
)
# Lines after which the process has certainly ended, whatever other ranks print afterwards.
_CERTAIN = (
    "enospc",
    "slurm_oom",
    "xid",
    "nccl_watchdog",
    "nan_raised",
    "device_assert",
    "assert_index",
    "assert_probability",
    "assert_multinomial",
)
# What srun's own SIGKILL after --wait looks like, which has nothing to do with memory.
_ENDED_BY_SRUN = ("killed", "oom_guess", "srun_killed")
# Classes of ends that Slurm or a person decided. A program that had crashed before merely waited.
_DECIDED = ("time_limit", "cancelled", "preempted")
# Failures of a stage that misses the output of an earlier one.
_MISSING_INPUT = (
    "no_checkpoint",
    "no_file",
    "hf_not_model",
    "broken_checkpoint",
    "no_script",
)
_MISSING_TEXT = re.compile(
    r"(?i)(?:checkpoint|ckpt|weights?|model|\.pth?\b|\.bin\b|\.safetensors\b|file|director(?:y|ies))"
    r".{0,80}(?:not found|not exist|missing|no such|could not be found|cannot find|can't find)"
    r"|(?:not found|no such|missing|cannot find|can't find|no) .{0,40}(?:checkpoint|ckpt|weights)"
    r"|EOFError: Ran out of input|no file named|not appear to have a file"
)
_CHECKPOINT = re.compile(r"(?i)checkpoint|ckpt|weights|model|\.pth?\b|\.bin\b|\.safetensors\b")
# Exceptions that may be raised because a connection failed.
_CLIENT = re.compile(
    r"(?i)\b(?:client|request|response|session|http|url|connect\w*|socket|download|upload|hub|remote"
    r"|server|closed)\b"
)
# Rules for lines that say more than the exception that ended the program.
_DETAILS: dict[str, tuple[str, ...]] = {
    "device_assert": ("assert_index", "assert_probability", "assert_multinomial"),
    "size_mismatch": ("state_dict_prefix",),
}
# Seconds by which a failure in one log must precede one in another log to explain it; a year of
# months of 31 days.
_CLOCK_TOLERANCE_S, _YEAR_S = 60, 372 * 86400


class FailureEvidence(Struct, frozen=True, kw_only=True):
    """All that is known of the end of a job.

    Attributes:
        logs: In the order of their importance.
        ranks: The ranks that have a log of their own.
    """

    logs: Sequence[LogFindings] = ()
    ranks: Collection[int] = ()
    records: EndRecords = EndRecords()
    job: JobSettings = JobSettings()


_LocatedEvent = tuple[int, LogEvent]  # the index of the log, and the event


def diagnose(evidence: FailureEvidence) -> Diagnosis:
    """Decide why a job failed."""
    records = evidence.records
    if records.ended_well:
        return Diagnosis()
    launches = [_split_launches(log) for log in evidence.logs]
    last, earlier = _current_events(evidence, launches)
    clock = _Clock(last)
    ranked = sorted(last, key=lambda item: _rank_event(item, evidence, last, clock))
    cause: Cause | None = _cause_by_records(evidence, ranked, last)
    consequences: list[Cause] = []
    if cause is None and ranked and _is_conclusive(ranked[0][1], records):
        index, event = ranked[0]
        log = evidence.logs[index]
        cause = _name_absent_ranks(_make_cause(event, records), last, evidence.ranks)
        cause = _locate(_use_details(cause, [each for _, each in last]), event, log)
        cause = _find_lost_connection(cause, event)
        cause, consequences = _find_first_stage(cause, event, log, launches[index], records)
        if records.has_failed and log.is_relaunched:
            title = f"the last start logged no error; the one before failed: {cause.title}"
            cause = structs.replace(cause, title=title)
    if cause is None and records.has_failed:
        cause = ends.cause_of_silent_end(records, has_logs=bool(evidence.logs))
    if cause is None:
        return Diagnosis(verdict="ask" if records.has_failed else None)
    return _add_details(cause, consequences, ranked, earlier, evidence)


def _add_details(
    cause: Cause,
    consequences: Sequence[Cause],
    ranked: Sequence[_LocatedEvent],
    earlier: Sequence[LogEvent],
    evidence: FailureEvidence,
) -> Diagnosis:
    """Add the other causes and the fixes."""
    records, rule = evidence.records, BY_ID.get(cause.id)
    if records.gave_up:
        cause = structs.replace(cause, title=f"{cause.title}; {records.gave_up}")
    named = {cause.id: cause}
    for other in consequences:
        if cause.id == "srun_wait" and other.id in _ENDED_BY_SRUN:
            continue
        named.setdefault(other.id, other)
    for event in [*(event for _, event in ranked if event.kind >= WEAK), *earlier]:
        if cause.id != "srun_wait" or event.rule.id not in _ENDED_BY_SRUN:
            named.setdefault(event.rule.id, _make_cause(event, records))
    errors = [e.connection_error for _, e in ranked if (e.file, e.line) == (cause.file, cause.line)]
    if errors and errors[0] is not None:
        named.setdefault("lost_connection", _cause_of_connection_error(errors[0]))
    verdict = "exclude_node" if cause.id in ends.UNFIT_NODE else rule.advice if rule else "ask"
    found = rule.fixes if rule is not None else ends.RECORD_FIXES.get(cause.id, ())
    if cause.id == "cancelled" and records.cancelled_by:
        found = ("{again}",)
    if cause.id == "requeued" and records.is_over:
        cause = structs.replace(cause, title=f"{cause.title}, and did not start again")
        found = ("{again}",)
    if records.gave_up:  # the job asks for restarts already
        found = tuple(fix for fix in found if not fix.startswith("`survive:"))
    missing = re.search(r"No module named '?([\w.]+)", cause.text or cause.title)
    if rule is not None and missing and (hint := fixes.similar_module(missing[1])):
        found = (hint, *found)
    return Diagnosis(
        verdict=verdict,
        cause=cause,
        also=list(named.values())[1 : _MAX_OTHER_CAUSES + 1],
        fixes=fixes.fixes_for(found, cause, evidence.job),
    )


# ---- the events that count


def _current_events(
    evidence: FailureEvidence, launches: Sequence[list[list[LogEvent]]]
) -> tuple[list[_LocatedEvent], list[LogEvent]]:
    """List the events of the last launch in each log, and those that ended earlier launches."""
    last: list[_LocatedEvent] = []
    earlier: list[LogEvent] = []
    for index, (log, split) in enumerate(zip(evidence.logs, launches, strict=True)):
        events, before = split[-1], [event for launch in split[:-1] for event in launch]
        has_failed = evidence.records.has_failed and log.progress < MOVED_ON
        if events and not has_failed and _has_recovered(log, events):
            events, before = [], [*before, *events]
        last += [(index, event) for event in events]
        ended = (event for event in before if event.in_traceback or event.ends)
        earlier += [event for event in ended if event.kind >= (WEAK if event.ends else ERROR)]
    return last, earlier[::-1]


def _has_recovered(log: LogFindings, events: Sequence[LogEvent]) -> bool:
    """Return True if the text after these events shows that they ended nothing, or that a
    successful launch followed.
    """
    progress = log.progress + MOVED_ON * log.is_relaunched
    harmless = _SHELL if log.has_python_warning or log.is_script_done else ()
    if not log.is_parallel and log.lines > _MANY_LINES:
        return True
    if progress >= MOVED_ON or all(e.is_withdrawn or e.rule.id in harmless for e in events):
        return True
    # Threads and connections of a finished program may complain at its exit.
    is_less = all(e.kind <= SYMPTOM or e.kind < e.rule.kind for e in events)
    if is_less and events[0].after_finish:
        return True
    is_fatal = any(event.rule.id in _FATAL for event in events)
    if any(event.ends for event in events):
        # A program that has ended writes nothing; other ranks and the site's epilog may.
        begins_again = progress >= (2 if log.is_finished else _STEPS_OF_OTHER)
        begins_again |= log.has_python_warning and not is_fatal
        is_over = not log.is_parallel or any(e.rule.id == "torchrun_child" for e in events)
        return (begins_again or log.messages > _MESSAGES_OF_OTHER) and is_over
    if is_fatal:
        return False  # the messages of a batch script after a crash are no sign of success
    if log.is_finished or any(event.rule.id in _CERTAIN for event in events):
        return log.is_finished
    if not log.is_parallel:
        # A program or a shell that only printed the error continued after it.
        least = _REPORT_LINES if progress else _MESSAGES_OF_LAUNCH
        if progress > 2 or log.messages > least:
            return True
    continues = progress > 1 or log.messages > _MESSAGES_OF_OTHER
    return is_less and continues and any(e.kind < e.rule.kind for e in events)


def _split_launches(log: LogFindings) -> list[list[LogEvent]]:
    """Split the events of a log by launches of the program; the last list may be empty."""
    launches: list[list[LogEvent]] = [[]]
    has_ended = has_raised = False
    report: LogEvent | None = None
    for event in _merge_chains(log.events):
        previous = launches[-1][-1] if launches[-1] else None
        is_new = event.progress >= MOVED_ON
        if previous is not None and not is_new:
            is_new = _begins_launch(
                event, previous, log, has_ended=has_ended, has_raised=has_raised, report=report
            )
        if is_new and previous is not None:
            launches.append([])
            has_ended, has_raised, report = False, False, None
        launches[-1].append(event)
        has_ended |= event.ends
        has_raised |= event.ends or event.in_traceback
        report = event if event.rule.id == "torchrun_child" and event.in_traceback else report
    return launches


def _begins_launch(
    event: LogEvent,
    previous: LogEvent,
    log: LogFindings,
    *,
    has_ended: bool,
    has_raised: bool,
    report: LogEvent | None,
) -> bool:
    """Return True if what precedes an event shows that it belongs to another launch."""
    if _stage_at(log, event.begin) != _stage_at(log, previous.line):
        return True
    is_decided = event.rule.cls in _DECIDED
    is_again = event.rule.cls == "cancelled" and event.progress >= _STEPS_OF_OTHER
    is_new = False
    if not log.is_parallel and (event.kind >= WEAK or is_again):
        # Ranks are killed together, so another end by a signal is no other launch.
        at_once = event.ends and event.rule.id not in _FATAL
        is_new |= has_ended and (at_once or event.progress >= _STEPS_OF_OTHER)
        if is_decided:
            # A crashed program may wait long, and write much, until it is cancelled.
            is_new |= has_raised and event.progress >= _STEPS_OF_CAUGHT
        else:
            is_new |= has_raised and event.messages > _MESSAGES_OF_LAUNCH
    elif not log.is_parallel and is_decided:
        is_new |= has_raised and event.progress >= _STEPS_OF_CAUGHT
    if report is not None:
        if event.rule.id == "terminated":
            is_new |= event.messages > _MESSAGES_AFTER_REPORT
        elif (event.in_traceback or event.ends) and event.kind >= ERROR:
            is_new |= event.begin - report.line > _REPORT_LINES
    return is_new


def _merge_chains(events: Sequence[LogEvent]) -> list[LogEvent]:
    """Keep one event of each chain of tracebacks: one with a rule, else that of a person who
    ended the program, else the last one.
    """
    best: dict[int, LogEvent] = {}
    weights: dict[int, float] = {}
    for event in events:
        weight = ERROR + 0.5 if event.rule.cls == "cancelled" else event.kind
        if weights.get(event.chain, 0) < ROOT and weight >= weights.get(event.chain, 0):
            best[event.chain], weights[event.chain] = event, weight
    kept: list[LogEvent] = []
    progress, errors = 0, dict[int, LogEvent | None]()
    for event in events:
        progress = max(progress, event.progress)
        errors[event.chain] = errors.get(event.chain) or event.connection_error
        if not event.chain or best[event.chain] is event:
            event.progress, progress = progress, 0
            event.connection_error = errors[event.chain] if event.chain else None
            kept.append(event)
    return kept


# ---- which event is the cause


class _Clock:
    """Times of the events of several logs.

    Events without a time, and all events if the times cannot be compared, are as early as the first
    one: the order of files and lines decides.
    """

    def __init__(self, events: Sequence[_LocatedEvent]) -> None:
        known = [event.at for _, event in events if event.at is not None]
        is_comparable = len({index for index, _ in events}) > 1
        is_comparable &= len({has_zone for has_zone, _ in known}) == 1
        times = [time for _, time in known] if is_comparable else []
        self._first, self._last = min(times, default=0.0), max(times, default=0.0)
        self._is_comparable = is_comparable
        self._first_errors: dict[int, float] = {}
        for index, event in events:
            if event.kind >= ERROR and event.at is not None:
                time = self.time_of(event)
                self._first_errors[index] = min(time, self._first_errors.get(index, time))

    def time_of(self, event: LogEvent) -> float:
        """Return the time of an event in seconds."""
        if event.at is None or not self._is_comparable:
            return self._first
        time = event.at[1]
        if self._last - self._first > _YEAR_S / 2:  # around New Year
            time += _YEAR_S * (time < self._first + _YEAR_S / 2)
        return time

    def is_late(self, index: int, event: LogEvent) -> bool:
        """Return True if another log shows a failure long before."""
        others = [time for other, time in self._first_errors.items() if other != index]
        return (
            event.kind >= ERROR
            and self.time_of(event) > min(others, default=1e18) + _CLOCK_TOLERANCE_S
        )


def _rank_event(
    item: _LocatedEvent,
    evidence: FailureEvidence,
    last: Sequence[_LocatedEvent],
    clock: _Clock,
) -> tuple[bool, bool, bool, int, bool, float, int, int]:
    """Return the sort key of an event; the smallest one is the cause.

    The criteria in their order: an error rather than a symptom; the rank that is recorded as the
    first failure; no failure long before in another log; the kind; the rank that torchrun reports
    as the first failure; the time; the order of files and lines.
    """
    index, event = item
    is_first = evidence.records.rank is not None and event.rank == evidence.records.rank
    seen = evidence.logs[index].first_failure
    is_seen = seen is not None and event.rank == seen[0]
    kind = event.kind
    before = [e for i, e in last if i == index and e.line < event.line]
    if event.rule.id == "ctrl_c" and event.in_traceback:
        # What a process complains about after it was interrupted is no cause.
        kind = ROOT if all(e.kind < WEAK for e in before) else kind
    if event.rule.cls in _DECIDED and _crash_before(event, index, evidence, last) is not None:
        kind = min(kind, SYMPTOM)
    kinds = -2 * kind + (event.rule.id in _SHELL)  # of two weak signs not the shell's
    is_late = clock.is_late(index, event)
    time = clock.time_of(event)
    return kind < ERROR, not is_first, is_late, kinds, not is_seen, time, index, event.line


def _crash_before(
    end: LogEvent | None,
    index: int | None,
    evidence: FailureEvidence,
    events: Sequence[_LocatedEvent],
) -> LogEvent | None:
    """Find the first crash after which a job only waited until Slurm or a person ended it.

    Args:
        end: The line that shows the end, in the log ``index``; None if no log shows it.
        index: The log whose crashes count; None for all logs.
        evidence: All that is known.
        events: The events of the last launch, in any order.
    """
    for log, event in sorted(events, key=lambda item: (item[0], item[1].line)):
        is_other_log = index is not None and log != index
        if is_other_log or event.rule.cls in _DECIDED or event.is_withdrawn:
            continue
        is_fatal = event.rule.id in (*_FATAL, *_CERTAIN) and event.kind >= WEAK
        if event.kind < ERROR and not is_fatal:
            continue
        until = (
            end.line if end is not None and (index is not None or end.file == event.file) else None
        )
        if until is not None and event.line >= until:
            continue
        later = [e for i, e in events if i == log and event.line < e.line <= (until or 1 << 60)]
        steps = sum(e.steps for e in later) + (evidence.logs[log].progress if until is None else 0)
        has_ended = event.ends or is_fatal
        is_alive = steps >= (_STEPS_OF_OTHER if has_ended else _STEPS_OF_CAUGHT)
        if not is_alive or (has_ended and evidence.logs[log].is_parallel):
            return event
    return None


def _is_conclusive(event: LogEvent, records: EndRecords) -> bool:
    """Return True if the event alone shows that the job failed.

    A lost connection may be that of another program. If a rank is known to have failed, neither a
    weak sign without a rank nor the report of a launcher explains it.
    """
    is_less = event.kind <= WEAK and event.rank is None
    is_less |= event.rule.id in ("torchrun_child", "torchrun_exit")
    is_known = records.host is not None and event.rule.id == "srun_exit"
    if is_known or (records.rank is not None and is_less):
        return False
    is_end = event.ends or event.rule.id not in _BENIGN_SYMPTOMS
    return event.kind > SYMPTOM or records.has_failed or is_end


def _make_cause(event: LogEvent, records: EndRecords) -> Cause:
    host = event.host
    if host is None and event.rank is not None and event.rank == records.rank:
        host = records.host
    return Cause(
        id=event.rule.id,
        cls=event.rule.cls,
        title=_fill_title(event.rule.title, event.values),
        file=event.file,
        line=event.line,
        text=event.text,
        rank=event.rank,
        host=host,
    )


def _fill_title(title: str, values: dict[str, str]) -> str:
    """Insert the groups of a pattern into the sentence of a rule; missing ones are left out.

    >>> _fill_title("no {path}", {"path2": "x"})
    'no x'
    >>> _fill_title("no module {name}", {"name": "x"}), _fill_title("refused: {why}", {})
    ('no module x', 'refused')
    """

    def value(found: re.Match[str]) -> str:
        names = (found[1], f"{found[1]}2", f"{found[1]}3")
        return next((values[name] for name in names if values.get(name)), "").strip()[:200]

    text = re.sub(r"\{(\w+)\}", value, title)
    return re.sub(r"\s{2,}", " ", text).strip().rstrip(":").strip()


# ---- what the other events add to the cause


def _name_absent_ranks(
    cause: Cause, events: Sequence[_LocatedEvent], ranks: Collection[int]
) -> Cause:
    """Name the ranks that the others waited for: those that report no timeout, if they are few."""
    waiting = {event.rank for _, event in events if event.rule.id == cause.id}
    absent = sorted(set(ranks) - waiting)
    if cause.id != "nccl_watchdog" or not absent or len(absent) > len(waiting):
        return cause
    named = ", ".join(map(str, absent))
    whose = f"rank{'s' if len(absent) > 1 else ''} {named}"
    title = f"a collective timed out: the other ranks have waited for {whose}"
    return structs.replace(cause, title=title)


def _use_details(cause: Cause, events: Sequence[LogEvent]) -> Cause:
    """Use a line that says more than the exception: the assertion on the GPU, the key names."""
    details = _DETAILS.get(cause.id, ())
    for event in events:
        if event.rule.id in details:
            title = _fill_title(event.rule.title, event.values)
            return structs.replace(cause, id=event.rule.id, title=title)
    return cause


def _locate(cause: Cause, event: LogEvent, log: LogFindings) -> Cause:
    """Add rank and host: those that torchrun reports, or the only ones that the log names."""
    # srun's own messages number the tasks as its labels do.
    ranks_are_known = any(
        e.rank is not None and not e.is_task and not e.rule.id.startswith("srun_")
        for e in log.events
    )
    is_launched = log.first_failure is not None or any(
        e.rule.id in ("torchrun_child", "torchrun_exit") for e in log.events
    )
    if event.is_task and (ranks_are_known or is_launched):
        cause = structs.replace(cause, rank=None)  # the number of a node
    is_end = event.in_traceback or event.rule.id in _FATAL
    first = log.first_failure
    if first is not None and is_end and cause.rank in (None, first[0]):
        return structs.replace(cause, rank=first[0], host=cause.host or first[1])
    if cause.rank is None:
        # The same exception, printed by Python and by torch.
        ranks = {e.rank for e in log.events if e.text == event.text and not e.is_task} - {None}
        if len(ranks) == 1:
            cause = structs.replace(cause, rank=ranks.pop())
    if cause.host is None and cause.rank is not None:
        hosts = {e.host for e in log.events if e.rank == cause.rank and e.host and not e.is_task}
        if len(hosts) == 1:
            cause = structs.replace(cause, host=hosts.pop())
    named = [(e.rank, e.host) for e in log.events if e.host]
    known, hosts = {rank for rank, _ in named} - {None}, {host for _, host in named}
    is_one = len(hosts) == 1 and (len(known) == 1 or not (known or log.is_parallel))
    if cause.host is None and cause.rank is None and is_one:
        return structs.replace(cause, rank=next(iter(known), None), host=hosts.pop())
    return cause


def _find_lost_connection(cause: Cause, event: LogEvent) -> Cause:
    """Attribute an exception of a client to the connection error directly before it."""
    error = event.connection_error
    if cause.id != "code_error" or error is None or not _CLIENT.search(cause.text):
        return cause
    title = f"network failure ({_shorten(error.text)}), then: {_shorten(cause.text)}"
    return structs.replace(cause, id="lost_connection", cls="auth_network", title=title)


def _cause_of_connection_error(event: LogEvent) -> Cause:
    return Cause(
        id="lost_connection",
        cls="auth_network",
        title=f"network failure: {_shorten(event.text)}",
        file=event.file,
        line=event.line,
        text=event.text,
        rank=event.rank,
        host=event.host,
    )


def _shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


# ---- stages of a script


def _stage_at(log: LogFindings, line: int) -> int:
    """Return the number of the stage that a line belongs to; 0: there is none."""
    return next((stage.number for stage in reversed(log.stages) if stage.line <= line), 0)


def _find_first_stage(
    cause: Cause,
    event: LogEvent,
    log: LogFindings,
    launches: Sequence[Sequence[LogEvent]],
    records: EndRecords,
) -> tuple[Cause, list[Cause]]:
    """Find the stage whose failure left the later ones without their input.

    Returns:
        The cause, and the failures of the later stages.
    """
    failures = [event]
    for launch in reversed(launches[:-1]):
        first, begins = _first_failure_of(launch), failures[-1]
        if first is None or not _misses_input(begins) or begins.steps >= _STEPS_OF_OTHER:
            break
        # A program that was started again after it failed is no later stage of a script.
        if begins.is_rerun and not log.stages:
            break
        failures.append(first)
    *later, root = failures
    if root.text == event.text:  # each start failed in the same way
        return cause, []
    found = _locate(_use_details(_make_cause(root, records), log.events), root, log)
    is_checkpoint = any(_CHECKPOINT.search(each.text) for each in later)
    missing = "no checkpoint" if is_checkpoint else "no input"
    stages = {stage.number: stage for stage in log.stages}
    numbers = sorted({_stage_at(log, each.begin) for each in later})
    own = _stage_at(log, root.begin)
    if own and all(numbers) and own not in numbers:
        name = f"stage {own}" + (f", {stages[own].name}," if stages[own].name else "")
        others = "stage " if len(numbers) == 1 else "stages "
        others += " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))
        title = f"{name} failed: {found.title}; {others} then found {missing}"
    else:
        others = "the next stage" if len(later) == 1 else f"the next {len(later)} stages"
        title = f"{found.title}; {others} then found {missing}"
    return structs.replace(found, title=title), [_make_cause(each, records) for each in later[::-1]]


def _first_failure_of(launch: Sequence[LogEvent]) -> LogEvent | None:
    """Return the event that explains the end of an earlier launch."""
    ended = [e for e in launch if e.ends or e.in_traceback or e.rule.id in (*_FATAL, *_CERTAIN)]
    return min(ended, key=lambda e: (-e.kind, e.line), default=None)


def _misses_input(event: LogEvent) -> bool:
    return event.rule.id in _MISSING_INPUT or (
        event.rule.id == "code_error" and _MISSING_TEXT.search(event.text) is not None
    )


# ---- what the records say


def _cause_by_records(
    evidence: FailureEvidence,
    ranked: Sequence[_LocatedEvent],
    last: Sequence[_LocatedEvent],
) -> Cause | None:
    """Return the cause that the records decide; None if the logs do."""
    records, events = evidence.records, [event for _, event in ranked]
    if records.why in ("stalled", "stopped") and not records.unfit:
        return None if events and events[0].kind >= ERROR else ends.cause_of_stall(records)
    has_root = any(e.kind >= ERROR and e.rule.id != "requeued" for e in events)
    if (cause := ends.cause_without_log(records, has_root=has_root)) is not None:
        return cause
    rule = records.rule
    if rule is None:
        return None
    # That a process was asked to terminate shows less than the record does.
    likely = [e for e in events if e.rule.id not in ("torchrun_sigterm", "step_cancelled")]
    shown = [event for event in likely if event.rule.cls == rule.cls]
    if rule.cls == "time_limit":
        end = min(shown, key=lambda event: event.line, default=None)
        if (crash := _crash_before(end, None, evidence, last)) is not None:
            return _make_cause(crash, records)
    # A person may cancel what is about to restart.
    restarted = ("preempted", "requeued") if records.cancelled_by else ("requeued",)
    if rule.cls == "cancelled":
        crash = _crash_before(shown[0] if shown else None, None, evidence, last)
        roots = [event for event in events if event.kind == ROOT and event.rule.id not in restarted]
        roots = [event for event in roots if event.rule.cls != "cancelled"]
        # A rank that died of something else may have ended the job so.
        first = min(roots, key=lambda event: event.line, default=None)
        if first is not None and first.rule.cls != "time_limit":
            return _make_cause(first, records)
        if crash is not None and crash.kind >= ERROR and crash.rule.id not in restarted:
            return _make_cause(crash, records)
    if shown:
        found = _make_cause(shown[0], records)
        if rule.cls == "oom_host" and found.rank is None and records.rank is not None:
            found = structs.replace(found, rank=records.rank, host=found.host or records.host)
        is_by_slurm = found.id == rule.id and rule.cls != "oom_host"
        title = ends.title_of_end(rule, records)
        return structs.replace(found, title=title) if is_by_slurm else found
    return ends.cause_of_end(rule, records)


# ---- documentation


def faq_rows(section: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield the rows of a section of docs/faq.md: messages and states, meaning, what to do."""
    for rule in SECTIONS[section]:
        states = [state for state, id_ in ends.END_RULES.items() if id_ == rule.id]
        states = [state for state in states if state.isupper()]
        if not rule.message:
            continue
        generic = [fixes.GENERIC.get(fix, fix) for fix in rule.fixes]
        title = re.sub(r"\{\w+\}", "...", rule.title).removesuffix(": ...")
        yield [*states, *rule.message.split(" / ")], title, "; ".join(generic)
