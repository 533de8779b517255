"""Verification of a host's key against the known_hosts files (sshd(8))."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import hashlib
import hmac
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
from msgspec import Struct

from hpcrun.errors import OutOfReach
from hpcrun.remote.ssh_config import Hop, NeedsSsh


def check_host_key(link: paramiko.Transport, hop: Hop) -> None:
    """Start the ssh handshake, and compare the server's host key with the known ones.

    Raises:
        OutOfReach: The handshake failed, or the key is unknown, changed or revoked.
        NeedsSsh: Only the system's ssh can verify the key.
    """
    lines = list(_known_keys(hop))
    known = {line.kind for line in lines if not line.marker}
    options = link.get_security_options()
    # Prefer the key type that is known, if the server has several keys.
    options.key_types = sorted(options.key_types, key=lambda name: _kind_of(name) not in known)
    until = time.monotonic() + hop.connect_timeout
    try:
        link.start_client(timeout=hop.connect_timeout)
        key = link.get_remote_server_key()  # raises an error after a timeout
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise NeedsSsh(f"{hop.name}: {error}") from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        if time.monotonic() >= until:
            does = "does not continue the SSH handshake" if link.remote_version else "sends nothing"
            raise OutOfReach(
                f"{hop.name}: {hop.hostname} port {hop.port} accepts connections, but {does} "
                f"within {hop.connect_timeout:.3g} s",
                fix=f"does ssh {hop.name} work? The server or a firewall may be overloaded; try "
                "again later",
            ) from error
        raise OutOfReach(
            f"{hop.name}: {hop.hostname} port {hop.port} is not an SSH server: "
            + (str(error) or "it closed the connection"),
            fix=f"does ssh {hop.name} work? The server may be busy, or may have banned this "
            "machine temporarily",
        ) from error
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    shown = f"{key.get_name()} SHA256:{digest}"
    same = {line.marker: line for line in lines if line.blob == key.asbytes()}
    if "@revoked" in same:
        raise OutOfReach(
            f"{hop.name}: the host key of {hop.host_key_name} is revoked: {shown} "
            f"({same['@revoked'].where})",
            fix="contact the site's support before you connect",
            is_final=True,
        )
    if "" in same:
        return
    if any(line.marker == "@cert-authority" for line in lines):
        raise NeedsSsh(f"@cert-authority in known_hosts for {hop.host_key_name}")
    for line in lines:
        if line.is_exact and not line.marker and line.kind == key.get_name():
            raise OutOfReach(
                f"{hop.name}: the host key of {hop.host_key_name} has changed: it is now {shown}, "
                f"not the key in {line.where}. This may be a man-in-the-middle attack",
                fix="ask the site's support whether the key was replaced; if so: ssh-keygen -R "
                f"'{hop.host_key_name}' -f {line.path}, then ssh {hop.name} once",
                is_final=True,
            )
    raise OutOfReach(
        f"{hop.name}: the host key of {hop.host_key_name} is unknown: {shown}",
        fix=f"run ssh {hop.name} once, and compare the key with the one that the site publishes "
        "before you accept it",
        is_final=True,
    )


def _kind_of(algorithm: str) -> str:
    """Return the key type of a signature algorithm."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


class _Known(Struct, frozen=True):
    """An entry of a known_hosts file that matches a host.

    As ssh does, hpcrun accepts for a nonstandard port a key that is known for the host alone. Such
    an entry has ``is_exact`` False, and a key that differs from it is not a changed key.
    """

    marker: str
    is_exact: bool
    kind: str
    blob: bytes
    path: Path
    number: int

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.number}"


def _known_keys(hop: Hop) -> Iterator[_Known]:
    """Yield the entries of the known_hosts files for a host."""
    for path in hop.known_hosts:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#"):
                continue
            is_exact = _is_about(words[0], hop.host_key_name)
            if is_exact or _is_about(words[0], hop.hostname):
                with contextlib.suppress(binascii.Error):
                    blob = base64.b64decode(words[2])
                    yield _Known(marker, is_exact, words[1], blob, path, number)


def _is_about(names: str, name: str) -> bool:
    """Return True if the first field of a known_hosts line matches a host (sshd(8)).

    >>> line = "*.example.org,!old.example.org,[10.0.0.7]:2222"
    >>> [_is_about(line, name) for name in ("a.example.org", "old.example.org", "[10.0.0.7]:2222")]
    [True, False, True]
    """
    if names.startswith("|1|"):
        with contextlib.suppress(ValueError):
            _, _, salt, digest = names.split("|")
            made = hmac.new(base64.b64decode(salt), name.encode(), "sha1").digest()
            return hmac.compare_digest(made, base64.b64decode(digest))
        return False
    patterns = names.lower().replace("[", "[[]").split(",")
    name = name.lower()
    if any(one[:1] == "!" and fnmatch.fnmatchcase(name, one[1:]) for one in patterns):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
