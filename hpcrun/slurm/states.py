"""Slurm's job states: which are final, what an unknown one means; and its exit codes."""

from __future__ import annotations

# slurm.h job_states and JOB_STATE_FLAGS, as squeue(1) and sacct(1) print them, 20.11 to 26.05.
WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "POWER_UP_NODE",
    }
)
ACTIVE = frozenset(
    {
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "STAGE_OUT",
        "RESIZING",
        "EXPEDITING",
        # The job is another cluster's of the federation: there it waits, runs or has run.
        "REVOKED",
    }
)
FINAL = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "BOOT_FAIL",
        "DEADLINE",
        "PREEMPTED",
        "LAUNCH_FAILED",
    }
)
UNKNOWN = "UNKNOWN"


def parse_state(text: str) -> str:
    """Return the state's plain name; a word that no list knows is UNKNOWN, never "done".

    >>> parse_state("CANCELLED by 1000")
    'CANCELLED'
    >>> parse_state("CANCELLED+")
    'CANCELLED'
    >>> parse_state("SOMETHING_NEW")
    'UNKNOWN'
    """
    words = text.replace("+", " ").split()
    state = words[0].upper() if words else ""
    return state if state in WAITING | ACTIVE | FINAL else UNKNOWN


def parse_exit_code(text: str) -> int | None:
    """Read Slurm's ``code:signal`` as a shell has it: 128 and more where a signal killed the job.

    >>> parse_exit_code("3:0"), parse_exit_code("0:9"), parse_exit_code("0:0"), parse_exit_code("")
    (3, 137, 0, None)
    """
    code, _, signal = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(signal) if signal.isdigit() and int(signal) else 0)


def say_exit_code(text: str) -> str:
    """Say Slurm's ``code:signal`` in words; "" where it is none.

    >>> say_exit_code("3:0"), say_exit_code("0:9"), say_exit_code("0:0"), say_exit_code("")
    ('exit code 3', 'signal 9', 'exit code 0', '')
    """
    code, _, signal = text.partition(":")
    if not code.isdigit():
        return ""
    return f"signal {signal}" if int(code) == 0 and signal not in ("", "0") else f"exit code {code}"


def is_final(state: str) -> bool:
    """Tell whether Slurm will do nothing more with a job in this state.

    >>> is_final("TIMEOUT"), is_final("COMPLETING"), is_final("UNKNOWN")
    (True, False, False)
    """
    return state in FINAL
