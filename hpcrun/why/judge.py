"""Evidence -> diagnosis: which of all that went wrong came first and explains the rest."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct, structs

from hpcrun.why.reading import MOVED_ON, Event, Found
from hpcrun.why.rule import ERROR, ROOT, SYMPTOM, WEAK, Cause, Class, Diagnosis, Rule
from hpcrun.why.rules import BY_ID, SECTIONS

# Further causes that are named.
_ALSO = 5
# Lines between the end of a process and what is of another launch; those after which the end that
# Slurm gave a job has nothing to do with it; those that torchrun writes on processes that failed.
_APART, _FAR, _REPORT = 20, 100, 12
# Symptoms that the end of a run that ended well has, too.
_OF_OTHERS = ("nccl_remote_exit", "nccl_id_store")
# Lines of progress, and of any kind, that only another program writes after one has ended.
_AGAIN, _EPILOG, _LONG = 5, 30, 1000
# What a shell complains about, and goes on; what shows that a process has ended.
_SHELL = ("lmod", "no_command", "shell_no_file")
_FATAL = (
    "killed", "oom_guess", "srun_oom", "crash", "bus_exit", "abort", "srun_exit", "srun_killed",
    "srun_crash", "torchrun_child", "torchrun_exit", "mpi_abort", "cancelled", "time_limit",
)  # fmt: skip
# What ends its process for certain, whatever other ranks print afterwards.
_CERTAIN = ("enospc", "slurm_oom", "xid", "nccl_watchdog", "nan_raised", "device_assert")
# Seconds by which one failure may come before another that explains it; of a year of 31-day months.
_LATE, _YEAR = 60, 372 * 86400
# So many lines at most lie between a crash and the time limit that the other ranks then run into.
_SOON = 60


class Job(Struct, frozen=True, kw_only=True):
    """What a job's fixes need: its word on the command line and its own numbers; None: not known.

    ``memory_mib``: of each node. ``limit``: seconds. ``is_run``: hpcrun submitted it.
    ``has_saved``: there is something where its checkpoints would be.
    """

    word: str = "JOB"
    is_run: bool = False
    has_saved: bool = False
    micro_batch: int | None = None
    accumulation: int | None = None
    memory_mib: int | None = None
    limit: float | None = None
    exclude: str = ""


class Records(Struct, frozen=True, kw_only=True):
    """What Slurm and the job itself recorded of its end; "" and None: nothing.

    ``state`` is Slurm's, ``why`` a word of runs.ends. ``node_reason``: why ``node_out`` is out.
    ``cancelled_by``: who ended it, ``when``: after what time, ``memory``: how much of the host's it
    used, where that was nearly all; as people write them. ``slurm_code``: its ``code:signal``.
    ``output``: where its output was to go, ``has_begun``: its script began. ``is_over``: it will
    not start again. ``killed``: what was killed, or could not be launched. ``unfit``: what a check
    found wrong with ``host``. ``stalled``: whom the others waited for, and where. ``gave_up``: why
    a run that goes on after such ends did not.
    """

    state: str = ""
    why: str = ""
    exit_code: int | None = None
    signal: int | None = None
    rank: int | None = None
    host: str | None = None
    unfit: str = ""
    stalled: str = ""
    gave_up: str = ""
    node_reason: str = ""
    node_out: str = ""
    cancelled_by: str = ""
    when: str = ""
    memory: str = ""
    slurm_code: str = ""
    output: str = ""
    has_begun: bool = True
    is_over: bool = False
    killed: str = ""

    @property
    def ended_well(self) -> bool:
        """Whether it is known to have ended well."""
        return self.state == "COMPLETED" or (not self.state and self.why == "done")

    @property
    def has_failed(self) -> bool:
        """Whether it is known to have failed."""
        return bool(self.state or self.why) and not self.ended_well


class Evidence(Struct, frozen=True, kw_only=True):
    """All that is known of a job's end; ``logs`` in the order in which they count.

    ``ranks`` are those that have a log of their own among them.
    """

    logs: Sequence[Found] = ()
    ranks: Collection[int] = ()
    records: Records = Records()
    job: Job = Job()


def diagnose(evidence: Evidence) -> Diagnosis:
    """Decide why a job failed."""
    records = evidence.records
    if records.ended_well:
        return Diagnosis()
    last, earlier = _episodes(evidence)
    clock = _Clock(last)
    ranked = sorted(last, key=lambda item: _order(item, evidence, last, clock))
    cause = _of_records(records, [event for _, event in ranked])
    if cause is None and ranked and _is_telling(ranked[0][1], records):
        index, event = ranked[0]
        cause = _with_absent(_cause(event, records), last, evidence.ranks)
        cause = _with_whose(cause, event, evidence.logs[index])
    if cause is None and records.has_failed:
        cause = _silent(records, has_logs=bool(evidence.logs))
    if cause is None:
        return Diagnosis(verdict="ask" if records.has_failed else None)
    if records.gave_up:
        cause = structs.replace(cause, title=f"{cause.title}; {records.gave_up}")
    named = {cause.id: cause}
    for event in [*(event for _, event in ranked if event.kind >= WEAK), *earlier]:
        named.setdefault(event.rule.id, _cause(event, records))
    rule = BY_ID.get(cause.id)
    verdict = "exclude_node" if cause.id in _UNFIT else rule.advice if rule is not None else "ask"
    job = evidence.job
    fixes = rule.fixes if rule is not None else _FIXES.get(cause.id, ())
    if cause.id == "cancelled" and records.cancelled_by:
        fixes = ("{again}",)
    if cause.id == "requeued" and records.is_over:
        cause = structs.replace(cause, title=f"{cause.title}, and did not start again")
        fixes = ("{again}",)
    if records.gave_up:  # it has asked to go on
        fixes = tuple(fix for fix in fixes if not fix.startswith("`survive:"))
    if not job.is_run:  # its user has no keys of hpcrun's
        fixes = tuple(fix for fix in fixes if not fix.startswith(_OF_RUNS))
    if job.word == Job().word:  # of logs alone, for which hpcrun's verbs have no job
        fixes = tuple(fix for fix in fixes if job.word not in fix)
    return Diagnosis(
        verdict=verdict,
        cause=cause,
        also=list(named.values())[1 : _ALSO + 1],
        fixes=list(dict.fromkeys(fill_in(fix, job, cause.host, cause.rank) for fix in fixes)),
    )


# ---- what counts of the logs


def _episodes(evidence: Evidence) -> tuple[list[tuple[int, Event]], list[Event]]:
    """Give the events after the last progress of each log, and what earlier failures left."""
    last: list[tuple[int, Event]] = []
    earlier: list[Event] = []
    for index, found in enumerate(evidence.logs):
        events = _without_chains(found.events)
        at = _last_launch(events, is_parallel=found.is_parallel)
        has_failed = evidence.records.has_failed and found.moved_on < MOVED_ON
        if events[at:] and not has_failed and _is_got_over(found, events[at:]):
            at = len(events)
        last += [(index, event) for event in events[at:]]
        ended = (event for event in events[:at] if event.in_traceback or event.ends)
        earlier += [event for event in ended if event.kind >= (WEAK if event.ends else ERROR)]
    return last, earlier[::-1]


def _is_got_over(found: Found, events: Sequence[Event]) -> bool:
    """Return whether what comes after these events shows that nothing ended by them, or that what
    ended was followed by another launch that did well."""
    ran = _SHELL if found.has_warned or found.is_done else ()
    if not found.is_parallel and found.lines > _LONG:
        return True
    if found.moved_on >= MOVED_ON or all(e.is_taken_back or e.rule.id in ran for e in events):
        return True
    # What ends no program: its threads and connections may complain at its exit.
    is_less = all(e.kind <= SYMPTOM or e.kind < e.rule.kind for e in events)
    if is_less and events[0].after_all:
        return True
    is_fatal = any(event.rule.id in _FATAL for event in events)
    if any(event.ends for event in events):
        # A program that has ended writes nothing; the ranks beside it may, and the site's epilog.
        begins_again = found.moved_on >= (2 if found.is_well else _AGAIN)
        begins_again |= found.has_warned and not is_fatal
        is_over = not found.is_parallel or any(e.rule.id == "torchrun_child" for e in events)
        return (begins_again or found.plain > _EPILOG) and is_over
    if is_fatal:
        return False  # what a batch script says after a crash is no sign of success
    if found.is_well or any(event.rule.id in _CERTAIN for event in events):
        return found.is_well
    if not found.is_parallel:
        # What a program or shell only prints ends nothing where it visibly goes on.
        least = _REPORT if found.moved_on else _APART
        if found.moved_on > 2 or found.plain > least:
            return True
    goes_on = found.moved_on > 1 or found.plain > _EPILOG
    return is_less and goes_on and any(e.kind < e.rule.kind for e in events)


def _last_launch(events: Sequence[Event], *, is_parallel: bool) -> int:
    """Find where the events of the last launch begin, by what ended the one before."""
    first, has_ended, has_raised, reported = 0, False, False, None
    for at, event in enumerate(events):
        is_new = event.progress >= MOVED_ON
        is_again = event.rule.cls == "cancelled" and event.progress >= _AGAIN
        if not is_parallel and (event.kind >= WEAK or is_again):
            at_once = event.ends and event.rule.id not in _FATAL  # ranks are killed together
            is_new |= has_ended and (at_once or event.progress >= _AGAIN)
            is_new |= has_raised and event.begin - events[at - 1].line > _APART
        is_late = event.rule.id == "terminated"
        is_end = (event.in_traceback or event.ends) and event.kind >= ERROR
        if reported is not None and (is_end or is_late):
            is_new |= event.begin - reported.line > (_FAR if is_late else _REPORT)
        if is_new:
            first, has_ended, has_raised, reported = at, False, False, None
        has_ended |= event.ends
        has_raised |= event.ends or event.in_traceback
        reported = event if event.rule.id == "torchrun_child" and event.in_traceback else reported
    return first


def _without_chains(events: Sequence[Event]) -> list[Event]:
    """Leave one event of each chain of tracebacks: the one that a rule knows, else that somebody
    ended the program, else the last."""
    best: dict[int, Event] = {}
    weights: dict[int, float] = {}
    for event in events:
        weight = ERROR + 0.5 if event.rule.cls == "cancelled" else event.kind
        if weights.get(event.chain, 0) < ROOT and weight >= weights.get(event.chain, 0):
            best[event.chain], weights[event.chain] = event, weight
    kept: list[Event] = []
    progress = 0
    for event in events:
        progress = max(progress, event.progress)
        if not event.chain or best[event.chain] is event:
            event.progress, progress = progress, 0
            kept.append(event)
    return kept


class _Clock:
    """When events of several logs happened, by the times in their lines.

    Without a time, or where times do not compare, it was at the beginning: the order of the files
    and lines decides.
    """

    def __init__(self, last: Sequence[tuple[int, Event]]) -> None:
        known = [event.at for _, event in last if event.at is not None]
        compare = len({index for index, _ in last}) > 1 and len({zone for zone, _ in known}) == 1
        times = [time for _, time in known] if compare else []
        self._first, self._last = min(times, default=0.0), max(times, default=0.0)
        self._compare = compare
        self._began: dict[int, float] = {}
        for index, event in last:
            if event.kind >= ERROR and event.at is not None:
                time = self.time(event)
                self._began[index] = min(time, self._began.get(index, time))

    def time(self, event: Event) -> float:
        """Return when it happened, in seconds."""
        if event.at is None or not self._compare:
            return self._first
        time = event.at[1]
        if self._last - self._first > _YEAR / 2:  # around New Year
            time += _YEAR * (time < self._first + _YEAR / 2)
        return time

    def is_late(self, index: int, event: Event) -> bool:
        """Return whether another log tells of a failure long before."""
        others = [time for other, time in self._began.items() if other != index]
        return event.kind >= ERROR and self.time(event) > min(others, default=1e18) + _LATE


def _order(
    item: tuple[int, Event], evidence: Evidence, last: Sequence[tuple[int, Event]], clock: _Clock
) -> tuple[bool, bool, bool, int, bool, float, int, int]:
    """The least one is the cause: what is one first; then the rank that failed first; then what
    did not come long after another log's failure; then the kind; of equal ones that of the rank
    that torchrun saw first; then times, files and lines."""
    index, event = item
    is_first = evidence.records.rank is not None and event.rank == evidence.records.rank
    seen = evidence.logs[index].first
    is_seen = seen is not None and event.rank == seen[0]
    kind = event.kind
    if event.rule.id == "ctrl_c" and event.in_traceback:
        # What a process complains about after it was interrupted is no cause.
        before = [e for i, e in last if i == index and e.line < event.line]
        kind = ROOT if all(e.kind < WEAK for e in before) else kind
    kinds = -2 * kind + (event.rule.id in _SHELL)  # of two weak signs not the shell's
    is_late = clock.is_late(index, event)
    time = clock.time(event)
    return kind < ERROR, not is_first, is_late, kinds, not is_seen, time, index, event.line


def _is_telling(event: Event, records: Records) -> bool:
    """Return whether a job failed by a line alone: a connection that closes may be one's end. Where
    a rank is known to have failed, no weak sign in a log of no rank is, nor a launcher's report."""
    is_less = event.kind <= WEAK and event.rank is None
    is_less |= event.rule.id in ("torchrun_child", "torchrun_exit")
    is_known = records.host is not None and event.rule.id == "srun_exit"
    if is_known or (records.rank is not None and is_less):
        return False
    is_end = event.ends or event.rule.id not in _OF_OTHERS
    return event.kind > SYMPTOM or records.has_failed or is_end


