"""Views of a run's attempts, their cost, and the ends after which the run restarts."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from itertools import zip_longest

from hpcrun.plan import SurvivePlan
from hpcrun.runs import (
    END_NAMES,
    SURVIVABLE_ENDS,
    Attempt,
    Cost,
    End,
    Failure,
    JobStatus,
    ResourceUsage,
    describe_sampled_gpus,
)
from hpcrun.text import format_clock, format_count, format_size, replace_unprintable


def format_attempt_rows(
    attempts: Sequence[Attempt],
    local_time: Callable[[float], str],
    elapsed: float | None = None,
    *,
    resumes: bool = True,
) -> list[tuple[str, ...]]:
    """Describe each attempt in a row of ATTEMPT_COLUMNS.

    Args:
        elapsed: The seconds of the last attempt, if known more precisely than from its records.
        resumes: The plan shows that something makes the program resume.
    """
    rows: list[tuple[str, ...]] = []
    for attempt, after in zip_longest(attempts, attempts[1:]):
        begin, end, first = attempt.begin, attempt.end, attempt.first_step
        then = (
            replace_unprintable(f"{'' if end.why == 'pruned' else 'does not restart: '}{end.note}")
            if end is not None and end.note
            else ""
        )
        is_next = end is not None and end.next is not None
        saved = end.checkpoint if end is not None and is_next else None
        if after is not None and after.resumed is not None:
            is_next, saved = True, after.resumed
        if is_next:
            then = f"resumes from {_checkpoint_name(saved)}"
            if saved and not resumes:
                then = "starts from scratch: nothing makes the program resume"
            elif not saved and end is not None and end.stopped_by == "TERM":
                then += ": no complete checkpoint existed when it was killed"
        cells = (
            str(attempt.index),
            local_time(begin.begun_at) if begin is not None else "",
            begin.nodes if begin is not None else "",
            format_clock(
                elapsed if end is not None and after is None and elapsed else attempt.seconds()
            ),
            "" if first is None else f"{first} to {attempt.last_step}",
            "" if end is None else _describe_end(end),
            then,
        )
        rows.append(cells)
    return rows


def format_attempts(status: JobStatus, local_time: Callable[[float], str]) -> list[str]:
    """Describe each attempt in a line."""
    texts = []
    attempts = status.history.attempts
    rows = format_attempt_rows(
        attempts,
        local_time,
        status.elapsed,
        resumes=status.plan is None or status.plan.resumes,
    )
    for attempt, cells in zip(attempts, rows, strict=True):
        number, began, nodes, ran, steps, how, then = cells
        if attempt is status.last and status.final and attempt.end and attempt.end.next:
            then = ""  # the run was cancelled meanwhile
        if attempt.end is not None:
            how = f": {how}" if how.startswith("exit code") else f" by {how}"
            how = f"ended after {ran}{how}"
        elif attempt is status.last and not status.final:
            how = "is running" if began else "has not started"
        else:
            how = "left no end record: its node died or it was killed"
            if attempt.beat is not None and began:
                how += f", last heartbeat after {ran}"
        parts = [number, f"{began} on {nodes}" if began else "", f"steps {steps}" if steps else ""]
        texts.append("  ".join(filter(None, [*parts, "; ".join(filter(None, [how, then]))])))
    return texts


def describe_common_facts(attempts: Sequence[Attempt]) -> str:
    """Describe the properties that all ended attempts share; "" if there are none."""
    facts = [
        (
            _describe_end(attempt.end) if attempt.end is not None else "no end record",
            f"on {attempt.begin.nodes}" if attempt.begin is not None else "",
            _describe_first_failure(attempt.end.first_failure) if attempt.end is not None else "",
            _last_step_text(attempt),
            "" if attempt.resumed is None else f"started from {_checkpoint_name(attempt.resumed)}",
        )
        for attempt in attempts
    ]
    return ", ".join(each[0] for each in zip(*facts, strict=True) if each[0] and len({*each}) == 1)


def _last_step_text(attempt: Attempt) -> str:
    if attempt.last_step is not None:
        return f"last at step {attempt.last_step}"
    return "before the first step" if attempt.moved is None else "with no step in its log"


def _describe_first_failure(failure: Failure | None) -> str:
    if failure is None:
        return ""
    who = "a launcher" if failure.rank is None else f"rank {failure.rank}"
    who += f" of role {failure.role}" if failure.role else ""
    return f"{who} on {failure.host} failed first"


def _describe_end(end: End) -> str:
    return END_NAMES.get(end.why or "") or f"exit code {format_exit(end)}"


def format_exit(end: End) -> str:
    """Describe how an attempt's process ended."""
    return str(end.exit_code) + (f", stopped by SIG{end.stopped_by}" if end.stopped_by else "")


