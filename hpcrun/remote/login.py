"""Authentication of the user at a host by the methods of ssh (RFC 4252)."""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import paramiko

from hpcrun.errors import OutOfReach
from hpcrun.remote.ssh_config import Hop, NeedsSsh, is_hardware_key

# Users may have to find their phone; servers usually allow two minutes. After a password, a server
# may wait for the confirmation of a second factor.
_TYPING_TIMEOUT_S = 300.0
_PASSWORD_TIMEOUT_S = 120.0
_SERVER_TIMEOUT_S = 30.0
_MAX_PASSPHRASES = 3  # as in ssh
# The prompts of a keyboard-interactive request: text, and whether the answer is echoed.
_Prompts = list[tuple[str, bool]]


class _AgentKey(paramiko.AgentKey):  # type: ignore[misc]
    """A key of an agent that may refuse to sign, for example because the user must confirm it.

    paramiko signs in the thread of the connection, and an exception would terminate that. So an
    invalid signature is returned, which the server rejects, and ``fault`` has the reason.
    """

    fault = ""

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Any:
        """Sign; see PKey."""
        try:
            return super().sign_ssh_data(data, algorithm)
        except paramiko.SSHException as error:
            self.fault = str(error)
            void = paramiko.Message()
            void.add_string(algorithm or self.get_name())
            void.add_string(bytes(64))
            return void.asbytes()


