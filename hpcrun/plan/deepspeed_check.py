"""Check the user's own DeepSpeed JSON for unknown, removed, mistyped and contradicting keys.

DeepSpeed ignores an unknown key at the top level, so that a typo changes the training; in a section
an unknown key stops the job, after the wait in the queue. Both are found before submission.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hpcrun.errors import Problem
from hpcrun.plan.deepspeed import (
    BATCH_KEYS,
    DeepSpeedInput,
    RequestedTraining,
    is_on,
    precision_of,
    value_at,
    zero_stage_of,
)
from hpcrun.plan.deepspeed_keys import DEPRECATED, KEYS, REMOVED, Key, Section
from hpcrun.plan.findings import Findings
from hpcrun.plan.job import Job
from hpcrun.spec import DeepSpeed

# The dotted path of a key and its problem.
Finding = tuple[str, str]

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def check_deepspeed_config(
    config: Mapping[str, Any], job: Job, training: RequestedTraining, given: DeepSpeedInput
) -> None:
    """Check a configuration: errors are problems, keys without effect are notes."""
    check = _Check(config, job, training, given)
    check.keys()
    check.agreement()
    for key, message in _find_contradictions(config, training.framework):
        if key not in check.reported:
            check.refuse(key, message)
    for key, message in _find_unused_keys(config, training.framework):
        check.note(key, message)


def refuse_dotted_keys(config: Mapping[str, Any], file_name: str | None, found: Findings) -> None:
    """Refuse keys such as zero_optimization.stage: DeepSpeed would ignore them.

    ``file_name`` is that of the user's JSON; None: the keys are those of ``deepspeed.config``.
    """
    for path, value in _dotted_keys(config, KEYS, ()):
        *above, key = path
        parts = [*above, *key.split(".")]
        section: Any = KEYS
        for index, part in enumerate(parts):
            inside = section if isinstance(section, dict) else {}
            is_last = index + 1 == len(parts)
            names = [name for name, below in inside.items() if is_last or isinstance(below, dict)]
            names = names or list(inside)
            # As in zero.stage.
            near = [part] if part in names else [x for x in names if x.startswith(f"{part}_")]
            near = near or difflib.get_close_matches(part, names, 1, 0.7)
            parts[index] = near[0] if near else part
            section = section.get(parts[index]) if isinstance(section, dict) else None
        nested = json.dumps(value)
        for part in reversed(parts[1:]):
            nested = f"{{{part}: {nested}}}"
        where = f"{file_name}: {'.'.join(path)}" if file_name else f"deepspeed.config.{key}"
        message = "a dot in a key does not address a section"
        found.refuse(where, f"{message}; write {parts[0]}: {nested}")


def _dotted_keys(
    config: Mapping[str, Any], section: Section, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in config.items():
        inner = section.get(name)
        if "." in name and name not in section and not name.startswith(("_", "//")):
            yield (*above, name), value
        elif isinstance(value, Mapping) and isinstance(inner, dict):
            yield from _dotted_keys(value, inner, (*above, name))


class _Check:
    """Checks a configuration, and locates problems in the user's file or the job.

    Attributes:
        job: The job's section, whose keys are merged over the user's file.
        lines: The lines of the file's keys.
        reported: The keys that are already refused.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        job: Job,
        training: RequestedTraining,
        given: DeepSpeedInput,
    ) -> None:
        self.config, self.training, self.found = config, training, job.found
        self.guesses = 100
        self.job = job.spec.deepspeed or DeepSpeed()
        self.answer, self.file_name = given.answer, self.job.config_file or ""
        lines = given.file.lines if given.file is not None else {}
        self.lines = {".".join(path): line for path, line in lines.items()}
        self.section = "" if given.file is not None else "deepspeed.config."
        self.reported: set[str] = set()

    def problem_where_written(self, key: str, message: str) -> Problem | None:
        """Build a problem at the place where the user wrote a key; None if they did not."""
        if value_at(self.job.config, key) is not None:
            return Problem(f"deepspeed.config.{key}", message)
        if key in self.lines:
            return Problem(key, message, self.file_name, self.lines[key])
        return None

    def refuse(self, key: str, message: str) -> None:
        """Add a problem; for a key that the user did not write, at the file or the section."""
        elsewhere = Problem(self.section + key, message, self.file_name)
        self.found.problems.append(self.problem_where_written(key, message) or elsewhere)
        self.reported.add(key)

    def note(self, key: str, message: str) -> None:
        problem = self.problem_where_written(key, message)
        if problem is not None:
            self.found.notes.append(str(problem))

    def keys(self) -> None:
        """Check every key that the user wrote.

        If the DeepSpeed that will train has responded, its response decides which keys exist and
        which are refused. The table decides on types, because DeepSpeed accepts more types than its
        own code and other frameworks can use.
        """
        read = self.answer.read if self.answer is not None else []
        own = "; keys of your own must start with _"
        for key, value, expected in _iterate_keys(self.config, KEYS, ""):
            above = key.rpartition(".")[0]
            # DeepSpeed reads these by name. A section with its own class checks unknown keys and
            # bounds itself, and a newer version may accept more.
            by_name = not above or any(one.startswith(f"{above}.") for one in read)
            by_table = self.answer is None or by_name
            wrong = []
            if key in REMOVED and self.answer is None:
                instead = f"; {REMOVED[key]}" if REMOVED[key] else ""
                wrong.append(
                    f"DeepSpeed has removed this key and refuses it, even if it is false{instead}"
                )
            elif key in DEPRECATED:
                self.note(key, f"is deprecated; write {DEPRECATED[key]}")
            elif key not in REMOVED and expected is None and by_table and key not in read:
                meant = _suggest_key(key) if self.guesses > 0 else ""
                self.guesses -= 1
                if meant or self.answer is not None:
                    wrong.append(f"DeepSpeed has no such key{meant or own}")
                else:  # the DeepSpeed version is unknown, and a newer one may know the key
                    self.note(key, f"DeepSpeed 0.19.8 has no such key, but a newer one may{own}")
            if expected is not None:
                wrong.append(
                    _explain_type_error(value, expected, key, self.training.framework, by_table)
                )
            for message in filter(None, wrong):
                if self.problem_where_written(key, message):
                    self.refuse(key, message)
        if self.answer is None:
            return
        for refused, message in self.answer.problems:
            if not any(_overlap(refused, one) for one in self.reported):
                message = f"DeepSpeed {self.answer.version} refuses it: {message.strip()}"
                problem = self.problem_where_written(refused, message) or Problem(
                    "deepspeed", message
                )
                self.found.problems.append(problem)
                self.reported.add(refused)

    def agreement(self) -> None:
        """Refuse a JSON that contradicts the rest of the job."""

        def compare(key: str, got: object, wanted: object, fix: str) -> None:
            if wanted not in (None, "none", got) and not self.is_reported(key):
                self.refuse(key, f"{got} contradicts the job's {wanted}: {fix}")

        refused = [problem.path for problem in self.found.problems]
        for key, wanted in self.training.batch.items():
            if any(path.endswith(key) for path in refused):
                continue  # the batch does not match the number of ranks
            fix = "resources.nodes, gpus_per_node and batch give it"
            if key != "train_batch_size":
                fix = f"set batch.{key.replace('train_micro_batch_size', 'micro_batch')} instead"
            # Lightning's own rule is about the accumulation.
            if self.config.get(key) not in (None, "auto"):
                compare(key, self.config[key], wanted, fix)
        stage = zero_stage_of(self.config)
        fix = "set deepspeed.zero_stage instead"
        compare("zero_optimization.stage", stage, self.job.zero_stage, fix)
        trains, asked = precision_of(self.config), self.training.precision
        if asked not in (None, trains) and not self.is_reported("bf16", "fp16"):
            at = trains if trains != "fp32" else "bf16" if asked == "bf16" else "fp16"
            message = f"trains in {trains}, but the job's precision is {asked}: "
            self.refuse(f"{at}.enabled", f"{message}set precision: {trains}")
        for part in ("optimizer", "param"):
            key = f"zero_optimization.offload_{part}.device"
            got = value_at(self.config, key) or "none"
            fix = f"set deepspeed.offload.{part} instead"
            compare(key, got, getattr(self.job.offload, part), fix)

    def is_reported(self, *starts: str) -> bool:
        """Return True if a prefix of a key is already refused."""
        return any(key.startswith(starts) for key in self.reported)


