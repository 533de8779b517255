"""Names of groups that hpcrun derives from the names of jobs."""

from __future__ import annotations

import pytest

from hpcrun.actions.group import make_group_name
from hpcrun.monitor import GROUP_NAME
from hpcrun.spec import JobSpec


@pytest.mark.parametrize("kind", ["sweep", "pipeline"])
@pytest.mark.parametrize("name", ["train", "7b", "9" * 60, "t" * 60, "_x", "a b", None])
def test_derived_group_names_are_valid(name: str | None, kind: str) -> None:
    for end in ("", "parts"):
        made = make_group_name(JobSpec(name=name), kind, end)
        assert GROUP_NAME.fullmatch(made) and made.endswith(end), made
