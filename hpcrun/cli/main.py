"""The command line: finds the verb and imports only its module."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.output import discard_output, print_failure, print_note, print_notices
from hpcrun.errors import HpcrunError, InputError
from hpcrun.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hpcrun.remote import Connect

# Section of --help -> verb -> its help. hpcrun.cli.verbs_SECTION has the commands of a section.
SECTIONS = {
    "Train": {
        "submit": "Submit a job to Slurm.",
        "run": "Run a job in the foreground: on this machine, in an salloc or on other hosts.",
        "fit": "Estimate the memory of a training before it is submitted.",
        "when": "Ask Slurm when a job would start in several shapes.",
        "rehearse": "Test in a sandbox whether a job recovers from interruptions.",
        "jobs": "List the jobs that can be submitted.",
        "show": "Show a job, or a run's job and files.",
    },
    "Watch": {
        "status": "Show the state of runs.",
        "logs": "Show the output of a job; -f follows it.",
        "ui": "Show all runs, their curves and logs in a web browser.",
        "top": "Watch your jobs: step, loss, speed, GPU and CPU use.",
        "wait": "Wait until runs have ended.",
        "shell": "Open a shell on a node of a running job, or of a new one.",
        "notebook": "Start Jupyter in a new job, and open it.",
        "code": "Prepare a new job for VS Code, and print how to connect to it.",
        "open": "Forward a port from a job's node: TensorBoard, a notebook.",
        "fetch": "Copy a run's checkpoints, or other files that it wrote, to this machine.",
        "sync": "Send the metrics of runs to TensorBoard, MLflow or W&B.",
        "notify": "Send notifications of runs, or test them.",
        "nodes": "List the nodes that your jobs exclude after a failed check.",
    },
    "Understand": {
        "why": "Explain why a job failed, and how to fix it.",
        "parse": "Plot the loss curve of a run, a job or any log file.",
        "compare": "Compare runs or logs: curves, speed-up, settings.",
        "report": "Report GPU hours, use and goodput of runs, with advice.",
        "lint": "Find mistakes in sbatch scripts.",
    },
    "Change": {
        "cancel": "Cancel runs, sweeps or jobs.",
        "requeue": "Restart a job under its own id.",
        "resubmit": "Submit a new run of the same job, which resumes from its checkpoints.",
        "clean": "Delete old runs.",
    },
    "Set up": {
        "init": "Write hpcrun.yaml and a job file for this cluster and your script.",
        "connect": "Test the SSH connection to a cluster, or keep it open.",
        "sandbox": "Run a real Slurm on this machine for testing.",
        "hostfile": "Write a hostfile from a node list, a job or another hostfile.",
        "schema": "Print the JSON Schema of job or cluster files.",
        "completion": "Print the completion script for bash, zsh or fish.",
    },
}
VERBS = {verb: text for verbs in SECTIONS.values() for verb, text in verbs.items()}


class LazyGroup(click.Group):
    """A group whose verbs are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        section = next((title for title, verbs in SECTIONS.items() if cmd_name in verbs), None)
        if section is None:
            return None
        module = f"hpcrun.cli.verbs_{section.replace(' ', '').lower()}"
        command = getattr(import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["hpcrun.command_line"] = [*args]  # COMMAND_LINE of options.py, not imported here
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_unknown = bool(args) and args[0] not in VERBS and not args[0].startswith("-")
        if is_unknown and not ctx.resilient_parsing:  # not during shell completion
            import difflib

            from hpcrun.cli.misplaced import COMMANDS_ELSEWHERE

            if args[0] == "help":
                self.main([*args[1:2], "--help"], prog_name="hpcrun", standalone_mode=False)
                ctx.exit()
            if args[0] == "version":
                self.main(["--version"], prog_name="hpcrun", standalone_mode=False)
                ctx.exit()
            if args[0] in COMMANDS_ELSEWHERE:
                raise InputError(f"no such command: {args[0]}", fix=COMMANDS_ELSEWHERE[args[0]])
            close = difflib.get_close_matches(args[0], VERBS, 1, 0.7)
            hint = f" Did you mean {close[0]}?" if close else ""
            ctx.fail(f"no such command: {args[0]}.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a verb without importing all verbs."""
        from click.shell_completion import CompletionItem

        begun = [verb for verb in VERBS if verb.startswith(incomplete)]
        verbs = [CompletionItem(verb, help=VERBS[verb]) for verb in begun]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # otherwise click exits with code 1
            discard_output()
            return 141

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(widest), text) for verb, text in verbs.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="hpcrun")
def hpcrun() -> None:
    """From a short YAML file to a loss curve on any Slurm cluster.

    Exit codes: 0 success; 1 the job or the command failed; 2 invalid input; 3 refused by Slurm;
    4 Slurm or the cluster cannot be reached; 130 Ctrl-C.
    """


def main(connect: Connect | None = None) -> None:
    """Run the command line and exit with the documented exit code.

    ``connect`` replaces the usual factory of transports to the cluster.
    """
    try:
        code = hpcrun.main(prog_name="hpcrun", standalone_mode=False, obj=connect)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt) as error:
        pressed = error.__cause__ if isinstance(error, click.Abort) else error
        if isinstance(pressed, KeyboardInterrupt) and pressed.args:
            print_note(str(pressed))  # tells what continues
        code = 130
    except (click.ClickException, HpcrunError) as error:
        code = _fail(error)
    except BrokenPipeError:
        discard_output()
        code = 141
    except OSError as error:
        code = _fail(_describe_os_error(error))
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()  # output that cannot be written now would also fail at exit
    print_notices()
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: click.ClickException | HpcrunError) -> int:
    print_failure(error, sys.argv[1:])
    return error.exit_code


def _describe_os_error(error: OSError) -> HpcrunError:
    """Describe an unexpected OSError, such as a full disk or a removed folder."""
    from hpcrun.files import full_disk_hint

    try:
        os.getcwd()  # noqa: PTH109 - the path itself is not needed
    except FileNotFoundError:
        return HpcrunError(
            "the current directory no longer exists", fix="cd to an existing directory"
        )
    # Errors of copies name two files: the disk of the second may be full.
    where = " to ".join(str(name) for name in (error.filename, error.filename2) if name)
    problem = str(error.strerror or error)
    return HpcrunError(f"{where}: {problem}" if where else problem, fix=full_disk_hint(error))