def _cause(event: Event, records: Records) -> Cause:
    host = event.host
    if host is None and event.rank is not None and event.rank == records.rank:
        host = records.host
    return Cause(
        id=event.rule.id,
        cls=event.rule.cls,
        title=_title(event.rule.title, event.values),
        file=event.file,
        line=event.line,
        text=event.text,
        rank=event.rank,
        host=host,
    )


def _with_absent(
    cause: Cause, events: Sequence[tuple[int, Event]], ranks: Collection[int]
) -> Cause:
    """Name the few ranks that the others have waited for: those that report no timeout."""
    waited = {event.rank for _, event in events if event.rule.id == cause.id}
    absent = sorted(set(ranks) - waited)
    if cause.id != "nccl_watchdog" or not absent or len(absent) > len(waited):
        return cause
    named = ", ".join(map(str, absent))
    whose = f"rank{'s' if len(absent) > 1 else ''} {named}"
    title = f"a collective timed out: the other ranks have waited for {whose}"
    return structs.replace(cause, title=title)


def _with_whose(cause: Cause, event: Event, log: Found) -> Cause:
    """Name rank and host by torchrun's report, where the line itself names no other ones, or by the
    only ones that the log names."""
    is_end = event.in_traceback or event.rule.id in _FATAL
    if log.first is not None and is_end and cause.rank in (None, log.first[0]):
        return structs.replace(cause, rank=log.first[0], host=cause.host or log.first[1])
    ranks = {each.rank for each in log.events if each.text == event.text} - {None}
    if cause.rank is None and len(ranks) == 1:  # written twice, by Python and by torch
        cause = structs.replace(cause, rank=ranks.pop())
    named = {(each.rank, each.host) for each in log.events if each.host}
    if cause.host is None and cause.rank is None and len(named) == 1:
        rank, host = named.pop()
        if rank is not None or not log.is_parallel:
            return structs.replace(cause, rank=rank, host=host)
    return cause


