"""All that can be known to go wrong with a job before it is submitted, told at once."""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hpcrun.controller.checks.git_ignored import ask_git, is_ignored
from hpcrun.controller.checks.places import Places
from hpcrun.controller.checks.script import (
    Program,
    command_program,
    find_program,
    read_program,
)
from hpcrun.controller.context import Context
from hpcrun.controller.interpreter import Interpreter
from hpcrun.errors import Problem
from hpcrun.plan.limits import array_problems, find_limits, partition_notes
from hpcrun.plan.script_notes import (
    argument_notes,
    backend_notes,
    batch_notes,
    deepspeed_notes,
    shared_folder_notes,
)
from hpcrun.plan.secret_hints import secret_notes
from hpcrun.plan.types import Plan
from hpcrun.spec.job import JobSpec

# What to do about a problem that is none, as the user knows better.
OVERRIDE = "--no-check takes the job all the same"
_OUTDATED = "where the cluster has changed: hpcrun init"
# Options whose value is read, by a part of their name; and those whose value is written.
# A "file" or "path" alone may be either.
_READ = re.compile(
    r"data|input|train|valid|eval|test|vocab|corpus|config|manifest|prompt|annot", re.I
)
_WRITTEN = re.compile(
    r"out|save|log|dump|export|result|ckpt|checkpoint|write|dest|cache|name"
    r"|pred|metric|report|summary|stat|trace|profil|history|plot|figure|submission",
    re.I,
)
_ENDS = re.compile(r"\.(jsonl?|ya?ml|txt|csv|tsv|parquet|npy|npz|h5|arrow|toml|bin|gz|zst)$", re.I)


class Findings(msgspec.Struct):
    """What the checks found: problems, which stop a submission, and notes, which do not.

    ``fix`` is what to do about problems that are none.
    """

    problems: list[Problem] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    fix: str = ""


class Checks:
    """The checks of one submission; what the runs of a sweep have in common is looked at once."""

    def __init__(self, *, heed: bool = True) -> None:
        """Without ``heed`` a problem is told as a note: the user knows better."""
        self._heed = heed
        self._programs: dict[tuple[object, ...], Program] = {}
        self._places: Findings | None = None
        # What the runs that were looked at give their programs.
        self._given: list[tuple[Program, list[str]]] = []

    def look(
        self,
        context: Context,
        spec: JobSpec,
        found: Interpreter,
        plan: Plan | None,
        words: Sequence[str] = (),
    ) -> Findings:
        """Check the program, the partition's limits and the folders; nothing is changed.

        ``plan`` is None where the job could not be planned; ``words`` are the command line's.
        """
        rooms = Places(context) if self._places is None else None
        try:
            program, given = self._program(context, spec, found, plan)
            self._given.append((program, given))
            findings = Findings(list(program.problems), list(program.notes))
            if plan is not None:
                source = context.cluster_source
                limits = find_limits(
                    spec,
                    plan,
                    context.cluster,
                    source,
                    default=context.environ.get("SBATCH_PARTITION"),
                )
                findings.problems += limits
                findings.fix = f"{_OUTDATED}; " if limits and context.cluster.read_on else ""
                findings.notes += partition_notes(plan, context.cluster, source)
                _look_at_words(context, spec, plan, program, words, given, findings)
            if rooms is not None:
                rooms.look(plan.nodes if plan else 1, sandbox=context.cluster.name == "sandbox")
                rooms.take_answers()
                self._places = Findings(rooms.problems, rooms.notes)
        finally:
            if rooms is not None:
                rooms.drop()
        if rooms is not None:
            findings.problems += rooms.problems
            findings.notes += rooms.notes
        return self._heeded(findings)

    def look_at_array(self, context: Context, runs: int) -> Findings:
        """Check that Slurm takes arrays of so many runs."""
        problems = array_problems(runs, context.cluster, context.cluster_source)
        return self._heeded(Findings(problems, [], f"{_OUTDATED}; " if problems else ""))

    def compare_runs(self) -> list[str]:
        """Tell what the runs that were looked at would share, though each needs its own."""
        programs = {id(program): program for program, _ in self._given}
        program = next(iter(programs.values()), None)
        facts = program.reading.facts if program is not None and program.reading else None
        if program is None or facts is None or len(programs) > 1:
            return []
        words = [given for _, given in self._given]
        reads = program.reads_variables
        return shared_folder_notes(program.name, facts, words, reads_variables=reads)

    def _program(
        self, context: Context, spec: JobSpec, found: Interpreter, plan: Plan | None
    ) -> tuple[Program, list[str]]:
        """The program, and the words that it is given, placeholders filled."""
        key = (spec.script, spec.module, tuple(spec.command or ()), found.python, plan is None)
        program = self._programs.get(key)
        if program is None or spec.command is not None:
            program = find_program(context, spec, inside=found.inside)
            given = _given(context, spec, plan, program, inside=found.inside)
            copied = spec.snapshot and spec.command is None and context.code is None
            git = (
                ask_git(context.project, program.path, context.environ)
                if copied and program.path is not None
                else None
            )
            try:
                read_program(context, spec, found, program)
                if is_ignored(git):
                    program.refuse(
                        "script" if spec.script else "module",
                        f"{program.name}: git ignores it, so it is not in the run's copy of the "
                        "code; take it out of .gitignore, or say snapshot: false to run the code "
                        "in place",
                    )
            finally:
                if git is not None:
                    git.drop()
            self._programs[key] = program
            return program, given
        return program, _given(context, spec, plan, program, inside=found.inside)

    def _heeded(self, findings: Findings) -> Findings:
        if self._heed or not findings.problems:
            findings.fix += OVERRIDE if findings.problems else ""
            return findings
        told = [f"--no-check: {problem}" for problem in findings.problems]
        return Findings([], [*told, *findings.notes])


