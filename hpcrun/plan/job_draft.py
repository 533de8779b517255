"""Draft a job file for a script from the facts that static analysis finds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcrun.plan.batch_options import batch_scope
from hpcrun.plan.script_facts import (
    OPEN_PARSERS,
    RESUME_KEYWORDS,
    ScriptFacts,
    adopt_parser,
    is_single_process,
    select_command,
)
from hpcrun.plan.script_parsers import ParserOption
from hpcrun.spec import format_comment, format_flow

# Placeholders, each with the pattern of the option names that take its value.
_OPTION_PATTERNS: Sequence[tuple[str, str]] = (
    ("deepspeed_config", r"deepspeed_?config(_?file)?|ds_?config(_?file)?"),
    (
        "gradient_accumulation_steps",
        r"(gradient|grad)_?acc(um(ulation)?)?(_?steps?)?|accum(ulation|ulate)?(_?(steps?|iter))?"
        r"|accumulate_grad_batches|gas|ga_?steps",
    ),
    ("precision", r"precision|mixed_?precision|amp_?dtype"),
    (
        "checkpoint_dir",
        r"(checkpoint|ckpt|save|output|out)_?(dir|path|folder)?|default_root_dir|save_?checkpoint_?dir"
        r"|work(ing)?_?dir",
    ),
    ("activation_checkpointing", r"activation_checkpointing"),
)
# Options of Lightning scripts for the shape of the job.
_SHAPE_PATTERNS = (
    ("gpus_per_node", r"devices|num_?devices|gpus|num_?gpus|n_?gpus?"),
    ("nodes", r"(num_?|n_?)?nodes|nnodes"),
)
# Names of options for a batch size; batch_scope() decides whether one GPU's or all samples count.
_BATCH_OPTION = re.compile(
    r"(global|total|effective|overall|micro|local|device|train|training)?(_?(global|total|micro|train))*"
    r"_?batch(_?size)?(_?(per_?(gpu|device)|total|global))?"
    r"|per_?(device|gpu)_(train_)?batch(_?size)?|bs|bsz|b"
)
# Options that name the checkpoint to resume from, and switches that make the script search for one.
_RESUME_OPTION = re.compile(
    r"resume_?from_?checkpoint|resume_?(from|path|ckpt|checkpoint)?|(load|restore)_?(checkpoint|ckpt|from)"
    r"|ckpt_?path|from_?checkpoint|auto_?resume|continue_?from|(checkpoint|ckpt)(_?path)?"
)
_HUB_TRAINER = re.compile(r"(transformers|trl)(\.\w+)*\.\w*Trainer$")
_FILE_NAME = re.compile(r".*\.\w{1,6}")
_FILE_HELP = re.compile(
    r"\bfile\b|\.(pth?|bin|ckpt|pkl)\b|\bsave (the |a )?(\w+ )?model\b", re.IGNORECASE
)
_VAGUE_OUTPUT = re.compile(r"checkpoint|ckpt|save|output|out")
_TRAINING_COMMAND = re.compile(r"(pre)?train|fit$|fine_?-?tune|sft$|run$")
_BATCH_KEYS = ("micro_batch_per_gpu", "gradient_accumulation_steps", "effective_batch")
_LIGHTNING = {"lightning", "pytorch_lightning"}
_TRAINING_LIBRARIES = {"torch", "deepspeed", "accelerate", "transformers", *_LIGHTNING}
# Options that contain a batch size but do not configure training.
_EVALUATION_OPTION = re.compile(r"eval|val|test|num|log|gen|pred")
# Defaults of transformers' TrainingArguments.
_TRAINER_DEFAULTS = {"--per_device_train_batch_size": 8, "--gradient_accumulation_steps": 1}


class Draft(Struct, frozen=True, kw_only=True):
    """A draft of a job for a script.

    Attributes:
        module: The name under which Python runs the script with -m; "" for its path.
        command: The command that runs the script once on each node; [] for one process per GPU.
        is_single: The script trains in one process, on one GPU.
        source_folder: The folder of the project that must be on PYTHONPATH; "" for none.
        workdir: The folder from which the script's relative paths exist; "" for the project's.
        read_there: A file or folder that the script reads from it.
        args: Options of the script, each with the placeholder that fills it; "" for a switch.
        batch: The script's own batch sizes, so that the job does not change the training.
        precision: The script's own number format, for the same reason.
        resume: The value of checkpoint.resume.
        required: Arguments that the script requires and only the user knows.
        notes: Notes for the user.
    """

    script: str
    framework: str
    module: str = ""
    command: list[str] = []
    source_folder: str = ""
    workdir: str = ""
    read_there: str = ""
    launcher: str | None = None
    is_single: bool = False
    args: list[tuple[str, str]] = []
    batch: dict[str, int] = {}
    precision: str | None = None
    resume: str = ""
    required: list[str] = []
    notes: list[str] = []


def imports_training_library(facts: ScriptFacts) -> bool:
    """Return True if a file imports a training library."""
    return bool(_top_level_modules(facts.imports) & _TRAINING_LIBRARIES)


def draft_job(
    script: str,
    facts: ScriptFacts,
    others: Sequence[ScriptFacts] = (),
    own: Collection[str] = (),
) -> Draft:
    """Draft a job.

    Args:
        others: The modules of the project that the script imports.
        own: The names of the project's packages and modules.

    >>> from hpcrun.plan.script_facts import read_script
    >>> import ast
    >>> tree = ast.parse("import argparse, deepspeed; p = argparse.ArgumentParser()\\n"
    ...     "p.add_argument('--batch', default=8); deepspeed.add_config_arguments(p)")
    >>> draft = draft_job("train.py", read_script(tree))
    >>> draft.framework, [option for option, _ in draft.args]
    ('deepspeed', ['--deepspeed_config', '--batch', '--deepspeed'])
    """
    if facts.is_ray_driver:
        return _draft_ray_driver(script, facts)
    modules = _top_level_modules([name for one in (facts, *others) for name in one.imports])
    facts = adopt_parser(facts, others)
    command = _choose_command(facts)
    commands = facts.commands
    facts = select_command(facts, command)
    framework = _infer_framework(modules, facts, others)
    notes: list[str] = []
    args = _find_args(script, facts, framework, notes)
    sized, batch = _find_batch_args(script, facts, [facts, *others], notes)
    order = ("deepspeed_config", *_BATCH_KEYS)
    args = sorted([*sized, *args], key=lambda pair: order.index(pair[1]) if pair[1] in order else 9)
    takes = {placeholder for _, placeholder in args} - {""}
    launcher = None
    options = {_normalize_name(name): name for option in facts.options for name in option.names}
    if "local_rank" in options and not facts.names_local_rank:
        if framework == "deepspeed":
            launcher = "deepspeed"
        elif framework in ("torch", "transformers") and facts.parser == "argparse":
            notes.append(
                f"{script} has the option {options['local_rank']}, which torchrun does not "
                "pass: read the variable LOCAL_RANK instead"
            )
    if _reads_slurm_rank([facts, *others]):
        launcher = "srun"
    is_single = framework == "torch" and not any(one.names_ranks for one in (facts, *others))
    is_single = is_single and is_single_process(
        [name for one in (facts, *others) for name in one.imports],
        own,
        calls_backward=any(one.calls_backward for one in (facts, *others)),
    )
    if is_single:
        notes.append(
            f"{script} joins no processes as far as can be seen, so the draft is for one GPU; to "
            "train on several, use DistributedDataParallel"
        )
    carries = framework in ("deepspeed", "transformers") and "deepspeed_config" in takes
    open_parser = any(one.parser in OPEN_PARSERS for one in (facts, *others))
    has_size = bool(takes & {"micro_batch_per_gpu", "effective_batch"}) or "batch" in str(notes)
    if not (open_parser or has_size or carries or framework == "deepspeed"):
        notes.append(
            f"no option for the batch size found in {script}: let it read "
            'HPCRUN_MICRO_BATCH_PER_GPU, or add its argument to args with "{micro_batch_per_gpu}"'
        )
    if framework == "deepspeed" and "deepspeed_config" not in takes:
        notes.append(
            f"no option --deepspeed_config found in {script}: let it read the file "
            'HPCRUN_DEEPSPEED_CONFIG names, or add its argument to args with "{deepspeed_config}", '
            "so that the batch and the ZeRO stage are the job's"
        )
    resume = _find_resume_arguments(script, facts, [facts, *others], framework, notes)
    passed = {option for option, _ in args}
    notes += _note_fixed_shape(script, facts)
    if command:
        # A subcommand's options follow it, the program's own options precede it.
        first = {n for o in facts.options if not o.command for n in o.names}
        args = [
            *(pair for pair in args if pair[0] in first),
            (command, ""),
            *(pair for pair in args if pair[0] not in first),
        ]
    elif commands:
        named = ", ".join(commands)
        notes.append(f"{script} has the commands {named}: begin args with the one that trains")
    required = [
        option.names[-1]
        for option in facts.options
        if option.required and not passed & set(option.names)
    ]
    return Draft(
        script=script,
        framework=framework,
        launcher=launcher,
        is_single=is_single,
        args=args,
        batch=batch,
        precision=_find_precision(facts, args, framework),
        resume=resume,
        required=[*required, *(one.names[0].upper() for one in facts.positionals if one.required)],
        notes=notes,
    )


def _draft_ray_driver(script: str, facts: ScriptFacts) -> Draft:
    """Draft the job of a script that starts Ray's workers itself: one process on one node."""
    return Draft(
        script=script,
        framework="torch",
        command=["python", script],
        required=[option.names[-1] for option in facts.options if option.required],
        notes=[
            f"{script} starts Ray's workers itself, so it runs once, on one node with all of its "
            "GPUs; its number of workers is in the script"
        ],
    )


