"""hpcrun parse, as called by users and programs."""

from __future__ import annotations

import ast
import gzip
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from msgspec import structs

from hpcrun.actions.parse import parse_runs
from hpcrun.cli import output
from hpcrun.context import load_context
from tests.cli.calling import ROOT, Caller, replay
from tests.curves.report.runs import trainer_log
from tests.json_schemas import check_json
from tests.loaded_modules import MSGSPEC, libraries, loaded
from tests.why.logs import traceback


@pytest.fixture
def log(hpcrun: Caller) -> Path:
    path = hpcrun.project / "train.log"
    path.write_bytes(trainer_log(1, 200))
    return path


def test_parse_shows_the_curve_and_the_table(hpcrun: Caller, log: Path) -> None:
    done = hpcrun("parse", "train.log")
    assert (done.code, done.err) == (0, ""), done
    assert done.out.startswith("train.log: loss by step")
    for text in ("loss best", "1.172 at step 196", "eval best", "tokens/s", "p95", "12.1 GiB"):
        assert text in done.out, done


def test_parse_shows_the_selected_training_of_a_log(hpcrun: Caller) -> None:
    lines = [f"epoch: {n}, loss: {top / n:.3f}\n" for top in (6, 3) for n in range(1, 9)]
    (hpcrun.project / "two.log").write_text("".join(lines))
    last, first = hpcrun("parse", "two.log"), hpcrun("parse", "--training", "1", "two.log")
    assert re.search(r"loss first +3\.000 at step 1\b", last.out), last
    assert re.search(r"loss first +6\.000 at step 1\b", first.out), first
    assert "the file contains 2 trainings, one after the other: the last one is shown" in last.out
    assert "number 1 is shown" in first.out
    done = hpcrun("parse", "--training", "3", "two.log")
    assert done.code == 2 and "two.log: --training 3, but the log contains 2 trainings" in done.err


@pytest.mark.slow
def test_pipe_gets_no_escape_sequences(hpcrun: Caller, log: Path) -> None:
    done = hpcrun.process("parse", "train.log")
    assert done.code == 0 and "\x1b" not in done.out
    assert "┤" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_c_locale_gets_ascii(hpcrun: Caller, log: Path, locale: str) -> None:
    hpcrun.environ["LC_ALL"] = locale
    done = hpcrun.process("parse", "train.log")
    assert done.code == 0 and done.out.isascii()
    assert "*" in done.out and "|" in done.out


def test_json_conforms_to_its_schema(hpcrun: Caller, log: Path) -> None:
    for full in ([], ["--full"]):
        done = hpcrun("parse", "train.log", "--json", *full)
        assert done.code == 0 and done.err == ""
        check_json("parse", done.json)
        (run,) = done.json["runs"]
        assert (run["source"], run["points"]) == ("train.log", 200)
        assert ("values" in run["metrics"]["loss"]) == bool(full)


def test_json_of_a_resumed_log_conforms_to_its_schema(hpcrun: Caller) -> None:
    steps = [*range(1, 31), *range(21, 61)]
    lines = [f"step: {step}, loss: {3 - step / 100}\n" for step in steps]
    lines.insert(30, "Resuming from checkpoint at step 20\n")
    (hpcrun.project / "a.log").write_text("".join(lines))
    done = hpcrun("parse", "a.log", "--json")
    check_json("parse", done.json)
    assert done.json["runs"][0]["resumed"] == [
        {"attempt": 0, "lost_at": 30, "resumed_at": 21, "replayed": 10, "cause": ""}
    ]


def test_json_and_files_can_be_combined(hpcrun: Caller, log: Path) -> None:
    done = hpcrun("parse", "train.log", "--json", "--csv", "out.csv")
    assert done.code == 0 and done.json["runs"][0]["points"] == 200
    assert done.err == "wrote out.csv\n"
    head, first, *_ = (hpcrun.project / "out.csv").read_text().splitlines()
    assert "loss" in head.split(",") and first.startswith("1,")


def test_unwritable_file_is_reported(hpcrun: Caller, log: Path) -> None:
    done = hpcrun("parse", "train.log", "--csv", "no/folder/out.csv")
    assert done.code == 2 and "no/folder/out.csv: no such folder" in done.err


