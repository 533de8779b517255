"""Roles in job files: refusals with the line and the fix."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.spec.job import JobSpec, Resources
from hpcrun.spec.load import load_job

JOB = """\
resources: {gpus_per_node: 4}
roles:
  server:
    command: [serve, --port, "{port}"]
  train:
    script: train.py
    args: {url: "http://{server.host}:{server.port}"}
"""


def load(text: str, *overrides: str) -> JobSpec:
    def resolve(name: str) -> tuple[str, str]:
        raise AssertionError(name)

    return load_job(text, source="job.yaml", resolve=resolve, overrides=overrides)


def test_arguments_of_roles_are_expanded_as_those_of_jobs() -> None:
    assert load(JOB).roles["train"].args == ["--url", "http://{server.host}:{server.port}"]


def test_set_changes_a_key_of_a_role() -> None:
    assert load(JOB, "roles.train.nodes=3").for_role("train").resources.nodes == 3


def test_only_the_main_role_has_the_settings_of_the_training() -> None:
    spec = load(JOB + "launcher: deepspeed\nsurvive: {when: [preempted]}\nenv: {A: '1'}\n")
    server, train = spec.for_role("server"), spec.for_role("train")
    assert (server.launcher, train.launcher) == (None, "deepspeed")
    assert (server.survive.when, train.survive.when) == ([], ["preempted"])
    assert server.env == train.env == {"A": "1"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{server.host}", "{sever.host}", "7: roles.train: {sever.host}: there is no role sever; "),
        ("{server.host}", "{train.host}", "7: roles.train: {train.host}: the role's own host"),
        ('"{port}"', '"{train.port}"', "3: roles.server: server -> train -> server: each waits"),
        ("    script: train.py\n", "", "5: roles.train: a role has one of script, module, command"),
        ("    script: train.py\n", "    gpus: 8\n    script: a.py\n", "6: roles.train.gpus: 8, "),
        ("    script: train.py\n", "    script: a.py\n    module: b\n", "7: roles.train.module: "),
        ("resources:", "script: a.py\nresources:", "1: script: each role has its own program"),
        ("{gpus_per_node: 4}", "{nodes: 2}", "1: resources.nodes: each role has its own number"),
        ("    script: train.py\n", "    ready: up\n    script: a.py\n", "6: roles.train.ready: "),
        ("    script", "    ready: 'log:('\n    script", "6: roles.train.ready: not a regular"),
        ("    script", "    main: true\n    script", ""),
        ("roles:", "survive: {spare_nodes: 1}\nroles:", "2: survive.spare_nodes: a job with roles"),
        (
            "    command",
            "    resources: {time: 1h}\n    command",
            "4: roles.server.resources: the time",
        ),
        (
            "    command",
            "    resources: {nodes: 2}\n    command",
            "4: roles.server.resources: a role ",
        ),
        (
            "    command",
            "    slurm: {qos: a}\n    gpus: 1\n    command",
            "4: roles.server.slurm: gpus",
        ),
        (
            "    script",
            "    slurm: {qos: a}\n    script",
            "6: roles.train.slurm: the main role has",
        ),
        (
            "    command",
            "    slurm: {partition: a}\n    command",
            "4: roles.server.slurm.partition: set ",
        ),
        ("    script", "    env: {RANK: '1'}\n    script", "6: roles.train.env.RANK: hpcrun sets"),
        ("  train:", "  Train:", "5: roles.Train: expected the name of a role"),
    ],
)
def test_mistakes_in_roles_are_refused_with_their_line(old: str, new: str, message: str) -> None:
    text = JOB.replace(old, new, 1)
    if not message:
        assert load(text).main_role == "train"
        return
    with pytest.raises(SpecError) as caught:
        load(text)
    assert f"job.yaml:{message}" in str(caught.value)


def test_two_main_roles_are_refused() -> None:
    text = JOB.replace("    script", "    main: true\n    script").replace(
        "    command", "    main: true\n    command"
    )
    with pytest.raises(SpecError, match="role server is the main one, too"):
        load(text)


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("partition: cpu", "resources.partition"),
        ("gpu_type: a100", "resources.gpu_type"),
        ("constraint: big", "slurm.constraint"),
    ],
)
def test_keys_of_nodes_in_a_role_are_refused_with_their_section(key: str, named: str) -> None:
    text = f"roles: {{server: {{command: [a], {key}}}, train: {{script: a.py}}}}"
    with pytest.raises(SpecError) as raised:
        load(text)
    section = named.partition(".")[0]
    message = f"set {named} for the whole job, or below {section} of this role, which then has"
    assert message in str(raised.value), raised.value


def test_survive_is_refused_for_roles_on_nodes_of_their_own_kind() -> None:
    text = JOB.replace("    command", "    resources: {partition: old}\n    command")
    assert load(text).roles["server"].has_own_nodes
    with pytest.raises(SpecError, match="survive does not restart heterogeneous jobs"):
        load(text + "survive: {when: [preempted]}\n")


def test_resources_of_a_role_keep_the_time_and_account_of_the_job() -> None:
    text = JOB.replace("    command", "    resources: {partition: old}\n    command")
    job = load(text.replace("{gpus_per_node: 4}", "{gpus_per_node: 4, time: 2h, account: us}"))
    server = job.for_role("server").resources
    assert (server.partition, server.account) == ("old", "us")
    assert server.time == job.for_role("train").resources.time is not None
    assert server.gpus_per_node == Resources().gpus_per_node, "not that of the job"
