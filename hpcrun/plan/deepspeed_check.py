"""The user's own DeepSpeed JSON: unknown, removed, mistyped and contradicting keys.

DeepSpeed ignores an unknown key at its top level, so that a typo trains something else; in its
sections an unknown key stops the job, after the queue. Here both are found before.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpcrun.errors import Problem
from hpcrun.plan.deepspeed import (
    Answer,
    Given,
    Training,
    is_on,
    precision_of,
    stage_of,
    value_at,
)
from hpcrun.plan.deepspeed_keys import DEPRECATED, KEYS, REMOVED, Key, Section
from hpcrun.plan.job import Findings
from hpcrun.spec.deepspeed_json import Document
from hpcrun.spec.job import DeepSpeed

Path = tuple[str, ...]
Finding = tuple[str, str]  # the dotted path of a key, and what is wrong with it

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Written(Struct, frozen=True, kw_only=True):
    """What the user wrote: a file of their own, and keys in the job that merge over it."""

    config: dict[str, Any]
    file: Document | None = None
    file_name: str = ""

    def find(self, path: Path, message: str) -> Problem | None:
        """Make a problem that points to where the user wrote this key; None: the user did not.

        >>> print(Written(config={"bf16": {"enabled": 1}}).find(("bf16", "enabled"), "no"))
        deepspeed.config.bf16.enabled: no
        """
        dotted = ".".join(path)
        if value_at(self.config, dotted) is not None:
            return Problem(f"deepspeed.config.{dotted}", message)
        if self.file is not None and path in self.file.lines:
            return Problem(dotted, message, self.file_name, self.file.lines[path])
        return None

    def blame(self, path: Path, message: str) -> Problem:
        """Make a problem; for a key that the user did not write, of the file or the section."""
        section = "" if self.file is not None else "deepspeed.config."
        elsewhere = Problem(section + ".".join(path), message, self.file_name)
        return self.find(path, message) or elsewhere


def check_deepspeed_config(
    config: Mapping[str, Any],
    deepspeed: DeepSpeed,
    training: Training,
    given: Given,
    found: Findings,
) -> None:
    """Check a configuration: what is wrong is a problem, what does nothing a note."""
    written = Written(
        config=deepspeed.config, file=given.file, file_name=deepspeed.config_file or ""
    )
    own = Findings(notes=found.notes)
    _check_keys(config, written, training.framework, given.answer, own)
    _check_agreement(config, deepspeed, training, written, own.problems)
    reported = {problem.path.removeprefix("deepspeed.config.") for problem in own.problems}
    for key, message in _contradictions(config, training.framework):
        if key not in reported:
            own.problems.append(written.blame(tuple(key.split(".")), message))
    for key, message in _without_effect(config, training.framework):
        problem = written.find(tuple(key.split(".")), message)
        if problem is not None:
            found.notes.append(str(problem))
    found.problems.extend(own.problems)


# ---- keys ----------------------------------------------------------------------------------------


def _check_keys(
    config: Mapping[str, Any],
    written: Written,
    framework: str,
    answer: Answer | None,
    found: Findings,
) -> None:
    """Check every key that the user wrote.

    Where the DeepSpeed that will train has answered, its answer decides which keys there are and
    what is refused; the table decides on types, which DeepSpeed reads more loosely than its
    own code and other frameworks use them.
    """
    reported: set[Path] = set()

    def report(path: Path, message: str) -> None:
        problem = written.find(path, message)
        if problem is not None:
            reported.add(path)
            found.problems.append(problem)

    for path, value, expected in _walk(config, KEYS, ()):
        dotted = ".".join(path)
        if dotted in REMOVED and answer is None:
            instead = f"; {REMOVED[dotted]}" if REMOVED[dotted] else ""
            report(path, f"DeepSpeed has removed this and stops at it, even at false{instead}")
        elif dotted in DEPRECATED:
            problem = written.find(path, f"is deprecated; write {DEPRECATED[dotted]}")
            if problem is not None:
                found.notes.append(str(problem))
        elif dotted not in REMOVED and expected is None and _unknown(path, answer):
            report(path, _no_such_key(path))
        message = ""
        if expected is not None:
            # The classes of its own sections know their bounds; a newer one may know more words.
            bounded = answer is None or _is_asked(path, answer)
            message = _mistyped(value, expected, path, framework, bounded)
        if message:
            report(path, message)
    if answer is None:
        return
    for refused, message in answer.problems:
        path = tuple(refused.split(".")) if refused else ()
        covered = any(path == one[: len(path)] or one == path[: len(one)] for one in reported)
        if not covered:
            message = f"DeepSpeed {answer.version} refuses it: {message.strip()}"
            problem = written.find(path, message) or Problem("deepspeed", message)
            found.problems.append(problem)


def _walk(
    config: Mapping[str, Any], section: Section, path: Path
) -> Iterator[tuple[Path, Any, Key | Section | None]]:
    """Yield each key with its value and what it may hold; None: unknown."""
    for key, value in config.items():
        inner = (*path, key)
        # A key of the user's own; JSON has no comments.
        if key.startswith(("_", "//")):
            continue
        expected = section.get(key)
        yield inner, value, expected
        if isinstance(value, Mapping) and isinstance(expected, dict):
            yield from _walk(value, expected, inner)
        elif isinstance(expected, Key) and expected.shape == "map":
            yield from _params(value, inner)


def _params(value: Any, path: Path) -> Iterator[tuple[Path, Any, Key | Section | None]]:
    """Yield what is "auto", or a number in quotes, among parameters of optimizer and scheduler.

    torch or the optimizer itself decides which parameters there are; none is a number as text.
    """
    if path[0] not in ("optimizer", "scheduler") or not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        if inner == "auto":
            yield (*path, key), inner, Key("any")
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, str) and _NUMBER.fullmatch(item):
                yield (*path, key), item, Key("number")


def _unknown(path: Path, answer: Answer | None) -> bool:
    """Return whether DeepSpeed has no such key: by the table, else by its answer."""
    if answer is None:
        return True
    return ".".join(path) not in answer.read and _is_asked(path, answer)


def _is_asked(path: Path, answer: Answer) -> bool:
    """Return whether DeepSpeed asks for the keys of this section by name.

    A section that is a class of its own is not asked: it refuses what it does not know.
    """
    above = ".".join(path[:-1])
    return len(path) == 1 or any(key.startswith(f"{above}.") for key in answer.read)


def _no_such_key(path: Path) -> str:
    """Explain an unknown key, with a guess at what was meant."""
    section: Any = KEYS
    for key in path[:-1]:
        section = section[key]
    near = difflib.get_close_matches(path[-1], section, 1)
    if not near:
        far = {name: dotted for dotted in _all_paths(KEYS) for name in [dotted.rpartition(".")[2]]}
        near = [far[name] for name in difflib.get_close_matches(path[-1], far, 1, 0.8)]
    hint = f"; did you mean {near[0]}?" if near else "; a key of your own starts with _"
    return f"DeepSpeed has no such key{hint}"


def _all_paths(section: Section, start: str = "") -> Iterator[str]:
    for key, below in section.items():
        yield f"{start}{key}"
        if isinstance(below, dict):
            yield from _all_paths(below, f"{start}{key}.")


def _mistyped(
    value: Any, expected: Key | Section, path: Path, framework: str, bounded: bool
) -> str:
    """Explain what is wrong with a value; "" where nothing is."""
    if isinstance(expected, dict):
        null = path[-1] in ("offload_param", "offload_optimizer", "zenflow") and value is None
        return "" if isinstance(value, Mapping) or null else f"{_show(value)}; keys are needed here"
    if value == "auto":
        return "" if expected.auto else explain_auto(path, framework)
    if value is None:
        return "" if expected.null or expected.shape == "any" else "null; leave the key out"
    return _shape_fault(value, expected) or (_bound_fault(value, expected) if bounded else "")


_SHAPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "any": (object, ""),
    "bool": (bool, "true or false"),
    "int": ((int, float), "a whole number"),
    "number": ((int, float), "a number"),
    "text": (str, "text"),
    "list": (list, "a list"),
    "map": (Mapping, "a map"),
}


def _shape_fault(value: Any, key: Key) -> str:
    kind, name = _SHAPES[key.shape]
    right = isinstance(value, kind)
    if key.shape == "bool":
        right = right or value in (0, 1)  # read as such everywhere
    elif key.shape in ("int", "number"):
        right = right and not isinstance(value, bool)
        right = right and (key.shape == "number" or value == value // 1)
    return "" if right else f"{_show(value)}; {name} is needed"


def _bound_fault(value: Any, key: Key) -> str:
    if key.choices:
        word = value.lower() if key.fold and isinstance(value, str) else value
        if word not in key.choices:
            near = difflib.get_close_matches(str(value), [str(c) for c in key.choices], 1)
            legal = ", ".join(str(choice) for choice in key.choices)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{json.dumps(value)} is none of {legal}{hint}"
    if key.least is not None and value < key.least:
        return f"{value} is too small; {key.least:g} or more"
    if key.most is not None and value > key.most:
        return f"{value} is too big; {key.most:g} or less"
    return ""


def _show(value: Any) -> str:
    """Show a value as JSON has it, with its type where that is what is wrong.

    >>> _show("5e7"), _show(True), _show(0.5), _show([1])
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


