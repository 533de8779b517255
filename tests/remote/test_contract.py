"""The contract of every transport: locally, and over a real sshd with a separate home."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.actions.checks import places
from hpcrun.errors import InputError, OutOfReach
from hpcrun.remote import ShowProgress, far, mirror
from hpcrun.remote.by_paramiko import ParamikoConnection
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import Reply, SshSettings
from hpcrun.remote.mirror import GAP, TAIL, Mirror, Receiver
from hpcrun.remote.queries import ReadFile
from hpcrun.remote.ssh import SshTransport, local_timezone
from hpcrun.runs import RunFolder, read_node_usage
from tests.cli.calling import Caller
from tests.remote.desk import Desk
from tests.remote.sshd import Laptop, servers
from tests.remote.transport_sides import OTHER, RUN, Side, _Nobody, _ssh_side
from tests.remote.transport_sides import laptop as laptop
from tests.remote.transport_sides import side as side


@pytest.fixture
def ssh(laptop: Laptop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    yield from _ssh_side(laptop, tmp_path, monkeypatch)


def test_command_gets_input_folder_and_environment(side: Side, tmp_path: Path) -> None:
    run = side.transport.run
    done = run(["bash", "-c", 'cat; pwd; echo "$OWN" >&2; exit 3'], cwd="/usr", stdin="a'\udcff\n")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "a'\udcff\n/usr\n", "1\n")
    env = {"A": "it's\n$HOME", "PATH": os.environ["PATH"]}
    assert run(["bash", "-c", 'echo "$A,${OWN-none}"'], env=env).stdout == "it's\n$HOME,none\n"
    with pytest.raises(OutOfReach, match="no-such-command: command not found"):
        run(["no-such-command"])


def test_login_variables_do_not_change_slurm_output(ssh: Side) -> None:
    there = ssh.transport.run(["env"]).stdout
    assert "SQUEUE_STATES" not in there and f"TZ={local_timezone()}\n" in there
    assert "TZ=" not in ssh.transport.run(["env"], env={"PATH": os.environ["PATH"]}).stdout
    assert "TZ=" not in ssh.transport.run(["bash", "-c", "env"]).stdout  # jobs have it of there


def test_folders_are_delivered_and_the_command_runs_in_the_first(side: Side) -> None:
    code, out, err = side.deliver(side.new(), side.new(OTHER))
    assert (code, out.split()[-1], err) == (0, "7", "oops\n")
    assert "job.sbatch" in out.split()
    run = side.far / RUN
    assert (side.far.parent / "log").read_text() == f"{run}\n"
    assert stat.S_IMODE((run / "secrets.env").stat().st_mode) == 0o600
    assert (run / "attempts").is_dir() and (side.far / OTHER / "job.sbatch").is_file()
    assert os.access(run / "code" / "run.sh", os.X_OK)
    assert (run / "code" / "pkg" / "link").resolve() == run / "code" / "train.py"
    assert [path.name for path in side.far.glob(".incoming*")] == []


def test_leftovers_of_killed_submissions_are_removed(ssh: Side) -> None:
    old, new = (ssh.far / f"{far.INCOMING}{name}" for name in ("old", "new"))
    for folder in (old, new):
        (folder / "runs").mkdir(parents=True)
    os.utime(old, (0, 0))
    assert ssh.deliver(ssh.new())[0] == 0
    assert not old.exists() and new.exists()


def test_folder_of_a_refused_submission_is_removed(side: Side) -> None:
    run = side.new()
    assert side.deliver(run, code=5)[0] == 5
    side.transport.remove_directories([run, side.runs / OTHER])
    assert not run.exists() and not (side.far / RUN).exists()
    assert [path.name for path in side.far.glob(".trash*")] == []


def test_changed_files_are_fetched(side: Side) -> None:
    side.deliver(side.new())
    side.there("attempts/0/begin.json", "{}")
    log = side.there("logs/0/rank-0.log", "one\n")
    refresh = side.transport.fetch_changes
    refresh([side.runs / RUN, side.runs.parent / "elsewhere"])
    assert (
        side.runs / RUN / "attempts/0/begin.json"
    ).read_text() == "{}" and side.log() == b"one\n"
    with log.open("a") as file:
        file.write("two\n")
    refresh([side.runs / RUN])
    assert side.log() == b"one\ntwo\n"
    log.write_text("new\n")  # truncated
    refresh([side.runs / RUN])
    assert side.log() == b"new\n"
    log.rename(log.with_name("rank-1.log"))  # rotated
    log.write_text("newer and longer\n")
    refresh([side.runs / RUN])
    assert side.log() == b"newer and longer\n"
    assert side.log("logs/0/rank-1.log") == b"new\n"
    side.there("attempts/0/begin.json", '{"attempt": 0}')
    refresh([side.runs / RUN])
    assert (side.runs / RUN / "attempts/0/begin.json").read_text() == '{"attempt": 0}'


def test_files_are_uploaded_and_removed(side: Side) -> None:
    run = side.new()
    side.deliver(run)
    (run / "cancelled.json").write_text("{}")
    (run / "secrets.env").unlink()
    (run / "successors").mkdir()
    (run / "successors" / "a.json").write_text("1")
    names = ("cancelled.json", "secrets.env", "successors/a.json")
    side.transport.upload_files([run / name for name in names])
    there = side.far / RUN
    assert [(there / name).exists() for name in names] == [True, False, True]


# ---- remote hosts only


def test_end_of_a_long_log_is_fetched_first(ssh: Side) -> None:
    ssh.deliver(ssh.new())
    log = ssh.there("logs/0/rank-0.log", "first\n")
    os.truncate(log, 2 << 30)
    with log.open("a") as file:
        file.write("last\n")
    ssh.transport.fetch_changes([ssh.runs / RUN])
    here = ssh.runs / RUN / "logs/0/rank-0.log"
    assert here.stat().st_size == log.stat().st_size
    assert here.stat().st_blocks * 512 <= 2 * TAIL  # the rest is a hole
    with here.open("rb") as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == b"last\n"
    os.truncate(log, 3 << 20)
    with log.open("a") as file:
        file.write("end\n")
    ssh.transport.fetch_changes([ssh.runs / RUN], whole=True)
    assert here.read_bytes() == log.read_bytes()


def test_linked_output_of_a_script_is_fetched_as_a_file(ssh: Side, tmp_path: Path) -> None:
    """It may be in another file system; other links are not followed."""
    ssh.deliver(ssh.new())
    (tmp_path / "far.out").write_text("one\n")
    ssh.there("logs/batch.log", "").unlink()
    for name in ("batch.log", "other.log"):
        (ssh.far / RUN / "logs" / name).symlink_to(tmp_path / "far.out")
    ssh.transport.fetch_changes([ssh.runs / RUN])
    assert ssh.log("logs/batch.log") == b"one\n"
    assert not (ssh.runs / RUN / "logs/batch.log").is_symlink()
    assert not (ssh.runs / RUN / "logs/other.log").exists()


def test_records_with_long_paths_are_fetched(ssh: Side) -> None:
    ssh.deliver(ssh.new())
    host = f"node-{'7' * 60}.cluster.example.org"
    names = [f"attempts/0/warnings/{host}", f"roles/judge/attempts/12/failures/{'1' * 60}.json"]
    for name in names:
        ssh.there(name, name)
    ssh.transport.fetch_changes([ssh.runs / RUN])
    assert [(ssh.runs / RUN / name).read_text() for name in names] == names


def test_use_of_nodes_is_fetched_from_its_beginning(ssh: Side) -> None:
    ssh.deliver(ssh.new())
    text = "hpcrun-usage 1 n1 15 job 4 job 1000\n"
    text += "".join(f"{second} {second} 0 1 1 {second}\n" for second in range(40_000))
    files = [
        ssh.there(f"{of}usage/{number}/node-1", text)
        for of in ("", "roles/judge/")
        for number in (9, 10)
    ]
    ssh.there("usage/10/node-0", text.replace("n1", "n0"))
    ssh.there("usage/10/node-0 of the user", text)
    ssh.there("attempts/10/begin.json", "{}")
    assert len(text) > TAIL
    refresh, run = ssh.transport.fetch_changes, ssh.runs / RUN
    refresh([run])
    assert (run / "usage/10/node-1").read_text() == text
    assert (run / "roles/judge/usage/10/node-1").read_text() == text
    assert sorted(path.name for path in run.glob("usage/*/*")) == ["node-0", "node-1"]
    for path in files:
        with path.open("a") as file:
            file.write("40000 40000 0 1 2 40000\n")
    refresh([run])
    nodes = read_node_usage(RunFolder(run))
    assert [(node.node, node.seconds, node.memory_peak) for node in nodes] == [
        ("n0", 39_999.0, 1),
        ("n1", 40_000.0, 2),
    ]
    # All nodes of a run or none: more than this is not worth a trip.
    ssh.there("usage/11/node-0", text)
    os.truncate(ssh.there("usage/11/node-1", text), GAP)
    ssh.there("logs/11/rank-0.log", "last\n")
    refresh([run])
    assert ssh.log("logs/11/rank-0.log") == b"last\n"
    assert not (run / "usage/11").exists()


@pytest.mark.slow
def test_hole_in_a_log_is_filled_on_request(ssh: Side) -> None:
    ssh.deliver(ssh.new())
    text = b"".join(b"step %d\n" % step for step in range(200_000))
    log = ssh.there("logs/0/rank-0.log", text)
    ssh.transport.fetch_changes([ssh.runs / RUN])
    assert ssh.log() != text and ssh.log()[-TAIL:] == text[-TAIL:]
    ssh.transport.fetch_changes([ssh.runs / RUN], whole=True)
    assert ssh.log() == text
    with log.open("ab") as file:
        file.write(text)
    ssh.transport.fetch_changes([ssh.runs / RUN])  # what was whole stays so
    assert ssh.log() == 2 * text


def test_same_folder_is_submitted_once(ssh: Side) -> None:
    run = ssh.new()
    first = ssh.deliver(run)
    assert ssh.deliver(run) == first
    assert (ssh.far.parent / "log").read_text() == f"{ssh.far / RUN}\n"


def test_same_folder_is_submitted_once_by_concurrent_processes(ssh: Side) -> None:
    run = ssh.new()
    assert isinstance(ssh.transport, SshTransport)
    connection = open_connection(SshSettings(host="mycluster"), _Nobody())
    other = SshTransport(
        {}, connection=connection, mirror=ssh.runs, runs_dir=ssh.transport.runs_dir
    )
    try:
        with ThreadPoolExecutor() as threads:
            sides = (ssh, replace(ssh, transport=other))
            first, second = threads.map(lambda side: side.deliver(run), sides)
    finally:
        connection.close()
    assert first == second
    assert (ssh.far.parent / "log").read_text() == f"{ssh.far / RUN}\n"


def test_run_names_are_fetched(ssh: Side) -> None:
    ssh.deliver(ssh.new())
    (ssh.far / RUN / "submitted.json").write_text("{}")
    (ssh.far / OTHER).symlink_to("/")
    shutil.rmtree(ssh.runs)
    ssh.transport.fetch_changes([ssh.runs])
    assert [path.name for path in ssh.runs.iterdir()] == [RUN]
    assert (ssh.runs / RUN / "submitted.json").read_text() == "{}"


def sent(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Record which code files each delivery contains."""
    streams: list[set[str]] = []
    pieces = mirror.UploadStream.pieces

    def noted(stream: mirror.UploadStream) -> Iterator[bytes]:
        data = b"".join(pieces(stream))
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = {name.removeprefix("code/") for name in tar.getnames()}
        streams.append({name for name in names if name.endswith((".py", ".sh", "link"))})
        yield data

    monkeypatch.setattr(mirror.UploadStream, "pieces", noted)
    return streams


