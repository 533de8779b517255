"""Roles: their place on nodes, their share of a node, and the job that contains them."""

from __future__ import annotations

import pytest
from msgspec import structs

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.findings import Findings
from hpcrun.plan.roles import complete_roles, place_roles
from hpcrun.plan.types import Plan
from hpcrun.spec.job import Cluster, JobSpec, Partition, Resources, Role, Setup
from tests.plan.making import PLACE

CLUSTER = Cluster(
    partition="gpu",
    partitions={"gpu": Partition(gpus_per_node=4, cpus_per_node=32, memory_per_node="400G")},
)
SHARED = {
    "server": Role(gpus=1, command=["serve", "{port}"], ready="http://{host}:{port}/health"),
    "judge": Role(gpus=0, command=["judge"]),
    "train": Role(gpus=2, nodes=2, script="train.py", args=["{server.host}:{server.port}"]),
}
WHOLE = {"server": Role(command=["serve"]), "train": Role(nodes=3, script="train.py")}


def plans(roles: dict[str, Role], cluster: Cluster = CLUSTER) -> dict[str, Plan]:
    """Plan each role of a job, as prepare_spec() does."""
    spec = JobSpec(roles=roles, resources=Resources(gpus_per_node=4))
    specs, found = {name: spec.for_role(name) for name in roles}, Findings()
    placed = complete_roles(place_roles(spec), spec, specs, found)
    assert not found.problems
    places = {name: structs.replace(PLACE, role=name, roles=placed) for name in roles}
    return {name: build_plan(specs[name], cluster, places[name], job_spec=spec) for name in roles}


def test_the_job_has_the_nodes_of_all_roles_and_only_the_main_role_has_directives() -> None:
    made = plans(WHOLE)
    assert dict(made["train"].directives)["nodes"] == "4"
    assert made["server"].directives == []
    assert [role.nodes for role in made["train"].roles] == [[3], [0, 1, 2]]
    assert made["server"].roles == []
    assert not {"exact", "overlap"} & dict(made["train"].step).keys()


def test_roles_that_share_nodes_get_their_share_of_gpus_cpus_and_memory() -> None:
    made = plans(SHARED)
    asked = dict(made["train"].directives)
    assert (asked["nodes"], asked["gres"], asked["cpus-per-task"]) == ("2", "gpu:4", "32")
    train, server = dict(made["train"].step), dict(made["server"].step)
    assert "exact" in train and "exact" in server
    assert (train["gres"], train["mem"], train["cpus-per-task"]) == ("gpu:2", "204800M", "16")
    assert (server["gres"], server["mem"], server["cpus-per-task"]) == ("gpu:1", "102400M", "8")
    judge = dict(made["judge"].step)
    assert "overlap" in judge and judge["gres"] == "none" and "cpus-per-task" not in judge


def test_a_role_with_nodes_of_its_own_is_a_component_of_a_heterogeneous_job() -> None:
    other = Resources(gpus_per_node=8, partition="new")
    roles = {
        "judge": Role(gpus=1, command=["judge"]),
        "server": Role(nodes=2, command=["serve"], resources=other, slurm={"switches": "1"}),
        "train": Role(gpus=3, nodes=3, script="train.py"),
    }
    new = Partition(gpus_per_node=8, cpus_per_node=64)
    made = plans(roles, structs.replace(CLUSTER, partitions={**CLUSTER.partitions, "new": new}))
    first, second = dict(made["train"].directives), dict(made["server"].directives)
    assert (first["partition"], first["nodes"], first["gres"]) == ("gpu", "3", "gpu:4")
    assert (second["partition"], second["nodes"], second["switches"]) == ("new", "2", "1")
    assert second["gres"] == "gpu:8" and second["cpus-per-task"] == "64"
    assert "switches" not in first and made["judge"].directives == []
    placed = {role.name: (role.nodes, role.group) for role in made["train"].roles}
    assert placed == {"judge": ([0], 0), "server": ([3, 4], 1), "train": ([0, 1, 2], 0)}
    assert dict(made["server"].step)["het-group"] == "1"
    assert "het-group" not in dict(made["train"].step) | dict(made["judge"].step)
    train = made["train"]
    assert (train.all_nodes, train.all_gpus_per_node) == (5, 0), "hours are those of nodes"
    assert (train.requested_nodes, train.requested_gpus_per_node) == (3, 4)


def test_a_role_without_gpus_runs_beside_one_with_all_gpus() -> None:
    roles = {"orchestrator": Role(gpus=0, command=["serve"]), "train": Role(script="train.py")}
    made = plans(roles)
    assert [role.nodes for role in made["train"].roles] == [[0], [0]]
    assert "overlap" in dict(made["orchestrator"].step)
    assert "exact" not in dict(made["train"].step)


def test_addresses_of_roles_are_filled_in_by_the_job() -> None:
    made = plans(SHARED)
    assert made["train"].program[-1] == "${HPCRUN_ROLE_SERVER_HOST}:${HPCRUN_ROLE_SERVER_PORT}"
    assert made["server"].program == ["serve", "${HPCRUN_PORT}"]
    ready = {role.name: (role.ready, role.waits_for) for role in made["train"].roles}
    assert ready["server"] == ("http://{host}:{port}/health", [])
    assert ready["train"] == (None, ["server"])


def test_a_role_that_uses_its_port_is_ready_when_it_accepts_connections() -> None:
    roles = {**SHARED, "server": Role(gpus=1, command=["serve", "{port}"])}
    assert plans(roles)["train"].roles[0].ready == "tcp://{host}:{port}"


def test_port_in_the_setup_of_a_role_determines_when_it_is_ready() -> None:
    for text, ready in [("export PORT={port}", "tcp://{host}:{port}"), ("echo {{port}}", None)]:
        server = Role(gpus=1, command=["serve"], setup=Setup(commands=[text]))
        assert plans({**SHARED, "server": server})["train"].roles[0].ready == ready


def test_escaped_port_is_no_use_of_the_port() -> None:
    roles = {**SHARED, "server": Role(gpus=1, command=["serve", "{{port}}"])}
    assert plans(roles)["train"].roles[0].ready is None


def test_roles_cannot_share_nodes_with_an_unknown_number_of_cpus() -> None:
    cluster = Cluster(partition="gpu", partitions={"gpu": Partition(exclusive=True)})
    with pytest.raises(SpecError, match=r"set resources\.cpus_per_gpu"):
        plans(SHARED, cluster)
