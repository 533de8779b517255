"""Find what slows a run down that has not failed."""

from __future__ import annotations

import contextlib

from hpcrun.actions.parse import CurveLog
from hpcrun.context import Context
from hpcrun.curves import find_bottlenecks
from hpcrun.errors import HpcrunError
from hpcrun.monitor import Source
from hpcrun.runs import RunFolder


def explain_speed(context: Context, run: RunFolder) -> list[str]:
    """List what slows a run down, by its logs and the records of its ranks; [] if unreadable."""
    log = CurveLog(context, Source(run.run_id, run=run))
    with contextlib.suppress(OSError, HpcrunError):
        log.read()
        return find_bottlenecks(log.run())
    return []
