"""Slurm's job states, exit codes and times: their meaning and notation."""

from __future__ import annotations

from hpcrun.patterns import pattern_of
from hpcrun.text import is_whole_number

# slurm.h job_states and JOB_STATE_FLAGS, as squeue(1) and sacct(1) print them, 20.11 to 26.05.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
    | {"SPECIAL_EXIT", "POWER_UP_NODE"}
)
# REVOKED: another cluster of the federation has the job, which is pending, running or ended there.
ACTIVE = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
    | {"EXPEDITING", "REVOKED"}
)
FINAL = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}
    | {"DEADLINE", "PREEMPTED", "LAUNCH_FAILED"}
)
UNKNOWN = "UNKNOWN"

# Slurm also prints a year for a job without a limit, which it uses internally.
_NO_LIMIT = frozenset({"UNLIMITED", "365-00:00:00"})
_DURATION = pattern_of(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


def parse_state(text: str) -> str:
    """Return the plain name of a state; an unlisted one is UNKNOWN, never "done".

    >>> parse_state("CANCELLED by 1000"), parse_state("CANCELLED+"), parse_state("SOMETHING_NEW")
    ('CANCELLED', 'CANCELLED', 'UNKNOWN')
    """
    words = text.replace("+", " ").split()
    state = words[0].upper() if words else ""
    return state if state in WAITING | ACTIVE | FINAL else UNKNOWN


def parse_exit_code(text: str) -> int | None:
    """Convert Slurm's ``code:signal`` to a shell's exit code: 128 plus the signal that killed it.

    >>> parse_exit_code("3:0"), parse_exit_code("0:9"), parse_exit_code("0:0"), parse_exit_code("")
    (3, 137, 0, None)
    """
    code, _, signal = text.partition(":")
    if not is_whole_number(code):
        return None
    return int(code) or (128 + int(signal) if is_whole_number(signal) and int(signal) else 0)


def format_exit_code(text: str) -> str:
    """Describe Slurm's ``code:signal``; "" if there is none.

    >>> format_exit_code("3:0"), format_exit_code("0:9"), format_exit_code(
    ...     "0:0"), format_exit_code("")
    ('exit code 3', 'signal 9', 'exit code 0', '')
    """
    code, _, signal = text.partition(":")
    if not is_whole_number(code):
        return ""
    return f"signal {signal}" if int(code) == 0 and signal not in ("", "0") else f"exit code {code}"


def is_final(state: str) -> bool:
    """Return True if Slurm takes no further action on a job in this state.

    >>> is_final("TIMEOUT"), is_final("COMPLETING"), is_final("UNKNOWN")
    (True, False, False)
    """
    return state in FINAL


def parse_duration(text: str) -> float | None:
    """Parse ``[days-][hours:]minutes:seconds`` as seconds; None for UNLIMITED and the like.

    >>> parse_duration("1-02:03:04"), parse_duration("5:00"), parse_duration("UNLIMITED")
    (93784.0, 300.0, None)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def is_unlimited(limit: str) -> bool:
    """Return True if a time limit, as squeue and sacct print it, means no limit.

    >>> is_unlimited("UNLIMITED"), is_unlimited("365-00:00:00"), is_unlimited("7-00:00:00")
    (True, True, False)
    """
    return limit in _NO_LIMIT


def format_limit(limit: str) -> str:
    """Describe a job's time limit, to follow its run time; "" if unknown.

    >>> format_limit("1:00:00"), format_limit("UNLIMITED"), format_limit("")
    ('of 1:00:00', 'without a limit', '')
    """
    if is_unlimited(limit):
        return "without a limit"
    return f"of {limit}" if limit else ""
