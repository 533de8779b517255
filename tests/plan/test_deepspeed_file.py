"""A user's own DeepSpeed JSON: merged, checked against the job and by DeepSpeed itself."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.deepspeed import DeepSpeedInput, DeepSpeedProbe
from hpcrun.plan.types import Plan
from hpcrun.spec.deepspeed_json import parse_hjson
from hpcrun.spec.job import Cluster
from hpcrun.spec.load import load_job
from tests.plan.deepspeed_errors import BATCH, NEEDS_INT, NO_KEY, in_config, refused
from tests.plan.making import PLACE, plan


def from_file(text: str, rest: str = "") -> Plan:
    """Plan a job with this text as its deepspeed.config_file."""
    file = parse_hjson(text, "ds.json")
    job = f"script: a.py\ndeepspeed: {{config_file: ds.json}}\n{rest}"
    return plan(job, deepspeed_input=DeepSpeedInput(file=file))


FILE = """{ // buckets for our machine
  "train_batch_size": "auto",
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": 5e7, # whole
  },
  "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}
}"""


def test_deepspeed_file_is_completed_but_otherwise_unchanged() -> None:
    made = from_file(FILE, "batch: {micro_batch_per_gpu: 2}\nresources: {gpus_per_node: 4}")
    assert made.deepspeed_config == {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 50_000_000},
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
    }


def test_deepspeed_config_overrides_deepspeed_file() -> None:
    file = parse_hjson(FILE, "ds.json")
    job = "script: a.py\ndeepspeed: {config_file: ds.json, config: {gradient_clipping: 0.5}}"
    made = plan(job, deepspeed_input=DeepSpeedInput(file=file))
    assert made.deepspeed_config is not None
    assert made.deepspeed_config["gradient_clipping"] == 0.5


@pytest.mark.parametrize(
    ("section", "stage_keys"),
    [
        ("{zero_stage: 2}", ["deepspeed.zero_stage"]),
        ("{config_file: ds.json}", ["deepspeed.config.zero_optimization.stage"]),
        (
            "{config_file: ds.json, zero_stage: 2}",
            ["deepspeed.zero_stage", "deepspeed.config.zero_optimization.stage"],
        ),
        (
            "{config: {zero_optimization: {stage: 2}}}",
            ["deepspeed.config.zero_optimization.stage"],
        ),
    ],
)
def test_keys_that_change_zero_are_accepted_beside_an_own_json(
    section: str, stage_keys: list[str]
) -> None:
    text = f"script: a.py\ndeepspeed: {section}"
    file = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    given = DeepSpeedInput(file=parse_hjson(file, "ds.json") if "config_file" in section else None)
    keys = plan(text, deepspeed_input=given).zero_keys
    assert keys.get("zero_stage", ["deepspeed.zero_stage"]) == stage_keys
    overrides = [f"{key}=3" for key in stage_keys]
    overrides += [
        f"{key}=cpu" for key in keys.get("offload.optimizer", ["deepspeed.offload.optimizer"])
    ]
    spec = load_job(text, source="job.yaml", resolve=lambda name: ("", name), overrides=overrides)
    made = build_plan(spec, Cluster(), PLACE, deepspeed_input=given)
    assert made.deepspeed_config is not None
    zero = made.deepspeed_config["zero_optimization"]
    assert zero["stage"] == 3 and zero["offload_optimizer"]["device"] == "cpu"


def test_deepspeed_file_for_lightning_gets_no_accumulation() -> None:
    made = from_file('{"bf16": {"enabled": true}}', "framework: lightning")
    assert made.deepspeed_config == {"bf16": {"enabled": True}}


def test_problems_of_deepspeed_file_have_line_numbers() -> None:
    text = FILE.replace("5e7", '"5e7"').replace('"auto",\n', '3,\n  "stage": 1,\n', 1)
    with pytest.raises(SpecError) as caught:
        from_file(text, BATCH)
    assert [str(problem) for problem in caught.value.problems] == [
        "ds.json:3: stage: DeepSpeed has no such key; did you mean zero_optimization.stage?",
        f'ds.json:6: zero_optimization.reduce_bucket_size: "5e7" {NEEDS_INT}',
        "ds.json:2: train_batch_size: 3 contradicts the job's 1: resources.nodes, gpus_per_node "
        "and batch give it",
    ]


@pytest.mark.parametrize(
    ("text", "section", "rest", "expected"),
    [
        # Without a precision section DeepSpeed trains in fp32.
        (
            "{}",
            "",
            "precision: bf16",
            "ds.json: bf16.enabled: trains in fp32, but the job's precision is bf16",
        ),
        (
            '{"fp16": {"enabled": true}}',
            "",
            "precision: bf16",
            "ds.json:1: fp16.enabled: trains in fp16, but the job's precision is bf16",
        ),
        (
            '{"bf16": {"enabled": true}}',
            ", zero_stage: 3",
            "",
            "ds.json: zero_optimization.stage: 0 contradicts the job's 3",
        ),
        (
            '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}',
            ", offload: {optimizer: cpu}",
            "",
            "ds.json: zero_optimization.offload_optimizer.device: none contradicts the job's cpu",
        ),
        (
            '{"bf16": {"enabled": true},\n "train_micro_batch_size_per_gpu": 4}',
            "",
            "batch: {micro_batch_per_gpu: 2}",
            "ds.json:2: train_micro_batch_size_per_gpu: 4 contradicts the job's 2",
        ),
        ('{"bf16": null}', "", "precision: fp32", "ds.json:1: bf16: null; keys are needed here"),
    ],
)
def test_deepspeed_file_that_contradicts_the_job_is_refused(
    text: str, section: str, rest: str, expected: str
) -> None:
    file = parse_hjson(text, "ds.json")
    job = f"script: a.py\ndeepspeed: {{config_file: ds.json{section}}}\n{rest}"
    found = refused(job, file=file)
    assert len(found) == 1, found
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ('{"fp16": {"enabled": true}}', "fp16"),
        ('{"bf16": {"enabled": true}}', "bf16"),
        ('{"torch_autocast": {"enabled": true, "dtype": "float16"}}', "fp16"),
        ('{"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}', "bf16"),
        ("{}", "fp32"),
    ],
)
def test_precision_of_deepspeed_file_sets_the_jobs_precision(text: str, precision: str) -> None:
    assert from_file(text).precision == precision


def test_precision_in_deepspeed_config_sets_the_jobs_precision() -> None:
    made = plan("script: a.py\ndeepspeed: {config: {fp16: {enabled: true, hysteresis: 4}}}")
    assert made.precision == "fp16"
    assert made.deepspeed_config is not None
    assert made.deepspeed_config["fp16"] == {"enabled": True, "hysteresis": 4}
    assert "bf16" not in made.deepspeed_config
    assert in_config("fp16: {enabled: true}", "precision: bf16") == [
        "deepspeed.config.fp16.enabled: bf16 is enabled too; enable only one of them"
    ]


def test_auto_stage_without_a_framework_value_is_refused() -> None:
    text = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": "auto"}}'
    found = refused(
        "script: a.py\ndeepspeed: {config_file: ds.json}", file=parse_hjson(text, "ds.json")
    )
    assert found[0].startswith('ds.json:1: zero_optimization.stage: "auto" is not filled')
    made = plan(
        "script: a.py\ndeepspeed: {config_file: ds.json, zero_stage: 1}",
        deepspeed_input=DeepSpeedInput(file=parse_hjson(text, "ds.json")),
    )
    assert made.deepspeed_config is not None
    assert made.deepspeed_config["zero_optimization"]["stage"] == 1


def test_stage_of_deepspeed_file_sets_zero_stage_variable() -> None:
    made = from_file('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    section = next(s for s in made.environment if "HPCRUN_ZERO_STAGE" in s.variables)
    assert section.variables["HPCRUN_ZERO_STAGE"] == "3"


READ = ["zero_optimization", "brand_new", "aio", "aio.brand_new", "bf16", "amp"]


def test_keys_are_checked_against_the_jobs_deepspeed_version() -> None:
    answer = DeepSpeedProbe(version="9.9", read=READ)
    text = "brand_new: 1, aio: {brand_new: 2}, amp: {}, zero_optimization: {brand_new: 3}"
    made = plan(
        f"script: a.py\ndeepspeed: {{config: {{{text}}}}}",
        deepspeed_input=DeepSpeedInput(answer=answer),
    )
    assert made.deepspeed_config is not None
    # A key unknown to both DeepSpeed and the table is still a typo.
    assert in_config("brand_nwe: 1", answer=answer) == [
        f"deepspeed.config.brand_nwe: {NO_KEY}; keys of your own must start with _"
    ]
    assert len(in_config("aio: {thread_count: 1}", answer=answer)) == 1


def test_problems_found_by_the_jobs_deepspeed_are_reported() -> None:
    answer = DeepSpeedProbe(
        version="9.9",
        read=READ,
        problems=[
            ("zero_optimization.brand_new", "Extra inputs are not permitted"),
            ("zero_optimization.reduce_bucket_size", "Input should be a valid integer"),
            ("fp16", "something of the whole section"),
        ],
    )
    assert in_config(
        "zero_optimization: {brand_new: 3, reduce_bucket_size: '5e7'}, fp16: {hysteresis: 1}",
        answer=answer,
    ) == [
        # Reported once, with hpcrun's message, if both find the problem.
        f'deepspeed.config.zero_optimization.reduce_bucket_size: "5e7" {NEEDS_INT}',
        "deepspeed.config.zero_optimization.brand_new: DeepSpeed 9.9 refuses it: "
        "Extra inputs are not permitted",
        "deepspeed.config.fp16: DeepSpeed 9.9 refuses it: something of the whole section",
    ]
