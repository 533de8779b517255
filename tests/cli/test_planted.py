"""Malicious runs, special files, links and escape sequences of other users."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest

from hpcrun.cli.output import confirm, prompt
from hpcrun.errors import InputError
from hpcrun.files import write_atomically
from hpcrun.runs.records import write_file
from tests.cli.calling import Caller
from tests.cli.status_runs import make_run
from tests.needs import require_root

STRANGER = 12345
MINE, THEIRS = "20261120-081455-train-7k3q", "20261121-081455-train-8x2z"
LOG = "step=1 loss=2.5\nstep=2 loss=2.25\n"


def plant(hpcrun: Caller, job_id: str) -> Path:
    """Put a newer run of another user into a shared folder."""
    require_root()
    run = make_run(hpcrun, THEIRS, job_id, ended=time.time(), log=LOG)
    hpcrun.runs.chmod(0o1777)
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    return run.path


@pytest.mark.slow
def test_run_of_another_user_is_named_only_by_its_path(hpcrun: Caller) -> None:
    path = plant(hpcrun, "15")
    assert f"no run in {hpcrun.runs} is yours" in hpcrun("status").out
    make_run(hpcrun, MINE, "15", ended=time.time(), log="step=1 loss=9.5\n")
    assert "9.5" in hpcrun("parse", "--json").out and "9.5" in hpcrun("parse", "15", "--json").out
    assert "8x2z" not in hpcrun("status", "-n", "all").out
    refused = hpcrun("resubmit", THEIRS)
    assert refused.code == 2 and f"this run belongs to {STRANGER}" in refused.err
    assert str(path) in refused.err
    for verb in (("wait", "8x2z"), ("logs", "8x2z"), ("cancel", "8x2z"), ("requeue", "8x2z")):
        assert hpcrun(*verb).code == 2, verb
    named = hpcrun("parse", str(path), "--json")
    assert json.loads(named.out)["runs"][0]["metrics"]["loss"]["last"]["value"] == 2.25
    assert f"note: {path}: this run belongs to {STRANGER}" in named.err
    assert not (path / "cache").exists(), "nothing is written there"


def test_index_of_another_user_is_ignored(hpcrun: Caller) -> None:
    require_root()
    make_run(hpcrun, MINE, "15", ended=time.time(), log=LOG)
    index = hpcrun.runs / ".job-ids"
    index.write_text(f"{MINE}\t16\n")
    os.chown(index, STRANGER, STRANGER)
    assert MINE in hpcrun("parse", "15").out


@pytest.mark.parametrize("kind", ["fifo", "device", "huge", "deep", "torn"])
@pytest.mark.parametrize("name", ["plan.json", "cancelled.json", "attempts/0/end.json"])
@pytest.mark.slow
def test_malformed_record_is_reported_and_ignored(hpcrun: Caller, kind: str, name: str) -> None:
    run = make_run(hpcrun, MINE, "15", log=LOG)
    path = run.path / name
    spoil(path, kind)
    status = hpcrun("status", MINE)  # in one process, a file is reported once
    assert f"{path}: " in status.err
    for done in (status, hpcrun("parse", MINE), hpcrun("logs", MINE)):
        assert "Traceback" not in done.err, done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [("job_id", "15; id"), ("job_id", "--user=me"), ("nodes", 10**400), ("submitted_at", 10**400)],
)
def test_record_with_commands_or_huge_numbers_is_ignored(
    hpcrun: Caller, name: str, value: object
) -> None:
    run = make_run(hpcrun, MINE, "15", log=LOG)
    run.submitted.write_text(json.dumps(json.loads(run.submitted.read_text()) | {name: value}))
    done = hpcrun("status", MINE)
    assert f"{run.submitted}: ignored: corrupt" in done.err and "Traceback" not in done.err
    assert str(value) not in done.out


@pytest.mark.slow
def test_folders_that_resemble_attempts_are_ignored(hpcrun: Caller) -> None:
    run = make_run(hpcrun, MINE, "15", ended=time.time(), log=LOG)
    for name in ("²", "9" * 20, "-1"):
        (run.attempts / name).mkdir()
        (run.logs / name).mkdir()
    for verb in (("status", MINE), ("logs", MINE), ("logs", MINE, "--node", "²"), ("parse", MINE)):
        assert "Traceback" not in hpcrun(*verb).err, verb


@pytest.mark.slow
def test_logs_behind_links_of_other_users_are_ignored(hpcrun: Caller) -> None:
    path = plant(hpcrun, "15")
    (path / "logs").rename(hpcrun.project / "private")
    (path / "logs").symlink_to(hpcrun.project / "private")
    os.chown(path / "logs", STRANGER, STRANGER, follow_symlinks=False)
    done = hpcrun("logs", str(path))
    assert "loss" not in done.out and f"{path}/logs: a link that belongs to {STRANGER}" in done.err
    assert "2.25" not in hpcrun("status", str(path)).out


@pytest.mark.parametrize("name", ["attempts", "attempts/0"])
@pytest.mark.slow
def test_records_behind_links_of_other_users_are_ignored(hpcrun: Caller, name: str) -> None:
    path = plant(hpcrun, "15")
    own = (path / name).rename(hpcrun.project / "private")
    precious = (own if name == "attempts/0" else own / "0") / "environment"
    precious.write_text("mine")
    (path / name).symlink_to(own)
    os.chown(path / name, STRANGER, STRANGER, follow_symlinks=False)
    (path / "attempts" / "1").mkdir(exist_ok=True)  # behind the link, or next to it
    for verb in ("status", "parse"):
        done = hpcrun.process(verb, str(path))
        assert f"{path}/{name}: a link that belongs to {STRANGER}" in done.err, done
    assert "COMPLETED" not in hpcrun("status", str(path)).out
    assert precious.read_text() == "mine"


def test_prompts_contain_no_control_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example job names in the prompt of sandbox down."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n\n"))
    assert confirm("\x1b[2J?") and prompt("which", "\x1b[2J") == "\x1b[2J"
    shown = capsys.readouterr().err
    assert shown.count("\\x1b[2J") == 2 and "\x1b" not in shown


def spoil(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        require_root()
        os.mknod(path, 0o020666, os.makedev(1, 5))  # /dev/zero
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.write_text("[" * 100_000 if kind == "deep" else '{"a')


@pytest.mark.slow
def test_special_files_as_logs_and_jobs_are_reported_and_ignored(hpcrun: Caller) -> None:
    run = make_run(hpcrun, MINE, "15", ended=time.time(), log=LOG)
    os.mkfifo(run.logs / "0" / "rank-1.log")
    os.mkfifo(run.logs / "batch.log")
    (hpcrun.project / "jobs").mkdir()
    os.mkfifo(hpcrun.project / "jobs" / "bad.yaml")
    logs, jobs = hpcrun("logs", MINE), hpcrun.process("jobs")
    assert "loss=2.25" in logs.out and f"{run.logs}/0/rank-1.log: not a regular file" in logs.err
    assert jobs.code == 0 and jobs.err.count("bad.yaml: not a regular file") == 1


@pytest.mark.slow
def test_pattern_with_catastrophic_backtracking_is_aborted(
    hpcrun: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcrun.actions.parse.PATTERN_LIMIT_CPU_S", 0.5)
    hpcrun.write("a.log", f"step=1 loss=2 {'a' * 40}b\n")
    done = hpcrun("parse", "a.log", "--pattern", "(a+)+(?P<loss>c)")
    assert done.code == 2 and "took more than 0.5 s of CPU time" in done.err


def test_writing_follows_no_links_of_other_users(tmp_path: Path) -> None:
    require_root()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    link = tmp_path / "out.csv"
    link.symlink_to(victim)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    # Earlier names of temporary files were predictable.
    (tmp_path / f".hpcrun-{os.getpid()}.part").symlink_to(victim)
    with (
        pytest.raises(InputError, match="a link that belongs to 12345"),
        write_atomically(link) as file,
    ):
        file.write(b"x")
    with write_atomically(tmp_path / "b.csv") as file:
        file.write(b"x")
    write_file(tmp_path / "record.json", b"x")
    assert victim.read_text() == "mine"


def test_foreign_text_contains_no_control_sequences(hpcrun: Caller) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b1A\u202e"
    run = make_run(hpcrun, MINE, "15", ended=time.time(), log=LOG)
    record = json.loads(run.submitted.read_text()) | {"name": f"n{evil}", "host": evil}
    run.submitted.write_text(json.dumps(record))
    hpcrun.write(f"jobs/a{evil.replace('/', '')}.yaml", f"description: {json.dumps(evil)}\n")
    for verb in ("status", f"status {MINE}", "jobs", f"logs {evil}", f"parse {evil}", f"x{evil}"):
        done = hpcrun(*verb.split(" "))
        for text in (done.out, done.err):
            assert not {"\x07", "\x9b", "\u202e"} & set(text), verb
            assert "\x1b]" not in text and "\x1b[2J" not in text, verb