def _title(title: str, values: dict[str, str]) -> str:
    """Fill a rule's sentence in; what the line does not say is left out.

    A pattern may have a name in several places: {path} is also path2.

    >>> _title("no {path}", {"path2": "x"})
    'no x'
    >>> _title("no module {name}", {"name": "x"}), _title("refused: {why}", {})
    ('no module x', 'refused')
    """

    def value(found: re.Match[str]) -> str:
        names = (found[1], f"{found[1]}2", f"{found[1]}3")
        return next((values[name] for name in names if values.get(name)), "").strip()[:200]

    text = re.sub(r"\{(\w+)\}", value, title)
    return re.sub(r"\s{2,}", " ", text).strip().rstrip(":").strip()


# ---- what the records say

# How the ends that Slurm or the harness record are called here, and the rule that has their fixes.
_ENDS: dict[str, str] = {
    "time_limit": "time_limit", "TIMEOUT": "time_limit", "DEADLINE": "time_limit",
    "preempted": "preempted", "PREEMPTED": "preempted", "requeued": "requeued",
    "REQUEUED": "requeued", "node_fail": "node_fail", "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail", "cancelled": "cancelled", "CANCELLED": "cancelled",
    "out_of_memory": "slurm_oom", "OUT_OF_MEMORY": "slurm_oom",
}  # fmt: skip
_UNFIT = ("unfit", "not_begun")
# How fixes begin that are of no use for a job that hpcrun did not submit.
_OF_RUNS = ("`--set", "`setup:", "`resources.", "`survive:", "`hpcrun submit", "`local_dir:")
# Exit codes that a shell gives a meaning (bash(1), EXIT STATUS).
_CODES = {126: "a file could not be executed", 127: "a command was not found"}
_FIXES: dict[str, tuple[str, ...]] = {
    "unfit": ("{without_node}", "tell the site; `--set preflight=false` if the check is wrong"),
    "stalled": ("`hpcrun logs {of_rank}JOB`: its last lines; its stack, where `status` names one",),
    "silent": ("`hpcrun logs JOB`: its last lines",),
    "no_logs": ("{again}",),
    "script_killed": ("{again}",),
    "forgotten": ("`hpcrun why FILE`, with the file of its output",),
    "no_output": ("make the folder before the job is submitted, where its nodes see it",),
    "not_begun": ("{without_node}", "report the node to the site's support"),
}


