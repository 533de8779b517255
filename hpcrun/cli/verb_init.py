"""hpcrun init."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import CLUSTER, json_option
from hpcrun.errors import InputError, OutOfReach

if TYPE_CHECKING:
    from hpcrun.controller.init.init import Found, Options, Question
    from hpcrun.controller.init.job import JobFile
    from hpcrun.spec.cluster import Cluster, Partition


@click.command("init")
@click.argument("script", required=False)
@click.option("--cluster", type=CLUSTER, help="The cluster's name (default: Slurm's ClusterName).")
@click.option("--user", "for_user", is_flag=True, help="Write ~/.config/hpcrun/clusters/NAME.yaml.")
@click.option("--check", is_flag=True, help="Show what changed, and stop; exit code 1 if so.")
@click.option("--yes", is_flag=True, help="Do not ask; take the defaults.")
@json_option
def command(
    script: str | None, cluster: str | None, for_user: bool, check: bool, yes: bool, as_json: bool
) -> int:
    """Ask the cluster, then you, and write hpcrun.yaml and a job file for SCRIPT.

    Partitions, GPUs, limits and your accounts are read from Slurm; you are asked only for the rest.
    Called again it shows what has changed on the cluster since and updates the profile; your own
    keys and comments stay. An existing file is not overwritten without asking.
    """
    from msgspec import structs

    from hpcrun.cli.output import Patience, emit_json
    from hpcrun.controller.init.init import look

    if script is not None:
        from hpcrun.controller.context import find_project
        from hpcrun.controller.init.job import read_program

        read_program(find_project(Path.cwd()), script)  # before Slurm is asked, and the user
    with Patience().waiting():
        found = look(os.environ, Path.cwd(), name=cluster, for_user=for_user)
    answer: dict[str, Any] = {
        "cluster": found.name,
        "slurm_version": found.answers.config.version if found.answers else None,
        "profile": str(found.profile),
        "action": "none",
        "changed": [structs.asdict(one) for one in found.changed],
        "job": None,
        "left_out": found.site.left_out if found.site else {},
        "written": [],
        "defaults": {},
        "notes": list(found.warnings),
    }
    if check:
        if found.old is None:
            raise InputError(f"{found.profile}: no profile to check", fix="hpcrun init writes it")
        return _check(found, answer, as_json=as_json)
    prompter = Prompter(quiet=yes or as_json)
    if not as_json:
        _show_site(found)
    _write(found, script, prompter, answer, as_json=as_json)
    answer["defaults"] = prompter.taken
    if as_json:
        emit_json(answer)
    else:
        _show_end(answer, found)
    is_done = found.site is not None or answer["written"] or answer["job"]
    return 0 if is_done else 4


def _check(found: Found, answer: dict[str, Any], *, as_json: bool) -> int:
    """Report how the cluster differs from the profile."""
    from hpcrun.cli.output import emit_json, note

    if found.site is None:
        raise OutOfReach("no Slurm here: scontrol is not on the PATH", fix="check on a login node")
    if as_json:
        emit_json({**answer, "action": "checked"})
    else:
        for warning in found.warnings:
            note(f"{_near(found.profile)}: {warning}")
        _show_changes(found)
    return 1 if found.changed or found.warnings else 0


def _write(
    found: Found, script: str | None, prompter: Prompter, answer: dict[str, Any], *, as_json: bool
) -> None:
    """Write the profile, a job file for the script and the schemas for editors."""
    from hpcrun.controller.init.init import check_untouched, find_options, schema_files, write_files
    from hpcrun.spec.load import load_cluster

    options = find_options(found)
    profile = _profile(found, options, prompter, answer, as_json=as_json)
    cluster = found.old or found.base
    if profile is not None:
        cluster = load_cluster(profile, source=str(found.profile))
    job = _job(found, cluster, options, script, prompter, answer)
    files = schema_files(found, job=job is not None) if profile or job else {}
    if job:
        files[job.path] = job.text
    if profile is not None:
        check_untouched(found)
        files[found.profile] = profile  # the last one: where it stands, all the rest does
    write_files(files)
    answer["written"] = [str(path) for path in files]


def _profile(
    found: Found, options: Options, prompter: Prompter, answer: dict[str, Any], *, as_json: bool
) -> str | None:
    """Return the profile's new text; None leaves it as it is."""
    from hpcrun.cli.output import note, say
    from hpcrun.controller.init.init import new_profile
    from hpcrun.plan.profile import update

    if found.site is None:
        note("no Slurm here: scontrol is not on the PATH")
        note("  to try hpcrun without a cluster: hpcrun run JOB, or hpcrun sandbox up")
        text = "Write a profile for this machine alone, for hpcrun run?"
        if found.old is not None or not prompter.confirm("profile", text, default=False):
            return None
    if found.old is None:
        answer["action"] = "created"
        questions = options.questions if found.site else ()
        answers = {one.key: prompter.choose(one) for one in questions}
        return new_profile(found, options, answers)
    answer["action"] = "updated" if found.changed else "unchanged"
    if not as_json:
        say()
        _show_changes(found)
    assert found.facts is not None  # Slurm was asked
    updated = update(found.text, str(found.profile), found.old, found.facts)
    if updated == found.text:
        return None
    question = f"Bring {_near(found.profile)} up to date?"
    if found.changed and not prompter.confirm("update", question, default=True):
        answer["action"] = "kept"
        return None
    return updated