class Authentication:
    """Authentication of one user at one host: tries the methods in the order of ssh, each once."""

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
        self.agent: Any = None
        self.agent_keys: list[Any] | None = None  # None before the agent was queried
        self.locked: list[Path] = []  # files that need a passphrase
        self.missing: list[Path] = []
        self.tried: list[str] = []  # attempts, for the error message
        self.offered: set[bytes] = set()
        self.allowed: list[str] = []  # methods in the server's last response

    def log_in(self) -> None:
        """Authenticate the user. Raises a final OutOfReach, or NeedsSsh."""
        self.link.auth_timeout = _SERVER_TIMEOUT_S
        try:
            self._log_in()
        finally:
            if self.agent is not None:
                self.agent.close()

    def _log_in(self) -> None:
        hop = self.hop
        try:
            allowed = self._try_first_method()
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._connection_error(error) from error
        for _ in range(5):  # the most factors that a server may require
            if self.link.is_authenticated():
                return
            more = self._authenticate_one_factor(allowed)
            if more is None:
                break
            allowed = more
        did = "; ".join(dict.fromkeys(self.tried)) or "no login method is available"
        raise OutOfReach(
            f"{hop.name}: authentication failed for {hop.who}: {did} (the server accepts "
            f"{', '.join(allowed)})",
            fix=f"try ssh {hop.name}; hpcrun does not retry a failed login",
            is_final=True,
        )

    def _try_first_method(self) -> list[str]:
        """Offer the user's key if it is the only one, else "none"; return the server's methods.

        Servers count rejected attempts, except for "none" as the first method. They list the
        allowed methods only in the response to a method that is not allowed.
        """
        keys: list[tuple[str, Any]] = []
        if "publickey" in self.hop.methods:
            with contextlib.suppress(NeedsSsh):  # the key may not be necessary
                keys = list(self._ready_keys())
        if len(keys) == 1 and not self.locked:
            try:
                more = self._authenticate_by_keys(keys)
            except paramiko.BadAuthenticationType:
                self.offered.clear()  # another factor may be required first
                return self.allowed
            if more is not None:
                return more
        with contextlib.suppress(paramiko.BadAuthenticationType):
            return self._try_method(self.link.auth_none)
        return self.allowed

    def _try_method(self, method: Callable[..., Any], *proof: Any) -> list[str]:
        """Try a method of paramiko's Transport; return the methods that the server still requires.

        Raises:
            AuthenticationException, SSHException, EOFError, OSError: The method failed.
        """
        try:
            self.allowed = list(method(self.hop.user, *proof))
            return self.allowed
        except paramiko.BadAuthenticationType as error:
            self.allowed = list(error.allowed_types)
            raise

    def _try_password(self, password: str) -> list[str]:
        self.link.auth_timeout = _PASSWORD_TIMEOUT_S
        try:
            return self._try_method(partial(self.link.auth_password, fallback=False), password)
        finally:
            self.link.auth_timeout = _SERVER_TIMEOUT_S

    def _try_interactive(self, answer: Callable[[str, str, _Prompts], list[str]]) -> list[str]:
        """Try keyboard-interactive; ``answer`` is called in the calling thread.

        paramiko calls a handler in a thread of its own, which Ctrl-C does not interrupt. So the
        authentication runs in a second thread, which passes the questions to this one.
        """
        questions: queue.SimpleQueue[tuple[str, str, _Prompts] | None] = queue.SimpleQueue()
        answers: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        outcome: list[list[str] | BaseException] = []

        def handle(title: str, text: str, prompts: _Prompts) -> list[str]:
            questions.put((title, text, prompts))
            given = answers.get()
            if given is None:
                raise paramiko.SSHException("the prompts were not answered")
            return given

        def authenticate() -> None:
            try:
                outcome.append(self._try_method(self.link.auth_interactive, handle))
            except BaseException as error:
                outcome.append(error)
            questions.put(None)

        self.link.auth_timeout = _TYPING_TIMEOUT_S
        threading.Thread(target=authenticate, daemon=True).start()
        try:
            while (asked := questions.get()) is not None:
                answers.put(answer(*asked))
        finally:
            answers.put(None)
            self.link.auth_timeout = _SERVER_TIMEOUT_S
        (found,) = outcome
        if isinstance(found, BaseException):
            raise found
        return found

    def _connection_error(self, error: BaseException) -> OutOfReach:
        did = "; ".join(dict.fromkeys(self.tried))
        return OutOfReach(
            f"{self.hop.name}: the server closed the connection during the login of "
            f"{self.hop.who}: {error}" + (f" ({did})" if did else ""),
            fix="if the agent holds many keys, select one with IdentityFile and IdentitiesOnly yes"
            if len(self.offered) > 2
            else f"try ssh {self.hop.name}; hpcrun does not retry a failed login",
            is_final=True,
        )

    def _authenticate_one_factor(self, allowed: list[str]) -> list[str] | None:
        """Pass one authentication factor; return the methods still required, or None on failure."""
        methods = [method for method in self.hop.methods if method in allowed]
        try:
            if "publickey" in methods:
                with contextlib.suppress(paramiko.BadAuthenticationType):
                    more = self._authenticate_by_keys(
                        itertools.chain(self._ready_keys(), self._locked_keys())
                    )
                    if more is not None:
                        return more
            self._leave_to_ssh(methods)
            for method in methods:
                if self.hop.batch or method not in ("keyboard-interactive", "password"):
                    continue
                by = (
                    self._authenticate_interactively
                    if method == "keyboard-interactive"
                    else self._authenticate_by_password
                )
                done, more = by()
                if done:
                    return more
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._connection_error(error) from error
        return None

    def _leave_to_ssh(self, methods: list[str]) -> None:
        """Raise NeedsSsh for Kerberos tickets and host-based authentication, which ssh can use."""
        can_ask = {"keyboard-interactive", "password"} & set(methods) and not self.hop.batch
        ticket = os.environ.get("KRB5CCNAME") or Path(f"/tmp/krb5cc_{os.getuid()}").exists()
        if "gssapi-with-mic" in methods and (ticket or not can_ask):
            raise NeedsSsh(f"{self.hop.name}: Kerberos (GSSAPI)")
        if "hostbased" in methods and not can_ask:
            raise NeedsSsh(f"{self.hop.name}: hostbased authentication")

    # Each of the following methods returns what the server still requires ([]: nothing), or None if
    # it was rejected.

    def _authenticate_by_keys(self, keys: Iterable[tuple[str, Any]]) -> list[str] | None:
        for label, key in keys:
            blob = key.public_blob.key_blob if key.public_blob else key.asbytes()
            if blob in self.offered:
                continue
            self.offered.add(blob)
            try:
                more = self._try_method(self.link.auth_publickey, key)
            except paramiko.BadAuthenticationType:
                raise
            except paramiko.SSHException as error:
                if not self.link.is_active():
                    raise
                fault = getattr(key, "fault", "")
                was_sent = isinstance(error, paramiko.AuthenticationException) and not fault
                why = fault or error
                self.tried.append(f"{label} was rejected" if was_sent else f"{label}: {why}")
                self.tell(f"{self.hop.name}: {label}: {why}")
                continue
            self.tell(f"{self.hop.name}: accepted {label}")
            return more
        return None

    def _ready_keys(self) -> Iterator[tuple[str, Any]]:
        """Yield keys in the order of ssh: named keys of the agent, its other keys, then key files.

        Encrypted files are omitted, since they need a prompt.
        """
        public = {_public_blob(path): path for path in self.hop.identity_files}
        if self.agent_keys is None:
            self.agent_keys = self._query_agent()
        known = self.agent_keys
        named = [key for key in known if key.asbytes() in public]
        others = [] if self.hop.identities_only else [key for key in known if key not in named]
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
        """Yield the encrypted key files, which need a prompt each."""
        for path in self.locked:
            if (key := self._unlock(path)) is not None:
                yield from self._with_certificates(path, key)
        if self.missing and len(self.missing) == len(self.hop.identity_files) < 5:
            self.tried.append(f"{self.missing[0]}: no such key file")

    def _query_agent(self) -> list[Any]:
        """Return the keys of the agent; an empty list if it does not respond."""
        if self.hop.agent is None:
            return []
        with contextlib.suppress(paramiko.SSHException), _agent_socket(self.hop.agent):
            self.agent = paramiko.Agent()
            keys = self.agent.get_keys()
            return [_AgentKey(self.agent, key.blob, key.comment) for key in keys]
        return []

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
        if key.public_blob is not None:  # paramiko loaded a certificate next to the key
            yield f"{path}", key
        plain = copy.copy(key)
        plain.public_blob = None
        yield f"{path}", plain

    def _unlock(self, path: Path) -> Any:
        """Prompt for a passphrase; return None without a correct one."""
        for _ in range(_MAX_PASSPHRASES):
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
        self.tried.append(f"{path} is encrypted, and no passphrase was given")
        return None

    def _authenticate_by_password(self) -> tuple[bool, list[str] | None]:
        answer = self.ask(f"{self.hop.who}: password")
        try:
            return True, self._try_password(answer)
        except paramiko.AuthenticationException:
            self.tried.append("the password was rejected")
            return True, None

    def _authenticate_interactively(self) -> tuple[bool, list[str] | None]:
        """Answer the server's questions; the first value is True if there were any."""
        was_asked, heading = False, ""

        def answer(title: str, text: str, prompts: _Prompts) -> list[str]:
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
            return True, self._try_interactive(answer)
        except paramiko.AuthenticationException:
            self.tried.append(
                "the answer was rejected" if was_asked else "the server sent no prompt"
            )
            return was_asked, None


@contextlib.contextmanager
def _agent_socket(path: str) -> Iterator[None]:
    """Make paramiko use an agent socket; it only supports SSH_AUTH_SOCK."""
    before = os.environ.get("SSH_AUTH_SOCK")
    os.environ["SSH_AUTH_SOCK"] = path
    try:
        yield
    finally:
        if before is None:
            del os.environ["SSH_AUTH_SOCK"]
        else:
            os.environ["SSH_AUTH_SOCK"] = before


def _public_blob(path: Path) -> bytes:
    """Return the public key of a key file, as far as it is readable without a passphrase."""
    for name in (path, path.with_name(f"{path.name}.pub")):
        with contextlib.suppress(OSError, ValueError, IndexError, UnicodeDecodeError):
            words = name.read_text().split()
            if words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1])
    return b""
