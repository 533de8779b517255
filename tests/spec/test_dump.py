"""Written jobs are read back unchanged."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.spec.dump import dump_job
from hpcrun.spec.job import Batch, DeepSpeed, JobSpec, Nccl, Offload, Resources, Setup
from tests.spec.hostile_text import HOSTILE
from tests.spec.reading import read


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_preserved(text: str) -> None:
    spec = JobSpec(
        description=text,
        args=[text, "end"],
        framework="deepspeed",
        deepspeed=DeepSpeed(config={text: text, "list": [text, {text: [text]}]}),
        env={"A": text, "B": ""},
        setup=Setup(commands=[text]),
    )
    assert read(dump_job(spec)) == spec


@pytest.mark.parametrize("text", HOSTILE)
def test_other_yaml_readers_read_the_same_text(text: str) -> None:
    assert yaml.safe_load(dump_job(JobSpec(args=[text])))["args"] == [text]


def test_defaults_are_omitted() -> None:
    assert dump_job(JobSpec()) == "{}\n"
    spec = JobSpec(
        script="train.py",
        args=["--lr", "1e-4", "3"],
        framework="deepspeed",
        resources=Resources(nodes=2, time="24:00:00"),
        deepspeed=DeepSpeed(),
        slurm={"exclusive": True, "qos": "true"},
        setup=Setup(commands=["set -x\necho a\n"]),
        snapshot=False,
    )
    assert dump_job(spec) == (
        "script: train.py\n"
        "args:\n"
        "- --lr\n"
        '- "1e-4"\n'
        '- "3"\n'
        "framework: deepspeed\n"
        "resources:\n"
        "  nodes: 2\n"
        '  time: "24:00:00"\n'
        "deepspeed: {}\n"
        "setup:\n"
        "  commands:\n"
        "  - |\n"
        "    set -x\n"
        "    echo a\n"
        "slurm:\n"
        "  exclusive: true\n"
        '  qos: "true"\n'
        "snapshot: false\n"
    )


@pytest.mark.parametrize("text", [" a\nb", "a \nb\n", "a\n\nb", "a\n\n"])
def test_block_style_is_used_only_for_printable_lines(text: str) -> None:
    quoted = text.replace("\n", "\\n")
    assert dump_job(JobSpec(description=text)) == f'description: "{quoted}"\n'


def test_numbers_are_preserved() -> None:
    config = {"a": 5e7, "b": 1e16, "c": -1e-5, "d": math.inf, "e": -math.inf, "f": 2**63, "g": None}
    spec = JobSpec(framework="deepspeed", deepspeed=DeepSpeed(config=config))
    back = read(dump_job(spec)).deepspeed
    assert back is not None
    assert back.config == config
    assert [type(value) for value in back.config.values()] == [type(v) for v in config.values()]
    nan = JobSpec(framework="deepspeed", deepspeed=DeepSpeed(config={"a": math.nan}))
    assert "a: .nan\n" in dump_job(nan)


# All characters that a YAML file can contain: no NUL, no lone surrogate.
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from(list(" \n\t\r:#-'\"{}[]\u2028\x85\ufeff")),
    max_size=12,
)
lines = st.from_regex(r"[!-~][ -~]{0,8}[!-~]", fullmatch=True)
variables = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
envs: st.SearchStrategy[dict[str, str | None]] = st.dictionaries(
    variables, st.none() | texts, max_size=3
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
configs = st.dictionaries(texts.filter(lambda key: key != "zero_optimization"), values, max_size=3)
times = st.from_regex(r"[0-9]{1,3}(:[0-9]{2}){0,2}|[0-9]-[0-9]{1,2}", fullmatch=True)
positive = st.integers(1, 2**63 - 1)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Draw any job that load_job can return."""
    program = draw(st.sampled_from([None, "script", "module", "command"]))
    command = draw(st.lists(texts, min_size=1, max_size=3))
    frameworks: list[Literal["torch", "deepspeed"] | None] = [None, "torch", "deepspeed"]
    framework = draw(st.sampled_from(frameworks))
    deepspeed = None
    if framework == "deepspeed":
        stage = draw(st.integers(0, 3))
        deepspeed = DeepSpeed(
            zero_stage=stage,
            offload=Offload(
                optimizer=draw(st.sampled_from(["none", "cpu"])) if stage >= 1 else "none",
                param=draw(st.sampled_from(["none", "cpu"])) if stage == 3 else "none",
            ),
            config=draw(configs),
        )
    return JobSpec(
        description=draw(texts),
        name=draw(optional(lines)),
        args=draw(st.lists(texts, max_size=3)),
        launcher=draw(st.sampled_from([None, "torchrun", "srun"])),
        framework=framework,
        resources=Resources(
            nodes=draw(positive),
            gpus_per_node=draw(st.integers(0, 8)),
            gpu_type=draw(optional(lines)),
            time=draw(optional(times)),
            partition=draw(optional(lines)),
            cpus_per_gpu=draw(optional(positive)),
            memory_per_node=draw(optional(st.sampled_from(["0", "200G", "1TB"]))),
        ),
        precision=draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        batch=Batch(micro_batch_per_gpu=draw(positive)),
        deepspeed=deepspeed,
        nccl=Nccl(fabric=draw(st.sampled_from(["auto", "ethernet"])), env=draw(envs)),
        env=draw(envs),
        secrets=draw(st.lists(variables, max_size=2)),
        setup=Setup(modules=draw(st.lists(texts, max_size=2)), venv=draw(optional(texts))),
        slurm=draw(
            st.dictionaries(
                st.sampled_from(["qos", "exclusive", "mail-type", "nice"]), lines | st.booleans()
            )
        ),
        snapshot=draw(st.booleans()),
        script=draw(lines) if program == "script" else None,
        module=draw(lines) if program == "module" else None,
        command=command if program == "command" else None,
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(specs())
def test_every_job_is_preserved(spec: JobSpec) -> None:
    assert read(dump_job(spec)) == spec
