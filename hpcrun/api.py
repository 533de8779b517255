"""What programs call: hpcrun.parse.

Effects: those of the controller.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcrun.metrics.parse import ParsedRun


def parse(log: str | os.PathLike[str], *, patterns: str | Sequence[str] = ()) -> ParsedRun:
    """Read a training log, a run or a Slurm job: what ``hpcrun parse`` takes, as one curve.

    As in::

        run = hpcrun.parse("train.log")
        pandas.DataFrame(run.columns()).plot(x="step", y="loss")

    The result has ``curve`` (metrics, restarts), ``columns()`` (a row per step), ``samples`` (every
    number as the log has it) and ``warnings``. ``patterns`` are forms of lines of your own. All
    points are kept: memory grows with the log. Raises InputError for what is not there, cannot be
    read, or names several runs.
    """
    from hpcrun.controller.context import load_context
    from hpcrun.controller.parse import parse as parse_words
    from hpcrun.errors import InputError

    word = os.fspath(log)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    runs = parse_words(load_context(os.environ, Path.cwd()), [word], patterns=patterns, full=True)
    if len(runs) != 1:
        names = ", ".join(run.source for run in runs[:3])
        raise InputError(f"{word}: {len(runs)} runs", fix=f"name one of them: {names}")
    return runs[0]
