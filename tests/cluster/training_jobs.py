"""The training jobs of the launchers and their results."""

from __future__ import annotations

from tests.cluster.site import Site, Submitted

STEPS = 20


def train(
    site: Site, preset: str, nodes: int, ranks_per_node: int, *args: str, launcher: str = ""
) -> Submitted:
    """Submit a preset with another shape and a global batch size of 8.

    ``launcher`` replaces that of the preset; srun avoids an import of torch on each node.
    """
    micro = 8 // (nodes * ranks_per_node)
    other = ("--set", f"launcher={launcher}") if launcher else ()
    return site.submit(
        preset,
        *("--nodes", str(nodes), "--gpus-per-node", str(ranks_per_node), "--time", "10"),
        *("--set", "precision=fp32", "--set", f"batch.micro_batch_per_gpu={micro}", *other),
        *("--", "--steps", str(STEPS), "--parameter-hash", *args),
    )


def finish(site: Site, run: Submitted) -> None:
    """Assert that a run succeeds."""
    done = site.follow(run)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
