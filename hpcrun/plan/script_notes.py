"""Compare a job with its script: values that do not reach it, shared folders, exposed secrets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcrun.plan.batch import BatchSizes
from hpcrun.plan.batch_options import Scope, batch_scope, options_for_all
from hpcrun.plan.deepspeed import BATCH_KEYS, FILLS_OPEN_VALUES, value_at
from hpcrun.plan.findings import Findings
from hpcrun.plan.launchers import LAUNCHERS, ON_ACCELERATE, decide_framework
from hpcrun.plan.script_facts import (
    BATCH_KEYWORDS,
    OPEN_PARSERS,
    STEPS_KEYWORDS,
    ScriptFacts,
)
from hpcrun.plan.script_parsers import ParserOption
from hpcrun.plan.variables import NOTHING, find_rule, suggest_variable
from hpcrun.secrets import contains_secret
from hpcrun.spec import JobSpec, set_variables

_MICRO = "micro_batch_per_gpu"
_STEPS = "gradient_accumulation_steps"
_PRECISION = "precision"
# For each factor: keyword arguments of calls, and the pattern of option names.
_BATCH_PATTERNS = {
    _MICRO: (BATCH_KEYWORDS, re.compile(r"batch|^-+bs$|^-+bsz$", re.IGNORECASE)),
    _STEPS: (STEPS_KEYWORDS, re.compile(r"accum", re.IGNORECASE)),
}
_OTHER_BATCH = ("eval", "valid", "test", "val_", "global", "total", "num_")
_OWN_PRECISION = re.compile(r"precision|^-+(?:bf16|fp16|amp)\b", re.IGNORECASE)
# Where the ranks meet: set by hpcrun, because the nodes have to agree on it.
_RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "NODE_RANK"})
_PYTHONPATH = re.compile(r"\bPYTHONPATH=(\S*)")
# An entry of a search path that starts at the working folder, the project.
_IN_PROJECT = re.compile(r"(?![/~${]|\.\.).|\$PWD|\$\{PWD\}|\$\(pwd\)|\{project_dir\}")


class ProjectScript(Struct, frozen=True):
    """A script and the modules of its project that it imports.

    Attributes:
        name: The script's name for messages.
        facts: Facts about the script alone.
        variables: HPCRUN_* variables that the script or a module names.
        checkpoint_loads: Calls and keywords in any of them that load a checkpoint.
        slurm_rank_variables: Slurm's variables for rank and world size that any of them names.
        is_single: None of them joins the processes of a job, as far as can be seen.
    """

    name: str
    facts: ScriptFacts
    variables: frozenset[str] = frozenset()
    checkpoint_loads: frozenset[str] = frozenset()
    slurm_rank_variables: frozenset[str] = frozenset()
    is_single: bool = False

    def reads(self, *keys: str) -> bool:
        """Return True if the script may read HPCRUN_KEY of a key; "HPCRUN_" alone matches all."""
        return not self.variables.isdisjoint(["HPCRUN_", *(f"HPCRUN_{k.upper()}" for k in keys)])


class TrainedValues(Struct, frozen=True, kw_only=True):
    """Values with which a program trains; None for unknown values.

    Attributes:
        is_precision_set: True if the job's precision reaches the program.
        precision: The script's own number format, used if the job's does not reach it.
    """

    is_precision_set: bool
    precision: str | None
    micro_batch_per_gpu: int | None
    gradient_accumulation_steps: int | None


def trained_values(
    spec: JobSpec,
    sizes: BatchSizes,
    script: ProjectScript | None,
    typed: Sequence[str],
    given: Sequence[str],
    config: Mapping[str, Any] | None,
) -> TrainedValues:
    """Return the job's values that reach the program, and the program's own values otherwise.

    The arguments are those of reached_values().
    """
    reached = reached_values(spec, sizes, script, typed, given, config)
    facts = script.facts if script is not None else ScriptFacts()
    pairs = _pair_arguments(given)
    planned = _batch_factors(sizes)
    found: dict[str, int | None] = {}
    for key in (_MICRO, _STEPS):
        own = set(_find_batch_numbers(key, facts, pairs))
        is_sole = len(own) == 1 and script is not None and script.facts.parser not in OPEN_PARSERS
        found[key] = planned[key] if key in reached else own.pop() if is_sole else None
    formats = {value for _, value in facts.precisions}
    is_sole = len(formats) == 1 and not any(_OWN_PRECISION.search(name) for name, _ in pairs)
    if "effective_batch" in reached:
        found = dict(planned)
    return TrainedValues(
        is_precision_set=_PRECISION in reached,
        precision=(formats.pop() or None) if is_sole else None,
        micro_batch_per_gpu=found[_MICRO],
        gradient_accumulation_steps=found[_STEPS],
    )


def reached_values(
    spec: JobSpec,
    sizes: BatchSizes,
    script: ProjectScript | None,
    typed: Sequence[str],
    given: Sequence[str],
    config: Mapping[str, Any] | None = None,
) -> set[str]:
    """Return which of precision, effective_batch and its two factors reach the program.

    A value reaches the program by a placeholder, an environment variable, the framework, the
    DeepSpeed JSON, or by being the same number as in the script. Static analysis may miss other
    ways.

    Args:
        script: None if it cannot be read.
        typed: The arguments of job and command line, with placeholders.
        given: The arguments with placeholders filled.
        config: The DeepSpeed JSON.
    """
    keys = {_PRECISION, _MICRO, _STEPS, "effective_batch"}
    if not (spec.script or spec.module) and spec.command is None:
        return keys  # the reference trainer
    passed = {
        key
        for key in keys
        if _has_placeholder(spec, typed, (key,)) or (script is not None and script.reads(key))
    }
    facts = script.facts if script is not None else ScriptFacts()
    framework = decide_framework(spec)
    has_json = spec.deepspeed is not None and passes_deepspeed_json(spec, script, typed)
    pairs = _pair_arguments(given)
    own = [*facts.precisions, *(name for name, _ in pairs if _OWN_PRECISION.search(name))]
    chosen, in_json = _set_by_job(spec), _set_by_json(spec, config)
    by_variable = framework in ON_ACCELERATE and _PRECISION in chosen and not own
    if by_variable or (has_json and _PRECISION in in_json):
        passed.add(_PRECISION)
    for key, value in _batch_factors(sizes).items():
        written = _find_batch_numbers(key, facts, pairs)
        # The Trainer fails if its arguments and the JSON disagree about the batch.
        is_set = has_json and key in in_json and (framework == "transformers" or not written)
        # Accelerator() reads ACCELERATE_GRADIENT_ACCUMULATION_STEPS.
        is_set = is_set or (key == _STEPS and key in chosen and framework == "accelerate")
        # A script that does not mention accumulation does not accumulate.
        is_set = is_set or (key == _STEPS and value == 1 and script is not None and not written)
        if (value in written and key in chosen) or is_set:
            passed.add(key)
    return passed | ({"effective_batch"} if {_MICRO, _STEPS} <= passed else set())


def _pair_arguments(given: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each argument with the next one, and split arguments of the form NAME=VALUE."""
    split = (word.partition("=") for word in given)
    return [*itertools.pairwise(given), *((name, value) for name, _, value in split)]