@pytest.mark.parametrize("verb", ["parse", "compare"])
def test_log_is_not_overwritten_by_its_report(hpcrun: Caller, log: Path, verb: str) -> None:
    before = log.read_bytes()
    (hpcrun.project / "link").symlink_to("train.log")
    for name in ("train.log", "./train.log", "link"):
        done = hpcrun(verb, "train.log", "train.log", "--html", name)
        assert (done.code, done.out) == (2, ""), done
        assert f"--html {name}: this is the log to read" in done.err
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--plot", "loss.jpg"], "not a kind of picture: .jpg"),
        (["--csv", "no/folder/out.csv"], "no such folder"),
        (["--html", "."], "a folder"),
        (["--tensorboard", "other.log"], "a file"),
        (["--csv", "a.out", "--html", "a.out"], "--csv a.out: --html names the same file"),
    ],
)
def test_unwritable_file_is_reported_before_following(
    hpcrun: Caller, log: Path, words: list[str], why: str
) -> None:
    (hpcrun.project / "other.log").touch()
    done = hpcrun("parse", "-f", "train.log", *words)
    assert (done.code, done.out, why in done.err) == (2, "", True), done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "package"),
    [("--plot", "matplotlib"), ("--tensorboard", "tensorboard")],
)
def test_missing_package_is_reported_before_reading(
    hpcrun: Caller, log: Path, option: str, package: str
) -> None:
    code = (
        "import importlib.util as util, sys\n"
        "found = util.find_spec\n"
        f"util.find_spec = lambda name, *_: None if name == '{package}' else found(name)\n"
        "from hpcrun.cli.start import main\n"
        "main()\n"
    )
    argv = [sys.executable, "-c", code, "parse", "-f", "train.log", option, "out.svg"]
    environ = hpcrun.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        argv, cwd=hpcrun.project, env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option} needs the package {package}" in done.stderr
    assert f"pip install {package}" in done.stderr


@pytest.mark.slow
def test_closed_pipe_of_a_file_is_not_an_error(hpcrun: Caller, log: Path) -> None:
    argv = [sys.executable, "-m", "hpcrun", "parse", "train.log", "--full", "--csv", "/dev/stdout"]
    environ = hpcrun.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        argv, cwd=hpcrun.project, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout and run.stderr
        run.stdout.close()
        assert run.stderr.read() == b""
        assert run.wait(60) == 141


def test_metric_option_selects_the_drawn_metric(hpcrun: Caller, log: Path) -> None:
    done = hpcrun("parse", "train.log", "--metric", "Grad_Norm")
    assert done.code == 0 and done.out.startswith("train.log: grad_norm by step")
    done = hpcrun("parse", "train.log", "--metric", "grad_nrm")
    assert done.code == 2 and "--metric grad_nrm: not in the log" in done.err
    assert "there is grad_norm" in done.err


@pytest.mark.slow
def test_several_logs_have_one_curve_each(hpcrun: Caller, log: Path) -> None:
    (hpcrun.project / "b.log").write_bytes(trainer_log(1, 100, 2.0))
    done = hpcrun("parse", "train.log", "b.log", "--json")
    assert [run["source"] for run in done.json["runs"]] == ["train.log", "b.log"]
    done = hpcrun("parse", "train.log", "b.log")
    assert done.code == 0 and done.out.startswith("loss by step")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "a.log: no metrics in 1 file, 0 bytes: it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n", "git lfs pull"),
        (b"hello\nworld\n", "hpcrun reads the logs of the common frameworks"),
        (bytes(range(256)) * 40, "it is not text"),
    ],
)
def test_missing_metrics_are_explained(hpcrun: Caller, data: bytes, why: str) -> None:
    (hpcrun.project / "a.log").write_bytes(data)
    done = hpcrun("parse", "a.log")
    assert (done.code, why in " ".join(done.out.split())) == (1, True), done
    done = hpcrun("parse", "a.log", "--json")
    assert done.code == 1 and done.json["runs"][0]["metrics"] == {}
    done = hpcrun("parse", "a.log", "--html", "a.html")
    assert done.code == 1 and "nothing written" in done.err
    assert not (hpcrun.project / "a.html").exists()


