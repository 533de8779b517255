"""Prepares what a program asks for: a job by name, path or as a dict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real

from msgspec import structs

from hpcrun.controller.checks.submission import Checks
from hpcrun.controller.context import Context
from hpcrun.controller.prepare import (
    Prepared,
    dependency_on,
    load_spec,
    prepare_job,
    read_spec,
)
from hpcrun.errors import InputError, SpecError
from hpcrun.spec.dump import yaml_of
from hpcrun.spec.job import JobSpec
from hpcrun.spec.load import SOURCE, Origin

# What messages call a job that is a dict, and changes to a job.
_DICT, _SET = "job", "set"


def prepare_asked(
    context: Context,
    job: object,
    *,
    changes: Mapping[str, object],
    args: Sequence[object],
    after: str | None,
    check: bool = True,
) -> Prepared:
    """Plan and render a run or a sweep; nothing is changed.

    ``job`` is a name, a path or a dict with a job file's keys; ``changes`` are dotted keys with
    their values; ``args`` go to the script; without ``check`` problems that the caller may
    know better about are notes. Raises InputError, or SpecError with all that is wrong.
    """
    try:
        overrides = _overrides(changes)
        spec, name = _spec(context, job, overrides)
        first = dependency_on(context, after) if after is not None else None
        return prepare_job(
            context,
            spec,
            extra_args=_texts(args),
            after=first,
            origin=Origin(name, tuple(overrides)),
            checks=Checks(strict=check),
        )
    except SpecError as error:
        raise _renamed(error) from error


def _spec(context: Context, job: object, overrides: Sequence[str]) -> tuple[JobSpec, str]:
    if isinstance(job, Mapping):
        spec = read_spec(context, yaml_of(job, _DICT), _DICT, overrides)
        return (spec if spec.name else structs.replace(spec, name="job")), _DICT
    if isinstance(job, (str, os.PathLike)):
        name = os.fsdecode(job)
        if isinstance(job, os.PathLike) and "/" not in name:
            name = f"./{name}"  # a path is never the name of a preset
        return load_spec(context, name, overrides), name
    raise InputError(
        f"job: {type(job).__name__}: expected a job's name, a path or a dict",
        fix='a bare command is {"command": ["echo", "hello"], "resources": {"gpus_per_node": 0}}',
    )


def _overrides(changes: Mapping[str, object]) -> list[str]:
    for path in changes:
        if not isinstance(path, str) or ("=" in path and '"' not in path):
            raise InputError(f"{_SET}: {path!r}: expected a key, as in resources.nodes")
    return [f"{path}={yaml_of(value, _SET, path)}" for path, value in changes.items()]


def _texts(args: Sequence[object]) -> list[str]:
    """Write texts, paths and numbers as arguments. Raises InputError."""
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise InputError(
            f"args: {args!r}: expected a list of arguments", fix=f"as in {str(args).split()!r}"
        )
    texts = []
    for arg in args:
        if isinstance(arg, bool) or not isinstance(arg, (str, os.PathLike, Real)):
            raise InputError(f"args: {arg!r}: expected a text, a path or a number")
        texts.append(os.fsdecode(arg) if isinstance(arg, (str, os.PathLike)) else str(arg))
    return texts


def _renamed(error: SpecError) -> SpecError:
    """Name problems as the caller does: a dict has no lines, and --set is ``set``."""
    for problem in error.problems:
        if problem.source == _DICT:
            problem.line = None
        elif problem.source == SOURCE:
            problem.source = _SET
        problem.message = problem.message.replace(f"({SOURCE} ", f"({_SET} ")
    return SpecError(error.problems, fix=error.fix, notes=error.notes)
