"""Checks of a user's own DeepSpeed JSON, one by one and together."""

from __future__ import annotations

import json

import pytest

from hpcrun.plan.deepspeed import BATCH_KEYS, DeepSpeedProbe
from hpcrun.spec.deepspeed_json import parse_hjson
from tests.plan.deepspeed_errors import BATCH, NEEDS_INT, NO_KEY, in_config, refused
from tests.plan.making import job, plan


def notes(config: str, rest: str = "") -> list[str]:
    made = plan(f"script: a.py\ndeepspeed: {{config: {{{config}}}}}\n{rest}")
    return [note for note in made.notes if note.startswith("deepspeed.")]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Unknown: DeepSpeed ignores the first two and fails on the others, after the queue wait.
        ("gradient_cliping: 0.5", f"gradient_cliping: {NO_KEY}; did you mean gradient_clipping?"),
        ("stage: 2", f"stage: {NO_KEY}; did you mean zero_optimization.stage?"),
        (
            "zero_optimization: {overlap_com: true}",
            f"zero_optimization.overlap_com: {NO_KEY}; did you mean overlap_comm?",
        ),
        (
            "zero_optimization: {offload_optimizer: {devise: cpu}}",
            f"zero_optimization.offload_optimizer.devise: {NO_KEY}; did you mean device?",
        ),
        (
            "bf16: {loss_scale: 0}",
            f"bf16.loss_scale: {NO_KEY}; did you mean fp16.loss_scale?",
        ),
        # Values of a wrong type.
        (
            "zero_optimization: {reduce_bucket_size: '5e7'}",
            f'zero_optimization.reduce_bucket_size: "5e7" {NEEDS_INT}',
        ),
        (
            "zero_optimization: {sub_group_size: 0.5}",
            "zero_optimization.sub_group_size: 0.5 is a number; a whole number is needed",
        ),
        (
            "wall_clock_breakdown: 'false'",
            'wall_clock_breakdown: "false" is text; true or false is needed',
        ),
        (
            "zero_optimization: {overlap_comm: 'true'}",
            'zero_optimization.overlap_comm: "true" is text; true or false is needed',
        ),
        (
            "zero_optimization: {sub_group_size: true}",
            "zero_optimization.sub_group_size: true is true or false; a whole number is needed",
        ),
        ("gradient_clipping: '1.0'", 'gradient_clipping: "1.0" is text; a number is needed'),
        ("gradient_clipping: -1", "gradient_clipping: -1 is too small; 0 or more"),
        ("tensorboard: {job_name: 3}", "tensorboard.job_name: 3 is a number; text is needed"),
        ("comms_logger: {prof_ops: all}", 'comms_logger.prof_ops: "all" is text; a list is needed'),
        ("optimizer: Adam", 'optimizer: "Adam" is text; keys are needed here'),
        (
            "optimizer: {type: Adam, params: 3}",
            "optimizer.params: 3 is a number; a map is needed",
        ),
        (
            "optimizer: {type: AdamW, params: {lr: '3e-5'}}",
            'optimizer.params.lr: "3e-5" is text; a number is needed',
        ),
        (
            "optimizer: {type: Adam, params: {betas: [0.9, '.999']}}",
            'optimizer.params.betas: ".999" is text; a number is needed',
        ),
        (
            "scheduler: {type: WarmupLR, params: {warmup_num_steps: '100'}}",
            'scheduler.params.warmup_num_steps: "100" is text; a number is needed',
        ),
        ("zero_optimization: true", "zero_optimization: true is true or false; keys are needed"),
        ("steps_per_print: 0", "steps_per_print: 0 is too small; 1 or more"),
        (
            "zero_optimization: {offload_optimizer: {device: CPU}}",
            'zero_optimization.offload_optimizer.device: "CPU" is not one of none, cpu, nvme',
        ),
        (
            "zero_optimization: {offload_optimizer: {cpuadam_cores_perc: 1.5}}",
            "zero_optimization.offload_optimizer.cpuadam_cores_perc: 1.5 is too big; 1 or less",
        ),
        ("log_level: verbose", 'log_level: "verbose" is not one of debug, info, warning'),
        # Removed keys, refused even if disabled.
        (
            "elasticity: {enabled: false}",
            "elasticity: DeepSpeed has removed this key and refuses it",
        ),
        (
            "amp: {enabled: false}",
            "amp: DeepSpeed has removed this key and refuses it, even if it is false; use fp16, "
            "bf16 or "
            "torch_autocast",
        ),
        (
            "zero_optimization: {mics_shard_size: 8}",
            "zero_optimization.mics_shard_size: DeepSpeed has removed this",
        ),
        # The framework does not replace this "auto".
        (
            "gradient_clipping: auto",
            'gradient_clipping: "auto" is not filled with framework deepspeed: DeepSpeed '
            "uses it as a value and fails",
        ),
        (
            "zero_optimization: {reduce_bucket_size: auto}",
            'zero_optimization.reduce_bucket_size: "auto" is not filled with framework '
            "deepspeed: DeepSpeed silently ignores it and uses its default",
        ),
        (
            "optimizer: {type: Adam, params: {lr: auto}}",
            'optimizer.params.lr: "auto" is not filled',
        ),
        # Contradictions to the job file.
        ("bf16: null", "bf16.enabled: trains in fp32, but the job's precision is bf16"),
        ("bf16: {enabled: false}", "bf16.enabled: trains in fp32, but the job's precision is bf16"),
        # Contradictions between two keys.
        (
            "bf16: {enabled: true}, fp16: {enabled: true}",
            "fp16.enabled: bf16 is enabled too; enable only one of them",
        ),
        (
            "zero_optimization: {offload_param: {device: cpu}}",
            "zero_optimization.offload_param.device: needs stage 3; it is 2",
        ),
        (
            "zero_optimization: {offload_optimizer: {device: nvme, nvme_path: /x}}",
            "zero_optimization.offload_optimizer.device: nvme needs stage 3; it is 2",
        ),
        (
            "zero_optimization: {offload_optimizer: {ratio: 0.5}}",
            "zero_optimization.offload_optimizer.ratio: needs stage 3; it is 2",
        ),
        (
            "zero_optimization: {cpu_offload: false, offload_optimizer: {device: cpu}}",
            "zero_optimization.cpu_offload: offload_optimizer is given too",
        ),
        (
            "zero_optimization: {legacy_stage1: true}",
            "zero_optimization.legacy_stage1: was removed in 0.5.9",
        ),
        (
            "activation_checkpointing: {contiguous_memory_optimization: true, "
            "partition_activations: true}",
            "activation_checkpointing.contiguous_memory_optimization: needs number_checkpoints",
        ),
        (
            "activation_checkpointing: {contiguous_memory_optimization: true, "
            "number_checkpoints: 4}",
            "activation_checkpointing.contiguous_memory_optimization: needs partition_activations",
        ),
        (
            "zero_optimization: {compute_grad_norm: false}",
            "zero_optimization.compute_grad_norm: false needs gradient_clipping: 0",
        ),
        (
            "bf16: {bf16_optimizer_states: true}",
            "bf16.bf16_optimizer_states: needs bf16_master_weights_and_grads: true",
        ),
        (
            "optimizer: {type: Adam, params: {max_grad_norm: 1}}",
            "optimizer.params.max_grad_norm: set gradient_clipping instead",
        ),
        ("optimizer: {type: Lamb}", "optimizer.type: ZeRO accepts Lamb only with"),
        (
            "scheduler: {type: WarmupLR, params: {warmup_num_steps: 0}}",
            "scheduler.params.warmup_num_steps: 0 is too small",
        ),
    ],
)
def test_each_invalid_deepspeed_key_is_reported(config: str, expected: str) -> None:
    found = in_config(config)
    assert len(found) == 1, found
    assert found[0].startswith(f"deepspeed.config.{expected}")


