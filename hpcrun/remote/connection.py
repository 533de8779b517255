"""One ssh connection to a cluster: what runs on it, and what its answers are worth.

A script travels on the stdin of ``bash``, between two marks that nobody can guess: what login
shells, banners and profiles print around them does not count. paramiko makes the connection
(by_paramiko.py), or the system's ssh (by_openssh.py).
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

# What a script may print: to stdout where it is collected, to stderr, and what comes before it.
MOST_OUTPUT, MOST_STDERR, MOST_CHATTER = 256 << 20, 1 << 20, 1 << 20
_PIECE = 1 << 15
# For how long it is waited until a session is over beside which there may be no other, in seconds.
_TURN = 30.0

# The only words that the user's login shell reads: the same in sh, csh, tcsh, fish and zsh. They
# read two texts from stdin, each up to a NUL: the frame and the script. bash reads a pipe byte by
# byte, so that the rest is left to the script.
_READ = '\'IFS= read -r -d "" frame; IFS= read -r -d "" script; eval "$frame"\' hpcrun'
_EXEC = f"exec bash --norc -c {_READ}"
_EXEC_LOGIN = f"exec bash --norc -l -c {_READ}"
# Where a profile has started another shell, it is that one's stdin which has the frame: no script.
# What a profile sets for a person (set -u) is not for scripts.
_GUARD = "[[ $script ]] || exit; set +efu; "
# The script is a process of its own: exit, exec and set -e end that one. With a watched stdin
# (there is nothing to read in it) the script ends when the connection does.
_FRAME = """\
{path}printf '%s<' {mark}; printf '%s<' {mark} >&2
( eval "$script" ); code=$?
printf '%s>' {mark} >&2; printf '%s>%d.' {mark} $code
"""
# Whose stdin and stdout are another's.
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
    """What a cluster's profile says of the way there; see Cluster for the keys."""

    host: str
    ssh: Literal["paramiko", "openssh"] = "paramiko"
    transfer_host: str | None = None
    slurm_path: str | None = None
    login_shell: bool = False


class Reply(Struct, frozen=True):
    """A script that ended."""

    exit_code: int
    stdout: bytes
    stderr: str


class Prompts(Protocol):
    """What asks the user, on the terminal."""

    def secret(self, question: str, *, echo: bool = False) -> str:
        """Ask for a password or a code; raises OutOfReach where there is nobody to ask."""

    def tell(self, text: str) -> None:
        """Say what a user wants to know who looks for a mistake (--verbose)."""


