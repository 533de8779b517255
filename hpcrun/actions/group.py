"""Prepare several submissions under one name: several jobs, or a sweep over resources."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.cluster_host import ClusterHost
from hpcrun.actions.prepare import Prepared, all_at_once, new_run_id, prepare_job, query_host
from hpcrun.context import Context
from hpcrun.errors import InputError, SpecError
from hpcrun.monitor import MAX_GROUP_NAME, find_run_or_sweep
from hpcrun.plan import Dependency, split_sweep
from hpcrun.spec import JobSpec, Origin


class RequestedJob(Struct, frozen=True):
    """A job that the user named, with arguments for its program, and where it was defined."""

    spec: JobSpec
    extra_args: list[str]
    origin: Origin


def split_jobs(context: Context, jobs: Sequence[RequestedJob]) -> list[RequestedJob]:
    """Split sweeps over resources into their parts, which get a group if they have none.

    Raises InputError.
    """
    parts = []
    for job in jobs:
        try:
            specs = split_sweep(job.spec, job.extra_args)
        except SpecError as error:
            raise all_at_once([error], job.origin) from error
        group = job.spec.group
        if len(specs) > 1 and group is None:
            group = make_group_name(job.spec)
        parts += [structs.replace(job, spec=structs.replace(spec, group=group)) for spec in specs]
    for group in {job.spec.group for job in parts} - {None}:
        check_group_name(context, str(group))
    return parts


def make_group_name(spec: JobSpec, kind: str = "sweep", end: str = "") -> str:
    """Return a valid name for a group of runs, from the name of their job.

    Args:
        kind: The beginning of the name if the job's begins with a digit.
        end: The end of the name; by default the random one of a run id.
    """
    slug, _, chance = new_run_id(spec).split("-", 2)[2].rpartition("-")
    start, end = slug if slug[0].isalpha() else f"{kind}-{slug}", end or chance
    return f"{start[: MAX_GROUP_NAME - len(end) - 1]}-{end}"


def check_group_name(context: Context, group: str) -> None:
    """Refuse the name of a run, which would be found instead of the group. Raises InputError."""
    try:
        is_taken = find_run_or_sweep(context.runs_dir, group) is not None
    except InputError:  # it fits several runs
        is_taken = True
    if is_taken:
        raise InputError(f"--as {group}: a run has this name", fix="choose another name")


def prepare_jobs(
    context: Context,
    jobs: Sequence[RequestedJob],
    *,
    after: Dependency | None = None,
    strict: bool = True,
) -> list[Prepared]:
    """Prepare several jobs, all before the first one is submitted. Raises InputError."""
    made: list[Prepared] = []
    errors: list[InputError] = []
    host = query_host(context, jobs[0].spec, jobs[0].extra_args)
    for job in jobs:
        try:
            made.append(
                prepare_job(
                    context,
                    job.spec,
                    host=host,
                    extra_args=job.extra_args,
                    after=after,
                    origin=job.origin,
                    checks=Checks(strict=strict),
                )
            )
        except InputError as error:
            errors.append(error)
    if errors:
        raise all_at_once(errors, jobs[0].origin)
    return check_together(context, host, made, jobs[0].origin, strict=strict)


def check_together(
    context: Context,
    host: ClusterHost,
    made: list[Prepared],
    origin: Origin,
    *,
    waits_for: Sequence[Sequence[int]] = (),
    strict: bool,
) -> list[Prepared]:
    """Check the jobs of one submission together; return them with notes about it.

    Their number is compared with the limits of the site, and their checkpoint directories with
    each other.

    Args:
        waits_for: For each job, the positions of the earlier jobs that end before it starts.

    Raises:
        SpecError: They cannot be submitted together.
    """
    counts = [(one.plan, -(-len(one.each()) // one.plan.runs_per_job)) for one in made]
    checks = Checks(strict=strict)
    counted = checks.count_jobs(context, host, counts)
    plans = [[run.plan for run in one.each()] for one in made]
    saving = checks.compare_checkpoint_dirs(plans, waits_for)
    counted.add(saving)
    counted.fix = counted.fix or saving.fix
    if counted.problems:
        raise all_at_once([SpecError(counted.problems, fix=counted.fix)], origin)
    first = structs.replace(made[0].plan, notes=[*made[0].plan.notes, *counted.notes])
    return [structs.replace(made[0], plan=first), *made[1:]]
