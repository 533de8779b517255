"""Roles: several programs in one job. Their nodes and GPUs, and what each waits for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import structs

from hpcrun.plan.directives import parse_memory_mb
from hpcrun.plan.findings import Findings
from hpcrun.plan.job import Job, fill
from hpcrun.plan.times import duration_seconds
from hpcrun.plan.types import PlanInputs, RolePlan, Topology
from hpcrun.spec import JobSpec, list_role_references

# Where the files of a role other than the main one are, in the run's directory.
ROLES_DIR = "roles"
_OWN_PORT = re.compile(r"(?<!\{)\{port\}")


def place_roles(spec: JobSpec) -> list[RolePlan]:
    """Place roles on nodes, which are numbered from 0; those of the main role come first.

    A role with all GPUs of a node shares it only with roles without GPUs. The others are placed on
    the first nodes that have enough GPUs left. The batch script runs on node 0, where rank 0 of the
    main role is.

    >>> from hpcrun.spec import Resources, Role
    >>> roles = {"server": Role(gpus=1), "judge": Role(gpus=1), "train": Role(gpus=2, nodes=2)}
    >>> job = JobSpec(roles=roles, resources=Resources(gpus_per_node=4))
    >>> [(role.name, role.nodes, role.waits_for) for role in place_roles(job)]
    [('server', [0], []), ('judge', [0], []), ('train', [0, 1], [])]
    """
    main = spec.main_role
    free: list[int] = []
    placed: dict[str, RolePlan] = {}
    groups = list_groups(spec)
    order = sorted(spec.roles, key=lambda name: (groups[name], name != main))
    for name in order:
        role = spec.roles[name]
        own = role.resources
        whole = (spec.resources if own is None else own).gpus_per_node
        gpus = whole if role.gpus is None else role.gpus
        shares = gpus < whole and not groups[name]
        nodes = [node for node, left in enumerate(free) if shares and left >= gpus][: role.nodes]
        while len(nodes) < role.nodes:
            nodes.append(len(free))
            free.append(whole if shares else 0)
        for node in nodes:
            free[node] -= gpus if shares else 0
        placed[name] = RolePlan(
            name=name,
            is_main=name == main,
            nodes=nodes,
            gpus=gpus,
            gpus_per_node=whole,
            shares_nodes=shares,
            waits_for=list_role_references(role),
            ready=role.ready,
            ready_within=duration_seconds(role.ready_within),
            group=groups[name],
        )
    return [placed[name] for name in spec.roles]


def list_groups(spec: JobSpec) -> dict[str, int]:
    """Return the component of a heterogeneous job of each role; all are 0 in other jobs.

    >>> from hpcrun.spec import Role
    >>> list_groups(JobSpec(roles={"server": Role(slurm={"partition": "old"}), "train": Role()}))
    {'server': 1, 'train': 0}
    """
    own = [name for name, role in spec.roles.items() if role.has_own_nodes]
    return {name: own.index(name) + 1 if name in own else 0 for name in spec.roles}


# Options of sbatch that each component of a heterogeneous job has itself; the others are those of
# the first one, from which Slurm takes them (https://slurm.schedmd.com/heterogeneous_jobs.html).
_OF_COMPONENT = (
    *("partition", "account", "qos", "reservation", "nodes", "ntasks-per-node", "cpus-per-task"),
    *("gres", "gpus", "gpus-per-node", "constraint", "exclusive", "mem", "mem-per-cpu"),
    *("mem-per-gpu", "nodelist", "exclude", "time", "hint", "threads-per-core", "switches"),
)


def select_component_options(
    directives: Sequence[tuple[str, str | None]],
) -> list[tuple[str, str | None]]:
    """Return the options of sbatch for a component of a heterogeneous job other than the first.

    >>> select_component_options([("job-name", "a"), ("nodes", "2"), ("gres", "gpu:4")])
    [('nodes', '2'), ('gres', 'gpu:4')]
    """
    return [(name, value) for name, value in directives if name in _OF_COMPONENT]


def count_nodes(roles: Sequence[RolePlan], group: int | None = None) -> int:
    """Return the number of nodes of all roles together, or of those in a component."""
    return len({node for role in roles if group in (None, role.group) for node in role.nodes})


def own_role(place: PlanInputs) -> RolePlan:
    """Return the role for which a plan is made."""
    return next(role for role in place.roles if role.name == place.role)


def role_values(place: PlanInputs) -> dict[str, str]:
    """Return the placeholders of the addresses of roles, whose values only the job knows."""
    if not place.roles:
        return {}
    values = {"host": "${HPCRUN_HOST}", "port": "${HPCRUN_PORT}"}
    for role in place.roles:
        for part in ("host", "port"):
            values[f"{role.name}.{part}"] = f"${{HPCRUN_ROLE_{role.name.upper()}_{part.upper()}}}"
    return values


def complete_roles(
    roles: list[RolePlan], job: JobSpec, specs: Mapping[str, JobSpec], found: Findings
) -> list[RolePlan]:
    """Decide when each role is ready, and fill the placeholders of these conditions.

    Args:
        specs: The job of each role alone.
    """
    kept = []
    for role in roles:
        spec, ready = specs[role.name], role.ready
        texts = [*(spec.command or []), *spec.args, *(value or "" for value in spec.env.values())]
        # A setup that all roles share does not show which of them is a server.
        setup = job.roles[role.name].setup
        texts += [*setup.commands, *setup.node_commands] if setup is not None else []
        if ready is None and any(_OWN_PORT.search(text) for text in texts):
            ready = "tcp://{host}:{port}"
        if ready is not None and not ready.startswith("log:"):
            # The job fills in the address: hpcrun.jobside.roles.
            ready = fill(
                ready, {"host": "{host}", "port": "{port}"}, f"roles.{role.name}.ready", found
            )
        kept.append(structs.replace(role, ready=ready))
    return kept


def share_step(
    job: Job, step: list[tuple[str, str | None]], whole: Topology, role: RolePlan
) -> list[tuple[str, str | None]]:
    """Return the options of srun for a role that shares nodes with other roles.

    By default a step gets all GPUs and all memory of the job on its nodes, and the steps of other
    roles would wait until it ends.
    """
    options = dict(step)
    if role.gpus == 0:
        options |= {"overlap": None, "gres": "none", "mem": "0"}
        options.pop("cpus-per-task", None)
        return list(options.items())
    if "cpus-per-task" not in options:
        job.found.refuse(
            f"roles.{role.name}.gpus",
            f"{role.gpus}: the roles share nodes whose number of CPUs is unknown; "
            "set resources.cpus_per_gpu",
        )
    options |= {"exact": None, "gres": f"gpu:{role.gpus}"}
    memory = 0 if whole.memory in (None, "0") else parse_memory_mb(whole.memory or "0")
    # Without a number, a step requests all memory of the job on the node.
    options["mem"] = f"{memory * role.gpus // whole.gpus_per_node}M" if memory else "0"
    return list(options.items())
