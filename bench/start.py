"""Measure `hpcrun --help`, compared with the time that Python needs to import click."""

from __future__ import annotations

from bench.rows import Row
from bench.site import Site
from bench.timing import Command, in_turns


def measure_help(site: Site, rounds: int) -> Row:
    """Compare whole processes."""
    times = in_turns(
        {
            "hpcrun": site.command("--help"),
            "click": Command([site.python, "-c", "import click"]),
            "torchx": Command([str(site.peers / "bin" / "torchx"), "--help"]),
        },
        rounds,
        env=site.env,
        cwd=site.project,
    )
    return Row(
        "help",
        "hpcrun --help / import click in bare Python",
        "x",
        times.ratio("hpcrun", "click"),
        bar=1.4,
        goal=1.2,
        notes=[
            times.line("hpcrun", "hpcrun --help"),
            times.line("click", "python -c 'import click'"),
            times.line("torchx", "torchx --help"),
        ],
    )
