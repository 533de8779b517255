"""Differences of frameworks between CPUs and GPUs, found before the job is queued."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from hpcrun.errors import SpecError
from hpcrun.plan.findings import Findings
from hpcrun.plan.launchers import ON_ACCELERATE, decide_framework
from hpcrun.plan.script_facts import ScriptFacts
from hpcrun.spec import JobSpec, parse_document

_NOTHING = ("", "none", "null", "false")


def find_deepspeed_argument(words: Sequence[str]) -> str:
    """Return the arguments that request DeepSpeed from the Trainer or accelerate; "" for none.

    >>> find_deepspeed_argument(["--lr", "1e-4", "--deepspeed", "ds.json"])
    '--deepspeed ds.json'
    >>> find_deepspeed_argument(["--deepspeed", "--lr", "1"])  # a switch of the script's
    ''
    """
    for word, following in zip_longest(words, words[1:], fillvalue="--"):
        name, equals, value = word.partition("=")
        bare = name.lstrip("-+").rpartition(".")[2].replace("-", "_")
        if bare == "use_deepspeed" and value.lower() not in _NOTHING[1:]:
            return word
        value = value if equals else following if name.startswith("--") else ""
        if bare == "deepspeed" and not value.startswith("-") and value.lower() not in _NOTHING:
            return f"{name}{equals or ' '}{value}"
    return ""


def configures_deepspeed(text: str) -> bool:
    """Return True if a file of arguments, or Accelerate's YAML, requests DeepSpeed.

    >>> configures_deepspeed("deepspeed: null")
    False
    >>> configures_deepspeed('{"distributed_type": "DEEPSPEED"}')
    True
    """
    try:
        keys = parse_document(text, "", []).entries
    except SpecError:
        return False
    kind, own = keys.get("distributed_type"), keys.get("deepspeed")
    is_asked = own is not None and (bool(own.entries) or own.text.lower() not in _NOTHING)
    return is_asked or (kind is not None and kind.text.upper() == "DEEPSPEED")


def _is_on(switch: str, words: Sequence[str]) -> bool:
    """Return True if a switch is given, and not as ``--fp16 False``."""
    pairs = [*zip_longest(words, words[1:], fillvalue=""), *(w.partition("=")[::2] for w in words)]
    values = [value.lower() for name, value in pairs if name == switch]
    return bool(values) and not {"false", "no", "0"} & set(values)


def check_on_cpus(
    spec: JobSpec,
    facts: ScriptFacts,
    words: Sequence[str],
    *,
    elsewhere: str,
    precision: str,
    world_size: int,
) -> Findings:
    """Find settings that fail on CPUs or change the training there.

    ``words`` are the program's arguments; ``elsewhere`` is what requests DeepSpeed besides the
    job's section. Without GPUs, Accelerate 1.15 chooses no backend (state.py, _prepare_backend):
    with DeepSpeed, each rank then treats itself as the only one. With ``use_cpu`` it chooses gloo
    and silently disables DeepSpeed.
    """
    found, framework = Findings(), decide_framework(spec)
    modules = {name.partition(".")[0] for name in facts.imports}
    makes = any(name.endswith("Trainer") for name in facts.trainers) and "transformers" in modules
    trainer = framework == "transformers" or (makes and framework != "accelerate")
    with_deepspeed = spec.deepspeed is not None or elsewhere != ""
    names = {word.partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    names |= {f"__{name}" for name in facts.own_settings}
    if precision == "fp16" and with_deepspeed:
        message = "fp16: DeepSpeed refuses it on a CPU (one without fp16 units); set bf16, or fp32"
        found.refuse("precision", f"{message}, where the job has no GPUs")
    elif framework in ON_ACCELERATE and (precision == "fp16" or _is_on("--fp16", words)):
        what = "precision: fp16" if precision == "fp16" else "args: --fp16"
        found.notes.append(f"{what}: without GPUs Accelerate silently trains in fp32")
    if framework == "lightning" and facts.auto_devices and world_size > 1:
        found.notes.append(
            "on CPUs devices='auto', Lightning's default, is one process on each node: for the "
            'ranks of the job, the script needs devices=int(os.environ["HPCRUN_RANKS_PER_NODE"])'
        )
    if not with_deepspeed or not (spec.script or spec.module or spec.command):
        return found
    if trainer and "__use_cpu" in names:
        message = "use_cpu: with it the Trainer silently disables DeepSpeed"
        found.refuse("args", f"{message}; leave it out: it finds no GPU here anyway")
    if world_size == 1:
        return found
    if trainer and elsewhere:
        instead = "the job's deepspeed section reaches it without"
        if spec.deepspeed is None:
            instead = "set deepspeed.config_file instead"
        instead += " and precision: fp32" if precision not in ("", "fp32") else ""
        message = "with it, and without GPUs, the Trainer treats each rank as the only one"
        found.refuse("args", f"{elsewhere}: {message}; {instead}, and give --ddp_backend gloo")
    elif trainer:
        if precision not in ("", "fp32") or "__ddp_backend" not in names or "__deepspeed" in names:
            found.notes.append(
                "without GPUs the Trainer fails at DeepSpeed's batch size, unless the script "
                'passes TrainingArguments(ddp_backend="gloo") without deepspeed=, which the '
                "environment sets, and the job has precision: fp32"
            )
    elif framework == "accelerate" or "Accelerator" in facts.trainers:
        chooses = any(name.endswith(".InitProcessGroupKwargs") for name in facts.imports)
        if not (chooses or "HPCRUN_BACKEND" in facts.variables):
            found.notes.append(
                "without GPUs Accelerate gives every rank all of the data with DeepSpeed, unless "
                "the script says "
                'Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])'
            )
    return found
