"""Folders that a run writes to: free space, quota, visibility on the nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.actions.checks import places
from hpcrun.actions.checks.places import (
    Mount,
    Remainder,
    check_places,
    file_system_queries,
    mount_of,
    parse_mounts,
    parse_quota,
    place_queries,
    quota_argv,
)
from hpcrun.actions.cluster_host import open_host
from hpcrun.context import Context, load_context
from hpcrun.monitor.disk import describe_full_disk
from hpcrun.remote.queries import ReadFile, RunCommand

MOUNTS = parse_mounts(
    "/dev/sda / ext4 rw,relatime 0 0\n"
    "nas:/export/home /home nfs4 rw 0 0\n"
    "nas:/deep /home/deep\\040er nfs rw 0 0\n"
    "10.0.0.1@tcp:/lustre /lustre lustre rw 0 0\n"
    "/dev/gpfs0 /gpfs gpfs rw 0 0\n"
    "beegfs_nodev /bee beegfs rw 0 0\n"
    "/dev/sdb /local xfs rw,usrquota 0 0\n"
    "auto.scratch /scratch autofs rw 0 0\n"
    "10.0.0.1@tcp:/scratch /scratch lustre rw 0 0\n"
    "auto.data /data autofs rw 0 0\n"
    "tmpfs /scratch/tmp tmpfs rw 0 0\n"
    "garbage\n\n"
)


def mount(path: str) -> Mount:
    found = mount_of(path, MOUNTS)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/", "/"),
        ("/homes/x", "/"),
        ("/home", "/home"),
        ("/home/deep er/x", "/home/deep er"),
        ("/data/x", "/"),
        ("/scratch/tmp/x", "/scratch/tmp"),
    ],
)
def test_file_system_of_a_path_is_found(path: str, folder: str) -> None:
    assert mount(path).folder == folder
    assert mount("/scratch/x").type == "lustre" and mount_of("/x", []) is None


# The forms are those of quota(1) with -w -p, lfs-quota(1) with -q, IBM's mmlsquota -Y and
# beegfs-ctl --getquota --csv.
QUOTA = """Disk quotas for user me (uid 1001):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
/dev/sda 1 2 3 0 4 5 6 0
nas:/export/home 9000*  9500   10000  1764000000  123       0       0       0
"""
GPFS = """mmlsquota:user:HEADER:version:reserved:reserved:filesystemName:quotaType:id:name:\
blockUsage:blockQuota:blockLimit:blockInDoubt:blockGrace:filesUsage:filesQuota:filesLimit:\
filesInDoubt:filesGrace:remarks:fid:filesetname:
mmlsquota:user:0:1:::gpfs0:USR:1001:me:100:0:300:7:none:10:20:0:0:none::0::
"""
BEEGFS = """name,id,size,hard,files,hard
me,1001,16384,1073741824,5,unlimited
"""


@pytest.mark.parametrize(
    ("path", "text", "left"),
    [
        ("/home/me", QUOTA, Remainder(1000 * 1024, None)),
        ("/home/me", "Disk quotas for user me (uid 1001): none\n", None),
        ("/lustre/me", "  /lustre 10 20 0 - 5 0 7 -\n", Remainder(10 * 1024, 2)),
        ("/lustre/me", "  /lustre\n [30]* 20 25 6d23h 5 0 0 -\n", Remainder(0, None)),
        ("/lustre/me", "  /lustre 10 0 0 - 5 0 0 -\n", Remainder(None, None)),
        ("/gpfs/me", GPFS, Remainder(200 * 1024, 10)),
        ("/gpfs/me", GPFS.replace(":gpfs0:", ":other:"), None),
        ("/bee/me", BEEGFS, Remainder(1073741824 - 16384, None)),
        ("/bee/me", BEEGFS + "me,1001,1,2,3,4\n", None),  # two storage pools: which one?
        ("/home/me", "\x00\xff garbage : , * \n" * 3, None),
        ("/lustre/me", "a b c d e f g h i", None),
        ("/gpfs/me", "HEADER:::\n:USR:", None),
        ("/bee/me", "1,2,3,4,5,6\n", None),
    ],
)
def test_quota_command_output_is_parsed(path: str, text: str, left: Remainder | None) -> None:
    assert parse_quota(mount(path), 1001, text) == left


@pytest.mark.parametrize(
    ("path", "argv"),
    [
        ("/home/me", ["quota", "-w", "-p"]),
        ("/local/me", ["quota", "-w", "-p"]),
        ("/lustre/me", ["lfs", "quota", "-q", "-u", "1001", "/lustre"]),
        ("/gpfs/me", ["mmlsquota", "-Y", "-u", "1001", "gpfs0"]),
        ("/bee/x", ["beegfs-ctl", "--getquota", "--csv", "--mount=/bee", "--uid", "1001"]),
        ("/tmp", None),
    ],
)
def test_quota_command_depends_on_the_file_system(path: str, argv: list[str] | None) -> None:
    assert quota_argv(mount(path), 1001) == argv


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# ---- folders


@pytest.fixture
def context(tmp_path: Path, clean_environ: dict[str, str]) -> Context:
    """A project with its runs next to it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "hpcrun.yaml").write_text(f"runs_dir: {tmp_path}/runs\ncache_dir: {tmp_path}/c\n")
    return load_context(clean_environ, project)


def look(context: Context, nodes: int = 1) -> tuple[list[str], list[str]]:
    host = open_host(context, place_queries(context))
    host.run_queries(file_system_queries(context, host, nodes))
    found = check_places(context, host, nodes)
    return [str(problem) for problem in found.problems], found.notes


