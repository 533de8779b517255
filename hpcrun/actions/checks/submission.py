"""All checks of a job before its submission, with all problems reported at once."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from hpcrun.actions.bad_nodes import bad_nodes_query, exclude_bad_nodes
from hpcrun.actions.checks.checkpoints import explain_common_folder, explain_shared_folder
from hpcrun.actions.checks.hydra import check_hydra_config
from hpcrun.actions.checks.job_counts import check_job_counts, check_sweep_size
from hpcrun.actions.checks.places import check_places, file_system_queries, place_queries
from hpcrun.actions.cluster_host import ClusterHost
from hpcrun.actions.interpreter import (
    Interpreter,
    ModuleCheck,
    existence_queries,
    find_missing_modules,
    list_editable_folders,
    may_exist,
    plan_module_check,
)
from hpcrun.actions.job_memory import (
    check_memory,
    describe_memory,
    estimate_job_memory,
    parse_arguments,
)
from hpcrun.actions.program import (
    Program,
    command_program,
    content_of,
    find_program,
    read_program,
    read_sources,
)
from hpcrun.actions.start_folder import StartFolder, find_start_folder
from hpcrun.context import Context, is_slurm_conf_missing
from hpcrun.errors import OutOfReach
from hpcrun.plan import (
    FILLS_OPEN_VALUES,
    BatchSizes,
    Findings,
    Plan,
    ProjectScript,
    ScriptFacts,
    assigned_variable_notes,
    batch_notes,
    can_resume,
    check_arguments,
    check_on_cpus,
    check_own_deepspeed,
    check_repeated_arguments,
    deepspeed_notes,
    difference_notes,
    fill_trial,
    find_limits,
    find_unlisted_partitions,
    list_needed_modules,
    node_name_notes,
    order_hydra_arguments,
    passes_deepspeed_json,
    path_notes,
    ray_notes,
    resume_notes,
    scope_notes,
    secret_notes,
    shared_folder_notes,
    single_process_notes,
    slurm_rank_notes,
    trained_values,
    uncopied_read_notes,
)
from hpcrun.remote import Answers, ClockOffset, LocalTransport, PathProbe, Query, RunCommand
from hpcrun.runs import TASK_ID, git_command
from hpcrun.slurm import SINFO, parse_sinfo
from hpcrun.spec import JobSpec, set_variables

# The fix for problems that the user may overrule.
OVERRIDE = "--no-check submits the job anyway"
_GIT_TIMEOUT_S = 2.0
_OUTDATED = "if the cluster has changed, run hpcrun init"
# Parts of the names of options whose value is read, and of those whose value is written. A "file"
# or "path" alone may be either.
_READ = re.compile(
    r"data|input|train|valid|eval|test|vocab|corpus|config|manifest|prompt|annot", re.I
)
_WRITTEN = re.compile(
    r"out|save|log|dump|export|result|ckpt|checkpoint|write|dest|cache|name"
    r"|pred|metric|report|summary|stat|trace|profil|history|plot|figure|submission",
    re.I,
)
_BRING = "copy it to the cluster, and give its path there"
_SHOW_PARTITIONS = RunCommand(tuple(SINFO), timeout=10.0)
# As in templates/jobside.sh, find_python.
_FIND_PYTHON = """
old='import sys; sys.exit(sys.version_info < (3, 6))'
for python in "$1" python3 /usr/bin/python3 /usr/libexec/platform-python; do
    [ -z "$python" ] || ! "$python" -I -S -c "$old" || exit 0
