"""Placeholders: known ones are filled, and a typo is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.errors import SpecError
from hpcrun.plan.findings import Findings
from hpcrun.plan.job import fill, fill_known_placeholders
from hpcrun.plan.types import Dependency
from tests.plan.making import plan, variables

VALUES = {"run_dir": "/r", "precision": "bf16", "odd": "{precision}"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{run_dir}/a", "/r/a"),
        ("{run_dir}{precision}", "/rbf16"),
        ("{{run_dir}}", "{run_dir}"),
        ("{{{run_dir}}}", "{/r}"),
        ("{{}}", "{}"),
        ("", ""),
        ("plain $HOME %j", "plain $HOME %j"),
        ("{odd}", "{precision}"),  # what was filled in is not filled again
    ],
)
def test_known_placeholders_are_filled(text: str, filled: str) -> None:
    found = Findings()
    assert fill(text, VALUES, "args[0]", found) == filled
    assert found.problems == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{precison}", "{precison}: no such placeholder; did you mean {precision}?"),
        ("{zzz}", "{zzz}: no such placeholder; there are {odd} {precision} {run_dir}"),
        ("a { b", "a lone { in 'a { b'; write {{ for a brace"),
        ("a } b", "a lone } in 'a } b'; write }} for a brace"),
        ("{run dir}", "a lone { in '{run dir}'; write {{ for a brace"),
        ("{}", "a lone { in '{}'; write {{ for a brace"),
    ],
)
def test_invalid_placeholder_is_reported(text: str, message: str) -> None:
    found = Findings()
    fill(text, VALUES, "args[0]", found)
    assert str(found.problems[0]) == f"args[0]: {message}"


@given(st.text())
def test_doubled_braces_escape_any_text(text: str) -> None:
    found = Findings()
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert fill(escaped, VALUES, "x", found) == text
    assert found.problems == []


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{precision}", "bf16"),
        ("{precison}", "{precison}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{{precision}}", "{bf16}"),
        ("a { b", "a { b"),
    ],
)
def test_unknown_placeholders_of_command_line_arguments_are_kept(text: str, filled: str) -> None:
    assert fill_known_placeholders(text, VALUES) == filled


def test_all_invalid_placeholders_are_reported_together() -> None:
    with pytest.raises(SpecError) as caught:
        plan(
            "name: mine\nscript: a.py\nargs: ['{nope_nope}', ok, '{']\nenv: {A: '{presicion}'}\n"
            "nccl: {env: {NCCL_ALGO: '}'}}",
            "env: {B: '{x}'}",
        )
    assert [problem.path for problem in caught.value.problems] == [
        *("args[0]", "args[2]", "cluster env.B", "nccl.env.NCCL_ALGO", "env.A"),
    ]


def test_placeholders_are_filled_in_args_env_and_extra_args() -> None:
    made = plan(
        "script: a.py\nresources: {nodes: 2, gpus_per_node: 4}\n"
        "batch: {micro_batch_per_gpu: 3, gradient_accumulation_steps: 5}\nprecision: fp16\n"
        "args: ['--b={micro_batch_per_gpu}', '{world_size}']\nenv: {OUT: '{checkpoint_dir}/x'}\n",
        words=["{effective_batch}", "{unknown}"],
    )
    assert made.program[2:] == ["--b=3", "8", "120", "{unknown}"]
    assert variables(made)["OUT"] == f"{made.run_dir}/checkpoints/x"
    assert variables(made)["HPCRUN_EFFECTIVE_BATCH"] == "120"
    assert "HPCRUN_DEEPSPEED_CONFIG" not in variables(made)


def test_deepspeed_placeholders_require_deepspeed() -> None:
    made = plan("script: a.py\ndeepspeed: {zero_stage: 1}\nargs: ['{deepspeed_config}']")
    assert made.program[-1] == f"{made.run_dir}/deepspeed.json"
    assert variables(made)["HPCRUN_ZERO_STAGE"] == "1"
    with pytest.raises(SpecError, match="there is one only with a deepspeed: block"):
        plan("script: a.py\nargs: ['{deepspeed_config}']")


def test_after_checkpoint_dir_is_filled_from_the_dependency() -> None:
    text = "script: a.py\nargs: [--from, '{after_checkpoint_dir}']"
    made = plan(text, after=Dependency("7", "/runs/one/checkpoints"))
    assert made.program[2:] == ["--from", "/runs/one/checkpoints"]
    assert variables(made)["HPCRUN_AFTER_CHECKPOINT_DIR"] == "/runs/one/checkpoints"
    for after in (None, Dependency("7")):
        with pytest.raises(SpecError, match="there is one only with --after RUN"):
            plan(text, after=after)


def test_text_of_many_braces_has_a_short_error() -> None:
    def size(count: int) -> int:
        fill("{x" * count, {}, "command[0]", found := Findings())
        return sum(len(str(problem)) for problem in found.problems)

    assert 0 < size(16_000) == size(1_000)
