"""Render all files of a run directory from a plan with Jinja."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import jinja2
import jinja2.meta
import msgspec
import yaml

from hpcrun.assets import build_archive
from hpcrun.errors import InputError
from hpcrun.patterns import time_limit
from hpcrun.plan import (
    HOOK,
    LAUNCHERS,
    RUNTIMES,
    Plan,
    check_slurm_values,
    launch_argv,
    list_defaults,
    uses_modules,
)
from hpcrun.render.quoting import FILTERS, quote_bash, quote_expanded, quote_word

# Files that are identical in all runs.
FIXED = (
    *("harness.sh", "batch.sh", "jobside.sh", "hardware.sh", "setup.sh", "local.sh"),
    *("clean.sh", "preflight.sh", "records.sh", "stacks.sh", "usage.sh"),
)
# Limits of rendering one file, which takes milliseconds.
_RENDER_LIMIT_S = 20.0  # of CPU time
_LARGEST = 10_000_000
# How the hosts of a hostfile are reached.
HOSTS_SCRIPT = "hosts.sh"
# The modules of hpcrun.jobside in one archive.
ARCHIVE = "jobside.pyz"


class RenderedFile(msgspec.Struct, frozen=True):
    """A file of the run directory; a binary file's ``text`` has its bytes (surrogateescape)."""

    name: str
    text: str

    @property
    def is_binary(self) -> bool:
        """True for archives, which people do not read."""
        return self.name in (ARCHIVE, HOOK)


def render_files(plan: Plan, templates: jinja2.Environment) -> list[RenderedFile]:
    """Render all files of a run except spec.yaml.

    A project's own ``templates/job.sbatch.j2`` that begins with
    ``{% extends "hpcrun/job.sbatch.j2" %}`` overrides single blocks.

    Args:
        templates: See open_templates().

    Raises:
        InputError: If a template is invalid, or Slurm cannot transport a value.
    """
    check_slurm_values(plan)
    values = _template_values(plan)
    files = [
        RenderedFile(name, _render(templates, name, values)) for name in ("job.sbatch", "node.sh")
    ]
    container = plan.setup.container
    if container is not None and (name := RUNTIMES[container.runtime].file):
        files.append(RenderedFile(name, _render(templates, name, values)))
    files += [RenderedFile(name, _shipped_text(templates, name)) for name in FIXED]
    files.append(RenderedFile(ARCHIVE, _archive_text(job_features(plan))))
    if plan.hosts:
        files.append(RenderedFile(HOSTS_SCRIPT, _shipped_text(templates, HOSTS_SCRIPT)))
    if plan.preflight:
        files.append(RenderedFile(HOOK, _shipped_text(templates, HOOK)))
    if plan.preflight == "full":
        files.append(RenderedFile("preflight.py", _shipped_text(templates, "preflight.py")))
    if plan.deepspeed_config is not None:
        text = json.dumps(plan.deepspeed_config, indent=2) + "\n"
        files.append(RenderedFile("deepspeed.json", text))
    if plan.accelerate_config is not None:
        text = yaml.safe_dump(plan.accelerate_config, sort_keys=False, allow_unicode=True)
        files.append(RenderedFile("accelerate.yaml", text))
    if plan.roles:
        text = json.dumps(msgspec.to_builtins(plan.roles), indent=1) + "\n"
        files.append(RenderedFile("roles.json", text))
    return [*files, _render_plan(plan)]


def job_features(plan: Plan) -> frozenset[str]:
    """Return the keys of JOB_FEATURES that a job uses."""
    used = {
        "notify": plan.notify is not None,
        "hosts": bool(plan.hosts),
        # The counts of a range of nodes share the archive: the job copies only text files.
        "nodes": plan.nodes > 1 or bool(plan.node_range or plan.hosts),
        "ray": plan.launcher == "ray",
        "roles": bool(plan.roles),
        "search": plan.search,
    }
    return frozenset(name for name, is_used in used.items() if is_used)


def replace_archive(
    files: Sequence[RenderedFile], plan: Plan, features: Collection[str]
) -> list[RenderedFile]:
    """Return the files of a run whose archive of the job side also has other features."""
    text = _archive_text(job_features(plan).union(features))
    return [RenderedFile(ARCHIVE, text) if file.name == ARCHIVE else file for file in files]


@cache  # the runs of a sweep share the text
def _archive_text(features: frozenset[str]) -> str:
    """Return the archive of the job side as text that encodes its bytes (surrogateescape)."""
    return build_archive(features).decode("utf-8", "surrogateescape")