done 2>/dev/null
exit 1
"""
_NO_PYTHON = (
    "survive: no Python 3.6 or newer answers on the login node outside of modules and containers:"
    " if the nodes have none either, the run starts and records its end, but does not continue by"
    " itself; a system Python (/usr/bin/python3) or setup.venv on a shared file system suffices"
)
# Characters that do not occur in the names of files to check.
_ODD = re.compile(r"[\s{}$*?:,\[\]<>|]")
_CONFIG = re.compile(r"conf|cfg|deepspeed|recipe|hparam", re.I)
_CONFIG_FILE = re.compile(r"(?![/~$])\S+\.(ya?ml|json|toml|py|ini|cfg)")
_ENDS = re.compile(r"\.(jsonl?|ya?ml|txt|csv|tsv|parquet|npy|npz|h5|arrow|toml|bin|gz|zst)$", re.I)


class Checks:
    """The checks of one submission; properties that the runs of a sweep share are checked once."""

    def __init__(self, *, strict: bool = True, in_queue: bool = True) -> None:
        """Configure the checks.

        Args:
            strict: Problems are errors; otherwise they are notes.
            in_queue: Slurm chooses the nodes.
        """
        self.is_strict = strict
        self.in_queue = in_queue
        self._exclude_bad_nodes: Callable[[Plan], Plan] | None = None
        self._programs: dict[tuple[object, ...], Program] = {}
        # The program and arguments of each run; for a range of nodes, those of the last number.
        self._given: dict[str, tuple[Program, list[str]]] = {}

    def check_job(
        self,
        context: Context,
        host: ClusterHost,
        spec: JobSpec,
        found: Interpreter,
        plan: Plan | None,
        extra_args: Sequence[str] = (),
        deepspeed_elsewhere: str = "",
    ) -> tuple[Plan | None, Findings]:
        """Check the program, the partition's limits and the directories; nothing is changed.

        Args:
            host: Has run first_queries().
            plan: None if the job could not be planned.
            extra_args: The arguments of the command line.
            deepspeed_elsewhere: The request for DeepSpeed outside of the job's section, if any.

        Returns:
            The plan, with its arguments in the order that the program accepts and without settings
                that do not reach the program, excluding known bad nodes; and the findings.
        """
        program, given = self._check_program(context, spec, found, plan)
        queries: list[Query[Any]] = [*workdir_queries(host, spec)]
        check = None
        if plan is not None:
            plan, given = _in_order(plan, program, given)
            check = _module_check(context, spec, found, plan)
            queries += [check.query] if check is not None else []
            queries += [_SHOW_PARTITIONS] if _find_unlisted_partitions(context, plan) else []
            queries += [_python_query(plan)] if self._continues(plan) else []
        nodes = plan.nodes if plan is not None else 1
        if not self._given:  # the runs of a sweep share the directories
            queries += file_system_queries(context, host, nodes)
        answers = host.run_queries(queries)
        findings = Findings(list(program.problems), list(program.notes))
        _check_absolute_workdir(context, host, spec, plan, findings)
        if plan is not None:
            estimated = self._check_plan(
                *(context, answers, spec, found, plan, program, given, extra_args),
                check=check,
                deepspeed_elsewhere=deepspeed_elsewhere,
                findings=findings,
            )
            plan = structs.replace(plan, estimated_memory=estimated)
        # --no-check does not help against an unwritable directory, whose fix is added later
        findings.fix += OVERRIDE if findings.problems else ""
        if not self._given:
            findings.add(check_places(context, host, nodes))
        self._given[plan.run_id if plan is not None else ""] = (program, given)
        # The runs of a sweep are checked together.
        own = [plan] if plan is not None and not TASK_ID.fullmatch(plan.run_id) else []
        if message := explain_shared_folder(context, own):
            findings.refuse("checkpoint.dir", message)
            findings.fix = findings.fix or OVERRIDE
        findings = self._downgrade_to_notes(findings, "")
        if plan is not None and not findings.problems:
            plan = _without_unknown(context, spec, plan, program, extra_args, given)
            if self.in_queue:
                exclude = self._exclude_bad_nodes or exclude_bad_nodes(context, answers)
                self._exclude_bad_nodes = exclude
                plan = exclude(plan)
        return plan, findings

    def _check_plan(
        self,
        context: Context,
        answers: Answers,
        spec: JobSpec,
        found: Interpreter,
        plan: Plan,
        program: Program,
        given: list[str],
        extra_args: Sequence[str],
        *,
        check: ModuleCheck | None,
        deepspeed_elsewhere: str,
        findings: Findings,
    ) -> int | None:
        """Check the properties that only a planned job has; add the results to ``findings``.

        Returns:
            The estimated memory of one GPU in bytes, if it is known.
        """
        estimated = None
        example = [fill_trial(word, plan.trial) for word in given]
        self._check_words(context, spec, program, example, findings)
        if self._continues(plan) and answers[_python_query(plan)].exit_code == 1:
            findings.notes.append(_NO_PYTHON)
        if check is not None:
            _check_python(spec, plan, check, answers, findings)
        if spec.snapshot and spec.command is None and not plan.reference_trainer:
            is_seen = not found.inside and context.cluster.host is None
            editable = [] if not is_seen else list_editable_folders(found, context.project)
            commands = plan.setup.commands
            env = set_variables(spec.env)
            findings.notes += path_notes(env, commands, editable)
        _check_partitions(context, answers, spec, plan, findings)
        findings.notes += _argument_notes(context, answers, spec, plan, program, extra_args, given)
        if spec.command is None:
            check_repeated_arguments(program.script, [*spec.args, *extra_args], findings)
        if program.script is not None and spec.command is None:
            typed = [*spec.args, *extra_args]
            check_own_deepspeed(spec, program.script, typed, findings)
        if plan.accelerator == "cuda" and plan.gpus_per_node:
            typed = [*spec.args, *extra_args]
            estimated = _check_memory(context, spec, plan, program, typed, findings)
        if context.cluster.name == "sandbox":
            findings.notes += node_name_notes(
                _command_texts(_start_folder(context, plan), plan, program)
            )
        if plan.accelerator == "cpu":
            found_here = check_on_cpus(
                spec,
                program.script.facts if program.script else ScriptFacts(),
                given if spec.command is None else plan.program,
                elsewhere=deepspeed_elsewhere,
                precision=_known_precision(spec, plan),
                world_size=plan.world_size,
            )
            findings.add(found_here)
        return estimated

    def _continues(self, plan: Plan) -> bool:
        """Return True if the job itself is to start further attempts of the run."""
        return self.in_queue and bool(plan.survive.when)

    def _check_words(
        self,
        context: Context,
        spec: JobSpec,
        program: Program,
        given: Sequence[str],
        findings: Findings,
    ) -> None:
        """Refuse arguments that certainly stop the program; add doubts as the first notes."""
        script, path = program.script, program.path
        if script is None or path is None:
            return
        # HfArgumentParser reads train.args, next to train.py, before the command line.
        if script.facts.parser == "transformers" and path.with_suffix(".args").exists():
            return

        faults, doubts = check_arguments(script.name, script.facts, given)
        for fault in faults:
            findings.refuse("args" if spec.command is None else "command", fault)
        faults = [] if faults else check_hydra_config(context.project, path, script.facts, given)
        for fault in faults:
            if script.facts.is_certain:
                findings.refuse("args" if spec.command is None else "command", fault)
            else:
                doubts.append(fault)
        findings.notes[:0] = [f"args: {doubt}" for doubt in doubts]

    def check_array(self, context: Context, host: ClusterHost, tasks: int, submit: str) -> Findings:
        """Check that Slurm accepts arrays of this many tasks.

        Args:
            submit: The arguments of `hpcrun submit` for the whole sweep, or "".
        """
        problems = check_sweep_size(context, host, tasks, submit)
        return self._downgrade_to_notes(
            Findings(problems, [], f"{_OUTDATED}; " if problems else "")
        )

    def count_jobs(
        self,
        context: Context,
        host: ClusterHost,
        jobs: Sequence[tuple[Plan, int]],
        submit: str = "",
    ) -> Findings:
        """Check that the user's account and QOS accept this many jobs in the queue.

        Args:
            submit: The arguments of `hpcrun submit` for the whole sweep, if the only job is one.
        """
        missing = is_slurm_conf_missing(context, context.cluster.slurm_conf)
        problems = check_job_counts(host, jobs, submit) if self.in_queue and not missing else []
        fix = "submit fewer now, and the others when jobs have ended; " if problems else ""
        return self._downgrade_to_notes(Findings(problems, [], fix))

    def check_checkpoint_dirs(self, context: Context, plans: Sequence[Plan]) -> Findings:
        """Check that no unfinished run saves where a run of the sweep will."""
        findings = Findings()
        if message := explain_shared_folder(context, plans):
            findings.refuse("checkpoint.dir", message)
        return self._downgrade_to_notes(findings)

    def compare_checkpoint_dirs(
        self, jobs: Sequence[Sequence[Plan]], waits_for: Sequence[Sequence[int]]
    ) -> Findings:
        """Check that no two jobs that may run at the same time save to one directory."""
        findings = Findings()
        if message := explain_common_folder(jobs, waits_for):
            findings.refuse("checkpoint.dir", message)
        return self._downgrade_to_notes(findings)

    def compare_runs(self) -> list[str]:
        """Return notes on what the runs would share although each needs its own."""
        programs = {id(program): program for program, _ in self._given.values()}
        script = next(iter(programs.values())).script
        if len(programs) > 1 or script is None:
            return []
        return shared_folder_notes(script, [args for _, args in self._given.values()])

    def _check_program(
        self, context: Context, spec: JobSpec, found: Interpreter, plan: Plan | None
    ) -> tuple[Program, list[str]]:
        """Find and read the program; return it with its arguments, with placeholders filled in."""
        names = (spec.script, spec.module, spec.workdir, tuple(spec.command or ()))
        key = (*names, found.python, plan is None)
        program = self._programs.get(key)
        if program is not None and spec.command is None:
            return program, _script_arguments(context, spec, plan, program, inside=found.inside)
        program = self._programs[key] = find_program(context, spec, inside=found.inside)
        if plan is not None and not _makes_files(plan):
            _check_workdir(context, spec, plan, program)
        given = _script_arguments(context, spec, plan, program, inside=found.inside)
        read_program(context, spec, found, program)
        is_far = context.cluster.host is not None
        in_copy = (spec.snapshot and spec.command is None) or is_far
        in_copy = in_copy and context.code is None
        if in_copy and program.path and _is_ignored(context.project, program.path, context.environ):
            fix = "" if is_far else ", or set snapshot: false to run the code in place"
            program.refuse(
                "script" if spec.script else "module",
                f"{program.name}: git ignores it, so it is not in the run's copy of the code; "
                f"remove it from .gitignore{fix}",
            )
        return program, given

    def _downgrade_to_notes(self, findings: Findings, overrides: str = OVERRIDE) -> Findings:
        if self.is_strict or not findings.problems:
            findings.fix += overrides if findings.problems else ""
            return findings
        ignored = [f"--no-check: {problem}" for problem in findings.problems]
        return Findings(notes=[*ignored, *findings.notes])


def _check_memory(
    context: Context,
    spec: JobSpec,
    plan: Plan,
    program: Program,
    typed: Sequence[str],
    findings: Findings,
) -> int | None:
    """Estimate the memory per GPU if the job's model is known; refuse what certainly fails.

    Nothing is reported unless hpcrun's DeepSpeed JSON certainly reaches the script.

    Returns:
        The bytes of one GPU; None if they are unknown, or without activations.
    """
    script = program.script
    if script is None or program.path is None or spec.command is not None:
        return None
    own = [
        value
        for name, value in parse_arguments(typed).items()
        if "deepspeed" in name or name.startswith("ds_")
    ]
    if any(value not in ("true", "{deepspeed_config}") for value in own):
        return None
    if not passes_deepspeed_json(spec, script, typed):
        return None
    memory = estimate_job_memory(
        *(spec, plan, context.cluster),
        environ=context.environ,
        folder=_start_folder(context, plan),
        script=read_sources(context.project, program.path),
        cache_dir=context.cache_dir,
    )
    # Without DeepSpeed, the script alone decides in which format it keeps the weights.
    if memory is None or memory.training.strategy != "zero":
        return None
    if fault := check_memory(memory):
        findings.refuse("memory", fault)
    else:
        findings.notes.append(describe_memory(memory))
    return round(memory.estimate.total) if memory.estimate.has_activations else None


def _python_query(plan: Plan) -> RunCommand:
    """Return the query for a Python that works before the job's setup, by its exit code."""
    is_bare = plan.python.startswith("/") and plan.setup.container is None
    own = plan.python if is_bare else ""
    return RunCommand(("bash", "-c", _FIND_PYTHON, "-", own), timeout=30.0)


