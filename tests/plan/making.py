"""Jobs, clusters and plans for the tests of planning and rendering."""

from __future__ import annotations

from typing import Any

from hpcrun.errors import InputError
from hpcrun.plan.build import build_plan
from hpcrun.plan.types import Plan, PlanInputs
from hpcrun.spec.job import Cluster, JobSpec
from hpcrun.spec.load import load_cluster, load_job

PLACE = PlanInputs(
    run_id="20261120-081455-train-7k3q",
    created="2026-11-20T08:14:55Z",
    run_dir="/scratch/runs/20261120-081455-train-7k3q",
    project_dir="/home/me/project",
    cache_dir="/scratch/cache",
    python="/opt/env/bin/python",
)


def job(text: str) -> JobSpec:
    """Parse a job that extends no other file."""

    def resolve(name: str) -> tuple[str, str]:
        raise InputError(f"{name}: no such job")

    return load_job(text, source="job.yaml", resolve=resolve)


def cluster(text: str = "") -> Cluster:
    """Parse a cluster profile."""
    return load_cluster(text, source="hpcrun.yaml")


def plan(text: str, profile: str = "", *, words: list[str] | None = None, **more: Any) -> Plan:
    """Plan a job on a cluster."""
    return build_plan(job(text), cluster(profile), PLACE, extra_args=words or [], **more)


def variables(made: Plan, network: str = "") -> dict[str, str]:
    """Return all variables with the values bash ends up with: a later section wins.

    ``network`` is what the first node shows where the plan leaves the fabric to it.
    """
    return {
        k: v
        for section in made.environment
        if not section.fabrics or network in section.fabrics
        for k, v in section.variables.items()
    }