def _batch_factors(sizes: BatchSizes) -> dict[str, int]:
    return {_MICRO: sizes.micro_batch_per_gpu, _STEPS: sizes.gradient_accumulation_steps}


def _set_by_job(spec: JobSpec) -> set[str]:
    """Return which of precision and the batch factors the job sets."""
    chosen = {
        _PRECISION: spec.precision is not None,
        _MICRO: spec.batch.sets_micro_batch,
        _STEPS: spec.batch.sets_accumulation,
    }
    return {key for key, is_set in chosen.items() if is_set}


def _set_by_json(spec: JobSpec, config: Mapping[str, Any] | None) -> set[str]:
    """Return which of these values DeepSpeed's JSON sets without leaving them to the framework."""
    if decide_framework(spec) not in FILLS_OPEN_VALUES:
        return {_PRECISION, _MICRO, _STEPS}
    found = _set_by_job(spec)
    if config is None:
        return found
    by_name = dict(zip(BATCH_KEYS, ("effective_batch", _MICRO, _STEPS), strict=True))
    found |= {name for key, name in by_name.items() if isinstance(config.get(key), int)}
    formats = [value_at(config, f"{name}.enabled") for name in ("bf16", "fp16")]
    if any(isinstance(one, bool) for one in formats) and "auto" not in formats:
        found.add(_PRECISION)
    return found


