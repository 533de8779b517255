"""Notes on the user's own variables; hpcrun itself sets none of the noted ones."""

from __future__ import annotations

import inspect
import re
import sys

import msgspec
import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.environment import FABRICS, debug_section
from hpcrun.plan.types import Plan
from hpcrun.plan.variables import KNOWN_NAMES, RULES, find_rule, suggest_variable
from tests.plan.making import PLACE, cluster, job, plan, variables

TWO_NODES = "script: a.py\nresources: {nodes: 2}\n"


def shown(env: str, profile: str = "fabric: ethernet", text: str = TWO_NODES) -> list[str]:
    """Return the notes on the job's env, without notes of other kinds."""
    return [note for note in plan(f"{text}env: {{{env}}}", profile).notes if "env." in note]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("NCCL_TIMEOUT: 1800", "env.NCCL_TIMEOUT: nothing reads it: a collective's time-out is"),
        ("DEEPSPEED_LOG_LEVEL: INFO", "env.DEEPSPEED_LOG_LEVEL: nothing reads it: hpcrun writes"),
        ("DEEPSPEED_HOSTFILE: /x", "env.DEEPSPEED_HOSTFILE: nothing reads it: the job's hostfile"),
        ("NCCL_IB_CUDA_SUPPORT: 1", "env.NCCL_IB_CUDA_SUPPORT: nothing reads it any more"),
        ("NCCL_IB_GDR_LEVEL: PHB", "env.NCCL_IB_GDR_LEVEL: nothing reads it any more: it is NCCL_"),
        ("NCCL_TREE_THRESHOLD: 0", "env.NCCL_TREE_THRESHOLD: nothing reads it any more: NCCL"),
        ("NCCL_RINGS: 0 1", "env.NCCL_RINGS: nothing reads it any more: NCCL"),
        ("NCCL_CHECKS_DISABLE: 1", "env.NCCL_CHECKS_DISABLE: nothing reads it any more"),
        (
            "NCCL_ASYNC_ERROR_HANDLING: 1",
            "env.NCCL_ASYNC_ERROR_HANDLING: its old name: "
            "TORCH_NCCL_ASYNC_ERROR_HANDLING since torch 2.2",
        ),
        ("NCCL_IB_DISABLE: 1", "env.NCCL_IB_DISABLE: not needed: NCCL_NET=Socket, which"),
        ("NCCL_P2P_DISABLE: 1", "env.NCCL_P2P_DISABLE: it turns off NVLink"),
        ("NCCL_SHM_DISABLE: 'true'", "env.NCCL_SHM_DISABLE: it turns off NVLink, or shared"),
        ("NCCL_ALGO: Ring", "env.NCCL_ALGO: NCCL chooses it by the topology"),
        ("NCCL_PROTO: LL", "env.NCCL_PROTO: NCCL chooses it by the topology"),
        ("NCCL_IB_GID_INDEX: 3", "env.NCCL_IB_GID_INDEX: NCCL 2.21 and later finds it"),
        ("NCCL_DEBUG_FILE: /x/nccl.log", "env.NCCL_DEBUG_FILE: processes overwrite"),
        ("FI_EFA_USE_DEVICE_RDMA: 1", "env.FI_EFA_USE_DEVICE_RDMA: not needed with aws-ofi-nccl"),
        ("TORCH_DISTRIBUTED_DEBUG: DETAIL", "env.TORCH_DISTRIBUTED_DEBUG: it checks every"),
        ("CUDA_LAUNCH_BLOCKING: 1", "env.CUDA_LAUNCH_BLOCKING: each kernel waits"),
        ("DEEPSPEED_TIMEOUT: 1800", "env.DEEPSPEED_TIMEOUT: it is in minutes"),
        (
            "NCCL_SOCKET_IFNAMES: eth0",
            "env.NCCL_SOCKET_IFNAMES: nothing reads it; did you mean NCCL_SOCKET_IFNAME?",
        ),
        (
            "NCCL_MIN_CHANNELS: 4",
            "env.NCCL_MIN_CHANNELS: nothing reads it; did you mean NCCL_MIN_NCHANNELS?",
        ),
        (
            "TORCH_NCCL_ASYNC_ERROR_HANDLNG: 1",
            "env.TORCH_NCCL_ASYNC_ERROR_HANDLNG: nothing reads it; did you mean "
            "TORCH_NCCL_ASYNC_ERROR_HANDLING?",
        ),
        (
            "FI_CXI_DISABLE_HOST_REGISTRY: 1",
            "env.FI_CXI_DISABLE_HOST_REGISTRY: nothing reads it; did you mean "
            "FI_CXI_DISABLE_HOST_REGISTER?",
        ),
    ],
)
def test_ineffective_variables_have_a_note(env: str, message: str) -> None:
    notes = shown(env)
    assert len(notes) == 1 and notes[0].startswith(message), notes