def _given(
    context: Context, spec: JobSpec, plan: Plan | None, program: Program, *, inside: bool
) -> list[str]:
    """The words that the program is given, placeholders filled."""
    if plan is None:
        return []
    if spec.command is None:
        # python SCRIPT, python -m MODULE or python -c TEXT MODULE.
        start = 2 if spec.script is not None or plan.reference_trainer else None
        start = start or plan.program.index(spec.module or "", 2) + 1
        return plan.program[start:]
    if inside or _makes_files(plan) or plan.setup.uv:
        return []  # what is not here may be there
    return command_program(context, plan.program, program)


def _makes_files(plan: Plan) -> bool:
    """Tell whether the setup may make what is not here yet."""
    return bool(plan.setup.commands or plan.setup.node_commands or plan.setup.stage)


def _look_at_words(
    context: Context,
    spec: JobSpec,
    plan: Plan,
    program: Program,
    words: Sequence[str],
    given: Sequence[str],
    findings: Findings,
) -> None:
    facts = program.reading.facts if program.reading else None
    typed = [*spec.args, *words]
    if facts is not None:
        findings.notes += argument_notes(given, program.name, facts)
        if spec.command is None:
            batch, reads = plan.effective_batch, program.reads_variables
            for notes in (
                deepspeed_notes(
                    spec, typed, program.name, facts, effective=batch, reads_variables=reads
                ),
                batch_notes(
                    spec, typed, given, program.name, facts, effective=batch, reads_variables=reads
                ),
                backend_notes(
                    spec,
                    program.name,
                    facts,
                    accelerator=plan.accelerator,
                    world_size=plan.world_size,
                ),
            ):
                findings.notes += notes
    setup = spec.setup
    inside = setup.container is not None or context.cluster.setup.container is not None
    if not inside and not _makes_files(plan):
        findings.notes += list(_missing_files(context.project, given))
    findings.notes += secret_notes(
        spec.env,
        [*typed, *(spec.command or [])],
        [*setup.commands, *setup.node_commands],
        context.cluster.env,
    )


def _missing_files(project: Path, words: Sequence[str]) -> Iterator[str]:
    """Tell of words that name a file in a folder of the project, where there is none."""
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            option = name
        elif word.startswith("-"):
            option = word
            continue
        else:
            value = word
        asked, option = option, ""
        if not _names_file(asked, value):
            continue
        path = Path(os.path.normpath(project / value))
        if not path.is_relative_to(project) or path == project or os.path.lexists(path):
            continue
        # A model of a hub is named like a path too: the folder must be one of the project's.
        if not path.parent.is_dir() or ("/" not in value and not asked):
            continue
        beside = [file.name for file in itertools.islice(path.parent.iterdir(), 1000)]
        close = difflib.get_close_matches(path.name, beside, 1, 0.75)
        hint = f"; did you mean {path.parent.relative_to(project) / close[0]}?" if close else ""
        where = f"args: {asked} " if asked else "args: "
        yield f"{where}{value}: the project has no such file{hint}"


def _names_file(option: str, value: str) -> bool:
    if re.search(r"[\s{}$*?:,\[\]<>|]", value) or value.endswith("/"):
        return False
    if _WRITTEN.search(option or value) or (option and not _READ.search(option)):
        return False
    return _ENDS.search(value) is not None
