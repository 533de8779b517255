"""Queries about the cluster's host have the same results locally and over SSH."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.errors import OutOfReach
from hpcrun.remote.local import LocalTransport
from hpcrun.remote.queries import (
    ClockOffset,
    FolderProbe,
    FolderState,
    LoginEnvironment,
    PathProbe,
    PathState,
    ReadFile,
    ReadOwnFiles,
    RunCommand,
    UserId,
    explain_no_answer,
    parse_answers,
    query_script,
)
from hpcrun.remote.transport import Query, Result
from tests.remote.transport_sides import Side, laptop, side

__all__ = ["laptop", "side"]  # fixtures


@pytest.fixture
def query(side: Side) -> Callable[[Query[Any]], Any]:
    """Answer one query."""
    return lambda query: side.transport.run_queries([query])[query]


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_several_queries_are_answered_together(side: Side, tmp_path: Path) -> None:
    (tmp_path / "it's a file").write_text("one\ntwo\n")
    file = ReadFile(str(tmp_path / "it's a file"))
    missing = ReadFile(str(tmp_path / "missing"))
    unset = ReadFile("$NOT_SET_ANYWHERE/file", expands=True)
    echo = RunCommand(("echo", "a b", "'"))
    answers = side.transport.run_queries([file, missing, unset, UserId(), LoginEnvironment(), echo])
    assert answers[file] == "one\ntwo\n"
    assert answers[missing] == answers[unset] == ""
    assert answers[UserId()] == os.getuid()
    assert answers[LoginEnvironment()]["OWN"] == "1"
    assert answers[echo].stdout == "a b '\n"
    assert RunCommand(("id",)) not in answers
    assert list(side.transport.run_queries([])) == []


def test_path_states_are_probed(query: Callable[[Query[Any]], PathState], tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch(0o644)
    folder.mkdir()
    known = {"exists": True, "is_writable": True}
    assert query(PathProbe(str(file))) == PathState(is_file=True, **known)
    file.chmod(0o755)
    assert query(PathProbe(str(file))).is_executable
    assert query(PathProbe(str(folder))) == PathState(is_folder=True, is_executable=True, **known)
    (folder / ".hidden").touch()
    assert query(PathProbe(str(folder))).is_filled
    assert query(PathProbe(str(tmp_path / "missing"))) == PathState()
    assert query(PathProbe("/no-such-file-system/data")) == PathState(is_known=False)


def test_folder_states_are_probed(
    query: Callable[[Query[Any]], FolderState], tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    state = query(FolderProbe(str(tmp_path / "link" / "new" / "er")))
    assert (state.at, state.real) == (tmp_path / "link", str(tmp_path / "real"))
    assert (state.fault, state.refusal, state.is_open) == ("", "", False)
    assert state.device == tmp_path.stat().st_dev and state.bytes
    assert query(FolderProbe(str(tmp_path / "file"))).fault == "not a folder"
    (tmp_path / "real").chmod(0o777)
    assert query(FolderProbe(str(tmp_path / "real"), writes=False)).is_open
    assert query(FolderProbe("/proc/runs")).refusal
    assert sorted(tmp_path.rglob("*")) == before


def test_only_own_files_are_read(
    query: Callable[[Query[Any]], dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("text\n")
    (tmp_path / "open").write_text("anybody's")
    (tmp_path / "open").chmod(0o666)
    (tmp_path / "link").symlink_to("mine")
    os.mkfifo(tmp_path / "pipe")
    assert query(ReadOwnFiles(str(tmp_path))) == {"mine": "text\n"}
    assert query(ReadOwnFiles(str(tmp_path / "missing"))) == {}


def test_home_is_expanded_on_the_host(side: Side) -> None:
    answers = side.transport.run_queries([LoginEnvironment()])
    environ = answers[LoginEnvironment()]
    probe = FolderProbe("~", expands=True, writes=False)
    if "HOME" in environ:
        assert side.transport.run_queries([probe])[probe].at == Path(environ["HOME"])


def test_offset_of_the_hosts_clock_is_zero_for_the_same_clock(
    query: Callable[[Query[Any]], float],
) -> None:
    assert query(ClockOffset()) == 0.0


@pytest.mark.parametrize(
    ("ahead", "offset"), [(7200, 7200.0), (-90 * 86_400, -90 * 86_400.0), (20, 0.0)]
)
def test_clock_offset_is_the_difference_from_the_host(ahead: int, offset: float) -> None:
    text = f"{time.time() + ahead:.0f}\n"
    found = ClockOffset().parse_answer(Result(["date"], 0, text, ""))
    assert found == pytest.approx(offset, abs=30)


@pytest.mark.parametrize("text", ["", "date: not found", "9" * 12, "-5", "١٢٣", "1e9"])
def test_odd_answer_of_a_clock_is_no_offset(text: str) -> None:
    assert ClockOffset().parse_answer(Result(["date"], 0, text, "")) == 0.0


def test_queried_command_gets_input_and_environment(
    query: Callable[[Query[Any]], Any],
) -> None:
    text = 'cat; echo "$A $PWD"; echo wrong >&2; exit 3'
    result = query(RunCommand(("bash", "-c", text), stdin="it's\n", env=(("A", "b c"),)))
    assert (result.exit_code, result.stdout) == (3, "it's\nb c /\n")
    assert "wrong" in result.stderr
    assert explain_no_answer(result) == ""


@pytest.mark.slow
def test_command_without_a_reply_has_a_reason(
    query: Callable[[Query[Any]], Any], tmp_path: Path
) -> None:
    hangs = script(tmp_path / "hangs", "sleep 600 & sleep 600")
    result = query(RunCommand((hangs,), timeout=0.5))
    assert explain_no_answer(result) == "no response within 0.5 s"
    result = query(RunCommand(("no-such-command",)))
    assert explain_no_answer(result) == "No such file or directory"


def test_non_executable_file_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    (tmp_path / "text").chmod(0o755)
    command = RunCommand((str(tmp_path / "text"),))
    result = LocalTransport(os.environ).run_queries([command])[command]
    assert explain_no_answer(result) == "Exec format error"


def test_truncated_reply_is_out_of_reach() -> None:
    queries: list[Query[Any]] = [UserId(), ReadFile("/x")]
    assert "mark=M " in query_script(queries, "M")
    whole = "1000\nM 0\n\nM\ntext\nM 0\n\nM\n"
    assert parse_answers(queries, "M", whole)[UserId()] == 1000
    for end in (0, len(whole) // 2, len(whole) - 1):
        with pytest.raises(OutOfReach):
            parse_answers(queries, "M", whole[:end])


def test_queries_are_equal_by_kind_and_fields() -> None:
    assert PathProbe("/x") == PathProbe("/x") != PathProbe("/y")
    assert len({PathProbe("/x"), ReadFile("/x"), PathProbe("/x")}) == 2
    assert structs.replace(RunCommand(("id",)), timeout=1.0) != RunCommand(("id",))
