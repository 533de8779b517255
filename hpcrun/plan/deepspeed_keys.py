"""The keys of DeepSpeed's JSON: what each may hold, and which are old or gone.

As DeepSpeed 0.19.8 has them: the fields of its configuration classes (runtime/zero/config.py,
runtime/precision_config.py, monitor/config.py, compile/config.py ...) and what
runtime/config.py asks of the JSON by name. A test reads both from DeepSpeed itself.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Shape = Literal["bool", "int", "number", "text", "list", "map", "any"]


class Key(Struct, frozen=True):
    """What a key may hold. A ``map`` is not looked into: its keys are the user's own.

    ``least`` and ``most`` bound a number, ``choices`` a text or a number (``fold``: in upper and
    lower case). ``null`` and ``auto``: whether DeepSpeed itself takes these.
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

_OFFLOAD: Section = {
    "device": DEVICE,
    "nvme_path": TEXT_OR_NULL,
    "buffer_count": COUNT,
    "pin_memory": BOOL,
}

_ZERO: Section = {
    "stage": Key("int", choices=(0, 1, 2, 3)),
    "contiguous_gradients": BOOL,
    "reduce_scatter": BOOL,
    "reduce_bucket_size": POSITIVE,
    "use_multi_rank_bucket_allreduce": BOOL,
    "allgather_partitions": BOOL,
    "allgather_bucket_size": COUNT,
    "overlap_comm": BOOL_OR_NULL,
    "compute_grad_norm": BOOL,
    "load_from_fp32_weights": BOOL,
    "elastic_checkpoint": BOOL,
    "offload_param": {**_OFFLOAD, "buffer_size": COUNT, "max_in_cpu": COUNT},
    "offload_optimizer": {
        **_OFFLOAD,
        "pipeline_read": BOOL,
        "pipeline_write": BOOL,
        "fast_init": BOOL,
        "ratio": SHARE,
        "super_offload": BOOL,
        "cpuadam_cores_perc": SHARE,
    },
    "zenflow": {
        "topk_ratio": SHARE,
        "select_strategy": Key("text", choices=("auto", "step", "epoch"), auto=True),
        "select_interval": Key("int", auto=True),
        "update_interval": Key("int", least=1, auto=True),
        "overlap_step": BOOL,
        "offload": BOOL,
        "auto_ratio": SHARE,
        "full_warm_up_rounds": INT,
        "pt_reserved_cores_perc": SHARE,
        "steps_per_epoch": Key("int", null=True),
    },
    "sub_group_size": COUNT,
    "cpu_offload": BOOL_OR_NULL,
    "cpu_offload_param": BOOL_OR_NULL,
    "cpu_offload_use_pin_memory": BOOL_OR_NULL,
    "stage3_prefetch_bucket_size": COUNT,
    "stage3_param_persistence_threshold": COUNT,
    "stage3_model_persistence_threshold": COUNT,
    "stage3_max_live_parameters": COUNT,
    "stage3_max_reuse_distance": COUNT,
    "stage3_gather_16bit_weights_on_model_save": BOOL,
    "stage3_gather_fp16_weights_on_model_save": BOOL,
    "stage3_module_granularity_threshold": INT,
    "stage3_use_all_reduce_for_fetch_params": BOOL,
    "stage3_allgather_sequential": BOOL,
    "ignore_unused_parameters": BOOL,
    "legacy_stage1": BOOL,
    "round_robin_gradients": BOOL,
    "parameter_alignment": BOOL,
    "zero_hpz_partition_size": COUNT,
    "zero_quantized_weights": BOOL,
    "zero_quantized_nontrainable_weights": BOOL,
    "zero_quantized_gradients": BOOL,
    "memory_efficient_linear": BOOL,
    "pipeline_loading_checkpoint": BOOL,
    "override_module_apply": BOOL,
    "log_trace_cache_warnings": BOOL,
    "enable_sanity_checks": BOOL,
    "save_muon_momentum_buffer_in_memory": BOOL,
    "leaf_module": {"classes": ANY, "names": ANY, "name_suffixes": ANY},
}

