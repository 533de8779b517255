"""Every framework, with DeepSpeed and without, trains the same curve on the ranks of hpcrun.

The task (workloads/task.py) uses the whole data set in each step of plain gradient descent: the
result does not depend on the distribution of the data, but shows every mistake in it.
In CI a job on two nodes records the environment of its ranks, with which each framework trains in
forks of a process that has imported it: importing takes longer than everything else. make test-all
trains under every launcher, on one node and on two. test_probe.py starts ranks by every launcher.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any, NamedTuple, get_args

import pytest
import yaml

from hpcrun.spec.job import LauncherName
from tests.cluster.launcher_jobs import WORKLOADS, shown
from tests.cluster.site import Site, Submitted
from tests.source import ROOT
from tests.workloads.recipe_parts import MODULES
from tests.workloads.trainer import free_port, run_forked

SAMPLES, STEPS = 16, 4
# The variables in docs/settings.md; NAME_* is a group of names.
LISTED = re.compile(
    "|".join(
        name.replace("*", r"\w+")
        for name in re.findall(r"`([A-Z_][A-Z0-9_]+\*?)`", (ROOT / "docs/settings.md").read_text())
    )
)
LAUNCHER_NAMES = [name for name in get_args(LauncherName) if name != "ray"]  # see test_ray.py


class Framework(NamedTuple):
    """The job of a framework, and the reports of its ranks."""

    name: str
    zero_stage: int | None
    shown: dict[str, Any]


# Lightning's DeepSpeedStrategy refuses CPUs (strategies/deepspeed.py), so it is not tested.
FRAMEWORKS = [
    Framework("torch", None, {}),
    Framework("deepspeed", 2, {"steps": STEPS, "batch": SAMPLES, "stage": 2}),
    Framework("accelerate", None, {"accumulate": 2, "kind": "MULTI_CPU"}),
    Framework("accelerate", 1, {"accumulate": 2, "kind": "DEEPSPEED"}),
    Framework("transformers", None, {"kind": "MULTI_CPU"}),
    Framework("transformers", 2, {"kind": "DEEPSPEED"}),
    Framework("lightning", None, {"steps": STEPS, "kind": "TorchElasticEnvironment"}),
]
# The first lines of each script in CI.
RECORD = """\
import json, os, sys
if "RECORD" in os.environ:
    print("given", json.dumps([dict(os.environ), sys.argv[1:]]), flush=True)
    sys.exit()