def first_queries(context: Context, args: Sequence[str]) -> list[Query[Any]]:
    """Return the queries that the checks need for any job, and for one with these arguments."""
    paths = [path for _, value in _read_paths(args) for path in (value, str(Path(value).parent))]
    probes = [PathProbe(path) for path in paths]
    return [ClockOffset(), bad_nodes_query(context), *place_queries(context), *probes]


def _module_check(
    context: Context, spec: JobSpec, found: Interpreter, plan: Plan
) -> ModuleCheck | None:
    """Return the check of the job's Python for the modules of the launcher and the framework."""
    path = set_variables(context.cluster.env | spec.env).get("PYTHONPATH", "")
    names = [*list_needed_modules(spec, plan.launcher)]
    # A module that is not the project's own must be installed.
    if spec.module and all(part.isidentifier() for part in spec.module.split(".")):
        program = find_program(context, spec, inside=found.inside)
        if program.path is None and not program.problems:
            names.append(spec.module)
    code = str(context.project)
    path = path.replace("{code_dir}", code).replace("{project_dir}", code)
    return plan_module_check(context, found, names, path)


def _check_python(
    spec: JobSpec, plan: Plan, check: ModuleCheck, answers: Answers, findings: Findings
) -> None:
    missing, note = find_missing_modules(check, answers)
    if note:
        findings.notes.append(note)
    if not missing:
        return
    what = f"{check.python} has no {' and no '.join(missing)}"
    setup, path = plan.setup, check.path
    if setup.modules or setup.uv or _makes_files(plan) or "$" in path:
        findings.notes.append(f"{what} here: the job's setup must provide it")
        return
    if spec.module in missing:
        findings.refuse(
            "module",
            f"{spec.module}: neither the project nor {check.python} has this module; is it "
            "misspelt, or not installed?",
        )
        missing = [name for name in missing if name != spec.module]
        if not missing:
            return
    what = f"{check.python} has no {' and no '.join(missing)}"
    which = f"framework {spec.framework}" if spec.framework else f"launcher {plan.launcher}"
    fix = f"{check.python} -m pip install {' '.join(missing)}"
    findings.refuse("", f"{what}, which {which} needs; {fix}")