def _overlap(one: str, other: str) -> bool:
    """Return True if one of two dotted paths is a prefix of the other; "" is a prefix of all."""
    one, other = (f"{path}.".lstrip(".") for path in (one, other))
    return one.startswith(other) or other.startswith(one)


# ---- keys ----------------------------------------------------------------------------------------


def _iterate_keys(
    config: Mapping[str, Any], section: Section, start: str
) -> Iterator[tuple[str, Any, Key | Section | None]]:
    """Yield each key with its value and its schema; None: unknown."""
    for name, value in config.items():
        # A user's comment key; JSON has no comments.
        if name.startswith(("_", "//")):
            continue
        key, expected = f"{start}{name}", section.get(name)
        yield key, value, expected
        if isinstance(value, Mapping) and isinstance(expected, dict):
            yield from _iterate_keys(value, expected, f"{key}.")
        elif isinstance(value, Mapping) and key in ("optimizer.params", "scheduler.params"):
            yield from _iterate_parameters(value, key)


def _iterate_parameters(params: Mapping[str, Any], start: str) -> Iterator[tuple[str, Any, Key]]:
    """Yield "auto" and quoted numbers among the parameters of optimizer and scheduler."""
    for name, value in params.items():
        if value == "auto":
            yield f"{start}.{name}", value, Key("any")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and _NUMBER.fullmatch(item):
                yield f"{start}.{name}", item, Key("number")


