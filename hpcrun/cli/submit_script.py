"""hpcrun submit of an sbatch script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcrun.cli.output import emit_json, print_lines, print_note
from hpcrun.context import Context
from hpcrun.errors import InputError

# Options of hpcrun submit and the option of sbatch that they set.
_OPTIONS = {
    "name": "job-name",
    "account": "account",
    "partition": "partition",
    "time": "time",
    "nodes": "nodes",
    "gpus_per_node": "gpus-per-node",
}


def submit_script(
    where: Context,
    name: str,
    after: Sequence[str],
    options: dict[str, Any],
    *,
    kind: str,
    follow: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit an sbatch script, or show what would be submitted.

    Args:
        kind: "submit", "dry-run" or "test-only".
    """
    from hpcrun.actions import (
        build_dependency,
        describe_change,
        estimate_start,
        find_script_errors,
        prepare_script,
        read_batch_script,
    )
    from hpcrun.cli.show_submission import show_estimate, submit_and_watch
    from hpcrun.spec import command_job

    if options["overrides"]:
        raise InputError(
            f"--set {options['overrides'][0]}: {name} is an sbatch script, and no job",
            fix=f"hpcrun init {name} drafts a job; or change the script",
        )
    if options["debug"]:
        raise InputError(
            f"--debug: {name} is an sbatch script, and no job", fix="export NCCL_DEBUG=INFO in it"
        )
    script = read_batch_script(where, name, options["extra_args"] or [])
    given = [
        f"--{option}={options[key]}" for key, option in _OPTIONS.items() if options[key] is not None
    ]
    made = prepare_script(
        *(where, script),
        options=given,
        after=build_dependency(where, after),
        group=command_job([f"group={options['as']}"]).group if options["as"] else None,
    )
    if not options["no_check"]:
        typed = {word[2:].split("=", 1)[0]: word.split("=", 1)[1] for word in given}
        for one in find_script_errors(where, name, typed):
            print_note(f"{one.file}:{one.line}: {one.message} [{one.rule}]; fix: {one.fix}")
    if kind == "dry-run":
        if as_json:
            files = {file.name: file.text for file in made.files}
            emit_json({**files, "notes": made.plan.notes})
        else:
            print_lines(describe_change(script, made))
        return 0
    if kind == "test-only":
        show_estimate(made.plan, estimate_start(where, made), as_json=as_json)
        return 0
    return submit_and_watch(where, made, follow=follow, wait=wait, as_json=as_json)
