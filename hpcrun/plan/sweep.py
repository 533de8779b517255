"""Expand a sweep into runs: a job per combination of values, and their array."""

from __future__ import annotations

import itertools
import math
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct, structs

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.plan.job import TRIAL, fill_known_placeholders, fill_trial
from hpcrun.plan.types import Plan, column_names
from hpcrun.slurm import quote_pattern
from hpcrun.spec import (
    RANKING,
    SOURCE,
    Env,
    JobSpec,
    Node,
    Search,
    dump_job,
    format_flow,
    load_job,
    parse_plain_value,
)

# Each run has a directory with a dozen files. Slurm's own limit, MaxArraySize, is 1001 by default.
MAX_RUNS = 10_000

# Keys that apply to the whole array, or that define the sweep itself.
_SHARED_KEYS = {
    "group": "the runs of a sweep are in one group",
    "snapshot": "the runs of a sweep share one copy of the code",
    "environment": "the runs of a sweep are submitted from one environment",
    "secrets": "the runs of a sweep have the same secrets",
    "name": "the runs of a sweep are named after it",
    "sweep": "a sweep cannot change itself",
    "sweep_combinations": "a sweep cannot change itself",
    "sweep_exclude": "a sweep cannot change itself",
    "sweep_part": "a sweep cannot change itself",
    "sweep_limit": "a sweep cannot change itself",
    "sweep_per_node": "a sweep cannot change itself",
}
# Slurm applies these to a whole array, so runs with different values are separate arrays.
_ARRAY_SECTIONS = ("resources", "slurm")
_TOKEN = re.compile(r"\{\{|\}\}|\{(\w+)\}")
# Directives that differ per run: its name and its output file.
_RUN_DIRECTIVES = ("job-name", "output")


class SweepRun(Struct, frozen=True, kw_only=True):
    """One combination of a sweep's values, and its job, which contains no sweep.

    Attributes:
        checkpoint_dir: The checkpoint directory of another run, from which this run resumes.
        trial: The parameters whose values are drawn when the run starts, with an example of each.
        earlier: The directory of the run that is resubmitted, on the cluster.
        is_drawn: ``trial`` has the values, which the job of the earlier run has drawn.
    """

    index: int
    values: dict[str, str]
    spec: JobSpec
    extra_args: list[str]
    checkpoint_dir: str | None = None
    trial: dict[str, str] = {}
    earlier: str = ""
    is_drawn: bool = False


def build_runs(spec: JobSpec, extra_args: Sequence[str] = ()) -> list[SweepRun]:
    """Build a job for every combination, the last key's values varying fastest.

    A name such as ``lr`` becomes the placeholder ``{lr}``; a key of the job, such as ``precision``
    or ``deepspeed.zero_stage``, is set in each run. ``extra_args`` are the arguments after ``--``
    on the command line. Raises SpecError with all problems, or InputError.

    >>> sweep = {"lr": ["1e-4", "3e-4"], "batch.micro_batch_per_gpu": ["8"]}
    >>> job = JobSpec(args=["--lr={lr}"], sweep=sweep)
    >>> [(run.spec.args, run.spec.batch.micro_batch_per_gpu) for run in build_runs(job)]
    [(['--lr=1e-4'], 8), (['--lr=3e-4'], 8)]
    """
    problems = _check_keys(spec, extra_args)
    problems += [
        Problem(
            _path_of(spec, key),
            "the runs of a Slurm array share its resources and options; hpcrun submit makes an "
            "array for each value",
        )
        for key in spec.sweep_keys
        if _is_array_key(key)
    ]
    if problems:
        raise SpecError(problems)
    _check_checkpoint_dirs(spec)
    plain = _without_sweep(spec)
    if spec.search.method == "tpe":
        return _build_trials(spec, plain, extra_args)
    known: dict[tuple[tuple[str, str], ...], JobSpec] = {}
    runs = []
    for index, values in enumerate(_select_combinations(spec)):
        keys = tuple((key, value) for key, value in values.items() if _is_job_key(key))
        if keys not in known:
            known[keys] = _set_keys(plain, dict(keys), problems)
        names = {key: value for key, value in values.items() if not _is_job_key(key)}
        filled = _change_texts(known[keys], _build_filler(names))
        filled = structs.replace(filled, name=f"{spec.name or 'job'}.{index}")
        args = [fill_known_placeholders(arg, names) for arg in extra_args]
        runs.append(SweepRun(index=index, values=values, spec=filled, extra_args=args))
    if problems:
        raise SpecError(list({str(problem): problem for problem in problems}.values()))
    return runs


