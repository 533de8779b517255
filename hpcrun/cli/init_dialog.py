"""What hpcrun init asks, shows and writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from textwrap import fill
from typing import Any

import click
from msgspec import structs

from hpcrun.actions import (
    Found,
    JobFile,
    Question,
    check_untouched,
    draft,
    find_questions,
    find_script,
    look,
    new_profile,
    read_named_script,
    schema_files,
    write_files,
)
from hpcrun.cli.output import (
    Patience,
    Terminal,
    confirm,
    emit_json,
    is_terminal,
    note,
    prompt,
    say,
    table,
    width_and_height,
)
from hpcrun.context import find_project
from hpcrun.errors import InputError, OutOfReach
from hpcrun.plan import update
from hpcrun.spec import Cluster, Partition, load_cluster


def run_init(
    script: str | None,
    cluster: str | None,
    *,
    for_user: bool,
    host: str | None,
    like: str | None,
    check: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Ask Slurm, then the user, and write; return the exit code. Raises InputError, OutOfReach."""
    if script is not None:
        read_named_script(find_project(Path.cwd()), script)  # before Slurm is asked, and the user
    with Patience().waiting():
        found = look(
            os.environ,
            Path.cwd(),
            name=cluster,
            for_user=for_user,
            host=host,
            like=like,
            prompts=Terminal(),
        )
    if like is not None:
        note(
            f"begun like {like}, which is by that site's documentation and was never run there: "
            "look at account, folders and every line with LOOK"
        )
    dialog = _Dialog(found, is_quiet=yes, as_json=as_json)
    return dialog.check() if check else dialog.write(script)


