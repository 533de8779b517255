"""Files that belong to other users, or that they can change, are not trusted."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.errors import InputError
from hpcrun.ownership import describe_insecure_path, is_own
from tests.cli.calling import Caller
from tests.cli.status_runs import make_run
from tests.needs import require_command, require_root

STRANGER = 12345


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create a file three folders deep, all owned by the user."""
    require_root()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    return tmp_path / "a"


def through_link(home: Path) -> None:
    (home / "b").rename(home.parent / "real")
    (home / "b").symlink_to("../real")


def through_strangers_link(home: Path) -> None:
    through_link(home)
    os.chown(home / "b", STRANGER, STRANGER, follow_symlinks=False)


def through_link_in_an_open_folder(home: Path) -> None:
    through_link(home)
    home.chmod(0o777)


def a_shared_folder(home: Path) -> None:
    home.chmod(0o775)
    os.chown(home, 0, STRANGER)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda home: None, ""),
        (through_link, ""),
        (lambda home: home.chmod(0o1777), ""),
        (lambda home: home.chmod(0o775), ""),  # the group of root
        (lambda home: os.chown(home / "b" / "file", 0, STRANGER), ""),
        (lambda home: home.chmod(0o777), "others can write to {home}"),
        (lambda home: (home / "b" / "file").chmod(0o666), "others can write to {home}/b/file"),
        (
            a_shared_folder,
            "others can write to {home}",
        ),
        (lambda home: os.chown(home, STRANGER, 0), "{home} belongs to 12345"),
        (lambda home: os.chown(home / "b" / "file", STRANGER, 0), "{home}/b/file belongs to 12345"),
        (through_strangers_link, "{home}/b belongs to 12345"),
        (through_link_in_an_open_folder, "others can write to {home}"),
    ],
)
def test_every_parent_folder_is_checked(
    home: Path, change: Callable[[Path], object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(home)
    file = home / "b" / "file"
    assert describe_insecure_path(file) == why.format(home=home)
    monkeypatch.setenv("HPCRUN_TRUST", str(home.parent))
    assert describe_insecure_path(file) == ""


def test_private_group_of_the_user_is_trusted(home: Path) -> None:
    file = home / "b" / "file"
    file.chmod(0o664)
    if "games" in {group.gr_name for group in grp.getgrall()}:
        os.chown(file, 5, grp.getgrnam("games").gr_gid)
        assert not is_own(file.stat()), "a stranger's"
    os.chown(file, 0, STRANGER)
    assert not is_own(file.stat())
    os.chown(file, 0, 0)
    assert is_own(file.stat())


@pytest.mark.slow
def test_slurm_conf_of_another_user_is_not_used(hpcrun: Caller, tmp_path: Path) -> None:
    """Another user creates a sandbox at the old path, whose slurm.conf names libraries."""
    require_root()
    require_command("squeue")
    hpcrun.environ["PATH"] += f":{Path(shutil.which('squeue') or '').parent}"
    gone = tmp_path / "gone"
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15")
    record = json.loads(run.submitted.read_text()) | {"slurm_conf": f"{gone}/slurm.conf"}
    run.submitted.write_text(json.dumps(record))
    gone.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        theirs.settimeout(0.1)
        (gone / "slurm.conf").write_text(
            "ClusterName=theirs\nSlurmctldHost=localhost(127.0.0.1)\nAuthType=auth/none\n"
            f"SlurmctldPort={theirs.getsockname()[1]}\nMessageTimeout=2\n"
            "NodeName=n\nPartitionName=p Nodes=n\n"
        )

        def ask(*verb: str) -> tuple[str, bool]:
            """Run a command; return its output, and whether the Slurm there was queried."""
            done, calls = hpcrun.process(*verb), 0
            with contextlib.suppress(TimeoutError):
                while True:
                    theirs.accept()[0].close()
                    calls += 1
            return done.out + done.err, calls > 0

        assert ask("status")[1], "the user's own is asked"
        # The slurm.conf in a record of another user is never used, even if the user owns it.
        os.chown(run.submitted, STRANGER, STRANGER)
        for text in (json.dumps(record), json.dumps(record).replace("_conf", "\\u005fconf")):
            run.submitted.write_text(text)
            assert not ask("status", str(run.path))[1], text
        os.chown(run.submitted, 0, 0)
        os.chown(gone, STRANGER, STRANGER)
        for verb in (("status",), ("wait", "15", "--timeout", "1"), ("clean",)):
            assert not ask(*verb)[1], verb
        said, _ = ask("status", "15")
        assert f"{gone}/slurm.conf is ignored: {gone} belongs to 12345" in said


@pytest.mark.parametrize("name", ["jobs/zero2-4gpu.yaml", "templates/job.sbatch.j2"])
def test_jobs_and_templates_of_another_user_are_refused(hpcrun: Caller, name: str) -> None:
    require_root()
    text = '{% extends "hpcrun/job.sbatch.j2" %}\n' if "templates" in name else "command: [id]\n"
    file = hpcrun.write(name, text)
    os.chown(file, STRANGER, STRANGER)
    shown = hpcrun("submit", "zero2-4gpu", "--dry-run")
    assert shown.code == InputError.exit_code and f"{file} belongs to 12345" in shown.err
    # The advice also works for a link of the user.
    file.rename(hpcrun.runs.parent / "theirs")
    file.symlink_to(hpcrun.runs.parent / "theirs")
    shown = hpcrun("submit", "zero2-4gpu", "--dry-run")
    assert shown.code == InputError.exit_code and f"{file} belongs to 12345" in shown.err
    hpcrun.environ["HPCRUN_TRUST"] = shown.err.rpartition("HPCRUN_TRUST=")[2].strip()
    assert hpcrun("submit", "zero2-4gpu", "--dry-run").code == 0
