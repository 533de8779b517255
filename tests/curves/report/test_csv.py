"""Export of runs as CSV."""

from __future__ import annotations

import csv
import math
from io import StringIO
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.curves.curve import Curve, build_series
from hpcrun.curves.report.data import csv_pieces, write_csv
from hpcrun.curves.report.parsed import ParsedRun, Sample
from hpcrun.errors import InputError
from tests.curves.report import runs


def rows(shown: list[ParsedRun], *, full: bool = False) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO("".join(csv_pieces(shown, full=full)))))


def made(curve: Curve, source: str = "a.log", samples: tuple[Sample, ...] = ()) -> ParsedRun:
    return structs.replace(runs.one()[0], source=source, curve=curve, samples=samples)


def test_every_point_is_in_the_row_of_its_step() -> None:
    (run,) = runs.one()
    table = rows([run])
    assert [int(row["step"]) for row in table] == list(range(1, 201))
    for name in run.curve.metrics:
        reported = {int(row["step"]): float(row[name]) for row in table if row[name]}
        assert reported == dict(zip(run.curve.steps(name), run.curve.values(name), strict=True))
    assert list(table[0])[:4] == ["step", "loss", "eval_loss", "lr"]


def test_several_runs_have_a_source_column() -> None:
    table = rows(runs.several())
    assert list(table[0])[:2] == ["source", "step"]
    counts = {
        run.source: sum(row["source"] == run.source for row in table) for run in runs.several()
    }
    assert list(counts.values()) == [200, 300, 91, 0]


def test_nan_and_infinities_differ_from_empty_fields() -> None:
    series = build_series([1, 2, 3, 4], [math.nan, math.inf, -math.inf, 1e-300])
    table = rows([made(Curve({"loss": series, "lr": build_series([1], [0.1])}, ()))])
    assert [row["loss"] for row in table] == ["nan", "inf", "-inf", "1e-300"]
    assert [row["lr"] for row in table] == ["0.1", "", "", ""]


def test_numbers_keep_every_digit() -> None:
    value = 0.1 + 0.2
    (row,) = rows([made(Curve({"loss": build_series([2**60], [value])}, ()))])
    assert (int(row["step"]), float(row["loss"])) == (2**60, value)


def test_names_are_quoted_and_do_not_clash_with_position_columns() -> None:
    names = ('a,"b"', "new\nline", "step", "time", "source", "損失")
    metrics = {name: build_series([1], [float(n)], [5.0]) for n, name in enumerate(names)}
    source = 'runs/"x",y\n.log'
    table = rows([made(Curve(metrics, ()), source), made(Curve({}, ()))])
    assert table == [
        {
            "source": source,
            "step": "1",
            "time": "5.0",
            'a,"b"': "0.0",
            "new\nline": "1.0",
            "metric.step": "2.0",
            "metric.time": "3.0",
            "metric.source": "4.0",
            "損失": "5.0",
        }
    ]


def test_metrics_without_steps_share_rows_only_if_logged_together() -> None:
    nones: list[int | None] = [None, None]
    metrics = {
        "loss": build_series(nones, [3.0, 2.0], [10.0, 20.0]),
        "lr": build_series(nones, [0.1, 0.2], [10.0, 20.0]),
        "eval_loss": build_series([None], [2.5], [15.0]),
        "grad_norm": build_series([5], [1.0]),
    }
    table = rows([made(Curve(metrics, ()))])
    assert [
        [row[name] for name in ("step", "time", "loss", "lr", "eval_loss")] for row in table
    ] == [
        ["5", "", "", "", ""],
        ["", "10.0", "3.0", "0.1", ""],
        ["", "20.0", "2.0", "0.2", ""],
        ["", "15.0", "", "", "2.5"],
    ]


def test_restarted_counter_loses_no_points() -> None:
    again: list[int | None] = [1, 2, 1, 2]
    metrics = {
        "loss": build_series(again, [4.0, 3.0, 2.0, 1.0]),
        "eval_loss": build_series([2, 2], [3.5, 1.5]),
    }
    table = rows([made(Curve(metrics, ()))])
    assert [row["loss"] for row in table] == ["4.0", "3.0", "2.0", "1.0", "", ""]
    assert [row["eval_loss"] for row in table] == ["", "", "", "", "3.5", "1.5"]


def test_full_csv_has_every_sample() -> None:
    samples = (
        Sample(0, 17, None, 1, "train", "loss", 2.5),
        Sample(1, 99, 0.5, None, "eval", "eval_loss", math.nan),
    )
    text = "".join(csv_pieces([made(Curve({}, ()), samples=samples)], full=True))
    assert text == (
        "attempt,offset,epoch,step,split,name,value\n"
        "0,17,,1,train,loss,2.5\n"
        "1,99,0.5,,eval,eval_loss,nan\n"
    )


def test_full_csv_without_samples_has_the_curve() -> None:
    run = made(Curve({"loss": build_series([1], [2.0])}, ()))
    assert rows([run], full=True) == [{"step": "1", "loss": "2.0"}]


def test_csv_without_runs_is_a_header() -> None:
    assert "".join(csv_pieces([made(Curve({}, ()))])) == "step\n"


def test_names_with_invalid_bytes_are_written(tmp_path: Path) -> None:
    shown = [made(Curve({"loss": build_series([1], [2.0])}, ()), "a\udc80b"), *runs.one()]
    write_csv(shown, tmp_path / "a.csv")
    assert b"\na?b,1,2.0" in (tmp_path / "a.csv").read_bytes()


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mkdir -p"):
        write_csv(runs.one(), tmp_path / "none" / "a.csv")
