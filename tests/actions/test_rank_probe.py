"""The programs that stand in for Python and its launchers in hpcrun init --check."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.actions.init.probe import main


def test_wrapper_starts_the_imitated_program_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python", "rm"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/called\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["wrapper", "-k", "5", "60", "python", "-u", "t.py", "a b"]) == 0
    assert main(["wrapper", "60", "rm", "-r", "keep"]) == 0
    assert (tmp_path / "called").read_text() == "python -u t.py a b\n"
