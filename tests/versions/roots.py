"""Another Debian release with its Slurm in a folder, by debootstrap and apt."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Release -> the Slurm that it had when this was written; unstable moves on.
RELEASES = {"bullseye": "20.11", "bookworm": "22.05", "trixie": "24.11", "sid": "26.05"}
_PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server"),
    *("python3", "iproute2", "procps"),
)
_READY = "hpcrun-ready"
# Folder for libraries that slurmdbd finds before the release's own, and whose these are.
STAND_INS = "/opt/hpcrun-stand-ins"
_LENDER, _BORROWERS = "bookworm", ("trixie", "sid")
# Debian's way to say that no daemon may be started (policy-rc.d: 101 is "action forbidden").
_NO_DAEMONS = "#!/bin/sh\nexit 101\n"


class RootError(RuntimeError):
    """A release could not be installed; the message has the end of the log."""


def mirror(targets: str) -> str:
    """Return the Debian mirror in the output of ``apt-get indextargets``; "" if there is none.

    >>> mirror("Other http://one.example/x/\\nDebian http://two.example/debian/\\n")
    'http://two.example/debian/'
    """
    rows = (line.split() for line in targets.splitlines())
    uris = [row[1] for row in rows if len(row) == 2 and row[0] == "Debian"]
    return next((uri for uri in uris if not uri.rstrip("/").endswith("security")), "")


def own_mirror() -> str:
    """Return the Debian mirror of this machine's apt; "" for debootstrap's default."""
    argv = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"]
    return mirror(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def make_roots(releases: Sequence[str], cache: Path, mirror_uri: str) -> dict[str, Path]:
    """Install releases below ``cache``, with packages from other releases; return their folders.

    libmariadb 11.8.9, of trixie and unstable since 2026-11, refuses slurmdbd's first query
    ("maximum allowed number of columns (=0)"); bookworm's 10.11 serves slurmdbd of both.
    Raises RootError.
    """
    roots = {release: _make_root(release, cache, mirror_uri) for release in releases}
    for borrower in set(_BORROWERS) & set(roots):
        lender = roots.get(_LENDER) or _make_root(_LENDER, cache, mirror_uri)
        (found,) = (lender / "usr/lib").glob("*/libmariadb.so.3")
        folder = roots[borrower] / STAND_INS.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        lent = folder / found.name
        if not (lent.exists() and filecmp.cmp(found, lent)):
            # Never in place: the slurmdbd of another run that has it mapped would crash.
            new = lent.with_suffix(f".{os.getpid()}")
            shutil.copy(found, new)
            new.replace(lent)
    return roots


def _make_root(release: str, cache: Path, mirror_uri: str) -> Path:
    """Install a release unless it exists; takes 30 to 60 s and 0.9 GB."""
    root = cache / release
    if (root / _READY).exists():
        return root
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    log = cache / f"{release}.log"
    log.write_text("")
    bootstrap = ["debootstrap", "--variant=minbase", release, str(root)]
    _logged([*bootstrap, mirror_uri] if mirror_uri else bootstrap, log)
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text(_NO_DAEMONS)
    policy.chmod(0o755)
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends"]
    _logged(["chroot", str(root), *install, *_PACKAGES], log)
    _logged(["chroot", str(root), "apt-get", "clean"], log)
    (root / _READY).touch()
    return root


def slurm_version(root: Path) -> str:
    """Return the version of the Slurm in ``root``, such as 22.05.8."""
    argv = ["chroot", str(root), "slurmctld", "-V"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return answer.split()[-1]


def _logged(argv: list[str], log: Path) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    with log.open("ab") as out:
        done = subprocess.run(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RootError(f"{argv[0]} ended with code {done.returncode}\n{tail}\n(all of it: {log})")