def _build_trials(spec: JobSpec, plain: JobSpec, extra_args: Sequence[str]) -> list[SweepRun]:
    """Build a job for each trial, whose values its job draws when it starts."""
    search = spec.search
    references = {key: TRIAL % key for key in search.space}
    filled = _change_texts(plain, _build_filler(references))
    args = [fill_known_placeholders(arg, references) for arg in extra_args]
    return [
        SweepRun(
            index=index,
            values={},
            spec=structs.replace(filled, name=f"{spec.name or 'job'}.{index}"),
            extra_args=args,
            trial=search.draw(index),
        )
        for index in range(search.trials or 0)
    ]


def fill_drawn_values(spec: JobSpec, values: Mapping[str, str]) -> JobSpec:
    """Fill in the values that the job of a trial has drawn.

    >>> spec = JobSpec(args=["--lr", "${HPCRUN_TRIAL_lr}"])
    >>> fill_drawn_values(spec, {"lr": "0.001"}).args
    ['--lr', '0.001']
    """
    return _change_texts(spec, lambda text: fill_trial(text, values))


def split_sweep(spec: JobSpec, extra_args: Sequence[str] = ()) -> list[JobSpec]:
    """Split a sweep over resources or options of Slurm into jobs that are one array or run each.

    A job without such keys is returned unchanged. Raises SpecError, InputError.

    >>> job = JobSpec(name="train", sweep={"resources.nodes": ["1", "2"]})
    >>> [(part.name, part.resources.nodes) for part in split_sweep(job)]
    [('train-nodes-1', 1), ('train-nodes-2', 2)]
    """
    shared = [key for key in spec.sweep_keys if _is_array_key(key)]
    if not shared:
        return [spec]
    problems = _check_keys(spec, extra_args)
    if problems:
        raise SpecError(problems)
    _check_checkpoint_dirs(spec)
    parts: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for values in _select_combinations(spec):
        rest = {key: value for key, value in values.items() if key not in shared}
        parts.setdefault(tuple(values[key] for key in shared), []).append(rest)
    names = column_names(shared)
    # Each part ranks and prunes its own runs.
    ranking = {key: value for key, value in spec.sweep.items() if key in RANKING}
    made = []
    for chosen, rests in parts.items():
        plain = _set_keys(_without_sweep(spec), dict(zip(shared, chosen, strict=True)), problems)
        label = "-".join(f"{name}-{value}" for name, value in zip(names, chosen, strict=True))
        made.append(
            structs.replace(
                plain,
                name=f"{spec.name or 'job'}-{label}",
                sweep_combinations=[rest for rest in rests if rest],
                sweep=ranking if any(rests) else {},
                sweep_limit=spec.runs_at_once,
                sweep_per_node=spec.sweep_per_node,
            )
        )
    if problems:
        raise SpecError(list({str(problem): problem for problem in problems}.values()))
    return made


def _is_array_key(key: str) -> bool:
    return key.partition(".")[0] in _ARRAY_SECTIONS


def _without_sweep(spec: JobSpec) -> JobSpec:
    limit = JobSpec().sweep_limit
    return structs.replace(
        spec,
        sweep={},
        sweep_combinations=[],
        sweep_exclude=[],
        sweep_part=None,
        sweep_limit=limit,
        sweep_per_node=1,
    )


