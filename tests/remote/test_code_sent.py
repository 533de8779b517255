"""Project files that reach the cluster, and their content."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hpcrun.runs import snapshot
from tests.remote.desk import Desk


def everything(folder: Path) -> bytes:
    """Return the content of all files below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return b"".join(path.read_bytes() for path in found)


@pytest.mark.slow
@pytest.mark.parametrize("checkout", [False, True])
def test_files_linked_outside_the_project_are_not_sent(desk: Desk, checkout: bool) -> None:
    project, home = desk.hpcrun.project, desk.laptop.home
    (home / "secrets").mkdir()
    for name in ("secrets/id_x", "cred.json", "module.so"):
        (home / name).write_text("-----PRIVATE-----\n")
    links = {
        "data.txt": home / "secrets" / "id_x",
        "relative.json": Path(os.path.relpath(home / "cred.json", project)),
        "folder": home / "secrets",
        "chain": Path("data.txt"),
        "module.so": home / "module.so",
        "absolute inside": project / "say.sh",
        "inside": Path("say.sh"),
    }
    for name, target in links.items():
        (project / name).symlink_to(target)
    if checkout:
        desk.hpcrun.write(".gitignore", "*.so\n")
        assert os.system(f"git -C '{project}' init -q && git -C '{project}' add -A") == 0
    done = desk.hpcrun("submit", "job.yaml", "--json")
    assert done.code == 0, done
    code = Path(done.json["run_dir"]) / "code"
    assert b"PRIVATE" not in everything(desk.home) and (code / "say.sh").read_text() == "true\n"
    assert (code / "data.txt").readlink() == home / "secrets" / "id_x"
    assert (code / "folder").is_symlink() and (code / "relative.json").is_symlink()
    assert (code / "inside").readlink() == Path("say.sh")
    assert (code / "absolute inside").read_text() == "true\n"
    assert "4 more point outside the project: the cluster gets the link" in done.err, done


@pytest.mark.slow
def test_script_linked_outside_the_project_is_refused(desk: Desk) -> None:
    (desk.laptop.home / "train.py").write_text("")
    (desk.hpcrun.project / "train.py").symlink_to(desk.laptop.home / "train.py")
    desk.hpcrun.write("job.yaml", "script: train.py\nsetup: {python: /usr/bin/python3}\n")
    done = desk.hpcrun("submit", "job.yaml", "--no-check")
    assert done.code == 2 and "a symbolic link to a file outside the project" in done.err, done
    assert desk.is_untouched()


@pytest.mark.slow
def test_large_file_changed_during_upload_is_sent_as_copied(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content of a run always matches the digest it is stored under."""
    monkeypatch.setattr(snapshot, "LINK_ABOVE", 1000)
    weights = desk.hpcrun.write("weights.bin", "a" * 3_000_000)
    over = threading.Event()

    def change() -> None:
        number = 0
        while not over.is_set():
            weights.write_text("bcdefgh"[number % 7] * 3_000_000)
            number += 1

    writer = threading.Thread(target=change)
    writer.start()
    runs = [desk.submit() for _ in range(3)]
    over.set()
    writer.join()
    weights.write_text("a" * 3_000_000)
    runs += [desk.submit(), desk.submit()]
    for run in runs:
        kept = next(desk.state.glob(f"*/runs/{run.name}/code/weights.bin"))
        assert (
            not kept.is_symlink() and kept.read_bytes() == (run / "code/weights.bin").read_bytes()
        )
    for run in runs[3:]:
        assert (run / "code" / "weights.bin").read_text() == "a" * 3_000_000
    first, second = (next(desk.state.glob(f"*/runs/{run.name}/code")) for run in runs[3:])
    assert (first / "weights.bin").samefile(second / "weights.bin"), "it takes its room once"
    # Changed files are sent, and earlier copies keep their content.
    weights.write_text("z" * 3_000_000)
    assert (desk.submit() / "code" / "weights.bin").read_text() == "z" * 3_000_000
    assert (first / "weights.bin").read_text() == "a" * 3_000_000


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022, 0o007])
def test_umask_of_the_login_applies_to_run_folders(desk: Desk, umask: int) -> None:
    """Other users can never write to a run, because the job executes its files."""
    desk.server.stop()
    before = os.umask(umask)
    try:
        desk.server.start()
    finally:
        os.umask(before)
    if umask == 0o007:  # sshd itself has no such umask: the login's own file sets it
        (desk.home / ".bashrc").write_text("umask 007\n")
    desk.hpcrun.write("open.sh", "").chmod(0o777)
    desk.hpcrun.write("pkg/closed.sh", "").chmod(0o600)
    sbatch = desk.home.parent / "slurm" / "sbatch"
    sbatch.write_text(sbatch.read_text() + '\numask >"$HOME/umask of the job"\n')
    runs = [desk.submit()]
    desk.hpcrun.write("say.sh", "true # changed\n")
    runs.append(desk.submit())  # of what has changed
    (job,) = {int((desk.home / "umask of the job").read_text(), 8)}
    assert job == umask
    cancelled = desk.hpcrun("cancel", "2")
    assert cancelled.code == 0 and (runs[1] / "cancelled.json").exists(), cancelled
    hidden = umask | 0o022
    for path in desk.home.joinpath("runs").rglob("*"):
        if not path.is_symlink():
            assert not path.stat().st_mode & hidden, (oct(path.stat().st_mode), path)
    for run in runs:
        assert (run / "code" / "open.sh").stat().st_mode & 0o777 == 0o777 & ~hidden
        assert (run / "code" / "pkg" / "closed.sh").stat().st_mode & 0o777 == 0o600
        assert (run / "logs").stat().st_mode & 0o777 == 0o755 & ~hidden
