"""The user's ssh configuration for a host, and for the jump hosts on the way.

`ssh -G` resolves it where an ssh client is installed; otherwise paramiko parses the files, which
covers a subset.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from hashlib import sha1
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcrun.errors import OutOfReach

MOST_HOPS = 10
_METHODS = ("gssapi-with-mic", "hostbased", "publickey", "keyboard-interactive", "password")
_SWITCHES = {
    "publickey": "pubkeyauthentication",
    "keyboard-interactive": "kbdinteractiveauthentication",
    "password": "passwordauthentication",
    "gssapi-with-mic": "gssapiauthentication",
    "hostbased": "hostbasedauthentication",
}
# Key files that ssh tries if the configuration names none.
_USUAL_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")


class NeedsSsh(Exception):
    """The connection needs a feature of the system's ssh that paramiko lacks."""


class Hop(Struct, frozen=True, kw_only=True):
    """A host on the way to the cluster, with its ssh settings."""

    name: str  # as the user writes it
    hostname: str
    port: int
    user: str
    host_key_name: str
    identity_files: tuple[Path, ...] = ()
    certificate_files: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None  # path of its socket
    known_hosts: tuple[Path, ...] = ()
    methods: tuple[str, ...] = ()  # authentication methods, in the order in which ssh tries them
    batch: bool = False  # never prompt
    proxy_command: str | None = None
    address_family: str = "any"
    connect_timeout: float = 30
    alive_interval: int = 5
    alive_count: int = 3
    needs_ssh: str = ""  # a feature that paramiko lacks, or ""

    @property
    def who(self) -> str:
        """Return the user and host for prompts and messages."""
        where = self.hostname if self.port == 22 else f"{self.hostname}:{self.port}"
        return f"{self.user}@{where}"


def find_ssh() -> str | None:
    """Return the path of the system's ssh client, or None."""
    return shutil.which("ssh")


def hops_to(host: str) -> list[Hop]:
    """Resolve a host to the hosts on the way, in order; the last one is the host itself.

    Raises:
        OutOfReach: The configuration cannot be used.
    """
    hops: list[Hop] = []
    _append_hops(host, None, hops, 0)
    return hops


def _append_hops(host: str, jumps: str | None, hops: list[Hop], depth: int) -> None:
    """Append a host after its jump hosts; ``jumps`` replaces its own ProxyJump."""
    if depth >= MOST_HOPS:
        raise OutOfReach(
            f"{host}: more than {MOST_HOPS} jump hosts, or a loop of jump hosts",
            fix="see ProxyJump in ~/.ssh/config",
        )
    options = query_ssh_config(host) if find_ssh() else _read_files(host)
    jumps = jumps or _first_value(options, "proxyjump")
    if jumps and jumps.lower() != "none":
        before, _, last = jumps.rpartition(",")
        # As in ssh, the last jump host is reached through the ones before it, or by its own
        # settings.
        _append_hops(_format_jump(last.strip()), before.strip() or None, hops, depth + 1)
        options.pop("proxycommand", None)
    hops.append(_build_hop(host, options))


def _format_jump(jump: str) -> str:
    """Return a jump host as a host argument of ssh, where only a URL can contain a port.

    >>> [_format_jump(jump) for jump in ("gate", "me@gate:2222", "[::1]:22", "ssh://gate:2222")]
    ['gate', 'ssh://me@gate:2222', 'ssh://[::1]:22', 'ssh://gate:2222']
    """
    has_port = re.fullmatch(r"([^@/]*@)?([^:@/\[\]]+|\[[^\]]*\]):[0-9]+", jump)
    return f"ssh://{jump}" if has_port else jump


