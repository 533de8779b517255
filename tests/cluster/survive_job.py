"""A training that survives preemption, and checks of its whole curve."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.cluster.site import Site, Submitted

# Counts to TOTAL at two steps per second, faster in later attempts, which are not interrupted. It
# saves every fourth step, and when asked to stop it saves and exits with 0.
SLOWLY = ("--set", "env.AGAIN='0.5'")  # a later attempt is ended, too

TRAIN = """
import json, os, pathlib, signal, sys, time, zipfile
asked = []
assert 0 < int(os.environ["HPCRUN_END_TIME"]) - time.time() < 3600
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
rank, total = int(os.environ["RANK"]), int(os.environ["TOTAL"])
folder, step = pathlib.Path(os.environ["HPCRUN_CHECKPOINT_DIR"]), 0
pace = "STEP" if os.environ["HPCRUN_ATTEMPT"] == "0" else "AGAIN"
if "--resume" in sys.argv:
    step = int(zipfile.ZipFile(sys.argv[sys.argv.index("--resume") + 1]).read("step"))
while step < total:
    time.sleep(float(os.environ.get(pace, "0.5")))
    step += 1
    if rank == 0:
        print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    if rank == 0 and (asked or step % 4 == 0):
        folder.mkdir(exist_ok=True)
        new = folder / f"step-{step}.part"
        with zipfile.ZipFile(new, "w") as file:  # the form of torch.save
            file.writestr("step", str(step))
        new.rename(folder / f"step-{step}.pt")
    if asked:
        print("asked", len(asked), os.path.exists(os.environ["HPCRUN_STOP_FILE"]), flush=True)
        break
"""

JOB = """
script: train.py
launcher: srun
framework: torch
resources: {nodes: NODES, gpus_per_node: 1, time: "LIMIT"}
survive: {SURVIVE}
checkpoint: {resume: "--resume {resume}"}
env: {TOTAL: "STEPS", STEP: "0.5", AGAIN: "0.05"}
"""


def submit(
    site: Site,
    survive: str,
    *options: str,
    nodes: int = 1,
    limit: str = "30",
    steps: int = 30,
    train: str = TRAIN,
    env: dict[str, str] | None = None,
) -> Submitted:
    """Submit the job above with a section ``survive``."""
    (site.project / "train.py").write_text(train)
    values = {"SURVIVE": survive, "NODES": nodes, "LIMIT": limit, "STEPS": steps}
    text = JOB
    for name, value in values.items():
        text = text.replace(name, str(value), 1)
    (site.project / "job.yaml").write_text(text)
    return site.submit("./job.yaml", *options, env=env)


def steps_of(run: Submitted, attempt: int) -> list[int]:
    """Return the steps in the log of an attempt."""
    log = run.folder / f"logs/{attempt}/rank-0.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line)["step"] for line in lines if line.startswith("{")]


def step_in(checkpoint: str) -> int:
    """Return the step in the name of a checkpoint."""
    return int(checkpoint.strip().rpartition("-")[2].removesuffix(".pt"))


def insist_on_the_whole_curve(site: Site, run: Submitted, steps: int) -> dict[str, Any]:
    """Wait for the end, and assert that the curve contains every step."""
    done = site.hpcrun("wait", run.run_id)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    parsed = site.hpcrun("parse", "--json", "--full", run.run_id)
    assert parsed.returncode == 0, parsed.stderr
    loss = json.loads(parsed.stdout)["runs"][0]["metrics"]["loss"]
    assert loss["steps"] == list(range(1, steps + 1))
    assert loss["values"] == [1 / step for step in loss["steps"]]
    shown = site.status(run)
    assert (shown["state"], shown["exit_code"], shown["notes"]) == ("COMPLETED", 0, [])
    return shown


@contextlib.contextmanager
def preempting(site: Site, mode: str) -> Iterator[None]:
    """Change the preemption of the low-priority partition temporarily."""
    update = ["scontrol", "update", "PartitionName=debug"]
    assert site.rig.run(*update, *mode.split()).returncode == 0
    yield
    site.rig.run(*update, "GraceTime=0", "PreemptMode=REQUEUE")


def preempt(site: Site) -> None:
    """Occupy all nodes briefly."""
    argv = ["sbatch", "-phigh", "-N2", "--exclusive", "-t1", "-o/dev/null", "--wrap", "sleep 1"]
    assert site.rig.run(*argv).returncode == 0