def _script_arguments(
    context: Context, spec: JobSpec, plan: Plan | None, program: Program, *, inside: bool
) -> list[str]:
    if plan is None:
        return []
    if spec.command is None:
        # The command is python SCRIPT, python -m MODULE or python -c TEXT MODULE.
        start = 2 if spec.script is not None or plan.reference_trainer else None
        start = start or plan.program.index(spec.module or "", 2) + 1
        return plan.program[start:]
    if inside or _makes_files(plan) or plan.setup.uv:
        return []  # a program that is missing here may exist on the nodes
    return command_program(_start_folder(context, plan), plan.program, program)


def _without_unknown(
    context: Context,
    spec: JobSpec,
    plan: Plan,
    program: Program,
    extra_args: Sequence[str],
    given: Sequence[str],
) -> Plan:
    """Remove the settings that do not reach the program from a plan."""
    typed = [*spec.args, *extra_args, *(spec.command or ())]
    sizes = _sizes_of(plan)
    config = plan.deepspeed_config
    trained = trained_values(spec, sizes, program.script, typed, given, config)
    micro, steps = trained.micro_batch_per_gpu, trained.gradient_accumulation_steps
    replicas = sizes.effective // (sizes.micro_batch_per_gpu * sizes.gradient_accumulation_steps)
    return structs.replace(
        plan,
        precision=plan.precision if trained.is_precision_set else trained.precision,
        micro_batch_per_gpu=micro or plan.micro_batch_per_gpu,
        gradient_accumulation_steps=steps or plan.gradient_accumulation_steps,
        effective_batch=micro * steps * replicas if micro and steps else None,
        resumes=can_resume(
            spec,
            program.script,
            [*spec.args, *extra_args],
            [*_command_texts(_start_folder(context, plan), plan, program).values()]
            if spec.command is not None
            else [],
        ),
    )