def test_only_changed_code_is_sent(ssh: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = sent(monkeypatch)
    ssh.deliver(ssh.new())
    assert streams.pop() == {"train.py", "run.sh", "pkg/link"}
    ssh.deliver(ssh.new(OTHER))
    assert streams.pop() == set()
    (ssh.far / RUN / "code" / "train.py").write_text("changed by the job")
    third = ssh.new("20261120-081457-job-7k3s", code="print(2)\n")
    (third / "code" / "run.sh").unlink()
    ssh.deliver(third)
    assert streams.pop() == {"train.py"}
    code = ssh.far / third.name / "code"
    assert (code / "train.py").read_text() == "print(2)\n" and not (code / "run.sh").exists()
    shutil.rmtree(ssh.far / far.CODE)  # what this side knows is there is not
    ssh.deliver(ssh.new("20261120-081458-job-7k3t"))
    assert streams == [set(), {"train.py", "run.sh", "pkg/link"}]
    assert (ssh.far / "20261120-081458-job-7k3t/code/train.py").read_text() == "print(1)\n"


def test_upload_progress_is_shown(ssh: Side) -> None:
    run, shown = ssh.new(), list[tuple[float, float]]()
    (run / "code" / "weights").write_bytes(os.urandom(300_000))

    def bar(label: str, unit: str) -> AbstractContextManager[ShowProgress]:
        return nullcontext(lambda done, total: shown.append((done, total)))

    assert isinstance(ssh.transport, SshTransport)
    ssh.transport.bar = bar
    ssh.deliver(run)
    totals = {total for _, total in shown}
    assert len(shown) > 3 and len(totals) == 1 and max(shown)[0] == totals.pop() > 0.3


@pytest.mark.slow
def test_large_data_in_the_code_is_refused(ssh: Side) -> None:
    run = ssh.new()
    with (run / "code" / "data.bin").open("wb") as file:
        file.truncate(201 * 10**6)
    with pytest.raises(InputError, match=r"the largest files: data\.bin \(201 MB\), "):
        ssh.deliver(run)
    assert not ssh.far.exists()


def test_interrupted_upload_leaves_nothing(ssh: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = mirror.UploadStream.pieces
    for part in (0.0, 0.3, 0.9):

        def cut(stream: mirror.UploadStream, part: float = part) -> Iterator[bytes]:
            data = b"".join(pieces(stream))
            yield data[: int(len(data) * part)]

        monkeypatch.setattr(mirror.UploadStream, "pieces", cut)
        run = ssh.new(f"20261120-081457-job-7k{part * 10:.0f}s")
        with pytest.raises(Exception, match=r"cannot be written|arrived incomplete"):
            ssh.deliver(run)
        assert [path.name for path in ssh.far.iterdir()] == []


def _tar(*members: tuple[str, bytes, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            info.linkname = "/etc/passwd" if kind != tarfile.REGTYPE else ""
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.mark.parametrize(
    "answer",
    [
        b"L %s/logs/../../../x.log 1 0 3 1\nabc." % RUN.encode(),
        b"L %s/logs/0/a.log 1 0 3 1\nabc." % OTHER.encode(),
        b"L %s/logs/0/a.log 1 9 3 1\nabc." % RUN.encode(),
        b"L %s/cache/a.log 1 0 3 1\nabc." % RUN.encode(),
        b"B %s/logs/0/a.log 1 0 99999999999 1\n" % RUN.encode(),
        b"B %s/logs/0/a.log 1 0 0 %b\n." % (RUN.encode(), b"9" * 30),
        b"D ../../x\n.\n",
        b"F 99999999999999\n",
        b"F x\n",
        b"x" * 10000,
        b"\xff\n",
    ],
)
def test_malformed_response_is_reported(tmp_path: Path, answer: bytes) -> None:
    receiver = Receiver(Mirror(tmp_path / "runs"), [RUN], names=True, host="h")
    with pytest.raises(OutOfReach, match="malformed response"):
        receiver.receive(b"=" + answer)
    # The script runs again after an error.
    with pytest.raises(OutOfReach, match="malformed response"):
        receiver.receive(b"=" + answer)
    receiver.close()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_with_other_names_beside_the_logs_are_ignored(ssh: Side) -> None:
    ssh.deliver(ssh.new())
    ssh.there("logs/0/rank-0.log", "one\n")
    for name in ("\x1b[2J.log", "a b.log", "é.log", ".hidden", "x" * 130):
        ssh.there(f"logs/0/{name}", "other\n")
    ssh.there("logs/my plots/a.log", "other\n")
    ssh.transport.fetch_changes([ssh.runs / RUN])
    assert ssh.log() == b"one\n"
    assert [path.name for path in (ssh.runs / RUN / "logs/0").iterdir()] == ["rank-0.log"]


def test_received_files_cannot_escape_the_mirror(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / RUN).mkdir(parents=True)
    (runs / RUN / "attempts").symlink_to(tmp_path)
    tar = _tar(
        (f"{RUN}/../../up.json", tarfile.REGTYPE, b"1"),
        (f"/{RUN}/abs.json", tarfile.REGTYPE, b"1"),
        (f"{OTHER}/other.json", tarfile.REGTYPE, b"1"),
        (f"{RUN}/link.json", tarfile.SYMTYPE, b""),
        (f"{RUN}/hard.json", tarfile.LNKTYPE, b""),
        (f"{RUN}/\x1b[2J.json", tarfile.REGTYPE, b"1"),
        (f"{RUN}/attempts/0/begin.json", tarfile.REGTYPE, b"{}"),
    )
    receiver = Receiver(Mirror(runs), [RUN], host="h")
    receiver.receive(b"=F %d\n%b.\n" % (len(tar), tar))
    receiver.close()
    names = {str(path.relative_to(runs / RUN)) for path in runs.rglob("*") if path.is_file()}
    assert names == {"attempts/0/begin.json", "cache/logs-there.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_received_files_do_not_replace_those_that_only_this_machine_writes(tmp_path: Path) -> None:
    """The channels of notify.json may be commands, which the cluster must not choose."""
    runs = tmp_path / "runs"
    (runs / RUN).mkdir(parents=True)
    own = {"notify.json": "own", "secret_marks.json": "own"}
    for name, text in own.items():
        (runs / RUN / name).write_text(text)
    refused = ["notify.json", "Notify.JSON", "notify.json.part", "notify.json/x", "secrets.env"]
    refused += ["secret_marks.json", "code/x.py", "Code/x.py", "cache/seen.json"]
    names = [f"{run}/{name}" for run in (RUN, OTHER) for name in refused]
    tar = _tar(*((name, tarfile.REGTYPE, b"theirs") for name in names))
    receiver = Receiver(Mirror(runs), [RUN], names=True, host="h")
    receiver.receive(b"=D %s\nD %s\n" % (RUN.encode(), OTHER.encode()))
    receiver.receive(b"F %d\n%b.\n" % (len(tar), tar))
    receiver.close()
    found = {str(path.relative_to(runs)): path.read_text() for path in runs.rglob("*.*")}
    del found[f"{RUN}/cache/logs-there.json"]
    # A run that another machine submitted has no marks here, and its logs are masked by them.
    assert found == {
        **{f"{RUN}/{name}": text for name, text in own.items()},
        f"{OTHER}/secret_marks.json": "theirs",
    }


@pytest.mark.parametrize("kind", ["sparse", "time", "nested"])
def test_malicious_archive_records_are_refused(tmp_path: Path, kind: str) -> None:
    """A file that expands beyond its data, an impossible time, endless names."""
    info = tarfile.TarInfo(f"{RUN}/a.json")
    if kind == "sparse":
        info.type = tarfile.GNUTYPE_SPARSE
        head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        head[483:495] = b"%011o\0" % (60 << 20)
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        data = bytes(head)
    elif kind == "time":
        info.mtime = 1 << 70
        data = info.tobuf(tarfile.GNU_FORMAT)
    else:
        info.type = tarfile.GNUTYPE_LONGNAME
        data = info.tobuf(tarfile.GNU_FORMAT) * 5000
    data += bytes(1024)
    receiver = Receiver(Mirror(tmp_path / "runs"), [RUN], host="h")
    with contextlib.suppress(OutOfReach):
        receiver.receive(b"=F %d\n%b.\n" % (len(data), data))
    receiver.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.json")) < 1000


def test_folders_are_created_only_inside_the_mirror(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / RUN).mkdir(parents=True)
    (runs / RUN / "logs").write_text("a file where a folder is to be")
    (tmp_path / "other").mkdir()
    (runs / RUN / "attempts").symlink_to(tmp_path / "other")
    for name in ("logs/0/a.log", "attempts/0/begin.json"):
        assert Mirror(runs).prepare_path(f"{RUN}/{name}").parent.is_dir()
    assert not [*(tmp_path / "other").iterdir()]


def test_terminal_escapes_of_the_remote_host_are_removed(ssh: Side) -> None:
    done = ssh.transport.run(["bash", "-c", r"printf '\e[2Jx\n' >&2"])
    assert done.stderr == "?[2Jx\n"


def test_remote_host_without_gzip_is_supported(ssh: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh.deliver(ssh.new())
    ssh.there("logs/0/rank-0.log", "one\n")
    monkeypatch.setattr(far, "REFRESH", far.REFRESH.replace("type -P gzip", "type -P no-gzip"))
    ssh.transport.fetch_changes([ssh.runs / RUN])
    assert ssh.log() == b"one\n"


@pytest.mark.slow
def test_each_command_needs_few_round_trips(
    laptop: Laptop,
    tmp_path: Path,
    clean_environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = laptop.home.parent / "far tools"
    tools.mkdir()
    squeue = "[[ $* == *--noheader* ]] || echo JOBID"
    for name, text in (("sbatch", "echo 7"), ("squeue", squeue), ("sacct", "exit 1")):
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    hpcrun = Caller(tmp_path, clean_environ)
    path = f"{laptop.env['PATH']}:{hpcrun.environ['PATH']}"
    hpcrun.environ |= {"HOME": laptop.env["HOME"], "PATH": path}
    hpcrun.write("hpcrun.yaml", f"host: mycluster\nruns_dir: ~/few\nslurm_path: {tools}\n")
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    asked: list[str] = []
    run = ParamikoConnection.run

    def counted(self: ParamikoConnection, script: str, **options: Any) -> Reply:
        asked.append(script)
        return run(self, script, **options)

    monkeypatch.setattr(ParamikoConnection, "run", counted)
    counts = {}
    for words in ("submit job.yaml", "submit job.yaml --dry-run", "status", "logs 7"):
        asked.clear()
        done = hpcrun(*words.split())
        assert done.code == 0 or "no log" in done.err, done
        counts[words] = len(asked)
    # There is no output yet: Slurm is asked why, and again if the first answers took long.
    assert counts.pop("logs 7") in (4, 5)
    assert counts == {
        # One trip queries environment and folders; for a Python job, a second looks for it
        # and for the user's quota.
        "submit job.yaml": 3,
        "submit job.yaml --dry-run": 1,
        "status": 4,  # a squeue that shows nothing is asked twice
    }
    # The folder of Slurm is also on the PATH of a job with a clean environment.
    hpcrun.write("clean.yaml", "extends: ./job.yaml\nenvironment: clean\n")
    (tools / "sbatch").write_text('#!/bin/bash\necho "$PATH" >&2; echo 8\n')
    done = hpcrun("submit", "clean.yaml", "--json")
    assert done.code == 0 and done.json["job_id"] == "8", done


@pytest.mark.slow
def test_code_copies_are_removed_with_their_last_run(ssh: Side) -> None:
    runs = [ssh.new(), ssh.new(OTHER)]
    for run in runs:
        ssh.deliver(run)
    (tree,) = (ssh.far / far.CODE).iterdir()
    ssh.transport.remove_directories(runs[:1])
    assert tree.is_dir()
    ssh.transport.remove_directories(runs[1:])
    assert tree.is_dir()  # it is new: the next submission may need it
    ssh.deliver(ssh.new())
    os.utime(tree, (0, 0))
    ssh.transport.remove_directories([ssh.runs / RUN])
    assert list(ssh.far.iterdir()) == []
    ssh.deliver(ssh.new())
    assert (ssh.far / RUN / "code" / "train.py").is_file()


@pytest.mark.slow
def test_remote_quota_is_queried_in_the_second_round_trip(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, tools = tmp_path / "far home", tmp_path / "far tools"
    for folder in (home, tools):
        folder.mkdir()
    (tools / "quota").write_text("#!/bin/sh\necho nas:/home 1000 0 1000 - 5 0 0 -\n")
    (tools / "quota").chmod(0o755)
    at = str(home).replace(" ", r"\040")
    (home / "mounts").write_text(f"nas:/home {at} nfs4 rw 0 0\n")
    monkeypatch.setattr(places, "MOUNTS", ReadFile(str(home / "mounts")))
    options = [f'SetEnv "HOME={home}" "PATH={tools}:/usr/bin:/bin"']
    with servers(tmp_path / "ssh", mycluster=options) as laptop:
        hpcrun = Caller(tmp_path, clean_environ)
        path = f"{laptop.env['PATH']}:{hpcrun.environ['PATH']}"
        hpcrun.environ |= {"HOME": laptop.env["HOME"], "PATH": path}
        hpcrun.write("hpcrun.yaml", "host: mycluster\nruns_dir: ~/runs\ncache_dir: ~/cache\n")
        hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
        asked: list[str] = []
        run = ParamikoConnection.run

        def counted(self: ParamikoConnection, script: str, **options: Any) -> Reply:
            asked.append(script)
            return run(self, script, **options)

        monkeypatch.setattr(ParamikoConnection, "run", counted)
        done = hpcrun("submit", "job.yaml", "--dry-run")
        assert done.code == 2 and "no space is left of your quota" in done.err, done
        assert len(asked) == 2


def test_user_folders_in_a_mirrored_run_are_kept(tmp_path: Path) -> None:
    """Only a folder in place of a record is corruption, and then the run is fetched again."""
    (tmp_path / RUN / ".vscode").mkdir(parents=True)
    (tmp_path / RUN / "plots.v2").mkdir()
    (tmp_path / OTHER / "submitted.json").mkdir(parents=True)
    assert f"H {RUN}" in Mirror(tmp_path).build_script("/there", [], names=True)
    assert (tmp_path / RUN / ".vscode").is_dir()
    assert not (tmp_path / OTHER).exists()


# This includes a program that continues after another one has started.
MEET = """\
#!/bin/bash
: >"$0.began"
for ((i = 0; i < 200; i++)); do
  if [[ -e {other}.began ]]; then exec {program} "$@"; fi
  sleep 0.1
done
: >"$0.alone"; exec {program} "$@"
"""


@pytest.mark.slow
def test_slurm_is_queried_while_records_are_fetched(desk: Desk) -> None:
    """For known runs, and for a run from another laptop once its name has arrived."""
    desk.submit()
    environ = desk.hpcrun.environ
    desk.hpcrun.environ = environ | {"XDG_STATE_HOME": str(desk.home.parent / "other")}
    desk.submit()
    desk.hpcrun.environ = environ
    slurm = desk.home.parent / "slurm"
    (slurm / "squeue").rename(slurm / "own-squeue")
    for name, program, other in (
        ("squeue", slurm / "own-squeue", slurm / "stat"),
        ("stat", shutil.which("stat"), slurm / "squeue"),
    ):
        (slurm / name).write_text(MEET.format(other=other, program=program))
        (slurm / name).chmod(0o755)
    rows = desk.hpcrun("status", "--json").json["runs"]
    assert {row["job_id"]: row["state"] for row in rows} == {"1": "RUNNING", "2": "RUNNING"}
    assert len([*slurm.glob("*.began")]) == 2 and not [*slurm.glob("*.alone")]
