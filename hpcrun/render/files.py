"""Plan to the text of every file that the job gets.

Pure: the template loader is an argument.
"""

from __future__ import annotations

import json

import jinja2
import msgspec

from hpcrun.errors import InputError
from hpcrun.plan.build import check_carried
from hpcrun.plan.types import Plan
from hpcrun.render.quoting import FILTERS, quote_bash


class RenderedFile(msgspec.Struct, frozen=True):
    """A file of the run folder: its name there, and its text."""

    name: str
    text: str


def render_files(plan: Plan, loader: jinja2.BaseLoader) -> list[RenderedFile]:
    """Render job.sbatch, node.sh, harness.sh, deepspeed.json and plan.json.

    A project's own ``templates/job.sbatch.j2`` that begins with
    ``{% extends "hpcrun/job.sbatch.j2" %}`` overrides single blocks. Raises InputError for a
    template that is wrong, and for a value that Slurm cannot carry.
    """
    check_carried(plan)
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(FILTERS)
    try:
        values = {
            "plan": plan,
            "srun": srun_argv(plan),
            "program_lines": program_lines(plan.program),
        }
        texts = {
            name: environment.get_template(f"{name}.j2").render(values)
            for name in ("job.sbatch", "node.sh")
        }
        harness, _, _ = loader.get_source(environment, "hpcrun/harness.sh")
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f"{getattr(error, 'name', None) or 'templates'}{f':{line}' if line else ''}"
        raise InputError(f"{where}: {error}", fix="mend the template in templates/") from error
    files = [RenderedFile(name, text) for name, text in texts.items()]
    files.append(RenderedFile("harness.sh", harness))
    if plan.deepspeed_config is not None:
        text = json.dumps(plan.deepspeed_config, indent=2) + "\n"
        files.append(RenderedFile("deepspeed.json", text))
    files.append(RenderedFile("plan.json", json.dumps(msgspec.to_builtins(plan), indent=1) + "\n"))
    return files


def srun_argv(plan: Plan) -> list[str]:
    """Build the step: a task a node for a launcher, a task a rank for srun itself.

    srun forgets --cpus-per-task from Slurm 22.05 to 23.02, so it is said again, unless the site
    forbids the directive. A rank that fails ends all others at once. A world whose first rank has
    ended well is ended ten minutes later, the time-out of NCCL's collectives: rank 0 may still be
    saving, and a site's own WaitTime may be shorter.
    """
    argv = ["srun", f"--nodes={plan.nodes}", f"--ntasks-per-node={plan.tasks_per_node}"]
    cpus = dict(plan.directives).get("cpus-per-task")
    if cpus is not None:
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
            lines.append(quote_bash(word))
        else:
            lines[-1] += " " + quote_bash(word)
    return lines
