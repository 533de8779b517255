"""Gathers what is known of the secrets that a log may show."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence

from hpcrun.controller.context import Context
from hpcrun.errors import HpcrunError
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.store import read_plan, read_record
from hpcrun.secrets.mask import Masker, SecretMark
from hpcrun.secrets.names import is_secret_name
from hpcrun.secrets.tokens import looks_random


def masker_of(context: Context, runs: Sequence[RunFolder]) -> Masker:
    """Make the masker of the secrets of some runs, and of the caller's own variables."""
    own = [value for name, value in context.environ.items() if is_secret_name(name)]
    values = [value for value in map(os.fsencode, own) if looks_random(value)]
    names: list[str] = []
    marks: list[SecretMark] = []
    # The runs of a sweep have the same secrets.
    for run in runs[:1]:
        plan = read_plan(run)
        names = list(plan.secrets) if plan is not None else []
        values += [os.fsencode(context.environ[name]) for name in names if name in context.environ]
        with contextlib.suppress(OSError, ValueError):  # while they are there
            for word in shlex.split(os.fsdecode(run.secrets.read_bytes())):
                name, _, value = word.partition("=")
                # A value with control characters is written as $'...'; no line of a log holds it.
                if value and name != "export" and not value.startswith("$"):
                    values.append(os.fsencode(value))
        with contextlib.suppress(HpcrunError):  # of somebody else's run
            marks = read_record(run.secret_marks, list[SecretMark]) or []
    return Masker(names=names, values=values, marks=marks)