def _find_batch_numbers(
    key: str, facts: ScriptFacts, pairs: Sequence[tuple[str, str]]
) -> list[int]:
    """List the numbers that arguments, option defaults and calls set for a batch factor."""
    keywords, pattern = _BATCH_PATTERNS[key]
    of_all = options_for_all(facts.options, [facts])
    given = {
        name: int(text)
        for name, text in pairs
        if text.isdecimal() and _matches_setting(pattern, name) and name not in of_all
    }
    defaults = [
        option.number
        for option in facts.options
        if option.number is not None and not given.keys() & set(option.names)
        if any(_matches_setting(pattern, name) for name in option.names)
        and not of_all & set(option.names)
    ]
    return [
        *given.values(),
        *defaults,
        *(number for name, number in facts.numbers if name in keywords),
    ]


def _matches_setting(
    pattern: re.Pattern[str], name: str, others: Sequence[str] = _OTHER_BATCH
) -> bool:
    return bool(pattern.search(name)) and not any(word in name for word in others)


def passes_deepspeed_json(
    spec: JobSpec, script: ProjectScript | None, typed: Sequence[str]
) -> bool:
    """Return True if the DeepSpeed JSON reaches the program; frameworks find it by a variable."""
    return (
        decide_framework(spec) in ON_ACCELERATE
        or _has_placeholder(spec, typed, ("deepspeed_config",))
        or (script is not None and script.reads("deepspeed_config"))
    )


def deepspeed_notes(
    spec: JobSpec, script: ProjectScript, typed: Sequence[str], effective: int
) -> list[str]:
    """Note that the DeepSpeed JSON does not seem to reach the script.

    ``typed`` are the arguments of job and command line, with placeholders.
    """
    is_read = passes_deepspeed_json(spec, script, typed)
    framework = decide_framework(spec)
    if is_read and spec.deepspeed is not None and framework == "deepspeed":
        return _deepspeed_switch_notes(script, typed)
    if is_read or spec.deepspeed is None or framework not in ("deepspeed", "lightning"):
        return []
    names = [name for option in script.facts.options for name in option.names]
    options = [name for name in names if "deepspeed" in name]
    option = next((name for name in options if "config" in name), "--deepspeed_config")
    fix = f'args: [{option}, "{{deepspeed_config}}"], or read HPCRUN_DEEPSPEED_CONFIG'
    if framework == "lightning":
        fix = "DeepSpeedStrategy(config=os.environ['HPCRUN_DEEPSPEED_CONFIG'])"
    return [
        f"deepspeed: found no argument that passes hpcrun's JSON to {script.name}: "
        f"without it, neither its settings nor the effective batch {effective} apply to the "
        f"training; {fix}"
    ]


def _deepspeed_switch_notes(script: ProjectScript, typed: Sequence[str]) -> list[str]:
    """Note that the script's own switch --deepspeed is missing beside the configuration."""
    switches = [option for option in script.facts.options if "--deepspeed" in option.names]
    is_own = any(option.nargs == 0 and len(option.names) == 1 for option in switches)
    if not is_own or "--deepspeed" in typed:
        return []
    return [
        f"deepspeed: {script.name} has the switch --deepspeed, and args lack it: without it the "
        "script may train without DeepSpeed; args: [--deepspeed, ...]"
    ]


def ray_notes(script: ProjectScript, launcher: str, ranks_per_node: int) -> list[str]:
    """Note that a launcher starts a script that starts Ray's workers itself.

    >>> script = ProjectScript("a.py", ScriptFacts(is_ray_driver=True))
    >>> len(ray_notes(script, "torchrun", 4)), ray_notes(script, "torchrun", 1)
    (1, [])
    """
    if not script.facts.is_ray_driver or ranks_per_node < 2 or launcher == "ray":
        return []
    return [
        f"launcher: {launcher} starts {script.name} {ranks_per_node} times on each node, and each "
        "of them would start Ray's workers: launcher: ray runs it once, on Ray's nodes in the job"
    ]


