"""Traps of watching a job (47 to 55): queries, their frequency, and their interpretation."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.logs.files import LogFile, Tail
from hpcrun.slurm.states import is_final, parse_state

# squeue(1) and sacct(1), JOB STATE CODES: those of Slurm 20.11 to 26.05.
GOES_ON = (
    *("PENDING", "RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "COMPLETING", "REQUEUED"),
    *("REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT"),
    # Shown by the cluster that accepted a federated job while another one runs it.
    *("RESIZING", "REVOKED"),
)
IS_OVER = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"),
    *("DEADLINE", "PREEMPTED", "LAUNCH_FAILED"),
)


@pytest.mark.parametrize("state", [*GOES_ON, *IS_OVER])
def test_every_state_of_slurm_is_known(state: str) -> None:
    assert parse_state(state) == state
    assert is_final(state) == (state in IS_OVER)


def test_progress_bar_update_is_a_line(tmp_path: Path) -> None:
    """tqdm ends its lines with a carriage return, so waiting for a newline would take too long."""
    file = LogFile(tmp_path / "log")
    file.path.write_bytes(b"epoch 1: 10%\repoch 1: 20%\repoch 1: 3")
    tail = Tail()
    assert list(tail.lines(file)) == [b"epoch 1: 10%\repoch 1: 20%\r"]
