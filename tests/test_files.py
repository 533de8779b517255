"""Reading files that others may write to."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun import files
from hpcrun.files import UnsafeFile, open_received_tar, read_plain
from tests.source import ROOT


def test_read_plain_reads_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 200_000)
    path = tmp_path / "record"
    for size in (0, 1, 70_000, 200_000):
        path.write_bytes(b"x" * size)
        assert read_plain(path) == b"x" * size
    path.write_bytes(b"x" * 200_001)
    with pytest.raises(UnsafeFile, match="larger than 0 MB"):
        read_plain(path)
    assert len(read_plain(path, longest=1 << 20)) == 200_001
    assert read_plain("/proc/self/status").startswith(b"Name:")  # whose size is 0


def test_read_plain_takes_memory_for_what_is_there_alone(tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(b"x" * 100)
    program = (
        "import resource, sys; from hpcrun.files import read_plain\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "most = pages * resource.getpagesize() + (20 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "print(len(read_plain(sys.argv[1])))\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "record")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "100\n", done


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress, bz2.compress])
def test_received_tar_is_not_decompressed(compress: Callable[[bytes], bytes]) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("record"))
    with pytest.raises(tarfile.ReadError):
        open_received_tar(io.BytesIO(compress(data.getvalue())))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.REGTYPE])
def test_size_that_a_header_of_a_received_tar_claims_takes_no_memory(kind: bytes) -> None:
    claim = tarfile.TarInfo("record")
    claim.type, claim.size = kind, 1 << 55
    data = io.BytesIO(claim.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096)
    with contextlib.suppress(tarfile.ReadError, ValueError), open_received_tar(data) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            with pytest.raises(tarfile.ReadError):
                content.read()
