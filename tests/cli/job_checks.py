"""The errors of the checks before submission."""

from __future__ import annotations

from tests.cli.calling import Caller, Done

PROFILE = """\
runs_dir: "{runs}"
cache_dir: "{runs}-cache"
python: {python}
read_on: 2026-11-01
partition: gpu
partitions:
  gpu: {{gpus_per_node: 4, cpus_per_node: 64, max_time: 1-00}}
  big: {{gpus_per_node: 8}}
max_array_size: 3
"""


def set_profile(hpcrun: Caller, python: str) -> None:
    hpcrun.write("hpcrun.yaml", PROFILE.format(runs=hpcrun.runs, python=python))


def dry(hpcrun: Caller, text: str, *more: str) -> Done:
    """Plan a job without submitting it, and assert that nothing is written."""
    hpcrun.write("job.yaml", text + "\n")
    before = sorted(hpcrun.project.rglob("*"))
    done = hpcrun("submit", "job.yaml", "--dry-run", *more)
    assert sorted(hpcrun.project.rglob("*")) == before and not hpcrun.runs.exists()
    assert "Traceback" not in done.err
    return done


def errors(hpcrun: Caller, text: str, *more: str) -> list[str]:
    done = dry(hpcrun, text, *more)
    assert done.code == 2 and not done.out, done
    return [
        line.removeprefix("error: job.yaml: ")
        for line in done.err.splitlines()
        if line.startswith("error: ")
    ]
