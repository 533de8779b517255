"""Runs that continue after faults of their nodes, and the successors of each."""

from __future__ import annotations

from tests.cluster.site import Site, Submitted
from tests.cluster.survive_job import (
    TRAIN,
    submit,
)

# What the program above does in step 6, with a whole checkpoint of step 4.
FAULTS = """
    if step == 6 and int(os.environ["HPCRUN_ATTEMPT"]) == 0 and rank == 0:
        how = os.environ.get("HOW")
        if how == "error":
            raise ValueError("a bad batch")
        if how == "nan":
            sys.exit("the loss is nan")
        if how == "memory":
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does
        if how == "disk":
            begin = (folder / "step-4.pt").read_bytes()[:20]
            (folder / "step-6.pt").write_bytes(begin + bytes(2_000_000))
        if how == "damaged":
            whole = (folder / "step-4.pt").read_bytes()
            (folder / "step-6.pt").write_bytes(whole[:-30])
        # As the harness ends an attempt that stands still.
        open(f"{os.environ['HPCRUN_RUN_DIR']}/attempts/0/stalled", "w")
        sys.exit(1)
"""

WHOLE = ("--set", "slurm.exclusive=true")  # nodes of its own
SECRET = {"TOKEN": "a-long-secret-value"}
NEEDS = ("--set", "secrets=[TOKEN]", "--set", "setup.commands=['test -n \"$TOKEN\"']")


def nodes_of(run: Submitted, attempt: int) -> list[str]:
    """Return the nodes of an attempt."""
    lines = (run.folder / f"attempts/{attempt}/hostfile").read_text().splitlines()
    return [line.split()[0] for line in lines]


def submit_whole(
    site: Site, survive: str, *options: str, nodes: int = 2, steps: int = 70, train: str = TRAIN
) -> Submitted:
    """Submit a run on exclusive nodes."""
    return submit(site, survive, *WHOLE, *options, nodes=nodes, steps=steps, train=train)


def successor_of(run: Submitted) -> str:
    """Return the job that continues a run whose own job cannot; "" while there is none."""
    try:
        return str(run.record("begin.json").get("successor", ""))
    except FileNotFoundError:
        return ""


def queue(site: Site, run: Submitted, field: str) -> str:
    """Return the squeue output for a run's job."""
    return site.rig.run("squeue", "-h", "-j", run.job_id, "-o", field).stdout.strip()
