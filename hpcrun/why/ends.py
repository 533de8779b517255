"""The end of a job as Slurm and the job itself recorded it, and the causes that follow from it."""

from __future__ import annotations

from msgspec import Struct, structs

from hpcrun.why.rule import Cause, FailureClass, FailureRule
from hpcrun.why.rules import BY_ID

# The rules with the fixes of ends that Slurm or the job recorded.
END_RULES: dict[str, str] = {
    "time_limit": "time_limit",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "preempted": "preempted",
    "PREEMPTED": "preempted",
    "requeued": "requeued",
    "REQUEUED": "requeued",
    "node_fail": "node_fail",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "cancelled": "cancelled",
    "CANCELLED": "cancelled",
    "out_of_memory": "slurm_oom",
    "OUT_OF_MEMORY": "slurm_oom",
}
UNFIT_NODE = ("unfit", "not_begun")
# slurmstepd's exit code if it cannot open the output files of a job.
_OUTPUT_NOT_OPENED = "0:53"
# Exit codes with a meaning in shells (bash(1), EXIT STATUS).
_SHELL_CODES = {126: "a file could not be executed", 127: "a command was not found"}
RECORD_FIXES: dict[str, tuple[str, ...]] = {
    "unfit": (
        "{without_node}",
        "report the node to the site's support; `--set preflight=false` if the check is wrong",
    ),
    "stalled": ("`hpcrun logs {of_rank}JOB`: its last lines, and its stack if `status` names one",),
    "silent": ("`hpcrun logs JOB`: its last lines",),
    "no_logs": ("{again}",),
    "script_killed": ("{again}",),
    "forgotten": ("`hpcrun why FILE`, with its output file",),
    "no_output": ("create the directory before you submit, on a file system that the nodes see",),
    "not_begun": ("{without_node}", "report the node to the site's support"),
}


class EndRecords(Struct, frozen=True, kw_only=True):
    """What Slurm and the job itself recorded of its end; "" and None if unknown.

    Attributes:
        state: Slurm's state.
        why: The reason in the job's own end record, a word of runs.ends.
        unfit: What a node check found wrong with ``host``.
        stalled: Which rank the others waited for, and where.
        gave_up: Why a run that restarts after such ends did not.
        node_reason: Why Slurm drained the node ``node_out``.
        cancelled_by: The user who cancelled it.
        when: After which time, as text.
        memory: How much host memory it used if that was nearly all, as text.
        slurm_code: Slurm's ``code:signal``.
        output: Where its output was to be written.
        has_begun: Its script began.
        is_over: It will not start again.
        killed: What was killed, or could not be launched.
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
        """True if the job is known to have succeeded."""
        return self.state in ("COMPLETED", "PRUNED") or (
            not self.state and self.why in ("done", "pruned")
        )

    @property
    def has_failed(self) -> bool:
        """True if the job is known to have failed."""
        return bool(self.state or self.why) and not self.ended_well

    @property
    def rule(self) -> FailureRule | None:
        """The rule of an end that Slurm or the job recorded by name."""
        rule_id = END_RULES.get(self.why) or END_RULES.get(self.state)
        return BY_ID[rule_id] if rule_id is not None else None


def cause_without_log(records: EndRecords, *, has_root: bool) -> Cause | None:
    """Return the cause that is certain whatever the logs contain.

    ``has_root``: the logs contain a failure of the program, not only the end of the job.
    """
    if records.unfit:
        title = f"{records.host} failed the node check: {records.unfit}"
        return Cause(id="unfit", cls="node_fail", title=title, host=records.host)
    if records.slurm_code == _OUTPUT_NOT_OPENED:
        title = f"Slurm could not open the job's output file on the node: {records.output}"
        title = title.removesuffix(": ")
        return Cause(id="no_output", cls="missing_file", title=title, text="exit code 0:53")
    if not records.has_begun and records.node_reason:
        title = f"the job never started: {records.node_reason}"
        host = records.node_out or None
        return Cause(id="not_begun", cls="node_fail", title=title, text=records.state, host=host)
    if records.killed and not has_root:
        return Cause(id="script_killed", cls="other", title=records.killed, text=records.state)
    return None


def cause_of_stall(records: EndRecords) -> Cause:
    """Return the cause of a run that stalled, or whose ranks were stopped."""
    if records.why == "stopped":
        title = "its ranks were stopped by a signal, as sent by Ctrl-C or scancel --signal"
        return Cause(id="step_cancelled", cls="cancelled", title=title)
    title = f"the run stalled{': ' + records.stalled if records.stalled else ''}"
    return Cause(id="stalled", cls="other", title=title, rank=records.rank, host=records.host)


def cause_of_end(rule: FailureRule, records: EndRecords) -> Cause:
    """Return the cause of an end that Slurm or the job recorded, and no log shows."""
    is_of_rank = rule.cls in ("oom_host", "node_fail")
    return Cause(
        id=rule.id,
        cls=rule.cls,
        title=title_of_end(rule, records),
        text=records.state or records.why,
        rank=records.rank if is_of_rank else None,
        host=records.host if is_of_rank else None,
    )


def title_of_end(rule: FailureRule, records: EndRecords) -> str:
    """Describe how Slurm ended a job: who cancelled it, why its node is down, after which time."""
    title = rule.title
    if rule.id == "cancelled" and records.cancelled_by:
        title = f"cancelled by {records.cancelled_by}"
    if rule.cls == "node_fail" and records.node_reason:
        title += f": {records.node_reason}"
    return title + (f", {records.when}" if records.when else "")


def cause_of_silent_end(records: EndRecords, *, has_logs: bool) -> Cause:
    """Return the cause of a failure that no log explains: how the process ended."""
    whose = f"rank {records.rank}" if records.rank is not None else "the job"
    whose += f" on {records.host}" if records.host else ""
    # The signal that ended the batch script, or an exit code.
    script_signal = records.slurm_code.removeprefix("0:")
    cls: FailureClass = "other"
    if records.signal == 9:
        rule = BY_ID["oom_guess"]
        return Cause(
            id=rule.id,
            cls=rule.cls,
            title=rule.title,
            text=f"{whose} ended by signal 9",
            rank=records.rank,
            host=records.host,
        )
    if records.signal in (4, 7, 8, 11):
        cls = "shm" if records.signal == 7 else "code_error"
        how = f"crashed with signal {records.signal}"
    elif signal := records.signal or (int(script_signal) if script_signal.isdecimal() else 0):
        how = f"was ended by signal {signal}"
    else:
        how = f"ended with exit code {records.exit_code}" if records.exit_code else "failed"
        code = records.exit_code or 0
        meaning = (
            f"as after signal {code - 128}" if 128 < code < 160 else _SHELL_CODES.get(code, "")
        )
        how += f" ({meaning})" if meaning else ""
    if not has_logs and not records.output:  # only the accounting record is left
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
