"""The user's way into a host: ssh's methods of authentication (RFC 4252)."""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import paramiko

from hpcrun.errors import OutOfReach
from hpcrun.remote.ssh_config import Hop, NeedsSsh, is_hardware_key

# A person looks for a phone; servers allow two minutes, as a rule.
_TYPING = 300.0
_PATIENCE = 30.0  # for all else, in seconds
_PASSPHRASES = 3  # tries, as ssh gives


class _OneTrip(paramiko.auth_handler.AuthHandler):  # type: ignore[misc]
    """Asks for the service once, and tries a method without waiting for its answer.

    The server's questions wait for outcome(): in paramiko's own thread no Ctrl-C would come.
    """

    def __init__(self, link: paramiko.Transport, is_first: bool) -> None:
        super().__init__(link)
        self.is_first = is_first
        self.questions: list[paramiko.Message] = []
        self.allowed: list[str] = []

    def _request_auth(self) -> None:
        if self.is_first:
            super()._request_auth()
        accepted = paramiko.Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)

    def _parse_service_accept(self, message: paramiko.Message) -> None:
        """Do nothing at the answer: the method was tried."""

    def _parse_userauth_failure(self, message: paramiko.Message) -> None:
        self.allowed = message.get_list()
        message.rewind()
        super()._parse_userauth_failure(message)

    def _parse_userauth_info_request(self, message: paramiko.Message) -> None:
        self.questions.append(message)

    def outcome(self, answered: threading.Event) -> list[str]:
        """Wait for the server; return what it wants besides ([]: nothing). Answers questions."""
        until = time.monotonic() + (_TYPING if self.interactive_handler else _PATIENCE)
        while not answered.wait(0.05) and self.transport.is_active() and time.monotonic() < until:
            if self.questions:
                super()._parse_userauth_info_request(self.questions.pop(0))
        self.transport.auth_timeout = 0  # it was waited
        return list(self.wait_for_response(answered))