def explain_auto(path: Path, framework: str) -> str:
    """Explain what happens to an "auto" that nobody fills; "" where somebody does.

    >>> explain_auto(("gradient_clipping",), "transformers")
    ''
    >>> explain_auto(("gradient_clipping",), "deepspeed")
    '"auto" is not filled with framework deepspeed: DeepSpeed uses it as a value and fails'
    """
    dotted = ".".join(path)
    if dotted in FILLED_BY.get(framework, ()):
        return ""
    start = f'"auto" is not filled with framework {framework}: '
    if framework == "accelerate":
        return start + "Accelerate stops at it"
    if len(path) == 1 or path[1] == "params":
        return start + "DeepSpeed uses it as a value and fails"
    return start + "DeepSpeed silently ignores it and uses its default"


# ---- agreement with the job ----------------------------------------------------------------------


def _check_agreement(
    config: Mapping[str, Any],
    deepspeed: DeepSpeed,
    training: Training,
    written: Written,
    problems: list[Problem],
) -> None:
    """Refuse a JSON that contradicts the rest of the job: which would be trained?"""

    def compare(path: Path, got: object, wanted: object, field: str) -> None:
        message = f"{got} contradicts the job's {wanted}: {field}"
        problems.append(written.blame(path, message))

    def is_reported(*starts: str) -> bool:
        paths = [problem.path.removeprefix("deepspeed.config.") for problem in problems]
        return any(path.startswith(starts) for path in paths)

    for key, wanted in training.batch().items():
        got = config.get(key)
        # Lightning's own rule is about the accumulation.
        if got is None or got == wanted or is_reported(key):
            continue
        field = "resources.nodes, gpus_per_node and batch give it"
        if key != "train_batch_size":
            own = key.replace("train_micro_batch_size", "micro_batch")
            field = f"set batch.{own} instead"
        compare((key,), got, wanted, field)
    stage, wanted = stage_of(config), deepspeed.zero_stage
    if wanted not in (None, stage) and not is_reported("zero_optimization.stage"):
        compare(("zero_optimization", "stage"), stage, wanted, "set deepspeed.zero_stage instead")
    trains = precision_of(config)
    if trains != training.precision and not is_reported("bf16", "fp16"):
        at = trains
        if trains == "fp32":
            at = "bf16" if training.precision == "bf16" else "fp16"
        message = f"trains in {trains}, and the job's precision is {training.precision}: "
        message += f"set precision: {trains}"
        problems.append(written.blame((at, "enabled"), message))
    for part, wanted in (
        ("offload_optimizer", deepspeed.offload.optimizer),
        ("offload_param", deepspeed.offload.param),
    ):
        got = value_at(config, f"zero_optimization.{part}.device") or "none"
        if wanted not in ("none", got):
            field = f"set deepspeed.offload.{part.removeprefix('offload_')} instead"
            compare(("zero_optimization", part, "device"), got, wanted, field)


