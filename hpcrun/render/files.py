"""Plan to the text of every file that the job gets.

Pure: the template loader is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import jinja2
import jinja2.meta
import msgspec
import yaml

from hpcrun.errors import InputError
from hpcrun.plan.directives import check_carried
from hpcrun.plan.setup import uses_modules
from hpcrun.plan.types import Plan
from hpcrun.render.container import apptainer_words, kept_variables, pyxis_words
from hpcrun.render.quoting import FILTERS, quote_word

# Files that are the same in every run.
FIXED = ("harness.sh", "hardware.sh", "world.sh", "setup.sh", "local.sh", "hosts.sh")


class RenderedFile(msgspec.Struct, frozen=True):
    """A file of the run folder: its name there, and its text."""

    name: str
    text: str


def render_files(plan: Plan, loader: jinja2.BaseLoader) -> list[RenderedFile]:
    """Render job.sbatch, node.sh, deepspeed.json and plan.json; add harness.sh, hardware.sh.

    A project's own ``templates/job.sbatch.j2`` that begins with
    ``{% extends "hpcrun/job.sbatch.j2" %}`` overrides single blocks. Raises InputError for a
    template that is wrong, and for a value that Slurm cannot carry.
    """
    check_carried(plan)
    environment = make_environment(loader)
    values = template_values(plan)
    texts = {
        name: render_template(environment, loader, name, values)
        for name in ("job.sbatch", "node.sh")
    }
    files = [RenderedFile(name, text) for name, text in texts.items()]
    for name in FIXED:
        source, _, _ = loader.get_source(environment, f"hpcrun/{name}")
        files.append(RenderedFile(name, source))
    if plan.deepspeed_config is not None:
        text = json.dumps(plan.deepspeed_config, indent=2) + "\n"
        files.append(RenderedFile("deepspeed.json", text))
    if plan.accelerate_config is not None:
        text = yaml.safe_dump(plan.accelerate_config, sort_keys=False, allow_unicode=True)
        files.append(RenderedFile("accelerate.yaml", text))
    files.append(RenderedFile("plan.json", json.dumps(msgspec.to_builtins(plan), indent=1) + "\n"))
    return files


def template_values(plan: Plan) -> dict[str, object]:
    """Give what templates may name."""
    return {
        "plan": plan,
        "srun": srun_argv(plan),
        "pyxis": pyxis_words(plan),
        "apptainer": apptainer_words(plan),
        "kept": kept_variables(plan),
        "program_lines": program_lines(plan.program),
    }


@lru_cache(maxsize=1)
def make_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """Make what templates are rendered in: a value that is missing is an error.

    Kept for the next call, since compiling templates takes longer than all else: the runs of a
    sweep share a loader.
    """
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(FILTERS)
    environment.filters["uses_modules"] = uses_modules
    return environment


def render_template(
    environment: jinja2.Environment,
    loader: jinja2.BaseLoader,
    name: str,
    values: Mapping[str, object],
) -> str:
    """Render ``NAME.j2``. Raises InputError for a template that is wrong."""
    try:
        _check_template(environment, loader, f"{name}.j2")
        return environment.get_template(f"{name}.j2").render(values)
    except (jinja2.TemplateError, UnicodeDecodeError) as error:
        where, line = _place(error, f"{name}.j2")
        raise InputError(
            f"templates/{where}{f':{line}' if line else ''}: {error}",
            fix="mend the template in templates/",
        ) from error


def _check_template(environment: jinja2.Environment, loader: jinja2.BaseLoader, name: str) -> None:
    """A project's own template must override blocks of the shipped one. Raises InputError."""
    source, _, _ = loader.get_source(environment, name)
    if source == loader.get_source(environment, f"hpcrun/{name}")[0]:
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


def _place(error: Exception, name: str) -> tuple[str, int | None]:
    """Where in a template an error is: Jinja's own word, else the traceback's."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            name, line = file.rpartition("/")[2], trace.tb_lineno
        trace = trace.tb_next
    return getattr(error, "name", None) or name, getattr(error, "lineno", None) or line


def srun_argv(plan: Plan) -> list[str]:
    """Build the step: a task a node for a launcher, a task a rank for srun itself.

    On the hosts of a hostfile there is no srun: the words tell the harness the way, and the hosts.

    The number of tasks is said twice, or an salloc with another one would win (SLURM_NTASKS).
    srun forgets --cpus-per-task from Slurm 22.05 to 23.02, so it is said again, unless the site
    forbids the directive or has another word for it: 23.11 and later refuse --cpus-per-gpu beside
    it. A rank that fails ends all others at once. A world whose first rank has ended well is ended
    ten minutes later, the time-out of NCCL's collectives: rank 0 may still be saving, and a site's
    own WaitTime may be shorter.
    """
    if plan.hosts:
        return ["pdsh" if plan.launcher == "pdsh" else "ssh", plan.python or "python3", *plan.hosts]
    argv = ["srun", f"--nodes={plan.nodes}", f"--ntasks={plan.nodes * plan.tasks_per_node}"]
    argv.append(f"--ntasks-per-node={plan.tasks_per_node}")
    if plan.launcher == "srun":
        # Ranks of a node follow one another, whatever the site's or the shell's default is.
        argv.append("--distribution=block")
    if "cpus-per-task" in dict(plan.directives):
        cpus = plan.cpus_per_rank * plan.ranks_per_node // plan.tasks_per_node
        argv.append(f"--cpus-per-task={cpus}")
    argv.append("--kill-on-bad-exit=1")
    if plan.launcher != "none":
        argv.append("--wait=600")
    return argv


def program_lines(program: list[str]) -> list[str]:
    """Lay a command out for reading: an option and its value on one line.

    >>> program_lines(["python", "train.py", "--lr", "1e-4", "--fast"])
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