class Connection(Protocol):
    """A connection to one host, opened at the first use and kept; again after it broke.

    What a person must answer is asked once: a broken connection of that kind is not opened again.
    Nor is one that was refused. An OutOfReach with ``is_final`` says so.
    """

    host: str
    is_full: bool  # the server has refused a session beside another one (sshd's MaxSessions)

    def open(self) -> None:
        """Open it where it is not, and have the user answer what that needs. Raises OutOfReach."""

    def run(
        self,
        script: str,
        *,
        stdin: Iterable[bytes] | bytes = b"",
        timeout: float = 60,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """Run a script of bash's to its end; where it needs it, when another one has ended.

        ``timeout``: the longest time in which no byte goes either way. With ``on_output`` stdout is
        handed over as it comes, without a limit, and what still runs ends with the connection;
        stdin must be empty then.

        Raises OutOfReach; ``maybe_done`` where the whole script was sent, whatever was of stdin.
        An error of the iterable that is stdin passes through.
        """

    def forward_port(self, host: str, port: int) -> int:
        """Lead a port of this machine, which is returned, to one that the far side reaches.

        It has the same number, where that is free. Called again it looks whether the way is open,
        and opens it at the same port where it broke.
        """

    def bridge_socket(self, script: str, here: socket.socket) -> None:
        """Let a script's stdin and stdout be the other side of a socket; it ends with either.

        Raises OutOfReach.
        """

    def close(self) -> None:
        """End what runs on the connection, and the connection."""


class SessionLimitError(OutOfReach):
    """The server allows no session beside those that are open."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"{host}: the server allows no further session beside those that are open",
            fix="wait until other commands have ended (its MaxSessions is their number)",
        )


class Session(Protocol):
    """A command on the far side with its three streams; read and written by several threads."""

    def send(self, data: bytes) -> None:
        """Write to its stdin, all of it."""

    def end_input(self) -> None:
        """Close its stdin."""

    def read(self) -> bytes:
        """Read stdout; nothing at its end."""

    def read_stderr(self) -> bytes:
        """Read stderr; nothing at its end."""

    def exit_code(self) -> int | None:
        """Return how it ended; None where the connection broke first."""

    def close(self) -> None:
        """Let go of it."""


def login_command(settings: SshSettings) -> str:
    """Return the command that the far side's login shell is given."""
    return _EXEC_LOGIN if settings.login_shell else _EXEC


def listen_on_loopback(port: int) -> socket.socket:
    """Listen on a port of this machine's loopback; on another where it is taken."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def retry_until_session(connection: Connection, talk: Callable[[], Reply]) -> Reply:
    """Run what needs a session of its own; where there may be none yet, when another is over."""
    until = time.monotonic() + _TURN
    while True:
        try:
            return talk()
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
    """Run a script in a session that was just started with login_command(); see Connection.run."""
    if "\0" in script:
        raise ValueError("a script cannot have a NUL")
    mark, head = _head(settings, _WATCHED_FRAME if on_output else _FRAME, script)
    talk = _Talk(session, settings.host, mark)
    talk.start(head, stdin, keeps_open=on_output is not None)
    return talk.listen(timeout, on_output)


def _head(settings: SshSettings, frame: str, script: str) -> tuple[bytes, bytes]:
    """Make a mark, and the texts that login_command() reads."""
    mark = os.urandom(16).hex()
    path = f"PATH={shlex.quote(settings.slurm_path)}:$PATH; " if settings.slurm_path else ""
    texts = _GUARD + frame.format(path=path, mark=mark), script
    return mark.encode(), b"".join(t.encode("utf-8", "surrogateescape") + b"\0" for t in texts)


def relay_sockets(here: socket.socket, there: Any) -> None:
    """Lead a socket to another until both have ended; ``there`` has a socket's methods."""
    # Of a connection that is gone no channel can be closed.
    with here, contextlib.suppress(OSError, EOFError), contextlib.closing(there):
        back = threading.Thread(target=_copy, args=(there, here), daemon=True)
        back.start()
        _copy(here, there)
        back.join()


def _copy(source: Any, sink: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(1 << 15):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)


def bridge_session(
    session: Session, settings: SshSettings, script: str, here: socket.socket
) -> None:
    """Connect a session that was just started to a socket; see Connection.bridge_socket."""
    mark, head = _head(settings, _OPEN_FRAME, script)

    def write() -> None:
        with contextlib.suppress(Exception):  # one side is gone, which the other shows
            session.send(head)
            while data := here.recv(_PIECE):
                session.send(data)
            session.end_input()

    def drain() -> None:
        with contextlib.suppress(Exception):
            while session.read_stderr():
                pass

    for target in (write, drain):
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


class _Talk:
    """One script's exchange: a thread writes, one reads each stream, the caller's judges."""

    def __init__(self, session: Session, host: str, mark: bytes) -> None:
        self.session = session
        self.host = host
        self.mark = mark
        self.is_sent = False  # the whole script
        self.is_stopped = False
        # (stream, bytes), or (stream, None) at its end; an error of the stdin that was given.
        self.events: queue.Queue[tuple[str, bytes | BaseException | None]] = queue.Queue(64)

    def start(self, head: bytes, stdin: Iterable[bytes] | bytes, *, keeps_open: bool) -> None:
        pieces = _pieces(stdin)
        for target in (
            lambda: self._read("stdout", self.session.read),
            lambda: self._read("stderr", self.session.read_stderr),
            lambda: self._write(head, pieces, keeps_open),
        ):
            threading.Thread(target=target, daemon=True).start()

    def _put(self, stream: str, what: bytes | BaseException | None) -> None:
        while not self.is_stopped:
            with contextlib.suppress(queue.Full):
                self.events.put((stream, what), timeout=1)
                return

    def _read(self, stream: str, read: Callable[[], bytes]) -> None:
        try:
            while data := read():
                self._put(stream, data)
        except Exception:  # the connection broke: what that means the judge knows
            pass
        self._put(stream, None)

    def _write(self, head: bytes, pieces: Iterator[bytes], keeps_open: bool) -> None:
        try:
            # The last byte, which lets the script begin, is sent alone: that it was sent is known.
            self.session.send(head[:-1])
            self.is_sent = True
            self.session.send(head[-1:])
        except Exception:
            return
        while not self.is_stopped:
            try:
                piece = next(pieces, None)
            except BaseException as error:
                self._put("stdin", error)
                return
            try:
                if piece is None:
                    if not keeps_open:
                        self.session.end_input()
                    return
                self.session.send(piece)
            except Exception:  # the script has ended without reading it all, or the connection
                return
            self._put("sent", b"")

    def listen(self, timeout: float, on_output: Callable[[bytes], None] | None) -> Reply:
        collected: list[bytes] = []
        stdout = _Marked(self.mark, MOST_OUTPUT if on_output is None else None)
        stderr = _Marked(self.mark, MOST_STDERR, drops=True)
        streams = {"stdout": stdout, "stderr": stderr}
        errors: list[bytes] = []
        try:
            while not (stdout.is_over and (stderr.is_over or stderr.is_ended)):
                try:
                    stream, what = self.events.get(timeout=min(timeout, threading.TIMEOUT_MAX))
                except queue.Empty:
                    raise self._error(f"no answer in {timeout:.3g} s") from None
                if isinstance(what, BaseException):
                    raise what
                if stream == "sent":
                    continue
                marked = streams[stream]
                if what is None:
                    marked.is_ended = True
                    if stdout.is_ended and stderr.is_ended and not stdout.is_over:
                        raise self._broken(stdout, stderr)
                    continue
                if got := marked.take(what or b""):
                    if stream == "stderr":
                        errors.append(got)
                    elif on_output is not None:
                        on_output(got)
                    else:
                        collected.append(got)
                if marked.is_too_much:
                    raise self._error(f"{stream} has no end: more than was expected was printed")
            assert stdout.exit_code is not None
            text = b"".join(errors).decode("utf-8", "surrogateescape")
            return Reply(stdout.exit_code, b"".join(collected), text)
        finally:
            self.is_stopped = True
            self.session.close()

    def _error(self, why: str, fix: str = "") -> OutOfReach:
        return OutOfReach(f"{self.host}: {why}", fix=fix, maybe_done=self.is_sent)

    def _broken(self, stdout: _Marked, stderr: _Marked) -> OutOfReach:
        code = self.session.exit_code()
        if not stdout.is_begun and b"Session open refused by peer" in stderr.chatter:  # as ssh says
            return SessionLimitError(self.host)
        if code is None:
            return self._error("the connection broke")
        if stdout.is_begun:
            return self._error(f"what ran there was ended from outside (exit code {code})")
        chatter = b"\n".join(part for part in (stderr.chatter, stdout.chatter) if part.strip())
        said = chatter.decode("utf-8", "replace").strip()[-500:]
        return OutOfReach(
            f"{self.host}: the login shell ran no bash (exit code {code})"
            + (f": {said}" if said else ""),
            fix=f"does `echo echo yes | ssh {self.host} bash` print yes? A profile there may start "
            "another shell, read stdin, or exit",
        )


def _pieces(stdin: Iterable[bytes] | bytes) -> Iterator[bytes]:
    for whole in (stdin,) if isinstance(stdin, bytes) else stdin:
        for start in range(0, len(whole), _PIECE):
            yield whole[start : start + _PIECE]


class _Marked:
    """Finds what lies between the two marks of a stream, piece by piece.

    >>> marked = _Marked(b"M", 9)
    >>> [marked.take(piece) for piece in (b"hello M", b"<ab", b"c", b"dM", b">", b"1", b"2.x")]
    [b'', b'ab', b'c', b'd', b'', b'', b'']
    >>> marked.exit_code, marked.is_over, marked.chatter
    (12, True, b'hello ')
    """

    def __init__(self, mark: bytes, most: int | None, *, drops: bool = False) -> None:
        self.begin, self.end = mark + b"<", mark + b">"
        self.most, self.drops = most, drops
        self.held = b""  # what may be the start of a mark
        self.chatter = b""
        self.count = 0
        self.exit_code: int | None = None
        self.is_begun = self.is_over = self.is_ended = self.is_too_much = False

    def take(self, data: bytes) -> bytes:
        """Return what of a piece counts."""
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
            self._finish(after, found)
        else:
            kept = _overlap(got, self.end)
            got, self.held = got[: len(got) - kept], got[len(got) - kept :]
        self.count += len(got)
        if self.most is not None and self.count > self.most:
            self.is_too_much = not self.drops
            return b""
        return got

    def _finish(self, after: bytes, found: bytes) -> None:
        if self.drops:  # stderr has no code
            self.is_over = True
            return
        code, dot, _ = after.partition(b".")
        if dot or len(after) > 3:
            is_code = code.isdigit() and len(code) < 4
            self.exit_code, self.is_over = int(code) if is_code else 255, True
        else:
            self.held = found + after


def _overlap(data: bytes, mark: bytes) -> int:
    """Return how many of the last bytes may be the start of a mark.

    >>> [_overlap(data, b"mark>") for data in (b"", b"x", b"xma", b"mark", b"xmarx")]
    [0, 0, 2, 4, 0]
    """
    for length in range(min(len(data), len(mark) - 1), 0, -1):
        if data.endswith(mark[:length]):
            return length
    return 0