@pytest.mark.parametrize(
    ("stage", "config", "expected"),
    [
        (
            0,
            "zero_optimization: {offload_optimizer: {device: cpu}}",
            "zero_optimization.offload_optimizer.device: needs stage 1 or more; it is 0",
        ),
        (
            3,
            "zero_optimization: {offload_param: {device: nvme}}",
            "zero_optimization.offload_param.device: nvme needs nvme_path beside it",
        ),
        (3, "gradient_allreduce_op: SUM", "gradient_allreduce_op: sum does not work with stage 3"),
        (
            3,
            "zero_optimization: {compute_grad_norm: false}, gradient_clipping: 0",
            "zero_optimization.compute_grad_norm: false needs stage 1 or 2; it is 3",
        ),
        (
            0,
            "bf16: {bf16_master_weights_and_grads: true}",
            "bf16.bf16_master_weights_and_grads: needs stage 1, 2 or 3; it is 0",
        ),
        (2, "zero_optimization: {stage: 3}", "zero_optimization.stage: 3 contradicts the job's 2"),
        (
            3,
            "zero_optimization: {cpu_offload_param: true, offload_param: {device: cpu}}",
            "zero_optimization.cpu_offload_param: offload_param is given too",
        ),
        (
            3,
            "zero_optimization: {stage3_gather_fp16_weights_on_model_save: true}",
            "zero_optimization.stage3_gather_fp16_weights_on_model_save: "
            "stage3_gather_16bit_weights_on_model_save is given too",
        ),
    ],
)
def test_keys_unsupported_by_the_zero_stage_are_refused(
    stage: int, config: str, expected: str
) -> None:
    found = refused(f"script: a.py\ndeepspeed: {{zero_stage: {stage}, config: {{{config}}}}}")
    assert len(found) == 1, found
    assert found[0].startswith(f"deepspeed.config.{expected}")


