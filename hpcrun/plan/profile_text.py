"""The text of a new cluster profile: what was read and chosen, with a word where one must look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from hpcrun.plan.profile_update import Facts, given
from hpcrun.plan.site import Site
from hpcrun.spec.yaml_edit import flow, scalar


class Choices(Struct, frozen=True, kw_only=True):
    """What Slurm cannot say: chosen by the user, or a default.

    ``words`` has a comment for a key; ``python`` is None where a job or the project says it.
    """

    name: str
    runs_dir: str
    cache_dir: str
    accelerator: str = "cuda"
    local_dir: str | None = None
    slurm_conf: str | None = None
    partition: str | None = None
    account: str | None = None
    internet: bool = True
    python: str | None = None
    setup: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


def profile_text(choices: Choices, facts: Facts | None, site: Site | None, schema: str) -> str:
    """Write the profile; without ``site`` that of a machine without Slurm.

    ``schema`` is the path of the JSON Schema, from the profile's folder.
    """
    lines = [
        f"# yaml-language-server: $schema={schema}",
        "# A cluster profile, written by `hpcrun init`. It is yours to edit: called again, init",
        "# reads the cluster anew, changes read_on, slurm_version, max_array_size and partitions,",
        "# and leaves everything else as it is.",
        *_entry("name", choices.name, choices),
    ]
    if facts is not None:
        lines += _entry("read_on", facts.read_on, choices)
        for key, value in facts.values.items():
            if value is not None:
                lines += _entry(key, value, choices)
    if choices.accelerator != "cuda":
        lines += _entry("accelerator", choices.accelerator, choices)
    if choices.slurm_conf:
        lines += _entry("slurm_conf", choices.slurm_conf, choices)
    lines += ["", "# Every node must see these folders at the same path."]
    lines += _entry("runs_dir", choices.runs_dir, choices)
    lines += _entry("cache_dir", choices.cache_dir, choices)
    if choices.local_dir:
        lines += _entry("local_dir", choices.local_dir, choices)
    lines += ["", *_place(choices, site)]
    lines += _entry("internet", choices.internet, choices)
    lines += _entry("fabric", "auto", choices)
    if choices.setup:
        lines += _entry("setup", choices.setup, choices)
    if choices.python:
        lines += _entry("python", choices.python, choices)
    if choices.env:
        lines += ["env:", *(f"  {key}: {scalar(value)}" for key, value in choices.env.items())]
    if facts is not None and site is not None:
        lines += ["", *_partitions(facts, site), *_gpu_types(facts)]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, choices: Choices) -> list[str]:
    word = choices.words.get(key)
    line = f"{key}: {flow(value)}"
    if not word:
        return [line]
    if len(line) + len(word) + 4 <= 100 and len(line) <= 40:
        return [f"{line}  # {word}"]
    return [f"# {word}", line]


def _place(choices: Choices, site: Site | None) -> list[str]:
    """Where jobs go that name no partition and no account."""
    lines = []
    if choices.partition:
        lines += _entry("partition", choices.partition, choices)
    if choices.account:
        lines += _entry("account", choices.account, choices)
    if site is not None and len(site.qos) > 1:
        named = ", ".join(site.qos[:12])
        lines.append(f"# slurm: {{qos: NAME}}  # yours: {named}; unsaid: your account's default")
    return lines


def _partitions(facts: Facts, site: Site) -> list[str]:
    lines = [f"# Read from Slurm on {facts.read_on}."]
    if site.left_out:
        lines.append("# Left out:")
        lines += [f"#   {name}: {why}" for name, why in sorted(site.left_out.items())]
    if not facts.partitions:
        return [*lines, "partitions: {}"]
    lines.append("partitions:")
    for name, said in facts.partitions.items():
        lines += [f"  # {note}" for note in site.notes.get(name, [])]
        lines.append(f"  {scalar(name)}:")
        lines += [f"    {key}: {flow(value)}" for key, value in given(said).items()]
    return lines


def _gpu_types(facts: Facts) -> list[str]:
    if not facts.gpu_types:
        return []
    lines = ["", "# GPU types: the name that a job uses (gpu_type: NAME), and Slurm's word for it."]
    rows = [f"  {scalar(name)}: {flow(given(said))}" for name, said in facts.gpu_types.items()]
    return [*lines, "gpu_types:", *rows]


def listed(names: Sequence[str], most: int = 8) -> str:
    """Name some of many.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
