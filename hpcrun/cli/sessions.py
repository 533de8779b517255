"""Jobs that hold an allocation while the user works in it: a shell, a notebook, VS Code."""

from __future__ import annotations

import getpass
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import click

from hpcrun.actions import (
    Session,
    find_node,
    keep_port_open,
    open_port,
    prepare_editor_job,
    prepare_notebook_job,
    prepare_shell,
    prepare_shell_job,
    remove_ssh_entry,
    wait_for_jupyter,
    write_ssh_entry,
)
from hpcrun.assets import own_command, state_dir
from hpcrun.cli.output import confirm, print_line, print_note
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, OutOfReach
from hpcrun.remote import quote
from hpcrun.runs import read_plan
from hpcrun.signals import interrupt_on_signals
from hpcrun.ui import redirecting_file


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


def run_notebook_session(
    context: Context, overrides: Sequence[str], *, keep: bool, opens: bool
) -> int:
    """Start Jupyter in a new job, print its address, and wait until the job has ended."""
    session, token = prepare_notebook_job(context, overrides)
    with ExitStack() as files, _kept_or_cancelled(session, keep=keep):  # files: until the end
        _submit(session)
        session.wait_until_started(print_note)
        port, path = wait_for_jupyter(session)
        status, job, node = find_node(context, session.targets, None)
        opened = open_port(context, job, node, port)
        is_reachable = not opened.is_relayed or context.cluster.host is not None
        at, number = opened.here if is_reachable else ("127.0.0.1", port)
        url = f"http://{at}:{number}/{path}?token={token}"
        if not is_reachable:
            print_note(f"the server listens on {node} only. From your laptop, if the site")
            print_note("allows ssh to the nodes of your jobs:")
            print_note(f"  ssh -N -J {_login()} -L {port}:127.0.0.1:{port} {node}")
            print_note("or call hpcrun notebook there, with host: in the profile. Then open:")
        print_line(url)
        print_note(f"until job {session.job_id} is over or Ctrl-C")
        if opens and is_reachable:
            folder = state_dir(context.environ) / "ui"
            page = files.enter_context(redirecting_file(folder, url))
            webbrowser.open(page.as_uri())
        ended = keep_port_open(context, status, opened, print_note)
        print_note(f"{ended.label} is {ended.state}")
    return 0


def run_editor_session(
    context: Context, overrides: Sequence[str], *, keep: bool, cluster: str | None
) -> int:
    """Write an entry for ssh's configuration to a new job, and wait until the job has ended."""
    session = prepare_editor_job(context, overrides)
    with _kept_or_cancelled(session, keep=keep):
        _submit(session)
        session.wait_until_started(print_note)
        start = ["sh", "-c", 'cd "$0" && exec "$@"', str(context.project), *own_command()]
        start += ["code", "--connect", session.run.run_id]
        host, file = write_ssh_entry(
            context, session, [*start, *(["--cluster", cluster] if cluster else [])]
        )
        plan = read_plan(session.run)
        folder = plan.project_dir if plan is not None else ""
        print_line(f"code --remote ssh-remote+{host} {quote(folder)}")
        print_note(f"the entry of {host} for ssh is in {file}")
        print_note("to include it, once in ~/.ssh/config, above the first Host:")
        print_note(f'  Include "{file.parent}/*.conf"')
        if context.cluster.host is None:
            print_note("it is for this machine: on a laptop, call hpcrun code there, with host: in")
            print_note("the profile")
        print_note(f"until job {session.job_id} is over or Ctrl-C")
        try:
            ended = session.wait_until_over()
            print_note(f"{ended.label} is {ended.state}")
        finally:
            if not keep:
                remove_ssh_entry(context, session)
    return 0


def _login() -> str:
    return f"{getpass.getuser()}@{socket.getfqdn()}"


@contextmanager
def _kept_or_cancelled(session: Session, *, keep: bool) -> Iterator[None]:
    """Cancel the job after Ctrl-C, if the user agrees, and after an error that is not its end.

    A lost connection is no reason to lose the work of the user.
    """
    try:
        yield
    except KeyboardInterrupt:
        can_ask = sys.stdin.isatty() and not keep and bool(session.job_id)
        keep = keep or (can_ask and not _confirm_cancel(session.job_id))
        _end_session(session, keep=keep)
        raise
    except HpcrunError as error:
        _end_session(session, keep=keep or isinstance(error, OutOfReach))
        raise


def _confirm_cancel(job: str) -> bool:
    return confirm(f"\nCancel job {job}?", default=True)


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
        if session.cancel():
            print_note(f"cancelled job {job}")
    except HpcrunError as error:
        print_note(f"job {job} may continue: {error.message}; hpcrun cancel {job} ends it")
