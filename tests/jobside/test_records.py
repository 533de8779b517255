"""Records of attempts: bash and Python write the same fields, and hpcrun reads them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.jobside.records import (
    RECORD_FIELDS,
    RECORD_VERSION,
    make_record,
    read_json,
    write_json,
)
from hpcrun.runs.ends import Stall
from hpcrun.runs.records import Begin, End, Failure, Pace, read_record

TYPES: dict[str, Any] = {
    "begin": Begin,
    "end": End,
    "failure": Failure,
    "stall": Stall,
    "pace": Pace,
}
# hpcrun adds these when it reads the record.
DERIVED = {"suspect", "collective"}
NOTE = 'a "quoted" \\ note\twith \xe4 and \x1b'


def run_bash(call: str, folder: Path, **environ: str) -> None:
    script = f'host=n1; . "{shipped_folder("templates") / "records.sh"}"; {call}'
    path = {"PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-uc", script, "-", str(folder), NOTE], env=path | environ, check=True)


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a $(run)" / "attempts" / "3"
    (folder / "failures").mkdir(parents=True)
    return folder


def fields_of(path: Path, kind: str) -> list[str]:
    """Return the fields of a record that hpcrun can read."""
    found = json.loads(path.read_bytes())
    assert found.pop("version") == RECORD_VERSION
    assert read_record(path, TYPES[kind]) is not None
    return list(found)


@pytest.mark.parametrize("kind", TYPES)
def test_types_of_hpcrun_have_the_fields_of_the_records(kind: str) -> None:
    assert set(TYPES[kind].__struct_fields__) - DERIVED <= set(RECORD_FIELDS[kind])


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bash_writes_the_fields_that_python_defines(attempt: Path, locale: str) -> None:
    calls = 'write_begin "$1" 7_1 "$(now)"; write_end "$1" 7_1 1.5 "$(now)" 137 "" "" stalled "$2"'
    failure = 'write_failure "$1" rank-0 0 1 134 "$(json_text "$2")"'
    run_bash(f"{calls}; {failure}", attempt, LC_ALL=locale)
    begin = [name for name in RECORD_FIELDS["begin"] if name != "successor"]
    assert fields_of(attempt / "begin.json", "begin") == begin
    assert fields_of(attempt / "end.json", "end") == list(RECORD_FIELDS["end"])
    (path,) = (attempt / "failures").iterdir()
    failure_fields = [name for name in RECORD_FIELDS["failure"] if name != "role"]
    assert fields_of(path, "failure") == failure_fields
    end, first = read_record(attempt / "end.json", End), read_record(path, Failure)
    assert end is not None and end.note is not None and first is not None
    assert (end.attempt, end.job_id, end.exit_code, end.signal) == (3, "7_1", 137, 9)
    assert end.note.startswith('a "quoted" \\ note')
    assert (first.rank, first.local_rank, first.signal) == (0, 1, 6)


@pytest.mark.parametrize(
    ("code", "stopped", "number"),
    [(0, "", None), (0, "TERM", None), (1, "TERM", 15), (255, "", None)],
)
def test_end_record_of_bash_names_the_signal(
    attempt: Path, code: int, stopped: str, number: int | None
) -> None:
    first = '{"version": 1, "rank": null}'
    run_bash(f'write_end "$1" "" 1 2.5 {code} "{stopped}" \'{first}\' "" ""', attempt)
    end = json.loads((attempt / "end.json").read_text())
    expected = make_record("end", end)
    assert end == expected and list(end) == list(expected)
    assert (end["exit_code"], end["signal"], end["stopped_by"]) == (code, number, stopped or None)
    assert (end["why"], end["first_failure"]) == (None, json.loads(first))


def test_record_with_an_undefined_field_is_refused() -> None:
    with pytest.raises(KeyError, match="exitcode"):
        make_record("end", {"exitcode": 1})


@pytest.mark.parametrize("version", [RECORD_VERSION + 1, "2", None])
def test_records_of_a_later_version_are_ignored(tmp_path: Path, version: Any) -> None:
    path = tmp_path / "begin.json"
    values = {"attempt": 0, "job_id": "", "host": "n", "pid": 1, "nodes": "n", "begun_at": 1.5}
    write_json(str(path), "begin", values)
    assert read_json(str(path))["attempt"] == 0
    assert read_record(path, Begin) is not None
    path.write_text(json.dumps({**values, "version": version}))
    assert read_json(str(path)) == {}
    assert read_record(path, Begin) is None
    path.write_text(json.dumps(values))  # written before records stated their version
    assert read_record(path, Begin) is not None
