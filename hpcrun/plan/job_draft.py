"""A first job file for a script, by what the script's text shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcrun.plan.script_facts import OPEN_PARSERS, ScriptFacts
from hpcrun.spec.dump import comment_line, flow

# What a script's option takes, by its name: the placeholder, and the pattern of the names.
_OPTIONS: Sequence[tuple[str, str]] = (
    ("deepspeed_config", r"deepspeed_?config(_?file)?|ds_?config(_?file)?"),
    (
        "micro_batch_per_gpu",
        r"(train_)?micro_?batch(_?size)?(_?per_?(gpu|device))?|per_?(device|gpu)_(train_)?batch(_?size)?"
        r"|(train_)?batch(_?size)?(_?per_?(gpu|device))?|bs|bsz|b|device_batch_size",
    ),
    (
        "gradient_accumulation_steps",
        r"(gradient|grad)_?acc(um(ulation)?)?(_?steps?)?|accum(ulation|ulate)?(_?(steps?|iter))?"
        r"|accumulate_grad_batches|gas|ga_?steps",
    ),
    ("precision", r"precision|mixed_?precision|amp_?dtype"),
    (
        "checkpoint_dir",
        r"(checkpoint|ckpt|save|output|out)_?(dir|path|folder)?|default_root_dir|save_?checkpoint_?dir",
    ),
    ("activation_checkpointing", r"activation_checkpointing"),
)  # fmt: skip
_LIGHTNING = {"lightning", "pytorch_lightning"}
_TRAINING = {"torch", "deepspeed", "accelerate", "transformers", *_LIGHTNING}
# Names that look like a batch and are another one's.
_NOT_TRAINING = re.compile(r"eval|val|test|global|total|num|log|gen|pred")
_TRAINER_ARGS = (
    ("--per_device_train_batch_size", "micro_batch_per_gpu"),
    ("--gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("--output_dir", "checkpoint_dir"),
)


class Draft(Struct, frozen=True, kw_only=True):
    """What a job for the script would be; ``notes`` are for the user to read.

    ``args`` are pairs of the script's option and the placeholder that fills it; ``batch`` has the
    script's own defaults of those that are numbers, by placeholder; ``required`` are arguments
    that the script stops without and that only the user knows.
    """

    script: str
    framework: str
    launcher: str | None = None
    args: list[tuple[str, str]] = []
    batch: dict[str, int] = {}
    required: list[str] = []
    notes: list[str] = []


def is_training(facts: ScriptFacts) -> bool:
    """Return whether a file imports what people train with."""
    return bool(_modules(facts.imports) & _TRAINING)


def draft_job(script: str, facts: ScriptFacts, others: Sequence[ScriptFacts] = ()) -> Draft:
    """Draft a job. ``others``: modules of the project that the script imports.

    >>> from hpcrun.plan.script_facts import read_script
    >>> import ast
    >>> tree = ast.parse("import argparse, deepspeed; p = argparse.ArgumentParser()\\n"
    ...     "p.add_argument('--batch'); p = deepspeed.add_config_arguments(p); p.parse_args()")
    >>> draft = draft_job("train.py", read_script(tree))
    >>> draft.framework, draft.args
    ('deepspeed', [('--deepspeed_config', 'deepspeed_config'), ('--batch', 'micro_batch_per_gpu')])
    """
    modules = _modules([name for one in (facts, *others) for name in one.imports])
    framework = _framework(modules, facts, others)
    args = _args(facts, framework)
    takes = {placeholder for _, placeholder in args}
    notes = []
    launcher = None
    options = {_plain(name): name for option in facts.options for name in option.names}
    if "local_rank" in options and not facts.names_local_rank:
        if framework == "deepspeed":
            launcher = "deepspeed"
        elif framework in ("torch", "transformers") and facts.parser == "argparse":
            notes.append(
                f"{script} takes {options['local_rank']}, which torchrun does not pass: "
                "let it read the variable LOCAL_RANK instead"
            )
    carries = framework in ("deepspeed", "transformers") and "deepspeed_config" in takes
    open_parser = any(one.parser in OPEN_PARSERS for one in (facts, *others))
    if not (open_parser or "micro_batch_per_gpu" in takes or carries or framework == "deepspeed"):
        notes.append(
            f"{script} takes no batch size that can be seen: let it read "
            'HPCRUN_MICRO_BATCH_PER_GPU, or add its argument to args with "{micro_batch_per_gpu}"'
        )
    if framework == "deepspeed" and "deepspeed_config" not in takes:
        notes.append(
            f"{script} takes no --deepspeed_config that can be seen: let it read the file "
            'HPCRUN_DEEPSPEED_CONFIG names, or add its argument to args with "{deepspeed_config}", '
            "so that the batch and the ZeRO stage are the job's"
        )
    batch = _batch(args, facts)
    for option, placeholder in args:
        if placeholder == "micro_batch_per_gpu" and placeholder not in batch:
            notes.append(
                f"{script} shows no number as the default of {option}: the job passes "
                "batch.micro_batch_per_gpu, which is 1 until you change it"
            )
    passed = {option for option, _ in args}
    required = [
        option.names[-1]
        for option in facts.options
        if option.required and not passed & set(option.names)
    ]
    return Draft(
        script=script,
        framework=framework,
        launcher=launcher,
        args=args,
        batch=batch,
        required=[*required, *(one.names[0].upper() for one in facts.positionals if one.required)],
        notes=notes,
    )


def _modules(imports: Sequence[str]) -> set[str]:
    return {name.partition(".")[0] for name in imports}


def _framework(modules: set[str], facts: ScriptFacts, others: Sequence[ScriptFacts]) -> str:
    """Return what the script trains with, the outermost first; an import alone does not count."""
    training = [facts, *(one for one in others if one.trainers)]
    if any(_modules(one.imports) & _LIGHTNING for one in training):
        return "lightning"
    if "Accelerator" in facts.trainers:
        return "accelerate"
    trainer = any(name.endswith("Trainer") for name in facts.trainers)
    if facts.parser == "transformers" or (trainer and modules & {"transformers", "trl"}):
        return "transformers"
    if "deepspeed" in modules:
        return "deepspeed"
    return "accelerate" if "accelerate" in modules else "torch"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _args(facts: ScriptFacts, framework: str) -> list[tuple[str, str]]:
    if facts.parser == "transformers" and not facts.plain:
        return list(_TRAINER_ARGS)
    found: list[tuple[str, str]] = []
    for placeholder, pattern in _OPTIONS:
        if placeholder == "deepspeed_config" and framework == "torch":
            continue
        fits = [
            option
            for option in facts.options
            for name in option.names
            if re.fullmatch(pattern, _plain(name)) and not _NOT_TRAINING.search(_plain(name))
        ]
        if placeholder == "precision":
            # Others take bfloat16, or 16-mixed.
            fits = [option for option in fits if {"bf16", "fp16"} <= set(option.choices)]
        if fits:
            # The most exact option: --micro-batch-size before --batch-size.
            best = max(
                fits, key=lambda option: ("micro" in option.names[-1], len(option.names[-1]))
            )
            long = [name for name in best.names if name.startswith("--")]
            found.append(((long or best.names)[-1], placeholder))
    return found


def _batch(args: Sequence[tuple[str, str]], facts: ScriptFacts) -> dict[str, int]:
    """Return the script's own batch: a job file with another would train something else."""
    # What transformers' TrainingArguments have by themselves.
    of_trainer = {"--per_device_train_batch_size": 8}
    defaults = of_trainer if facts.parser == "transformers" else {}
    for option in facts.options:
        if option.number is not None:
            defaults |= dict.fromkeys(option.names, option.number)
    batch = ("micro_batch_per_gpu", "gradient_accumulation_steps")
    found = {name: defaults.get(arg, 0) for arg, name in args if name in batch}
    return {name: value for name, value in found.items() if value > 0}


