"""The script of a sweep's array.

The templates are an argument.
"""

from __future__ import annotations

from hpcrun.plan.directives import check_carried
from hpcrun.plan.types import Plan
from hpcrun.render.files import RenderedFile, Templates, render_template, template_values


def render_array(plan: Plan, templates: Templates) -> RenderedFile:
    """Render the array's job.sbatch: the directives of its runs, and the way to a task's run.

    It is the runs' own template but for the part after the directives, so that a project's
    template speaks here too. Raises InputError as render_files() does.
    """
    check_carried(plan)
    runs_dir, _, _ = plan.run_dir.rpartition("/")
    head, _, tail = plan.run_id.rpartition("-")
    values = {**template_values(plan), "before": f"{runs_dir}/{head}.", "after": f"-{tail}"}
    text = render_template(templates, "array.sbatch", values)
    return RenderedFile("job.sbatch", text)