def test_pattern_option_adds_a_format(hpcrun: Caller) -> None:
    (hpcrun.project / "a.log").write_text("at 1 cost is 3.5 now\nat 2 cost is 3.25 now\n")
    done = hpcrun("parse", "a.log", "--json")
    assert done.code == 1
    pattern = r"at (?P<step>\d+) cost is (?P<loss>\S+)"
    done = hpcrun("parse", "a.log", "--json", "--pattern", pattern)
    assert done.json["runs"][0]["metrics"]["loss"]["last"] == {"step": 2, "value": 3.25}
    done = hpcrun("parse", "a.log", "--pattern", "(")
    assert done.code == 2 and "--pattern (: missing )" in done.err


@pytest.mark.slow
def test_parse_reads_a_pipe(hpcrun: Caller, log: Path) -> None:
    for follow in ([], ["-f"]):
        done = subprocess.run(
            [sys.executable, "-m", "hpcrun", "parse", *follow, "-", "--json"],
            cwd=hpcrun.project,
            env=hpcrun.environ | {"PYTHONPATH": str(ROOT)},
            input=log.read_bytes(),
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout)["runs"][0]["points"] == 200


@pytest.mark.slow
def test_parse_imports_only_what_it_needs(hpcrun: Caller, log: Path) -> None:
    """Plotting imports only click, msgspec and numpy, and JSON imports no plotting code."""
    (hpcrun.project / "hpcrun.yaml").unlink()
    found = loaded(hpcrun.environ, hpcrun.project, ["parse", "train.log"])
    assert {"click"} < libraries(found) <= {"click", "numpy", *MSGSPEC}
    code = (
        "import sys; from hpcrun.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "found = [x for x in sys.modules if x.startswith(('hpcrun.curves.report', 'numpy.ma.'))]\n"
        "print(found, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "parse", "train.log", "--json"],
        cwd=hpcrun.project,
        env=hpcrun.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    )
    drawing = {
        f"hpcrun.curves.report.{name}" for name in ("data", "files", "health", "parsed", "thin")
    }
    assert set(ast.literal_eval(done.stderr)) == {"hpcrun.curves.report", *drawing}


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


class TestBar:
    """Work that lasts shows how far it has come, on a terminal, and leaves no trace."""

    @pytest.mark.slow
    def test_a_long_read_shows_one_bar_of_all_logs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log, packed = tmp_path / "a.log", tmp_path / "a.log.gz"
        log.write_bytes(trainer_log(1, 200) * 10)
        packed.write_bytes(gzip.compress(log.read_bytes()))
        monkeypatch.setattr(output, "LONG_WORK_S", 0.0)
        monkeypatch.setattr(sys, "stderr", stderr := Terminal())
        where = structs.replace(load_context({}, tmp_path), bar=output.progress_bar)
        parse_runs(where, [str(log), str(packed)])
        drawn = stderr.getvalue()
        assert drawn.count("100%") == 1 and " MB/s" in drawn
        # The line is empty again, and the cursor is there.
        assert drawn.endswith("\r\x1b[K\x1b[?25h") and "\n" not in drawn

    @pytest.mark.parametrize("width", [30, 60, 100])
    def test_a_bar_fits_the_window_and_gives_way_to_words(
        self, width: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output, "LONG_WORK_S", 0.0)
        monkeypatch.setattr(output, "REDRAW_INTERVAL_S", 0.0)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stderr", stderr := Terminal())
        with output.progress_bar("copying", "files") as show:
            for done in range(0, 20_000, 500):
                now = time.time() + 0.3
                monkeypatch.setattr(time, "time", lambda now=now: now)
                show(done, 20_000)
            before = stderr.getvalue()
            output.print_note("Slurm is slow")
        drawings = re.split(r"\r\x1b\[\?25l", before)[1:]
        assert bool(drawings) == (width > 30)
        assert all(len(each) < width for each in drawings)
        assert drawings == [] or "00:00:0" in drawings[-1]
        assert stderr.getvalue()[len(before) :].count("\r\x1b[K\x1b[?25h") == bool(drawings)
        assert stderr.getvalue().endswith("Slurm is slow\n")

    @pytest.mark.slow
    def test_submit_shows_what_is_copied(self, hpcrun: Caller) -> None:
        hpcrun.write("job.yaml", "script: a.py\nresources: {gpus_per_node: 0}\n")
        hpcrun.write("a.py", "print(1)\n")
        for number in range(300):
            hpcrun.write(f"package/{number}.py", "")
        replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
        hpcrun.insist_on_bar("copying", "submit", "job.yaml")
        assert len(list(hpcrun.runs.glob("*/code/package/*.py"))) == 300
        for words in ([], ["--json"]):
            done = hpcrun.process("submit", "job.yaml", *words)
            assert done.code == 0 and "copying" not in done.err, done

    def test_short_work_a_pipe_json_and_a_plain_terminal_show_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def work(as_json: bool = False) -> None:
            call = click.Context(click.Command("submit"))
            call.params["as_json"] = as_json
            with call, output.progress_bar("copying", "files") as show:
                show(1, 2)

        monkeypatch.setattr(sys, "stderr", stderr := Terminal())
        work()
        monkeypatch.setattr(output, "LONG_WORK_S", 0.0)
        work(as_json=True)
        monkeypatch.setenv("TERM", "dumb")
        work()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
        work()
        assert stderr.getvalue() == pipe.getvalue() == ""


