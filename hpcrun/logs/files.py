"""The log files of a run, read by offset: the last lines, and appended ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.files import add_notice, open_plain
from hpcrun.ownership import other_owner
from hpcrun.patterns import pattern_of
from hpcrun.runs import RunFolder

# Without ^, which would be tried at each byte of a long log, while the first word is searched fast.
_BEGINS = re.compile(rb"hpcrun: attempt (\d+) (?:of job \S+ )?begins on ")
_CHUNK = 1 << 20
# A longer line is returned in pieces.
_LONGEST = 1 << 20
# Each read starts this many bytes before the new ones: if they changed, the file was replaced.
_OVERLAP = 64
# A piece of a long line ends between words, if its last bytes contain a blank.
_WORD = 1 << 12
# Sizes of blocks that are read backward from the end: the first and the largest.
_BLOCKS = (1 << 16, 1 << 22)


class LogFile(Struct, frozen=True):
    """A log file: of a rank, of a node (its launcher), or of the batch script.

    Attributes:
        attempt: None for the batch script's log, which all attempts share.
        task: The number in the sweep or array, if several tasks are shown together.
        is_err: The file contains stderr alone.
        there: Its path on the cluster, if ``path`` is a copy.
        role: The role in a job with several; "" for the main role, or without roles.
    """

    path: Path
    attempt: int | None = None
    node: int | None = None
    rank: int | None = None
    job_id: str | None = None
    task: str = ""
    is_err: bool = False
    there: str = ""
    role: str = ""

    @property
    def name(self) -> str:
        """The path that is shown to the user."""
        return self.there or str(self.path)

    @property
    def prefix(self) -> str:
        """The prefix of lines where several files are shown together; "" for rank 0.

        >>> LogFile(Path("x"), 0, node=1, rank=3, task="7").prefix
        '[task7 rank3]: '
        >>> LogFile(Path("x"), 0, node=2).prefix
        'node2: '
        >>> LogFile(Path("x"), 0, node=0, rank=0, role="server").prefix
        '[server]: '
        """
        if not self.task and not self.is_err and not self.rank and not self.role:
            return f"node{self.node}: " if self.node else ""
        parts = [f"task{self.task}"] if self.task else []
        parts += [self.role] if self.role else []
        if self.rank:
            parts.append(f"rank{self.rank}")
        elif self.node:
            parts.append(f"node{self.node}")
        if self.is_err:
            parts.append("stderr")
        return f"[{' '.join(parts)}]: "

    def prefixed(self, line: bytes) -> bytes:
        """Add the prefix to a line, instead of the one that torch adds to its errors.

        >>> LogFile(Path("x"), 0, node=1, rank=3).prefixed(b"[rank3]: ValueError: no")
        b'[rank3]: ValueError: no'
        """
        prefix = self.prefix.encode()
        return prefix + line.removeprefix(f"[rank{self.rank}]: ".encode()) if prefix else line


def list_role_log_files(run: RunFolder) -> list[LogFile]:
    """List the logs of the roles of a run other than the main one, as list_log_files() does."""
    return [
        structs.replace(file, role=role)
        for role in sorted(_list_names(run.path / "roles"))
        for file in list_log_files(run.for_role(role))
    ]


def list_log_files(run: RunFolder) -> list[LogFile]:
    """List a run's logs: those of ranks, then of nodes, by attempt; finally the batch script's."""
    found = []
    names = _list_names(run.logs)
    for attempt in filter(str.isdecimal, names):
        for name in _list_names(run.logs / attempt):
            match = re.fullmatch(r"(node|rank)-(\d+)\.log", name)
            if match:
                file = LogFile(run.logs / attempt / name, int(attempt))
                found.append(structs.replace(file, **{match[1]: int(match[2])}))
    found.sort(key=lambda f: (f.attempt or 0, f.rank is None, (f.node or 0) + (f.rank or 0)))
    for path, is_err in ((run.batch_log, False), (run.batch_err, True)):
        if path.name in names:
            found.append(LogFile(path, is_err=is_err))
    return found


def _list_names(folder: Path) -> list[str]:
    """List folders and regular files, without symbolic links of other users."""
    try:
        if _is_unfit(folder):
            return []
        return [entry.name for entry in os.scandir(folder) if not _is_unfit(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_unfit(entry: os.DirEntry[str] | Path) -> bool:
    is_plain = entry.is_dir() or entry.is_file()
    whose = other_owner(os.lstat(entry)) if entry.is_symlink() else ""
    if is_plain and not whose:
        return False
    if whose or os.path.lexists(entry):
        what = f"a link that belongs to {whose}" if whose else "not a regular file"
        add_notice(f"{os.fspath(entry)}: {what}: ignored")
    return True


def find_attempt(text: bytes | memoryview, attempt: int) -> tuple[int, int]:
    """Return the offsets at which an attempt starts and ends in a log; -1 is the last attempt.

    A log without any start line counts as a whole; an attempt after the last one starts at the
    log's end.

    >>> find_attempt(b"hpcrun: attempt 0 begins on n1\\nhpcrun: attempt 1 begins on n1\\n", 0)
    (0, 31)
    """
    begins = dict(_begins(text))
    if not begins:
        return 0, len(text)
    if attempt < 0:
        attempt = max(begins)
    later = [at for number, at in begins.items() if number > attempt]
    end = min(later, default=len(text))
    return begins.get(attempt, 0 if later else end), end


def find_next_attempt(data: bytes, attempt: int) -> int | None:
    """Return the offset in new lines at which a later attempt starts; None if none does."""
    return next((at for number, at in _begins(data) if number > attempt), None)


def _begins(text: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield the number of each attempt that starts, and the offset of its start line."""
    for found in _BEGINS.finditer(text):
        at = found.start()
        if at == 0 or text[at - 1] == ord("\n"):
            yield int(bytes(found[1])), at


