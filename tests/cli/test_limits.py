"""Everyday commands need at most 1 GB of address space and few threads, as on login nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcrun.cli import output
from hpcrun.cli.output import SlownessNote, TerminalPrompts
from tests.source import ROOT
from tests.waiting import until

LIMITS = 'ulimit -v 1000000; exec "$@"'  # kB


def call(where: Path, environ: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        ["bash", "-c", LIMITS, "-", sys.executable, "-m", "hpcrun", *words],
        cwd=where,
        env=environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hpcrun.yaml").write_text(f"python: {sys.executable}\nruns_dir: runs\n")
    lines = [f"step {step} loss {3 - step / 50000:.4f}\n" for step in range(50_000)]
    (tmp_path / "train.log").write_text("".join(lines))
    # The queue is empty, but its column names are printed.
    squeue = 'case "$*" in *--noheader*) ;; *) echo JOBID ;; esac'
    for program, line in (("sbatch", "echo 4711"), ("squeue", squeue), ("sacct", "")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / program).chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_everyday_commands_run_in_one_gigabyte(
    project: Path, clean_environ: dict[str, str]
) -> None:
    environ = clean_environ | {"PATH": f"{project}:{os.environ['PATH']}"}
    submitted = json.loads(call(project, environ, "submit", "--json", "--", "hostname"))
    assert submitted["job_id"] == "4711"
    assert "zero2-4gpu" in call(project, environ, "submit", "zero2-4gpu", "--dry-run")
    assert "4711" in call(project, environ, "status")
    shown = json.loads(call(project, environ, "parse", "train.log", "--json"))
    assert shown["runs"][0]["points"] == 50_000
    assert "loss" in call(project, environ, "parse", "train.log")


def test_waiting_works_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    done = []
    with SlownessNote().waiting():
        done.append(1)
    assert done


def test_no_note_about_slowness_is_printed_into_a_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "SLOW_ANSWER_S", 0.01)
    monkeypatch.setattr(TerminalPrompts, "is_prompting", True)
    with SlownessNote().waiting():
        time.sleep(0.1)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(TerminalPrompts, "is_prompting", False)
        until(lambda: "Slurm is slow to answer; still waiting ..." in capsys.readouterr().err)
