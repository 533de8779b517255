"""Read jobs from a dict of files, and problems as the lines shown to users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hpcrun.errors import InputError, SpecError
from hpcrun.spec.job import JobSpec
from hpcrun.spec.load import load_job


def read(
    text: str, *overrides: str, source: str = "job.yaml", files: Mapping[str, str] | None = None
) -> JobSpec:
    """Load a job; ``files`` are the jobs that extends can name."""

    def resolve(name: str) -> tuple[str, str]:
        if name not in (files or {}):
            raise InputError(f"no job is called {name}", fix="hpcrun list shows them")
        return (files or {})[name], f"{name}.yaml"

    return load_job(text, source=source, resolve=resolve, overrides=overrides)


def problems(
    text: str, *overrides: str, source: str = "job.yaml", files: Mapping[str, str] | None = None
) -> Sequence[str]:
    """Return the problems of a job, as shown."""
    with pytest.raises(SpecError) as caught:
        read(text, *overrides, source=source, files=files)
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]