def _known_precision(spec: JobSpec, plan: Plan) -> str:
    """Return the precision of a job that sets one, or whose framework leaves it to hpcrun."""
    is_open = spec.precision is None and plan.framework in FILLS_OPEN_VALUES
    return "" if is_open else plan.precision or ""


def _sizes_of(plan: Plan) -> BatchSizes:
    return BatchSizes(
        micro_batch_per_gpu=plan.micro_batch_per_gpu,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        effective=plan.effective_batch or 0,
    )


def _find_unlisted_partitions(context: Context, plan: Plan) -> dict[str, str]:
    return find_unlisted_partitions(plan, context.cluster, context.cluster_source)


def _check_partitions(
    context: Context, answers: Answers, spec: JobSpec, plan: Plan, findings: Findings
) -> None:
    """Refuse requests that exceed a partition's limits, and unknown partitions."""
    source, usual = context.cluster_source, context.environ.get("SBATCH_PARTITION")
    limits = find_limits(spec, plan, context.cluster, source, default=usual)
    findings.problems += limits
    findings.fix = f"{_OUTDATED}; " if limits and context.cluster.read_on else ""
    unlisted = _find_unlisted_partitions(context, plan)
    known = _known_partitions(answers) if unlisted else set()
    for name, listed in unlisted.items():
        if known and name not in known:
            findings.refuse("resources.partition", f"{name}: no such partition; {listed}")
        else:
            findings.notes.append(f"partition {name}: {listed}")


def _start_folder(context: Context, plan: Plan) -> StartFolder:
    return find_start_folder(context, plan.start_dir, plan.project_dir)


