"""The log files of a run, and how they are read by offset: the last lines, and what was added."""

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

# Without ^, which would be tried at each byte of a long log; the first word is searched for.
_BEGINS = re.compile(rb"hpcrun: attempt (\d+) (?:of job \S+ )?begins on ")
_CHUNK = 1 << 20
# A longer line is returned in pieces.
_LONGEST = 1 << 20
# Each read begins this many bytes before the new ones: if they changed, it is another file.
_OVERLAP = 64
# A piece of a long line ends between words, if there are any in its last bytes.
_WORD = 1 << 12
# Of what size pieces are read from the end: the first and the largest.
_BLOCKS = (1 << 16, 1 << 22)


class LogFile(Struct, frozen=True):
    """One log file: a rank's, a node's (its launcher's), or the batch script's own.

    The batch script's has no ``attempt``: it is one for all. ``task`` is the number in the sweep or
    array, if several tasks are shown together; ``is_err``: the file is for stderr alone. ``there``
    is its path on the cluster, if ``path`` is a copy.
    """

    path: Path
    attempt: int | None = None
    node: int | None = None
    rank: int | None = None
    job_id: str | None = None
    task: str = ""
    is_err: bool = False
    there: str = ""

    @property
    def name(self) -> str:
        """The path as the user knows it."""
        return self.there or str(self.path)

    @property
    def prefix(self) -> str:
        """The prefix of lines where several files are shown as one; rank 0 has none.

        >>> LogFile(Path("x"), 0, node=1, rank=3, task="7").prefix
        '[task7 rank3]: '
        >>> LogFile(Path("x"), 0, node=2).prefix
        'node2: '
        """
        if not self.task and not self.is_err and not self.rank:
            return f"node{self.node}: " if self.node else ""
        parts = [f"task{self.task}"] if self.task else []
        if self.rank:
            parts.append(f"rank{self.rank}")
        elif self.node:
            parts.append(f"node{self.node}")
        if self.is_err:
            parts.append("stderr")
        return f"[{' '.join(parts)}]: "

    def prefixed(self, line: bytes) -> bytes:
        """Put the prefix before a line; the one that torch itself puts before its errors goes.

        >>> LogFile(Path("x"), 0, node=1, rank=3).prefixed(b"[rank3]: ValueError: no")
        b'[rank3]: ValueError: no'
        """
        prefix = self.prefix.encode()
        return prefix + line.removeprefix(f"[rank{self.rank}]: ".encode()) if prefix else line


def list_log_files(run: RunFolder) -> list[LogFile]:
    """List a run's logs: attempt by attempt the ranks, then the nodes; last the batch script's."""
    found = []
    names = _names(run.logs)
    for attempt in filter(str.isdecimal, names):
        for name in _names(run.logs / attempt):
            match = re.fullmatch(r"(node|rank)-(\d+)\.log", name)
            if match:
                file = LogFile(run.logs / attempt / name, int(attempt))
                found.append(structs.replace(file, **{match[1]: int(match[2])}))
    found.sort(key=lambda f: (f.attempt or 0, f.rank is None, (f.node or 0) + (f.rank or 0)))
    return found + ([LogFile(run.batch_log)] if run.batch_log.name in names else [])


def _names(folder: Path) -> list[str]:
    """List the folders and files; what is neither, and links of somebody else's, is left out."""
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
        what = f"a link that belongs to {whose}" if whose else "not a plain file"
        add_notice(f"{os.fspath(entry)}: {what}: it is passed over")
    return True


def find_attempt(text: bytes | memoryview, attempt: int) -> tuple[int, int]:
    """Return the offsets at which an attempt begins and ends in a log; -1 is the last attempt.

    A log without any begin is all of it; an attempt after the last one begins at the log's end.

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
    """Return the offset in new lines at which a later attempt begins; None if none does."""
    return next((at for number, at in _begins(data) if number > attempt), None)


def _begins(text: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Give the number of each attempt that begins, and the offset of the line that reports it."""
    for found in _BEGINS.finditer(text):
        at = found.start()
        if at == 0 or text[at - 1] == ord("\n"):
            yield int(bytes(found[1])), at


