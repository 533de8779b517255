"""What `hpcrun init` shows: the cluster as it was found, what changed, what was written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.output import note, table

if TYPE_CHECKING:
    from hpcrun.controller.init.init import Found
    from hpcrun.plan.profile_update import Change
    from hpcrun.spec.cluster import Partition

# Characters of the GPUs' column; what is longer is counted, and stands in the profile.
_GPUS_WIDTH = 24


def show_site(found: Found) -> None:
    """Show the partitions that were found, and those that are left out."""
    from hpcrun.cli.output import say

    site, answers = found.site, found.answers
    if site is None or answers is None:
        return
    version = f", Slurm {answers.config.version}" if answers.config.version else ""
    say(f"cluster {found.name}{version}")
    if site.partitions:
        rows = [
            _row(name, said, name == site.partition, site.notes.get(name, []))
            for name, said in site.partitions.items()
        ]
        table(["partition", "nodes", "gpus", "cpus", "memory", "limit", "remarks"], rows)
    else:
        say("no partition that you can use")
    for name, why in sorted(site.left_out.items()):
        say(f"left out: {name}: {why}")


def _row(name: str, said: Partition, is_usual: bool, notes: Sequence[str]) -> list[str]:
    kinds = [f"{count}x{kind}" for kind, count in said.gpu_types.items()]
    shown = " ".join(kinds) if len(" ".join(kinds)) <= _GPUS_WIDTH else f"{len(kinds)} types"
    gpus = shown or str(said.gpus_per_node or "-")
    remarks = ["default"] if is_usual else []
    remarks += [note.partition(";")[0] for note in notes]
    if said.exclusive:
        remarks.append("whole nodes")
    if said.max_nodes:
        remarks.append(f"{said.max_nodes} node{'s' if said.max_nodes > 1 else ''} a job")
    if said.min_nodes:
        remarks.append(f"{said.min_nodes} nodes or more")
    if said.max_gpus:
        remarks.append(f"{said.max_gpus} GPUs at once")
    memory = said.memory_per_node or "-"
    row = [name, said.nodes or "-", gpus, said.cpus_per_node or "-", memory]
    return [*map(str, row), said.max_time or "none", ", ".join(remarks)]


def show_changes(changed: Sequence[Change]) -> None:
    """Show what is other than the profile said, a line each."""
    from textwrap import fill

    from hpcrun.cli.output import has_colour, is_terminal, say, width_and_height

    width = width_and_height()[0] if is_terminal() else 10_000
    colours = {"added": "green", "gone": "red", "changed": "yellow"}
    signs = {"added": "+", "gone": "-", "changed": "~"}
    for one in changed:
        said = one.after if one.what == "added" else one.before
        if one.what == "changed":
            said = f"{one.before} -> {one.after}"
        what = "gone" if one.what == "gone" else ""
        words = "  ".join(word for word in (one.key, said, what) if word)
        line = fill(
            f"{signs[one.what]} {words}",
            width,
            initial_indent="  ",
            subsequent_indent="      ",
            break_on_hyphens=False,
        )
        say(click.style(line, fg=colours[one.what]) if has_colour() else line)


def changes_json(changed: Sequence[Change]) -> list[dict[str, Any]]:
    """Give the changes as the JSON has them."""
    return [
        {"what": one.what, "key": one.key, "before": one.before, "after": one.after}
        for one in changed
    ]


def near(path: Path) -> str:
    """Name a file as seen from here, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("../..") else str(path)


def show_taken(taken: dict[str, str]) -> None:
    """Tell which defaults were taken without asking."""
    if taken:
        said = ", ".join(f"{key}: {value}" for key, value in taken.items())
        note(f"taken without asking: {said}")
