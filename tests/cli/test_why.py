"""hpcrun why with logs and with runs: text, JSON, cached results, and the HTML page."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.status_runs import NOW, answers, make_run, queued
from tests.json_schemas import check_json
from tests.slurm_answers import show_job, squeue_row
from tests.why.logs import OOM, STEPS, traceback

SENTENCE = "out of GPU memory (2.00 GiB more requested)"


def why(hpcrun: Caller, *words: str) -> list[dict[str, object]]:
    done = hpcrun("why", "--json", *words)
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    check_json("why", answer)
    runs: list[dict[str, object]] = answer["runs"]
    return runs


def test_why_reads_a_log_two_files_and_a_folder(hpcrun: Caller, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "7.out").write_text(STEPS)
    (folder / "7.err").write_text(traceback(OOM, "[rank3]: "))
    (folder / "train.py").write_text("raise ValueError\n")
    both = [str(folder / "7.out"), str(folder / "7.err")]
    for words in (both[1:], both, [str(folder)]):
        (found,) = why(hpcrun, *words)
        assert (found["source"], found["verdict"]) == (" ".join(words), "fix")
        cause = found["cause"]
        assert isinstance(cause, dict) and cause["file"] == both[1]
        assert (cause["class"], cause["line"], cause["rank"]) == ("oom_gpu", 4, 3)
    shown = hpcrun("why", *both).out
    assert f"{SENTENCE} (rank 3)" in shown and f"{both[1]}:4: torch.OutOfMemoryError" in shown
    packed = tmp_path / "7.err.gz"
    packed.write_bytes(gzip.compress((folder / "7.err").read_bytes()))
    (found,) = why(hpcrun, str(packed))
    assert isinstance(found["cause"], dict) and found["cause"]["line"] == 4
    (found,) = why(hpcrun, both[0])
    assert (found["verdict"], found["cause"], found["fixes"]) == (None, None, [])


def test_log_names_identify_ranks_and_jobs(hpcrun: Caller, tmp_path: Path) -> None:
    watchdog = (
        "[E1120 10:40:07.3 x.cpp:1] Watchdog caught collective operation timeout: WorkNCCL(\n"
    )
    for rank in range(4):
        log = tmp_path / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(watchdog if rank else "2026-11-20 10:00:00 packing data\n")
    (found,) = why(hpcrun, str(tmp_path))
    assert isinstance(found["cause"], dict) and found["cause"]["rank"] == 1
    assert "the other ranks have waited for rank 0" in str(found["cause"]["title"])


def test_why_reads_stdin(hpcrun: Caller) -> None:
    process = hpcrun.start("why", "--json", "-", stdin=subprocess.PIPE)
    answer, _ = process.communicate((STEPS + traceback(OOM, "[rank3]: ")).encode())
    (found,) = json.loads(answer)["runs"]
    assert (found["source"], found["cause"]["class"]) == ("-", "oom_gpu")
    assert (found["cause"]["file"], found["cause"]["rank"]) == ("-", 3)


def test_status_explains_failures_of_other_jobs(hpcrun: Caller, tmp_path: Path) -> None:
    """It reads the output that scontrol names; successful jobs have no explanation."""
    log = tmp_path / "slurm-9.out"
    log.write_text(STEPS + traceback(OOM, "[rank3]: "))
    replay(hpcrun.tools, "scontrol", (0, show_job("9", StdOut=str(log)), ""))
    for state, cause in (("FAILED", "oom_gpu"), ("COMPLETED", None), ("RUNNING", None)):
        replay(hpcrun.tools, "squeue", (0, squeue_row("9", state), ""))
        done = hpcrun("status", "--json", "9")
        check_json("status", done.json)
        (found,) = done.json["runs"]
        shown = found["diagnosis"]["cause"]
        assert (shown and shown["class"]) == cause
        assert (SENTENCE in hpcrun("status", "9").out) == (cause is not None)


def test_empty_folder_and_unknown_word_are_refused(hpcrun: Caller, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    done = hpcrun("why", str(tmp_path / "none"))
    assert (done.code, "no log in this folder" in done.err) == (2, True)
    assert hpcrun("why", "no-such-run").code == 2


def test_why_masks_secrets_and_control_characters(hpcrun: Caller, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    key = "hf_" + "aZ3" * 12
    log.write_text(traceback(f"ValueError: \x1b[2J\x07 HF_TOKEN={key}"))
    shown = hpcrun("why", str(log)).out + hpcrun("why", "--json", str(log)).out
    assert key not in shown and "\x1b[2J" not in shown and "\x07" not in shown


def test_diagnosis_of_a_run_is_cached(hpcrun: Caller) -> None:
    log = STEPS + traceback(OOM)
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=NOW, exit_code=1, log=log)
    answers(hpcrun.tools, "squeue", rest=queued(run, "15", "FAILED"))
    shown = hpcrun("status", "15").out
    assert SENTENCE in shown and "rank-0.log:44: " in shown
    kept = run.why.read_text()
    assert "cuda_oom" in kept
    detail = json.loads(hpcrun("status", "--json", "15").out)["runs"][0]["diagnosis"]
    assert (detail["verdict"], detail["cause"]["rank"]) == ("fix", 0)
    run.why.unlink()
    assert SENTENCE in hpcrun("why", "15").out and run.why.exists()
    kept = run.why.read_text()
    # A listing shows it without reading a log.
    assert f"{SENTENCE} (rank 0" in hpcrun("status", "--all").out
    run.why.write_text(kept.replace("more requested", "was kept"))
    row = hpcrun("status", "--json", "--all").json["runs"][0]
    assert "was kept" in row["reason"]
    run.why.write_text(kept.replace('"FAILED"', '"CANCELLED"'))  # of a different end
    assert SENTENCE not in hpcrun("status", "--all").out
    # The log is read again only if it has grown.
    run.why.write_text(kept.replace("more requested", "was kept"))
    assert "was kept" in hpcrun("status", "15").out
    with (run.logs / "0" / "rank-0.log").open("a") as file:
        file.write("more\n")
    assert "was kept" not in hpcrun("status", "15").out
    # If Slurm corrects the state, it is diagnosed again.
    answers(hpcrun.tools, "squeue", rest=queued(run, "15", "COMPLETED"))
    assert SENTENCE not in hpcrun("status", "15").out
    assert hpcrun("why", "15").out == "15: COMPLETED: completed successfully\n"


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.6, 0.62], ["60% of the time the ranks wait for data"]),
        ([0.01, 0.7, 0.01], ["rank 1 waits for data 70% of the time, the others 1%"]),
        ([0.01, 0.02], []),
    ],
)
def test_slow_run_without_failure_is_explained(
    hpcrun: Caller, shares: list[float], expected: list[str]
) -> None:
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=NOW, log=STEPS)
    usage = run.attempts / "0" / "usage"
    usage.mkdir()
    for rank, share in enumerate(shares):
        record = {"batches": 9, "data_seconds": 100 * share, "loop_seconds": 100.0}
        (usage / f"rank-{rank}.json").write_text(json.dumps(record))
    answers(hpcrun.tools, "squeue", rest=queued(run, "15", "COMPLETED"))
    done = hpcrun("why", "15", "--json")
    check_json("why", done.json)
    (answer,) = done.json["runs"]
    assert [text[: len(start)] for text, start in zip(answer["slow"], expected, strict=True)] == (
        expected
    )
    out = hpcrun("why", "15").out
    assert out.startswith("15: COMPLETED: completed successfully\n")
    assert ("it may be slow because:\n  - " in out) == bool(expected)


@pytest.mark.slow
def test_long_log_is_read_from_its_end(hpcrun: Caller) -> None:
    log = STEPS * 2000 + traceback(OOM)
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=NOW, exit_code=1, log=log)
    answers(hpcrun.tools, "squeue", rest=queued(run, "15", "FAILED"))
    assert f"rank-0.log:{log.count(chr(10))}: " in hpcrun("status", "15").out


@pytest.mark.slow
def test_html_and_report_show_the_diagnosis(hpcrun: Caller, tmp_path: Path) -> None:
    log = STEPS + traceback(OOM)
    make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=NOW, exit_code=1, log=log)
    done = hpcrun("parse", "7k3q", "--html", str(tmp_path / "x.html"))
    assert f"failed: {SENTENCE}" in done.out
    assert "Why it failed" in (tmp_path / "x.html").read_text()


def test_a_listing_shows_the_cause_of_a_run_that_failed_just_now(hpcrun: Caller) -> None:
    log = STEPS + traceback(OOM)
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=NOW, exit_code=1, log=log)
    answers(hpcrun.tools, "squeue", rest=queued(run, "15", "FAILED"))
    assert not run.why.exists()
    assert f"{SENTENCE} (rank 0" in hpcrun("status").out
    assert run.why.exists(), "its logs are read once"
    assert f"{SENTENCE} (rank 0" in hpcrun("status").out


def test_nan_loss_of_a_completed_run_is_a_warning_in_status_and_why(hpcrun: Caller) -> None:
    log = "".join(f"step={step} loss={'2.5' if step < 9 else 'nan'}\n" for step in range(1, 12))
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=NOW, exit_code=0, log=log)
    answers(hpcrun.tools, "squeue", rest=queued(run, "15", "COMPLETED"))
    warning = "the last loss is nan at step 11: the training diverged"
    for _ in range(2):  # the second time, the row of the finished run is cached
        assert warning in hpcrun("status", "15").out
        (row,) = hpcrun("status", "--json").json["runs"]
        assert (row["step"], row["loss"]) == (11, "NaN")
    assert f"warning: {warning}" in hpcrun("why", "15").out
    (found,) = why(hpcrun, "15")
    assert (found["cause"], str(found["warning"])[: len(warning)]) == (None, warning)
