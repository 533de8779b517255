"""A log yields the same curve read at once, in ranges, through a pipe, or while it grows."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.actions.parse import CurveLog
from hpcrun.context import load_context
from hpcrun.curves import read_log
from hpcrun.curves.curve import Curve
from hpcrun.curves.derive import derive_curve
from hpcrun.curves.lines import log_reader
from hpcrun.curves.report.thin import thin_series
from hpcrun.curves.store import Store
from hpcrun.errors import InputError
from hpcrun.monitor.sources import STDIN, Source
from tests.source import ROOT

LOGS = ROOT / "tests" / "curves" / "logs"
KINDS = ("plain_healthy", "hf5_bar", "mmengine_epochs", "lightning_metrics_csv", "nanogpt")


def log_of(*paths: Path) -> CurveLog:
    """Return a reader of files of which nothing has been read yet."""
    return CurveLog(load_context({}, ROOT), Source("x", paths))


def whole(path: Path) -> Curve:
    """Read the whole log at once."""
    log = log_of(path)
    log.read()
    return log.run().curve


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_growing_log_yields_the_curve_of_the_whole_log(name: str, tmp_path: Path) -> None:
    data, path = (LOGS / f"{name}.log").read_bytes().rstrip(b"\n") + b"\n", tmp_path / "a.log"
    path.write_bytes(data)
    expected = whole(path)
    chance = random.Random(name)
    path.write_bytes(b"")
    log = log_of(path)
    cuts = sorted(chance.randrange(len(data)) for _ in range(12))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        with path.open("ab") as file:
            file.write(data[start:end])
        log.read_new()
        if chance.random() < 0.5:
            log.run()
    assert log.run().curve == expected
    assert not log.read_new()


@pytest.mark.slow
def test_log_through_a_pipe_yields_the_same_curve() -> None:
    path = LOGS / "hf5_bar.log"
    answers = []
    for argv in (["-f", "-"], ["-"], [str(path)]):
        command = [sys.executable, "-m", "hpcrun", "parse", "--json", "--full", *argv]
        run = subprocess.run(
            command, input=path.read_bytes(), capture_output=True, check=True, cwd=ROOT
        )
        answers.append(json.loads(run.stdout)["runs"][0]["metrics"])
    assert answers[0].keys() == answers[1].keys() == answers[2].keys()
    assert answers[1] == answers[2]
    for name, series in answers[0].items():
        assert series["values"] == answers[1][name]["values"]


@pytest.mark.slow
def test_long_log_yields_the_same_curve_whole_and_growing(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    lines = (f"{'noise ' * 90}\nstep={n} loss={2 + 1 / (1 + n)} lr=0.1\n" for n in range(60_000))
    path.write_text("".join(lines))
    assert path.stat().st_size > 4 * log_reader.FULL_SEARCH_BYTES
    store = Store()
    store.begin(0)
    for pieces in read_log.LogFileReader(path):
        store.add(pieces)
    growing = log_of(path)
    assert growing.read_new()
    assert growing.run().curve == whole(path) == derive_curve(store, thin_series)


def test_fast_growing_file_is_read_up_to_its_current_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"step=1 loss=2.5\n")
    reader = read_log.LogFileReader(path)
    for looks, _ in enumerate(reader.read_new(), 1):
        with path.open("ab") as file:
            file.write(b"step=1 loss=2.5\n")
        assert looks == 1
    assert reader.bytes == 16


def test_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"step={n} loss=2.5\n" for n in range(20)))
    log = log_of(path)
    log.read_new()
    path.write_text("step=1 loss=3.5\n")
    assert log.read_new()
    assert log.run().curve.values("loss") == [3.5]


def test_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("step=1 loss=2.5\n")
    log = log_of(path)
    log.read_new()
    path.rename(tmp_path / "a.log.1")
    path.write_text("step=1 loss=3.5\nstep=2 loss=3.25\n")
    assert log.read_new()
    assert log.run().curve.values("loss") == [3.5, 3.25]
    assert not log.read_new()


def test_truncated_file_makes_the_other_files_read_again(tmp_path: Path) -> None:
    out, err = tmp_path / "a.out", tmp_path / "a.err"
    out.write_text("".join(f"step={n} loss=2.5\n" for n in range(20)))
    err.write_text("".join(f"step={n} eval_loss=3.0\n" for n in range(20)))
    log = log_of(out, err)
    log.read_new()
    err.write_text("step=1 eval_loss=2.75\n")
    assert log.read_new()
    curve = log.run().curve
    assert curve.values("eval_loss") == [2.75] and curve.values("loss") == [2.5] * 20
    assert not log.read_new()


def test_first_file_takes_precedence_even_if_written_second(tmp_path: Path) -> None:
    out, err = tmp_path / "a.out", tmp_path / "a.err"
    log = log_of(out, err)
    err.write_text("".join(f"step={n} loss=9.0\n" for n in range(20)))
    log.read_new()
    out.write_text("".join(f"step={n} loss=2.5\n" for n in range(20)))
    log.read_new()
    assert log.run().curve.values("loss") == [2.5] * 20


def test_following_a_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(b"\x1f\x8b" + bytes(20))
    with pytest.raises(InputError, match="compressed"):
        log_of(path).read_new()


@pytest.mark.slow
def test_every_option_thins_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"step={n} loss=2.5\n" for n in range(20)))
    command = [sys.executable, "-m", "hpcrun", "parse", "--json", "--every", "5", str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert '"points": 4' in answer.stdout


def test_plot_of_an_endless_pipe_is_drawn() -> None:
    """The writer may be faster than the reader, so there is always data to read."""
    reader, writer = os.pipe()
    usual = os.dup(0)
    os.dup2(reader, 0)
    endless = subprocess.Popen(["yes", "building the model"], stdout=writer)
    try:
        log = log_of(STDIN)
        for _ in range(2):
            assert select.select([0], [], [], 60)[0]
            assert log.read_new() and not log.is_over
    finally:
        endless.kill()
        endless.wait()
        os.dup2(usual, 0)
        for each in (reader, writer, usual):
            os.close(each)


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["-"], ["-f", "-"]])
def test_metric_named_like_a_secret_is_omitted(argv: list[str]) -> None:
    token = "hf_" + "sEsAmE4oPeN9nOw" * 2
    answer = subprocess.run(
        [sys.executable, "-m", "hpcrun", "parse", "--json", *argv],
        input=f"step=1 loss=2.5 {token}=3\nstep=2 loss=2.25 {token}=4\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert list(json.loads(answer.stdout)["runs"][0]["metrics"]) == ["loss"]
    assert token not in answer.stdout
