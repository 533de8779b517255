"""What a submission and a dry run look like."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import structs

from hpcrun.cli.output import emit_json, message, pairs, say, show_next
from hpcrun.plan.types import Plan
from hpcrun.render.files import FIXED, RenderedFile
from hpcrun.slurm.sbatch import Estimate


def describe(plan: Plan, *, bare: bool) -> list[tuple[str, str]]:
    """Say the plan in a few lines."""
    rows = [("run", plan.run_id)]
    if plan.description:
        rows.append(("what", plan.description))
    what = "one process a node" if plan.launcher == "none" else f"{plan.launcher}, {plan.precision}"
    shape = f"{count(plan.nodes, 'node')} × {count(plan.gpus_per_node, 'GPU')}"
    if plan.gpus_per_node and plan.accelerator == "cpu":
        shape += " (CPUs stand in for them here)"
    rows.append(("shape", f"{shape}, {what}"))
    ranks = count(plan.world_size, "rank")
    if not bare:
        rows.append(
            (
                "batch",
                f"{plan.micro_batch_per_gpu} per GPU × {plan.gradient_accumulation_steps} "
                f"accumulated × {ranks} = {plan.effective_batch} effective",
            )
        )
    rows.append(("folder", plan.run_dir))
    rows += [("note", text) for text in plan.notes]
    return rows


def count(number: int, noun: str) -> str:
    """Write a number with its noun.

    >>> count(1, "node"), count(4, "GPU")
    ('1 node', '4 GPUs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show_submission(plan: Plan, job_id: str, *, bare: bool) -> None:
    """Say what was submitted, and what to type next."""
    say(f"Submitted {click.style(plan.name, bold=True)} to {plan.cluster} as job {job_id}")
    pairs(describe(plan, bare=bare))
    show_next(
        (f"logs -f {job_id}", "its output as it comes"),
        (f"status {job_id}", "its state"),
        (f"parse {job_id}", "the loss curve"),
        (f"cancel {job_id}", "end it"),
    )


def show_estimate(plan: Plan, estimate: Estimate, *, as_json: bool) -> None:
    """Say when and where a job would start, as things are now."""
    if as_json:
        told = {"name": plan.name, "cluster": plan.cluster, **structs.asdict(estimate)}
        emit_json({**told, "notes": plan.notes})
        return
    say(f"{click.style(plan.name, bold=True)} is not submitted; {plan.cluster} would take it")
    rows = [
        ("start", _start(estimate)),
        ("nodes", f"{estimate.nodes or '?'}, {count(estimate.processors, 'processor')}"),
    ]
    if estimate.partition:
        rows.append(("partition", estimate.partition))
    pairs([*rows, *(("note", text) for text in plan.notes)])


def _start(estimate: Estimate) -> str:
    from datetime import datetime  # here: it is for estimates alone

    from hpcrun.controller.state.why import NOT_FORESEEN, is_foreseen, parse_time

    start = parse_time(estimate.start)
    is_known = start is None or is_foreseen(start, datetime.now())
    return estimate.start.replace("T", " ") if is_known else NOT_FORESEEN


def show_files(files: Sequence[RenderedFile], *, as_json: bool, notes: Sequence[str] = ()) -> None:
    """Print what a submission would write; notes go to where messages go.

    In JSON they are the one key that is no file's name.
    """
    if as_json:
        emit_json({file.name: file.text for file in files} | {"notes": list(notes)})
        return
    for text in notes:
        message("note", text, dim=True)
    shown = [file for file in files if file.name not in (*FIXED, "plan.json")]
    for file in shown:
        say(click.style(f"==> {file.name} <==", bold=True))
        say(file.text)
