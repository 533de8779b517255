"""The dialog of hpcrun init: its questions, output and files."""

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
    ConvertedJob,
    InitState,
    JobFile,
    Question,
    build_profile,
    check_conversion,
    check_unchanged,
    choose_python,
    convert_script_file,
    describe_missing_python,
    draft_job_file,
    find_questions,
    find_script,
    is_shell_script,
    read_named_script,
    schema_files,
    survey_cluster,
    update_python,
    write_files,
)
from hpcrun.cli.output import (
    SlownessNote,
    TerminalPrompts,
    confirm,
    emit_json,
    is_terminal,
    print_line,
    print_note,
    print_table,
    prompt,
    width_and_height,
)
from hpcrun.context import find_project
from hpcrun.convert import Conversion
from hpcrun.errors import InputError, OutOfReach
from hpcrun.plan import update_profile
from hpcrun.spec import Cluster, Partition, load_cluster


def run_init(
    script: str | None,
    cluster: str | None,
    *,
    arguments: Sequence[str],
    for_user: bool,
    host: str | None,
    like: str | None,
    check: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Query Slurm and the user, and write; return the exit code. Raises InputError, OutOfReach."""
    is_batch = script is not None and is_shell_script(script)
    if arguments and not is_batch:
        raise InputError(
            f"{arguments[0]}: arguments are only those of an sbatch script",
            fix="write the arguments of a Python script into args of its job file",
        )
    if script is not None and is_batch and check:
        return _check_script(script, arguments, as_json=as_json)
    if script is not None and not is_batch:
        # before the queries to Slurm and the user
        read_named_script(find_project(Path.cwd()), script)
    with SlownessNote().waiting():
        found = survey_cluster(
            os.environ,
            Path.cwd(),
            name=cluster,
            for_user=for_user,
            host=host,
            like=like,
            prompts=TerminalPrompts(),
        )
    if like is not None:
        print_note(
            f"started from the profile of {like}, which follows that site's documentation and "
            "was never tested there: check the account, the directories and every line marked CHECK"
        )
    dialog = _Dialog(found, is_quiet=yes, as_json=as_json, arguments=arguments)
    return dialog.check() if check else dialog.write(script)


class _Dialog:
    """Asks questions and writes files; ``answer`` is the JSON of the result.

    ``is_quiet``: use all defaults; ``taken`` collects those that were used without a question.
    """

    def __init__(
        self, found: InitState, *, is_quiet: bool, as_json: bool, arguments: Sequence[str]
    ) -> None:
        self.found, self.as_json, self.arguments = found, as_json, arguments
        has_terminal = all(
            bool(stream and not stream.closed and stream.isatty())
            for stream in (sys.stdin, sys.stderr)
        )
        self.is_quiet = is_quiet or as_json or not has_terminal
        self.taken: dict[str, str] = {}
        self.given: dict[str, str] = {}
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
                "the profile of a sandbox that does not exist here"
                if found.text
                else "no profile to check"
            )
            raise InputError(f"{found.profile}: {lacks}", fix="hpcrun init writes a new one")
        if found.site is None:
            message = "no Slurm here: scontrol is not on the PATH"
            raise OutOfReach(message, fix="check on a login node")
        if self.as_json:
            emit_json({**self.answer, "action": "checked"})
        else:
            for warning in found.warnings:
                print_note(f"{_relative_name(found.profile)}: {warning}")
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
            check_unchanged(found)
            files[found.profile] = profile  # last: if it exists, all other files do
        write_files(files, found)
        answer["written"] = [str(path) for path in files]
        missing = describe_missing_python(found)
        if missing and not self.given.get("python"):
            self.notes.append(missing)
        if self.as_json:
            emit_json(answer)
        else:
            _show_result(answer, found)
        return 0 if found.site is not None or answer["written"] or answer["job"] else 4

    def _profile(self) -> str | None:
        """Return the profile's new text; None keeps the existing one."""
        found = self.found
        if found.site is None:
            print_note("no Slurm here: scontrol is not on the PATH")
            print_note("  to try hpcrun without a cluster: hpcrun run JOB, or hpcrun sandbox up")
            text = "Write a profile for this machine alone, for hpcrun run?"
            if found.text and not found.before:  # started from another profile
                self.answer["action"] = "created"
                return found.text
            if found.old is not None or not self.confirm("profile", text, default=False):
                return None
        if found.old is None:
            carried = f"{_relative_name(found.profile)} is for a sandbox that does not exist here"
            question = f"{carried}. Write a new one for {found.name}?"
            if found.text and not self.confirm("replace", question, default=False):
                raise InputError(carried, fix="move it away, and run hpcrun init again")
            self.answer["action"] = "created"
            questions = find_questions(found) if found.site else ()
            self.given = {one.key: self.choose(one) for one in questions}
            return build_profile(found, self.given)
        self.answer["action"] = "updated" if found.changed else "unchanged"
        if not self.as_json:
            print_line()
            _show_changes(found)
        assert found.facts is not None  # Slurm was queried
        updated = update_profile(found.text, str(found.profile), found.old, found.facts)
        updated = update_python(updated, found)
        if updated == found.before:
            return None
        question = f"Bring {_relative_name(found.profile)} up to date?"
        if found.changed and not self.confirm("update", question, default=True):
            self.answer["action"] = "kept"
            return None if found.before else found.text
        return updated

    def _job(self, cluster: Cluster, script: str | None) -> JobFile | ConvertedJob | None:
        """Draft a job file for the script, unless the user keeps an existing one."""
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
        if is_shell_script(script):
            return self._converted_job(convert_script_file(found, cluster, script, self.arguments))
        job = draft_job_file(found, cluster, script)
        self.notes += job.draft.notes
        if job.draft.required:
            required = ", ".join(job.draft.required)
            self.notes.append(f"{job.draft.script} requires {required}: add them to args")
        written = self._may_write(job.path)
        self.answer["job"] = {
            "name": job.path.stem,
            "file": str(job.path),
            "script": job.draft.script,
            "framework": job.draft.framework,
            "written": written,
        }
        return job if written else None

    def _converted_job(self, job: ConvertedJob) -> ConvertedJob | None:
        """Report the conversion of an sbatch script."""
        written = self._may_write(job.path)
        self.answer["job"] = {
            "name": job.path.stem,
            "file": str(job.path),
            "script": job.source,
            "framework": None,
            "written": written,
            "conversion": _describe_conversion(job.conversion),
        }
        return job if written else None

    def _may_write(self, path: Path) -> bool:
        """Return True unless the user keeps an existing file."""
        if not path.exists():
            return True
        question = f"{_relative_name(path)} exists already. Overwrite it?"
        written = self.confirm("overwrite", question, default=False)
        if not written:
            self.notes.append(f"{_relative_name(path)} exists already, and is unchanged")
        return written

    # ---- questions

    def choose(self, one: Question) -> str:
        """Let the user choose an answer by name or number; Enter selects the default."""
        if one.is_path:
            return self._ask_for_path(one)
        if not one.answers:
            is_yes = self.confirm(one.key, f"{one.text}?", default=one.default == "yes")
            return "yes" if is_yes else "no"
        if self.is_quiet:
            self.taken[one.key] = one.default
            return one.default
        if one.details:
            print_note(f"\n{one.text}:")
        else:
            print_note("\n" + fill(f"{one.text}: {', '.join(one.answers)}", width_and_height()[0]))
        for number, detail in enumerate(one.details, 1):
            print_note(f"  {number:>2}  {detail}")
        while True:
            typed = prompt("  which", one.default)
            if typed in one.answers:
                return typed
            if one.details and typed.isdecimal() and 1 <= int(typed) <= len(one.answers):
                return one.answers[int(typed) - 1]
            print_note(f"  {typed}: not one of these")

    def _ask_for_path(self, one: Question) -> str:
        while not self.is_quiet:
            print_note("\n" + fill(one.text, width_and_height()[0]))
            typed = prompt("  path or name", one.default)
            try:
                choose_python(self.found, {}, typed)
            except InputError as error:
                print_note(f"  {error.message}")
            else:
                return typed
        return one.default

    def confirm(self, key: str, text: str, *, default: bool) -> bool:
        if self.is_quiet:
            self.taken[key] = "yes" if default else "no"
            return default
        return confirm(text, default=default)


# ---- output ------------------------------------------------------------------------------------

# Width of the GPUs' column in characters; a longer list is replaced by its length, and is in the
# profile.
_GPUS_WIDTH = 24


def _show_site(found: InitState) -> None:
    site, answers = found.site, found.answers
    if site is None or answers is None:
        return
    version = f", Slurm {answers.config.version}" if answers.config.version else ""
    print_line(f"cluster {found.name}{version}")
    if site.partitions:
        rows = [
            _format_partition(name, partition, name == site.partition, site.notes.get(name, []))
            for name, partition in site.partitions.items()
        ]
        print_table(["partition", "nodes", "gpus", "cpus", "memory", "limit", "remarks"], rows)
    else:
        print_line("no partition that you can use")
    for name, why in sorted(site.left_out.items()):
        print_line(f"left out: {name}: {why}")


def _format_partition(
    name: str, partition: Partition, is_default: bool, notes: Sequence[str]
) -> list[str]:
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
    if partition.qos:
        remarks.append(f"QOS {partition.qos}")
    return [
        name,
        str(partition.nodes or "-"),
        shown or str(partition.gpus_per_node or "-"),
        str(partition.cpus_per_node or "-"),
        str(partition.memory_per_node or "-"),
        str(partition.max_time or "none"),
        ", ".join(remarks),
    ]


def _show_changes(found: InitState) -> None:
    what = "changed" if found.changed else "nothing changed"
    since = f" since {found.old.read_on}" if found.old and found.old.read_on else ""
    print_line(f"{_relative_name(found.profile)}: {what}{since}")
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
        print_line(click.style(line, fg=colour))


def _relative_name(path: Path) -> str:
    """Return a file's path relative to the current folder, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("../..") else str(path)


def _describe_conversion(made: Conversion) -> dict[str, Any]:
    return {
        "complete": made.is_complete,
        "before": made.before,
        "after": made.after,
        "remarks": [structs.asdict(one) for one in made.remarks],
    }


def _check_script(script: str, arguments: Sequence[str], *, as_json: bool) -> int:
    """Compare the ranks of a script with those of its job; the exit code is 1 if they differ."""
    with SlownessNote().waiting():
        made, found = check_conversion(script, arguments, os.environ, Path.cwd())
    name = Path(script).stem
    job = {
        "name": name,
        "file": "",
        "script": Path(script).name,
        "framework": None,
        "written": False,
        "conversion": _describe_conversion(made),
        "check": structs.asdict(found) | {"differences": [*map(structs.asdict, found.differences)]},
    }
    if as_json:
        answer = {"cluster": "sandbox", "slurm_version": None, "profile": "", "action": "checked"}
        nothing: dict[str, Any] = {
            "changed": [],
            "left_out": {},
            "notes": [],
            "written": [],
            "defaults": {},
        }
        emit_json({**answer, **nothing, "job": job})
        return 1 if found.differences else 0
    _show_conversion(job)
    print_line(f"\nprobes in a sandbox: {found.ranks} rank{'s' * (found.ranks != 1)}")
    if found.differences:
        rows = [[one.rank, one.what, one.script, one.job] for one in found.differences]
        print_table(["rank", "", Path(script).name, "job"], rows)
        return 1
    print_line("  equal: arguments, environment, rank, world size, directory, CPUs, GPUs")
    return 0


_EFFECTS = {
    "missing": "not carried over",
    "assumed": "carried over with an assumption",
    "changed": "done in another way",
    "replaced": "not needed in the job",
}


def _show_conversion(job: dict[str, Any]) -> None:
    """Print the program of the script and of the job, and the lines that the job lacks."""
    made = job["conversion"]
    print_line()
    print_table(
        ["", "program"],
        [[job["script"], made["before"]], [f"{job['name']}.yaml", made["after"].split("\n")[0]]],
    )
    for effect, title in _EFFECTS.items():
        rows = [
            [f"  line {one['line']}" if one["line"] else "", one["text"], one["reason"]]
            for one in made["remarks"]
            if one["effect"] == effect
        ]
        if rows:
            print_line(f"\n{title}:")
            print_table(["", "", ""], rows)
    complete = "everything is carried over" if made["complete"] else "the job is incomplete"
    print_line(f"\n{complete}")


def _show_result(answer: dict[str, Any], found: InitState) -> None:
    if answer["defaults"]:
        defaults = ", ".join(f"{key}: {value}" for key, value in answer["defaults"].items())
        print_note(f"used without asking: {defaults}")
    for text in answer["notes"]:
        print_note(f"note: {text}")
    ours = (".schema.json", ".gitignore")  # files for editors and git
    written = [_relative_name(Path(path)) for path in answer["written"] if not path.endswith(ours)]
    if written:
        print_line(f"\nwrote {' and '.join(written)}")
    if answer["action"] == "created" and "CHECK" in found.profile.read_text(errors="replace"):
        print_line("  lines marked CHECK are guesses")
    job = answer["job"]
    if job is not None and "conversion" in job:
        _show_conversion(job)
    if job is not None:
        name = quote(job["name"])
        print_line(f"  hpcrun submit {name} --dry-run     read everything that would be submitted")
        if found.site is not None:
            print_line(f"  hpcrun submit {name} --test-only   ask Slurm when it would start")
        else:
            print_line(f"  hpcrun run {name}     run it here")
    elif answer["action"] == "created" and found.site is not None:
        print_line("  hpcrun init SCRIPT     a job file for your training script")
        print_line(
            "  hpcrun submit single-gpu --dry-run     a built-in job; hpcrun jobs lists them"
        )
