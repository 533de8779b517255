"""Jobs that hold an allocation while the user works in it: a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import click

from hpcrun.actions import Session, prepare_shell, prepare_shell_job
from hpcrun.cli.output import print_note
from hpcrun.context import Context
from hpcrun.errors import HpcrunError
from hpcrun.signals import interrupt_on_signals


def run_shell_session(
    context: Context,
    overrides: Sequence[str],
    command: Sequence[str],
    *,
    node: str | None,
    keep: bool,
) -> int:
    """Open a shell, or run a command, in a new job; return its exit code."""
    with interrupt_on_signals():
        session = prepare_shell_job(context, overrides)
        try:
            _submit(session)
            session.wait_until_started(print_note)
            shell = prepare_shell(context, session.targets, command, node=node)
            for text in shell.notes:
                print_note(click.style(f"note: {text}", dim=True))
            try:
                return subprocess.call(shell.argv, env=shell.env)
            except OSError as error:
                raise HpcrunError(f"{shell.argv[0]}: {error.strerror}") from error
        finally:
            _end_session(session, keep=keep)


def _submit(session: Session) -> None:
    session.submit()
    print_note(f"submitted job {session.job_id}")
    for text in session.notes:
        print_note(click.style(f"note: {text}", dim=True))


def _end_session(session: Session, *, keep: bool) -> None:
    """Cancel the job, or say that it continues."""
    job = session.job_id
    if not job:
        return
    if keep:
        print_note(f"job {job} continues: hpcrun shell {job}; hpcrun cancel {job} ends it")
        return
    try:
        session.cancel()
    except HpcrunError as error:
        print_note(f"job {job} may continue: {error.message}; hpcrun cancel {job} ends it")
    else:
        print_note(f"cancelled job {job}")