def test_log_that_failed_before_its_first_step_points_to_why(hpcrun: Caller) -> None:
    path = hpcrun.project / "early.log"
    path.write_text(f"loading\n{traceback('ValueError: bad config')}")
    done = hpcrun("parse", "early.log")
    assert done.code == 1
    assert "failed: the program stopped with ValueError: bad config" in done.out
    assert "it failed before its first logged step; hpcrun why early.log explains" in done.out
    assert "--pattern" not in done.out


def test_summary_of_the_trainer_alone_shows_its_mean_loss(hpcrun: Caller) -> None:
    path = hpcrun.project / "summary.log"
    path.write_text("{'train_runtime': 919.5, 'train_loss': 5.277, 'epoch': 1.0}\n")
    for words in ((), ("--metric", "train_loss")):
        done = hpcrun("parse", "summary.log", *words)
        assert "final train_loss  5.277 (mean over the run)" in done.out, done


def test_verbose_explains_what_is_not_used(hpcrun: Caller) -> None:
    path = hpcrun.project / "train.log"
    lines = [f"step {n} loss {3 - n / 9:.3f}" for n in range(1, 9)]
    summary = "{'train_runtime': 919.5, 'train_loss': 5.277, 'loss': 5.277, 'epoch': 1.0}"
    path.write_text(
        "\n".join([*lines, "best accuracy: 0.75", "rec_loss: 0.5, kl_loss: 2", summary])
    )
    shown = hpcrun("parse", "train.log", "-v").out
    assert 'not used: line 9: best accuracy: "best" refers to a value of another line' in shown
    assert "not used: rec_loss, kl_loss (1 line): such a line is a measurement only if it" in shown
    others = [f"epoch {n}: loss 3.{n}\nema loss: 4.{n}" for n in range(5)]
    path.write_text("\n".join([*others, ""]))
    shown = hpcrun("parse", "train.log", "-v").out
    assert "not used: loss 4.000 to 4.400 (5 lines): other lines have a loss with a better" in shown
    assert "not used" not in hpcrun("parse", "train.log").out
    assert hpcrun("parse", "train.log", "-v", "-f").code == 2


def test_numbers_that_the_program_states_are_shown(hpcrun: Caller) -> None:
    path = hpcrun.project / "train.log"
    head = [
        "world size: 16",
        "  Total optimization steps = 430",
        "Total params: 5",
        "Total params: 6",
    ]
    path.write_text("\n".join([*head, *(f"step {n} loss 3.{n}" for n in range(9)), ""]))
    shown = hpcrun("parse", "train.log").out
    assert "430 planned steps, 16 ranks" in shown and "parameters" not in shown
