"""Arguments of the script or of sbatch in hpcrun's place: one error that shows the right line."""

from __future__ import annotations

import re

import pytest

from hpcrun.cli.main import VERBS
from hpcrun.cli.misplaced import COMMANDS_ELSEWHERE
from tests.cli.calling import Caller


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("submit train --lr 3e-4", "hpcrun submit train -- --lr 3e-4"),
        ("submit train --lr=3e-4 --fp16", "hpcrun submit train -- --lr=3e-4 --fp16"),
        ("submit --lr 3e-4 train", "hpcrun submit -- --lr 3e-4 train"),
        ("run train --epochs 3 --nodes 2", "hpcrun run train --nodes 2 -- --epochs 3"),
        ("submit train --dry-run lr=3e-4", "hpcrun submit train --dry-run -- lr=3e-4"),
        ("submit train model.lr=1 data=x", "hpcrun submit train -- model.lr=1 data=x"),
        ("submit train --set lr=3", "hpcrun submit train -- --lr 3"),
        ("resubmit 4711 --lr 1", "hpcrun resubmit 4711 -- --lr 1"),
        ("submit train --gpus-per-nodes 4", "did you mean --gpus-per-node?"),
    ],
)
def test_script_arguments_before_the_dashes_show_the_right_line(
    hpcrun: Caller, line: str, fix: str
) -> None:
    (hpcrun.project / "jobs").mkdir()
    (hpcrun.project / "jobs" / "train.yaml").write_text("script: train.py\n")
    (hpcrun.project / "train.py").write_text("")
    done = hpcrun(*line.split())
    assert done.code == 2
    assert fix in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--mem 64G", "--set resources.memory_per_node=64G"),
        ("--mem=64G", "--set resources.memory_per_node=64G"),
        ("-n4", "--nodes N --gpus-per-node M"),
        ("--gpus 8", "--gpus-per-node 8 on one node"),
        ("--requeue", "survive.when="),
        ("--job-name x", "-J x"),
        ("-D /tmp", "call hpcrun in that folder"),
        ("--exclusive", "--set resources.exclusive=true"),
        ("--dependency=afterok:3", "--after RUN_OR_JOB"),
        ("--mail-type END", "--set slurm.mail-type=END"),
        ("-q high", "--set slurm.qos=high"),
        ("--reservation=maint", "--set slurm.reservation=maint"),
    ],
)
def test_options_of_sbatch_are_answered_with_the_key(hpcrun: Caller, words: str, fix: str) -> None:
    done = hpcrun("submit", "zero2-4gpu", *words.split())
    assert done.code == 2 and "is sbatch's option" in done.err
    assert fix in " ".join(done.err.split())


def test_short_options_of_sbatch_are_understood(hpcrun: Caller) -> None:
    words = ["-N", "2", "-p", "sandbox", "-A", "lab", "-t", "90", "-J", "mine"]
    script = hpcrun("submit", "zero2-4gpu", *words, "--dry-run").out
    for line in ("--nodes=2", "--partition=sandbox", "--account=lab", "--time=90"):
        assert f"#SBATCH {line}" in script
    assert "#SBATCH --job-name=mine" in script


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("ls", "hpcrun status"),
        ("list", "hpcrun jobs"),
        ("history", "hpcrun status --all"),
        ("tail", "hpcrun logs -f"),
        ("kill", "hpcrun cancel JOB"),
        ("doctor", "hpcrun init --check"),
        ("restart", "hpcrun requeue JOB"),
        ("ssh", "hpcrun shell JOB"),
        ("download", "hpcrun fetch JOB"),
    ],
)
def test_commands_of_other_tools_are_answered_with_ours(
    hpcrun: Caller, word: str, fix: str
) -> None:
    done = hpcrun(word, "4711")
    assert done.code == 2 and f"no such command: {word}" in done.err and fix in done.err


def test_help_is_a_command_and_v_shows_the_version(hpcrun: Caller) -> None:
    assert hpcrun("help").out == hpcrun("--help").out
    assert hpcrun("help", "submit").out == hpcrun("submit", "--help").out
    assert hpcrun("-V").out == hpcrun("--version").out == hpcrun("version").out


def test_every_command_in_a_hint_exists() -> None:
    hints = " ".join(COMMANDS_ELSEWHERE.values())
    assert {*re.findall(r"hpcrun ([a-z]+)", hints)} <= VERBS.keys()
    assert not VERBS.keys() & COMMANDS_ELSEWHERE.keys()
