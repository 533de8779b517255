"""Run folders on disk: atomic writes, corrupt records, and lookup by user input."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import pytest

from hpcrun.errors import HpcrunError, InputError
from hpcrun.monitor.targets import RunIndex, find_run_or_sweep, list_runs, require_single_run
from hpcrun.runs.layout import (
    RUN_ID,
    RunFolder,
    create_run_folder,
    make_run_id,
    sweep_folder,
    task_run_id,
)
from hpcrun.runs.records import (
    Answered,
    Begin,
    Cancelled,
    End,
    Failure,
    Submitted,
    Sweep,
    Task,
    read_history,
    read_history_summary,
    read_plan,
    read_record,
    runs_of,
    write_file,
    write_record,
)
from tests.plan.making import plan

BEGIN = Begin(attempt=0, job_id="7", host="n1", pid=1, nodes="n1", begun_at=1.5)


def submitted(job_id: str | None) -> Submitted:
    return Submitted(
        job_id=job_id, cluster="c", slurm_conf=None, submitted_at=1.0, host="h", user="u"
    )


def find_run(runs_dir: Path, word: str | None) -> RunFolder | None:
    """Find a single run rather than a sweep."""
    found = find_run_or_sweep(runs_dir, word)
    return None if found is None else require_single_run(found, word)


# ---- layout


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("train", "train"),
        ("it's a test", "it-s-a-test"),
        ("a/b\n$(c)", "a-b-c"),
        ("..", "job"),
        ("", "job"),
        ("ünïcödé", "n-c-d"),
        ("-x-", "x"),
        ("a" * 100, "a" * 40),
    ],
)
def test_run_ids_contain_only_plain_characters(name: str, slug: str) -> None:
    run_id = make_run_id(name, "20261120-081455", 0.5, 123456)
    assert run_id == f"20261120-081455-{slug}-hhgg"
    assert RUN_ID.fullmatch(run_id)


def test_run_ids_sort_by_time_and_are_unique() -> None:
    stamps = ["20261120-081455", "20261120-081456", "20270101-000000"]
    made = [make_run_id("x", stamp, 0.5, 5) for stamp in stamps]
    assert made == sorted(made)
    assert len({make_run_id("x", stamps[0], 0.5, chance) for chance in range(900)}) == 900


def test_runs_of_the_same_second_are_listed_in_order(tmp_path: Path) -> None:
    parts = [0.0, 0.002, 0.3, 0.302, 0.9, 0.999999]
    names = ["z", "a", "z", "b", "a", "sweep"]
    made = [
        make_run_id(name, "20261120-081455", part, 7919 * place)
        for place, (name, part) in enumerate(zip(names, parts, strict=True))
    ]
    tasks = [task_run_id(made.pop(), index) for index in (0, 1, 10)]
    for run_id in (*made, *tasks):
        (tmp_path / run_id).mkdir()
    assert [run.run_id for run in list_runs(tmp_path)] == [*tasks, *reversed(made)]


# ---- writing


def test_files_are_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "it's a file"
    write_file(path, b"one")
    write_file(path, b"two", mode=0o600)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_previous_content(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "kept").touch()
    with pytest.raises(HpcrunError, match="folder: "):
        write_file(target, b"x")
    assert list(tmp_path.iterdir()) == [target]
    assert list(target.iterdir()) == [target / "kept"]


def test_write_into_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(HpcrunError, match="nowhere/x: No such file or directory"):
        write_file(tmp_path / "nowhere" / "x", b"x")


# ---- records


def test_records_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "begin.json"
    assert read_record(path, Begin) is None
    write_record(path, BEGIN)
    assert read_record(path, Begin) == BEGIN
    odd = msgspec.structs.replace(BEGIN, host="n\udcff\n1")
    write_record(path, odd)
    assert read_record(path, Begin) == odd


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"attempt": 0}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"attempt": "x"}',
        # No date.
        *(
            b'{"attempt": 0, "job_id": "1", "host": "a", "pid": 1, "nodes": "a", "begun_at": %b}'
            % at
            for at in (b"1e18", b"-1e18", b"1e999", b"NaN")
        ),
    ],
)
def test_corrupt_record_counts_as_missing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "begin.json"
    path.write_bytes(data)
    assert read_record(path, Begin) is None


def test_record_of_a_newer_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "begin.json"
    path.write_text(
        '{"attempt":0,"job_id":"7","host":"n","pid":1,"nodes":"n","begun_at":1,"new":2}'
    )
    assert read_record(path, Begin) is not None


def test_unreadable_record_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "begin.json"
    path.mkdir()
    with pytest.raises(HpcrunError, match=r"begin\.json: Is a directory"):
        read_record(path, Begin)


def test_history_contains_attempts_and_submission(tmp_path: Path) -> None:
    run = create_run_folder(tmp_path / "runs" / "r")
    assert read_history(run).last is None and read_history(run).submitted is None
    write_record(run.submitted, submitted("7"))
    write_record(run.cancelled, Cancelled(cancelled_at=2.0, user="u"))
    for index in ("0", "2", "10"):
        (run.attempts / index).mkdir()
    (run.attempts / "not-a-number").mkdir()
    write_record(run.attempts / "0" / "begin.json", BEGIN)
    (run.attempts / "0" / "beat").write_text("1800000000\n")
    # As the harness writes it.
    (run.attempts / "10" / "end.json").write_text(
        '{"attempt": 10, "job_id": "7", "exit_code": 137, "signal": 9, "stopped_by": null,'
        ' "first_failure": {"rank": 3, "local_rank": 1, "node": 1, "host": "n2", "exit_code": 137,'
        ' "signal": 9, "at": 5.250}, "begun_at": 1.5, "ended_at": 6.125}\n'
    )
    history = read_history(run)
    assert history.submitted == submitted("7") and history.cancelled is not None
    assert [attempt.index for attempt in history.attempts] == [0, 2, 10]
    assert history.attempts[0].begin == BEGIN and history.attempts[0].beat == 1_800_000_000.0
    assert history.attempts[1].begin is None
    assert history.last is not None
    assert history.last.end == End(
        attempt=10,
        job_id="7",
        exit_code=137,
        signal=9,
        stopped_by=None,
        first_failure=Failure(
            rank=3, local_rank=1, node=1, host="n2", exit_code=137, signal=9, at=5.25
        ),
        begun_at=1.5,
        ended_at=6.125,
    )


def test_roles_of_an_ended_attempt_have_ended(tmp_path: Path) -> None:
    run = create_run_folder(tmp_path / "runs" / "r")
    states = ("waiting", "starting", "ready", "failed")
    roles = {
        name: {"state": name, "at": 2.0, "hosts": ["n1"], "address": "n1", "port": 1}
        for name in states
    }
    for index in ("0", "1"):
        (run.attempts / index).mkdir()
        (run.attempts / index / "roles.json").write_text(json.dumps(roles))
    (run.attempts / "0" / "end.json").write_text(
        '{"attempt": 0, "job_id": "7", "exit_code": 143, "signal": 15, "stopped_by": "TERM",'
        ' "first_failure": null, "begun_at": 1.5, "ended_at": 6.125}'
    )
    ended, running = read_history(run).attempts
    assert [role.state for role in ended.roles.values()] == ["waiting", "ended", "ended", "failed"]
    assert [role.state for role in running.roles.values()] == list(states)


def test_other_folder_has_no_history(tmp_path: Path) -> None:
    assert read_history(RunFolder(tmp_path / "nothing")).attempts == []
    assert read_plan(RunFolder(tmp_path / "nothing")) is None


def test_plan_round_trips(tmp_path: Path) -> None:
    run = create_run_folder(tmp_path / "r")
    made = plan("script: a.py\ndeepspeed: {}\nslurm: {exclusive: true}", words=["\udcff"])
    write_record(run.plan, made)
    assert read_plan(run) == made


# ---- folders


def test_existing_run_folder_is_refused(tmp_path: Path) -> None:
    run = create_run_folder(tmp_path / "a" / "b" / "r")
    assert run.attempts.is_dir() and run.logs.is_dir()
    with pytest.raises(InputError, match="cannot make the run folder: File exists"):
        create_run_folder(run.path)


def test_impossible_runs_dir_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught:
        create_run_folder(tmp_path / "file" / "r")
    assert "file" in caught.value.message and "runs_dir" in caught.value.fix


RUNS = {
    "20261119-235959-train-aaaa": "7",
    "20261120-081455-train-7k3q": "12",
    "20261120-081455-train-7k3r": None,
    "20261121-000000-other-bbbb": "7",
    "20261122-000000-other-cccc": "20261119",
}


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    for run_id, job_id in RUNS.items():
        run = create_run_folder(tmp_path / run_id)
        write_record(run.submitted, submitted(job_id))
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "20261119-235959-train-aaaa" / "submitted.json").touch()
    return tmp_path


def test_runs_are_listed_newest_first(runs_dir: Path, tmp_path: Path) -> None:
    assert [run.run_id for run in list_runs(runs_dir)] == sorted(RUNS, reverse=True)
    assert list(list_runs(tmp_path / "nothing")) == []


@pytest.mark.parametrize(
    ("word", "run_id"),
    [
        (None, "20261122-000000-other-cccc"),
        ("20261120-081455-train-7k3q", "20261120-081455-train-7k3q"),
        ("7k3r", "20261120-081455-train-7k3r"),
        ("train-aaaa", "20261119-235959-train-aaaa"),
        ("20261121", "20261121-000000-other-bbbb"),
        ("20261121-0", "20261121-000000-other-bbbb"),
        ("12", "20261120-081455-train-7k3q"),
        ("7", "20261121-000000-other-bbbb"),  # given twice: the newer one
        ("20261119", "20261122-000000-other-cccc"),  # a Slurm id before a date
        ("8", None),
        ("1", None),  # no start of another Slurm id
        ("k3q", None),  # no middle of a word
        ("nothing", None),
        ("20261120-081455-train-zzzz", None),
    ],
)
def test_run_is_found_by_id_prefix_and_job_id(
    runs_dir: Path, word: str | None, run_id: str | None
) -> None:
    found = find_run(runs_dir, word)
    assert (found.run_id if found else None) == run_id


def test_lookup_of_many_names_reads_each_run_once(runs_dir: Path) -> None:
    lookup = RunIndex(runs_dir)
    words = ["12", "7", "20261119", "12", "8"]
    before = [find_run_or_sweep(runs_dir, word, lookup) for word in words]
    for run in list_runs(runs_dir):
        run.submitted.unlink()
    assert [find_run_or_sweep(runs_dir, word, lookup) for word in words] == before
    assert before == [find_run(runs_dir, part) for part in ("7k3q", "bbbb", "cccc", "7k3q")] + [
        None
    ]


def test_ambiguous_run_name_is_refused(runs_dir: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_run(runs_dir, "20261120")
    assert caught.value.message == (
        "20261120 matches 2 runs: 20261120-081455-train-7k3r, 20261120-081455-train-7k3q"
    )
    assert caught.value.fix == "give more of the id"


@pytest.mark.parametrize("word", ["", "  ", "\t"])
def test_empty_run_name_is_refused(tmp_path: Path, word: str) -> None:
    create_run_folder(tmp_path / "20261120-081455-train-7k3q")
    with pytest.raises(InputError, match="empty run name"):
        find_run_or_sweep(tmp_path, word)


def test_lookup_without_runs_finds_nothing(tmp_path: Path) -> None:
    assert find_run(tmp_path / "nothing", None) is None
    assert find_run(tmp_path / "nothing", "7") is None


# ---- sweeps


SWEEP_ID = "20261123-000000-lr-7k3q"


@pytest.fixture
def swept(runs_dir: Path) -> Path:
    """The other runs, plus the folder of a sweep with twelve runs, submitted as job 123."""
    sweep = sweep_folder(runs_dir, SWEEP_ID)
    sweep.path.mkdir()
    write_record(sweep.record, Sweep(name="lr", tasks=12, limit=4))
    write_record(sweep.submitted, submitted("123"))
    for index in range(12):
        run = create_run_folder(sweep.run(index).path)
        write_record(run.task, Task(sweep_id=SWEEP_ID, index=index, values={"lr": str(index)}))
    return runs_dir


def test_runs_of_a_sweep_are_listed_in_the_order_of_their_tasks(swept: Path) -> None:
    listed = list(list_runs(swept))
    assert [run.run_id for run in listed[:12]] == [
        task_run_id(SWEEP_ID, index) for index in range(12)
    ]
    assert listed[:12] == runs_of(sweep_folder(swept, SWEEP_ID))
    assert [run.run_id for run in listed[12:]] == sorted(RUNS, reverse=True)


@pytest.mark.parametrize(
    "word",
    [None, "123", SWEEP_ID, f"{SWEEP_ID}.array", "20261123", "lr-7k3q"],
)
def test_sweep_is_found_by_its_names(swept: Path, word: str | None) -> None:
    assert find_run_or_sweep(swept, word) == sweep_folder(swept, SWEEP_ID)
    with pytest.raises(InputError) as caught:
        find_run(swept, word)
    assert caught.value.message == f"{word or SWEEP_ID}: a sweep of 12 runs"
    assert caught.value.fix == "name one of them, as 123_0"


@pytest.mark.parametrize("word", ["123_4", task_run_id(SWEEP_ID, 4), f"{SWEEP_ID[:-5]}.4"])
def test_run_of_a_sweep_is_found_by_its_names(swept: Path, word: str) -> None:
    assert (
        find_run(swept, word)
        == find_run_or_sweep(swept, word)
        == sweep_folder(swept, SWEEP_ID).run(4)
    )


@pytest.mark.parametrize("word", ["123_12", "124", "123_", "12_3"])
def test_invalid_names_find_no_run_of_a_sweep(swept: Path, word: str) -> None:
    assert find_run_or_sweep(swept, word) is None


def test_submission_record_of_a_sweep_applies_to_every_run(swept: Path) -> None:
    sweep = sweep_folder(swept, SWEEP_ID)
    history = read_history(sweep.run(7))
    assert history.submitted is not None and history.submitted.job_id == "123_7"
    assert history.task == Task(sweep_id=SWEEP_ID, index=7, values={"lr": "7"})
    sweep.submitted.unlink()
    assert read_history(sweep.run(7)).submitted is None
    assert find_run_or_sweep(swept, "123_7") is None


def test_runs_that_share_a_job_have_its_task_id_before_the_submission_is_recorded(
    swept: Path,
) -> None:
    """The connection was lost after sbatch, whose answer is in a file."""
    sweep = sweep_folder(swept, SWEEP_ID)
    write_record(sweep.record, Sweep(name="lr", tasks=12, limit=4, runs_per_job=2))
    sweep.submitted.unlink()
    write_record(sweep.answered, Answered(job_id="7"))
    for read in read_history, read_history_summary:
        histories = [read(sweep.run(index)) for index in range(6)]
        assert [one.job_id for one in histories] == ["7_0", "7_0", "7_1", "7_1", "7_2", "7_2"]
        assert all(one.shares_job for one in histories)
    write_record(sweep.record, Sweep(name="lr", tasks=12, limit=4))
    assert read_history(sweep.run(5)).job_id == "7_5"
    assert not read_history(sweep.run(5)).shares_job


def test_run_named_like_a_task_is_a_separate_run(runs_dir: Path) -> None:
    run = create_run_folder(runs_dir / "20261124-000000-v1.2-7k3q")
    write_record(run.submitted, submitted("99"))
    history = read_history(run)
    assert history.task is None and history.submitted == submitted("99")
    assert find_run_or_sweep(runs_dir, None) == find_run_or_sweep(runs_dir, "99") == run


def test_sweep_without_its_record_is_reported(swept: Path) -> None:
    sweep_folder(swept, SWEEP_ID).record.unlink()
    with pytest.raises(InputError, match="not a record of a sweep"):
        runs_of(sweep_folder(swept, SWEEP_ID))