def _list_combinations(spec: JobSpec) -> list[dict[str, str]]:
    """List the values of each run of the whole sweep, without those that it excludes.

    Each of the given combinations is combined with each of those of ``sweep``.
    """
    search = spec.search
    if search.method == "tpe":
        return [{key: TRIAL % key for key in search.space} for _ in range(search.trials or 0)]
    if search.method != "grid":
        return _draw_combinations(search, spec.sweep_exclude)
    lists = {key: values for key, values in search.space.items() if isinstance(values, list)}
    return [
        combination
        for given in spec.sweep_combinations or [{}]
        for values in itertools.product(*lists.values())
        if not _is_excluded(
            combination := {**given, **dict(zip(lists, values, strict=True))}, spec.sweep_exclude
        )
    ]


def _draw_combinations(
    search: Search, excluded: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """Draw different combinations, as many as the search has trials if the space has as many."""
    wanted, size = search.trials or 0, search.size
    drawn: dict[tuple[str, ...], dict[str, str]] = {}
    # Of a small space, nearly all combinations have been drawn after this number of draws.
    most = 100 * wanted + (0 if size is None else 20 * min(size, MAX_RUNS))
    for number in range(most):
        if len(drawn) == wanted:
            break
        values = search.draw(number)
        if not _is_excluded(values, excluded):
            drawn.setdefault(tuple(values.values()), values)
    return list(drawn.values())


def _is_excluded(values: Mapping[str, str], excluded: Sequence[Mapping[str, str]]) -> bool:
    """Return True if a combination has all values of an entry.

    >>> _is_excluded({"lr": "1e-3", "act": "relu"}, [{"lr": "0.001"}])
    True
    """
    return any(
        all(key in values and _is_equal(values[key], value) for key, value in entry.items())
        for entry in excluded
    )


def _is_equal(one: str, two: str) -> bool:
    """Compare two values as numbers if both are, else as text."""
    if one == two:
        return True
    try:
        return float(one) == float(two)
    except ValueError:
        return False


def _select_combinations(spec: JobSpec) -> list[dict[str, str]]:
    """List the values of each run, only of the sweep's part if the job names one.

    >>> sweep = {"lr": ["1", "2", "3"]}
    >>> [_select_combinations(JobSpec(sweep=sweep, sweep_part=part)) for part in ("1/2", "2/2")]
    [[{'lr': '1'}], [{'lr': '2'}, {'lr': '3'}]]
    """
    combinations = _list_combinations(spec)
    part, count = _parse_part(spec)
    number = len(combinations)
    return combinations[(part - 1) * number // count : part * number // count]


def _parse_part(spec: JobSpec) -> tuple[int, int]:
    part, _, count = (spec.sweep_part or "1/1").partition("/")
    return int(part), int(count)


def _path_of(spec: JobSpec, key: str) -> str:
    """Return the path of a key in the job file, for messages."""
    if key in spec.sweep:
        return f"sweep.{key}"
    at = next(at for at, values in enumerate(spec.sweep_combinations) if key in values)
    return f"sweep_combinations[{at}].{key}"


def check_placeholders(spec: JobSpec, taken: Collection[str]) -> None:
    """Refuse names that are hpcrun's own placeholders already. Raises SpecError.

    >>> check_placeholders(JobSpec(sweep={"lr": ["1"]}), {"nodes"})
    """
    problems = [
        Problem(_path_of(spec, name), f"{{{name}}} is one of hpcrun's own placeholders")
        for name in spec.sweep_keys
        if not _is_job_key(name) and name in taken
    ]
    if problems:
        raise SpecError(problems)


def build_array(plans: Sequence[Plan], spec: JobSpec, sweep_id: str) -> Plan:
    """Build the plan of the array's script; all runs must request the same. Raises InputError."""
    first = plans[0]
    _check_folders(plans, spec)
    common = _shared_directives(first)
    for plan in plans[1:]:
        other = _shared_directives(plan)
        for option in common | other:
            one, two = _format_directive(common, option), _format_directive(other, option)
            if one != two:
                raise InputError(
                    f"sweep: {first.name} requests {one} and {plan.name} requests {two}; the "
                    "runs of a sweep are one Slurm array, with one request for all",
                    fix="submit one sweep for each",
                )
    own = {"job-name": spec.name or "job", "output": _output(first, sweep_id)}
    directives = [(option, own.get(option, value)) for option, value in first.directives]
    each = first.runs_per_job
    jobs, most = math.ceil(len(plans) / each), max(1, spec.runs_at_once // each)
    directives.append(("array", f"0-{jobs - 1}{f'%{most}' if most < jobs else ''}"))
    # A note on one run matters for the sweep; most notes apply to all runs.
    notes = list(dict.fromkeys(note for plan in plans for note in plan.notes))
    return structs.replace(
        first, run_id=sweep_id, name=own["job-name"], directives=directives, notes=notes
    )


def _check_checkpoint_dirs(spec: JobSpec) -> None:
    """Refuse combinations of the whole sweep that save to one directory. Raises InputError.

    All combinations are compared, not only those of ``sweep_part`` or of one array, because the
    other ones are submitted by themselves, perhaps after these have ended.
    """
    seen: dict[str, dict[str, str]] = {}
    for values in _list_combinations(spec):
        names = {key: value for key, value in values.items() if not _is_job_key(key)}
        folder = _build_filler(names)(values.get("checkpoint.dir", spec.checkpoint.dir or ""))
        folder = posixpath.normpath(folder)
        # A relative path begins in the run's own directory.
        if folder.partition("/")[0] not in ("", ".."):
            continue
        other = seen.setdefault(folder, values)
        if other is not values:
            one, two = (
                ", ".join(f"{key}={value}" for key, value in each.items())
                for each in (other, values)
            )
            raise _shared_folder_error(f"the run with {one} and the one with {two}", folder, spec)


def _check_folders(plans: Sequence[Plan], spec: JobSpec) -> None:
    """Refuse runs that save to one directory: each would resume from another's checkpoints."""
    seen: dict[str, str] = {}
    for plan in plans:
        other = seen.setdefault(plan.checkpoint_dir, plan.name)
        if other != plan.name:
            raise _shared_folder_error(f"{other} and {plan.name}", plan.checkpoint_dir, spec)


def _shared_folder_error(runs: str, folder: str, spec: JobSpec) -> InputError:
    """Return the error for two runs that save to one directory."""
    given = spec.checkpoint.dir or ""
    names = [f"{{{key}}}" for key in spec.sweep_keys if f"{{{key}}}" not in given]
    own = ""
    if names and given.startswith("/") and not any(map(_is_job_key, spec.sweep_keys)):
        own = f"; or {given.rstrip('/')}/{'-'.join(names)}"
    return InputError(
        f"checkpoint.dir: {runs} would both save to {folder}, and resume from each other's "
        "checkpoints",
        fix=f"a folder below each run's own, as checkpoint.dir: checkpoints{own}",
    )


def _check_keys(spec: JobSpec, extra_args: Sequence[str]) -> list[Problem]:
    """Return the problems of the sweep's keys themselves."""
    search = spec.search
    if search.method == "grid":
        number = math.prod(len(v) for v in search.space.values() if isinstance(v, list))
        number *= len(spec.sweep_combinations) or 1
        what = f"{number} combinations"
    else:
        number, what = search.trials or 0, f"{search.trials} trials"
    if number > MAX_RUNS:
        return [Problem("sweep", f"{what}; a sweep has at most {MAX_RUNS} runs")]
    problems = _check_search(spec, search)
    if problems:
        return problems
    found = _list_combinations(spec)
    if search.method != "grid" and len(found) < number:
        message = f"{number} trials; found {len(found)} different combinations in the space"
        problems.append(Problem("sweep.trials", message))
    problems += _check_excluded(spec, search)
    if not found and not problems:
        problems.append(Problem("sweep_exclude", "all combinations are excluded"))
    number = len(found)
    part, count = _parse_part(spec)
    if found and not part <= count <= number:
        message = (
            f"{spec.sweep_part}: expected I/N, I up to N and N up to {number}, the number of runs"
        )
        problems.append(Problem("sweep_part", message))
    for at, values in enumerate(spec.sweep_combinations):
        path = f"sweep_combinations[{at}]"
        if missing := [key for key in spec.sweep_combinations[0] if key not in values]:
            problems.append(
                Problem(path, f"it lacks {', '.join(missing)}, which the first one has")
            )
        if extra := [key for key in values if key not in spec.sweep_combinations[0]]:
            problems.append(Problem(path, f"it has {', '.join(extra)}, which the first one lacks"))
        problems += [
            Problem(f"{path}.{key}", f"sweep varies {key} already")
            for key in values
            if key in search.space
        ]
    used: set[str] = set()

    def note(text: str) -> str:
        used.update(_TOKEN.findall(text))
        return text

    _change_texts(spec, note)
    used |= {name for arg in extra_args for name in re.findall(r"\{(\w+)\}", arg)}
    for key in spec.sweep_keys:
        reason = _SHARED_KEYS.get(key.partition(".")[0])
        if reason:
            problems.append(Problem(_path_of(spec, key), f"{reason}; submit once for each"))
        elif not _is_job_key(key) and key not in used:
            message = (
                f"nothing reads it: write {{{key}}} into args, env or command, "
                "or name a key of the job, as in batch.micro_batch_per_gpu"
            )
            problems.append(Problem(_path_of(spec, key), message))
    return problems


def _check_search(spec: JobSpec, search: Search) -> list[Problem]:
    """Return the problems of a search that draws combinations."""
    if search.method == "grid":
        return _check_pruning(spec, search)
    problems = _check_pruning(spec, search)
    problems += [
        Problem(
            f"sweep.{key}",
            "the runs of a search share their resources and options; submit a search for each",
        )
        for key in search.space
        if _is_array_key(key)
    ]
    if spec.sweep_combinations:
        message = f"not with sweep.search: {search.method}, which chooses the combinations"
        problems.append(Problem("sweep_combinations", message))
    if search.method == "tpe":
        problems += _check_drawn_later(spec, search)
    return problems


def _check_pruning(spec: JobSpec, search: Search) -> list[Problem]:
    """Return what prevents that a run of the sweep is ended alone."""
    if search.prune is None:
        return []
    problems = []
    if spec.sweep_per_node > 1:
        message = "not with sweep.prune, which ends the steps of a job of its own for each run"
        problems.append(Problem("sweep_per_node", message))
    return problems


def _check_drawn_later(spec: JobSpec, search: Search) -> list[Problem]:
    """Return the problems of a search whose values are unknown until its jobs start."""
    problems = [
        Problem(
            f"sweep.{key}",
            "search: tpe draws values when a run starts, so they can only be placeholders of args, "
            f"command and env, as in {{{key.rpartition('.')[2]}}}; search: random can vary keys of "
            "the job",
        )
        for key in search.space
        if _is_job_key(key)
    ]
    for key in ("sweep_exclude", "sweep_part"):
        if getattr(spec, key):
            problems.append(Problem(key, "not with search: tpe, which chooses the combinations"))
    if spec.sweep_per_node > 1:
        message = "not with search: tpe, each of whose runs needs a job of its own"
        problems.append(Problem("sweep_per_node", message))
    names = "|".join(map(re.escape, search.space))
    pattern = re.compile(rf"(?<!\{{)\{{({names})\}}")
    elsewhere = {
        "checkpoint.dir": spec.checkpoint.dir or "",
        "stage": " ".join(word for pair in spec.stage.items() for word in pair),
        "deepspeed.offload.nvme_path": (
            (spec.deepspeed.offload.nvme_path or "") if spec.deepspeed is not None else ""
        ),
    }
    for path, text in elsewhere.items():
        if names and (match := pattern.search(text)):
            message = f"{match[0]}: search: tpe draws it when a run starts, so only args, command "
            problems.append(Problem(path, f"{message}and env can contain it"))
    return problems


def _check_excluded(spec: JobSpec, search: Search) -> list[Problem]:
    """Return a problem for each entry of ``sweep_exclude`` that can match no combination."""
    problems = []
    for at, entry in enumerate(spec.sweep_exclude):
        for key, value in entry.items():
            path = f"sweep_exclude[{at}].{key}"
            legal = search.space.get(key)
            if legal is None:
                legal = [values[key] for values in spec.sweep_combinations if key in values]
            if isinstance(legal, list) and not any(_is_equal(value, each) for each in legal):
                known = f"; {key} is {' or '.join(dict.fromkeys(legal))}" if legal else ""
                message = f"no run has {key}={value}{known}"
                problems.append(Problem(path, message))
            elif not isinstance(legal, list) and legal.kind != "int":
                message = f"{key} is drawn from a range of real numbers, so no run has exactly this"
                problems.append(Problem(path, f"{message} value; narrow the range"))
    return problems


def _is_job_key(key: str) -> bool:
    return "." in key or key in JobSpec.__struct_fields__


def _set_keys(spec: JobSpec, keys: Mapping[str, str], problems: list[Problem]) -> JobSpec:
    """Set keys of a job as ``--set`` does, with all its checks."""
    if not keys:
        return spec
    # A bare command comes from the command line, not from a job file.
    bare = spec.command == []

    def resolve(name: str) -> tuple[str, str]:
        raise InputError(f"{name}: no such job")

    text = dump_job(structs.replace(spec, command=["-"]) if bare else spec)
    try:
        loaded = load_job(
            text,
            source="",
            resolve=resolve,
            overrides=[f"{key}={_as_yaml(value)}" for key, value in keys.items()],
        )
    except SpecError as error:
        for problem in error.problems:
            path = f"sweep.{problem.path}" if problem.source == SOURCE else problem.path
            problems.append(Problem(path, problem.message))
        return spec
    return structs.replace(loaded, command=[]) if bare else loaded


def _as_yaml(value: str) -> str:
    """Write a value so that a number or a boolean is one, and all else is text.

    >>> print(_as_yaml("8"), _as_yaml("true"), _as_yaml("a: b"), _as_yaml(""))
    8 true "a: b" ""
    """
    core = parse_plain_value(Node(value, "", plain=True))
    if core is not None and not isinstance(core, str):
        return value
    return format_flow(value, quoted=True)


def _build_filler(values: Mapping[str, str]) -> Callable[[str], str]:
    """Fill the sweep's placeholders, as if their values were written in the job file."""
    return lambda text: _TOKEN.sub(lambda match: values.get(match[1], match[0]), text)


def _change_texts(spec: JobSpec, change: Callable[[str], str]) -> JobSpec:
    """Apply a function to every text of a job that may contain placeholders."""

    def env(variables: Env) -> Env:
        return {k: None if value is None else change(value) for k, value in variables.items()}

    deepspeed, folder = spec.deepspeed, spec.checkpoint.dir
    if deepspeed is not None and deepspeed.offload.nvme_path is not None:
        offload = structs.replace(deepspeed.offload, nvme_path=change(deepspeed.offload.nvme_path))
        deepspeed = structs.replace(deepspeed, offload=offload)
    return structs.replace(
        spec,
        args=[change(arg) for arg in spec.args],
        command=None if spec.command is None else [change(word) for word in spec.command],
        env=env(spec.env),
        nccl=structs.replace(spec.nccl, env=env(spec.nccl.env)),
        stage={change(source): change(target) for source, target in spec.stage.items()},
        deepspeed=deepspeed,
        checkpoint=structs.replace(spec.checkpoint, dir=folder and change(folder)),
    )


def _shared_directives(plan: Plan) -> dict[str, str | None]:
    return {option: value for option, value in plan.directives if option not in _RUN_DIRECTIVES}


def _format_directive(directives: Mapping[str, str | None], option: str) -> str:
    if option not in directives:
        return f"no --{option}"
    value = directives[option]
    return f"--{option}" if value is None else f"--{option}={value}"


def _output(plan: Plan, sweep_id: str) -> str:
    """Return the log path of each task, in its own directory; %a is the task index (sbatch.1)."""
    log = dict(plan.directives).get("output") or "logs/batch.log"
    runs_dir, _, _ = plan.run_dir.rpartition("/")
    head, _, tail = sweep_id.rpartition("-")
    # Relative to the array's directory, as a run's is to its own, unless it has to be absolute.
    start = f"{quote_pattern(runs_dir)}/" if log.startswith("/") else "../"
    if plan.runs_per_job > 1:  # the output of each run of a task goes to its own directory
        return f"{start}{sweep_id}.array/batch-%a.log"
    return f"{start}{head}.%a-{tail}/logs/batch.log"