def single_process_notes(script: ProjectScript, framework: str, world_size: int) -> list[str]:
    """Note that a script for one GPU is started once per GPU.

    >>> script = ProjectScript("a.py", ScriptFacts(), is_single=True)
    >>> len(single_process_notes(script, "torch", 4)), single_process_notes(script, "torch", 1)
    (1, [])
    """
    if not script.is_single or framework != "torch" or world_size < 2:
        return []
    return [
        f"resources: {script.name} joins no processes as far as can be seen: {world_size} copies "
        "of it would train apart, and the run would stop; --gpus-per-node 1, or use "
        "DistributedDataParallel"
    ]


def slurm_rank_notes(script: ProjectScript, launcher: str, ranks_per_node: int) -> list[str]:
    """Note that a script reads its rank from Slurm although a launcher starts the node's ranks.

    >>> variables = frozenset({"SLURM_PROCID"})
    >>> script = ProjectScript("a.py", ScriptFacts(), slurm_rank_variables=variables)
    >>> len(slurm_rank_notes(script, "torchrun", 4)), slurm_rank_notes(script, "srun", 4)
    (1, [])
    """
    named = sorted(script.slurm_rank_variables & {"SLURM_PROCID", "SLURM_NTASKS"})
    if not named or ranks_per_node < 2 or LAUNCHERS[launcher].task != "launcher":
        return []
    return [
        f"launcher: {launcher}, but {script.name}, or a module that it imports, reads {named[0]}, "
        f"which is the same in all {ranks_per_node} ranks of a node: if it uses this as its "
        "rank, the ranks do not train together; set launcher: srun"
    ]


def assigned_variable_notes(
    script: ProjectScript, env: Mapping[str, str], fabric: str, nodes: int
) -> list[str]:
    """Return notes on environment variables that the script sets, as on those of the job.

    Args:
        script: The script, whose own lines are read, without the modules that it imports.
        env: Variables of the job and its profile.
        fabric: The network of the job.
        nodes: The number of nodes.

    >>> facts = ScriptFacts(assigned_variables=[(3, "NCCL_P2P_DISABLE", "1", False)])
    >>> script = ProjectScript("a.py", facts)
    >>> print(*assigned_variable_notes(script, {}, "auto", 2))  # doctest: +ELLIPSIS
    a.py:3: it sets NCCL_P2P_DISABLE=1: it turns off NVLink, or shared memory: ...
    """
    notes = []
    for line, name, value, is_default in script.facts.assigned_variables:
        if is_default and name in env:
            continue
        where = f"{script.name}:{line}: it sets {name}={value}"
        rule, meant = find_rule(name, value, fabric), suggest_variable(name)
        if rule is not None:
            notes.append(f"{where}: {rule.message.replace('NAME', name)}")
        elif meant:
            notes.append(f"{where}: {NOTHING}; did you mean {meant}?")
        elif name in _RENDEZVOUS and not is_default and nodes > 1:
            notes.append(
                f"{where}: hpcrun sets it for all {nodes} nodes, and this replaces it: use "
                f"os.environ.setdefault({name!r}, ...)"
            )
        elif name in env and env[name] != value and not is_default:
            notes.append(f"{where}, and the job {name}={env[name]}: the script's value is used")
    return list(dict.fromkeys(notes))


