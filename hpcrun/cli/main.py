"""The command line: finds the verb and imports only that one."""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hpcrun import __version__
from hpcrun.errors import HpcrunError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# verb -> what --help says of it. Verb X is the command `command` of hpcrun.cli.verb_X.
VERBS = {
    "init": "Write hpcrun.yaml and a job file, by asking the cluster and you.",
    "submit": "Submit a job to Slurm.",
    "run": "Run a job here, in the foreground, without Slurm or inside an salloc.",
    "status": "Tell the state of runs.",
    "logs": "Show a run's output; -f follows it.",
    "parse": "Draw the loss curve of a run or of any log file.",
    "top": "Watch your jobs: step, loss, speed, GPU and CPU use.",
    "compare": "Compare runs or logs: curves, speed-up, settings.",
    "cancel": "Cancel runs, sweeps or jobs.",
    "wait": "Wait until runs are over.",
    "requeue": "Start a job anew, under its own id.",
    "resubmit": "Submit a run again, as a new run.",
    "shell": "Open a shell on a node of a running job.",
    "clean": "Remove old runs.",
    "jobs": "List the jobs that can be submitted.",
    "show": "Show a job, or all that is known of a run.",
    "hostfile": "Write a hostfile, from a node list, a job or another hostfile.",
    "schema": "Print the JSON Schema of job or cluster files.",
    "completion": "Make bash, zsh or fish complete what you type.",
    "sandbox": "A real Slurm on this machine, to try things out.",
}

# How --help lays the verbs out; one that no section names stands in the last.
SECTIONS = {
    "Train": ("submit", "run", "jobs", "show"),
    "Watch": ("status", "logs", "top", "wait", "shell"),
    "Understand": ("parse", "compare"),
    "Change": ("cancel", "requeue", "resubmit", "clean"),
    "Set up": ("init", "sandbox", "hostfile", "schema", "completion"),
}


class LazyGroup(click.Group):
    """A group whose verbs are imported when they are called."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        # click would ask shutil, which imports three libraries of compression first.
        extra.setdefault("terminal_width", max(min(_columns(), 80) - 2, 50))
        return super().make_context(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"hpcrun.cli.verb_{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_unknown = bool(args) and args[0] not in VERBS and not args[0].startswith("-")
        if is_unknown and not ctx.resilient_parsing:  # not where a shell completes
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            ctx.fail(f"no such verb: {args[0]}.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a verb, without importing all."""
        from click.shell_completion import CompletionItem

        begun = [verb for verb in VERBS if verb.startswith(incomplete)]
        verbs = [CompletionItem(verb, help=VERBS[verb]) for verb in begun]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # before click makes exit code 1 of it
            return _reader_gone()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        placed = {verb for verbs in SECTIONS.values() for verb in verbs}
        widest = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            listed = [verb for verb in verbs if verb in VERBS]
            if title == list(SECTIONS)[-1]:
                listed += [verb for verb in VERBS if verb not in placed]
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(widest), VERBS[verb]) for verb in listed])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpcrun")
def hpcrun() -> None:
    """From a short YAML file to a loss curve on any Slurm cluster.

    Exit codes: 0 all well; 1 it failed; 2 your input; 3 the scheduler refused; 4 out of
    reach; 130 Ctrl-C.
    """


def main() -> None:
    """Run the command line and end the process with the documented exit code."""
    try:
        code = hpcrun.main(prog_name="hpcrun", standalone_mode=False)
        if sys.stdout:  # None where the caller has closed it
            sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt) as error:
        pressed = error.__cause__ if isinstance(error, click.Abort) else error
        if isinstance(pressed, KeyboardInterrupt) and pressed.args:
            from hpcrun.cli.output import note

            note(str(pressed))  # what goes on all the same
        sys.exit(130)
    except (click.ClickException, HpcrunError) as error:
        from hpcrun.cli.failure import show_failure

        show_failure(error, sys.argv[1:])
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(_reader_gone())
    except OSError as error:
        from hpcrun.cli.failure import show_failure
        from hpcrun.runs.store import space_fix

        # Of a copy both are named: the second may be the one whose disk is full.
        where = " to ".join(str(name) for name in (error.filename, error.filename2) if name)
        said = f"{where}: " if where else ""
        failure = HpcrunError(f"{said}{error.strerror or error}", fix=space_fix(error))
        if _is_nowhere():
            failure = HpcrunError("the current folder is no more", fix="cd to one that is there")
        show_failure(failure, sys.argv[1:])
        try:
            if sys.stdout:
                sys.stdout.flush()
        except OSError:
            _reader_gone()  # what cannot be written now could not at exit either
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _is_nowhere() -> bool:
    """Tell whether the current folder was removed."""
    import os

    try:
        os.getcwd()  # noqa: PTH109 - of a Path nothing else is wanted
    except FileNotFoundError:
        return True
    return False


def _columns() -> int:
    """The terminal's width in characters, as shutil.get_terminal_size() finds it."""
    import os

    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    try:
        return os.get_terminal_size(1).columns or 80
    except (OSError, ValueError):
        return 80


def _reader_gone() -> int:
    """The reader has gone (`hpcrun logs | head`); Python would complain at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141
