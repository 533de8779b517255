"""What jobs look like that hpcrun did not submit, on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from hpcrun.cli.output import pairs, say, show_next, table
from hpcrun.cli.show_status import state_line, verdict_json, why_json, why_lines
from hpcrun.controller.state.foreign import ForeignStatus
from hpcrun.controller.state.why import WhyWaiting
from hpcrun.controller.state.words import reason_text
from hpcrun.slurm.states import parse_exit_code, say_exit_code, say_limit


def foreign_json(status: ForeignStatus, why: WhyWaiting | None) -> dict[str, Any]:
    """The stable JSON of a job that hpcrun did not submit; ``run_id`` is null."""
    row, facts = status.queue or status.account, status.facts
    return {
        "kind": "job",
        "id": status.job_id,
        "run_id": None,
        "job_id": status.job_id,
        "name": row.name if row else None,
        **verdict_json(status.verdict),
        "exit_code": parse_exit_code(_exit_code(status)),
        **why_json(why),
        "user": (row.user if row else "") or None,
        "partition": (row.partition if row else "") or None,
        "account": facts.account or None if facts else None,
        "qos": facts.qos or None if facts else None,
        "node_list": row.node_list if row else None,
        "nodes": int(row.nodes) if row and row.nodes.isdigit() else None,
        "gpus": facts.gpus if facts else None,
        "elapsed": row.elapsed if row else None,
        "limit": row.limit if row else None,
        "work_dir": (row.work_dir if row else "") or None,
        "stdout": facts.stdout or None if facts else None,
        "stderr": facts.stderr or None if facts else None,
    }


def show_foreign(
    job_id: str, statuses: Sequence[ForeignStatus], whys: Mapping[str, WhyWaiting]
) -> None:
    """Print what Slurm knows of a job that hpcrun did not submit, or of an array's tasks."""
    if len(statuses) == 1:
        _show_one(statuses[0], whys.get(statuses[0].job_id))
        return
    say(f"job {job_id}, not submitted by hpcrun: {len(statuses)} tasks or parts")
    rows = []
    for status in statuses:
        row, why = status.queue or status.account, whys.get(status.job_id)
        remark = why.text() if why else reason_text(status.verdict)
        elapsed, nodes = (row.elapsed, row.node_list) if row else ("", "")
        rows.append([status.job_id, status.verdict.state, elapsed, nodes or "-", remark])
    table(["JOBID", "STATE", "TIME", "NODES", ""], rows)
    if "_" in statuses[0].job_id:
        show_next((f"status {statuses[0].job_id}", "one of them in detail"))


def _show_one(status: ForeignStatus, why: WhyWaiting | None) -> None:
    row, facts = status.queue or status.account, status.facts
    name = f" {click.style(row.name, bold=True)}" if row else ""
    say(f"job {status.job_id}{name}, not submitted by hpcrun")
    rows = [("state", state_line(status.verdict)), *why_lines(why)]
    if row is not None:
        rows += [("user", row.user), ("partition", row.partition)]
    if facts is not None:
        rows += [("account", facts.account), ("qos", facts.qos)]
        gpus = "" if facts.gpus is None else f", {facts.gpus} GPU{'s' if facts.gpus != 1 else ''}"
        rows.append(("asks for", f"{_many(facts.nodes, 'node')}, {_many(facts.cpus, 'CPU')}{gpus}"))
    if row is not None:
        rows += [
            ("time", f"{row.elapsed} {say_limit(row.limit)}".strip()),
            ("nodes", row.node_list),
        ]
    rows.append(("exit code", say_exit_code(_exit_code(status)).removeprefix("exit code ")))
    if row is not None:
        rows.append(("folder", row.work_dir))
    if facts is not None:
        rows += [("script", facts.command), ("output", facts.stdout)]
        rows += [("errors", facts.stderr)] * (facts.stderr != facts.stdout)
    rows += [("note", text) for text in status.verdict.notes]
    pairs((key, text) for key, text in rows if text)
    verbs = [(f"logs {status.job_id}", "its output")]
    if not status.verdict.final:
        verbs.append((f"cancel {status.job_id}", "end it"))
    show_next(*verbs)


def _many(number: str, noun: str) -> str:
    """Write a number, or the least and the most, as scontrol does, with its noun."""
    least, _, most = number.partition("-")
    number = least if least == most else number
    return f"{number} {noun}" + ("s" if number != "1" else "")


def _exit_code(status: ForeignStatus) -> str:
    """Slurm's ``code:signal`` of a job that is over; without accounting scontrol tells, a while."""
    told = status.account or status.facts
    return told.exit_code if told is not None and status.verdict.final else ""