def _suggest_key(key: str) -> str:
    """Return a suggestion for an unknown key, as the end of a message, or ""."""
    *above, name = key.split(".")
    section: Any = KEYS
    for part in above:
        section = section[part]
    near = difflib.get_close_matches(name, section, 1)
    if not near:
        far = {path.rpartition(".")[2]: path for path in _iterate_paths(KEYS)}
        near = [far[one] for one in difflib.get_close_matches(name, far, 1, 0.8)]
    return f"; did you mean {near[0]}?" if near else ""


def _iterate_paths(section: Section, start: str = "") -> Iterator[str]:
    for key, below in section.items():
        yield f"{start}{key}"
        if isinstance(below, dict):
            yield from _iterate_paths(below, f"{start}{key}.")


def _explain_type_error(
    value: Any, expected: Key | Section, key: str, framework: str, bounded: bool
) -> str:
    """Explain why a value has the wrong type or range; "" if it is valid."""
    if isinstance(expected, dict):
        null = key.endswith((".offload_param", ".offload_optimizer", ".zenflow")) and value is None
        return (
            ""
            if isinstance(value, Mapping) or null
            else f"{_format_value(value)}; keys are needed here"
        )
    if value == "auto":
        return "" if expected.auto else explain_auto(key, framework)
    if value is None:
        return "" if expected.null or expected.shape == "any" else "null; remove the key"
    kind, name = _SHAPES[expected.shape]
    right = isinstance(value, kind)
    if expected.shape == "bool":
        right = right or value in (0, 1)  # read as such everywhere
    elif expected.shape in ("int", "number"):
        right = right and not isinstance(value, bool)
        right = right and (expected.shape == "number" or value == value // 1)
    if not right:
        return f"{_format_value(value)}; {name} is needed"
    return _explain_range_error(value, expected) if bounded else ""


_SHAPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "any": (object, ""),
    "bool": (bool, "true or false"),
    "int": ((int, float), "a whole number"),
    "number": ((int, float), "a number"),
    "text": (str, "text"),
    "list": (list, "a list"),
    "map": (Mapping, "a map"),
}


def _explain_range_error(value: Any, key: Key) -> str:
    if key.choices:
        word = value.lower() if key.fold and isinstance(value, str) else value
        if word not in key.choices:
            near = difflib.get_close_matches(str(value), [str(c) for c in key.choices], 1)
            legal = ", ".join(str(choice) for choice in key.choices)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{json.dumps(value)} is not one of {legal}{hint}"
    if key.least is not None and value < key.least:
        return f"{value} is too small; {key.least:g} or more"
    if key.most is not None and value > key.most:
        return f"{value} is too big; {key.most:g} or less"
    return ""


