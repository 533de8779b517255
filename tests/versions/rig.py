"""A rig whose hosts run another Debian release: its Slurm, its bash, its Python.

The hosts are those of tests/cluster: network namespaces with names and addresses of their own. In
each, everything runs below the release's root folder, into which the host's /proc, /sys, /dev, /tmp
and /etc/hosts and the rig's own folder are bound; the mounts live in the host's mount namespace and
end with it. The head is the login host too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun.slurm.commands import parse_version
from tests.cluster.hosts import Host
from tests.cluster.rig import HEAD, Rig
from tests.versions.roots import STAND_INS

CLIENTS = ("sbatch", "squeue", "scontrol", "sacct", "scancel", "srun", "salloc", "sinfo")
_PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOUNTS = """
set -e
for folder in proc sys dev tmp; do
    mount --rbind "/$folder" "$1/$folder"
done
touch "$1/etc/hosts"
mount --bind /etc/hosts "$1/etc/hosts"
mkdir -p "$1$2"
mount --rbind "$2" "$1$2"
"""


@dataclass
class ReleaseHost(Host):
    """A host that sees ``tree`` as its root folder."""

    tree: Path = Path("/")

    def argv(self, command: Sequence[str], cwd: str = "/") -> list[str]:
        """Wrap a command so that it runs on this host, in its release."""
        enter = super().argv([])[: -len(["env", "-C", cwd])]
        return [*enter, "chroot", str(self.tree), "env", "-C", cwd, *command]


@dataclass
class ReleaseRig(Rig):
    """A rig of the release in ``tree``, whose Slurm is ``version``."""

    tree: Path = Path("/")
    version: str = ""

    def run(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command of the release on its login host, pointed at this rig."""
        return self.ask(argv, timeout=timeout)

    def ask(
        self,
        argv: Sequence[str],
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login host, in a folder, with more in its environment."""
        clean = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": "/root", "USER": "root"}
        return subprocess.run(
            self.argv_on(HEAD, argv, cwd),
            env={**clean, **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def write_clients(self, folder: Path) -> None:
        """Write a script for each of Slurm's commands that calls the release's own.

        For a caller outside of the release, whose paths below ``shared`` mean the same.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name in CLIENTS:
            enter = shlex.join(self.argv_on(HEAD, [name], "CWD")).replace("CWD", '"$PWD"')
            script = folder / name
            script.write_text(f'#!/bin/sh\nPATH={_PATH} exec {enter} "$@"\n')
            script.chmod(0o755)

    def reconfigure(self, **values: str) -> None:
        """Change values of slurm.conf and start slurmctld anew."""
        self.stop_controller()
        lines = [
            f"{line.partition('=')[0]}={values.get(line.partition('=')[0], line.partition('=')[2])}"
            if line.partition("=")[0] in values
            else line
            for line in self.conf.read_text().splitlines()
        ]
        self.conf.write_text("\n".join(lines) + "\n")
        self.start_controller()

    def _make_host(self, name: str, address: str) -> Host:
        return ReleaseHost(name, address, self.root / "hosts" / name, tree=self.tree)

    def _boot(self, host: Host) -> None:
        super()._boot(host)
        enter = ["nsenter", "-t", str(host.init), "--mount", "--"]
        mounts = [*enter, "sh", "-c", _MOUNTS, "mounts", str(self.tree), str(self.root)]
        subprocess.run(mounts, check=True, env={**os.environ, "PATH": _PATH})

    def _daemon(
        self, name: str, host: str, argv: list[str], env: Mapping[str, str] | None = None
    ) -> None:
        # See roots.py: a library that the release's own slurmdbd cannot work with is stood in for.
        extra = {"LD_LIBRARY_PATH": STAND_INS} if name == "slurmdbd" else {}
        super()._daemon(name, host, argv, {**(env or {}), **extra})

    def _write_configuration(self) -> None:
        super()._write_configuration()
        if self.job_submit:  # 20.11 looks for it in the folder that it was built for alone
            shutil.copy(self.root / "job_submit.lua", self.tree / "etc/slurm")

    def _settings(self) -> dict[str, object]:
        # A requeued job waits for cred_expire seconds before it may start again; 120 unless set.
        socket = f"socket={self.layout.munge_socket},cred_expire=10"
        return {**super()._settings(), "AuthInfo": socket}

    def _version(self) -> tuple[int, int]:
        version = parse_version(self.version)
        assert version is not None
        return version