def _render_plan(plan: Plan) -> RenderedFile:
    # msgspec adds the line ends: json.dumps(indent=1) is too slow for large sweeps.
    record = msgspec.to_builtins(plan)
    for name in ("role", "roles", "components", "search", "trial"):
        if not record[name]:
            del record[name]  # of jobs without roles or a search
    plain = json.dumps(record)
    try:
        text = msgspec.json.format(plain, indent=1)
    except msgspec.DecodeError:  # a lone surrogate stands for a byte that is not UTF-8
        text = json.dumps(json.loads(plain), indent=1)
    return RenderedFile("plan.json", text + "\n")


def render_recorder(plan: Plan, templates: jinja2.Environment) -> list[RenderedFile]:
    """Render the files of a run of the user's own sbatch script, besides the script."""
    scripts = [
        RenderedFile(name, _shipped_text(templates, name)) for name in ("records.sh", "script.sh")
    ]
    return [*scripts, _render_plan(plan)]


def insert_recorder(
    text: str,
    run_dir: str,
    folders: tuple[str, str],
    own_signal: str,
    *,
    after_index: str | None = None,
) -> str:
    """Return an sbatch script with one line, above its first command, that starts script.sh.

    All other bytes stay as they are. Above the first command are only comments and directives,
    which sbatch still reads.

    Args:
        run_dir: The folder of the run; of an array, what precedes the index of the task.
        after_index: Of an array, what follows the index of the task in its folder.
        folders: The directories of the submission, and in which the script runs.
        own_signal: "TERM" if the script handles the TERM of ``--signal=B:TERM``.

    >>> text = "#!/bin/bash\\n#SBATCH -N 1\\n\\nhostname\\n"
    >>> insert_recorder(text, "/r", ("/p", "/p"), "").splitlines()[3][:44]
    '{ if [ "${HPCRUN_SCRIPT-}" = body ]; then un'
    """
    program = quote_bash(f"{run_dir}/script.sh")
    if after_index is not None:
        program = f'{quote_bash(run_dir)}"$SLURM_ARRAY_TASK_ID"{quote_bash(after_index)}/script.sh'
    words = " ".join([program, *map(quote_bash, folders), quote_bash(own_signal)])
    # File descriptor 9 keeps stderr, so that bash -x does not trace this line.
    line = (
        '{ if [ "${HPCRUN_SCRIPT-}" = body ]; then unset HPCRUN_SCRIPT; '
        f'else exec bash -- {words} "$0" "$@" 2>&9 9>&-; fi; }} 9>&2 2>/dev/null'
        " # inserted by hpcrun: records this job\n"
    )
    at = 0
    for raw in text.splitlines(keepends=True):
        if raw.strip() and not raw.lstrip().startswith("#"):
            return text[:at] + line + text[at:]
        at += len(raw)
    return text + ("" if text.endswith("\n") else "\n") + line


def render_array(plan: Plan, templates: jinja2.Environment, runs: int) -> list[RenderedFile]:
    """Render the job.sbatch of a sweep's array, in which each task finds its run.

    The template extends that of a run, so a project's own template applies here too.

    Raises:
        InputError: As render_files() does.
    """
    check_slurm_values(plan)
    runs_dir, _, _ = plan.run_dir.rpartition("/")
    head, _, tail = plan.run_id.rpartition("-")
    places = {"before": f"{runs_dir}/{head}.", "after": f"-{tail}", "runs": runs}
    values = {**_template_values(plan), **places, "array_dir": f"{runs_dir}/{plan.run_id}.array"}
    files = [RenderedFile("job.sbatch", _render(templates, "array.sbatch", values))]
    if plan.runs_per_job > 1:
        files.append(RenderedFile("share.sh", _shipped_text(templates, "share.sh")))
    return files


# ---- Values for templates -----------------------------------------------------------------------


def _template_values(plan: Plan) -> dict[str, object]:
    return {
        "plan": plan,
        "launcher": LAUNCHERS[plan.launcher],
        "srun": launch_argv(plan),
        "runtime": RUNTIMES[plan.setup.container.runtime] if plan.setup.container else None,
        "container": build_container_options(plan),
        "kept": _list_kept_variables(plan),
        "defaults": list_defaults(plan.environment),
        "program_lines": format_program_lines(plan.program)
        + format_resume_lines(plan.survive.resume),
    }


