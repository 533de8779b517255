"""The keys of DeepSpeed's JSON: types and ranges, deprecated and removed keys.

As DeepSpeed 0.19.8 has them: the fields of its configuration classes (runtime/zero/config.py,
runtime/precision_config.py, monitor/config.py, compile/config.py ...) and what
runtime/config.py asks of the JSON by name. A test reads both from DeepSpeed itself.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Shape = Literal["bool", "int", "number", "text", "list", "map", "any"]


class Key(Struct, frozen=True):
    """The values that a key accepts. A ``map`` has keys of the user's own, which are not checked.

    ``least`` and ``most`` bound a number, ``choices`` a text or a number (``fold``: ignoring case).
    ``null`` and ``auto`` are True if DeepSpeed itself accepts these.
    """

    shape: Shape
    least: float | None = None
    most: float | None = None
    choices: tuple[str | int, ...] = ()
    fold: bool = False
    null: bool = False
    auto: bool = False


Section = dict[str, "Key | Section"]

BOOL = Key("bool")
INT = Key("int")
COUNT = Key("int", least=0)
POSITIVE = Key("int", least=1)
NUMBER = Key("number")
SHARE = Key("number", least=0, most=1)
TEXT = Key("text")
LIST = Key("list")
MAP = Key("map")
ANY = Key("any")
BOOL_OR_NULL = Key("bool", null=True)
TEXT_OR_NULL = Key("text", null=True)
MAP_OR_NULL = Key("map", null=True)
DEVICE = Key("text", choices=("none", "cpu", "nvme"))
WIRE_DTYPE = Key("text", choices=("fp16", "bf16", "fp32"), fold=True, null=True)
# runtime/config.py, DtypeEnum.
_FP16 = ("fp16", "float16", "half", "torch.float16")
_BF16_NAMES = ("bf16", "bfloat16", "torch.bfloat16")
_FP32 = ("fp32", "float32", "float", "torch.float32")
DTYPE = Key("text", choices=(*_FP16, *_BF16_NAMES, *_FP32), null=True)

_LEVELS = ("debug", "info", "warning", "error", "critical")


def _keys(key: Key, names: str) -> Section:
    """Give several names the same key."""
    return dict.fromkeys(names.split(), key)


_OFFLOAD: Section = {
    "device": DEVICE,
    "nvme_path": TEXT_OR_NULL,
    "buffer_count": COUNT,
    "pin_memory": BOOL,
}

_ZERO: Section = {
    **_keys(
        BOOL,
        "contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions "
        "compute_grad_norm load_from_fp32_weights elastic_checkpoint "
        "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
        "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential "
        "ignore_unused_parameters legacy_stage1 round_robin_gradients parameter_alignment "
        "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients "
        "memory_efficient_linear pipeline_loading_checkpoint override_module_apply "
        "log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory",
    ),
    "reduce_bucket_size": POSITIVE,
    **_keys(
        COUNT,
        "allgather_bucket_size sub_group_size stage3_prefetch_bucket_size "
        "stage3_param_persistence_threshold stage3_model_persistence_threshold "
        "stage3_max_live_parameters stage3_max_reuse_distance zero_hpz_partition_size",
    ),
    **_keys(BOOL_OR_NULL, "overlap_comm cpu_offload cpu_offload_param cpu_offload_use_pin_memory"),
    "stage3_module_granularity_threshold": INT,
    "stage": Key("int", choices=(0, 1, 2, 3)),
    "offload_param": {**_OFFLOAD, **_keys(COUNT, "buffer_size max_in_cpu")},
    "offload_optimizer": {
        **_OFFLOAD,
        **_keys(BOOL, "pipeline_read pipeline_write fast_init super_offload"),
        **_keys(SHARE, "ratio cpuadam_cores_perc"),
    },
    "zenflow": {
        **_keys(SHARE, "topk_ratio auto_ratio pt_reserved_cores_perc"),
        **_keys(BOOL, "overlap_step offload"),
        "full_warm_up_rounds": INT,
        "select_strategy": Key("text", choices=("auto", "step", "epoch"), auto=True),
        "select_interval": Key("int", auto=True),
        "update_interval": Key("int", least=1, auto=True),
        "steps_per_epoch": Key("int", null=True),
    },
    "leaf_module": _keys(ANY, "classes names name_suffixes"),
}

# DeepSpeed also accepts the Python names of these, which nobody uses.
_ZERO_SHORT = {
    name.removeprefix("stage3_"): key
    for name, key in _ZERO.items()
    if name.startswith("stage3_") and "fp16" not in name
}

_BF16 = _keys(
    BOOL,
    "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
    "bf16_optimizer_states",
)

KEYS: Section = {
    **_keys(
        POSITIVE,
        "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
        "sequence_parallel_size data_parallel_size",
    ),
    **_keys(
        BOOL,
        "managed_gradient_accumulation prescale_gradients wall_clock_breakdown memory_breakdown "
        "dump_state disable_allgather disable_python_gc dataloader_drop_last "
        "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
        "use_data_before_expert_parallelism",
    ),
    "gradient_predivide_factor": NUMBER,
    **_keys(WIRE_DTYPE, "communication_data_type seq_parallel_communication_data_type"),
    # Accelerate and transformers read the last two.
    **_keys(MAP, "autotuning expert_parallel pipeline msamp inference"),
    "datastates_ckpt": ANY,
    "gradient_clipping": Key("number", least=0),
    "gradient_allreduce_op": Key("text", choices=("mean", "sum"), fold=True),
    "steps_per_print": Key("int", least=1, null=True),
    "log_level": Key("text", choices=_LEVELS, fold=True, null=True),
    "vocabulary_size": Key("int", least=1, null=True),
    "zero_optimization": {**_ZERO, **_ZERO_SHORT},
    "bf16": _BF16,
    "bfloat16": _BF16,
    "fp16": {
        **_keys(BOOL, "enabled auto_cast consecutive_hysteresis fp16_master_weights_and_grads"),
        **_keys(INT, "initial_scale_power loss_scale_window hysteresis min_loss_scale"),
        "loss_scale": Key("number", least=0),
    },
    "torch_autocast": {"enabled": BOOL, "dtype": DTYPE, "lower_precision_safe_modules": LIST},
    "data_types": {
        **_keys(DTYPE, "grad_accum_dtype param_dtype buffer_dtype"),
        "keep_in_fp32_modules": Key("list", auto=True),
    },
    "optimizer": {"type": TEXT, "params": MAP_OR_NULL, "legacy_fusion": BOOL},
    "scheduler": {"type": TEXT_OR_NULL, "params": MAP_OR_NULL},
    "activation_checkpointing": {
        **_keys(
            BOOL,
            "partition_activations cpu_checkpointing contiguous_memory_optimization "
            "synchronize_checkpoint_boundary profile",
        ),
        "number_checkpoints": Key("int", least=1, null=True),
    },
    "aio": {
        **_keys(POSITIVE, "block_size queue_depth intra_op_parallelism"),
        **_keys(BOOL, "single_submit overlap_events use_gds"),
    },
    "checkpoint": {
        **_keys(BOOL, "checkpoint_serialization load_universal use_node_local_storage"),
        "tag_validation": Key("text", choices=("warn", "ignore", "fail"), fold=True),
        "parallel_write": {"pipeline_stage": BOOL},
        "writer": {
            **_keys(TEXT_OR_NULL, "type data_parallel"),
            **_keys(POSITIVE, "io_buffer_size io_multiplier"),
            **_keys(BOOL, "io_buffer_double show_statistics decoupled"),
        },
    },
    "comms_logger": {**_keys(BOOL, "enabled prof_all verbose debug"), "prof_ops": LIST},
    "flops_profiler": {
        **_keys(BOOL, "enabled detailed"),
        "recompute_fwd_factor": NUMBER,
        **_keys(INT, "profile_step module_depth top_modules"),
        "output_file": TEXT_OR_NULL,
    },
    "tensorboard": {"enabled": BOOL, **_keys(TEXT, "output_path job_name")},
    "csv_monitor": {"enabled": BOOL, **_keys(TEXT, "output_path job_name")},
    "wandb": {"enabled": BOOL, **_keys(TEXT_OR_NULL, "group team"), "project": TEXT},
    "comet": {
        "enabled": BOOL,
        "samples_log_interval": INT,
        **_keys(TEXT_OR_NULL, "project workspace api_key experiment_name experiment_key mode"),
        "online": BOOL_OR_NULL,
    },
    "timers": {"throughput": _keys(BOOL, "enabled synchronized")},
    "compile": {
        **_keys(
            BOOL,
            "deepcompile autoep_non_moe free_activation offload_activation "
            "offload_activation_pin_memory offload_opt_states double_buffer symmetric_memory "
            "debug_log offload_parameters sync_before_reduce sync_after_reduce "
            "sync_before_allgather sync_after_allgather keep_int_input_tensors "
            "keep_all_input_tensors",
        ),
        "free_activation_threshold": INT,
        "passes": Key("list", null=True),
    },
    "tensor_parallel": {
        **_keys(ANY, "dtype injection_policy_tuple"),
        "autotp_size": COUNT,
        **_keys(
            BOOL, "tp_overlap_comm keep_module_on_host kernel_inject replace_with_kernel_inject"
        ),
        "vocab_parallel_lm_head": BOOL_OR_NULL,
        **_keys(MAP, "tp tensor_parallel"),
        "partition_config": MAP_OR_NULL,
        "preset_model": TEXT_OR_NULL,
        "vocab_parallel_ce_backend": Key("text", choices=("torch", "liger")),
    },
    "hybrid_engine": {
        **_keys(BOOL, "enabled release_inference_cache pin_parameters enable_cuda_graph"),
        "max_out_tokens": POSITIVE,
        **_keys(INT, "inference_tp_size tp_gather_partition_size"),
    },
    "weight_quantization": {
        "enabled": BOOL,
        **_keys(INT, "num_bits q_groups"),
        **_keys(MAP, "quantized_initialization post_init_quant"),
        "q_type": Key("text", choices=("asymmetric", "symmetric")),
    },
    "data_efficiency": {"enabled": BOOL, "seed": INT, **_keys(MAP, "data_sampling data_routing")},
}

# DeepSpeed stops at these even where they are switched off (runtime/config.py,
# _REMOVED_TOP_LEVEL_CONFIG_KEYS, _REMOVED_ZERO_CONFIG_KEYS); with what to do instead.
REMOVED: dict[str, str] = {
    "nebula": "",
    "compression_training": "",
    "amp": "use fp16, bf16 or torch_autocast",
    "quantize_training": "",
    "sparse_gradients": "an nn.Embedding(sparse=True) needs no key",
    "eigenvalue": "",
    "sparse_attention": "",
    "elasticity": "set the batch sizes under batch",
    "graph_harvesting": "",
    "curriculum_learning": "use data_efficiency.data_sampling.curriculum_learning",
    "progressive_layer_drop": "",
    "zero_optimization.mics_shard_size": "",
    "zero_optimization.mics_hierarchical_params_gather": "",
    "zero_optimization.zeropp_loco_param": "",
}

# Still read, with a warning; with what to write instead.
DEPRECATED: dict[str, str] = {
    "bfloat16": "bf16",
    "zero_optimization.cpu_offload": "offload_optimizer: {device: cpu}",
    "zero_optimization.cpu_offload_param": "offload_param: {device: cpu}",
    "zero_optimization.cpu_offload_use_pin_memory": "pin_memory in offload_optimizer",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "stage3_gather_16bit_weights_on_model_save"
    ),
}