def check_own_deepspeed(
    spec: JobSpec, script: ProjectScript, typed: Sequence[str], found: Findings
) -> None:
    """Refuse a DeepSpeed configuration in the script that replaces the job's section.

    The Trainer and Accelerate read the job's configuration from the environment only if the script
    passes none. A configuration that static analysis cannot read is a note.
    """
    framework = decide_framework(spec)
    if spec.deepspeed is None or framework not in ON_ACCELERATE:
        return
    if script.reads("deepspeed_config") or _has_placeholder(spec, typed, ("deepspeed_config",)):
        return
    keyword = "deepspeed" if framework == "transformers" else "hf_ds_config"
    own = [value for name, value in script.facts.deepspeed_configs if name == keyword]
    where = f"{script.name} passes {keyword}="
    if framework == "transformers":
        words = [value for name, value in _pair_arguments(typed) if name == "--deepspeed"]
        own, where = (words, "args: --deepspeed ") if words else (own, where)
    known = next(filter(None, own), "")
    if known:
        fix = "remove it"
        fix += "" if known == "{...}" else f", or set deepspeed: {{config_file: {known}}} and "
        fix += "" if known == "{...}" else "no other key, and remove it"
        found.refuse(
            "deepspeed",
            f"{where}{known} replaces the job's ZeRO stage, offload, batch and precision: {fix}",
        )
    elif own:
        found.notes.append(
            f"deepspeed: {where}..., which replaces the job's section where it has a value; "
            "os.environ['HPCRUN_DEEPSPEED_CONFIG'] is the job's"
        )