def build_container_options(plan: Plan) -> list[str]:
    """Build the options of a container runtime, one line each, in the runtime's syntax."""
    container = plan.setup.container
    if container is None:
        return []
    runtime = RUNTIMES[container.runtime]
    options = [quote_bash(option) for option in container.options]
    if runtime.file:
        return [f"{runtime.image}{quote_bash(f'{plan.run_dir}/{runtime.file}')}", *options]
    mounts = [quote_expanded(mount) for mount in container.mounts]
    return [
        *runtime.start,
        f"{runtime.workdir}{quote_bash(plan.start_dir)}",
        *(f"{runtime.mount}{one}" for one in ([",".join(mounts)] if runtime.joins else mounts)),
        *options,
        f"{runtime.image}{quote_expanded(container.image)}",
    ]


def _list_kept_variables(plan: Plan) -> list[str]:
    """List the job's variables whose values override those of the image."""
    if plan.setup.container is None:
        return []
    names = {
        name
        for section in plan.environment
        if section.block != "node"
        for name in section.variables
        if name not in section.keeps and not name.startswith("HPCRUN_")
    }
    return sorted({*names, *plan.secrets})


def format_program_lines(program: list[str]) -> list[str]:
    """Split a command into readable lines, with an option and its value on one line.

    >>> format_program_lines(["python", "train.py", "--lr", "1e-4", "--fast"])
    ['python train.py', '--lr 1e-4', '--fast']
    """
    lines: list[str] = []
    for word in program:
        starts = word.startswith("-") or not lines
        if starts or (lines[-1].startswith("-") and " " in lines[-1]):
            lines.append(quote_word(word))
        else:
            lines[-1] += " " + quote_word(word)
    return lines


def format_resume_lines(words: list[str]) -> list[str]:
    """Write the arguments that bash adds only if there is a checkpoint to resume from.

    >>> print(*format_resume_lines(["--resume", "${HPCRUN_RESUME}"]))
    ${HPCRUN_RESUME:+--resume "$HPCRUN_RESUME"}
    """
    return [f"${{HPCRUN_RESUME:+{' '.join(map(quote_word, words))}}}"] if words else []


# ---- Jinja --------------------------------------------------------------------------------------

# Exceptions that an expression in a template may raise.
_EXPRESSION_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def _render(templates: jinja2.Environment, name: str, values: Mapping[str, Any]) -> str:
    """Render ``NAME.j2``.

    Raises:
        InputError: If a project's template is invalid.
    """
    templates.filters.update(FILTERS, uses_modules=uses_modules)
    try:
        _check_template(templates, f"{name}.j2")
        template = templates.get_template(f"{name}.j2")
        error = InputError(
            f"templates/{name}.j2: rendering takes more than {_RENDER_LIMIT_S:g} s",
            fix="fix the template in templates/",
        )
        parts, size = [], 0
        # A project's own template may contain nested loops.
        with time_limit(_RENDER_LIMIT_S, error):
            for part in template.generate(values):
                parts.append(part)
                size += len(part)
                if size > _LARGEST:
                    raise InputError(
                        f"templates/{name}.j2: the result has more than {_LARGEST:,} characters",
                        fix="fix the template in templates/",
                    )
        text = "".join(parts)
        text.encode("utf-8", "surrogateescape")
        return text
    except InputError:  # another user's template, or a value that a filter refuses
        raise
    except (jinja2.TemplateError, *_EXPRESSION_ERRORS) as error:
        where, line = _locate_error(error, f"{name}.j2")
        raise InputError(
            f"templates/{where}{f':{line}' if line else ''}: {error}",
            fix="fix the template in templates/",
        ) from error


def _check_template(environment: jinja2.Environment, name: str) -> None:
    """Refuse a project's template that overrides no block of the shipped one.

    Raises:
        InputError: If it replaces the shipped template, or overrides an unknown block.
    """
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, name)
    if source == _shipped_text(environment, name):
        return
    bases = set(jinja2.meta.find_referenced_templates(environment.parse(source)))
    if not bases:
        raise InputError(
            f"templates/{name}: it overrides no block of hpcrun's template, but replaces it",
            fix=f'begin it with {{% extends "hpcrun/{name}" %}}',
        )
    known = environment.get_template(f"hpcrun/{name}").blocks
    for block in environment.get_template(name).blocks:
        if f"hpcrun/{name}" in bases and block not in known:
            raise InputError(
                f"templates/{name}: there is no block {block}",
                fix=f"the blocks are {', '.join(known)}",
            )


# The runs of a sweep share the environment, and so the 300 KB of these texts.
@lru_cache(maxsize=64)
def _shipped_text(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, f"hpcrun/{name}")[0]


def _locate_error(error: Exception, name: str) -> tuple[str, int | None]:
    """Return the template and line of an error, from Jinja's report or the traceback."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            name, line = file.rpartition("/")[2], trace.tb_lineno
        trace = trace.tb_next
    return getattr(error, "name", None) or name, getattr(error, "lineno", None) or line
