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


def test_mpirun_starts_its_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = '"$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"'
    (tmp_path / "python").write_text(f'#!/bin/sh\necho {rank} "$@" >>{tmp_path}/called\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["mpirun", "-np", "2", "--bind-to", "none", "python", "t.py", "-n", "9"]) == 0
    assert main(["mpirun", "-np", "2", "./other"]) == 0
    assert (tmp_path / "called").read_text() == "0 of 2 t.py -n 9\n1 of 2 t.py -n 9\n"