def query_ssh_config(host: str) -> dict[str, list[str]]:
    """Query `ssh -G` for the options of a host, by their lower-case names."""
    try:
        done = subprocess.run(
            [find_ssh() or "ssh", "-G", "--", host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OutOfReach(
            f"{host}: `ssh -G {host}` did not finish within 30 s",
            fix="see Match exec in ~/.ssh/config",
        ) from error
    except OSError as error:
        raise OutOfReach(f"ssh cannot be started: {error.strerror}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise OutOfReach(
            f"the ssh configuration is invalid: {said}",
            fix=f"fix it; ssh -G {host} must succeed",
        )
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key.lower(), []).append(value)
    return options


def _read_files(host: str) -> dict[str, list[str]]:
    """Parse ~/.ssh/config and the system's file without an ssh client."""
    import paramiko

    user, _, name = host.removeprefix("ssh://").rpartition("@")
    port = re.search(r":([0-9]+)$", name) if host.startswith("ssh://") else None
    name = name[: port.start()].strip("[]") if port else name
    config = paramiko.SSHConfig()
    own = Path("~/.ssh/config").expanduser()
    lines = [*_read_lines(own, 0), "Host *", *_read_lines(Path("/etc/ssh/ssh_config"), 0)]
    for line in lines:
        if re.match(r"\s*match\b.*\bexec\b", line, re.IGNORECASE):
            raise OutOfReach(
                f"{own}: Match exec needs an ssh client", fix="install the OpenSSH client"
            )
    try:
        config.parse(iter(lines))
        found: Mapping[str, Any] = config.lookup(name)
    except Exception as error:
        raise OutOfReach(f"{own}: {error}", fix="fix the ssh configuration") from error
    options = {
        key: [str(each) for each in value] if isinstance(value, list) else [str(value)]
        for key, value in found.items()
    }
    if user:
        options["user"] = [user]
    if port:
        options["port"] = [port[1]]
    options.setdefault("hostname", [name])
    if "identityfile" not in options:
        options["identityfile"] = [f"~/.ssh/{name}" for name in _USUAL_KEYS]
    return options


def _read_lines(path: Path, depth: int) -> Iterator[str]:
    """Yield the lines of a configuration file, with the files it includes."""
    try:
        text = path.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutOfReach(f"{path}: {error.strerror}") from error
    block = ""
    for line in text.splitlines():
        key, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if key.lower() in ("host", "match"):
            block = line.strip()
        if key.lower() != "include":
            yield line
            continue
        if depth > 8 or block.lower() not in ("", "host *", "match all"):
            raise OutOfReach(
                f"{path}: Include below {block!r} needs an ssh client",
                fix="install the OpenSSH client",
            )
        for word in rest.split():
            name = os.path.expanduser(word.strip('"'))  # noqa: PTH111 - a pattern, no path
            base = Path("~/.ssh").expanduser() if name[:1] != "/" else Path("/")
            for found in sorted(glob.glob(str(base / name))):  # noqa: PTH207
                yield from _read_lines(Path(found), depth + 1)
        yield block or "Host *"


def _first_value(options: Mapping[str, list[str]], key: str, default: str = "") -> str:
    return options.get(key, [default])[0]


def _is_on(options: Mapping[str, list[str]], key: str, default: str) -> bool:
    return _first_value(options, key, default).lower() in ("yes", "true")


def _build_hop(host: str, options: Mapping[str, list[str]]) -> Hop:
    hostname = _first_value(options, "hostname", host)
    port = int(_first_value(options, "port", "22"))
    user = _first_value(options, "user") or getpass.getuser()
    alias = _first_value(options, "hostkeyalias")
    tokens = _TokenExpander(host, hostname, port, user, alias, _first_value(options, "proxyjump"))
    proxy = _first_value(options, "proxycommand")
    wanted = [word.strip() for word in _first_value(options, "preferredauthentications").split(",")]
    methods = [
        method
        for method in (wanted if any(wanted) else _METHODS)
        if _is_on(
            options,
            _SWITCHES.get(method, ""),
            "no" if method in ("gssapi-with-mic", "hostbased") else "yes",
        )
    ]
    known = " ".join(
        (
            _first_value(options, "userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"),
            _first_value(options, "globalknownhostsfile", "/etc/ssh/ssh_known_hosts"),
        )
    )
    files = tuple(
        tokens.expand_path(each) for each in options.get("identityfile", []) if each != "none"
    )
    interval = int(_first_value(options, "serveraliveinterval", "0") or 0)
    count = int(_first_value(options, "serveralivecountmax", "3"))
    timeout = _first_value(options, "connecttimeout")
    return Hop(
        name=host,
        hostname=hostname,
        port=port,
        user=user,
        host_key_name=alias or (hostname if port == 22 else f"[{hostname}]:{port}"),
        identity_files=files,
        certificate_files=tuple(
            tokens.expand_path(each) for each in options.get("certificatefile", [])
        ),
        identities_only=_is_on(options, "identitiesonly", "no"),
        agent=_agent_path(tokens, _first_value(options, "identityagent", "SSH_AUTH_SOCK")),
        known_hosts=tuple(tokens.expand_path(each) for each in known.split() if each != "none"),
        methods=tuple(methods),
        batch=_is_on(options, "batchmode", "no"),
        proxy_command=tokens.expand(proxy) if proxy and proxy.lower() != "none" else None,
        address_family=_first_value(options, "addressfamily", "any"),
        connect_timeout=float(timeout) if timeout.isdecimal() and timeout != "0" else 30,
        alive_interval=interval or 5,
        alive_count=count,
        needs_ssh=_needs_ssh(options, files),
    )


def _needs_ssh(options: Mapping[str, list[str]], files: tuple[Path, ...]) -> str:
    """Return the name of a required feature that paramiko lacks; "" if there is none."""
    for key in ("knownhostscommand", "pkcs11provider"):
        if _first_value(options, key, "none").lower() != "none":
            return key
    if _is_on(options, "verifyhostkeydns", "no"):
        return "VerifyHostKeyDNS"
    for path in files:
        if is_hardware_key(path):
            return f"a hardware key, {path}"
    return ""


def is_hardware_key(path: Path) -> bool:
    """Return True if a key is stored on a hardware token (sk-ssh-ed25519, sk-ecdsa)."""
    try:
        return path.exists() and path.with_name(f"{path.name}.pub").read_text().startswith("sk-")
    except (OSError, UnicodeDecodeError):
        return False


def _agent_path(tokens: _TokenExpander, value: str) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:]) or None
    return str(tokens.expand_path(value))


class _TokenExpander:
    """Expands the tokens of ssh_config(5): %h, %p, ${NAME} ..."""

    def __init__(
        self, host: str, hostname: str, port: int, user: str, alias: str, jump: str
    ) -> None:
        here = socket.gethostname()
        given = host.rpartition("@")[2].removeprefix("ssh://")
        digest = sha1(f"{here}{hostname}{port}{user}{jump}".encode(), usedforsecurity=False)
        self.values = {
            "%": "%",
            "C": digest.hexdigest(),
            "d": os.path.expanduser("~"),  # noqa: PTH111
            "h": hostname,
            "i": str(os.getuid()),
            "j": jump,
            "k": alias or given,
            "L": here.partition(".")[0],
            "l": here,
            "n": given,
            "p": str(port),
            "r": user,
            "u": getpass.getuser(),
        }

    def expand(self, text: str) -> str:
        text = re.sub(r"%(.)", lambda found: self.values.get(found[1], found[0]), text)
        return re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)

    def expand_path(self, text: str) -> Path:
        return Path(self.expand(text.strip('"'))).expanduser()