# ---- keys that contradict one another, or do nothing ---------------------------------------------

# Where DeepSpeed 0.19.8 stops or ignores a key. A contradiction fails the run or trains something
# else; what does nothing is a note.

# runtime/config.py, DEEPSPEED_OPTIMIZERS, of those that ZeRO knows or that the muP and Muon
# wrappers stand for.
_KNOWN_TO_ZERO = {"adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw", "musgd"}


def _contradictions(config: Mapping[str, Any], framework: str) -> Iterator[Finding]:
    stage = stage_of(config)
    # runtime/config.py: "cannot be simultaneously enabled".
    if is_on(config, "bf16.enabled") and is_on(config, "fp16.enabled"):
        yield "fp16.enabled", "bf16 is enabled too; one of the two"
    yield from _zero(_section(config, "zero_optimization"), stage)
    # Absent, gradients are clipped at 1.0 (since 0.19.3).
    if value_at(config, "zero_optimization.compute_grad_norm") in (False, 0):
        if stage not in (1, 2):
            yield "zero_optimization.compute_grad_norm", f"false needs stage 1 or 2; it is {stage}"
        elif config.get("gradient_clipping") != 0:
            yield "zero_optimization.compute_grad_norm", "false needs gradient_clipping: 0"
    if str(config.get("gradient_allreduce_op")).lower() == "sum" and stage == 3:
        yield "gradient_allreduce_op", "sum does not go with stage 3"
    yield from _checkpointing(_section(config, "activation_checkpointing"))
    yield from _half_masters(config, stage)
    yield from _optimizer(config, stage)
    # strategies/deepspeed.py, _format_batch_size_and_grad_accum_config raises.
    if framework == "lightning" and "gradient_accumulation_steps" in config:
        yield (
            "gradient_accumulation_steps",
            "Lightning stops at it; the job sets it under batch, and the script gives "
            "{gradient_accumulation_steps} to Trainer(accumulate_grad_batches=...)",
        )


