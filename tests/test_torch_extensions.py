"""A test run that was killed while DeepSpeed compiled keeps no later one waiting."""

from __future__ import annotations

from pathlib import Path

from tests.torch_extensions import clear_stale_locks


def test_the_lock_of_a_killed_build_goes_and_one_that_is_held_stays(tmp_path: Path) -> None:
    clear_stale_locks(tmp_path)
    stale, held = (tmp_path / "torch_extensions/a/b" / name / "lock" for name in ("c", "d"))
    for lock in (stale, held):
        lock.parent.mkdir(parents=True)
        lock.touch()
    with held.open():
        clear_stale_locks(tmp_path)
        assert held.exists() and not stale.exists()
    clear_stale_locks(tmp_path)
    assert not held.exists()
