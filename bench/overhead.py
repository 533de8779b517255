"""Measure the overhead of hpcrun's job script, from its start to the first line of the program.

The same two-node program is started alternately by hpcrun and by a typical hand-written script, on
the same Slurm. The difference is computed for each of many rounds, because torchrun occasionally
starts half a second later in either case.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from bench.rows import Row
from bench.site import Site

# The first line of the program records the time, before anything else is imported.
PROGRAM = """\
import time
first = time.time()
import os
name = os.path.join(os.environ["BENCH_STAMPS"], "rank-" + os.environ.get("RANK", "0"))
with open(name + ".part", "w") as file:
    file.write(repr(first))
os.rename(name + ".part", name)
"""
TEMPLATE = """\
{% extends "hpcrun/job.sbatch.j2" %}
{% block directives %}
{{ super() }}
[ "${1-}" = body ] || printf '%s\\n' "$EPOCHREALTIME" >"$BENCH_STAMPS/script"
{% endblock %}
"""
JOB = """\
name: overhead
script: first.py
launcher: {launcher}
framework: torch
resources: {{nodes: 2, gpus_per_node: {ranks}, time: 10}}
batch: {{micro_batch_per_gpu: 1}}
snapshot: false
setup: {{python: {python}}}
"""
BY_HAND = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node={tasks} --cpus-per-task={cpus} --time=10 --output=/dev/null
printf '%s\\n' "$EPOCHREALTIME" >"$BENCH_STAMPS/script"
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((12000 + SLURM_JOB_ID % 18000)) OMP_NUM_THREADS=1
{srun}
"""
TORCHRUN = (
    "srun bash -c '{python} -m torch.distributed.run --nnodes=2 --nproc_per_node={ranks}"
    ' --node_rank="$SLURM_NODEID" --rdzv_backend=static --master_addr="$MASTER_ADDR"'
    ' --master_port="$MASTER_PORT" first.py\''
)
SRUN = "srun bash -c 'export RANK=$SLURM_PROCID; exec {python} first.py'"
RANKS = 2  # on each node


def measure_overhead(site: Site, rounds: int) -> list[Row]:
    """Run both variants of both launchers alternately. Raises TimeoutError."""
    (site.project / "first.py").write_text(PROGRAM)
    templates = site.project / "templates"
    templates.mkdir()
    (templates / "job.sbatch.j2").write_text(TEMPLATE)
    rows = []
    for launcher, bar, goal, way, tasks, count in (
        ("torchrun", 0.3, 0.15, TORCHRUN, 1, rounds),
        ("srun", 0.3, 0.15, SRUN, RANKS, rounds),
    ):
        (site.project / "job.yaml").write_text(
            JOB.format(launcher=launcher, ranks=RANKS, python=sys.executable)
        )
        srun = way.format(python=sys.executable, ranks=RANKS)
        (site.project / "by_hand.sh").write_text(
            BY_HAND.format(tasks=tasks, cpus=8 // tasks, srun=srun)
        )
        seconds: dict[str, list[float]] = {"hpcrun": [], "hand": []}
        for number in range(count + 1):
            for name in ("hpcrun", "hand") if number % 2 else ("hand", "hpcrun"):
                took = _once(site, name, f"{launcher}-{name}-{number}")
                if number:
                    seconds[name].append(took)
        more = [a - b for a, b in zip(seconds["hpcrun"], seconds["hand"], strict=True)]
        rows.append(
            Row(
                f"overhead-{launcher}",
                f"batch script starts -> user's first line, beyond a hand-written srun"
                f" {'python' if launcher == 'srun' else launcher}",
                "s",
                statistics.median(more),
                bar=bar,
                goal=goal,
                notes=[
                    f"{name}: median {statistics.median(each):.2f} s (from {min(each):.2f} to"
                    f" {max(each):.2f}, {len(each)} times), 2 nodes x {RANKS} ranks"
                    for name, each in (
                        ("hpcrun", seconds["hpcrun"]),
                        ("by hand", seconds["hand"]),
                        ("difference", more),
                    )
                ],
            )
        )
    (templates / "job.sbatch.j2").unlink()
    templates.rmdir()
    return rows


def _once(site: Site, way: str, name: str) -> float:
    """Submit a job, wait for its ranks; return seconds from its start to its last rank's start."""
    stamps = site.folder / "stamps" / name
    stamps.mkdir(parents=True)
    env = site.env | {"BENCH_STAMPS": str(stamps)}
    if way == "hand":
        site.call("sbatch", "by_hand.sh", env=env)
    else:
        site.call(site.hpcrun, "submit", "job.yaml", env=env)
    wanted = [stamps / "script", *(stamps / f"rank-{rank}" for rank in range(2 * RANKS))]
    deadline = time.monotonic() + 120
    while not all(_full(path) for path in wanted):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: {[path.name for path in wanted if not path.exists()]}")
        time.sleep(0.02)
    # The next job must not compete for the CPUs with the end of this one.
    while site.call("squeue", "--noheader", "--format=%i").strip():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: the job does not end")
        time.sleep(0.05)
    begin = float(wanted[0].read_text())
    return max(float(path.read_text()) for path in wanted[1:]) - begin


def _full(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
