"""A first job file for a script, by what the script's text shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcrun.plan.batch_options import batch_scope
from hpcrun.plan.script_facts import OPEN_PARSERS, RESUME_KEYWORDS, ScriptFacts
from hpcrun.plan.script_parsers import Option
from hpcrun.spec import comment_line, flow

# What a script's option takes, by its name: the placeholder, and the pattern of the names.
_OPTIONS: Sequence[tuple[str, str]] = (
    ("deepspeed_config", r"deepspeed_?config(_?file)?|ds_?config(_?file)?"),
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
)
# Names of a batch size; batch_scope() decides whose samples it counts.
_BATCH = re.compile(
    r"(global|total|effective|overall|micro|local|device|train|training)?(_?(global|total|micro|train))*"
    r"_?batch(_?size)?(_?(per_?(gpu|device)|total|global))?"
    r"|per_?(device|gpu)_(train_)?batch(_?size)?|bs|bsz|b"
)
# Options that name the checkpoint to resume from, the plainest first; and switches that have the
# script look for one itself.
_RESUME = re.compile(
    r"resume_?from_?checkpoint|resume_?(from|path|ckpt|checkpoint)?|(load|restore)_?(checkpoint|ckpt|from)"
    r"|ckpt_?path|from_?checkpoint|auto_?resume|continue_?from|(checkpoint|ckpt)(_?path)?"
)
_SIZES = ("micro_batch_per_gpu", "gradient_accumulation_steps", "effective_batch")
_LIGHTNING = {"lightning", "pytorch_lightning"}
_TRAINING = {"torch", "deepspeed", "accelerate", "transformers", *_LIGHTNING}
# Names that look like a batch and are another one's.
_NOT_TRAINING = re.compile(r"eval|val|test|num|log|gen|pred")
# What transformers' TrainingArguments have by themselves.
_TRAINER_DEFAULTS = {"--per_device_train_batch_size": 8, "--gradient_accumulation_steps": 1}


class Draft(Struct, frozen=True, kw_only=True):
    """What a job for the script would be; ``notes`` are for the user to read.

    ``args`` are pairs of the script's option and the placeholder that fills it; ``batch`` and
    ``precision`` are the script's own values, so that the job trains what the script does without
    it; ``resume`` is checkpoint.resume. ``required`` are arguments that the script stops without
    and that only the user knows.
    """

    script: str
    framework: str
    launcher: str | None = None
    args: list[tuple[str, str]] = []
    batch: dict[str, int] = {}
    precision: str | None = None
    resume: str = ""
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
    ...     "p.add_argument('--batch', default=8); deepspeed.add_config_arguments(p)")
    >>> draft = draft_job("train.py", read_script(tree))
    >>> draft.framework, draft.args
    ('deepspeed', [('--deepspeed_config', 'deepspeed_config'), ('--batch', 'micro_batch_per_gpu')])
    """
    modules = _modules([name for one in (facts, *others) for name in one.imports])
    framework = _framework(modules, facts, others)
    notes: list[str] = []
    args = _args(script, facts, framework, notes)
    sized, batch = _batch_args(script, facts, [facts, *others], notes)
    order = ("deepspeed_config", *_SIZES)
    args = sorted([*sized, *args], key=lambda pair: order.index(pair[1]) if pair[1] in order else 9)
    takes = {placeholder for _, placeholder in args}
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
    if _slurm_ranks([facts, *others]):
        launcher = "srun"
    carries = framework in ("deepspeed", "transformers") and "deepspeed_config" in takes
    open_parser = any(one.parser in OPEN_PARSERS for one in (facts, *others))
    has_size = bool(takes & {"micro_batch_per_gpu", "effective_batch"}) or "batch" in str(notes)
    if not (open_parser or has_size or carries or framework == "deepspeed"):
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
    resume = _resume(script, facts, [facts, *others], framework, notes)
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
        precision=_precision(facts, args, framework),
        resume=resume,
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


def _args(
    script: str, facts: ScriptFacts, framework: str, notes: list[str]
) -> list[tuple[str, str]]:
    """Return the options other than the batch size, each with the placeholder that fills it."""
    if facts.parser == "transformers" and not facts.is_complete:
        return [("--output_dir", "checkpoint_dir")]
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
            # Others take bfloat16, or 16-mixed; and of one without a default that is known the
            # job would choose another.
            formats = {"bf16", "fp16", "fp32"}
            fits = [one for one in fits if formats <= set(one.choices) and one.default in formats]
        if placeholder == "gradient_accumulation_steps":
            continue  # see _batch_args()
        if placeholder == "checkpoint_dir":
            fits = [one for one in fits if not _names_checkpoint(one)]
        if fits:
            found.append((_spelling(_most_exact(fits)), placeholder))
    return found


def _slurm_ranks(scripts: Sequence[ScriptFacts]) -> bool:
    """Return whether any of the modules takes its rank or its world from Slurm.

    torchrun's ranks all see Slurm's task of their node there, and would train apart.
    """
    return any({"SLURM_PROCID", "SLURM_NTASKS"} & {*one.slurm_rank_variables} for one in scripts)


def _names_checkpoint(option: Option) -> bool:
    """Return whether an option such as --ckpt names a checkpoint to load, and no folder."""
    is_path = any(re.fullmatch(r"(checkpoint|ckpt)(_?path)?", _plain(x)) for x in option.names)
    return is_path and not option.default and not re.search(r"save|writ|output", option.help, re.I)


def _most_exact(options: Sequence[Option]) -> Option:
    """Choose the most exact option: --micro-batch-size before --batch-size."""
    return max(options, key=lambda option: ("micro" in option.names[-1], len(option.names[-1])))