def _choose_command(facts: ScriptFacts) -> str:
    """Return the subcommand that trains; "" if there is none, or several."""
    fits = [name for name in facts.commands if _TRAINING_COMMAND.match(name)]
    return fits[0] if len(fits) == 1 else ""


def _note_fixed_shape(script: str, facts: ScriptFacts) -> list[str]:
    """Note that a Lightning script sets the number of devices or nodes, which the job decides."""
    return [
        f"{script} sets {keyword}={number}, which has to be the job's: "
        + ('devices="auto"' if keyword == "devices" else 'int(os.environ["HPCRUN_NODES"])')
        for keyword, number in facts.trainer_shape
    ]


def _top_level_modules(imports: Sequence[str]) -> set[str]:
    return {name.partition(".")[0] for name in imports}


def _infer_framework(modules: set[str], facts: ScriptFacts, others: Sequence[ScriptFacts]) -> str:
    """Return the outermost framework that the script uses; a mere import does not count."""
    training = [facts, *(one for one in others if one.trainers)]
    if any(_top_level_modules(one.imports) & _LIGHTNING for one in training):
        return "lightning"
    if "Accelerator" in facts.trainers:
        return "accelerate"
    trainer = any(name.endswith("Trainer") for name in facts.trainers)
    if not facts.trainers and not _top_level_modules(facts.imports) & _TRAINING_LIBRARIES:
        # A thin script: the project's own modules train.
        hub = {"transformers", "trl"}
        of_hub = [one for one in others if _top_level_modules(one.imports) & hub]
        trainer = any(name.endswith("Trainer") for one in of_hub for name in one.trainers)
        if not trainer and any("Accelerator" in one.trainers for one in others):
            return "accelerate"
    elif trainer and not _top_level_modules(facts.imports) & {"transformers", "trl"}:
        # A Trainer of the project's own, unless one of its modules derives it from the Hub's.
        trainer = any(map(_HUB_TRAINER.match, (x for one in others for x in one.imports)))
    if facts.parser == "transformers" or (trainer and modules & {"transformers", "trl"}):
        return "transformers"
    if "deepspeed" in modules:
        return "deepspeed"
    return "accelerate" if "accelerate" in modules else "torch"


