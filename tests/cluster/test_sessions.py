"""hpcrun shell --new on a real Slurm, from the login node and from a laptop."""

from __future__ import annotations

from tests.cluster.laptop import Laptop, laptop
from tests.cluster.site import Site
from tests.waiting import until

__all__ = ["laptop"]  # fixture


def test_new_shell_runs_in_its_own_job_and_cancels_it(site: Site) -> None:
    script = 'echo "job $SLURM_JOB_ID with $SLURM_CPUS_ON_NODE CPUs in $PWD"; exit 7'
    done = site.hpcrun(
        "shell", "--new", "--time", "5", "--set", "env={MINE: abc}", "--", "bash", "-c", script
    )
    assert done.returncode == 7, done.stderr
    job = done.stdout.split()[1]
    assert done.stdout.startswith(f"job {job} with ") and f"in {site.project}\n" in done.stdout
    assert f"submitted job {job}\n" in done.stderr and f"cancelled job {job}\n" in done.stderr
    until(lambda: site.rig.run("squeue", "-h", "-j", job).stdout == "", "the job's end")
    kept = site.hpcrun("shell", "--new", "--keep", "--time", "5", "--", "printenv", "SLURM_JOB_ID")
    again = site.hpcrun("shell", kept.stdout.strip(), "--", "printenv", "SLURM_JOB_ID")
    assert again.stdout == kept.stdout, again.stderr
    site.hpcrun("cancel", kept.stdout.strip())
    refused = site.hpcrun("shell", "--new", "-p", "nowhere", "--", "true")
    assert refused.returncode in (2, 3), refused.stderr


def test_new_shell_of_a_laptop_runs_on_the_cluster(laptop: Laptop) -> None:
    done = laptop.hpcrun("shell", "--new", "--time", "5", "--", "printenv", "SLURMD_NODENAME")
    assert (done.returncode, done.stdout) == (0, "node1\n"), done.stderr
    assert "cancelled job" in done.stderr
