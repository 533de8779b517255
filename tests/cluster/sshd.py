"""sshd on the nodes of a rig, and an ssh configuration for them, to test hosts without Slurm."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.cluster.rig import Rig
from tests.waiting import until

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class Lab:
    """The nodes of a rig as SSH hosts; ``known_hosts`` contains their keys."""

    rig: Rig
    folder: Path

    @property
    def known_hosts(self) -> Path:
        """The host keys that ssh trusts."""
        return self.folder / "known_hosts"

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that make ``ssh`` (also that of pdsh) use this configuration."""
        return {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def hostfile(self, slots: int, *names: str) -> Path:
        """Write a hostfile of the given nodes in this order, by default of all."""
        path = self.folder / "hostfile"
        lines = [f"{name} slots={slots}\n" for name in names or self.rig.node_names]
        path.write_text("".join(lines))
        return path


@contextlib.contextmanager
def lab(rig: Rig) -> Iterator[Lab]:
    """Run sshd on every node during a ``with`` block."""
    made = Lab(rig, rig.shared / "ssh")
    shutil.rmtree(made.folder, ignore_errors=True)
    (made.folder / "bin").mkdir(parents=True)
    _write_keys(made)
    Path("/run/sshd").mkdir(exist_ok=True)
    argv = [SSHD, "-D", "-e", "-f", str(made.folder / "sshd_config")]
    enters = []
    with (made.folder / "sshd.log").open("ab") as log:
        for name in rig.node_names:
            enters.append(
                subprocess.Popen(
                    rig.argv_on(name, argv),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # sshd passes only these of its variables to a session.
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                    start_new_session=True,
                )
            )
    try:
        for name in rig.node_names:
            until(partial(_is_up, made, name), f"sshd of {name}")
        yield made
    finally:
        for name in rig.node_names:
            for pid, command in rig.processes(name):
                if command.startswith(("sshd:", SSHD)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for enter in enters:
            enter.wait()


def _write_keys(lab: Lab) -> None:
    folder = lab.folder
    for name in ("host_key", "user_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    lab.known_hosts.write_text(
        "".join(f"{name},{address} {key}\n" for name, address in lab.rig.addresses.items())
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\n"
        "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\nMaxStartups 100\n"
    )
    # Only ssh knows the names: this machine cannot resolve them.
    (folder / "config").write_text(
        "".join(f"Host {n}\n  HostName {a}\n" for n, a in lab.rig.addresses.items())
        + f"Host *\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {lab.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)


def _is_up(lab: Lab, name: str) -> bool:
    argv = [str(lab.folder / "bin" / "ssh"), "-n", "-o", "BatchMode=yes", name, "true"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0