@pytest.mark.parametrize(
    "config",
    [
        "zero_optimization: {reduce_bucket_size: 5e7}",  # YAML 1.2: a number
        "zero_optimization: {overlap_comm: 1}",
        "zero_optimization: {prefetch_bucket_size: 5}",
        "_comment: mine, wall_clock_breakdown: true",
        "zero_optimization: {_why: mine}",
        "log_level: WARNING",
        "data_types: {grad_accum_dtype: float32, keep_in_fp32_modules: auto}",
        "optimizer: {type: Lamb}, zero_allow_untested_optimizer: true",
        "optimizer: {type: adamw, params: {lr: 1.0e-4, anything: [1]}}",
        "autotuning: {enabled: true, anything: 3}",
        "train_batch_size: 1, train_micro_batch_size_per_gpu: 1, gradient_accumulation_steps: 1",
        "train_batch_size: auto, bf16: {enabled: auto}, fp16: {enabled: auto}",
        "train_batch_size: 1.0",
        "zero_optimization: {stage: auto}",
        "gradient_clipping: 0, zero_optimization: {compute_grad_norm: false}",
        "zero_optimization: {offload_optimizer: {device: cpu, pin_memory: false}}",
    ],
)
def test_valid_deepspeed_config_has_no_problems(config: str) -> None:
    made = plan(f"script: a.py\ndeepspeed: {{config: {{{config}}}}}")
    assert made.deepspeed_config is not None
    trio = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [made.deepspeed_config[key] for key in trio] == [1, 1, 1]
    assert made.deepspeed_config["bf16"]["enabled"] is True
    assert made.deepspeed_config["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    ("config", "rest", "expected"),
    [
        (
            "zero_optimization: {cpu_offload: true}",
            "",
            "zero_optimization.cpu_offload: is deprecated; write offload_optimizer: {device: cpu}",
        ),
        (
            "zero_optimization: {stage3_max_live_parameters: 1e9}",
            "",
            "zero_optimization.stage3_max_live_parameters: has no effect with stage 2",
        ),
        (
            "activation_checkpointing: {partition_activations: true}",
            "framework: transformers",
            "activation_checkpointing: only deepspeed.checkpointing reads it",
        ),
        ("steps_per_print: 5", "framework: accelerate", "steps_per_print: Accelerate disables"),
    ],
)
def test_ineffective_deepspeed_keys_have_a_note(config: str, rest: str, expected: str) -> None:
    found = notes(config, rest)
    assert len(found) == 1, found
    assert found[0].startswith(f"deepspeed.config.{expected}")


def test_effective_deepspeed_keys_have_no_note() -> None:
    assert notes("activation_checkpointing: {partition_activations: true}") == []
    assert notes("steps_per_print: 5", "framework: lightning") == []


def test_auto_is_accepted_only_where_the_framework_fills_it() -> None:
    everywhere = (
        "gradient_clipping: auto, optimizer: {type: AdamW, params: {lr: auto, betas: auto}}"
    )
    made = plan(f"script: a.py\nframework: transformers\ndeepspeed: {{config: {{{everywhere}}}}}")
    assert made.deepspeed_config is not None
    assert made.deepspeed_config["optimizer"]["params"]["betas"] == "auto"
    found = in_config(everywhere, "framework: accelerate")
    assert found == [
        'deepspeed.config.optimizer.params.betas: "auto" is not filled with framework '
        "accelerate: Accelerate refuses it"
    ]
    assert len(in_config(everywhere, "framework: lightning")) == 3


