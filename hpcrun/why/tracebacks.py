"""Python tracebacks in the lines of a log, also if several processes print theirs interleaved."""

from __future__ import annotations

import re
from itertools import count

from msgspec import Struct

from hpcrun.why.lines import LogLine, parse_line

HEADER = "Traceback (most recent call last)"
# What connects the tracebacks of a chain.
_CHAIN_LINKS = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
# torch raises the exception of a worker again in the main process, with the original one behind it.
_RERAISED = re.compile(r"\bCaught [\w.]+ in .{1,80}$")
_ORIGINAL = "Original Traceback"
# How the lines of a traceback begin; Ray puts the exception itself behind the last one of these.
_FRAME_STARTS = (*" \t│|>╭╰└├+╮╯─", "...", "ray.exceptions.RayTaskError(")
# Outermost frames of a program: a traceback that begins with one ends its process.
_OUTERMOST_FRAMES = ("in <module>", "in _run_module_as_main", "in main")
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*))(?:\([\w.]+\))?(?::(?:\s.*)?)?$")
_EXCEPTION_NAME = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Expired|Failure|Timeout|Full|Empty|NotFound|Iteration|Died"
    r"|Abort|Aborted|Fault|Denied|Refused|Found|Group|Exc|Missing\w*|Invalid\w*|OutOf\w+|Mismatch)$"
)
# Failures of cleanup code, and of libraries that work without numpy, do not end a program.
_CLEANUP_FRAME = re.compile(
    r", in (?:_feed|_run_finalizers|_remove_temp_dir)$|/resource_tracker\.py\"|_ARRAY_API not found"
)
# A frame of the program itself, not of a library.
_OWN_FRAME = re.compile(r'^\s*File "(?!.*(?:/lib/python\d|-packages/))')
# Another process wrote into the line of the exception.
_TORN = re.compile(r'[\w.]+: +File "')
_PROGRESS_BAR = re.compile(r"^.{0,400}?(?:it/s|s/it|B/s)[^\]\r]{0,80}\]")
_MAX_LINES_TO_LINK = 5
# The innermost frames of a traceback that are kept.
_KEPT_FRAMES = 8

Process = tuple[int | None, str | None]
"""The rank and the host of the process that wrote a line, as far as they are known."""


class Traceback(Struct):
    """A traceback; line numbers count from 1.

    Attributes:
        begin: LogLine of its header.
        line: LogLine of the exception, or the last line so far.
        text: The exception, "" until it was read.
        chain: A number shared by the tracebacks of one exception chain.
        process: The rank and host that printed it.
        is_outermost: It contains the outermost frame of a program, so it ends its process; None
            until the first frame.
        is_cleanup: It failed in cleanup code or in a thread of a library.
        is_import_of_library: A library caught it while it was imported.
        is_cut: It ended without an exception.
        is_torn: Another process wrote into it.
        original_of: The line of the exception that raises this one again.
        frames: Its innermost frames.
    """

    begin: int
    line: int
    chain: int
    process: Process = (None, None)
    text: str = ""
    prefix: re.Pattern[str] | None = None
    is_outermost: bool | None = None
    is_cleanup: bool = False
    is_import_of_library: bool = False
    is_cut: bool = False
    is_torn: bool = False
    is_in_frames: bool = True
    original_of: int | None = None
    frames: list[str] = []

    @property
    def source(self) -> str:
        """The line of code that raised the exception; "" if Python did not print it.

        >>> frames = ['File "a.py", line 1, in f', "assert x", "^^^^^^^^"]
        >>> Traceback(begin=1, line=5, chain=1, frames=frames).source
        'assert x'
        """
        texts = [each for each in self.frames if each.strip("^~ ")]
        is_plain = len(texts) > 1 and texts[-2].startswith('File "')
        return texts[-1] if is_plain and not texts[-1].startswith('File "') else ""