@pytest.mark.parametrize(
    "env",
    [
        "NCCL_IB_DISABLE: 0",
        "NCCL_P2P_DISABLE: 0",
        "NCCL_P2P_LEVEL: NVL",
        "NCCL_DEBUG: INFO",
        "NCCL_DEBUG_FILE: /x/nccl.%h.%p",
        "NCCL_DEBUG_FILE: /dev/stderr",
        "NCCL_IB_HCA: '=mlx5_0,mlx5_1'",
        "NCCL_SOCKET_IFNAME: '^docker,lo'",
        "NCCL_NET_PLUGIN: ofi",
        "NCCL_OF_SOME_PLUGIN: 1",
        "NCCL_IBEXT_DISABLE: 1",
        "NCCL_PROTO: '^LL128'",
        "DEEPSPEED_TIMEOUT: 30",
        "CUDA_VISIBLE_DEVICES: ''",
        "CUDA_DEVICE_MAX_CONNECTIONS: 1",
        "TORCH_DISTRIBUTED_DEBUG: INFO",
        "MY_NCCL_TIMEOUT: 1",
        "nccl_timeout: 1",
    ],
)
def test_valid_or_unknown_variables_have_no_note(env: str) -> None:
    assert shown(env) == []


def refusal(text: str, profile: str = "") -> str:
    with pytest.raises(SpecError) as caught:
        plan(text, profile)
    return str(caught.value)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_visible_devices_in_env_are_refused(name: str) -> None:
    message = f"env.{name}: Slurm assigns the job's GPUs"
    assert message in refusal(f"script: a.py\nenv: {{{name}: '0,1'}}")
    assert f"cluster default: {message}" in refusal("script: a.py", f"env: {{{name}: 0}}")


def test_visible_devices_of_a_whole_node_are_accepted() -> None:
    """JSC's course sets it in every job, which is harmless on unshared nodes."""
    text = "script: a.py\nresources: {gpus_per_node: 4}\nenv: {CUDA_VISIBLE_DEVICES: '0,1,2,3'}\n"
    node = "partitions: {booster: {gpus_per_node: 4}}\npartition: booster"
    assert variables(plan(text, node))["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert plan(text.replace("4}", "4, exclusive: true}")).nodes == 1
    assert "env.CUDA_VISIBLE_DEVICES: Slurm assigns" in refusal(text, node.replace("4", "8"))
    assert "env.CUDA_VISIBLE_DEVICES: Slurm assigns" in refusal(text)
    assert "Slurm assigns" in refusal(text.replace("0,1,2,3", "3,2,1,0"), node)


@pytest.mark.parametrize(
    ("fabric", "refused"),
    [("infiniband", True), ("roce", True), ("auto", True), ("ethernet", False), ("efa", False)],
)
def test_disabled_infiniband_contradicting_the_fabric_is_refused(
    fabric: str, refused: bool
) -> None:
    text = f"{TWO_NODES}nccl: {{fabric: {fabric}, env: {{NCCL_IB_DISABLE: 1}}}}"
    if refused:
        assert "nccl.env.NCCL_IB_DISABLE: on InfiniBand or RoCE NCCL would find no" in refusal(text)
    else:
        assert any("nccl.env.NCCL_IB_DISABLE: " in note for note in plan(text).notes)
    # A single node uses no network, so the leftover switch is harmless.
    one = text.replace("nodes: 2", "nodes: 1")
    assert any("nccl.env.NCCL_IB_DISABLE: a switch" in note for note in plan(one).notes)


def test_loopback_interface_is_refused_for_several_nodes() -> None:
    text = f"{TWO_NODES}env: {{NCCL_SOCKET_IFNAME: lo, GLOO_SOCKET_IFNAME: lo}}"
    assert refusal(text).count("the loopback interface does not reach other nodes") == 2
    assert plan(text.replace("nodes: 2", "nodes: 1")).nodes == 1