def _spelling(option: Option) -> str:
    return ([name for name in option.names if name.startswith("--")] or option.names)[-1]


def _batch_args(
    script: str, facts: ScriptFacts, scripts: Sequence[ScriptFacts], notes: list[str]
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Return the options for batch sizes, and the script's own values for them.

    An option without a number as its default is unchanged: any value would be one that nobody
    chose. So is one that may count one GPU's samples or those of all.
    """
    defaults = dict(_TRAINER_DEFAULTS) if facts.parser == "transformers" else {}
    for option in facts.options:
        if option.number is not None and option.number > 0:
            defaults |= dict.fromkeys(option.names, option.number)
    by_placeholder: dict[str, list[Option]] = {}
    for option in facts.options:
        names = [_plain(name) for name in option.names]
        if any(map(_NOT_TRAINING.search, names)):
            continue
        if any(re.fullmatch(dict(_OPTIONS)[_SIZES[1]], name) for name in names):
            by_placeholder.setdefault(_SIZES[1], []).append(option)
        elif any(map(_BATCH.fullmatch, names)):
            scope = batch_scope(option, scripts)
            if scope == "unclear":
                notes.append(
                    f"{script} takes {_spelling(option)}, which may be the batch of one GPU or of "
                    'all: add it to args, with "{micro_batch_per_gpu}" or "{effective_batch}"'
                )
            else:
                placeholder = _SIZES[0] if scope == "gpu" else _SIZES[2]
                by_placeholder.setdefault(placeholder, []).append(option)
    found, batch = [], {}
    for placeholder in _SIZES:
        if not (options := by_placeholder.get(placeholder)):
            continue
        name = _spelling(_most_exact(options))
        number = defaults.get(name)
        if number is None:
            notes.append(
                f"{script} shows no number as the default of {name}: to let the job set the batch, "
                f'add {name} to args with "{{{placeholder}}}", and its value to batch'
            )
            continue
        found.append((name, placeholder))
        batch[placeholder] = number
    return found, batch


def _precision(facts: ScriptFacts, args: Sequence[tuple[str, str]], framework: str) -> str | None:
    """Return the number format that the script trains in by itself; None where it is not known."""
    for option, placeholder in args:
        if placeholder == "precision":
            return next(one.default for one in facts.options if option in one.names)
    formats = {value for _, value in facts.precisions}
    is_known = len(formats) == 1 and framework in ("accelerate", "transformers", "lightning")
    return (formats.pop() or None) if is_known else None


def _resume(
    script: str,
    facts: ScriptFacts,
    scripts: Sequence[ScriptFacts],
    framework: str,
    notes: list[str],
) -> str:
    """Return the words by which the script learns from which checkpoint to resume."""
    loads = {name for one in scripts for name in one.checkpoint_loads}
    is_trainers = facts.parser == "transformers" and not facts.is_complete
    if is_trainers and loads & {"resume_from_checkpoint", "get_last_checkpoint"}:
        return "--resume_from_checkpoint {resume}"
    if "LightningCLI" in str(facts.trainers):
        return "--ckpt_path {resume}"
    fits = [
        option
        for option in facts.options
        if any(_RESUME.fullmatch(_plain(name)) for name in option.names)
        if _names_checkpoint(option) or not re.fullmatch(r"-*(checkpoint|ckpt).*", option.names[-1])
    ]
    if fits:
        # The one that says it: --resume before --ckpt.
        best = min(fits, key=lambda one: ("resume" not in one.names[-1], len(one.names[-1])))
        return _spelling(best) if best.nargs == 0 else f"{_spelling(best)} {{resume}}"
    call = {"transformers": "trainer.train(resume_from_checkpoint=", "lightning": "fit(ckpt_path="}
    if framework in call and not loads & RESUME_KEYWORDS:
        notes.append(
            f"{script} begins at step 0 whenever it is started: "
            f'{call[framework]}os.environ.get("HPCRUN_RESUME") or None) has it resume from the '
            "newest checkpoint"
        )
    return ""


# ---- text --------------------------------------------------------------------------------------


def _batch_of(draft: Draft, resources: Mapping[str, Any]) -> dict[str, int]:
    """Return the job's batch: the script's values, without what follows from the others."""
    # DeepSpeed's JSON has no other source for them.
    usual = dict.fromkeys(_SIZES[:2], 1) if draft.framework == "deepspeed" else {}
    batch = usual | {
        ("effective" if k == _SIZES[2] else k): size for k, size in draft.batch.items()
    }
    if "effective" not in batch:
        return batch
    ranks = int(resources.get("nodes", 1)) * max(1, int(resources.get("gpus_per_node", 1)))
    micro, steps = batch.get(_SIZES[0]), batch.get(_SIZES[1])
    if micro and steps and micro * steps * ranks != batch["effective"]:
        del batch[_SIZES[1]]
    return batch


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
    lines.append(f"resources: {flow(resources)}")
    if draft.precision:
        lines.append(f"precision: {draft.precision}")
    if batch := _batch_of(draft, resources):
        lines += [
            "# Effective batch = micro_batch_per_gpu x gradient_accumulation_steps x all GPUs.",
            f"batch: {flow(batch)}",
        ]
    if draft.resume:
        lines += [
            "# What your script gets, beside args, where there is a checkpoint to resume from.",
            f"checkpoint: {{resume: {flow(draft.resume)}}}",
        ]
    if draft.framework == "deepspeed":
        lines.append("deepspeed: {zero_stage: 2}")
    if setup:
        lines.append(f"setup: {flow(setup)}")
    return "\n".join(lines) + "\n"
