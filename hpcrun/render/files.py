"""Plan to the text of every file that the job gets.

The templates are an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hpcrun.plan.directives import check_carried
from hpcrun.plan.launchers import LAUNCHERS
from hpcrun.plan.types import Plan
from hpcrun.render import shipped
from hpcrun.render.container import apptainer_words, kept_variables, pyxis_words
from hpcrun.render.quoting import quote_word

if TYPE_CHECKING:
    import jinja2

# Files that are the same in every run.
FIXED = ("harness.sh", "hardware.sh", "world.sh", "setup.sh", "local.sh", "hosts.sh")


class Templates(Protocol):
    """Where the templates are; see hpcrun.assets.Templates."""

    @property
    def own(self) -> bool:
        """Whether the project has some of its own."""

    def shipped_text(self, name: str) -> str:
        """Read a file that is the same in every run."""

    def loader(self) -> jinja2.BaseLoader:
        """Give Jinja the project's own and, as ``hpcrun/NAME``, the shipped ones."""


class RenderedFile(msgspec.Struct, frozen=True):
    """A file of the run folder: its name there, and its text."""

    name: str
    text: str


def render_files(plan: Plan, templates: Templates) -> list[RenderedFile]:
    """Render job.sbatch, node.sh, deepspeed.json and plan.json; add harness.sh, hardware.sh.

    A project's own ``templates/job.sbatch.j2`` that begins with
    ``{% extends "hpcrun/job.sbatch.j2" %}`` overrides single blocks. Raises InputError for a
    template that is wrong, and for a value that Slurm cannot carry.
    """
    check_carried(plan)
    values = template_values(plan)
    files = [
        RenderedFile(name, render_template(templates, name, values))
        for name in ("job.sbatch", "node.sh")
    ]
    files += [RenderedFile(name, templates.shipped_text(name)) for name in FIXED]
    if plan.deepspeed_config is not None:
        text = json.dumps(plan.deepspeed_config, indent=2) + "\n"
        files.append(RenderedFile("deepspeed.json", text))
    if plan.accelerate_config is not None:
        import yaml  # here: few jobs have one, and it takes longer than all else of a submission

        text = yaml.safe_dump(plan.accelerate_config, sort_keys=False, allow_unicode=True)
        files.append(RenderedFile("accelerate.yaml", text))
    files.append(RenderedFile("plan.json", _indented(msgspec.to_builtins(plan)) + "\n"))
    return files


def _indented(value: object) -> str:
    """Write JSON with line ends: json.dumps(indent=1) is slow Python, which a sweep would feel."""
    plain = json.dumps(value)
    try:
        return msgspec.json.format(plain, indent=1)
    except msgspec.DecodeError:  # half of a surrogate pair: a byte that is not UTF-8
        return json.dumps(value, indent=1)


def render_template(templates: Templates, name: str, values: Mapping[str, Any]) -> str:
    """Render ``NAME.j2``: by Jinja where the project has templates of its own.

    Else by the functions that the shipped templates were translated to: Jinja takes longer to
    import and to compile them than all else of a submission. Raises InputError for a template of
    the project's that is wrong.
    """
    if not templates.own:
        return shipped.RENDER[name](values)
    from hpcrun.render.own import render_own

    return render_own(templates.loader(), name, values)


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
    launcher = LAUNCHERS[plan.launcher]
    if plan.hosts:
        return [launcher.remote, plan.python or "python3", *plan.hosts]
    argv = ["srun", f"--nodes={plan.nodes}", f"--ntasks={plan.nodes * plan.tasks_per_node}"]
    argv.append(f"--ntasks-per-node={plan.tasks_per_node}")
    if launcher.task == "rank":
        # Ranks of a node follow one another, whatever the site's or the shell's default is.
        argv.append("--distribution=block")
    if "cpus-per-task" in dict(plan.directives):
        cpus = plan.cpus_per_rank * plan.ranks_per_node // plan.tasks_per_node
        argv.append(f"--cpus-per-task={cpus}")
    argv.append("--kill-on-bad-exit=1")
    if launcher.task != "command":
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
