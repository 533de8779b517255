"""A laptop that reaches the cluster by SSH."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.rig import HEAD, Rig
from tests.cluster.sshd import SSHD
from tests.needs import require
from tests.remote.link import Link
from tests.waiting import until

Done = subprocess.CompletedProcess[str]
FAR_HOME = "home of me"

# Features of Linux that a Mac lacks.
LACKS = """\
import fcntl, os, select, signal, socket, time
names = {
    fcntl: "F_OFD_SETLK F_OFD_SETLKW F_SETPIPE_SZ",
    os: "sched_getaffinity sched_setaffinity pidfd_open posix_fadvise posix_fallocate pipe2 "
    "fdatasync getrandom memfd_create eventfd copy_file_range splice getresuid O_TMPFILE O_PATH "
    "O_DIRECT O_NOATIME O_LARGEFILE getxattr listxattr",
    select: "epoll",
    signal: "sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK",
    time: "CLOCK_BOOTTIME",
}
for module in names:
    for name in names[module].split():
        module.__dict__.pop(name, None)
"""


@dataclass
class Laptop:
    """A project and a home below /tmp, which is private to each host of the cluster."""

    folder: Path
    rig: Rig
    process: subprocess.Popen[bytes]
    is_linux: bool = True
    sub: str = ""  # the folder of the project in which commands are called

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def far_runs(self) -> Path:
        return self.rig.shared / FAR_HOME / "my runs"

    @property
    def state(self) -> Path:
        return self.folder / "home" / ".local" / "state" / "hpcrun"

    def environ(self) -> dict[str, str]:
        kept = {"PATH", "PYTHONPATH", "LANG", "LC_ALL", "USER", "LOGNAME", "TERM"}
        env = {name: value for name, value in os.environ.items() if name in kept}
        home = str(self.folder / "home")
        env["PATH"] = f"{home}/bin:{env['PATH']}" if self.is_linux else f"{home}/bin"
        if not self.is_linux:
            env["PYTHONPATH"] = f"{home}/lib:{env.get('PYTHONPATH', '')}"
        return {**env, "HOME": home, "HPCRUN_SANDBOX_DIR": "/nonexistent"}

    def argv(self, *args: str) -> list[str]:
        # The laptop has no commands or files of the cluster.
        hide = '/bin/mount -t tmpfs none "$1" && shift && exec "$@"'
        if not self.is_linux:
            hide = f"/bin/mount -t tmpfs none /proc && {hide}"
        hidden = ["/usr/bin/unshare", "-m", "/bin/bash", "-c", hide, "bash", str(self.rig.root)]
        return [*hidden, sys.executable, "-m", "hpcrun", *args]

    def hpcrun(self, *args: str, timeout: float = 300) -> Done:
        return subprocess.run(
            self.argv(*args),
            cwd=self.project / self.sub,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def does(self, *args: str, code: int = 0) -> str:
        done = self.hpcrun(*args)
        assert done.returncode == code, done
        return done.stdout

    def be_no_linux(self) -> None:
        """Remove /proc, locks, Linux-specific calls, and programs except git, bash, env and ssh."""
        home = self.folder / "home"
        for name in ("git", "bash"):
            (home / "bin" / name).symlink_to(str(shutil.which(name)))
        (home / "bin" / "env").write_text(
            '#!/bin/sh\ncase $1 in -*) echo "env: $1" >&2; exit 1 ;; esac\nexec /usr/bin/env "$@"\n'
        )
        (home / "bin" / "env").chmod(0o755)
        (home / "lib").mkdir()
        (home / "lib" / "sitecustomize.py").write_text(LACKS)
        self.is_linux = False
        missing = "import os; print(hasattr(os, 'sched_getaffinity'), os.path.exists('/proc/self'))"
        argv = [*self.argv()[:-2], "-c", missing]
        done = subprocess.run(argv, env=self.environ(), capture_output=True, text=True, check=False)
        assert done.stdout == "False False\n", done

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self.does(*args, "--json", code=code))

    def through(self, link: Link) -> None:
        """Connect to the cluster through a link from now on."""
        ssh = self.folder / "home" / ".ssh"
        text, port = (ssh / "config").read_text(), link.port
        text = re.sub(r"HostName .*", "HostName 127.0.0.1", text)
        (ssh / "config").write_text(re.sub(r"Port .*", f"Port {port}", text))
        key = (ssh / "known_hosts").read_text().partition(" ")[2]
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")

    @contextmanager
    def at_most(self, trips: int) -> Iterator[None]:
        """Assert that a command needs few round trips (sessions, one of which is opened ahead)."""
        log = self.rig.shared / "laptop-keys" / "log"
        before = log.read_text().count("Starting session: ")
        yield
        made = log.read_text().count("Starting session: ") - before
        assert 0 < made <= trips + 1, made

    def jobs(self) -> list[str]:
        """Return the folders of all jobs in squeue."""
        return self.rig.run("squeue", "-h", "-o", "%Z").stdout.splitlines()

    def write(self, name: str, text: str) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


# A different login shell, which prints a banner.
CHATTY = """\
Banner {banner}
ForceCommand echo Welcome; echo "quota: 3 of 4 GB" >&2; exec {shell} -c "$SSH_ORIGINAL_COMMAND"
"""

# A login node that restricts forwarding, and has no sftp.
NARROW = """\
ForceCommand f() { stdbuf -o0 head -c $1; }; f 99999 | eval "$SSH_ORIGINAL_COMMAND" | f 1000000
"""


def _start(rig: Rig, folder: Path, shell: str) -> subprocess.Popen[bytes]:
    """Start sshd on the head, with a separate home for its sessions."""
    keys = rig.shared / "laptop-keys"
    keys.mkdir(exist_ok=True)
    ssh = folder / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    for path in (keys / "host_key", ssh / "id_ed25519"):
        path.unlink(missing_ok=True)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(argv, check=True)
    (keys / "authorized").write_text((ssh / "id_ed25519.pub").read_text())
    (rig.shared / FAR_HOME).mkdir(exist_ok=True)
    more = f"{NARROW}SetEnv " if shell == "narrow" else ""
    if shell and not more:
        tools = rig.shared / FAR_HOME / "tools"
        more = CHATTY.format(shell=shell, banner=keys / "host_key.pub") + f'SetEnv "PATH={tools}" '
        tools.mkdir()
        for place in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
            for program in Path(place).iterdir():
                known = program.name.startswith("python") or (tools / program.name).is_symlink()
                if not known:
                    (tools / program.name).symlink_to(program)
    (keys / "config").write_text(
        f"Port 2222\nHostKey {keys}/host_key\nAuthorizedKeysFile {keys}/authorized\n"
        "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\nMaxStartups 100\n"
        "LogLevel VERBOSE\n"
        f"{more or 'SetEnv '}"
        f'"HOME={rig.shared}/{FAR_HOME}" "SCRATCH={rig.shared}/{FAR_HOME}/scratch"\n'
    )
    address = f"{rig.network.prefix}.2"  # the head's
    key = " ".join((keys / "host_key.pub").read_text().split()[:2])
    (ssh / "known_hosts").write_text(f"[{address}]:2222 {key}\n")
    (ssh / "config").write_text(
        f"Host mycluster\n  HostName {address}\n  Port 2222\n  User root\n"
        f"  IdentityFile {ssh}/id_ed25519\n  UserKnownHostsFile {ssh}/known_hosts\n"
    )
    # ssh reads the home from the user database instead of $HOME.
    wrapper = folder / "home" / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {ssh}/config "$@"\n')
    wrapper.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    with (keys / "log").open("ab") as log:
        process = subprocess.Popen(
            rig.argv_on(HEAD, [SSHD, "-D", "-e", "-f", str(keys / "config")]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            start_new_session=True,
        )
    until(lambda: b"Server listening" in (keys / "log").read_bytes(), "sshd")
    return process


@pytest.fixture
def laptop(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Laptop]:
    """A laptop; the parameter may name the remote login shell, or ``narrow``."""
    require(Path(SSHD).exists(), "sshd")
    process = _start(rig, tmp_path, getattr(request, "param", ""))
    made = Laptop(tmp_path, rig, process)
    made.project.mkdir()
    profile = {
        "name": "mine",
        "host": "mycluster",
        "accelerator": "cpu",
        "slurm_conf": str(rig.conf),
        "runs_dir": "~/my runs",
        "cache_dir": "~/cache",
        "python": sys.executable,
        "partitions": {"debug": {"gpus_per_node": 4, "cpus_per_node": 8}},
        "partition": "debug",
    }
    (made.project / "hpcrun.yaml").write_text(yaml.safe_dump(profile))
    try:
        yield made
    finally:
        for pid, command in rig.processes(HEAD):
            if command.startswith(("sshd:", SSHD)):
                os.kill(pid, 9)
        process.wait()
        rig.run("rm", "-rf", str(rig.shared / FAR_HOME))


SLEEPER = "command: [bash, say.sh]\nresources: {gpus_per_node: 0}\n"

SAY = """\
for step in 1 2 3; do echo "step $step loss 0.$step"; done
[[ -z ${WAIT-} ]] || sleep "$WAIT"
pwd
"""

HELD = "command: [bash, say.sh]\nresources: {gpus_per_node: 0}\nslurm: {hold: true}\n"


@pytest.fixture
def link(laptop: Laptop) -> Iterator[Link]:
    made = Link(2222, f"{laptop.rig.network.prefix}.2")
    laptop.through(made)
    laptop.write("say.sh", SAY)
    laptop.write("job.yaml", HELD)
    try:
        yield made
    finally:
        made.close()
        laptop.rig.run("scancel", "--me")
