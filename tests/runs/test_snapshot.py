"""The copy of the code: complete, without other files, and without traces if refused."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from hpcrun.errors import HpcrunError, InputError
from hpcrun.runs import snapshot
from hpcrun.runs.snapshot import take_snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with difficult file names."""
    folder = tmp_path / "my project"
    for name in ("train.py", "pkg/__init__.py", "two words.txt", "new\nline.py", "\udcff.bin"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name.encode("utf-8", "replace").decode())
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


PLAIN = {"train.py", "pkg/__init__.py", "two words.txt", "new\nline.py", "\udcff.bin", "run.sh"}


def copied(code: Path) -> set[str]:
    return {
        str(path.relative_to(code))
        for path in code.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def take(project: Path, tmp_path: Path, leave_out: Path | None = None) -> Path:
    code = tmp_path / "run" / "code"
    take_snapshot(
        project, code, leave_out=leave_out or tmp_path / "runs", show=lambda done, total: None
    )
    return code


def git(project: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(project), *words],
        env={"PATH": os.environ["PATH"], "HOME": str(project.parent)},
        check=True,
        capture_output=True,
    )


def test_snapshot_without_git_excludes_caches_and_environments(
    project: Path, tmp_path: Path
) -> None:
    for name in ("__pycache__/a.pyc", ".venv/x", "env/pyvenv.cfg", "env/bin/python", ".git/config"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    code = take(project, tmp_path)
    assert copied(code) == PLAIN
    assert (code / "new\nline.py").read_text() == "new\nline.py"
    assert os.access(code / "run.sh", os.X_OK)


def test_snapshot_of_a_checkout_excludes_ignored_files(project: Path, tmp_path: Path) -> None:
    (project / ".gitignore").write_text("data/\n*.log\n")
    (project / "data").mkdir()
    (project / "data" / "big").touch()
    (project / "out.log").touch()
    git(project, "init", "-q")
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "x")
    (project / "train.py").write_text("changed since")
    (project / "gone.py").touch()
    git(project, "add", "gone.py")
    (project / "gone.py").unlink()
    code = take(project, tmp_path)
    assert copied(code) == PLAIN | {".gitignore"}
    assert (code / "train.py").read_text() == "changed since"


def test_checkout_unreadable_for_git_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(project, "init", "-q")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="detected dubious ownership") as caught:
        take(project, tmp_path)
    assert "git config --global --add safe.directory" in caught.value.fix
    assert "snapshot: false" in caught.value.fix
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    (project / ".git" / "index").write_text("broken")
    with pytest.raises(InputError, match=r"git does not list the code of .*my project: "):
        take(project, tmp_path)


def test_git_that_cannot_be_started_is_reported(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object, **options: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "not now")

    monkeypatch.setattr(subprocess, "run", refused)
    with pytest.raises(HpcrunError, match="git cannot be started here: not now"):
        take(project, tmp_path)


def test_only_the_project_folder_of_a_checkout_is_copied(project: Path, tmp_path: Path) -> None:
    git(project.parent, "init", "-q")
    (project.parent / "outside.py").touch()
    assert copied(take(project, tmp_path)) == PLAIN


def test_tracked_file_is_copied_despite_an_ignore_rule(project: Path, tmp_path: Path) -> None:
    (project / ".gitignore").write_text("*.txt\n")
    git(project, "init", "-q")
    git(project, "add", "-f", "two words.txt")
    assert "two words.txt" in copied(take(project, tmp_path))


def test_links_inside_and_outside_the_project_are_copied_correctly(
    project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "tokens").write_text("tokens")
    (project / "inside").symlink_to("train.py")
    (project / "pkg" / "up").symlink_to("../train.py")
    (project / "absolute").symlink_to(project / "train.py")
    (project / "data").symlink_to(outside)
    (project / "relative-out").symlink_to("../data/tokens")
    (project / "dangling").symlink_to("nowhere")
    (project / "circle").symlink_to("circle")
    code = take(project, tmp_path)
    # An internal link is kept as a link into the copy, so later edits do not affect the run.
    assert (code / "inside").readlink() == Path("train.py")
    assert (code / "pkg" / "up").resolve() == code / "train.py"
    assert (code / "data" / "tokens").read_text() == "tokens"
    assert (code / "relative-out").read_text() == "tokens"
    assert (code / "dangling").is_symlink() and not (code / "dangling").exists()
    assert (code / "circle").is_symlink()
    assert (code / "absolute").read_text() == "train.py"


def test_large_file_is_linked(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "LINK_ABOVE", 100)
    (project / "weights").write_bytes(b"x" * 101)
    (project / "small").write_bytes(b"x" * 100)
    code = take(project, tmp_path)
    assert (code / "weights").readlink() == project / "weights"
    assert not (code / "small").is_symlink()


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES"])
def test_too_large_project_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(snapshot, limit, 3)
    with pytest.raises(InputError) as caught:
        take(project, tmp_path)
    assert "too large to copy into the run" in caught.value.message
    assert ".gitignore" in caught.value.fix and "snapshot: false" in caught.value.fix


@pytest.mark.parametrize("checkout", [False, True])
def test_runs_folder_is_not_copied(project: Path, tmp_path: Path, checkout: bool) -> None:
    if checkout:
        git(project, "init", "-q")
    code = project / "runs" / "r" / "code"
    code.mkdir(parents=True)
    (project / "runs" / "r" / "plan.json").touch()
    take_snapshot(project, code, leave_out=project / "runs", show=lambda done, total: None)
    assert copied(code) == PLAIN


@pytest.mark.parametrize("checkout", [False, True])
def test_editor_schemas_are_not_copied(project: Path, tmp_path: Path, checkout: bool) -> None:
    if checkout:
        git(project, "init", "-q")
    (project / ".hpcrun").mkdir()
    (project / ".hpcrun" / "job.schema.json").touch()
    assert copied(take(project, tmp_path)) == PLAIN


def test_special_files_are_not_copied(project: Path, tmp_path: Path) -> None:
    os.mkfifo(project / "pipe")
    assert copied(take(project, tmp_path)) == PLAIN


@pytest.fixture(autouse=True)
def no_checkout_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop git's upward search for a checkout here."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    yield


def test_project_inside_the_runs_folder_is_copied_or_refused(project: Path, tmp_path: Path) -> None:
    assert copied(take(project, tmp_path, leave_out=tmp_path)) == PLAIN
    with pytest.raises(InputError, match="the code's own folder is that of the runs"):
        take(project, tmp_path, leave_out=project)