def _job(
    found: Found,
    cluster: Cluster,
    options: Options,
    script: str | None,
    prompter: Prompter,
    answer: dict[str, Any],
) -> JobFile | None:
    """Draft a job file for the script, unless the user keeps the one that exists."""
    from hpcrun.controller.init.job import draft, find_script

    if script is None and found.old is None and not found.for_user:
        script = find_script(found.project)
        if script is None or (found.project / "jobs" / f"{Path(script).stem}.yaml").exists():
            return None
        if not prompter.confirm("script", f"Write a job file for {script}?", default=True):
            return None
        if "script" in prompter.taken:
            prompter.taken["script"] = script
    if script is None:
        return None
    job = draft(found, cluster, options, script)
    answer["notes"] += job.draft.notes
    if job.draft.required:
        required = ", ".join(job.draft.required)
        answer["notes"].append(f"{job.draft.script} stops without {required}: add them to args")
    written = True
    if job.path.exists():
        question = f"{_near(job.path)} exists already. Overwrite it?"
        written = prompter.confirm("overwrite", question, default=False)
        if not written:
            answer["notes"].append(f"{_near(job.path)} exists already, and stays as it is")
    answer["job"] = {
        "name": job.path.stem,
        "file": str(job.path),
        "script": job.draft.script,
        "framework": job.draft.framework,
        "written": written,
    }
    return job if written else None


# ---- asking ------------------------------------------------------------------------------------


class Prompter:
    """Asks questions; ``taken`` keeps the defaults that nobody was asked about.

    ``quiet``: take all defaults, as with --yes, or where nobody can be asked.
    """

    def __init__(self, *, quiet: bool) -> None:
        import sys

        has_terminal = all(
            bool(stream and not stream.closed and stream.isatty())
            for stream in (sys.stdin, sys.stderr)
        )
        self.quiet = quiet or not has_terminal
        self.taken: dict[str, str] = {}

    def choose(self, one: Question) -> str:
        """Ask for one of several answers, by its name or number; Enter takes the default.

        Without details the answers stand in one line, and have no numbers; without answers it is
        a question of yes or no.
        """
        from textwrap import fill

        from hpcrun.cli.output import note, width_and_height

        if not one.answers:
            is_yes = self.confirm(one.key, f"{one.text}?", default=one.default == "yes")
            return "yes" if is_yes else "no"
        if self.quiet:
            self.taken[one.key] = one.default
            return one.default
        if one.details:
            note(f"\n{one.text}:")
        else:
            note("\n" + fill(f"{one.text}: {', '.join(one.answers)}", width_and_height()[0]))
        for number, detail in enumerate(one.details, 1):
            note(f"  {number:>2}  {detail}")
        while True:
            typed = str(click.prompt("  which", default=one.default, err=True)).strip()
            if typed in one.answers:
                return typed
            if one.details and typed.isdecimal() and 1 <= int(typed) <= len(one.answers):
                return one.answers[int(typed) - 1]
            note(f"  {typed}: none of these")

    def confirm(self, key: str, text: str, *, default: bool) -> bool:
        """Ask a yes or a no."""
        if self.quiet:
            self.taken[key] = "yes" if default else "no"
            return default
        return click.confirm(text, default=default, err=True)


