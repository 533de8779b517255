"""Builds the record of a submission: job, user, host, and what listings show of its plan."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from msgspec import structs

from hpcrun.assets import user_name
from hpcrun.context import Context, current_slurm_conf
from hpcrun.errors import HpcrunError
from hpcrun.plan import Plan, split_options
from hpcrun.runs import (
    SUBMITTED,
    RunFolder,
    Submitted,
    SweepFolder,
    parse_creation_time,
    parse_sweep_id,
    read_plan,
    write_record,
)
from hpcrun.secrets import is_secret_setting

# Options that a listing may show: their number, and characters of a value.
_MAX_ARGUMENTS, _MAX_ARGUMENT = 200, 200


def record_recovered_job(context: Context, folder: Path, job_id: str) -> None:
    """Record the job id of a submission that was interrupted before that.

    The id was found by the folder of a run or of a sweep's array. Folders of other users are not
    changed.
    """
    sweep_id = parse_sweep_id(folder.name)
    plan = read_plan(RunFolder(folder) if sweep_id is None else SweepFolder(folder).run(0))
    with contextlib.suppress(OSError, HpcrunError, ValueError):
        if plan is not None and folder.stat().st_uid == os.getuid():
            plan = structs.replace(plan, run_id=sweep_id or plan.run_id)
            record = build_submitted_record(context, plan)
            at = parse_creation_time(plan.run_id)
            cluster = plan.cluster
            record = structs.replace(record, job_id=job_id, submitted_at=at, cluster=cluster)
            if sweep_id is not None:
                record = structs.replace(record, arguments=None)
            write_record(folder / SUBMITTED, record)


def build_submitted_record(context: Context, plan: Plan) -> Submitted:
    """Build the record of a submission, without its job id."""
    return Submitted(
        job_id=None,
        run_id=plan.run_id,
        cluster=context.cluster.name,
        slurm_conf=current_slurm_conf(context),
        submitted_at=time.time(),
        host=os.uname().nodename,
        user=user_name(context.environ),
        name=plan.name,
        nodes=plan.all_nodes if not plan.node_range else None,
        gpus_per_node=plan.all_gpus_per_node,
        log_patterns=plan.log_patterns,
        group=plan.group,
        project=plan.provenance.project or None,
        runs_per_job=plan.runs_per_job,
        checkpoint_dir=plan.checkpoint_dir if plan.shares_checkpoint_dir else None,
        arguments=_list_arguments(plan),
    )


def _list_arguments(plan: Plan) -> dict[str, str]:
    """Return the options of a program, without secrets and directories of the run itself."""
    own = (plan.run_dir, plan.checkpoint_dir, plan.run_id)
    found = {
        name: value
        for name, value in split_options("", plan.program)
        if name and len(value) <= _MAX_ARGUMENT and not any(each and each in value for each in own)
        if not is_secret_setting(name, value)
    }
    return dict(list(found.items())[:_MAX_ARGUMENTS])