# ---- reading them --------------------------------------------------------------------------------


def read_at(path: str | Path, offset: int, limit: int) -> bytes:
    """Read up to ``limit`` bytes from ``offset``; empty at the end. Raises OSError."""
    with open_plain(path) as file:
        file.seek(offset)
        return file.read(limit)


def find_last_lines(
    path: Path, count: int, keep: Callable[[bytes], bool] | None = None, *, end: int | None = None
) -> int:
    """Return the offset (bytes) at which the last ``count`` lines begin; 0 if there are fewer.

    Lines end at newlines; one without an end counts too. With ``keep`` only the lines for which it
    is true count; with ``end`` those before that offset. Raises OSError.
    """
    end = path.stat().st_size if end is None else end
    if count == 0:
        return end
    block, rest, is_last, found = _BLOCKS[0], b"", True, 0
    while end > 0:
        first = max(0, end - block)
        data = read_at(path, first, end - first) + rest
        # ``rest`` is the begin of a line whose end was in the block after.
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
        # Without a test the text of a line does not matter, however long it is.
        rest = data[:at] + b"\n" if keep is not None else b""
        is_last = keep is not None
        end, block = first, min(2 * block, _BLOCKS[1])
    return 0


class _Place:
    """How far a file was read: the offset, the bytes before it, and the begin of a line."""

    def __init__(self, offset: int = 0, seen: bytes = b"") -> None:
        self.offset = offset
        self.seen = seen
        self.rest = b""
        self.is_rewritten = False
        self.is_over = False


class Tail:
    """Makes whole lines of the bytes of many files; remembers how far each was read.

    A line ends at a newline, and so does each state of a progress bar at its carriage return. A
    file that became shorter, or changed where it was read before, is read from its start again.
    ``ends`` returns the offset in new lines at which a file's reading ends for good, or None.
    """

    def __init__(
        self, ends: Callable[[LogFile, bytes], int | None] = lambda file, lines: None
    ) -> None:
        self._ends = ends
        self._places: dict[Path, _Place] = {}

    def start(self, file: LogFile, offset: int) -> None:
        first = max(0, offset - _OVERLAP)
        try:
            seen = read_at(file.path, first, offset - first)
        except OSError:
            return  # it comes later, and is then read whole
        if len(seen) == offset - first:
            self._places[file.path] = _Place(offset, seen)

    def lines(self, file: LogFile, *, is_last: bool = False) -> Iterator[bytes | None]:
        """Give what is new, whole lines a piece; before those of a file that was rewritten None.

        What cannot be read now is left for later; with ``is_last`` nothing comes later.
        """
        place = self._places.setdefault(file.path, _Place())
        while not place.is_over and (data := _new_bytes(file.path, place, is_last=is_last)):
            place.offset += len(data)
            place.seen = (place.seen + data)[-_OVERLAP:]
            # A carriage return at the very end may be half of a CRLF.
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            whole = place.rest + data
            if cut:
                cut += len(place.rest)
            elif len(whole) > _LONGEST:
                # Between words: no secret is then cut in two.
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
        """Take the begin of a line that nothing will end any more; b"" where there is none."""
        place = self._places.get(file.path, _Place())
        rest, place.rest = place.rest, b""
        return rest + b"\n" if rest else b""


def _new_bytes(path: Path, place: _Place, *, is_last: bool) -> bytes:
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


# ---- what of them reaches a terminal: text, colours and progress bars, and no commands to it
#
# A log can hold whatever a program wrote: sequences that set the title, ask the terminal to answer
# on the keyboard's line, clear it or switch its alphabet (xterm's "Control Sequences").

# C1 in UTF-8, and what turns the direction of writing (U+202A to 202E, 2066 to 2069).
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
    r"""Remove the commands to a terminal; what is not UTF-8 becomes the replacement character.

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
