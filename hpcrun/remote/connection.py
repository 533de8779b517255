"""The protocol for running scripts over one ssh connection.

A script is sent to the stdin of ``bash``, and its output is enclosed in two random marks: output of
login shells, banners and profiles outside the marks is ignored. by_paramiko.py or by_openssh.py
makes the connection.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

from msgspec import Struct

from hpcrun.errors import OutOfReach

# Limits in bytes: collected stdout, stderr, and output before the first mark.
MOST_OUTPUT, MOST_STDERR, MOST_CHATTER = 256 << 20, 1 << 20, 1 << 20
_PIECE = 1 << 15
# How long to wait for another session to end, where the server allows only one, in seconds.
_SESSION_WAIT_S = 30.0

# The only words that the user's login shell parses; they mean the same in sh, csh, tcsh, fish and
# zsh. They read two texts from stdin, each terminated by a NUL: the frame and the script. bash
# reads a pipe byte by byte, so the rest of stdin is left for the script.
_READ = '\'IFS= read -r -d "" frame; IFS= read -r -d "" script; eval "$frame"\' hpcrun'
_EXEC = f"exec bash --norc -c {_READ}"
_EXEC_LOGIN = f"exec bash --norc -l -c {_READ}"
# Undo settings of a profile: options for interactive use (set -u), traces (set -x), which would
# show the values of variables in error messages, and the POSIX mode, which jobs would inherit.
RESET = "set +efuvx; unset -v POSIXLY_CORRECT; "
# If a profile started another shell, that shell consumed the texts and the script is empty.
_GUARD = f"[[ $script ]] || exit; {RESET}"
# The script runs in a subshell, so that exit, exec and set -e end only that. In the watched frame
# stdin carries no data, and its end terminates the script when the connection closes.
_FRAME = """\
{path}printf '%s<' {mark}; printf '%s<' {mark} >&2
( eval "$script" ); code=$?
printf '%s>' {mark} >&2; printf '%s>%d.' {mark} $code
"""
# For a script whose stdin and stdout are connected to a socket.
_OPEN_FRAME = """\
{path}printf '%s<' {mark}; eval "$script"
"""
_WATCHED_FRAME = """\
{path}printf '%s<' {mark}; printf '%s<' {mark} >&2
set -m; exec 3<&0 4>&2 2>/dev/null
( set +m; exec 2>&4 3<&- 4>&-; eval "$script" ) </dev/null & script_pid=$!
( exec >/dev/null 4>&-; read -r -u 3 line; kill -TERM -- -$script_pid ) & watcher=$!
exec 3<&-; wait $script_pid; code=$?
kill -KILL -- -$watcher
printf '%s>' {mark} >&4; printf '%s>%d.' {mark} $code
"""


class SshSettings(Struct, frozen=True, kw_only=True):
    """The settings in a cluster profile for its ssh connection; see Cluster for the keys."""

    host: str
    ssh: Literal["paramiko", "openssh"] = "paramiko"
    transfer_host: str | None = None
    slurm_path: str | None = None
    login_shell: bool = False


class Reply(Struct, frozen=True):
    """The result of a script that ended."""

    exit_code: int
    stdout: bytes
    stderr: str


class Prompts(Protocol):
    """Prompts for the user, on the terminal."""

    def secret(self, question: str, *, echo: bool = False) -> str:
        """Prompt for a password or a code. Raises OutOfReach if there is no terminal."""

    def tell(self, text: str) -> None:
        """Print a diagnostic message (--verbose)."""


class Connection(Protocol):
    """A connection to one host, opened at its first use and reopened after it broke.

    It prompts the user once: it is not reopened if that would prompt again, or after a refused
    authentication; both raise an OutOfReach with ``is_final``.
    """

    host: str
    is_full: bool  # the server refused a second session (sshd's MaxSessions)

    def open(self) -> None:
        """Connect if necessary, and prompt the user for what that needs. Raises OutOfReach."""

    def run(
        self,
        script: str,
        *,
        stdin: Iterable[bytes] | bytes = b"",
        timeout: float = 60,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """Run a bash script to its end; if the server allows one session only, wait for it.

        Args:
            timeout: The longest time without data in either direction, in seconds.
            on_output: Called with stdout as it arrives, without a size limit. The script then ends
                with the connection, and stdin must be empty.

        Raises:
            OutOfReach: The connection failed. ``maybe_done`` is True if the whole script was sent,
                however much of stdin followed.
            Exception: Also any error of the iterable ``stdin``.
        """

    def forward_port(self, host: str, port: int) -> int:
        """Forward a local port to an address that the cluster's host can reach; return the port.

        The local port has the same number if that is free. Another call checks the forwarding, and
        restores it at the same local port after a failure.
        """

    def bridge_socket(self, script: str, here: socket.socket) -> None:
        """Connect a script's stdin and stdout to a socket, until either side closes.

        Raises:
            OutOfReach: The connection failed.
        """

    def share_options(self) -> list[str]:
        """Return options with which the system's ssh uses this connection; [] if it cannot."""

    def close(self) -> None:
        """Terminate the running scripts, and close the connection."""