def _of_records(records: Records, events: Sequence[Event]) -> Cause | None:
    """Make the cause that the records alone decide; None: the logs do."""
    if records.unfit:
        title = f"{records.host} is not fit for the job: {records.unfit}"
        return Cause(id="unfit", cls="node_fail", title=title, host=records.host)
    if records.why in ("stalled", "stopped"):
        if events and events[0].kind >= ERROR:
            return None
        if records.why == "stopped":
            title = "its ranks were asked to end by a signal, as Ctrl-C and scancel --signal send"
            return Cause(id="step_cancelled", cls="cancelled", title=title)
        title = f"the run stood still{': ' + records.stalled if records.stalled else ''}"
        return Cause(id="stalled", cls="other", title=title, rank=records.rank, host=records.host)
    if records.slurm_code == "0:53":  # what slurmstepd leaves where it cannot open a job's files
        title = f"Slurm could not open the file of the job's output on the node: {records.output}"
        title = title.removesuffix(": ")
        return Cause(id="no_output", cls="missing_file", title=title, text="exit code 0:53")
    if not records.has_begun and records.node_reason:
        title = f"the job was never begun: {records.node_reason}"
        host = records.node_out or None
        return Cause(id="not_begun", cls="node_fail", title=title, text=records.state, host=host)
    if records.killed and not any(e.kind >= ERROR and e.rule.id != "requeued" for e in events):
        return Cause(id="script_killed", cls="other", title=records.killed, text=records.state)
    rule_id = _ENDS.get(records.why) or _ENDS.get(records.state)
    if rule_id is None:
        return None
    rule = BY_ID[rule_id]
    # That a process was asked to end shows less than the record does.
    weak = ("torchrun_sigterm", "step_cancelled")
    likely = [event for event in events if event.rule.id not in weak]
    shown = [event for event in likely if event.rule.cls == rule.cls]
    if rule.cls == "time_limit" and (crash := _crash_before(events, shown)) is not None:
        return _cause(crash, records)
    # A person may cancel what was about to start again.
    again = ("preempted", "requeued") if records.cancelled_by else ("requeued",)
    roots = [event for event in events if event.kind == ROOT and event.rule.id not in again]
    if rule.cls == "cancelled" and any(event.rule.cls != rule.cls for event in roots):
        # A rank that died of something else may have ended the job so.
        first = min(roots, key=lambda event: event.line)
        if first.rule.cls != "time_limit":
            return _cause(first, records)
    if shown:
        found = _cause(shown[0], records)
        if rule.cls == "oom_host" and found.rank is None and records.rank is not None:
            found = structs.replace(found, rank=records.rank, host=found.host or records.host)
        is_by_slurm = found.id == rule_id and rule.cls != "oom_host"
        return structs.replace(found, title=_of_slurm(rule, records)) if is_by_slurm else found
    is_whose = rule.cls in ("oom_host", "node_fail")
    return Cause(
        id=rule_id,
        cls=rule.cls,
        title=_of_slurm(rule, records),
        text=records.state or records.why,
        rank=records.rank if is_whose else None,
        host=records.host if is_whose else None,
    )