# ---- text --------------------------------------------------------------------------------------


def job_text(
    draft: Draft,
    resources: Mapping[str, Any],
    setup: Mapping[str, str],
    schema: str,
    name: str = "NAME",
) -> str:
    """Write the job file. ``schema`` is the path of the JSON Schema, from the file's folder."""
    lines = [
        f"# yaml-language-server: $schema={schema}",
        comment_line(f"A first draft by `hpcrun init`; check it: hpcrun submit {name} --dry-run"),
        f"description: {flow(f'{draft.script}, trained with {draft.framework}')}",
        f"script: {flow(draft.script)}",
    ]
    if draft.args:
        lines += ["# {placeholders} pass this file's values to your script.", "args:"]
        for option, placeholder in draft.args:
            lines += [f"  - {flow(option)}"]
            lines += [f'  - "{{{placeholder}}}"']
    if draft.required:
        lines.append("# Your script stops without these; add them, with their values, to args:")
        lines += [comment_line(f"  {word}") for word in draft.required]
    lines.append(f"framework: {draft.framework}")
    if draft.launcher:
        lines.append(f"launcher: {draft.launcher}")
    batch = {"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 1} | draft.batch
    lines += [
        f"resources: {flow(resources)}",
        "# The effective batch is micro_batch_per_gpu x gradient_accumulation_steps x all GPUs.",
        f"batch: {flow(batch)}",
    ]
    if draft.framework == "deepspeed":
        lines.append("deepspeed: {zero_stage: 2}")
    if setup:
        lines.append(f"setup: {flow(setup)}")
    return "\n".join(lines) + "\n"
