"""Jobs that hold an allocation for a shell, a notebook or an editor, until the user ends them."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.cluster_host import find_user_name
from hpcrun.actions.job_actions import cancel_jobs
from hpcrun.actions.prepare import draft_command_job, prepare_job
from hpcrun.actions.shell import ShellCommand, prepare_shell
from hpcrun.actions.submit import submit_job
from hpcrun.assets import shipped_folder, state_dir
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.files import open_plain, read_plain, write_error
from hpcrun.logs import list_log_files
from hpcrun.monitor import (
    Monitor,
    Targets,
    WatchedRuns,
    describe_stage,
    require_single_run,
    resolve_run_or_sweep,
)
from hpcrun.plan import choose_setup
from hpcrun.runs import JobStatus, RunFolder, attempt_indices, write_file
from hpcrun.signals import defer_signals
from hpcrun.spec import Origin, Setup

# Seconds between two checks of a job's records; Slurm is queried as by hpcrun wait.
_CHECK_INTERVAL_S = 1.0
# The part of a log in which the notebook server states its address, or that it is missing.
_MAX_LOG_BYTES = 1 << 20
# The variable from which Jupyter reads its token, which is on no command line then.
_TOKEN_VARIABLE = "JUPYTER_TOKEN"
_JUPYTERS = ("jupyterlab", "notebook", "jupyter_server")
# Exits with code 42 if a Python has no Jupyter.
_FIND_JUPYTER = f"""\
import importlib.util, sys
sys.exit(0 if any(map(importlib.util.find_spec, {_JUPYTERS})) else 42)
"""
# Starts the first Jupyter that the job's Python has. It listens on the node's loopback interface.
_START_JUPYTER = f"""\
import importlib.util, os, runpy, sys
names = [name for name in {_JUPYTERS} if importlib.util.find_spec(name) is not None]
if not names:
    sys.exit("hpcrun: " + sys.executable + " has no Jupyter")
sys.argv = [names[0], "--ServerApp.ip=127.0.0.1", "--ServerApp.open_browser=False"]
if os.geteuid() == 0:
    sys.argv.append("--ServerApp.allow_root=True")
runpy.run_module(names[0], run_name="__main__", alter_sys=True)
"""
_JUPYTER_ADDRESS = re.compile(rb"https?://(?:127\.0\.0\.1|localhost):([0-9]{1,5})/([\w/-]*)")
_NO_JUPYTER = re.compile(rb"hpcrun: (.+) has no Jupyter")


class Session:
    """A job that holds an allocation; ``job_id`` is "" before its submission."""

    job_id = ""

    def __init__(
        self,
        context: Context,
        name: str,
        command: Sequence[str],
        overrides: Sequence[str],
        *,
        secret: str = "",
    ) -> None:
        """Prepare the job. Raises InputError.

        Args:
            overrides: Changes of the job, in the notation of --set.
            secret: The name of a variable that the job gets as a secret; the job has one node then.
        """
        spec = draft_command_job([name], overrides)
        if secret:
            spec = structs.replace(spec, secrets=[*spec.secrets, secret])
        self._made = made = prepare_job(
            context,
            spec,
            extra_args=command,
            origin=Origin(name, tuple(overrides)),
            checks=Checks(),
        )
        if secret and made.plan.nodes > 1:
            raise InputError(f"{name}: {made.plan.nodes} nodes", fix="set one node")
        if made.is_sweep or made.plan.node_range:
            raise InputError(
                f"{name}: a single job of a fixed size is needed",
                fix="leave out sweep, and name one number of nodes",
            )
        self._context = context
        self.run = RunFolder(made.path)
        self.notes = list(made.plan.notes)
        self._monitor = Monitor(context, [WatchedRuns([self.run])])

    def submit(self) -> None:
        """Submit the job. Raises InputError, SchedulerRefused, OutOfReach."""
        with defer_signals():  # an interrupted call must know its job
            submission = submit_job(self._context, self._made)
            self.job_id = submission.job_id
            self.notes += submission.notes

    @property
    def targets(self) -> Targets:
        return Targets(runs=[self.run], sweeps=[], jobs=[])

    def wait_until_started(self, report: Callable[[str], None]) -> None:
        """Wait until the job's program runs, and report what it waits for.

        Raises HpcrunError if the job ends before.
        """
        reported = ""
        while True:
            status = self.poll()
            newest = max(attempt_indices(self.run), default=None)
            if newest is not None and (self.run.attempts / str(newest) / "launched").exists():
                return
            text = f"job {self.job_id} waits for {describe_stage(status, self.run)}"
            if text != reported:
                report(text)
            reported = text
            time.sleep(_CHECK_INTERVAL_S)

    def poll(self) -> JobStatus:
        """Return the state of the job. Raises HpcrunError if it has ended."""
        self._monitor.poll()
        (status,) = self._monitor.statuses
        if status.final:
            raise HpcrunError(
                f"job {self.job_id} is {status.state}", fix=f"hpcrun logs {self.job_id} shows why"
            )
        return status

    def wait_until_over(self) -> JobStatus:
        """Wait until the job has ended."""
        while True:
            self._monitor.poll()
            (status,) = self._monitor.statuses
            if status.final:
                return status
            time.sleep(max(_CHECK_INTERVAL_S, self._monitor.pause))

    def search_logs(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Search the start of each log of the job."""
        for file in list_log_files(self.run):
            with contextlib.suppress(OSError), open_plain(file.path) as log:
                if found := pattern.search(log.read(_MAX_LOG_BYTES)):
                    return found
        return None

    def cancel(self) -> bool:
        """Cancel the job; return False if it has ended. Raises HpcrunError."""
        (result,) = cancel_jobs(self._context, self.targets)
        if result.error is not None:
            raise result.error
        return result.done