def _of_slurm(rule: Rule, records: Records) -> str:
    """Say how Slurm ended a job: by whom, why its node is out, and how long the job had run."""
    title = rule.title
    if rule.id == "cancelled" and records.cancelled_by:
        title = f"cancelled by {records.cancelled_by}"
    if rule.cls == "node_fail" and records.node_reason:
        title += f": {records.node_reason}"
    return title + (f", {records.when}" if records.when else "")


def _crash_before(events: Sequence[Event], shown: Sequence[Event]) -> Event | None:
    """Find the crash of one rank for which the others waited until the time limit."""
    end = min((event.line for event in shown), default=None)
    for event in events:
        is_crash = event.kind >= ERROR and event.rule.cls not in ("time_limit", "cancelled")
        if is_crash and (end is None or 0 <= end - event.line <= _SOON):
            return event
    return None


def _silent(records: Records, *, has_logs: bool) -> Cause:
    """Say how a process ended that left no word on why."""
    whose = f"rank {records.rank}" if records.rank is not None else "the job"
    whose += f" on {records.host}" if records.host else ""
    of_script = records.slurm_code.removeprefix("0:")  # the signal that ended it; else an exit code
    cls: Class = "other"
    if records.signal == 9:
        rule = BY_ID["oom_guess"]
        return Cause(
            id=rule.id, cls=rule.cls, title=rule.title, text=f"{whose} ended by signal 9",
            rank=records.rank, host=records.host,
        )  # fmt: skip
    if records.signal in (4, 7, 8, 11):
        cls = "shm" if records.signal == 7 else "code_error"
        how = f"crashed with signal {records.signal}"
    elif signal := records.signal or (int(of_script) if of_script.isdigit() else 0):
        how = f"was ended by signal {signal}"
    else:
        how = f"ended with exit code {records.exit_code}" if records.exit_code else "failed"
        code = records.exit_code or 0
        meaning = f"as after signal {code - 128}" if 128 < code < 160 else _CODES.get(code, "")
        how += f" ({meaning})" if meaning else ""
    if not has_logs and not records.output:  # all that is left is the accounting
        how += f" {records.when}" if records.when else ""
        how += f", {records.memory}" if records.memory else ""
    cause = Cause(
        id="silent" if has_logs else "no_logs" if records.output else "forgotten",
        cls=cls,
        title=f"{whose} {how}",
        rank=records.rank,
        host=records.host,
    )
    return structs.replace(cause, title=f"{cause.title}, and {cause.without_log}")


