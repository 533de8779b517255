"""Measure a submission, compared with those of submitit, torchx and simple_slurm."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench.rows import Row
from bench.site import Site, noted
from bench.timing import Command, in_turns

WAYS = Path(__file__).parent / "peers"
PRESET = "zero2-4gpu"
COMMAND = ("bash", "-c", "true")


def measure_submit(site: Site, rounds: int) -> list[Row]:
    """Compare whole processes that submit to the same Slurm, which starts no jobs.

    hpcrun submits a typical training job from YAML. The others, and for comparison hpcrun, submit
    a bash command.
    """
    torchx = (f"{site.peers}/bin/torchx", "run", "-s", "slurm", "utils.sh")
    site.hold_queue(True)
    try:
        times = in_turns(
            {
                "hpcrun": site.command("submit", PRESET),
                "command": site.command("submit", "--", *COMMAND),
                "submitit": Command(
                    [site.python, str(WAYS / "with_submitit.py"), str(site.folder / "submitit")]
                ),
                "simple_slurm": Command([site.python, str(WAYS / "with_simple_slurm.py")]),
                # torchx submits, then calls sacct, and fails if Slurm has no accounting.
                "torchx": Command([*torchx, *COMMAND], may_fail=True),
                "sbatch": Command(["sbatch", "--output=/dev/null", "--wrap=true"]),
            },
            rounds,
            env=site.env,
            cwd=site.project,
        )
        env, notes = site.counting("submit")
        site.call(site.hpcrun, "submit", PRESET, env=env)
        called = noted(notes)
    finally:
        with contextlib.suppress(Exception):
            site.clear_queue()
        site.hold_queue(False)
    return [
        Row(
            "submit",
            f"hpcrun submit {PRESET} / submitit's submit of a bash command, the same Slurm",
            "x",
            times.ratio("hpcrun", "submitit"),
            bar=1.6,
            goal=1.3,
            notes=[
                f"of the same bash command: {times.ratio('command', 'submitit'):.2f} x",
                times.line("hpcrun", f"hpcrun submit {PRESET}"),
                times.line("command", "hpcrun submit -- bash -c true"),
                times.line("submitit", "submitit 1.5.4"),
                times.line("torchx", "torchx 0.7.0 (its status then fails without accounting)"),
                times.line("simple_slurm", "simple_slurm 0.3.6"),
                times.line("sbatch", "sbatch --wrap, by itself"),
            ],
        ),
        Row(
            "submit-commands",
            f"Slurm commands per submit, of {PRESET}",
            "",
            float(len(called)),
            bar=1,
            goal=1,
            notes=[", ".join(words.split()[0] for words in called)],
        ),
    ]