def test_all_problems_of_variables_are_reported_together() -> None:
    text = "script: a.py\nresources: {gpus_per_node: 2, gpu_type: 1g.5gb}\n"
    text += "env: {CUDA_VISIBLE_DEVICES: 0, X: '{nope}'}\nprecision: bf16"
    with pytest.raises(SpecError) as caught:
        plan(text)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"resources.gpu_type", "env.CUDA_VISIBLE_DEVICES", "env.X"}


def inheriting(environ: dict[str, str], text: str = TWO_NODES, profile: str = "") -> list[str]:
    place = msgspec.structs.replace(PLACE, inherited=environ)
    notes = build_plan(job(text), cluster(profile), place).notes
    return [note for note in notes if "of your shell" in note]


def test_variables_inherited_from_the_shell_have_a_note() -> None:
    environ = {"NCCL_P2P_DISABLE": "1", "NCCL_NET": "Socket", "CUDA_VISIBLE_DEVICES": "0", "A": "b"}
    message = inheriting(environ)
    assert len(message) == 2
    assert message[0].startswith(
        "NCCL_P2P_DISABLE of your shell is passed to the job: it turns off NVLink"
    )
    assert message[1] == (
        "NCCL_NET=Socket of your shell is passed to the job, and takes precedence there"
    )
    assert inheriting(environ, f"{TWO_NODES}environment: clean") == []
    assert inheriting(environ, profile="environment: clean") == []
    assert inheriting(environ, profile="accelerator: cpu") == []


def everything_that_is_set() -> set[str]:
    made = [plan(TWO_NODES, f"fabric: {fabric}") for fabric in FABRICS]
    made += [plan(TWO_NODES), plan("script: a.py\nframework: accelerate\ndeepspeed: {}")]
    return {name for one in made for network in FABRICS for name in variables(one, network)}


def test_hpcrun_sets_no_variables_it_warns_about() -> None:
    for name in everything_that_is_set():
        assert find_rule(name, "1", "auto") is None, name
        assert suggest_variable(name) is None, name
    mine = {name for rows in FABRICS.values() for name, _, _ in rows}
    mine |= {name for name in debug_section("/r", "cuda").variables if "NCCL" in name}
    assert mine - {"MPICH_GPU_SUPPORT_ENABLED"} <= KNOWN_NAMES


def test_every_variable_rule_has_a_source() -> None:
    text = inspect.getsource(sys.modules[find_rule.__module__])
    assert len(re.findall(r"    # .+\n    VariableRule\(", text)) == len(RULES)
    assert not [name for name in KNOWN_NAMES if suggest_variable(name)]


# ---- --debug


def debugging(text: str, profile: str = "", run_dir: str = PLACE.run_dir) -> Plan:
    place = msgspec.structs.replace(PLACE, debug=True, run_dir=run_dir)
    return build_plan(job(text), cluster(profile), place)


def test_debug_overrides_the_job_in_its_own_section() -> None:
    text = f"{TWO_NODES}nccl: {{env: {{NCCL_DEBUG: ERROR}}}}\nenv: {{TORCH_CPP_LOG_LEVEL: WARNING}}"
    made = debugging(text)
    env = variables(made, "ethernet")
    assert (env["NCCL_DEBUG"], env["TORCH_CPP_LOG_LEVEL"]) == ("INFO", "INFO")
    assert env["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert env["NCCL_DEBUG_FILE"] == f"{PLACE.run_dir}/logs/nccl-%h-%p.log"
    own = next(s for s in made.environment if s.title == "Diagnosis, for this run alone (--debug)")
    assert own.variables.keys() == own.reasons.keys()
    assert any(note.startswith("--debug: ") for note in made.notes)
    usual = variables(plan(text), "ethernet")
    assert (usual["NCCL_DEBUG"], usual["TORCH_CPP_LOG_LEVEL"]) == ("ERROR", "WARNING")


def test_percent_signs_in_nccl_debug_file_are_escaped() -> None:
    env = variables(debugging("script: a.py", run_dir="/r/50%h"))
    assert env["NCCL_DEBUG_FILE"] == "/r/50%%h/logs/nccl-%h-%p.log"
    assert env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/r/50%h/logs/flight-"


def test_debug_on_cpus_sets_no_nccl_variables() -> None:
    env = variables(debugging("script: a.py", "accelerator: cpu"))
    assert env["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert not [name for name in env if "NCCL" in name]