# DeepSpeed also takes these by their Python names; nobody writes them so.
_ZERO_SHORT = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "gather_16bit_weights_on_model_save",
    "module_granularity_threshold",
    "use_all_reduce_for_fetch_params",
    "allgather_sequential",
)

_BF16: Section = {
    "enabled": BOOL,
    "immediate_grad_update": BOOL,
    "check_grad_overflow": BOOL,
    "bf16_master_weights_and_grads": BOOL,
    "bf16_optimizer_states": BOOL,
}

KEYS: Section = {
    "train_batch_size": POSITIVE,
    "train_micro_batch_size_per_gpu": POSITIVE,
    "gradient_accumulation_steps": POSITIVE,
    "managed_gradient_accumulation": BOOL,
    "gradient_clipping": Key("number", least=0),
    "prescale_gradients": BOOL,
    "gradient_predivide_factor": NUMBER,
    "gradient_allreduce_op": Key("text", choices=("mean", "sum"), fold=True),
    "communication_data_type": WIRE_DTYPE,
    "seq_parallel_communication_data_type": WIRE_DTYPE,
    "sequence_parallel_size": POSITIVE,
    "data_parallel_size": POSITIVE,
    "steps_per_print": Key("int", least=1, null=True),
    "log_level": Key("text", choices=_LEVELS, fold=True, null=True),
    "wall_clock_breakdown": BOOL,
    "memory_breakdown": BOOL,
    "dump_state": BOOL,
    "disable_allgather": BOOL,
    "disable_python_gc": BOOL,
    "dataloader_drop_last": BOOL,
    "vocabulary_size": Key("int", least=1, null=True),
    "zero_allow_untested_optimizer": BOOL,
    "zero_force_ds_cpu_optimizer": BOOL,
    "use_data_before_expert_parallelism": BOOL,
    "zero_optimization": {**_ZERO, **{name: _ZERO[f"stage3_{name}"] for name in _ZERO_SHORT}},
    "bf16": _BF16,
    "bfloat16": _BF16,
    "fp16": {
        "enabled": BOOL,
        "auto_cast": BOOL,
        "loss_scale": Key("number", least=0),
        "initial_scale_power": INT,
        "loss_scale_window": INT,
        "hysteresis": INT,
        "consecutive_hysteresis": BOOL,
        "min_loss_scale": INT,
        "fp16_master_weights_and_grads": BOOL,
    },
    "torch_autocast": {"enabled": BOOL, "dtype": DTYPE, "lower_precision_safe_modules": LIST},
    "data_types": {
        "grad_accum_dtype": DTYPE,
        "param_dtype": DTYPE,
        "buffer_dtype": DTYPE,
        "keep_in_fp32_modules": Key("list", auto=True),
    },
    "optimizer": {"type": TEXT, "params": MAP_OR_NULL, "legacy_fusion": BOOL},
    "scheduler": {"type": TEXT_OR_NULL, "params": MAP_OR_NULL},
    "activation_checkpointing": {
        "partition_activations": BOOL,
        "cpu_checkpointing": BOOL,
        "contiguous_memory_optimization": BOOL,
        "number_checkpoints": Key("int", least=1, null=True),
        "synchronize_checkpoint_boundary": BOOL,
        "profile": BOOL,
    },
    "aio": {
        "block_size": POSITIVE,
        "queue_depth": POSITIVE,
        "intra_op_parallelism": POSITIVE,
        "single_submit": BOOL,
        "overlap_events": BOOL,
        "use_gds": BOOL,
    },
    "checkpoint": {
        "tag_validation": Key("text", choices=("warn", "ignore", "fail"), fold=True),
        "checkpoint_serialization": BOOL,
        "load_universal": BOOL,
        "use_node_local_storage": BOOL,
        "parallel_write": {"pipeline_stage": BOOL},
        "writer": {
            "type": TEXT_OR_NULL,
            "io_buffer_size": POSITIVE,
            "io_buffer_double": BOOL,
            "show_statistics": BOOL,
            "data_parallel": TEXT_OR_NULL,
            "decoupled": BOOL,
            "io_multiplier": POSITIVE,
        },
    },
    "comms_logger": {
        "enabled": BOOL,
        "prof_all": BOOL,
        "prof_ops": LIST,
        "verbose": BOOL,
        "debug": BOOL,
    },
    "flops_profiler": {
        "enabled": BOOL,
        "recompute_fwd_factor": NUMBER,
        "profile_step": INT,
        "module_depth": INT,
        "top_modules": INT,
        "detailed": BOOL,
        "output_file": TEXT_OR_NULL,
    },
    "tensorboard": {"enabled": BOOL, "output_path": TEXT, "job_name": TEXT},
    "csv_monitor": {"enabled": BOOL, "output_path": TEXT, "job_name": TEXT},
    "wandb": {
        "enabled": BOOL,
        "group": TEXT_OR_NULL,
        "team": TEXT_OR_NULL,
        "project": TEXT,
    },
    "comet": {
        "enabled": BOOL,
        "samples_log_interval": INT,
        "project": TEXT_OR_NULL,
        "workspace": TEXT_OR_NULL,
        "api_key": TEXT_OR_NULL,
        "experiment_name": TEXT_OR_NULL,
        "experiment_key": TEXT_OR_NULL,
        "online": BOOL_OR_NULL,
        "mode": TEXT_OR_NULL,
    },
    "timers": {"throughput": {"enabled": BOOL, "synchronized": BOOL}},
    "compile": {
        "deepcompile": BOOL,
        "autoep_non_moe": BOOL,
        "free_activation": BOOL,
        "free_activation_threshold": INT,
        "offload_activation": BOOL,
        "offload_activation_pin_memory": BOOL,
        "offload_opt_states": BOOL,
        "double_buffer": BOOL,
        "symmetric_memory": BOOL,
        "debug_log": BOOL,
        "offload_parameters": BOOL,
        "sync_before_reduce": BOOL,
        "sync_after_reduce": BOOL,
        "sync_before_allgather": BOOL,
        "sync_after_allgather": BOOL,
        "keep_int_input_tensors": BOOL,
        "keep_all_input_tensors": BOOL,
        "passes": Key("list", null=True),
    },
    "tensor_parallel": {
        "dtype": ANY,
        "autotp_size": COUNT,
        "tp_overlap_comm": BOOL,
        "vocab_parallel_lm_head": BOOL_OR_NULL,
        "vocab_parallel_ce_backend": Key("text", choices=("torch", "liger")),
        "tp": MAP,
        "tensor_parallel": MAP,
        "injection_policy_tuple": ANY,
        "partition_config": MAP_OR_NULL,
        "preset_model": TEXT_OR_NULL,
        "keep_module_on_host": BOOL,
        "kernel_inject": BOOL,
        "replace_with_kernel_inject": BOOL,
    },
    "hybrid_engine": {
        "enabled": BOOL,
        "max_out_tokens": POSITIVE,
        "inference_tp_size": INT,
        "release_inference_cache": BOOL,
        "pin_parameters": BOOL,
        "tp_gather_partition_size": INT,
        "enable_cuda_graph": BOOL,
    },
    "weight_quantization": {
        "enabled": BOOL,
        "num_bits": INT,
        "q_type": Key("text", choices=("asymmetric", "symmetric")),
        "q_groups": INT,
        "quantized_initialization": MAP,
        "post_init_quant": MAP,
    },
    "data_efficiency": {
        "enabled": BOOL,
        "seed": INT,
        "data_sampling": MAP,
        "data_routing": MAP,
    },
    "autotuning": MAP,
    "datastates_ckpt": ANY,
    "expert_parallel": MAP,
    "pipeline": MAP,
    # Read by accelerate and transformers.
    "msamp": MAP,
    "inference": MAP,
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
