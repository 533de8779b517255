"""Launching on the hosts of a hostfile, without Slurm.

An SSH session on each host runs that host's part (templates/hosts.sh), or DeepSpeed's launcher runs
all ranks by pdsh. A session's standard input is its lifeline: it closes when this process exits for
any reason, and the session then terminates its processes. A line is sent every ten seconds, so that
a disconnected host terminates its part, too.
"""

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence

from hpcrun.jobside.nodes import allow_open_files
from hpcrun.jobside.records import write_record

Say = Callable[[str], None]

SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)
READY_TIMEOUT_S = 40.0
ADDRESS_TIMEOUT_S = 40.0
ALIVE_EVERY_S = 10.0
# After the first host has ended successfully the others have this time, like srun's --wait.
OTHERS_TIMEOUT_S = 600.0
CLEAN_UP_TIMEOUT_S = 20.0
POLL_S = 0.2
# Exit codes of a session that cannot see the run, and of ssh that cannot connect.
_NO_RUN, _NO_CONNECTION = 90, 255
_STOPPED = 143
_READY = b"hpcrun-ready\n"
_LONGEST_OUTPUT = 65536
# Variables of this host or this login, which are of no use on another host.
_OF_THIS_HOST = {
    *("HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "HOSTNAME", "TMPDIR"),
    *("DISPLAY", "TERM", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    # Each host finds a Python of its own.
    *("HPCRUN_JOBSIDE_PYTHON", "HPCRUN_OWN_PYTHON", "_"),
}
_OF_THIS_LOGIN = ("SSH_", "XDG_", "SLURM_")
# bash would refuse to set these.
_READ_ONLY = {"UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"}
# DeepSpeed's launcher passes variables of these kinds to the hosts' shells, unquoted.
_OF_DEEPSPEED = ("NCCL", "PYTHON", "MV2", "UCX", "MLFLOW")


def render_environment(environ: Mapping[str, str]) -> str:
    """Return the job's variables as bash commands, without those of this host or this login.

    >>> render_environment({"A": "it's", "HOME": "/root", "SSH_TTY": "x", "BASH_FUNC_f%%": "x"})
    'export A=\\'it\\'"\\'"\\'s\\'\\n'
    """
    return "".join(
        "export {}={}\n".format(name, shlex.quote(value))
        for name, value in sorted(environ.items())
        if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
        and name not in _OF_THIS_HOST | _READ_ONLY
        and not name.startswith(_OF_THIS_LOGIN)
    )


class Session:
    """The SSH session of a host: its process, whose standard input is the lifeline."""

    def __init__(self, host: str, command: str) -> None:
        self.host = host
        self.output, self.errors = _make_file(), _make_file()
        self.process = subprocess.Popen(
            ["ssh", *SSH_OPTIONS, "--", host, "exec bash -c " + shlex.quote(command)],
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=self.errors,
        )

    def is_ready(self) -> bool:
        """Return True if the host has answered."""
        return b"\n" + _READY in b"\n" + _read(self.output)

    def send(self, line: str) -> None:
        """Send a line, unless the session has ended."""
        try:
            os.write(self.process.stdin.fileno(), line.encode() + b"\n")  # type: ignore[union-attr]
        except OSError:
            pass

    def close(self) -> None:
        """Close the lifeline."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def explain(self, run: str) -> List[str]:
        """Return why the session ended or did not start, as lines for the user."""
        lines = os.fsdecode(_read(self.errors)).splitlines()
        lines = [line for line in lines if not line.startswith("Warning: Permanently added")]
        message = lines[-1] if lines else ""
        code = _exit_code(self.process)
        if not code:
            why = "does not answer"
        elif code == _NO_RUN:
            why = "cannot see the run folder {}: runs_dir must be on a file system".format(run)
            why += " that all hosts share"
        elif code == _NO_CONNECTION:
            why = "cannot be reached by ssh: " + (message or "the connection broke")
        else:
            why = "ended with code {}".format(code) + (": " + message if message else "")
        shown = ["hpcrun: error: host {} {}".format(self.host, why)]
        if "ost key" in message:
            shown.append("  fix: check its host key: ssh {}".format(self.host))
        return shown


class HostsLauncher:
    """Starts the ranks on all hosts, and waits for their end.

    Args:
        way: "ssh": a session runs the ranks of its host. "pdsh": DeepSpeed's launcher runs all.
        python: The Python of DeepSpeed's launcher.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        way: str,
        python: str,
        hosts: Sequence[str],
        say: Say,
        complain: Say,
    ) -> None:
        self.environ = dict(environ)
        self.way, self.python, self.hosts = way, python, hosts
        self.say, self.complain = say, complain
        self.run_dir, self.attempt = environ["HPCRUN_RUN_DIR"], environ.get("HPCRUN_ATTEMPT", "0")
        self.folder = os.path.join(self.run_dir, "attempts", self.attempt)
        self.harness = os.path.join(self.run_dir, "harness.sh")
        self.sessions: List[Session] = []
        self.runner: Optional["subprocess.Popen[bytes]"] = None
        self.is_stopped = False

    def launch(self) -> int:
        """Run the ranks; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        code = 1
        allow_open_files(3 * len(self.hosts))
        try:
            for index in range(len(self.hosts)):
                if not self.is_stopped:
                    self._open_session(index)
            if self._await_ready() and self._find_address() and not self.is_stopped:
                code = self._run_ranks()
        finally:
            self._close_sessions()
            self._remove("environment")  # it has the job's secrets
        return _STOPPED if self.is_stopped else code

    def _run_ranks(self) -> int:
        self._write_hostfile()
        self._write_environment()
        if self.way != "ssh":
            self.runner = self._start_deepspeed()
        for session in self.sessions:
            session.send(self.way)
        code = self._follow()
        if self.way != "ssh" and code == 0 and not self.is_stopped:
            code = self._check_all_ended()
        return code

    def _stop(self, number: int, frame: Any) -> None:
        self.is_stopped = True

    def _open_session(self, index: int) -> None:
        command = "cd -- {} 2>/dev/null && [ -r hosts.sh ] || exit {}; ".format(
            shlex.quote(self.run_dir), _NO_RUN
        )
        command += "exec bash ./harness.sh session {} {}".format(index, self.attempt)
        self.sessions.append(Session(self.hosts[index], command))

    def _await_ready(self) -> bool:
        """Wait until every host has answered; print why the others failed."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.is_stopped and time.monotonic() < deadline:
            late = [each for each in self.sessions if not each.is_ready()]
            if all(each.process.poll() is not None for each in late):
                break
            time.sleep(POLL_S)
        late = [each for each in self.sessions if not each.is_ready()]
        if not self.is_stopped:
            for session in late:
                self._explain(session)
        return not late

    def _explain(self, session: Session) -> None:
        for line in session.explain(self.run_dir):
            self.complain(line)

    def _find_address(self) -> bool:
        """Find the address and a free port of the first host, as seen by the second one."""
        second = self.hosts[1] if len(self.hosts) > 1 else ""
        command = "HPCRUN_ATTEMPT={} HPCRUN_RUN_DIR={} bash {} address {}".format(
            self.attempt, *map(shlex.quote, (self.run_dir, self.harness, second))
        )
        try:
            done = subprocess.run(
                ["ssh", "-n", *SSH_OPTIONS, "--", self.hosts[0], command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=ADDRESS_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            text = "hpcrun: error: host {} printed no address of rank 0 within {:.0f} s"
            self.complain(text.format(self.hosts[0], ADDRESS_TIMEOUT_S))
            return False
        # Startup files of the shell may print lines before.
        output = os.fsdecode(done.stdout).strip()
        words = output.split("\n")[-1].split()
        if done.returncode or len(words) != 2 or not words[1].isdigit():
            if not self.is_stopped:
                text = (
                    "hpcrun: error: host {} printed no address of rank 0, but {!r} (exit code {})"
                )
                self.complain(text.format(self.hosts[0], output[-1000:], done.returncode))
            return False
        self.environ["MASTER_ADDR"], self.environ["MASTER_PORT"] = words
        self.say("hpcrun: rank 0 is on {}, at {} port {}".format(self.hosts[0], *words))
        return True

    def _write_hostfile(self) -> None:
        path = os.path.join(self.folder, "hostfile")
        slots = self.environ.get("HPCRUN_RANKS_PER_NODE", "1")
        write_record(path, "\n".join("{} slots={}".format(host, slots) for host in self.hosts))
        self.environ["HPCRUN_HOSTFILE"] = path

    def _write_environment(self) -> None:
        """Write the job's variables to a private file: neither ssh nor pdsh forwards them."""
        path = os.path.join(self.folder, "environment")
        descriptor = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.fsencode(render_environment(self.environ)))
        os.rename(path + ".part", path)

    def _start_deepspeed(self) -> "subprocess.Popen[bytes]":
        """Start DeepSpeed's launcher, in a folder whose name needs no quoting.

        The hosts' shells parse its arguments and variables unquoted, so it gets none of the user's.
        The user's own .deepspeed_env files are not read either.
        """
        environ: Dict[str, str] = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith(_OF_DEEPSPEED)
        }
        environ["DS_ENV_FILE"] = "/dev/null"
        environ["PDSH_SSH_ARGS_APPEND"] = " ".join(SSH_OPTIONS)
        environ["HPCRUN_HOST_MARK"] = self._mark()
        options = {
            "hostfile": self.environ["HPCRUN_HOSTFILE"],
            "launcher": "pdsh",
            "master_addr": self.environ["MASTER_ADDR"],
            "master_port": self.environ["MASTER_PORT"],
        }
        return subprocess.Popen(
            [
                *(self.python, "-m", "deepspeed.launcher.runner"),
                *("--{}={}".format(name, value) for name, value in options.items()),
                *("--force_multi", "--no_ssh_check", "--no_local_rank", "--no_python"),
                *("bash", self.harness, "task", self.run_dir, self.attempt),
            ],
            stdin=subprocess.DEVNULL,
            cwd=self.run_dir,
            env=environ,
        )

    def _mark(self) -> str:
        """Return the value of HPCRUN_HOST_MARK, which identifies the processes of the launcher."""
        return "{} {} here".format(self.run_dir, self.attempt)

    def _follow(self) -> int:
        """Wait until all hosts have ended, one has failed, or a stop is requested; return the code.

        DeepSpeed does not inform other nodes of a failed rank, so the ranks' own records are
        checked.
        """
        running = list(self.sessions)
        sent = time.monotonic()
        first_end: Optional[float] = None
        while not self.is_stopped:
            now = time.monotonic()
            if now - sent >= ALIVE_EVERY_S:
                for session in self.sessions:
                    session.send("alive")
                sent = now
            still_running = []
            for session in running:
                code = _exit_code(session.process)
                if code is None:
                    still_running.append(session)
                elif code:
                    if code == _NO_CONNECTION:
                        self._explain(session)
                    return code
            running = still_running
            if len(running) < len(self.sessions) and first_end is None:
                first_end = now
            if self.runner is not None:
                if self._has_failures():
                    return 1
                code = _exit_code(self.runner)
                if code is not None:
                    return code
            if not running:
                return 0
            # A bare command may have a role of its own on each host.
            is_bare = self.environ.get("HPCRUN_LAUNCHER") == "none"
            if first_end is not None and not is_bare and now - first_end > OTHERS_TIMEOUT_S:
                text = "hpcrun: error: {} host(s) still running ten minutes after another has ended"
                self.complain(text.format(len(running)))
                return 1
            time.sleep(POLL_S)
        return 0

    def _has_failures(self) -> bool:
        names = os.listdir(os.path.join(self.folder, "failures"))
        return any(name.endswith(".json") for name in names)

    def _check_all_ended(self) -> int:
        """Check the ranks, since DeepSpeed's launcher returns 0 when it is killed."""
        names = os.listdir(os.path.join(self.folder, "ended"))
        ended = sum(name.startswith("node-") for name in names)
        world = int(self.environ["HPCRUN_WORLD_SIZE"])
        if ended == world:
            return 0
        text = "hpcrun: error: deepspeed ended, but {} of {} ranks ended well"
        self.complain(text.format(ended, world))
        return 1

    def _close_sessions(self) -> None:
        """Close the lifelines, and give the hosts time to clean up."""
        for session in self.sessions:
            session.close()
        deadline = time.monotonic() + CLEAN_UP_TIMEOUT_S
        while any(each.process.poll() is None for each in self.sessions):
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        for session in self.sessions:
            if session.process.poll() is None:
                session.process.kill()
                session.process.wait()
            session.output.close()
            session.errors.close()
        if self.runner is not None:
            subprocess.run(["bash", "--", self.harness, "end_marked", self._mark()])

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self.folder, name))
        except OSError:
            pass


def _exit_code(process: "subprocess.Popen[bytes]") -> Optional[int]:
    """Return the exit code of a process as a shell does, or None while it is running."""
    code = process.poll()
    return code if code is None or code >= 0 else 128 - code


def _make_file() -> IO[bytes]:
    """Return an unnamed file, which takes any amount of output without a reader."""
    return tempfile.TemporaryFile()


def _read(file: IO[bytes]) -> bytes:
    """Return the end of what another process has written to the file, which shares its position."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _LONGEST_OUTPUT, max(0, size - _LONGEST_OUTPUT))
