"""Resubmission on a remote cluster, and how far the cluster's records are trusted."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.actions.fetch import (
    Fetched,
    RemoteFile,
    _fetch_small_files,
    _unpack,
    fetch_code,
)
from hpcrun.context import load_context
from hpcrun.errors import OutOfReach
from hpcrun.remote import Result
from hpcrun.remote.local import LocalTransport
from tests.remote.desk import Desk


def finished(desk: Desk) -> Path:
    """Submit a run that has ended; return its folder on the cluster."""
    run = desk.submit()
    desk.begin(run)
    desk.end(run)
    return run


def append(name: str, text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with (run / name).open("a") as file:
            file.write(text)

    return change


def change_plan(run: Path) -> None:
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps(plan | {"checkpoint_dir": "/elsewhere"}))


def remove_plan(run: Path) -> None:
    (run / "plan.json").unlink()


CHANGES = {
    "secrets": append("spec.yaml", "secrets: [LAPTOP_TOKEN]\n"),
    "another file": append("spec.yaml", "deepspeed: {config_file: ../home/cred.json}\n"),
    "another job": append("spec.yaml", "extends: /etc/hostname\n"),
    "one blank": append("spec.yaml", " \n"),
    "plan": change_plan,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_records_modified_on_the_cluster_are_refused(desk: Desk, what: str) -> None:
    run = finished(desk)
    desk.hpcrun.environ["LAPTOP_TOKEN"] = "tok-1234567890"
    (desk.laptop.home / "cred.json").write_text('{"train_batch_size": 41777}')
    CHANGES[what](run)
    done = desk.hpcrun("resubmit", "1", "--fresh", "--no-check")
    assert done.code == 2 and "on the cluster differs from what was submitted here" in done.err, (
        done
    )
    assert len(desk.queue()) == 1
    # Nor by the path of the local copy.
    kept = next(desk.state.glob(f"*/runs/{run.name}/spec.yaml"))
    done = desk.hpcrun("submit", str(kept), "--no-check")
    assert (done.code, len(desk.queue())) == ((0, 2) if what in ("plan", "one blank") else (2, 1))
    sent = b"".join(path.read_bytes() for path in desk.home.rglob("*") if path.is_file())
    assert b"tok-1234567890" not in sent and b"41777" not in sent


@pytest.mark.slow
def test_run_submitted_elsewhere_receives_no_local_files(desk: Desk) -> None:
    """For a second laptop, or after the loss of local state; the code is on the cluster."""
    desk.hpcrun.write("pkg/a.py", "first\n")
    (desk.hpcrun.project / "pkg" / "b.py").symlink_to("a.py")
    desk.hpcrun.write("job.yaml", (desk.hpcrun.project / "job.yaml").read_text() + "secrets: [T]\n")
    desk.hpcrun.environ["T"] = "tok-1234567890"
    run = finished(desk)
    shutil.rmtree(desk.state)
    desk.hpcrun.write("pkg/a.py", "changed since\n")
    done = desk.hpcrun("resubmit", "1", "--fresh", "--no-check")
    assert done.code == 2 and "secrets: T: this machine would upload these files" in done.err, done
    assert len(desk.queue()) == 1
    again = desk.hpcrun("resubmit", "1", "--fresh", "--no-check", "--set", "secrets=[T]", "--json")
    assert again.code == 0, again
    (made,) = again.json["runs"]
    code = run.parent / made["run_id"] / "code"
    assert (code / "pkg" / "a.py").read_text() == "first\n"
    assert (code / "pkg" / "b.py").readlink() == Path("a.py")
    assert (run.parent / made["run_id"] / "secrets.env").read_text().count("tok-1234567890") == 1


@pytest.mark.slow
def test_code_missing_on_both_sides_is_an_error(desk: Desk) -> None:
    run = finished(desk)
    shutil.rmtree(desk.state)
    shutil.rmtree(run / "code")
    done = desk.hpcrun("resubmit", "1", "--fresh", "--no-check")
    assert done.code == 2 and "cannot be read" in done.err and "--code now" in done.err, done


@pytest.mark.parametrize(
    ("name", "link"),
    [("../out", ""), ("/out", ""), ("a/../../out", ""), ("link/out", "link"), ("link", "link")],
)
def test_fetched_code_cannot_escape_its_folder(tmp_path: Path, name: str, link: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path)
            tar.addfile(info)
        info = tarfile.TarInfo(name)
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    data.seek(0)
    with pytest.raises(ValueError, match="the name"):
        _unpack(data, tmp_path / "code")
    assert [path.name for path in tmp_path.iterdir()] == ["code"]


def _hostile_tar(how: str) -> bytes:
    info = tarfile.TarInfo("x")
    if how == "chained headers":
        header = tarfile.TarInfo("h")
        header.type, header.size = tarfile.XHDTYPE, 12
        return (header.tobuf(tarfile.GNU_FORMAT) + b"12 path=abc\n".ljust(512, b"\0")) * 2000
    info.pax_headers = {"mtime": how}
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(10240)


@pytest.mark.parametrize("how", ["1e300", "inf", "nan", "chained headers"])
def test_malformed_code_from_a_cluster_is_an_error(
    tmp_path: Path, clean_environ: dict[str, str], how: str
) -> None:
    class Hostile(LocalTransport):
        def run_script(self, script: str, on_output: Callable[[bytes], None]) -> Result:
            on_output(_hostile_tar(how))
            return Result(argv=[], exit_code=0, stdout="", stderr="")

    context = structs.replace(load_context(clean_environ, tmp_path), connect=Hostile)
    with pytest.raises(OutOfReach, match="/code: malformed response"):
        fetch_code(context, tmp_path / "20261120-081455-old-7k3q")
    assert not [path for path in tmp_path.rglob("*") if path.name == "code"]


def test_malformed_stream_of_small_files_is_an_error(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    file = RemoteFile("x", "/r/x", "81a4 1 99999999 1")

    class Hostile(LocalTransport):
        def run_script(self, script: str, on_output: Callable[[bytes], None]) -> Result:
            facts = file.facts.encode()
            on_output(_hostile_tar("chained headers") + facts + f"{len(facts):020d}".encode())
            return Result(argv=[], exit_code=0, stdout="", stderr="")

    context = structs.replace(load_context(clean_environ, tmp_path), connect=Hostile)
    with pytest.raises(OutOfReach, match="/r/x: malformed response"):
        _fetch_small_files(context, tmp_path, [file], Fetched(), lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["config_file", "templates"])
def test_links_out_of_the_project_are_not_read_into_the_upload(desk: Desk, how: str) -> None:
    (desk.laptop.home / "cred.json").write_text('{"train_batch_size": 41777}')
    job = "script: train.py\nframework: deepspeed\nsetup: {python: /usr/bin/python3}\n"
    desk.hpcrun.write("train.py", "import deepspeed\n")
    if how == "config_file":
        job += "deepspeed: {config_file: ds.json}\n"
        (desk.hpcrun.project / "ds.json").symlink_to(desk.laptop.home / "cred.json")
    else:
        (desk.hpcrun.project / "templates").mkdir()
        link = desk.hpcrun.project / "templates" / "job.sbatch.j2"
        link.symlink_to(os.path.relpath(desk.laptop.home / "cred.json", link.parent))
    desk.hpcrun.write("job.yaml", job)
    done = desk.hpcrun("submit", "job.yaml", "--no-check")
    assert done.code == 2 and "a symbolic link to a file outside the project" in done.err, done
    assert desk.is_untouched()