class _Dialog:
    """Asks and writes; ``answer`` is the JSON of what came of it.

    ``is_quiet``: take all defaults; ``taken`` keeps those that nobody was asked about.
    """

    def __init__(self, found: Found, *, is_quiet: bool, as_json: bool) -> None:
        self.found, self.as_json = found, as_json
        has_terminal = all(
            bool(stream and not stream.closed and stream.isatty())
            for stream in (sys.stdin, sys.stderr)
        )
        self.is_quiet = is_quiet or as_json or not has_terminal
        self.taken: dict[str, str] = {}
        self.notes = list(found.warnings)
        self.answer: dict[str, Any] = {
            "cluster": found.name,
            "slurm_version": found.answers.config.version if found.answers else None,
            "profile": str(found.profile),
            "action": "none",
            "changed": [structs.asdict(one) for one in found.changed],
            "job": None,
            "left_out": found.site.left_out if found.site else {},
            "written": [],
            "defaults": self.taken,
            "notes": self.notes,
        }

    def check(self) -> int:
        found = self.found
        if found.old is None:
            lacks = (
                "the profile of a sandbox that is not here" if found.text else "no profile to check"
            )
            raise InputError(f"{found.profile}: {lacks}", fix="hpcrun init writes a new one")
        if found.site is None:
            message = "no Slurm here: scontrol is not on the PATH"
            raise OutOfReach(message, fix="check on a login node")
        if self.as_json:
            emit_json({**self.answer, "action": "checked"})
        else:
            for warning in found.warnings:
                note(f"{_near(found.profile)}: {warning}")
            _show_changes(found)
        return 1 if found.changed or found.warnings else 0

    def write(self, script: str | None) -> int:
        found, answer = self.found, self.answer
        if not self.as_json:
            _show_site(found)
        profile = self._profile()
        cluster = found.old or found.base
        if profile is not None:
            cluster = load_cluster(profile, source=str(found.profile))
        job = self._job(cluster, script)
        files = schema_files(found, job=job is not None) if profile or job else {}
        if job:
            files[job.path] = job.text
        if profile is not None:
            check_untouched(found)
            files[found.profile] = profile  # the last one: where it stands, all the rest does
        write_files(files, found)
        answer["written"] = [str(path) for path in files]
        if self.as_json:
            emit_json(answer)
        else:
            _show_end(answer, found)
        return 0 if found.site is not None or answer["written"] or answer["job"] else 4

    def _profile(self) -> str | None:
        """Return the profile's new text; None leaves it as it is."""
        found = self.found
        if found.site is None:
            note("no Slurm here: scontrol is not on the PATH")
            note("  to try hpcrun without a cluster: hpcrun run JOB, or hpcrun sandbox up")
            text = "Write a profile for this machine alone, for hpcrun run?"
            if found.text and not found.before:  # begun like another
                self.answer["action"] = "created"
                return found.text
            if found.old is not None or not self.confirm("profile", text, default=False):
                return None
        if found.old is None:
            carried = f"{_near(found.profile)} is of a sandbox that is not here"
            question = f"{carried}. Write a new one for {found.name}?"
            if found.text and not self.confirm("replace", question, default=False):
                raise InputError(carried, fix="move it away, and call hpcrun init again")
            self.answer["action"] = "created"
            questions = find_questions(found) if found.site else ()
            answers = {one.key: self.choose(one) for one in questions}
            return new_profile(found, answers)
        self.answer["action"] = "updated" if found.changed else "unchanged"
        if not self.as_json:
            say()
            _show_changes(found)
        assert found.facts is not None  # Slurm was asked
        updated = update(found.text, str(found.profile), found.old, found.facts)
        if updated == found.before:
            return None
        question = f"Bring {_near(found.profile)} up to date?"
        if found.changed and not self.confirm("update", question, default=True):
            self.answer["action"] = "kept"
            return None if found.before else found.text
        return updated

    def _job(self, cluster: Cluster, script: str | None) -> JobFile | None:
        """Draft a job file for the script, unless the user keeps the one that exists."""
        found = self.found
        if script is None and found.old is None and not found.for_user:
            script = find_script(found.project)
            if script is None or (found.project / "jobs" / f"{Path(script).stem}.yaml").exists():
                return None
            if not self.confirm("script", f"Write a job file for {script}?", default=True):
                return None
            if "script" in self.taken:
                self.taken["script"] = script
        if script is None:
            return None
        job = draft(found, cluster, script)
        self.notes += job.draft.notes
        if job.draft.required:
            required = ", ".join(job.draft.required)
            self.notes.append(f"{job.draft.script} stops without {required}: add them to args")
        written = True
        if job.path.exists():
            question = f"{_near(job.path)} exists already. Overwrite it?"
            written = self.confirm("overwrite", question, default=False)
            if not written:
                self.notes.append(f"{_near(job.path)} exists already, and stays as it is")
        self.answer["job"] = {
            "name": job.path.stem,
            "file": str(job.path),
            "script": job.draft.script,
            "framework": job.draft.framework,
            "written": written,
        }
        return job if written else None

    # ---- asking

    def choose(self, one: Question) -> str:
        """Ask for one of several answers, by its name or number; Enter takes the default."""
        if not one.answers:
            is_yes = self.confirm(one.key, f"{one.text}?", default=one.default == "yes")
            return "yes" if is_yes else "no"
        if self.is_quiet:
            self.taken[one.key] = one.default
            return one.default
        if one.details:
            note(f"\n{one.text}:")
        else:
            note("\n" + fill(f"{one.text}: {', '.join(one.answers)}", width_and_height()[0]))
        for number, detail in enumerate(one.details, 1):
            note(f"  {number:>2}  {detail}")
        while True:
            typed = prompt("  which", one.default)
            if typed in one.answers:
                return typed
            if one.details and typed.isdecimal() and 1 <= int(typed) <= len(one.answers):
                return one.answers[int(typed) - 1]
            note(f"  {typed}: none of these")

    def confirm(self, key: str, text: str, *, default: bool) -> bool:
        if self.is_quiet:
            self.taken[key] = "yes" if default else "no"
            return default
        return confirm(text, default=default)


# ---- showing -----------------------------------------------------------------------------------

# Characters of the GPUs' column; what is longer is counted, and stands in the profile.
_GPUS_WIDTH = 24


def _show_site(found: Found) -> None:
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
    if answer["defaults"]:
        defaults = ", ".join(f"{key}: {value}" for key, value in answer["defaults"].items())
        note(f"taken without asking: {defaults}")
    for text in answer["notes"]:
        note(f"note: {text}")
    ours = (".schema.json", ".gitignore")  # for editors, and to keep those out of git
    written = [_near(Path(path)) for path in answer["written"] if not path.endswith(ours)]
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