def format_cost(cost: Cost | None, *, has_gpus: bool) -> str:
    """Describe the cost of several attempts, and how much of it was lost."""
    if cost is None:
        return ""
    parts = [f"{cost.hours:.2f} {'GPU' if has_gpus else 'node'} hours"]
    if cost.replayed is None or cost.replayed_steps is None:
        parts.append("unknown for repeated steps")
    else:
        done = format_count(cost.replayed_steps, "step")
        parts.append(f"{cost.replayed:.2f} for {done} repeated")
    if cost.stalled:
        parts.append(f"{cost.stalled:.2f} stalled")
    parts.append(f"{cost.restarting:.2f} restart overhead")
    if cost.goodput is not None:
        parts.append(f"goodput {100 * cost.goodput:.0f}%")
    return f"{', '.join(parts)}; {format_clock(cost.waited)} between attempts"


def describe_restarts(status: JobStatus) -> str:
    """Describe after which ends the run restarts, or that it is about to restart."""
    if status.is_between:
        return describe_next_attempt(status)
    survive = status.plan.survive if status.plan is not None else None
    return describe_survival(survive) if survive is not None else ""


def describe_next_attempt(status: JobStatus) -> str:
    """Describe why a run that waits between two attempts restarts, and from which checkpoint."""
    end = status.end
    if not status.is_between or end is None:
        return ""
    return (
        f"after {END_NAMES.get(end.why or '', 'its end')}, from {_checkpoint_name(end.checkpoint)}"
    )


def _checkpoint_name(checkpoint: str | None) -> str:
    name = posixpath.basename((checkpoint or "").rstrip("/"))
    return replace_unprintable(name or "the beginning")


def describe_survival(survive: SurvivePlan) -> str:
    """Describe after which ends a run restarts, and after which it does not; "" if it never does.

    >>> describe_survival(SurvivePlan(when=["preempted", "time_limit"], max_attempts=20))
    'after preemption, the time limit, at most 20 attempts; not after a failed node, a standstill'
    """
    if not survive.when:
        return ""
    yes = ", ".join(END_NAMES[why] for why in survive.when)
    no = ", ".join(END_NAMES[why] for why in SURVIVABLE_ENDS if why not in survive.when)
    text = f"after {yes}, at most {format_count(survive.max_attempts, 'attempt')}"
    return f"{text}; not after {no}" if no else text


def format_usage_rows(
    used: ResourceUsage | None, *, has_gpus: bool, estimated: int | None = None
) -> list[tuple[str, str]]:
    """Return rows about the resources that a finished job used, for two columns.

    Args:
        estimated: The memory of one GPU that was estimated at submission, in bytes.

    >>> used = ResourceUsage(memory_asked=8 << 30, memory_used=6 << 30, cpus=4, cpu_share=0.5)
    >>> format_usage_rows(used, has_gpus=False)
    [('used', 'host memory 6.0 GiB of 8.0 GiB (75%), 50% of 4 CPUs'), ('gpu', ''), ('trained', '')]
    >>> format_usage_rows(ResourceUsage(gpu_memory=40 << 30, trained_share=0.9), has_gpus=True)
    [('used', ''), ('gpu', 'memory up to 40.0 GiB'), ('trained', '90% of the time')]
    >>> format_usage_rows(ResourceUsage(gpu_memory=40 << 30), has_gpus=True, estimated=38 << 30)[1]
    ('gpu', 'memory up to 40.0 GiB (38.0 GiB estimated)')
    >>> format_usage_rows(ResourceUsage(gpu_share=0.9, gpus=4, sampled_gpus=1), has_gpus=True)[1]
    ('gpu', 'use 90% (1 of 4 GPUs sampled)')
    """
    if used is None:
        return []
    host, gpu = [], []
    if used.memory_used is not None:
        memory = f"host memory {format_size(used.memory_used)}"
        if used.memory_asked is not None:
            share = used.memory_used / used.memory_asked
            memory += f" of {format_size(used.memory_asked)} ({share:.0%})"
        host.append(memory)
    if used.cpu_share is not None:
        host.append(f"{used.cpu_share:.0%} of {format_count(used.cpus or 0, 'CPU')}")
    if used.gpu_memory is not None:
        total = used.gpu_memory_total
        of_all = f" of {format_size(total)}" if total is not None else ""
        about = f" ({format_size(estimated)} estimated)" if estimated is not None else ""
        gpu.append(f"memory up to {format_size(used.gpu_memory)}{of_all}{about}")
    if used.gpu_share is not None:
        looks = f" in {format_count(used.looks, 'look')} of hpcrun top" if used.looks else ""
        gpus = describe_sampled_gpus(used.sampled_gpus or 0, used.gpus or 0)
        gpu.append(f"use {used.gpu_share:.0%}{looks}{f' ({gpus})' if gpus else ''}")
    trained = f"{used.trained_share:.0%} of the time" if used.trained_share is not None else ""
    memory = ", ".join(gpu) if has_gpus else ""
    return [("used", ", ".join(host)), ("gpu", memory), ("trained", trained)]
