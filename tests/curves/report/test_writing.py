"""Atomic writing of files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.errors import InputError
from hpcrun.files import write_atomically
from tests.source import ROOT


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def write(path: Path, data: bytes) -> None:
    with write_atomically(path) as file:
        file.write(data)


def test_file_is_written_and_replaced(tmp_path: Path) -> None:
    for data in (b"longer than", b"that"):
        write(tmp_path / "a.csv", data)
        assert (tmp_path / "a.csv").read_bytes() == data
    assert names(tmp_path) == ["a.csv"]


def test_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write(tmp_path / "new", b"x")
    (tmp_path / "old").touch(0o600)
    write(tmp_path / "old", b"x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "new", "old")]
    assert modes == [modes[0], modes[0], 0o600]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), write_atomically(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"before" and names(tmp_path) == ["a.csv"]


def test_full_disk_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(InputError, match="quota") as caught, write_atomically(path) as file:
        file.write(b"half")
        raise OSError(28, "No space left on device")
    assert str(path) in caught.value.message and names(tmp_path) == []


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize(
    "target", ["../victim", "{top}/victim", "../new", "link2", "sub/../../new"]
)
def test_link_out_of_its_folder_is_refused(tmp_path: Path, target: str) -> None:
    """Links in a cloned repository belong to the user, so ownership does not protect."""
    (tmp_path / "victim").write_bytes(b"mine")
    clone = tmp_path / "clone"
    (clone / "sub").mkdir(parents=True)
    (clone / "link2").symlink_to("../victim")
    (clone / "loss.csv").symlink_to(target.format(top=tmp_path))
    with pytest.raises(InputError, match=r"loss\.csv: a link to .*, which is outside"):
        write(clone / "loss.csv", b"x")
    assert (tmp_path / "victim").read_bytes() == b"mine" and not (tmp_path / "new").exists()
    with write_atomically(clone / "loss.csv", follows=True) as file:
        file.write(b"new")
    assert (clone / "loss.csv").is_symlink() and (clone / "loss.csv").read_bytes() == b"new"


def test_pipe_can_be_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)


@pytest.mark.slow
def test_stdout_can_be_written(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from hpcrun.files import write_atomically\n"
        "print('before', flush=True)\n"
        "with write_atomically(Path('/dev/stdout')) as file: file.write(b'x,y\\n')\n"
    )
    argv = [sys.executable, "-c", program]
    piped = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    assert piped.stdout == b"before\nx,y\n"
    with (tmp_path / "out").open("ab") as file:
        subprocess.run(argv, cwd=ROOT, stdout=file, check=True)
    assert (tmp_path / "out").read_bytes() == piped.stdout and names(tmp_path) == ["out"]


def test_unwritable_paths_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder\n  fix: mkdir -p .*/none"):
        write(tmp_path / "none" / "a.csv", b"")
    with pytest.raises(InputError, match="name a file in it"):
        write(tmp_path, b"")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Not a directory"):
        write(tmp_path / "file" / "a.csv", b"")
    with pytest.raises(InputError, match=r"/proc/a\.csv"):
        write(Path("/proc/a.csv"), b"")


def test_circular_links_are_refused(tmp_path: Path) -> None:
    circle = tmp_path / "loss.csv"
    circle.symlink_to(circle)
    with pytest.raises(InputError, match="symbolic links"), write_atomically(circle):
        pass