class SessionLimitError(OutOfReach):
    """The server allows no further session beside the open ones."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"{host}: the server refuses another session on this connection",
            fix="wait until other commands have ended (the server's MaxSessions limits them)",
        )


class Session(Protocol):
    """A remote command with its three streams; several threads read and write it."""

    def send(self, data: bytes) -> None:
        """Write all of the data to stdin."""

    def end_input(self) -> None:
        """Close stdin."""

    def read(self) -> bytes:
        """Read from stdout; return b"" at its end."""

    def read_stderr(self) -> bytes:
        """Read from stderr; return b"" at its end."""

    def exit_code(self) -> int | None:
        """Return the exit code; None if the connection is lost first."""

    def close(self) -> None:
        """Close the session."""


def login_command(settings: SshSettings) -> str:
    """Return the command line for the remote login shell."""
    return _EXEC_LOGIN if settings.login_shell else _EXEC


def listen_on_loopback(port: int) -> socket.socket:
    """Listen on a loopback port; on any free port if it is in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def retry_until_session(connection: Connection, exchange: Callable[[], Reply]) -> Reply:
    """Call ``exchange``, which opens a session; while the server refuses one, retry."""
    until = time.monotonic() + _SESSION_WAIT_S
    while True:
        try:
            return exchange()
        except SessionLimitError:
            connection.is_full = True
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


def run_in_session(
    session: Session,
    settings: SshSettings,
    script: str,
    *,
    stdin: Iterable[bytes] | bytes = b"",
    timeout: float = 60,
    on_output: Callable[[bytes], None] | None = None,
) -> Reply:
    """Run a script in a new session of login_command(); see Connection.run."""
    if "\0" in script:
        raise ValueError("a script must not contain a NUL character")
    mark, head = _build_frame(settings, _WATCHED_FRAME if on_output else _FRAME, script)
    exchange = _ScriptExchange(session, settings.host, mark)
    exchange.start_threads(head, stdin, keeps_open=on_output is not None)
    return exchange.receive_reply(timeout, on_output)


def _build_frame(settings: SshSettings, frame: str, script: str) -> tuple[bytes, bytes]:
    """Return a random mark, and the texts that login_command() reads."""
    mark = os.urandom(16).hex()
    path = f"PATH={shlex.quote(settings.slurm_path)}:$PATH; " if settings.slurm_path else ""
    texts = _GUARD + frame.format(path=path, mark=mark), script
    return mark.encode(), b"".join(t.encode("utf-8", "surrogateescape") + b"\0" for t in texts)


def relay_sockets(here: socket.socket, there: Any) -> None:
    """Copy data between two sockets until both are closed; ``there`` has a socket's methods."""
    # close() fails on a channel of a broken connection.
    with here, contextlib.suppress(OSError, EOFError), contextlib.closing(there):
        back = threading.Thread(target=_copy_stream, args=(there, here), daemon=True)
        back.start()
        _copy_stream(here, there)
        back.join()


def _copy_stream(source: Any, sink: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(1 << 15):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)


