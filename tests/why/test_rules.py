"""Every rule matches its example, which the log scan finds, and not its look-alike."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import structs

from hpcrun.why.ends import EndRecords
from hpcrun.why.fixes import JobSettings
from hpcrun.why.lines import parse_line
from hpcrun.why.rule import FailureRule
from hpcrun.why.rules import BY_ID, CODE_ERROR, RULES, WORDS, compile_words, compiled, match
from tests.why.logs import judge, read

EACH = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


def match_example(text: str) -> FailureRule | None:
    """Match the last line; the preceding lines are the frames of its traceback."""
    *frames, line = text.split("\n")
    found = match(parse_line(line).text, frames)
    return found[0] if found is not None else None


@EACH
def test_rule_matches_its_example(rule: FailureRule) -> None:
    assert match_example(rule.example) is rule


@EACH
def test_rule_does_not_match_its_look_alike(rule: FailureRule) -> None:
    assert match_example(rule.unlike) is not rule
    assert rule.frames or not compiled(rule.id).search(parse_line(rule.unlike).text)


@EACH
def test_log_scan_finds_the_example_of_a_rule(rule: FailureRule) -> None:
    assert WORDS.search(rule.example.encode())
    found = read(f"one\n{rule.example}\nthree\n")
    line = 2 + rule.example.count("\n")
    assert [(event.rule.id, event.line) for event in found.events] == [(rule.id, line)]


def test_needles_of_a_new_rule_are_searched() -> None:
    """Adding a rule touches one file; digits are removed from lines before the search."""
    new = structs.replace(RULES[0], needles=("zzyzx 7",), example="zzyzx 7 went away")
    assert not WORDS.search(b"zzyzx  went away")
    assert compile_words([*RULES, new]).search(b"zzyzx  went away")


@EACH
def test_rule_has_source_title_and_needles(rule: FailureRule) -> None:
    assert rule.source and rule.title and not rule.title.endswith(".")
    assert any(needle in rule.example for needle in rule.needles)
    assert all(fix and not fix.endswith(".") for fix in rule.fixes)
    # Advice that needs a job is omitted if there are only logs.
    verbs = ("`hpcrun logs", "`hpcrun parse", "`hpcrun shell", "`hpcrun resubmit", "`hpcrun status")
    assert all("JOB" in fix for fix in rule.fixes if fix.startswith(verbs))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name", "Slurm re"),
        ("ValueError: Default process group has not been initialized, please", "call torch.dist"),
        ("srun: error: node02: task 3: Segmentation fault", "rank 3 on node02 crashed"),
        ("ValidationError: 1 validation error for DeepSpeedZeroConfig", "unknown key"),
        (f"ValueError: {BY_ID['ds_batch_assert'].message.split(' / ')[1]}", "move the settings"),
        ("n1:8:99 [0] alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes", "NCCL's buffers"),
        ("[12345.6] Out of memory: Killed process 4242 (python)", "out of host memory"),
        ("CUDA error: PTX was compiled with an unsupported toolchain.", "newer driver"),
        ("*** 2026 UNCORRECTABLE MEMORY ERROR", "its memory"),
        ("RendezvousConnectionError: The connection to the C10d store has failed.", "endpoint"),
    ],
)  # fmt: skip
def test_advice_of_a_rule_fits_every_matching_line(line: str, says: str) -> None:
    diagnosis = judge(
        line, job=JobSettings(name="7", is_run=True), records=EndRecords(state="FAILED")
    )
    assert diagnosis.cause is not None
    said = [diagnosis.cause.title, *diagnosis.fixes]
    assert any(says in each for each in said)
    assert not any("dos2unix" in each or "`script:`" in each for each in said)


def test_rule_ids_are_unique() -> None:
    assert Counter(rule.id for rule in RULES).most_common(1)[0][1] == 1
    assert len(BY_ID) == len(RULES) + 1
    assert compiled(CODE_ERROR.id).search(CODE_ERROR.example)
    assert not compiled(CODE_ERROR.id).search(CODE_ERROR.unlike)