# ---- fixes


def fill_in(fix: str, job: Job, host: str | None, rank: int | None = None) -> str:
    """Put the job's own numbers into a fix.

    >>> job = Job(word="4711", is_run=True, micro_batch=4, accumulation=2)
    >>> fill_in("{smaller_batch}", job, None).partition("  #")[0].split(" --set ")[1:]
    ['batch.micro_batch_per_gpu=2', 'batch.gradient_accumulation_steps=4']
    >>> fill_in("{without_node}", job, "n3")
    'hpcrun resubmit 4711 --set slurm.exclude=n3'
    """
    text = re.sub(r"^\{(\w+)\}", lambda found: _command(found[1], job, host) or found[0], fix)
    text = text.replace("{of_rank}", "" if rank is None else f"--rank {rank} ")
    if job.is_run:  # there is a run to take the options
        text = text.replace("`hpcrun submit JOB", "`hpcrun resubmit JOB")
    # What can be typed ends at a #, as for a shell.
    text = re.sub(r"^`(hpcrun [^`]+)`[:;,]? *(?=\S)", r"\1  # ", text)
    return re.sub(r"\bJOB\b", job.word, text.replace("`", ""))


def _command(name: str, job: Job, host: str | None) -> str:
    again = f"hpcrun resubmit {job.word}"
    if not job.is_run:
        return _PLAIN.get(name, "")
    if name == "again":
        return again
    if name == "without_node":
        nodes = ",".join(filter(None, [job.exclude, host]))
        return f"{again} --set slurm.exclude={nodes or 'NODE'}"
    if name == "more_time":
        minutes, seconds = divmod(round(2 * (job.limit or 43200)), 60)
        time = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        return f"{again} --time {time}" + "  # on from the checkpoints" * job.has_saved
    if name == "more_memory":
        if not job.memory_mib:
            return "more `resources.memory_per_node`".replace("`", "")
        return f"{again} --set resources.memory_per_node={2 * job.memory_mib}M"
    if name == "smaller_batch":
        if not job.micro_batch or not job.accumulation:
            return _PLAIN[name]
        if job.micro_batch == 1:
            return "the micro batch is 1 already: fewer tokens a sample"
        factor = next(n for n in range(2, job.micro_batch + 1) if job.micro_batch % n == 0)
        micro, steps = job.micro_batch // factor, job.accumulation * factor
        return (
            f"{again} --set batch.micro_batch_per_gpu={micro} "
            f"--set batch.gradient_accumulation_steps={steps}  # same effective batch"
        )
    return ""