def _command_texts(folder: StartFolder, plan: Plan, program: Program) -> dict[str, str]:
    """Return the words of a command, and the scripts that it starts, by their names."""
    words = plan.program
    named = {word: folder.resolve(word) for word in words if word.endswith(".sh")}
    files = {word: path for word, path in named.items() if path is not None}
    if program.path is not None:
        files[program.name] = program.path
    read = {name: content_of(path) or b"" for name, path in files.items()}
    texts = {name: data.decode("utf-8", "replace") for name, data in read.items()}
    return {"command": "\n".join(words), **texts}


def _check_workdir(context: Context, spec: JobSpec, plan: Plan, program: Program) -> None:
    """Refuse a folder in the project that does not exist, or is not in the copy of the code."""
    folder = _start_folder(context, plan).path
    if spec.workdir is None or folder is None:
        return
    is_far = context.cluster.host is not None
    project = context.project if is_far else Path(plan.project_dir)
    if not folder.is_relative_to(project):
        return
    if not folder.is_dir():
        program.refuse("workdir", f"{spec.workdir}: the project has no such folder")
    elif is_far and _is_ignored(project, folder, context.environ):
        program.refuse(
            "workdir",
            f"{spec.workdir}: it has no file that git tracks, so it is not uploaded with the code; "
            f"{_BRING}",
        )


def workdir_queries(host: ClusterHost, spec: JobSpec) -> list[PathProbe]:
    """Return the query for an absolute ``workdir``, which may_have_workdir() needs."""
    text = spec.workdir or ""
    is_known = text.startswith("/") and "{" not in text
    return existence_queries(host, [text], "workdir") if is_known else []


def may_have_workdir(host: ClusterHost, spec: JobSpec) -> bool:
    """Return False for an absolute ``workdir`` that certainly does not exist where jobs run."""
    known = workdir_queries(host, spec)
    return not known or may_exist(host, spec.workdir or "", "workdir")


def _check_absolute_workdir(
    context: Context, host: ClusterHost, spec: JobSpec, plan: Plan | None, findings: Findings
) -> None:
    """Refuse an absolute ``workdir`` that does not exist; a container's image may have it."""
    if plan is None or plan.setup.container is not None or _makes_files(plan):
        return
    is_inside = Path(plan.start_dir).is_relative_to(plan.project_dir)  # see _check_workdir()
    if not is_inside and not plan.makes_start_dir and not may_have_workdir(host, spec):
        where = "there is no" if context.cluster.host is None else f"{context.cluster.host} has no"
        findings.refuse("workdir", f"{spec.workdir}: {where} such folder")


def _makes_files(plan: Plan) -> bool:
    """Return True if the setup may create files that do not exist yet."""
    return bool(plan.setup.commands or plan.setup.node_commands or plan.setup.stage)


def _argument_notes(
    context: Context,
    answers: Answers,
    spec: JobSpec,
    plan: Plan,
    program: Program,
    extra_args: Sequence[str],
    given: Sequence[str],
) -> list[str]:
    notes: list[str] = []
    start = _start_folder(context, plan).path
    typed = [*spec.args, *extra_args]
    words = [*(spec.command or []), *typed]
    script = program.script
    if script is not None and spec.command is None:
        if spec.snapshot or context.cluster.host is not None:
            notes += _live_notes(context, start, script, program, given)
        sizes = _sizes_of(plan)
        notes += deepspeed_notes(spec, script, typed, sizes.effective)
        notes += batch_notes(spec, sizes, script, typed, given, plan.deepspeed_config)
        notes += scope_notes(script, typed)
        notes += ray_notes(script, plan.launcher, plan.ranks_per_node)
        if plan.launcher != "ray":  # which runs the script once
            notes += single_process_notes(script, plan.framework, plan.world_size)
            notes += slurm_rank_notes(script, plan.launcher, plan.ranks_per_node)
        layers = (context.cluster.env, spec.nccl.env, spec.env)
        set_by_job = {name: text for env in layers for name, text in set_variables(env).items()}
        notes += assigned_variable_notes(script, set_by_job, plan.fabric, plan.nodes)
        notes += difference_notes(spec, sizes, script, typed, given, plan.deepspeed_config)
    if script is not None or spec.command is not None:
        notes += resume_notes(spec, script, typed, plan.survive.when)
    if context.cluster.host is not None and start is not None:
        notes += _left_here(context, start, words)
    setup = spec.setup
    inside = setup.container is not None or context.cluster.setup.container is not None
    if not inside and not _makes_files(plan):
        if start is not None:
            notes += _missing_files(context.project, start, given)
        notes += _missing_paths(context, answers, words)
    return notes + secret_notes(
        set_variables(spec.env),
        [*typed, *(spec.command or [])],
        [*setup.commands, *setup.node_commands],
        set_variables(context.cluster.env),
    )