# ---- showing -----------------------------------------------------------------------------------

# Characters of the GPUs' column; what is longer is counted, and stands in the profile.
_GPUS_WIDTH = 24


def _show_site(found: Found) -> None:
    """Show the partitions that were found, and those that are left out."""
    from hpcrun.cli.output import say, table

    site, answers = found.site, found.answers
    if site is None or answers is None:
        return
    version = f", Slurm {answers.config.version}" if answers.config.version else ""
    say(f"cluster {found.name}{version}")
    if site.partitions:
        rows = [
            _row(name, partition, name == site.partition, site.notes.get(name, []))
            for name, partition in site.partitions.items()
        ]
        table(["partition", "nodes", "gpus", "cpus", "memory", "limit", "remarks"], rows)
    else:
        say("no partition that you can use")
    for name, why in sorted(site.left_out.items()):
        say(f"left out: {name}: {why}")


def _row(name: str, partition: Partition, is_default: bool, notes: Sequence[str]) -> list[str]:

    kinds = [f"{count}x{kind}" for kind, count in partition.gpu_types.items()]
    shown = " ".join(kinds) if len(" ".join(kinds)) <= _GPUS_WIDTH else f"{len(kinds)} types"
    remarks = ["default"] if is_default else []
    remarks += [note.partition(";")[0] for note in notes]
    if partition.exclusive:
        remarks.append("whole nodes")
    if partition.max_nodes:
        remarks.append(f"{partition.max_nodes} node{'s' if partition.max_nodes > 1 else ''} a job")
    if partition.min_nodes:
        remarks.append(f"{partition.min_nodes} nodes or more")
    if partition.max_gpus:
        remarks.append(f"{partition.max_gpus} GPUs at once")
    return [
        name,
        str(partition.nodes or "-"),
        shown or str(partition.gpus_per_node or "-"),
        str(partition.cpus_per_node or "-"),
        str(partition.memory_per_node or "-"),
        str(partition.max_time or "none"),
        ", ".join(remarks),
    ]


def _show_changes(found: Found) -> None:
    """Show how the cluster differs from the profile, a line for each change."""
    from textwrap import fill

    from hpcrun.cli.output import is_terminal, say, width_and_height

    since = f" since {found.old.read_on}" if found.old and found.old.read_on else ""
    say(f"{_near(found.profile)}: {'changed' if found.changed else 'nothing changed'}{since}")
    for change in found.changed:
        sign, colour, *texts = {
            "added": ("+", "green", change.after),
            "gone": ("-", "red", change.before, "gone"),
            "changed": ("~", "yellow", f"{change.before} -> {change.after}"),
        }[change.what]
        line = fill(
            "  ".join(part for part in (f"{sign} {change.key}", *texts) if part),
            width_and_height()[0] if is_terminal() else 10_000,
            initial_indent="  ",
            subsequent_indent="      ",
            break_on_hyphens=False,
        )
        say(click.style(line, fg=colour))


def _near(path: Path) -> str:
    """Return a file's name as seen from here, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("../..") else str(path)


def _show_end(answer: dict[str, Any], found: Found) -> None:
    """Print what was written, what to look at, and what to type next."""
    from shlex import quote

    from hpcrun.cli.output import note, say

    if answer["defaults"]:
        defaults = ", ".join(f"{key}: {value}" for key, value in answer["defaults"].items())
        note(f"taken without asking: {defaults}")
    for text in answer["notes"]:
        note(f"note: {text}")
    written = [_near(Path(path)) for path in answer["written"] if ".schema." not in path]
    if written:
        say(f"\nwrote {' and '.join(written)}")
    if answer["action"] == "created" and "LOOK" in found.profile.read_text(errors="replace"):
        say("  lines marked LOOK are guesses: check them")
    job = answer["job"]
    if job is not None:
        name = quote(job["name"])
        say(f"  hpcrun submit {name} --dry-run     read everything that would be submitted")
        if found.site is not None:
            say(f"  hpcrun submit {name} --test-only   ask Slurm when it would start")
        else:
            say(f"  hpcrun run {name}     run it here")
    elif answer["action"] == "created" and found.site is not None:
        say("  hpcrun init SCRIPT     a job file for your training script")
        say("  hpcrun submit single-gpu --dry-run     a built-in job; hpcrun jobs lists them")