# ---- reading -------------------------------------------------------------------------------------


def read_at(path: str | Path, offset: int, limit: int) -> bytes:
    """Read up to ``limit`` bytes from ``offset``; b"" at the end. Raises OSError."""
    with open_plain(path) as file:
        file.seek(offset)
        return file.read(limit)


def find_last_lines(
    path: Path, count: int, keep: Callable[[bytes], bool] | None = None, *, end: int | None = None
) -> int:
    """Return the offset (bytes) at which the last ``count`` lines start; 0 if there are fewer.

    Args:
        keep: Count only lines for which it is true.
        end: Count only lines before this offset.

    Raises:
        OSError: The file cannot be read.
    """
    end = path.stat().st_size if end is None else end
    if count == 0:
        return end
    block, rest, is_last, found = _BLOCKS[0], b"", True, 0
    while end > 0:
        first = max(0, end - block)
        data = read_at(path, first, end - first) + rest
        # ``rest`` is the beginning of a line whose end was in the previous block, later in the
        # file.
        at = len(data)
        if is_last and data.endswith(b"\n"):
            at -= 1
        is_last = False
        while (newline := data.rfind(b"\n", 0, at)) >= 0:
            if keep is None or keep(data[newline + 1 : at]):
                found += 1
                if found == count:
                    return first + newline + 1
            at = newline
        # Without a predicate the text of a line is not needed, however long it is.
        rest = data[:at] + b"\n" if keep is not None else b""
        is_last = keep is not None
        end, block = first, min(2 * block, _BLOCKS[1])
    return 0


class _ReadPosition:
    """The read position of a file: the offset, the bytes before it, and an incomplete line."""

    def __init__(self, offset: int = 0, seen: bytes = b"") -> None:
        self.offset = offset
        self.seen = seen
        self.rest = b""
        self.is_rewritten = False
        self.is_over = False


