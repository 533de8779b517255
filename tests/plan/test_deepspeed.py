"""The generated DeepSpeed configuration: batch sizes, stages, offload and user overrides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.errors import SpecError
from hpcrun.plan.deepspeed import BATCH_KEYS, merge
from tests.plan.making import PLACE, plan


def config(section: str, rest: str = "") -> dict[str, Any]:
    made = plan(f"script: a.py\ndeepspeed: {{{section}}}\n{rest}")
    assert made.deepspeed_config is not None
    return made.deepspeed_config


def test_job_without_deepspeed_section_has_no_deepspeed_json() -> None:
    assert plan("script: a.py").deepspeed_config is None
    assert plan("script: a.py").framework == "torch"
    made = plan("script: a.py\nframework: deepspeed")
    assert made.deepspeed_config is not None
    assert made.deepspeed_config["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    ("stage", "zero"),
    [
        (0, {"stage": 0}),
        (1, {"stage": 1, "reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8}),
        (
            2,
            {
                "stage": 2,
                "overlap_comm": True,
                "contiguous_gradients": True,
                "reduce_bucket_size": 2e8,
                "allgather_bucket_size": 2e8,
            },
        ),
        (
            3,
            {
                "stage": 3,
                "overlap_comm": True,
                "contiguous_gradients": True,
                "reduce_bucket_size": 2e8,
                "stage3_gather_16bit_weights_on_model_save": True,
            },
        ),
    ],
)
def test_zero_stage_selects_its_zero_optimization_section(stage: int, zero: dict[str, Any]) -> None:
    made = config(f"zero_stage: {stage}")
    assert made["zero_optimization"] == zero
    assert made["log_level"] == "info" and made["steps_per_print"] == 10


def test_keys_filled_by_transformers_trainer_are_auto() -> None:
    made = config("zero_stage: 3", "framework: transformers")
    assert made["gradient_clipping"] == "auto"
    zero = made["zero_optimization"]
    assert {key for key, value in zero.items() if value == "auto"} == {
        "reduce_bucket_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
    }
    assert "auto" not in str(
        config("zero_stage: 2", "framework: transformers")["zero_optimization"]
    )


@pytest.mark.parametrize("framework", ["deepspeed", "lightning"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_frameworks_without_auto_get_concrete_values(framework: str, stage: int) -> None:
    made = config(f"zero_stage: {stage}", f"framework: {framework}\n{BATCH}")
    assert "auto" not in str(made)
    # Lightning rejects the accumulation key and reads the micro batch from the data loader.
    assert ("gradient_accumulation_steps" in made) == (framework != "lightning")
    assert made["train_batch_size"] == 6


BATCH = "batch: {micro_batch_per_gpu: 3, gradient_accumulation_steps: 2}"
AUTO = dict.fromkeys(BATCH_KEYS, "auto")


@pytest.mark.parametrize("framework", ["accelerate", "transformers"])
@pytest.mark.parametrize(
    ("rest", "batch"),
    [
        ("", AUTO),
        (BATCH, dict(zip(BATCH_KEYS, (6, 3, 2), strict=True))),
        ("batch: {effective: 6}", dict(zip(BATCH_KEYS, (6, 6, 1), strict=True))),
        ("batch: {micro_batch_per_gpu: 3}", {**AUTO, "train_micro_batch_size_per_gpu": 3}),
        ("batch: {gradient_accumulation_steps: 2}", {**AUTO, "gradient_accumulation_steps": 2}),
    ],
)
def test_deepspeed_json_has_only_batch_sizes_set_by_the_job(
    framework: str, rest: str, batch: dict[str, Any]
) -> None:
    made = config("", f"framework: {framework}\n{rest}")
    assert {key: made[key] for key in BATCH_KEYS} == batch
    # hpcrun does not choose the norm for gradient clipping either.
    assert made["gradient_clipping"] == "auto"


@pytest.mark.parametrize("framework", ["accelerate", "transformers"])
def test_deepspeed_json_has_only_a_precision_set_by_the_job(framework: str) -> None:
    made = config("", f"framework: {framework}")
    assert made["bf16"] == made["fp16"] == {"enabled": "auto"}
    made = config("", f"framework: {framework}\nprecision: fp32")
    assert made["bf16"] == made["fp16"] == {"enabled": False}


def test_lightning_json_omits_keys_the_job_does_not_set() -> None:
    made = config("", "framework: lightning")
    assert not made.keys() & {*BATCH_KEYS, "bf16", "fp16", "gradient_clipping"}
    made = config("", f"framework: lightning\nprecision: bf16\n{BATCH}")
    assert (made["bf16"]["enabled"], made["train_batch_size"]) == (True, 6)


def test_deepspeed_json_sets_no_gradient_clipping() -> None:
    assert "gradient_clipping" not in config("")


def test_offload_to_cpu_uses_pinned_memory() -> None:
    pinned = {"device": "cpu", "pin_memory": True}
    zero = config("zero_stage: 2, offload: {optimizer: cpu}")["zero_optimization"]
    assert zero["offload_optimizer"] == pinned and "offload_param" not in zero
    zero = config("zero_stage: 3, offload: {optimizer: cpu, param: cpu}")["zero_optimization"]
    assert zero["offload_optimizer"] == zero["offload_param"] == pinned


def test_nvme_offload_uses_local_dir_of_the_node() -> None:
    zero = config("zero_stage: 3, offload: {optimizer: nvme, param: nvme}")["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "nvme"
    assert "HPCRUN_LOCAL_DIR" in zero["offload_optimizer"]["nvme_path"]
    made = config("zero_stage: 3, offload: {param: nvme, nvme_path: '/nvme/{run_id}'}")
    zero = made["zero_optimization"]
    assert zero["offload_param"]["nvme_path"] == f"/nvme/{PLACE.run_id}"
    assert "offload_optimizer" not in zero


def test_nvme_offload_without_stage_3_is_refused() -> None:
    for section in ("optimizer: nvme", "param: nvme"):
        with pytest.raises(SpecError, match="needs zero_stage 3; it is 2"):
            plan(f"script: a.py\ndeepspeed: {{offload: {{{section}}}}}")


def test_optimizer_offload_notes_the_required_optimizer() -> None:
    shown = "DeepSpeedCPUAdam"
    section = "deepspeed: {offload: {optimizer: cpu}}"
    assert any(shown in note for note in plan(f"script: a.py\n{section}").notes)
    assert any(
        shown in note for note in plan(f"script: a.py\n{section}\nframework: lightning").notes
    )
    # The reference trainer knows, Accelerate puts its own in, and DeepSpeed makes the JSON's.
    for text in (
        section,
        f"script: a.py\n{section}\nframework: accelerate",
        f"script: a.py\n{section}\nframework: transformers",
        "script: a.py\ndeepspeed: {offload: {optimizer: cpu}, "
        "config: {optimizer: {type: AdamW, params: {lr: 1.0e-4}}}}",
        "script: a.py\ndeepspeed: {offload: {optimizer: cpu}, "
        "config: {zero_force_ds_cpu_optimizer: false}}",
    ):
        assert not any(shown in note for note in plan(text).notes), text


def test_tensor_parallel_ranks_count_once_in_the_batch() -> None:
    text = (
        "script: a.py\nresources: {gpus_per_node: 8}\nbatch: {micro_batch_per_gpu: 3}\n"
        "deepspeed: {config: {tensor_parallel: {autotp_size: %d}}}"
    )
    made = plan(text % 4)
    assert made.deepspeed_config is not None
    assert made.effective_batch == made.deepspeed_config["train_batch_size"] == 6
    with pytest.raises(SpecError, match="3 ranks hold one copy of the model together"):
        plan(text % 3)


def test_deepspeed_batch_sizes_are_consistent() -> None:
    made = config(
        "zero_stage: 2",
        "resources: {nodes: 2, gpus_per_node: 4}\n"
        "batch: {micro_batch_per_gpu: 3, gradient_accumulation_steps: 5}",
    )
    assert made["train_micro_batch_size_per_gpu"] == 3
    assert made["gradient_accumulation_steps"] == 5
    assert made["train_batch_size"] == 3 * 5 * 8


@pytest.mark.parametrize(
    ("precision", "keys"), [("bf16", {"bf16"}), ("fp16", {"fp16"}), ("fp32", set())]
)
def test_precision_selects_deepspeed_precision_section(precision: str, keys: set[str]) -> None:
    made = config("zero_stage: 2", f"precision: {precision}")
    assert made.keys() & {"bf16", "fp16"} == keys
    assert all(made[key] == {"enabled": True} for key in keys)


def test_deepspeed_config_overrides_generated_keys() -> None:
    made = config(
        "zero_stage: 2, config: {gradient_clipping: 0.5, steps_per_print: 10, "
        "zero_optimization: {overlap_comm: false, contiguous_gradients: null}}"
    )
    assert made["gradient_clipping"] == 0.5
    assert made["steps_per_print"] == 10
    zero = made["zero_optimization"]
    assert zero["overlap_comm"] is False and "contiguous_gradients" not in zero


MAPS = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner)),
)


@pytest.mark.slow
@given(MAPS, MAPS)
def test_merge_prefers_the_later_value(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = merge(base, over)
    assert merged.keys() == base.keys() | over.keys()
    assert merge(merged, over) == merged
    assert merge(base, {}) == base
    assert merge({}, over) == over
    for key, value in over.items():
        if not isinstance(value, dict):
            assert merged[key] == value


@pytest.mark.slow
@given(MAPS)
def test_merge_does_not_mutate_its_arguments(base: dict[str, Any]) -> None:
    before = repr(base)
    merge(base, {"a": {"b": None}, "b": 1})
    assert repr(base) == before
