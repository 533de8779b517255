"""Detection of whether a restarted program resumes: arguments, variables and load calls."""

from __future__ import annotations

import ast

import pytest

from hpcrun.plan.resume import can_resume, resume_notes, suggest_resume
from hpcrun.plan.script_facts import read_script
from hpcrun.plan.script_notes import ProjectScript
from tests.plan.making import job


def script(text: str) -> ProjectScript:
    facts = read_script(ast.parse(text))
    return ProjectScript(
        "a.py", facts, frozenset(facts.variables), frozenset(facts.checkpoint_loads)
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--resume"],
        ["--resume", "auto"],
        ["--resume=latest"],
        ["--auto-resume"],
        ["--resume_from_checkpoint", "out/checkpoint-8"],
        ["--load-checkpoint", "x"],
        ["--ckpt_path", "last"],
        ["trainer.resume=true"],
        ["+ckpt_path=last"],
        ["--dir={resume}"],
    ],
)
def test_resume_arguments_are_recognized(words: list[str]) -> None:
    assert can_resume(job("script: a.py"), script(""), words)


@pytest.mark.parametrize(
    "words",
    [
        ["--lr", "1e-4"],
        ["--resume", "false"],
        ["--resume=None"],
        ["resume"],
        ["--save-dir", "{checkpoint_dir}"],
        ["--load-workers", "no"],
        ["trainer.resume=null"],
    ],
)
def test_other_arguments_are_not_resume_arguments(words: list[str]) -> None:
    assert not can_resume(job("script: a.py"), script("torch.save(x, y)"), words)


@pytest.mark.parametrize(
    ("framework", "text", "expected"),
    [
        ("torch", "torch.load(path)", True),
        ("torch", "checkpoint = json.load(file)", False),
        ("deepspeed", "engine.load_checkpoint(path)", True),
        ("accelerate", "accelerator.load_state(path)", True),
        ("accelerate", "accelerator.save_state(path)", False),
        ("transformers", "trainer.train(resume_from_checkpoint=last)", True),
        ("transformers", "trainer.train(resume_from_checkpoint=None)", False),
        ("transformers", "model.load_state_dict(torch.load(path))", False),
        ("lightning", "trainer.fit(model, ckpt_path='last')", True),
        ("lightning", "trainer.fit(model)", False),
    ],
)
def test_script_with_checkpoint_dir_resumes_only_if_it_loads(
    framework: str, text: str, expected: bool
) -> None:
    spec = job(f"script: a.py\nframework: {framework}")
    words = ["--out", "{checkpoint_dir}"]
    assert can_resume(spec, script(text), words) == expected
    assert can_resume(spec, script(f"{text}\nos.environ['HPCRUN_CHECKPOINT_DIR']"), []) == expected
    assert not can_resume(spec, script(text), [])
    # For an unreadable script the placeholder is the only evidence.
    assert can_resume(spec, None, words) and not can_resume(spec, None, [])


def test_survive_without_resume_has_a_note() -> None:
    spec = job("script: a.py\nframework: transformers\nsurvive: {when: [preempted]}")
    (note,) = resume_notes(spec, script("Trainer(m).train()"), [], spec.survive.when)
    assert "each attempt would start at step 0" in note and "resume_from_checkpoint=" in note
    own = script("Trainer(m).train(resume_from_checkpoint=True)")
    assert resume_notes(spec, own, [], spec.survive.when) == []


def test_resume_option_of_the_script_is_suggested() -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--restore-from')\n"
    fix = suggest_resume(job("script: a.py"), script(text))
    assert fix == 'checkpoint: {resume: "--restore-from {resume}"}'