def prepare_shell_job(context: Context, overrides: Sequence[str]) -> Session:
    """Prepare a job in which nothing runs but what a shell starts. Raises HpcrunError."""
    return Session(context, "shell", ["sleep", "infinity"], overrides)


def prepare_editor_job(context: Context, overrides: Sequence[str]) -> Session:
    """Prepare a job that holds an allocation for an editor. Raises InputError."""
    if shutil.which("ssh-keygen", path=context.environ.get("PATH")) is None:
        raise InputError("no ssh-keygen on this machine", fix="install OpenSSH's client")
    return Session(context, "code", ["sleep", "infinity"], overrides)


def prepare_editor_connection(context: Context, run_id: str) -> ShellCommand:
    """Build the command that connects its streams to an SSH server on the job's node.

    Raises the errors of find_node(), and InputError without the key of write_ssh_entry().
    """
    run = require_single_run(resolve_run_or_sweep(context, run_id), run_id)
    try:
        key = read_plain(_key_of(context, run).with_suffix(".key.pub")).decode()
    except OSError as error:
        raise InputError(
            f"{run.run_id}: no key of hpcrun code: {error.strerror}",
            fix="hpcrun code submits a job and prints how to connect to it",
        ) from error
    script = (shipped_folder("templates") / "sshd.sh").read_text(encoding="utf-8")
    command = ["bash", "-c", script, "hpcrun", key.strip()]
    targets = Targets(runs=[run], sweeps=[], jobs=[])
    return prepare_shell(context, targets, command, unbuffered=True)


def write_ssh_entry(context: Context, session: Session, program: Sequence[str]) -> tuple[str, Path]:
    """Create a key pair, and a file with an entry for ssh's configuration.

    Args:
        program: The command that connects its streams to the server on the node.

    Returns the name of the host, and the file. Raises InputError.
    """
    key = _key_of(context, session.run)
    remove_ssh_entry(context, session)
    try:
        key.parent.mkdir(0o700, parents=True, exist_ok=True)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hpcrun", "-f", str(key)]
        subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        raise InputError(f"{key}: ssh-keygen: {error.stderr.decode().strip()}") from error
    except OSError as error:
        raise write_error(key, error) from error
    host = f"hpcrun-{session.job_id}-{session.run.run_id[-4:]}"
    # Each connection has a new host key. What connects is hpcrun, by SSH and a job step.
    lines = [
        f"Host {host}",
        f"    ProxyCommand {_escape_percent(shlex.join(program))}",
        f'    IdentityFile "{_escape_percent(str(key))}"',
        "    IdentitiesOnly yes",
        "    StrictHostKeyChecking no",
        "    UserKnownHostsFile /dev/null",
        "    LogLevel ERROR",
    ]
    if user := find_user_name(context):
        lines.append(f"    User {user}")
    write_file(key.with_suffix(".conf"), "\n".join([*lines, ""]).encode(), 0o600)
    return host, key.with_suffix(".conf")