class Login:
    """One user's way into one host: ssh's methods, in its order, each once."""

    def __init__(
        self,
        link: paramiko.Transport,
        hop: Hop,
        ask: Callable[..., str],
        tell: Callable[[str], None],
        keys: dict[Path, Any],
    ) -> None:
        self.link = link
        self.hop = hop
        self.ask = ask
        self.tell = tell
        self.keys = keys
        self.agent = paramiko.agent.AgentSSH()
        self.agents: list[Any] | None = None  # its keys
        self.locked: list[Path] = []  # files that need a passphrase
        self.missing: list[Path] = []
        self.tried: list[str] = []  # for the message
        self.offered: set[bytes] = set()
        self.allowed: list[str] = []  # methods, as the server's last refusal has them

    def log_in(self) -> None:
        """Prove who the user is. Raises OutOfReach that is final, NeedsSsh."""
        try:
            self._log_in()
        finally:
            self.agent._close()

    def _log_in(self) -> None:
        hop = self.hop
        try:
            allowed = self._begin()
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broken(error) from error
        for _ in range(5):  # factors that a server may want
            if self.link.is_authenticated():
                return
            more = self._one_factor(allowed)
            if more is None:
                break
            allowed = more
        did = "; ".join(dict.fromkeys(self.tried)) or "there was nothing to try"
        raise OutOfReach(
            f"{hop.name}: {hop.who} was not let in: {did} (the server takes {', '.join(allowed)})",
            fix=f"try ssh {hop.name}; nothing is tried again by itself",
            is_final=True,
        )

    def _begin(self) -> list[str]:
        """Offer the user's key where there is just one, else nothing: any answer names methods.

        Servers count what they refuse, but for a first "none".
        """
        keys: list[tuple[str, Any]] = []
        if "publickey" in self.hop.methods:
            with contextlib.suppress(NeedsSsh):  # perhaps it is not needed
                keys = list(self._ready_keys())
        try:
            if len(keys) == 1 and not self.locked:
                more = self._by_keys(keys)
                if more is not None:
                    return more
            if not self.allowed:
                return self._offer("none")
        except paramiko.BadAuthenticationType:
            self.offered.clear()  # another factor may have to come first
        return self.allowed

    def _offer(self, method: str, *proof: Any) -> list[str]:
        """Try one of paramiko's methods; return as outcome() does."""
        is_first = self.link.auth_handler is None
        self.link.auth_handler = handler = _OneTrip(self.link, is_first)
        answered = threading.Event()
        getattr(handler, f"auth_{method}")(self.hop.user, *proof, answered)
        try:
            return handler.outcome(answered)
        finally:
            self.allowed = handler.allowed

    def _broken(self, error: BaseException) -> OutOfReach:
        did = "; ".join(dict.fromkeys(self.tried))
        return OutOfReach(
            f"{self.hop.name}: the server ended the login of {self.hop.who}: {error}"
            + (f" ({did})" if did else ""),
            fix="too many keys of an agent? IdentityFile and IdentitiesOnly yes name the right one"
            if len(self.offered) > 2
            else f"try ssh {self.hop.name}; nothing is tried again by itself",
            is_final=True,
        )

    def _one_factor(self, allowed: list[str]) -> list[str] | None:
        """Prove one thing; return what the server wants besides, or None where nothing did."""
        methods = [method for method in self.hop.methods if method in allowed]
        try:
            if "publickey" in methods:
                with contextlib.suppress(paramiko.BadAuthenticationType):
                    more = self._by_keys(itertools.chain(self._ready_keys(), self._locked_keys()))
                    if more is not None:
                        return more
            self._leave_to_ssh(methods)
            for method in methods:
                if self.hop.batch or method not in ("keyboard-interactive", "password"):
                    continue
                by = self._by_answers if method == "keyboard-interactive" else self._by_password
                done, more = by()
                if done:
                    return more
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broken(error) from error
        return None

    def _leave_to_ssh(self, methods: list[str]) -> None:
        """Let the system's ssh show a Kerberos ticket, or this host's own key."""
        can_ask = {"keyboard-interactive", "password"} & set(methods) and not self.hop.batch
        ticket = os.environ.get("KRB5CCNAME") or Path(f"/tmp/krb5cc_{os.getuid()}").exists()
        if "gssapi-with-mic" in methods and (ticket or not can_ask):
            raise NeedsSsh(f"{self.hop.name}: Kerberos (GSSAPI)")
        if "hostbased" in methods and not can_ask:
            raise NeedsSsh(f"{self.hop.name}: hostbased authentication")

    # Each of the following returns what the server wants besides ([]: nothing); None: refused.

    def _by_keys(self, keys: Iterable[tuple[str, Any]]) -> list[str] | None:
        for label, key in keys:
            blob = key.public_blob.key_blob if key.public_blob else key.asbytes()
            if blob in self.offered:
                continue
            self.offered.add(blob)
            try:
                more = self._offer("publickey", key)
            except paramiko.BadAuthenticationType:
                raise
            except paramiko.SSHException as error:
                if not self.link.is_active():
                    raise
                was_sent = isinstance(error, paramiko.AuthenticationException)
                self.tried.append(f"{label} was refused" if was_sent else f"{label}: {error}")
                self.tell(f"{self.hop.name}: {label}: {error}")
                continue
            self.tell(f"{self.hop.name}: {label} was taken")
            return more
        return None

    def _ready_keys(self) -> Iterator[tuple[str, Any]]:
        """Yield keys as ssh tries them: the agent's that are named, its others, then the files.

        Files that are encrypted are left over, since they cost the user a question.
        """
        public = {_public_blob(path): path for path in self.hop.identity_files}
        if self.agents is None:
            self.agents = self._agent_keys()
        agents = self.agents
        named = [key for key in agents if key.asbytes() in public]
        others = [] if self.hop.identities_only else [key for key in agents if key not in named]
        for key in (*named, *others):
            if key.get_name().startswith("sk-"):
                raise NeedsSsh(f"{self.hop.name}: a hardware key in the agent")
            yield f"the agent's {key.get_name()} key {getattr(key, 'comment', '')}".strip(), key
        self.locked, self.missing = [], []
        for path in self.hop.identity_files:
            if is_hardware_key(path):
                raise NeedsSsh(f"a hardware key, {path}")
            if _public_blob(path) in {key.asbytes() for key in named}:
                continue
            try:
                key = self.keys.get(path) or paramiko.PKey.from_path(path)
            except (FileNotFoundError, NotADirectoryError):
                self.missing.append(path)
            except (TypeError, paramiko.PasswordRequiredException):
                self.locked.append(path)
            except Exception as error:
                if path.suffix != ".pub" or os.access(path.with_suffix(""), os.R_OK):
                    why = getattr(error, "strerror", None) or error
                    self.tried.append(f"{path} cannot be read: {why}")
            else:
                yield from self._with_certificates(path, key)

    def _locked_keys(self) -> Iterator[tuple[str, Any]]:
        """Yield the others. Each costs the user a question."""
        for path in self.locked:
            if (key := self._unlock(path)) is not None:
                yield from self._with_certificates(path, key)
        if self.missing and len(self.missing) == len(self.hop.identity_files) < 5:
            self.tried.append(f"{self.missing[0]}: no such key file")

    def _agent_keys(self) -> list[Any]:
        """Ask the agent for its keys; none where it does not answer."""
        if self.hop.agent is None:
            return []
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self.hop.agent)
            self.agent._connect(sock)
        except (OSError, paramiko.SSHException):
            sock.close()
        return list(self.agent.get_keys())

    def _with_certificates(self, path: Path, key: Any) -> Iterator[tuple[str, Any]]:
        self.keys[path] = key
        for certificate in self.hop.certificate_files:
            signed = copy.copy(key)
            try:
                signed.load_certificate(str(certificate))
                its_key = type(key)(data=signed.public_blob.key_blob)
            except Exception as error:
                self.tried.append(f"{certificate} cannot be used: {error}")
            else:
                if its_key.asbytes() == key.asbytes():
                    yield f"{certificate}", signed
        if key.public_blob is not None:  # paramiko has read a certificate beside it
            yield f"{path}", key
        plain = copy.copy(key)
        plain.public_blob = None
        yield f"{path}", plain

    def _unlock(self, path: Path) -> Any:
        """Ask for a passphrase; None where nobody answers rightly."""
        for _ in range(_PASSPHRASES):
            if self.hop.batch:
                break
            try:
                answer = self.ask(f"{self.hop.who}: passphrase of {path}")
            except OutOfReach as error:
                self.tried.append(f"{path}: {error.message}")
                return None
            if not answer:
                break
            with contextlib.suppress(ValueError, TypeError, paramiko.SSHException):
                return paramiko.PKey.from_path(path, answer.encode())
        self.tried.append(f"{path} is encrypted, and its passphrase was not given")
        return None

    def _by_password(self) -> tuple[bool, list[str] | None]:
        answer = self.ask(f"{self.hop.who}: password")
        try:
            return True, self._offer("password", answer)
        except paramiko.AuthenticationException:
            self.tried.append("the password was refused")
            return True, None

    def _by_answers(self) -> tuple[bool, list[str] | None]:
        """Answer the server's questions. The first value: something was asked."""
        was_asked, heading = False, ""

        def answer(title: str, text: str, prompts: list[tuple[str, bool]]) -> list[str]:
            nonlocal was_asked, heading
            heading = "\n".join(part.strip() for part in (heading, title, text) if part.strip())
            answers = []
            for prompt, echo in prompts:
                was_asked = True
                question = f"{self.hop.who}: {str(prompt).strip().rstrip(':')}"
                answers.append(self.ask(f"{heading}\n{question}".strip(), echo=bool(echo)))
                heading = ""
            return answers

        try:
            return True, self._offer("interactive", answer)
        except paramiko.AuthenticationException:
            self.tried.append("the answer was refused" if was_asked else "no question came")
            return was_asked, None


def _public_blob(path: Path) -> bytes:
    """Return the public half of a key file, as far as it lies there in the open."""
    for name in (path, path.with_name(f"{path.name}.pub")):
        with contextlib.suppress(OSError, ValueError, IndexError, UnicodeDecodeError):
            words = name.read_text().split()
            if words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1])
    return b""
