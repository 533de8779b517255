"""The origin of a submission that plan.json records."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcrun.actions.provenance import read_git_state
from tests.needs import require_command


def git(folder: Path, *words: str) -> str:
    own = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run([*own, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    require_command("git")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("one\n")
    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_git_state_is_that_of_the_checkout_around_the_project(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    script = checkout / "project" / "train.py"
    (checkout / "project" / "untracked.py").write_text("")
    os.utime(script, (1, 1))  # git compares the content of a file with a new time
    assert read_git_state(script.parent) == (commit, False)
    script.write_text("two\n")
    assert read_git_state(script.parent) == (commit, True)


def test_git_state_notices_modes_and_staged_changes(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    script = checkout / "project" / "train.py"
    script.chmod(0o755)
    assert read_git_state(checkout) == (commit, True)
    script.chmod(0o644)
    (checkout / "new.py").write_text("")
    git(checkout, "add", "new.py")
    assert read_git_state(checkout) == (commit, True)


def test_git_state_outside_a_checkout_is_unknown(tmp_path: Path) -> None:
    assert read_git_state(tmp_path) == (None, None)
    git(tmp_path, "init", "-q", ".")
    assert read_git_state(tmp_path) == (None, None)  # no commit yet