class TracebackParser:
    """Collects tracebacks line by line; those of different processes may be interleaved."""

    def __init__(self) -> None:
        """Start without an open traceback."""
        self._open: dict[Process, Traceback] = {}
        self._last: dict[Process, Traceback] = {}
        self._linked: dict[Process, int] = {}
        self._chains = count(1)

    @property
    def is_inside(self) -> bool:
        """True while a traceback has not ended."""
        return bool(self._open)

    def close(self) -> list[Traceback]:
        """End the tracebacks that are open and return them: they are cut off."""
        cut = list(self._open.values())
        self._open.clear()
        for each in cut:
            each.is_cut = True
        return cut

    def link(self, line: LogLine, number: int) -> bool:
        """Remember a line that connects two tracebacks; return False for other lines."""
        if not any(link in line.text for link in _CHAIN_LINKS):
            return False
        self._linked[line.rank, line.host] = number
        return True

    def begin(self, line: LogLine, number: int, *, is_cleanup: bool = False) -> Traceback | None:
        """Begin a traceback if the line is the header of one.

        ``is_cleanup``: unless it contains a frame of the program itself, it ends no program.
        """
        at = line.text.find(HEADER)
        if at < 0:
            return None
        process = line.rank, line.host
        last, linked = self._last.get(process), self._linked.pop(process, -_MAX_LINES_TO_LINK - 1)
        chain, original_of = 0, None
        if last is not None and number - linked <= _MAX_LINES_TO_LINK:
            chain = last.chain
        head = line.text[:at]
        is_original = _ORIGINAL in line.text and last is not None
        if last is not None and is_original and _RERAISED.search(last.text):
            chain, original_of = last.chain, last.line
        prefix = None
        # Text before the header that is repeated on each line of the traceback.
        is_prefix = head.strip() and not _PROGRESS_BAR.match(head) and "%|" not in head
        if is_prefix and "─" not in head and _ORIGINAL not in line.text:
            prefix = re.compile(re.sub(r"\\?\d+", r"\\d+", re.escape(head)))
        opened = Traceback(
            begin=number,
            line=number,
            chain=chain or next(self._chains),
            process=process,
            prefix=prefix,
            is_cleanup=is_cleanup,
            original_of=original_of,
        )
        if original_of is not None and last is not None:
            opened.is_outermost, opened.begin = last.is_outermost, last.begin
        self._open[process] = opened
        return opened

    def read(self, line: LogLine, number: int) -> tuple[bool, Traceback | None]:
        """Read a line of an open traceback.

        Returns:
            Whether the line belongs to a traceback, and the traceback if the line ends it.
        """
        process = line.rank, line.host
        opened = self._open.get(process)
        if opened is None:
            return False, None
        text = line.text
        if opened.prefix is not None and (found := opened.prefix.match(text)):
            text = text[found.end() :]
        if HEADER in text or any(link in text for link in _CHAIN_LINKS):
            return False, None
        if not text.strip():
            return True, None
        is_indented = text[0].isspace()
        if text.startswith(_FRAME_STARTS) and (
            opened.is_in_frames or "File " in text or not is_indented
        ):
            _add_frame(opened, text, number)
            return True, None
        if _is_exception(text, opened):
            del self._open[process]
            self._last[process] = opened
            opened.line, opened.text = number, text.strip()
            opened.is_cleanup |= _CLEANUP_FRAME.search(opened.text) is not None
            opened.is_torn = _TORN.match(opened.text) is not None
            return True, opened
        opened.is_in_frames = False
        return False, None


def _add_frame(opened: Traceback, text: str, number: int) -> None:
    opened.line, opened.is_in_frames = number, True
    opened.frames = [*opened.frames[1 - _KEPT_FRAMES :], text.strip()]
    if opened.is_outermost is None:  # code in quotes was often written by a model or a user
        opened.is_outermost = text.endswith(_OUTERMOST_FRAMES) and '"<st' not in text
        if "-packages/" in text and text.endswith("in <module>"):
            opened.is_import_of_library = True
    is_own = _OWN_FRAME.match(text) is not None
    opened.is_cleanup = (opened.is_cleanup and not is_own) or _CLEANUP_FRAME.search(
        text
    ) is not None


def _is_exception(text: str, opened: Traceback) -> bool:
    name = _EXCEPTION.match(text.rstrip()) or _EXCEPTION.match(text.partition(": ")[0] + ":")
    if name is None:
        return False
    last = name[2]
    is_camel_case = last[:1].isupper() and not last.isupper()
    is_camel_case &= text[len(name[1]) :][:1] in (":", "(") and opened.is_outermost is not None
    is_class = opened.is_in_frames and ("." in name[1] or is_camel_case)
    return _EXCEPTION_NAME.search(last) is not None or is_class


def find_tracebacks(lines: list[str]) -> list[Traceback]:
    """List the tracebacks in the lines of a text, in the order in which they end.

    >>> text = "x|Traceback (most recent call last):|  File 'a', line 1, in f|KeyError: 3|y"
    >>> [(each.begin, each.line, each.text) for each in find_tracebacks(text.split("|"))]
    [(2, 4, 'KeyError: 3')]
    """
    parser, found = TracebackParser(), []
    for number, raw in enumerate(lines, 1):
        if not parser.is_inside and HEADER not in raw and not any(x in raw for x in _CHAIN_LINKS):
            continue
        line = parse_line(raw)
        is_read, ended = parser.read(line, number)
        found += [ended] if ended is not None else []
        if not is_read and not parser.link(line, number):
            parser.begin(line, number)
    return found + parser.close()