def _in_order(plan: Plan, program: Program, given: list[str]) -> tuple[Plan, list[str]]:
    if program.script is None or not given:
        return plan, given

    ordered = order_hydra_arguments(program.script.facts, given)
    start = plan.program[: -len(given)]
    return structs.replace(plan, program=[*start, *ordered]), ordered


def _known_partitions(answers: Answers) -> set[str]:
    """Return Slurm's partitions; empty if Slurm did not respond."""
    return {row.partition for row in parse_sinfo(answers[_SHOW_PARTITIONS].stdout)}


def _live_notes(
    context: Context,
    start: Path | None,
    script: ProjectScript,
    program: Program,
    given: Sequence[str],
) -> list[str]:
    """Return notes on files that are read from the project but copied, or vice versa.

    ``start`` is the folder in which the program starts; None if it is unknown here.
    """
    project, notes = context.project, list[str]()
    is_far = context.cluster.host is not None
    if not is_far and start is not None:  # a remote host has only the copy
        named = [text for _, text in script.facts.uncopied_reads if not text.startswith("sys.path")]
        files = list(_config_files(given, script.facts))
        named += [value for _, value in files]
        there = [name for name in dict.fromkeys(named) if (start / name).is_file()]
        notes += uncopied_read_notes(script, there)
        notes += [
            f"{where}{value}: read from the project when the job runs, not from the run's copy "
            f"of the code; {{code_dir}}/{os.path.relpath(start / value, project)} is in the copy"
            for where, value in files
            if value in there
        ]
    if program.path is None:
        return notes
    if script.facts.finds_root:
        notes += _root_notes(context, script, given)
    beside = [os.path.normpath(program.path.parent / place) for place in script.facts.sibling_paths]
    for place in dict.fromkeys(beside):
        path = Path(place)
        inside = path.is_relative_to(project) and not _WRITTEN.search(path.name)
        if any(other.startswith(f"{place}/") for other in beside):
            continue
        if inside and path.exists() and _is_ignored(project, path, context.environ):
            fix = "begin the path with HPCRUN_PROJECT_DIR, or set snapshot: false"
            notes.append(
                f"{script.name} finds {path.relative_to(project)} by __file__, and git ignores it: "
                f"it is not in the run's copy of the code; {_BRING if is_far else fix}"
            )
    return notes


def _root_notes(context: Context, script: ProjectScript, given: Sequence[str]) -> list[str]:
    """Note the project's folders of data that are not in the copy, whose root the script finds."""
    project = context.project
    ignored = [
        path.name
        for path in sorted(project.glob("*data*"))
        if path.is_dir()
        and not any(str(path) in word for word in given)
        and _has_ignored(project, path, context.environ)
    ]
    if not ignored:
        return []
    fix = f'give it the path as an argument, "{{project_dir}}/{ignored[0]}", or set snapshot: false'
    return [
        f"{script.name} finds the project's root by a library, in the run's copy of the code, "
        f"and git ignores {', '.join(ignored)}, so it is not in the copy; "
        f"{_BRING if context.cluster.host is not None else fix}"
    ]


def _config_files(args: Sequence[str], facts: ScriptFacts) -> Iterator[tuple[str, str]]:
    """Yield possible configuration files in the project, each with the place that names it.

    A place is an option for a configuration, an argument without an option, or the script's own
    default for an argument that is not given.
    """
    given: set[str] = set()
    for option, value in _values(args):
        given.add(option)
        if (not option or _CONFIG.search(option)) and _CONFIG_FILE.fullmatch(value):
            yield _format_option(option), value
    given |= {arg.partition("=")[0] for arg in args}
    for one in (*facts.options, *facts.positionals):
        is_config = any(map(_CONFIG.search, one.names)) and _CONFIG_FILE.fullmatch(one.default)
        if is_config and not given & {*one.names}:
            yield f"the default of {one.names[-1]}: ", one.default