def _format_value(value: Any) -> str:
    """Format a value as JSON, with its type if that is the problem.

    >>> _format_value("5e7"), _format_value(True), _format_value(0.5), _format_value([1])
    ('"5e7" is text', 'true is true or false', '0.5 is a number', 'a list')
    """
    if isinstance(value, str):
        return f'"{value}" is text'
    if isinstance(value, bool):
        return f"{str(value).lower()} is true or false"
    if isinstance(value, (int, float)):
        return f"{value} is a number"
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else "a map"


# ---- "auto" --------------------------------------------------------------------------------------

_BUCKETS = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
_SCHEDULER = tuple(
    f"scheduler.params.{name}"
    for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
)

# transformers 5.23, integrations/deepspeed.py, HfTrainerDeepSpeedConfig (with its Trainer's
# Accelerate: the clipping of 16-bit weights at saving); accelerate 1.15, utils/dataclasses.py,
# DeepSpeedPlugin, and accelerator.py, _prepare_deepspeed (the optimizer's and the scheduler's for
# DummyOptim and DummyScheduler). Lightning 2.6, strategies/deepspeed.py, adds what is absent and
# leaves an "auto" as it is.
_ACCELERATE = (
    *BATCH_KEYS,
    "bf16.enabled",
    "fp16.enabled",
    "gradient_clipping",
    "optimizer.params.lr",
    "optimizer.params.weight_decay",
    *_SCHEDULER,
    *_BUCKETS,
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
)
FILLED_BY: Mapping[str, tuple[str, ...]] = {
    "accelerate": _ACCELERATE,
    "transformers": (*_ACCELERATE, "optimizer.params.betas", "optimizer.params.eps"),
}


def explain_auto(key: str, framework: str) -> str:
    """Explain what happens to an "auto" that no framework fills; "" if one does.

    >>> explain_auto("gradient_clipping", "transformers")
    ''
    >>> explain_auto("gradient_clipping", "deepspeed")
    '"auto" is not filled with framework deepspeed: DeepSpeed uses it as a value and fails'
    """
    if key in FILLED_BY.get(framework, ()):
        return ""
    start = f'"auto" is not filled with framework {framework}: '
    if framework == "accelerate":
        return start + "Accelerate refuses it"
    if "." not in key or key.startswith(("optimizer.params", "scheduler.params")):
        return start + "DeepSpeed uses it as a value and fails"
    return start + "DeepSpeed silently ignores it and uses its default"


# ---- Contradicting keys and keys without effect --------------------------------------------------

# Keys that DeepSpeed 0.19.8 rejects or ignores. A contradiction fails the run or changes the
# training; a key without effect is a note.

# The optimizers of runtime/config.py, DEEPSPEED_OPTIMIZERS, that ZeRO supports, directly or in the
# muP and Muon wrappers.
_KNOWN_TO_ZERO = {"adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw", "musgd"}


def _find_contradictions(config: Mapping[str, Any], framework: str) -> Iterator[Finding]:
    stage = zero_stage_of(config)
    # runtime/config.py: "cannot be simultaneously enabled".
    if is_on(config, "bf16.enabled") and is_on(config, "fp16.enabled"):
        yield "fp16.enabled", "bf16 is enabled too; enable only one of them"
    yield from _find_zero_contradictions(config, stage)
    if str(config.get("gradient_allreduce_op")).lower() == "sum" and stage == 3:
        yield "gradient_allreduce_op", "sum does not work with stage 3"
    # runtime/activation_checkpointing/checkpointing.py, configure(): both are asserted.
    checkpointing = "activation_checkpointing"
    at = f"{checkpointing}.contiguous_memory_optimization"
    if is_on(config, at):
        if value_at(config, f"{checkpointing}.number_checkpoints") is None:
            yield at, "needs number_checkpoints, the number of the model's layers"
        if not is_on(config, f"{checkpointing}.partition_activations"):
            yield at, "needs partition_activations: true"
    # runtime/config.py, _do_error_check.
    states, masters = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    for key in ("fp16.fp16_master_weights_and_grads", masters, states):
        if is_on(config, key) and stage == 0:
            yield key, "needs stage 1, 2 or 3; it is 0"
    if is_on(config, states) and not is_on(config, masters):
        yield states, "needs bf16_master_weights_and_grads: true"
    yield from _find_optimizer_contradictions(config, stage)
    # strategies/deepspeed.py, _format_batch_size_and_grad_accum_config raises.
    if framework == "lightning" and "gradient_accumulation_steps" in config:
        yield (
            "gradient_accumulation_steps",
            "Lightning refuses it; the job sets it under batch, and the script gives "
            "{gradient_accumulation_steps} to Trainer(accumulate_grad_batches=...)",
        )