def _normalize_name(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _find_args(
    script: str, facts: ScriptFacts, framework: str, notes: list[str]
) -> list[tuple[str, str]]:
    """Return the options except batch sizes, each with the placeholder that fills it."""
    if facts.parser == "transformers" and not facts.is_complete:
        return [("--output_dir", "checkpoint_dir")]
    found: list[tuple[str, str]] = []
    patterns = [*_OPTION_PATTERNS, *(_SHAPE_PATTERNS if framework == "lightning" else ())]
    for placeholder, pattern in patterns:
        if placeholder == "deepspeed_config" and framework == "torch":
            continue
        fits = [
            option
            for option in facts.options
            for name in option.names
            if re.fullmatch(pattern, _normalize_name(name))
            and (
                placeholder in dict(_SHAPE_PATTERNS)
                or not _EVALUATION_OPTION.search(_normalize_name(name))
            )
        ]
        if placeholder == "precision":
            # Other options use spellings such as bfloat16 or 16-mixed. If the default is unknown,
            # the job might change the precision.
            formats = {"bf16", "fp16", "fp32"}
            fits = [one for one in fits if formats <= set(one.choices) and one.default in formats]
        if placeholder == "gradient_accumulation_steps":
            continue  # see _find_batch_args()
        if placeholder == "deepspeed_config":
            fits = [one for one in fits if one.nargs != 0]
            if not fits and framework == "deepspeed":
                named = [one for one in facts.options if "--deepspeed" in one.names]
                fits = [one for one in named if one.nargs != 0]
        if placeholder == "checkpoint_dir":
            fits = [one for one in fits if not _names_checkpoint(one) and _takes_folder(one, facts)]
            fits = [one for one in fits if not _may_be_input(one)]
        if fits:
            found.append((_preferred_spelling(_choose_most_specific(fits)), placeholder))
    has_switch = any("--deepspeed" in one.names and one.nargs == 0 for one in facts.options)
    if framework == "deepspeed" and has_switch:
        found.append(("--deepspeed", ""))
    return found


def _reads_slurm_rank(scripts: Sequence[ScriptFacts]) -> bool:
    """Return True if any module reads its rank or world size from Slurm.

    All ranks that torchrun starts on a node see the same Slurm task and would train separately.
    """
    return any({"SLURM_PROCID", "SLURM_NTASKS"} & {*one.slurm_rank_variables} for one in scripts)


def _names_checkpoint(option: ParserOption) -> bool:
    """Return True if an option such as --ckpt names a checkpoint to load, not an output folder."""
    is_path = any(
        re.fullmatch(r"(checkpoint|ckpt)(_?path)?", _normalize_name(x)) for x in option.names
    )
    return is_path and not option.default and not re.search(r"save|writ|output", option.help, re.I)


def _may_be_input(option: ParserOption) -> bool:
    """Return True if an option such as --work-dir does not say that the script writes there."""
    is_work = any(_normalize_name(name).startswith("work") for name in option.names)
    words = f"{option.help} {option.default}"
    return is_work and not re.search(
        r"\bout|\bsav|\bwrit|\blogs?\b|checkpoint|work_dirs", words, re.I
    )


def _takes_folder(option: ParserOption, facts: ScriptFacts) -> bool:
    """Return True if an option for outputs takes one folder, not a file name, number or switch.

    An option such as --save, whose name does not say which, needs a default, a help or a use in
    the script that does.
    """
    if option.nargs not in (None, "?") or option.type not in ("str", "?"):
        return False
    if _FILE_NAME.fullmatch(option.default):
        return False
    names = [_normalize_name(name) for name in option.names]
    if set(names) & set(facts.folder_names):
        return True
    if any(re.search(r"dir|folder", word, re.I) for word in (*names, option.help)):
        return True
    if _FILE_HELP.search(option.help):
        return False
    return bool(option.default) or not any(map(_VAGUE_OUTPUT.fullmatch, names))


def _choose_most_specific(options: Sequence[ParserOption]) -> ParserOption:
    """Choose the most specific option: --micro-batch-size before --batch-size."""
    return max(options, key=lambda option: ("micro" in option.names[-1], len(option.names[-1])))


def _preferred_spelling(option: ParserOption) -> str:
    return ([name for name in option.names if name.startswith("--")] or option.names)[-1]


def _find_batch_args(
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
    by_placeholder: dict[str, list[ParserOption]] = {}
    for option in facts.options:
        names = [_normalize_name(name) for name in option.names]
        if any(map(_EVALUATION_OPTION.search, names)):
            continue
        if option.number == 0 and facts.parser in OPEN_PARSERS:
            continue  # a field that the script computes
        if any(re.fullmatch(dict(_OPTION_PATTERNS)[_BATCH_KEYS[1]], name) for name in names):
            by_placeholder.setdefault(_BATCH_KEYS[1], []).append(option)
        elif any(map(_BATCH_OPTION.fullmatch, names)):
            scope = batch_scope(option, scripts)
            if scope == "unclear":
                notes.append(
                    f"{script} has the option {_preferred_spelling(option)}, which may be the "
                    "batch of "
                    'one GPU or of all: add it to args, with "{micro_batch_per_gpu}" or '
                    '"{effective_batch}"'
                )
            else:
                placeholder = _BATCH_KEYS[0] if scope == "gpu" else _BATCH_KEYS[2]
                by_placeholder.setdefault(placeholder, []).append(option)
    found, batch = [], {}
    for placeholder in _BATCH_KEYS:
        if not (options := by_placeholder.get(placeholder)):
            continue
        name = _preferred_spelling(_choose_most_specific(options))
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


def _find_precision(
    facts: ScriptFacts, args: Sequence[tuple[str, str]], framework: str
) -> str | None:
    """Return the script's own number format; None if it is unknown."""
    for option, placeholder in args:
        if placeholder == "precision":
            return next(one.default for one in facts.options if option in one.names)
    formats = {value for _, value in facts.precisions}
    is_known = len(formats) == 1 and framework in ("accelerate", "transformers", "lightning")
    return (formats.pop() or None) if is_known else None


def _find_resume_arguments(
    script: str,
    facts: ScriptFacts,
    scripts: Sequence[ScriptFacts],
    framework: str,
    notes: list[str],
) -> str:
    """Return the arguments that make the script resume from a checkpoint."""
    loads = {name for one in scripts for name in one.checkpoint_loads}
    is_trainers = facts.parser == "transformers" and not facts.is_complete
    if is_trainers and loads & {"resume_from_checkpoint", "get_last_checkpoint"}:
        return "--resume_from_checkpoint {resume}"
    if "LightningCLI" in str(facts.trainers):
        return "--ckpt_path {resume}"
    fits = [
        option
        for option in facts.options
        if any(_RESUME_OPTION.fullmatch(_normalize_name(name)) for name in option.names)
        if _names_checkpoint(option) or not re.fullmatch(r"-*(checkpoint|ckpt).*", option.names[-1])
    ]
    if fits:
        # Prefer an explicit name: --resume before --ckpt.
        best = min(fits, key=lambda one: ("resume" not in one.names[-1], len(one.names[-1])))
        return (
            _preferred_spelling(best)
            if best.nargs == 0
            else f"{_preferred_spelling(best)} {{resume}}"
        )
    call = {"transformers": "trainer.train(resume_from_checkpoint=", "lightning": "fit(ckpt_path="}
    if framework in call and not loads & RESUME_KEYWORDS:
        notes.append(
            f"{script} always starts at step 0: "
            f'{call[framework]}os.environ.get("HPCRUN_RESUME") or None) makes it resume from '
            "the newest checkpoint"
        )
    return ""


# ---- The job file ------------------------------------------------------------------------------


def _draft_batch(draft: Draft, resources: Mapping[str, Any]) -> dict[str, int]:
    """Return the job's batch: the script's values, without values that the others imply."""
    # DeepSpeed's JSON needs both values, and only the job provides them.
    usual = dict.fromkeys(_BATCH_KEYS[:2], 1) if draft.framework == "deepspeed" else {}
    batch = usual | {
        ("effective" if k == _BATCH_KEYS[2] else k): size for k, size in draft.batch.items()
    }
    if "effective" not in batch:
        return batch
    ranks = int(resources.get("nodes", 1)) * max(1, int(resources.get("gpus_per_node", 1)))
    micro, steps = batch.get(_BATCH_KEYS[0]), batch.get(_BATCH_KEYS[1])
    if micro and steps and micro * steps * ranks != batch["effective"]:
        del batch[_BATCH_KEYS[1]]
    return batch


def format_job(
    draft: Draft,
    resources: Mapping[str, Any],
    setup: Mapping[str, Any],
    schema: str,
    name: str = "NAME",
) -> str:
    """Write the job file; ``schema`` is the path of the JSON Schema relative to it."""
    lines = [
        f"# yaml-language-server: $schema={schema}",
        format_comment(f"A first draft by `hpcrun init`; check it: hpcrun submit {name} --dry-run"),
        f"description: {format_flow(f'{draft.script}, trained with {draft.framework}')}",
    ]
    if draft.command:
        lines += [
            "# Runs once on each node; the script starts its own workers.",
            f"command: {format_flow(draft.command)}",
        ]
    elif draft.module:
        lines.append(f"module: {format_flow(draft.module)}")
    else:
        lines.append(f"script: {format_flow(draft.script)}")
    if draft.workdir:
        lines += [
            format_comment(f"The script reads {draft.read_there}, which exists from this folder."),
            f"workdir: {format_flow(draft.workdir)}",
        ]
    if draft.args:
        lines += ["# {placeholders} pass this file's values to your script.", "args:"]
        for option, placeholder in draft.args:
            lines += [f"  - {format_flow(option)}"]
            lines += [f'  - "{{{placeholder}}}"'] if placeholder else []
    if draft.required:
        lines.append("# Your script requires these options; add them, with their values, to args:")
        lines += [format_comment(f"  {word}") for word in draft.required]
    if not draft.command:
        lines.append(f"framework: {draft.framework}")
    if draft.launcher:
        lines.append(f"launcher: {draft.launcher}")
    lines.append(f"resources: {format_flow(resources)}")
    if draft.precision:
        lines.append(f"precision: {draft.precision}")
    if batch := _draft_batch(draft, resources):
        lines += [
            "# Effective batch = micro_batch_per_gpu x gradient_accumulation_steps x all GPUs.",
            f"batch: {format_flow(batch)}",
        ]
    if draft.resume:
        lines += [
            "# Additional arguments if there is a checkpoint to resume from.",
            f"checkpoint: {{resume: {format_flow(draft.resume)}}}",
        ]
    if draft.framework == "deepspeed":
        lines.append("deepspeed: {zero_stage: 2}")
    if draft.source_folder:
        lines += [
            f"# The run's copy of {draft.source_folder}/, where your package is.",
            f'env: {{PYTHONPATH: "{{code_dir}}/{draft.source_folder}"}}',
        ]
    if setup:
        lines.append(f"setup: {format_flow(setup)}")
    return "\n".join(lines) + "\n"
