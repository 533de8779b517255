"""Log sources named by the arguments of `hpcrun parse`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.context import Context, load_context
from hpcrun.errors import InputError
from hpcrun.monitor.sources import STDIN, Source, find_sources


@pytest.fixture
def project(tmp_path: Path, clean_environ: dict[str, str]) -> Context:
    folder = tmp_path / "project"
    folder.mkdir()
    return load_context(clean_environ, folder)


def named(context: Context, *names: str) -> list[tuple[str, list[str]]]:
    """Return the file names of each curve; every named file exists."""
    for name in names:
        (context.cwd / name).parent.mkdir(exist_ok=True)
        (context.cwd / name).touch()
    return [
        (source.name, [str(path.relative_to(context.cwd)) for path in source.files])
        for source in find_sources(context, names)
    ]


def test_each_file_is_a_separate_curve(project: Context) -> None:
    assert named(project, "b.log", "a.log") == [("b.log", ["b.log"]), ("a.log", ["a.log"])]


@pytest.mark.parametrize(
    ("out", "err"),
    [
        ("slurm-7.out", "slurm-7.err"),
        ("run.o123", "run.e123"),
        ("train.log", "train.err"),
        ("stdout.txt", "stderr.txt"),
        ("7_output.log", "7_error.log"),
        ("rank0.stdout", "rank0.stderr"),
        ("logs/a.out", "logs/a.err"),
    ],
)
def test_output_and_errors_of_a_job_are_one_log(project: Context, out: str, err: str) -> None:
    assert named(project, out, err) == [(out, [out, err])]
    assert named(project, err, out) == [(out, [out, err])]
    assert named(project, "x.log", err, "y.log", out) == [
        ("x.log", ["x.log"]),
        (out, [out, err]),
        ("y.log", ["y.log"]),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("7.out", "8.err"),
        ("a.log", "a.out"),
        ("a/7.out", "b/7.err"),
        ("layout.log", "layerr.log"),
        ("terror.log", "toutput.log"),
        ("run.o123", "run.e124"),
    ],
)
def test_unrelated_files_are_separate_logs(project: Context, first: str, second: str) -> None:
    assert [files for _, files in named(project, first, second)] == [[first], [second]]


def test_log_named_twice_is_drawn_twice(project: Context) -> None:
    assert len(named(project, "7.out", "7.out")) == 2
    assert len(named(project, "7.out", "7.err", "7.out", "7.err")) == 2


def test_dash_names_standard_input(project: Context) -> None:
    assert find_sources(project, ["-"]) == [Source("standard input", (STDIN,))]


def test_missing_sources_are_reported(project: Context) -> None:
    (project.cwd / "folder").mkdir()
    for words, message in (
        ([], "no runs yet in "),
        (["none.log"], r"none\.log: no such file, run or job"),
        (["folder"], "folder: a folder"),
    ):
        with pytest.raises(InputError, match=message):
            find_sources(project, words)