def test_accumulation_in_deepspeed_config_is_refused_for_lightning() -> None:
    found = in_config("gradient_accumulation_steps: 1", "framework: lightning")
    assert len(found) == 1
    assert "accumulate_grad_batches" in found[0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("train_batch_size: 3", "train_batch_size: 3 contradicts the job's 1"),
        (
            "train_micro_batch_size_per_gpu: 3",
            "train_micro_batch_size_per_gpu: 3 contradicts the job's 1: set "
            "batch.micro_batch_per_gpu",
        ),
        (
            "gradient_accumulation_steps: 3",
            "gradient_accumulation_steps: 3 contradicts the job's 1: set "
            "batch.gradient_accumulation_steps",
        ),
    ],
)
def test_deepspeed_batch_that_contradicts_the_job_is_refused(config: str, expected: str) -> None:
    (found,) = in_config(config, BATCH)
    assert found.startswith(f"deepspeed.config.{expected}")


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        ("train_batch_size: 12", (12, 3, 1)),
        ("train_micro_batch_size_per_gpu: 3", (12, 3, 1)),
        ("train_batch_size: 24, train_micro_batch_size_per_gpu: 3", (24, 3, 2)),
        ("gradient_accumulation_steps: 3", (12, 1, 3)),
    ],
)
def test_job_without_batch_uses_batch_of_deepspeed_json(
    config: str, batch: tuple[int, int, int]
) -> None:
    made = plan(
        f"script: a.py\nresources: {{gpus_per_node: 4}}\ndeepspeed: {{config: {{{config}}}}}"
    )
    sizes = (made.micro_batch_per_gpu, made.gradient_accumulation_steps)
    assert (made.effective_batch, *sizes) == batch
    assert made.deepspeed_config is not None
    assert tuple(made.deepspeed_config[key] for key in BATCH_KEYS) == batch


def test_deepspeed_batch_indivisible_by_ranks_is_refused() -> None:
    text = "script: a.py\nresources: {gpus_per_node: 4}\ndeepspeed: {config: {train_batch_size: 6}}"
    assert refused(text) == [
        "deepspeed.config.train_batch_size: 6 is not a multiple of 4 ranks; 4 or 8 is"
    ]


def test_all_problems_of_deepspeed_config_are_reported_together() -> None:
    found = in_config(
        "zero_optimisation: {stage: 3}, amp: {enabled: false}, train_batch_size: 7, "
        "zero_optimization: {reduce_bucket_size: '5e7', offload_param: {device: cpu}}",
        BATCH,
    )
    assert len(found) == 5


@pytest.mark.slow
def test_suggestions_are_limited_for_thousands_of_unknown_keys() -> None:
    keys = ", ".join(f"zero_optimization_{index}: 1" for index in range(3000))
    assert sum("did you mean zero_optimization?" in text for text in in_config(keys)) == 100


@pytest.mark.parametrize("key", ["qwxz", "aio.thread_count"])
def test_unknown_key_unlike_any_other_has_a_note_instead_of_an_error(key: str) -> None:
    above, _, name = key.rpartition(".")
    config = f"{above}: {{{name}: 1}}" if above else f"{name}: 1"
    (note,) = notes(config)
    assert note.startswith(f"deepspeed.config.{key}: DeepSpeed 0.19.8 has no such key, but a newer")
    # If the job's DeepSpeed version is known, its own list of keys decides.
    answer = DeepSpeedProbe(version="0.19.8", read=["train_batch_size"])
    assert in_config("qwxz: 1", answer=answer) == [
        f"deepspeed.config.qwxz: {NO_KEY}; keys of your own must start with _"
    ]


@pytest.mark.parametrize(
    ("config", "spelling"),
    [
        ("zero_optimization.stage: 3", "zero_optimization: {stage: 3}"),
        ("zero.stage: 3", "zero_optimization: {stage: 3}"),
        ("optimizer.params.lr: 0.1", "optimizer: {params: {lr: 0.1}}"),
        ("fp16.enabled: true", "fp16: {enabled: true}"),
        (
            "zero_optimization: {offload_optimizer.device: cpu}",
            'zero_optimization: {offload_optimizer: {device: "cpu"}}',
        ),
        ("'a.b=c': {d: 1}", "a: {b=c: {"),
    ],
)
def test_dotted_keys_are_refused_with_the_nested_spelling(config: str, spelling: str) -> None:
    (found,) = in_config(config)
    assert found.startswith("deepspeed.config.") and f"; write {spelling}" in found
    section = job(f"script: a.py\ndeepspeed: {{config: {{{config}}}}}").deepspeed
    assert section is not None
    file = parse_hjson(json.dumps(section.config), "ds.json")
    found, *more = refused("script: a.py\ndeepspeed: {config_file: ds.json}", file=file)
    assert found.startswith("ds.json: ") and f"; write {spelling}" in found and more == []
