"""hpcrun init."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import CLUSTER, json_option

if TYPE_CHECKING:
    from hpcrun.cli.prompt import Prompter
    from hpcrun.controller.init.choices import Options
    from hpcrun.controller.init.init import Found
    from hpcrun.controller.init.job import JobFile
    from hpcrun.spec.cluster import Cluster


@click.command("init")
@click.argument("script", required=False)
@click.option("--cluster", type=CLUSTER, help="The cluster's name, else Slurm's own.")
@click.option("--user", "for_user", is_flag=True, help="Write ~/.config/hpcrun/clusters/NAME.yaml.")
@click.option("--check", is_flag=True, help="Tell what changed and stop; exit code 1 if so.")
@click.option("--yes", is_flag=True, help="Ask nothing, take the defaults.")
@json_option
def command(
    script: str | None, cluster: str | None, for_user: bool, check: bool, yes: bool, as_json: bool
) -> int:
    """Ask the cluster, then you, and write hpcrun.yaml and a job file for SCRIPT.

    Slurm is asked for partitions, GPUs, limits and your accounts; you only for what it cannot
    say. Called again it shows what changed on the cluster since and brings the profile up to date;
    your own keys and comments stay. A file that is there is not overwritten unasked.
    """
    from hpcrun.cli.output import emit_json
    from hpcrun.cli.patience import Patience
    from hpcrun.cli.prompt import Prompter
    from hpcrun.cli.show_init import show_site
    from hpcrun.controller.init.init import look
    from hpcrun.errors import InputError

    if script is not None:
        from hpcrun.controller.context import find_project
        from hpcrun.controller.init.job import read_program

        read_program(find_project(Path.cwd()), script)  # before Slurm is asked, and the user
    with Patience().waiting():
        found = look(os.environ, Path.cwd(), name=cluster, for_user=for_user)
    prompter = Prompter(quiet=yes or as_json)
    if check:
        if found.old is None:
            raise InputError(f"{found.profile}: no profile to check", fix="hpcrun init writes it")
        return _check(found, as_json)
    if not as_json:
        show_site(found)
    answer: dict[str, Any] = {
        "cluster": found.name,
        "slurm_version": found.answers.config.version if found.answers else None,
        "profile": str(found.profile),
        "job": None,
        "left_out": found.site.left_out if found.site else {},
        "notes": list(found.warnings),
    }
    if found.site is None:
        code = _without_slurm(found, script, prompter, answer)
    else:
        code = _with_slurm(found, script, prompter, answer, quiet=as_json)
    answer["defaults"] = prompter.taken
    if as_json:
        emit_json(answer)
    else:
        _show_end(answer, found)
    return code


def _check(found: Found, as_json: bool) -> int:
    """Tell what is other than the profile says."""
    from hpcrun.cli.output import emit_json, note, say
    from hpcrun.cli.show_init import changes_json, near, show_changes
    from hpcrun.errors import OutOfReach

    if found.site is None or found.old is None:
        raise OutOfReach("no Slurm here: scontrol is not on the PATH", fix="check on a login node")
    if as_json:
        emit_json(
            {
                "cluster": found.name,
                "slurm_version": found.answers.config.version if found.answers else None,
                "profile": str(found.profile),
                "action": "checked",
                "changed": changes_json(found.changed),
                "job": None,
                "left_out": found.site.left_out,
                "written": [],
                "defaults": {},
                "notes": list(found.warnings),
            }
        )
        return 1 if found.changed or found.warnings else 0
    since = f" since {found.old.read_on}" if found.old.read_on else ""
    for warning in found.warnings:
        note(f"{near(found.profile)}: {warning}")
    if not found.changed:
        say(f"{near(found.profile)}: nothing changed{since}")
    else:
        say(f"{near(found.profile)}: changed{since}")
        show_changes(found.changed)
    return 1 if found.changed or found.warnings else 0


def _with_slurm(
    found: Found, script: str | None, prompter: Prompter, answer: dict[str, Any], *, quiet: bool
) -> int:
    from hpcrun.cli.show_init import changes_json
    from hpcrun.controller.init.choices import find_options, new_profile
    from hpcrun.controller.init.init import check_untouched, schema_files, write_files
    from hpcrun.spec.load import load_cluster

    options = find_options(found)
    files: dict[Path, str] = {}
    if found.old is None:
        text = new_profile(found, options, _asked(options, prompter))
        cluster = load_cluster(text, source=str(found.profile))
        answer["action"], answer["changed"] = "created", []
        profile = {found.profile: text}
    else:
        answer["changed"] = changes_json(found.changed)
        profile = _refreshed(found, prompter, answer, quiet=quiet)
        new = profile.get(found.profile)
        cluster = load_cluster(new, source=str(found.profile)) if new else found.old
    job = _job(found, cluster, options, script, prompter, answer)
    if profile or job:
        files = schema_files(found, job=job is not None)
    if job:
        files[job.path] = job.text
    # The profile goes last: where it stands, all the rest does.
    files |= profile
    if profile:
        check_untouched(found)
    write_files(files)
    answer["written"] = [str(path) for path in files]
    return 0


def _asked(options: Options, prompter: Prompter) -> dict[str, str]:
    """Ask what is left to ask."""
    answers = {}
    for one in options.questions:
        if one.answers:
            answers[one.key] = prompter.choose(
                one.key, one.text, one.answers, one.default, one.details
            )
        else:
            said = prompter.confirm(one.key, f"{one.text}?", default=one.default == "yes")
            answers[one.key] = "yes" if said else "no"
    return answers


def _refreshed(
    found: Found, prompter: Prompter, answer: dict[str, Any], *, quiet: bool
) -> dict[Path, str]:
    """The profile with what was read now, if the user wants it."""
    from hpcrun.cli.output import say
    from hpcrun.cli.show_init import near, show_changes
    from hpcrun.controller.init.init import updated_profile

    assert found.old is not None and found.facts is not None
    where = near(found.profile)
    since = f" since {found.old.read_on}" if found.old.read_on else ""
    text = updated_profile(found)
    answer["action"] = "updated" if found.changed else "unchanged"
    if not quiet:
        if found.changed:
            say(f"\n{where}: changed{since}")
            show_changes(found.changed)
        else:
            say(f"\n{where}: nothing changed{since}")
    if text == found.text:
        return {}
    if found.changed and not prompter.confirm("update", f"Bring {where} up to date?", default=True):
        answer["action"] = "kept"
        return {}
    return {found.profile: text}


def _job(
    found: Found,
    cluster: Cluster,
    options: Options,
    script: str | None,
    prompter: Prompter,
    answer: dict[str, Any],
) -> JobFile | None:
    """A job file for the script, unless the user keeps the one that is there."""
    from hpcrun.cli.show_init import near
    from hpcrun.controller.init.job import draft, find_script

    if script is None and found.old is None and not found.for_user:
        script = find_script(found.project)
        if script is not None and (found.project / "jobs" / f"{Path(script).stem}.yaml").exists():
            return None
        if script is not None and not prompter.confirm(
            "script", f"Write a job file for {script}?", default=True
        ):
            return None
        if script is not None and "script" in prompter.taken:
            prompter.taken["script"] = script
    if script is None:
        return None
    job = draft(found, cluster, options, script)
    answer["notes"] += job.draft.notes
    if job.draft.required:
        words = ", ".join(job.draft.required)
        answer["notes"].append(f"{job.draft.script} stops without {words}: add them to args")
    written = True
    if job.path.exists() and not prompter.confirm(
        "overwrite", f"{near(job.path)} is there already. Write it anew?", default=False
    ):
        written = False
        answer["notes"].append(f"{near(job.path)} is there already, and stays as it is")
    answer["job"] = {
        "name": job.path.stem,
        "file": str(job.path),
        "script": job.draft.script,
        "framework": job.draft.framework,
        "written": written,
    }
    return job if written else None


def _without_slurm(
    found: Found, script: str | None, prompter: Prompter, answer: dict[str, Any]
) -> int:
    """Where there is no Slurm: a job file for `hpcrun run`, and a profile if the user wants one."""
    from hpcrun.cli.output import note
    from hpcrun.controller.init.choices import find_options, new_profile
    from hpcrun.controller.init.init import schema_files, write_files
    from hpcrun.spec.load import load_cluster

    note("no Slurm here: scontrol is not on the PATH")
    note("  to try hpcrun without a cluster: hpcrun run JOB, or hpcrun sandbox up")
    answer |= {"action": "none", "changed": []}
    options = find_options(found)
    profile: dict[Path, str] = {}
    cluster = found.old or found.base
    text = "Write a profile for this machine alone, for hpcrun run?"
    if found.old is None and prompter.confirm("profile", text, default=False):
        made = new_profile(found, options, {})
        profile = {found.profile: made}
        cluster = load_cluster(made, source=str(found.profile))
        answer["action"] = "created"
    job = _job(found, cluster, options, script, prompter, answer)
    files = schema_files(found, job=job is not None) if profile or job else {}
    if job:
        files[job.path] = job.text
    files |= profile
    write_files(files)
    answer["written"] = [str(path) for path in files]
    return 0 if files or answer["job"] else 4


def _show_end(answer: dict[str, Any], found: Found) -> None:
    """Say what was written, what to look at, and what to type next."""
    from shlex import quote

    from hpcrun.cli.output import note, say
    from hpcrun.cli.show_init import near, show_taken

    show_taken(answer["defaults"])
    for word in answer["notes"]:
        note(f"note: {word}")
    written = [near(Path(path)) for path in answer["written"] if ".schema." not in path]
    if written:
        say(f"\nwrote {' and '.join(written)}")
    if answer["action"] == "created" and "LOOK" in found.profile.read_text(errors="replace"):
        say("  lines that say LOOK are guesses: look at them")
    job = answer["job"]
    if job is not None:
        verb, name = "submit" if found.site is not None else "run", quote(job["name"])
        say(f"  hpcrun {verb} {name} --dry-run     read everything that would be submitted")
        if found.site is not None:
            say(f"  hpcrun submit {name} --test-only   ask Slurm when it would start")
    elif answer["action"] == "created" and found.site is not None:
        say("  hpcrun init SCRIPT     a job file for your training script")
        say("  hpcrun submit single-gpu --dry-run     a built-in job; hpcrun jobs lists them")