def _find_zero_contradictions(config: Mapping[str, Any], stage: int) -> Iterator[Finding]:
    zero = "zero_optimization"
    for part, least in (("offload_param", 3), ("offload_optimizer", 1)):
        at = f"{zero}.{part}.device"
        device = value_at(config, at)
        if device not in ("cpu", "nvme"):
            continue
        if stage < least:
            yield at, f"needs stage {least}{'' if least == 3 else ' or more'}; it is {stage}"
        elif device == "nvme" and stage < 3:
            # Only runtime/zero/stage3.py swaps to files.
            yield at, f"nvme needs stage 3; it is {stage}"
        if device == "nvme" and not value_at(config, f"{zero}.{part}.nvme_path"):
            yield at, "nvme needs nvme_path beside it"
    at = f"{zero}.offload_optimizer.ratio"
    ratio = value_at(config, at)
    if isinstance(ratio, (int, float)) and ratio < 1 and stage != 3:
        yield at, f"needs stage 3; it is {stage}"
    # runtime/config_utils.py, _process_deprecated_field asserts.
    for old, new in (
        ("cpu_offload", "offload_optimizer"),
        ("cpu_offload_param", "offload_param"),
        ("stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
    ):
        if None not in (value_at(config, f"{zero}.{old}"), value_at(config, f"{zero}.{new}")):
            yield f"{zero}.{old}", f"{new} is given too and takes precedence; remove this key"
    if is_on(config, f"{zero}.legacy_stage1"):
        yield f"{zero}.legacy_stage1", "was removed in 0.5.9, and DeepSpeed refuses it"
    at = f"{zero}.compute_grad_norm"
    if value_at(config, at) in (False, 0):
        if stage not in (1, 2):
            yield at, f"false needs stage 1 or 2; it is {stage}"
        elif config.get("gradient_clipping") != 0:
            # If absent, gradients are clipped at 1.0 (since 0.19.3).
            yield at, "false needs gradient_clipping: 0"


def _find_optimizer_contradictions(config: Mapping[str, Any], stage: int) -> Iterator[Finding]:
    params = value_at(config, "optimizer.params")
    if isinstance(params, Mapping) and "max_grad_norm" in params:
        # runtime/engine.py, _configure_basic_optimizer raises.
        yield "optimizer.params.max_grad_norm", "set gradient_clipping instead"
    kind = value_at(config, "optimizer.type")
    untested = isinstance(kind, str) and kind.lower() not in _KNOWN_TO_ZERO
    if untested and stage and not is_on(config, "zero_allow_untested_optimizer"):
        message = f"ZeRO accepts {kind} only with zero_allow_untested_optimizer: true"
        yield "optimizer.type", message
    at = "scheduler.params.warmup_num_steps"
    steps = value_at(config, at)
    if isinstance(steps, (int, float)) and steps < 1:
        # runtime/lr_schedules.py raises since 0.19.6; before it took another number.
        yield at, f"{steps} is too small; 1 or more"


def _find_unused_keys(config: Mapping[str, Any], framework: str) -> Iterator[Finding]:
    stage, zero = zero_stage_of(config), config.get("zero_optimization")
    for key in zero if isinstance(zero, Mapping) else {}:
        if key.startswith("stage3_") and stage != 3:
            yield f"zero_optimization.{key}", f"has no effect with stage {stage}"
    if framework in ("transformers", "accelerate"):
        if config.get("activation_checkpointing"):
            yield (
                "activation_checkpointing",
                "only deepspeed.checkpointing reads it; a model of transformers needs "
                "gradient_checkpointing_enable() or --gradient_checkpointing",
            )
        if "steps_per_print" in config:
            yield "steps_per_print", "Accelerate disables these lines"
    if stage == 3 and is_on(config, "zero_optimization.elastic_checkpoint"):
        yield "zero_optimization.elastic_checkpoint", "has no effect with stage 3"