def remove_ssh_entry(context: Context, session: Session) -> None:
    """Remove the key pair and the entry of a job."""
    key = _key_of(context, session.run)
    for path in (key, key.with_suffix(".key.pub"), key.with_suffix(".conf")):
        path.unlink(missing_ok=True)


def _key_of(context: Context, run: RunFolder) -> Path:
    return state_dir(context.environ) / "code" / f"{run.run_id}.key"


def _escape_percent(text: str) -> str:
    """Escape what ssh's configuration would expand."""
    return text.replace("%", "%%")


def prepare_notebook_job(context: Context, overrides: Sequence[str]) -> tuple[Session, str]:
    """Prepare a job that runs Jupyter in the job's Python; return it and the token.

    The token is a secret of the job: it is in its environment, and masked in its output.

    Raises InputError if that Python is known to have no Jupyter.
    """
    token = secrets.token_urlsafe(32)
    context = structs.replace(context, environ={**context.environ, _TOKEN_VARIABLE: token})
    spec = draft_command_job(["notebook"], overrides)
    _, setup = choose_setup(spec, context.cluster, context.cluster_source)
    _refuse_missing_jupyter(context, setup)
    command = [*_python_command(setup), "-c", _START_JUPYTER]
    session = Session(context, "notebook", command, overrides, secret=_TOKEN_VARIABLE)
    return session, token


def wait_for_jupyter(session: Session) -> tuple[int, str]:
    """Wait until Jupyter states its address; return the port on its node, and the path.

    Raises HpcrunError if the job ends before.
    """
    while True:
        if found := session.search_logs(_JUPYTER_ADDRESS):
            return int(found[1]), found[2].decode()
        try:
            session.poll()
        except HpcrunError as error:
            if missing := session.search_logs(_NO_JUPYTER):
                raise _missing_jupyter(missing[1].decode(errors="replace")) from error
            raise
        time.sleep(_CHECK_INTERVAL_S)


def _python_command(setup: Setup) -> list[str]:
    """Return the command of the job's Python: that of its environment, or of the profile."""
    if setup.container is not None:
        return ["python"]
    if setup.python and not (setup.venv or setup.conda or setup.uv):
        return ["bash", "-c", f'exec {_quote_expanding(setup.python)} "$@"', "python"]
    return ["bash", "-c", 'exec "$(type -P python || type -P python3)" "$@"', "python"]


def _quote_expanding(path: str) -> str:
    """Quote a path for bash, which expands the home folder and variables in it.

    >>> _quote_expanding("~/my env/bin/python"), _quote_expanding("$HOME/a`b")
    ('"$HOME/my env/bin/python"', '"$HOME/a\\\\`b"')
    """
    return '"' + re.sub(r'(["\\`])', r"\\\1", re.sub(r"^~(?=/)", "$HOME", path)) + '"'


def _refuse_missing_jupyter(context: Context, setup: Setup) -> None:
    """Raise InputError if the job's Python can be asked before, and has no Jupyter."""
    path = f"{setup.venv}/bin/python" if setup.venv else setup.python
    if path is None or not path.startswith(("/", "~/", "$")) or setup.container is not None:
        return
    script = f'exec {_quote_expanding(path)} -c "$1"'
    if context.transport().run(["bash", "-c", script, "bash", _FIND_JUPYTER]).exit_code == 42:
        raise _missing_jupyter(path)


def _missing_jupyter(python: str) -> InputError:
    return InputError(f"{python} has no Jupyter", fix=f"{python} -m pip install jupyterlab")