def bridge_session(
    session: Session, settings: SshSettings, script: str, here: socket.socket
) -> None:
    """Connect a new session to a socket; see Connection.bridge_socket."""
    mark, head = _build_frame(settings, _OPEN_FRAME, script)

    def send_input() -> None:
        with contextlib.suppress(Exception):  # the read loop detects a side that is closed
            session.send(head)
            while data := here.recv(_PIECE):
                session.send(data)
            session.end_input()

    def drain_stderr() -> None:
        with contextlib.suppress(Exception):
            while session.read_stderr():
                pass

    for target in (send_input, drain_stderr):
        threading.Thread(target=target, daemon=True).start()
    begin, got = mark + b"<", b""
    with here, contextlib.closing(session), contextlib.suppress(OSError, EOFError):
        while (data := session.read()) and len(got) < MOST_CHATTER:
            if begin in got:
                here.sendall(data)
                continue
            got += data
            if begin in got:
                here.sendall(got.partition(begin)[2])
        here.shutdown(socket.SHUT_RDWR)


class _ScriptExchange:
    """The exchange for one script: a thread writes, one reads each stream, the caller evaluates."""

    def __init__(self, session: Session, host: str, mark: bytes) -> None:
        self.session = session
        self.host = host
        self.mark = mark
        self.is_sent = False  # the whole script was sent
        self.is_stopped = False
        # Items are (stream, bytes), (stream, None) at the stream's end, or an error of the given
        # stdin.
        self.events: queue.Queue[tuple[str, bytes | BaseException | None]] = queue.Queue(64)

    def start_threads(
        self, head: bytes, stdin: Iterable[bytes] | bytes, *, keeps_open: bool
    ) -> None:
        pieces = _split_input(stdin)
        for target in (
            lambda: self._read_stream("stdout", self.session.read),
            lambda: self._read_stream("stderr", self.session.read_stderr),
            lambda: self._write_input(head, pieces, keeps_open),
        ):
            threading.Thread(target=target, daemon=True).start()

    def _enqueue(self, stream: str, what: bytes | BaseException | None) -> None:
        while not self.is_stopped:
            with contextlib.suppress(queue.Full):
                self.events.put((stream, what), timeout=1)
                return

    def _read_stream(self, stream: str, read: Callable[[], bytes]) -> None:
        try:
            while data := read():
                self._enqueue(stream, data)
        except Exception:  # the connection is lost, which receive_reply() reports
            pass
        self._enqueue(stream, None)

    def _write_input(self, head: bytes, pieces: Iterator[bytes], keeps_open: bool) -> None:
        try:
            # The last byte starts the script. It is sent separately, so that is_sent is known
            # before.
            self.session.send(head[:-1])
            self.is_sent = True
            self.session.send(head[-1:])
        except Exception:
            return
        while not self.is_stopped:
            try:
                piece = next(pieces, None)
            except BaseException as error:
                self._enqueue("stdin", error)
                return
            try:
                if piece is None:
                    if not keeps_open:
                        self.session.end_input()
                    return
                self.session.send(piece)
            except (
                Exception
            ):  # the script ended without reading its stdin, or the connection is lost
                return
            self._enqueue("sent", b"")

    def receive_reply(self, timeout: float, on_output: Callable[[bytes], None] | None) -> Reply:
        collected: list[bytes] = []
        stdout = _MarkedStream(self.mark, MOST_OUTPUT if on_output is None else None)
        stderr = _MarkedStream(self.mark, MOST_STDERR, drops=True)
        streams = {"stdout": stdout, "stderr": stderr}
        errors: list[bytes] = []
        try:
            while not (stdout.is_over and (stderr.is_over or stderr.is_ended)):
                try:
                    stream, what = self.events.get(timeout=min(timeout, threading.TIMEOUT_MAX))
                except queue.Empty:
                    raise self._build_error(f"no response within {timeout:.3g} s") from None
                if isinstance(what, BaseException):
                    raise what
                if stream == "sent":
                    continue
                marked = streams[stream]
                if what is None:
                    marked.is_ended = True
                    if stdout.is_ended and stderr.is_ended and not stdout.is_over:
                        raise self._connection_error(stdout, stderr)
                    continue
                if got := marked.extract(what or b""):
                    if stream == "stderr":
                        errors.append(got)
                    elif on_output is not None:
                        on_output(got)
                    else:
                        collected.append(got)
                if marked.is_too_much:
                    raise self._build_error(f"{stream} is longer than the response can be")
            assert stdout.exit_code is not None
            text = b"".join(errors).decode("utf-8", "surrogateescape")
            return Reply(stdout.exit_code, b"".join(collected), text)
        finally:
            self.is_stopped = True
            self.session.close()

    def _build_error(self, why: str, fix: str = "") -> OutOfReach:
        return OutOfReach(f"{self.host}: {why}", fix=fix, maybe_done=self.is_sent)

    def _connection_error(self, stdout: _MarkedStream, stderr: _MarkedStream) -> OutOfReach:
        code = self.session.exit_code()
        # the wording of ssh
        if not stdout.is_begun and b"Session open refused by peer" in stderr.chatter:
            return SessionLimitError(self.host)
        if code is None:
            return self._build_error("connection lost")
        if stdout.is_begun:
            return self._build_error(f"the remote command was killed (exit code {code})")
        chatter = b"\n".join(part for part in (stderr.chatter, stdout.chatter) if part.strip())
        said = chatter.decode("utf-8", "replace").strip()[-500:]
        return OutOfReach(
            f"{self.host}: the login shell did not start bash (exit code {code})"
            + (f": {said}" if said else ""),
            fix=f"does `echo echo yes | ssh {self.host} bash` print yes? A profile there may start "
            "another shell, read stdin, or exit",
        )


