"""What is to be copied to the nodes is looked for at submission, where it can be seen from here."""

from __future__ import annotations

from hpcrun.controller.context import Context
from hpcrun.controller.interpreter import seen
from hpcrun.errors import Problem, SpecError
from hpcrun.plan.types import Plan


def check_staged(context: Context, plan: Plan) -> None:
    """Refuse sources that are not there. Raises SpecError with all of them."""
    problems = [
        Problem("", None, f"stage.{source}", "no such file or folder")
        for source, _ in plan.setup.stage
        if not seen(context, source, "stage")
    ]
    if problems:
        raise SpecError(problems)