class Tail:
    """Splits the growth of many files into whole lines, and keeps the read position of each file.

    A line ends at a newline, and each state of a progress bar at its carriage return. A file that
    shrank, or changed before the read position, is read from its start again.

    Args:
        ends: Returns the offset in new lines at which a file ends for good, or None.
    """

    def __init__(
        self, ends: Callable[[LogFile, bytes], int | None] = lambda file, lines: None
    ) -> None:
        self._ends = ends
        self._places: dict[Path, _ReadPosition] = {}

    def start(self, file: LogFile, offset: int) -> None:
        first = max(0, offset - _OVERLAP)
        try:
            seen = read_at(file.path, first, offset - first)
        except OSError:
            return  # the file does not exist yet, and is then read from its start
        if len(seen) == offset - first:
            self._places[file.path] = _ReadPosition(offset, seen)

    def lines(self, file: LogFile, *, is_last: bool = False) -> Iterator[bytes | None]:
        """Yield new whole lines, in pieces; None precedes the lines of a rewritten file.

        Unreadable data is retried later, unless ``is_last``.
        """
        place = self._places.setdefault(file.path, _ReadPosition())
        while not place.is_over and (data := _new_bytes(file.path, place, is_last=is_last)):
            place.offset += len(data)
            place.seen = (place.seen + data)[-_OVERLAP:]
            # A carriage return at the very end may be half of a CRLF.
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            whole = place.rest + data
            if cut:
                cut += len(place.rest)
            elif len(whole) > _LONGEST:
                # Split between words, so that no secret is cut in two.
                low = len(whole) - _WORD
                cut = max(whole.rfind(blank, low) for blank in (b" ", b",", b"\t")) + 1
                cut = cut or len(whole)
            place.rest = whole[cut:]
            if (end := self._ends(file, whole[:cut])) is not None:
                place.is_over, place.rest, cut = True, b"", end
            if cut:
                if place.is_rewritten:
                    yield None
                place.is_rewritten = False
                yield whole[:cut]

    def rest(self, file: LogFile) -> bytes:
        """Return and clear a last line without a newline; b"" if there is none."""
        place = self._places.get(file.path, _ReadPosition())
        rest, place.rest = place.rest, b""
        return rest + b"\n" if rest else b""


def _new_bytes(path: Path, place: _ReadPosition, *, is_last: bool) -> bytes:
    before = len(place.seen)
    try:
        data = read_at(path, place.offset - before, _CHUNK + before)
        if not data.startswith(place.seen):
            place.offset, place.seen, place.rest, before = 0, b"", b"", 0
            place.is_rewritten = True
            data = read_at(path, 0, _CHUNK)
    except OSError:
        return b""
    data = data[before:]
    # A network file system may show a file's new length before its new bytes, as zeros.
    return data if is_last or len(data) == _CHUNK else data.rstrip(b"\0")


# ---- output on terminals: text, colours and progress bars, but no control sequences
#
# A log contains any output of programs: sequences that set the title, make the terminal send
# answers as keyboard input, clear it or switch its character set (xterm's "Control Sequences").

# C1 in UTF-8, and bidirectional controls (U+202A to 202E, 2066 to 2069).
_LATER = rb"\xc2[\x80-\x9f] | \xe2\x80[\xaa-\xae] | \xe2\x81[\xa6-\xa9]"
_CONTROLS = pattern_of(rb"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f] | " + _LATER, re.VERBOSE)
_SEQUENCE = pattern_of(
    rb"""
      \x1b \[ [0-?]*[ -/]*[@-~]                          # CSI: colours, and the cursor's moves
    | \x1b [\]PX^_] [^\x07\x1b\n]* (?: \x07 | \x1b\\ )?      # OSC, DCS, SOS, PM, APC: a string
    | \x1b [ -/]* [0-~]?                                 # others of two or three characters
    | [\x00-\x07\x0b\x0c\x0e-\x1f\x7f]                   # but backspace, tab, newline, return
    | """
    + _LATER,
    re.VERBOSE,
)
# Colours, and "erase the rest of the line", which progress bars need.
_PASSES = pattern_of(rb"\x1b\[[0-9;:]*[mK]")


def sanitize_for_terminal(data: bytes, *, colours: bool = True) -> bytes:
    r"""Remove control sequences; invalid UTF-8 becomes the replacement character.

    >>> sanitize_for_terminal(b"\x1b]0;title\x07a\x1b[31mb\x1b[2J\x1bc 10%\r20%\n")
    b'a\x1b[31mb 10%\r20%\n'
    >>> sanitize_for_terminal(b"\x1b[31mb\x9b", colours=False).decode()
    'b�'
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode()
    if _CONTROLS.search(data) is None:
        return data

    def one(found: re.Match[bytes]) -> bytes:
        text = found.group()
        return text if colours and _PASSES.fullmatch(text) else b""

    return _SEQUENCE.sub(one, data)