def _zero(zero: Mapping[str, Any], stage: int) -> Iterator[Finding]:
    for part, least in (("offload_param", 3), ("offload_optimizer", 1)):
        device = value_at(zero, f"{part}.device")
        at = f"zero_optimization.{part}.device"
        if device not in ("cpu", "nvme"):
            continue
        if stage < least:
            yield at, f"needs stage {least}{'' if least == 3 else ' or more'}; it is {stage}"
        elif device == "nvme" and stage < 3:
            # Only runtime/zero/stage3.py swaps to files.
            yield at, f"nvme needs stage 3; it is {stage}"
        if device == "nvme" and not value_at(zero, f"{part}.nvme_path"):
            yield at, "nvme needs nvme_path beside it"
    ratio = value_at(zero, "offload_optimizer.ratio")
    if isinstance(ratio, (int, float)) and ratio < 1 and stage != 3:
        yield "zero_optimization.offload_optimizer.ratio", f"needs stage 3; it is {stage}"
    # runtime/config_utils.py, _process_deprecated_field asserts.
    for old, new in (
        ("cpu_offload", "offload_optimizer"),
        ("cpu_offload_param", "offload_param"),
        ("stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
    ):
        if zero.get(old) is not None and zero.get(new) is not None:
            yield f"zero_optimization.{old}", f"{new} is given too and replaces it; take this away"
    if is_on(zero, "legacy_stage1"):
        yield "zero_optimization.legacy_stage1", "is gone since 0.5.9, and DeepSpeed stops"


def _checkpointing(section: Mapping[str, Any]) -> Iterator[Finding]:
    # runtime/activation_checkpointing/checkpointing.py, configure(): both are asserted.
    at = "activation_checkpointing.contiguous_memory_optimization"
    if is_on(section, "contiguous_memory_optimization"):
        if section.get("number_checkpoints") is None:
            yield at, "needs number_checkpoints, the number of the model's layers"
        if not is_on(section, "partition_activations"):
            yield at, "needs partition_activations: true"


def _half_masters(config: Mapping[str, Any], stage: int) -> Iterator[Finding]:
    # runtime/config.py, _do_error_check.
    states, masters = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    for key in ("fp16.fp16_master_weights_and_grads", masters, states):
        if is_on(config, key) and stage == 0:
            yield key, "needs stage 1, 2 or 3; it is 0"
    if is_on(config, states) and not is_on(config, masters):
        yield states, "needs bf16_master_weights_and_grads: true"


def _optimizer(config: Mapping[str, Any], stage: int) -> Iterator[Finding]:
    if "max_grad_norm" in _section(_section(config, "optimizer"), "params"):
        # runtime/engine.py, _configure_basic_optimizer raises.
        yield "optimizer.params.max_grad_norm", "set gradient_clipping instead"
    kind = value_at(config, "optimizer.type")
    untested = isinstance(kind, str) and kind.lower() not in _KNOWN_TO_ZERO
    if untested and stage and not is_on(config, "zero_allow_untested_optimizer"):
        message = f"ZeRO does not know {kind}; it takes it with zero_allow_untested_optimizer: true"
        yield "optimizer.type", message
    steps = value_at(config, "scheduler.params.warmup_num_steps")
    if isinstance(steps, (int, float)) and steps < 1:
        # runtime/lr_schedules.py raises since 0.19.6; before it took another number.
        yield "scheduler.params.warmup_num_steps", f"{steps} is too small; 1 or more"


def _without_effect(config: Mapping[str, Any], framework: str) -> Iterator[Finding]:
    stage = stage_of(config)
    for key in _section(config, "zero_optimization"):
        if key.startswith("stage3_") and stage != 3:
            yield f"zero_optimization.{key}", f"does nothing with stage {stage}"
    if framework in ("transformers", "accelerate"):
        if _section(config, "activation_checkpointing"):
            yield (
                "activation_checkpointing",
                "only deepspeed.checkpointing reads it; a model of transformers needs "
                "gradient_checkpointing_enable() or --gradient_checkpointing",
            )
        if "steps_per_print" in config:
            yield "steps_per_print", "Accelerate switches these lines off"
    if stage == 3 and is_on(config, "zero_optimization.elastic_checkpoint"):
        yield "zero_optimization.elastic_checkpoint", "does nothing with stage 3"


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    below = config.get(key)
    return below if isinstance(below, Mapping) else {}