def _split_input(stdin: Iterable[bytes] | bytes) -> Iterator[bytes]:
    for whole in (stdin,) if isinstance(stdin, bytes) else stdin:
        for start in range(0, len(whole), _PIECE):
            yield whole[start : start + _PIECE]


class _MarkedStream:
    """Extracts the text between the two marks of a stream, piece by piece.

    >>> marked = _MarkedStream(b"M", 9)
    >>> [marked.extract(piece) for piece in (b"hello M", b"<ab", b"c", b"dM", b">", b"1", b"2.x")]
    [b'', b'ab', b'c', b'd', b'', b'', b'']
    >>> marked.exit_code, marked.is_over, marked.chatter
    (12, True, b'hello ')
    """

    def __init__(self, mark: bytes, most: int | None, *, drops: bool = False) -> None:
        self.begin, self.end = mark + b"<", mark + b">"
        self.most, self.drops = most, drops
        self.held = b""  # possible beginning of a mark
        self.chatter = b""
        self.count = 0
        self.exit_code: int | None = None
        self.is_begun = self.is_over = self.is_ended = self.is_too_much = False

    def extract(self, data: bytes) -> bytes:
        """Return the part of a piece that lies between the marks."""
        if self.is_over:
            return b""
        data = self.held + data
        if not self.is_begun:
            self.chatter, found, data = data.partition(self.begin)
            if not found:
                self.held = self.chatter
                self.is_too_much = len(self.held) > MOST_CHATTER
                return b""
            self.is_begun = True
        got, found, after = data.partition(self.end)
        if found:
            self._parse_end_mark(after, found)
        else:
            kept = _partial_mark_length(got, self.end)
            got, self.held = got[: len(got) - kept], got[len(got) - kept :]
        self.count += len(got)
        if self.most is not None and self.count > self.most:
            self.is_too_much = not self.drops
            return b""
        return got

    def _parse_end_mark(self, after: bytes, found: bytes) -> None:
        if self.drops:  # stderr carries no exit code
            self.is_over = True
            return
        code, dot, _ = after.partition(b".")
        if dot or len(after) > 3:
            is_code = code.isdigit() and len(code) < 4
            self.exit_code, self.is_over = int(code) if is_code else 255, True
        else:
            self.held = found + after


def _partial_mark_length(data: bytes, mark: bytes) -> int:
    """Return the length of the suffix of ``data`` that may be the beginning of a mark.

    >>> [_partial_mark_length(data, b"mark>") for data in (b"", b"x", b"xma", b"mark", b"xmarx")]
    [0, 0, 2, 4, 0]
    """
    for length in range(min(len(data), len(mark) - 1), 0, -1):
        if data.endswith(mark[:length]):
            return length
    return 0