def _missing_files(project: Path, start: Path, args: Sequence[str]) -> Iterator[str]:
    """Yield notes on arguments that name a missing file in a directory of the project."""
    for asked, value in _values(args):
        if not _names_file(asked, value):
            continue
        path = Path(os.path.normpath(start / value))
        if not path.is_relative_to(project) or path == project or os.path.lexists(path):
            continue
        # Names of models on a hub look like paths too, so the directory must exist in the project.
        if not path.parent.is_dir() or ("/" not in value and not asked):
            continue
        beside = [file.name for file in itertools.islice(path.parent.iterdir(), 1000)]
        close = difflib.get_close_matches(path.name, beside, 1, 0.75)
        near = os.path.relpath(path.with_name(close[0]), start) if close else ""
        hint = f"; did you mean {near}?" if close else ""
        yield f"{_format_option(asked)}{value}: the project has no such file{hint}"


def _format_option(option: str) -> str:
    return f"args: {option} " if option else "args: "


def _values(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the values of arguments with their options, if any."""
    option = ""
    for arg in args:
        name, equals, value = arg.partition("=")
        if equals:
            option = name
        elif arg.startswith("-"):
            option = arg
            continue
        else:
            value = arg
        yield option, value
        option = ""


def _read_paths(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options that read an absolute path, and the path; the folder above a glob."""
    for option, value in _values(args):
        is_read = _READ.search(option) and not _WRITTEN.search(option)
        first_glob = re.search(r"/[^/]*[*?\[]", value)
        path = value[: first_glob.start() + 1] if first_glob else value
        if is_read and path.startswith("/") and not _ODD.search(path):
            yield option, path


def _missing_paths(context: Context, answers: Answers, args: Sequence[str]) -> list[str]:
    """Return notes on options that read an absolute path which does not exist."""
    notes, host = [], context.cluster.host
    for option, value in _read_paths(args):
        state, above = answers[PathProbe(value)], answers[PathProbe(str(Path(value).parent))]
        # A path without such a suffix may be the prefix of several names.
        is_whole = value.endswith("/") or _ENDS.search(value)
        if state.exists or (above.exists and not is_whole):
            continue
        if host is not None and _exists_here(Path(value)):
            notes.append(
                f"args: {option} {value}: a path of this machine, which does not exist on {host}"
            )
        else:
            who = f"{host} has no" if host is not None else "no"
            what = "such file or folder"
            if not state.is_known:
                what = f"/{Path(value).parts[1]}; right if only the compute nodes mount it"
            notes.append(f"args: {option} {value}: {who} {what}")
    return notes


def _exists_here(path: Path) -> bool:
    """Return True if a path exists on this machine and is visible to the user."""
    with contextlib.suppress(OSError):  # a parent directory is not searchable
        return path.exists()
    return False


def _left_here(context: Context, start: Path, args: Sequence[str]) -> list[str]:
    """Return notes on arguments that name files of the project that are not sent to the cluster."""
    return [
        f"{_format_option(option)}{value}: git ignores it, so it is not uploaded with the code; "
        f"{_BRING}"
        for option, value in _values(args)
        if ("/" in value or "." in value or (value and _READ.search(option)))
        and not value.startswith(("/", "~", "-"))
        and not _ODD.search(value)
        and not _WRITTEN.search(option or value)
        and _exists_here(start / value)
        and _is_ignored(context.project, start / value, context.environ)
    ]


def _names_file(option: str, value: str) -> bool:
    if _ODD.search(value) or value.endswith("/"):
        return False
    if _WRITTEN.search(option or value) or (option and not _READ.search(option)):
        return False
    return _ENDS.search(value) is not None


def _is_ignored(project: Path, path: Path, environ: Mapping[str, str]) -> bool:
    # A tracked directory may contain only ignored files.
    return _list_files(project, path, environ, "-co") == ""


def _has_ignored(project: Path, folder: Path, environ: Mapping[str, str]) -> bool:
    """Return True if Git ignores a file in a folder, which may also have tracked ones."""
    return bool(_list_files(project, folder, environ, "-oi", "--directory"))


def _list_files(project: Path, path: Path, environ: Mapping[str, str], *options: str) -> str | None:
    """List files by git; None if the project has no repository, or git fails."""
    path = Path(os.path.normpath(path))
    is_known = any((folder / ".git").exists() for folder in path.parents)
    if not is_known or not path.is_relative_to(project):
        return None
    argv = git_command(path.parent, "ls-files", *options, "--exclude-standard", "--", path.name)
    try:
        result = LocalTransport(environ).run(argv, cwd="/", timeout=_GIT_TIMEOUT_S)
    except OutOfReach:
        return None
    return result.stdout if result.exit_code == 0 else None
