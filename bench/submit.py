"""How long a submission takes, beside that of submitit, torchx and simple_slurm."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench.rows import Row
from bench.site import PEERS, Site, noted
from bench.timing import Command, in_turns

WAYS = Path(__file__).parent / "peers"
COMMAND = ("bash", "-c", "true")


def measure_submit(site: Site, rounds: int) -> list[Row]:
    """Compare whole processes that hand `bash -c true` to the same Slurm, whose queue is held."""
    site.hold_queue(True)
    try:
        times = in_turns(
            {
                "hpcrun": site.command("submit", "--", *COMMAND),
                "submitit": Command(
                    [site.python, str(WAYS / "with_submitit.py"), str(site.folder / "submitit")]
                ),
                "simple_slurm": Command([site.python, str(WAYS / "with_simple_slurm.py")]),
                # It submits, then asks sacct, and fails where Slurm keeps no accounting.
                "torchx": Command(
                    [str(PEERS / "bin" / "torchx"), "run", "-s", "slurm", "utils.sh", *COMMAND],
                    may_fail=True,
                ),
                "sbatch": Command(["sbatch", "--output=/dev/null", "--wrap=true"]),
            },
            rounds,
            env=site.env,
            cwd=site.project,
        )
        env, notes = site.counting("submit")
        site.call(site.hpcrun, "submit", "--", *COMMAND, env=env)
        called = noted(notes)
    finally:
        with contextlib.suppress(Exception):
            site.clear_queue()
        site.hold_queue(False)
    return [
        Row(
            "submit",
            "hpcrun submit / submitit, the same bash command and Slurm",
            "x",
            times.ratio("hpcrun", "submitit"),
            bar=1.2,
            goal=1.0,
            notes=[
                times.said("hpcrun", "hpcrun submit"),
                times.said("submitit", "submitit 1.5.4"),
                times.said("torchx", "torchx 0.7.0 (its status then fails without accounting)"),
                times.said("simple_slurm", "simple_slurm 0.3.6"),
                times.said("sbatch", "sbatch --wrap, by itself"),
            ],
        ),
        Row(
            "submit-commands",
            "Slurm commands per submit",
            "",
            float(len(called)),
            bar=1,
            goal=1,
            notes=[", ".join(words.split()[0] for words in called)],
        ),
    ]
