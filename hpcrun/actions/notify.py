"""Notifications: the file of a run from which its job, and those who watch it, send them."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun.actions.notify_settings import resolve_channels
from hpcrun.actions.prepare import Prepared
from hpcrun.assets import config_dir, own_command, user_name
from hpcrun.context import Context
from hpcrun.jobside import write_config
from hpcrun.plan import Plan, format_label
from hpcrun.runs import RunFolder, SweepFolder


def write_notify_config(context: Context, made: Prepared, one: Prepared) -> None:
    """Write the file from which a run, or a sweep and its runs, send notifications."""
    plan = one.plan
    notify = (made.runs[0] if made.runs else made).plan.notify
    if notify is None:
        return
    task = None
    if made.is_sweep:
        head, _, tail = made.plan.run_id.rpartition("-")
        runs_dir = Path(made.runs[0].plan.run_dir).parent
        task = {
            "folder": str(runs_dir / made.path.name),
            "before": f"{runs_dir}/{head}.",
            "after": f"-{tail}",
            "runs": len(made.runs),
            "label": format_label(one.values),
        }
    folder = SweepFolder(one.path) if one.is_sweep else RunFolder(one.path)
    config = {
        "on": notify.on,
        "to": resolve_channels(context.environ, notify.to)[0],
        "asked": notify.to,
        "per_hour": notify.per_hour,
        "name": made.plan.name,
        "run_id": plan.run_id,
        "cluster": context.cluster.name,
        "user": user_name(context.environ),
        "folder": plan.project_dir,
        "project": plan.provenance.project,
        "in_job": context.cluster.internet,
        "why": _why_argv(context, plan),
        "sweep": task,
    }
    write_config(os.fspath(folder.notify), config)


def _why_argv(context: Context, plan: Plan) -> list[str]:
    """Return the command by which a job finds the cause of its failure; [] if it cannot."""
    if context.cluster.host is not None:
        return []
    is_users = str(config_dir(context.environ)) in context.cluster_source
    cluster = ["--cluster", context.cluster.name] if is_users else []
    return [*own_command(), "why", plan.run_id, "--json", *cluster]