def test_creatable_folders_are_accepted_without_traces(context: Context) -> None:
    before = sorted(context.project.parent.rglob("*"))
    assert look(context) == ([], [])
    assert sorted(context.project.parent.rglob("*")) == before


def test_runs_folder_writable_by_others_has_a_note(context: Context) -> None:
    context.runs_dir.mkdir()
    for mode, notes in ((0o755, 0), (0o777, 1), (0o1777, 0)):
        context.runs_dir.chmod(mode)
        assert len(look(context)[1]) == notes, oct(mode)
    context.runs_dir.chmod(0o777)
    assert "others can write to it" in look(context)[1][0]


def test_file_in_place_of_a_folder_is_reported(context: Context) -> None:
    context.runs_dir.write_text("")
    below = structs.replace(context, cache_dir=context.runs_dir / "a" / "b")
    problems, _ = look(below)
    assert problems[0] == f"{context.cluster_source}: runs_dir: {context.runs_dir}: not a folder"
    assert problems[1].startswith(f"{context.cluster_source}: cache_dir: {context.runs_dir}: ")


def test_symlink_loop_is_reported(context: Context) -> None:
    context.runs_dir.symlink_to(context.runs_dir.name)
    [problem] = look(context)[0]
    where = f"{context.cluster_source}: runs_dir: {context.runs_dir}"
    assert problem.startswith(f"{where}: Too many levels")


def test_unwritable_folder_is_reported(context: Context) -> None:
    # Not even root can create files in /proc.
    [problem] = look(structs.replace(context, runs_dir=Path("/proc/runs")))[0]
    assert problem.startswith(f"{context.cluster_source}: runs_dir: /proc: cannot be written to: ")
    assert problem.endswith(" (for /proc/runs); choose a folder that you can write to")


class Room:
    """What statvfs would say."""

    f_frsize, f_blocks, f_files = 1000, 10**9, 10**6

    def __init__(self, blocks: int, files: int) -> None:
        self.f_bavail, self.f_favail = blocks, files


@pytest.mark.parametrize(
    ("room", "problem", "note"),
    [
        (Room(10**7, 10**5), "", ""),
        (Room(500_000, 10**5), "", "500 MB are left"),
        (Room(10**7, 12), "", "12 files are left"),
        (Room(0, 10**5), "no space is left", ""),
        (Room(10**7, 0), "no inodes are left", ""),
    ],
)
def test_little_space_has_a_note_and_no_space_is_a_problem(
    context: Context, monkeypatch: pytest.MonkeyPatch, room: Room, problem: str, note: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    problems, notes = look(context)
    assert [problem in text for text in problems] == [True] * bool(problem)
    assert [note in text for text in notes] == [True] * bool(note)


def test_file_system_without_size_data_is_not_full(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Room(0, 0)
    silent.f_blocks = silent.f_files = 0
    monkeypatch.setattr(os, "statvfs", lambda _: silent)
    assert look(context) == ([], []) and describe_full_disk(context.runs_dir) == ""
    assert describe_full_disk(Path("/no/such")) == ""


@pytest.mark.parametrize(
    ("room", "message"),
    [
        (Room(1000, 1), ""),
        (Room(0, 1), "no space is left"),
        (Room(64, 1), "64 KB are left"),
        (Room(1000, 0), "no inodes are left"),
    ],
)
def test_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch, room: Room, message: str) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    shown = f"disk: the file system of /runs/x is full: {message}; make room there"
    assert describe_full_disk(Path("/runs/x")) == (shown if message else "")


@pytest.mark.parametrize(
    ("answer", "problem", "note"),
    [
        ("echo nas:/x 999000 0 1000000 0 5 0 0 0", "", "1 MB are left of your quota"),
        ("echo nas:/x 9 0 9 0 5 0 0 0", "no space is left of your quota", ""),
        ("echo nas:/x 9 0 0 0 5 5 5 0", "no inodes are left of your quota", ""),
        ("echo nonsense; exit 1", "", ""),
    ],
)
def test_quota_is_queried_on_a_network_file_system(
    context: Context, monkeypatch: pytest.MonkeyPatch, answer: str, problem: str, note: str
) -> None:
    folder = context.project.parent / "bin"
    folder.mkdir()
    script(folder / "quota", answer)
    (folder / "mounts").write_text("nas:/x / nfs4 rw 0 0\n")
    monkeypatch.setattr(places, "MOUNTS", ReadFile(str(folder / "mounts")))
    environ = {**context.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    problems, notes = look(structs.replace(context, environ=environ))
    assert [problem in text for text in problems] == [True] * bool(problem)
    assert [note in text for text in notes] == [True] * bool(note)


@pytest.mark.parametrize(
    ("kind", "nodes", "exports", "message"),
    [
        ("ext4", 2, False, True),
        ("ext4", 1, False, False),
        ("ext4", 2, True, False),  # a head node, whose disks the others see
        ("tmpfs", 2, True, True),
        ("nfs4", 2, False, False),
        ("lustre", 2, False, False),
        ("fuse.sshfs", 2, False, False),
    ],
)
def test_local_disk_is_reported_for_multi_node_runs(
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    nodes: int,
    exports: bool,
    message: bool,
) -> None:
    mounts = context.project / "mounts"
    mounts.write_text(f"x / {kind} rw 0 0\n")
    monkeypatch.setattr(places, "MOUNTS", ReadFile(str(mounts)))
    monkeypatch.setattr(places, "_OWN_FOLDERS", ())
    monkeypatch.setattr(places, "EXPORTS", RunCommand(("true" if exports else "false",)))
    _, notes = look(context, nodes)
    shown = f"runs_dir {context.runs_dir}: on this machine's own disk ({kind})"
    assert [note.startswith(shown) for note in notes] == [True] * message