# For jobs that hpcrun did not submit.
_PLAIN = {
    "again": "submit it again",
    "without_node": "submit it again with --exclude=NODE",
    "more_time": "submit it again with more --time",
    "more_memory": "submit it again with more --mem",
    "smaller_batch": "a smaller batch for each GPU, and more gradient accumulation instead",
}


def faq_rows(section: str) -> Iterator[tuple[list[str], str, str]]:
    """Give the rows of a section of docs/faq.md: messages and states, meaning, what to do."""
    for rule in SECTIONS[section]:
        states = [state for state, id_ in _ENDS.items() if id_ == rule.id and state.isupper()]
        if not rule.message:
            continue
        fixes = [_GENERIC.get(fix, fix) for fix in rule.fixes]
        title = re.sub(r"\{\w+\}", "...", rule.title).removesuffix(": ...")
        yield [*states, *rule.message.split(" / ")], title, "; ".join(fixes)


# In docs/faq.md, where there is no job.
_GENERIC = {
    "{again}": "`hpcrun resubmit JOB`",
    "{without_node}": "`hpcrun resubmit JOB --set slurm.exclude=NODE`",
    "{more_time}": "`hpcrun resubmit JOB --time 24:00:00`: goes on from the checkpoints",
    "{more_memory}": "`hpcrun resubmit JOB --set resources.memory_per_node=200G`",
    "{smaller_batch}": "`hpcrun resubmit JOB --set batch.micro_batch_per_gpu=1`, and "
    "`gradient_accumulation_steps` up for the same effective batch",
}