"""


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """Return the losses of one process without any framework."""
    done = run_forked([{}], [], program=WORKLOADS / "task.py", module="torch")
    losses: list[float] = json.loads(done.stdout)
    return losses


def submit(site: Site, launcher: str, framework: Framework, nodes: int, **env: str) -> Submitted:
    """Submit a framework's script: two ranks, 16 samples for each step of the optimizer."""
    job: dict[str, Any] = {
        "script": f"train_{framework.name}.py",
        "framework": framework.name,
        "launcher": launcher,
        "resources": {"nodes": nodes, "gpus_per_node": 2 // nodes, "time": 10},
        "precision": "fp32",
        "batch": {"micro_batch_per_gpu": 4, "gradient_accumulation_steps": 2},
        "env": {"OMP_NUM_THREADS": "1", **env},
    }
    if launcher == "accelerate":
        team: dict[str, Any] = {
            "num_machines": nodes,
            "num_processes": 2,
            "machine_rank": 0,
            "debug": False,
        }
        team |= {"main_process_port": 29500, "mixed_precision": "no"}
        (site.project / "team.yaml").write_text(yaml.safe_dump(team))
        job["accelerate"] = {"config_file": "team.yaml"}
    if framework.zero_stage is not None:
        config = {"zero_allow_untested_optimizer": True}
        job["deepspeed"] = {"zero_stage": framework.zero_stage, "config": config}
    name = f"{framework.name}-{framework.zero_stage}-{launcher}-{nodes}"
    (site.project / f"{name}.yaml").write_text(yaml.safe_dump(job))
    return site.submit(f"./{name}.yaml")


def check_ranks(
    framework: Framework, plan: dict[str, Any], ranks: list[dict[str, Any]], final: float
) -> None:
    """Assert that all ranks have trained together what hpcrun shows."""
    assert [rank["rank"] for rank in ranks] == [0, 1], framework
    for rank in ranks:
        assert rank["world"] == 2, framework
        assert rank["final"] == pytest.approx(final, rel=1e-5), framework
        assert {key: rank[key] for key in framework.shown} == framework.shown, framework
    samples = sum(rank["samples"] for rank in ranks)
    assert samples == plan["effective_batch"] * STEPS == SAMPLES * STEPS, framework


def check_variables(site: Site, names: set[str]) -> None:
    """Assert that docs/settings.md lists the variables which hpcrun adds to those of the login."""
    unlisted = names - {*os.environ, *site.rig.env, "PWD", "OLDPWD", "SHLVL"}
    assert {name for name in unlisted if not LISTED.fullmatch(name)} == set()


def record_ranks(run: Submitted) -> list[tuple[dict[str, str], list[str]]]:
    """Return the environment and the arguments of each rank of a run."""
    texts = [log.read_text() for log in sorted((run.folder / "logs" / "0").glob("rank-*.log"))]
    return [json.loads(text.partition("given ")[2].partition("\n")[0]) for text in texts]


def train_again(site: Site, framework: Framework, run: Submitted) -> list[dict[str, Any]]:
    """Train in forks with the environment and the arguments of the ranks of a run."""
    environs = [environ for environ, _ in record_ranks(run)]
    # Both nodes are this machine now.
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    for environ in environs:
        del environ["RECORD"]
        check_variables(site, {*environ})
        environ.update(here)
    done = run_forked(
        environs,
        record_ranks(run)[0][1],
        program=site.project / f"train_{framework.name}.py",
        module=MODULES.get(framework.name, framework.name),
    )
    assert done.returncode == 0, (framework, done.stderr[-6000:])
    lines = done.stdout.replace("told ", "\ntold ").splitlines()
    ranks = [json.loads(line[len("told ") :]) for line in lines if line.startswith("told ")]
    return sorted(ranks, key=lambda rank: int(rank["rank"]))


@pytest.mark.timeout(1800)
def test_every_framework_trains_with_the_environment_of_two_nodes(
    site: Site, expected: list[float]
) -> None:
    shutil.copytree(WORKLOADS, site.project, dirs_exist_ok=True)
    for script in site.project.glob("train_*.py"):
        text = script.read_text().replace("from __future__ import annotations\n", "")
        script.write_text(RECORD + text)
    runs = [(each, submit(site, "srun", each, 2, RECORD="1")) for each in FRAMEWORKS]
    for framework, run in runs:
        done = site.follow(run)
        assert done.returncode == 0, done.stdout + run.log()
        plan = json.loads((run.folder / "plan.json").read_text())
        check_ranks(framework, plan, train_again(site, framework, run), expected[-1])


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("launcher", LAUNCHER_NAMES)
def test_every_framework_trains_the_same_curve(
    site: Site, expected: list[float], launcher: str, nodes: int
) -> None:
    shutil.copytree(WORKLOADS, site.project, dirs_exist_ok=True)
    runs = [(framework, submit(site, launcher, framework, nodes)) for framework in FRAMEWORKS]
    for framework, run in runs:
        done = site.follow(run)
        what = f"{launcher} with {framework}\n"
        assert done.returncode == 0, what + run.log()
        plan, ranks = json.loads((run.folder / "plan.json").read_text()), shown(run)
        check_ranks(framework, plan, ranks, expected[-1])
        for rank in ranks:
            check_variables(site, {*rank["variables"]})
        if plan["nodes"] == 2:
            assert len(list((run.folder / "logs" / "0").glob("node-*.log"))) == 2, what
            assert f"node 1 is {site.rig.node_names[1]}" in run.log(), what
        assert not (site.project / ".deepspeed_env").exists(), what
    for name in site.rig.node_names:
        left = site.rig.on_node(name, ["ls", "/tmp"]).stdout
        assert "torchelastic" not in left, name


OWN_WORDS = """
import task, train_transformers
from transformers import HfArgumentParser, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
trainer = Trainer(task.Model(), arguments, train_transformers.collate, train_dataset=task.data())
trainer.train()
print("trained by", type(trainer.model_wrapped).__name__)
del trainer
task.leave()
"""


def write_own_job(site: Site) -> list[str]:
    """Write a script that enables DeepSpeed itself; return the words that submit it."""
    shutil.copytree(WORKLOADS, site.project, dirs_exist_ok=True)
    (site.project / "own.py").write_text(OWN_WORDS)
    (site.project / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1},'
        ' "zero_allow_untested_optimizer": true}'
    )
    resources = {"gpus_per_node": 1, "time": 10}
    job = {"script": "own.py", "framework": "transformers", "resources": resources}
    (site.project / "own.yaml").write_text(yaml.safe_dump({**job, "precision": "fp32"}))
    words = ["./own.yaml", "--gpus-per-node", "1", "--", "--output_dir=out", "--max_steps=2"]
    words += ["--save_strategy=no", "--report_to=none", "--optim=sgd"]
    return [*words, "--remove_unused_columns=false", "--deepspeed", "ds.json"]


@pytest.mark.thorough  # the Trainer trains with DeepSpeed above
def test_deepspeed_enabled_by_the_script_trains_on_one_gpu(site: Site) -> None:
    run = site.submit(*write_own_job(site))
    assert site.follow(run).returncode == 0, run.log()
    assert "trained by DeepSpeedEngine" in run.log()


def test_deepspeed_enabled_by_the_script_is_refused_on_two_gpus(site: Site) -> None:
    words = write_own_job(site)
    assert site.hpcrun("submit", "--dry-run", *words).returncode == 0
    words[2] = "2"
    done = site.hpcrun("submit", *words)
    assert done.returncode == 2 and "deepspeed.config_file instead" in done.stderr