def difference_notes(
    spec: JobSpec,
    sizes: BatchSizes,
    script: ProjectScript,
    typed: Sequence[str],
    given: Sequence[str],
    config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Note conflicting values in job and script, and which value is effective.

    The arguments are those of reached_values().
    """
    notes = []
    framework, chosen = decide_framework(spec), _set_by_job(spec)
    reached = reached_values(spec, sizes, script, typed, given, config)
    own = {value for _, value in script.facts.precisions if value}
    if _PRECISION in chosen and len(own) == 1 and own != {spec.precision}:
        name = next(name for name, value in script.facts.precisions if value)
        counts = "the script's value applies"
        if _has_placeholder(spec, typed, ("precision",)) or script.reads("precision"):
            counts = "an argument or HPCRUN_PRECISION also passes the job's: keep only one"
        notes.append(
            f"precision: {spec.precision}, but {script.name} sets {name} for {own.pop()}: {counts}"
        )
    written = [number for name, number in script.facts.numbers if name in STEPS_KEYWORDS]
    steps = sizes.gradient_accumulation_steps
    if framework == "accelerate" and _STEPS in chosen & reached and {*written} - {steps}:
        notes.append(
            f"batch.gradient_accumulation_steps: {steps} replaces the {written[0]} that "
            f"{script.name} sets"
        )
    return notes


# The job's keys for the placeholders that one argument may replace.
_KEY_OF_PLACEHOLDER = {
    _MICRO: "batch.micro_batch_per_gpu",
    _STEPS: "batch.gradient_accumulation_steps",
    "effective_batch": "batch.effective",
    _PRECISION: "precision",
}
_OUTPUT_PLACEHOLDERS = {"checkpoint_dir", "run_dir", "resume"}


def check_repeated_arguments(
    script: ProjectScript | None, typed: Sequence[str], found: Findings
) -> None:
    """Refuse an argument that replaces an earlier one which passes a value of the job.

    Parsers use the last of several values, so the job would show a value that does not train. For
    a folder, it is a note.

    Args:
        typed: The arguments of job and command line, with placeholders.

    >>> words = ["--bs", "{micro_batch_per_gpu}", "--bs", "4"]
    >>> check_repeated_arguments(None, words, found := Findings())
    >>> print(found.problems[0])
    args: --bs is "{micro_batch_per_gpu}" and later 4, which replaces it: remove the later one and \
set batch.micro_batch_per_gpu: 4
    """
    options = script.facts.options if script is not None else []
    first: dict[str, tuple[str, str]] = {}  # placeholder and value by option
    for name, value in _values_in_order(typed):
        option = next((one for one in options if name in one.names), None)
        key = option.names[-1] if option is not None else name
        if option is not None and option.repeats:
            continue
        if match := re.fullmatch(r"\{(\w+)\}", value):
            first.setdefault(key, (match[1], value))
        if key not in first or value == first[key][1]:
            continue
        placeholder, before = first[key]
        # An option that is not known may accept several values, such as "--set a=1 --set b=2".
        if option is None and not (placeholder in _KEY_OF_PLACEHOLDER and value.isdecimal()):
            continue
        where = f'{name} is "{before}" and later {value}, which replaces it'
        if placeholder in _OUTPUT_PLACEHOLDERS:
            found.notes.append(f"args: {where}: hpcrun does not find checkpoints in another folder")
            continue
        fix = "remove one of them"
        if placeholder in _KEY_OF_PLACEHOLDER:
            fix = f"remove the later one and set {_KEY_OF_PLACEHOLDER[placeholder]}: {value}"
        found.refuse("args", f"{where}: {fix}")


def _values_in_order(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield names and values of options, and of arguments of the form NAME=VALUE, in order."""
    for word, after in itertools.zip_longest(words, words[1:], fillvalue="-"):
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
        elif word.startswith("-") and not after.startswith("-"):
            yield word, after


def scope_notes(script: ProjectScript, typed: Sequence[str]) -> list[str]:
    """Note a placeholder for one GPU's batch in an option for all GPUs, or the reverse.

    ``typed`` are the arguments with placeholders.
    """
    meant: Mapping[Scope, str] = {"gpu": _MICRO, "all": "effective_batch"}
    notes = []
    for name, value in _pair_arguments(typed):
        option = next((one for one in script.facts.options if name in one.names), None)
        if option is None or not _matches_setting(
            _BATCH_PATTERNS[_MICRO][1], name, others=("eval", "valid", "val_")
        ):
            continue
        scope = batch_scope(option, [script.facts])
        wrong = {f"{{{word}}}" for of, word in meant.items() if of != scope}
        if scope in meant and value in wrong:
            counts = "one GPU's samples" if scope == "gpu" else "the samples of all GPUs"
            notes.append(
                f"args: {name} counts {counts}, by its name or help, or by what {script.name} "
                f'does with it, but is set to "{value}"; args: [{name}, "{{{meant[scope]}}}"]'
            )
    return notes


def batch_notes(
    spec: JobSpec,
    sizes: BatchSizes,
    script: ProjectScript,
    typed: Sequence[str],
    given: Sequence[str],
    config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Note that the job's batch does not seem to reach the script.

    The arguments are those of reached_values().
    """
    reached = reached_values(spec, sizes, script, typed, given, config)
    chosen = _set_by_job(spec)
    if spec.deepspeed is not None or "effective_batch" in reached:
        return []
    facts = script.facts
    lost: dict[str, str | None] = {}  # the script's option for each value that does not reach it
    others = ""
    for key, value in _batch_factors(sizes).items():
        keywords, pattern = _BATCH_PATTERNS[key]
        is_one = value == 1 and not _find_batch_numbers(key, facts, _pair_arguments(given))
        if key in chosen and key not in reached and not is_one:
            lost[key] = _find_option(pattern, facts.options)
            written = [(name, number) for name, number in facts.numbers if name in keywords]
            others += "".join(f"sets {name}={n}, not {value}, and " for name, n in written)
    if not lost:
        return []
    fix = "let it read " + " and ".join(f"HPCRUN_{key.upper()}" for key in lost)
    if all(lost.values()):
        words = ", ".join(f'{option}, "{{{key}}}"' for key, option in lost.items())
        fix = f"args: [{words}]"
    what = " and ".join(f"batch.{key}" for key in lost)
    return [
        f"{what}: found no argument that passes it to {script.name}, which {others}"
        "does not read a HPCRUN_* variable: it may train with another effective batch than "
        f"{sizes.effective}; {fix}"
    ]


def _has_placeholder(spec: JobSpec, typed: Sequence[str], placeholders: Collection[str]) -> bool:
    texts = [*typed, *set_variables(spec.env).values()]
    return any(f"{{{name}}}" in text for text in texts for name in placeholders)


def _find_option(pattern: re.Pattern[str], options: Sequence[ParserOption]) -> str | None:
    """Return the script's option for a value, preferring the shortest name."""
    names = [option.names[-1] for option in options if option.names]
    return min((name for name in names if _matches_setting(pattern, name)), key=len, default=None)


def uncopied_read_notes(script: ProjectScript, copied: Collection[str]) -> list[str]:
    """Note lines that read code from the working folder instead of the run's copy.

    ``copied`` are the paths in the script that the copy contains.
    """
    notes = []
    for line, text in script.facts.uncopied_reads:
        if text.startswith("sys.path"):
            notes.append(
                f"{script.name}:{line}: {text} imports the project's current files when "
                "the job runs, not the run's copy; remove it (the copy is on the path), or use "
                "os.environ['HPCRUN_CODE_DIR']"
            )
        elif text in copied:
            notes.append(
                f"{script.name}:{line}: {text} is read from the project when the job "
                "runs, not from the run's copy; for the copy use Path(__file__).parent or "
                "HPCRUN_CODE_DIR"
            )
    return notes


def path_notes(
    env: Mapping[str, str], commands: Sequence[str], editable: Sequence[str]
) -> list[str]:
    """Note search paths and ``editable`` installs that import the project instead of its copy.

    >>> print(path_notes({"PYTHONPATH": "src:/opt/lib"}, [], [])[0][:56])
    env.PYTHONPATH: src: imports the project's current files
    >>> path_notes({"PYTHONPATH": "{code_dir}/src"}, ["export PYTHONPATH=/opt/lib"], [])
    []
    """
    paths = [("env.PYTHONPATH", env.get("PYTHONPATH", ""))]
    paths += [("setup.commands", path) for line in commands for path in _PYTHONPATH.findall(line)]
    found = [(key, entry) for key, path in paths for entry in path.strip("'\"").split(":")]
    found = [(key, entry) for key, entry in found if _IN_PROJECT.match(entry)]
    own = env.get("PYTHONPATH", "")
    found += [("an editable install", x) for x in editable if f"{{code_dir}}/{x}" not in own]
    notes = []
    for key, entry in found:
        inside = re.sub(r"^(\$PWD|\$\{PWD\}|\$\(pwd\)|\{project_dir\}|\.)(/|$)", "", entry)
        both = f"{{code_dir}}:{{code_dir}}/{inside}" if inside else "{code_dir}"
        notes.append(
            f"{key}: {entry}: imports the project's current files when the job runs, not "
            f'the run\'s copy; env: {{PYTHONPATH: "{both}"}} selects those of the copy'
        )
    return notes


# ---- Folders that the runs of a sweep share ----------------------------------------------------


# Common names of options for output folders.
_OUTPUT_OPTION = re.compile(
    r"-+(?:\w+[-_])?(?P<kind>checkpoints?|ckpts?|save|output|out|results?)[-_]?"
    r"(?:dir|path|folder|directory|root)|-+(?:output|out|save)",
    re.IGNORECASE,
)
_CHECKPOINT_OPTION = re.compile(r"checkpoint|ckpt", re.IGNORECASE)
# Options for input folders, which may deliberately belong to another run.
_INPUT_OPTION = re.compile(
    r"resume|load|init|pretrain|from|restore|teacher|base|read|source|cache", re.I
)
# Options that may give each run its own subfolder.
_NAME_OPTION = re.compile(r"name|id$|tag|suffix|prefix|exp|run|title|version|group", re.IGNORECASE)
# Values that name no shared folder: numbers, variables, nothing.
_NO_FOLDER = re.compile(r"[-+0-9.e]*|.*\$.*|none|null|true|false|/dev/.*", re.IGNORECASE)


def shared_folder_notes(script: ProjectScript, given: Sequence[Sequence[str]]) -> list[str]:
    """Note an output folder that all runs of a sweep share.

    ``given`` are the arguments of each run. Runs with a name option of their own need no note.

    >>> option = ParserOption(["--checkpoint-dir"], default="checkpoints")
    >>> facts = ScriptFacts(options=[option])
    >>> given = [["--lr", "1e-3"], ["--lr", "1e-2"]]
    >>> len(shared_folder_notes(ProjectScript("train.py", facts), given))
    1
    """
    options = [option for option in script.facts.options if option.names]
    values = [{_find_value(args, option) for args in given} for option in options]
    are_named = any(
        len(found) > 1 and any(map(_NAME_OPTION.search, option.names))
        for option, found in zip(options, values, strict=True)
    )
    if len(given) < 2 or are_named or script.reads("checkpoint_dir", "run_dir"):
        return []
    notes = []
    for option, (value, *others) in zip(options, values, strict=True):
        name = option.names[-1]
        if not _OUTPUT_OPTION.fullmatch(name) or _INPUT_OPTION.search(name):
            continue
        if others or _NO_FOLDER.fullmatch(value):
            continue
        of_checkpoints = _CHECKPOINT_OPTION.search(name) is not None
        own = "{checkpoint_dir}" if of_checkpoints else "{run_dir}/out"
        harm = "resume from each other's" if of_checkpoints else "overwrite each other's"
        notes.append(
            f"sweep: all {len(given)} runs give {script.name} the folder {value} for {name}: they "
            f'would share it, and may {harm}; args: [{name}, "{own}"]'
        )
    return notes


def _find_value(args: Sequence[str], option: ParserOption) -> str:
    """Return the last value of an option in the arguments, or its default."""
    found = option.default
    for place, word in enumerate(args):
        name, equals, text = word.partition("=")
        if name in option.names:
            found = text if equals else " ".join(args[place + 1 : place + 2])
    return found


# ---- Node names in a sandbox -------------------------------------------------------------------

_HOSTNAME_QUERY = re.compile(
    r"^(?!.*(?:MASTER_ADDR:?-|setdefault)).*scontrol\W+show\W+hostname", re.M
)


def node_name_notes(texts: Mapping[str, str]) -> list[str]:
    """Note texts, given by name, that use a sandbox node's name as rank 0's address.

    >>> [len(node_name_notes({"run.sh": f"MASTER_ADDR={text}"})) for text in (
    ...     '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)',
    ...     '${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)}')]
    [1, 0]
    """
    return [
        f"{name}: the names of a sandbox's nodes, as printed by scontrol show hostnames, do not "
        "resolve; hpcrun sets MASTER_ADDR and MASTER_PORT, and MASTER_ADDR=${MASTER_ADDR:-"
        "$(scontrol ...)} works here and on a cluster"
        for name, text in texts.items()
        if _HOSTNAME_QUERY.search(text) and not re.search(r"hostname\s+(-[iI]|--(all-)?ip)", text)
    ]


# ---- Values that look like secrets and would be written to the run's files ----------------------

# Variable assignments in a setup command.
_ASSIGNMENT = re.compile(r"\b([A-Z][A-Z0-9_]*)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))")
_IN_FILES = "is written to the run's files unmasked"


def looks_secret(name: str, value: str) -> bool:
    """Return True if a variable's name and value look like a secret.

    >>> looks_secret("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    True
    >>> looks_secret("TOKENIZERS_PARALLELISM", "false"), looks_secret("HF_TOKEN", "/run/token")
    (False, False)
    """
    # The first word of a sentence, as in WANDB_NOTES, is not the whole value.
    is_sentence = re.search(r"\s", value) is not None
    return contains_secret(value if is_sentence else f"{name}={value}")


def secret_notes(
    env: Mapping[str, str], args: Sequence[str], commands: Sequence[str], profile: Mapping[str, str]
) -> list[str]:
    """Note the names, never the values, of secrets in a job's settings or in the profile."""
    notes = [
        _format_secret_note(f"env.{name}", name)
        for name, value in env.items()
        if looks_secret(name, value)
    ]
    notes += [
        _format_secret_note(f"the profile's env.{name}", name)
        for name, value in profile.items()
        if name not in env and looks_secret(name, value)
    ]
    for line in commands:
        pairs = [(m[1], m[2] or m[3] or m[4] or "") for m in _ASSIGNMENT.finditer(line)]
        names = [name for name, value in pairs if looks_secret(name, value)]
        notes += [_format_secret_note("setup.commands", name) for name in names]
        if not names and contains_secret(line):
            notes.append(
                f"setup.commands: one appears to contain a secret, and {_IN_FILES}: let it read a "
                "variable that secrets: names"
            )
    if contains_secret(" ".join(args)):
        notes.append(
            "args: one appears to be a secret; all users of the node can read it in the list of "
            "processes, and it is written to the run's files: let the script read a variable that "
            "secrets: names"
        )
    return notes


def _format_secret_note(where: str, name: str) -> str:
    return (
        f"{where}: appears to be a secret, and {_IN_FILES}; "
        f"secrets: [{name}] passes it from your shell without recording it"
    )
