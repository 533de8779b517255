"""Removal of old runs: complete or not at all, even if interrupted."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from hpcrun.actions import clean
from hpcrun.context import Context, load_context
from hpcrun.errors import HpcrunError
from hpcrun.runs.layout import RunFolder, sweep_folder, task_run_id

RUN = "20260101-000000-job-abcd"
SWEEP = "20260102-000000-lr-abcd"


@pytest.fixture
def context(tmp_path: Path, clean_environ: dict[str, str]) -> Context:
    """A project with its runs next to it, on a machine without Slurm."""
    clean_environ["PATH"] = str(tmp_path / "no tools")
    (tmp_path / "hpcrun.yaml").write_text("runs_dir: runs\n")
    return load_context(clean_environ, tmp_path)


def write(context: Context, name: str) -> Path:
    folder = context.runs_dir / name
    (folder / "attempts").mkdir(parents=True)
    (folder / "file").write_text("x")
    return folder


def unit(*paths: Path) -> clean.CleanupItem:
    runs = [RunFolder(path) for path in paths]
    return clean.CleanupItem(name=paths[0].name, paths=list(paths), runs=runs, is_sweep=False)


def left(context: Context) -> list[str]:
    return sorted(path.name for path in context.runs_dir.iterdir())


def test_interrupted_clean_leaves_no_partial_run(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = write(context, RUN), write(context, RUN.replace("job", "other"))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupted)
        list(clean.remove_items(context, [unit(one), unit(two)]))
    trash = [name for name in left(context) if name != two.name]
    assert len(trash) == 1 and trash[0].startswith(".trash-") and (two / "file").exists()

    # Another clean may be running; the runs it has set aside are recent.
    list(clean.remove_items(context, []))
    assert trash[0] in left(context)
    old = time.time() - 3600
    os.utime(context.runs_dir / trash[0], (old, old))
    (context.runs_dir / ".trash-of-mine").mkdir()
    list(clean.remove_items(context, []))
    assert left(context) == [".trash-of-mine", two.name]


def test_sweep_with_an_unremovable_part_is_kept_completely(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [write(context, task_run_id(SWEEP, index)) for index in range(3)]
    paths = [*tasks, write(context, sweep_folder(context.runs_dir, SWEEP).path.name)]
    before = left(context)
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self == tasks[2]:
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        ((_, error),) = clean.remove_items(context, [unit(*paths)])
    assert isinstance(error, HpcrunError) and str(error) == f"{tasks[2]}: Permission denied"
    assert left(context) == before
    # Another clean has already removed one of them, which is no error.
    shutil.rmtree(tasks[0])
    ((_, error),) = clean.remove_items(context, [unit(*paths)])
    assert error is None and left(context) == []


def test_run_used_by_an_unremovable_run_is_kept(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, user = write(context, RUN), write(context, RUN.replace("0101", "0301"))
    (used / "successors").mkdir()
    (used / "successors" / "one.json").write_text(f'{{"run_dir": "{user}"}}')
    (used / "successors" / "two.json").write_text("garbage")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self == user:
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        done = list(clean.remove_items(context, [unit(user), unit(used)]))
    assert [error is not None for _, error in done] == [True, True]
    assert left(context) == [used.name, user.name]
    done = list(clean.remove_items(context, [unit(user), unit(used)]))
    assert [error for _, error in done] == [None, None] and left(context) == []


def test_run_size_excludes_linked_files(context: Context, tmp_path: Path) -> None:
    folder = write(context, RUN)
    big = tmp_path / "big"
    big.write_bytes(b"x" * (1 << 20))
    (folder / "link").symlink_to(big)
    one = unit(folder)
    clean._measure_size(one, time.monotonic() - 1)
    assert one.size is None
    clean._measure_size(one, time.monotonic() + 60)
    assert one.size is not None and 0 < one.size < 1 << 19
