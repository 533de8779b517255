"""The check of a script that is about to be submitted."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from hpcrun.actions import find_script_errors, lint
from hpcrun.context import load_context


def test_fault_of_the_checks_does_not_stop_a_submission(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise IndexError("string index out of range")

    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n")
    monkeypatch.setattr(lint, "lint_script", fail)
    context = load_context(clean_environ, tmp_path)
    (found,) = find_script_errors(context, str(tmp_path / "a.sbatch"), {})
    assert "internal error of hpcrun lint: IndexError" in found.message
