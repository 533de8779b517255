"""In a real rank, the user's own value of each variable of docs/settings.md is used."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from hpcrun.render.quoting import quote_bash
from tests.cli.calling import Caller
from tests.plan.test_settings import BY_THE_HARNESS, EXPORTED

# Search paths, of which "mine" would be no value.
NAMES = sorted({*EXPORTED, *BY_THE_HARNESS} - {"PATH", "PYTHONPATH"})
OF_EACH_RANK = {"NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"}
PROFILE = "name: cpu\nfabric: slingshot\ninternet: false\n"

pytestmark = pytest.mark.slow


def read_environment(hpcrun: Caller, **keys: Any) -> dict[str, str]:
    """Run a job on this machine; return the environment of its rank."""
    hpcrun.write("hpcrun.yaml", PROFILE)
    hpcrun.write(
        "train.py", "import json, os\njson.dump(dict(os.environ), open('env.json', 'w'))\n"
    )
    resources = {"gpus_per_node": 1}
    job = {"script": "train.py", "launcher": "srun", "resources": resources, "preflight": False}
    setup = {"python": sys.executable, **keys.pop("setup", {})}
    hpcrun.write("job.yaml", json.dumps({**job, "setup": setup, **keys}))
    done = hpcrun.process("run", "job.yaml", "--no-check")
    assert done.code == 0, done
    found: dict[str, str] = json.loads((hpcrun.project / "env.json").read_text())
    return found


def test_values_of_env_reach_the_rank(hpcrun: Caller) -> None:
    own = {name: "mine" for name in NAMES if name not in OF_EACH_RANK}
    nccl = {name: own.pop(name) for name in NAMES if name.startswith("NCCL_")}
    found = read_environment(hpcrun, env=own, nccl={"env": nccl})
    assert {name: value for name, value in found.items() if name in {*own, *nccl}} == own | nccl


def test_null_removes_a_variable_from_the_rank(hpcrun: Caller) -> None:
    own: dict[str, None] = dict.fromkeys(NAMES)
    found = read_environment(hpcrun, env=own)
    assert not found.keys() & own.keys()


def test_values_of_setup_commands_reach_the_rank_unless_env_has_others(hpcrun: Caller) -> None:
    # A pipe that hpcrun opens, and values that --debug sets.
    not_own = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", *OF_EACH_RANK}
    own = {name: "it's $mine" for name in NAMES if name not in not_own}
    lines = [f"export {name}={quote_bash(value)}\n" for name, value in own.items()]
    hpcrun.write("settings.sh", "".join(lines))
    found = read_environment(
        hpcrun, setup={"commands": ["source settings.sh"]}, env={"WANDB_MODE": "disabled"}
    )
    expected = own | {"WANDB_MODE": "disabled"}
    assert {name: value for name, value in found.items() if name in own} == expected


def test_replaced_values_of_the_shell_are_noted(hpcrun: Caller) -> None:
    hpcrun.write("hpcrun.yaml", f"{PROFILE}environment: inherit\n")
    hpcrun.write("train.py", "")
    hpcrun.write("job.yaml", "script: train.py\nenv: {HF_HUB_OFFLINE: 0}\n")
    shell = {"WANDB_MODE": "online", "HF_HUB_OFFLINE": "1", "NCCL_DEBUG": "INFO"}
    hpcrun.environ.update(shell)
    done = hpcrun("submit", "--dry-run", "--no-check", "job.yaml")
    assert "WANDB_MODE=online of your shell is replaced by offline" in done.err
    assert done.err.count("is replaced by") == 1
