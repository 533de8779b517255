"""Detection of progress in a training's logs: cheap, incremental, and for any log format.

A line is compared with the last one that has the same words. Numbers that changed since then are
progress, except clock times, durations, rates and amounts of memory; so no log format has to be
known. In a log without such lines, any output counts as progress.
"""

import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

# Limits for the new part of a log that is read at once, and for a line.
_GAIN_BYTES, _LINE_CHARS = 1 << 18, 2000
_TEMPLATES = 400  # number of templates that are kept per log

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][0-9A-Za-z])")
# Numbers that change without progress.
_TIMES = re.compile(
    r"""
    \b\d{2,4}[-/]\d\d[-/]\d{2,4}\b            # dates
  | \b\d\d/\d\d(?=[ ]\d\d:\d\d)
  | \b[0-3]?\d[ ]?(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b
  | \b(mon|tue|wed|thu|fri|sat|sun),?[ ]
  | \b\d+[ ]days?,?
  | \b[ti]?\d{1,4}:\d\d(:\d\d)?([.,]\d+)?z?\b       # clocks, elapsed times
  | \b\d+h[ ]?\d+m([ ]?\d+s)?\b | \b\d+m[ ]?\d+(\.\d+)?s\b
  | \b(1[0-9]{9}(\.\d+)?|1[0-9]{12})\b          # seconds and milliseconds since 1970
  | [-+]?\d[\d.,]*[ ]?[a-z]*\s?/\s?(s|sec|second|secs|it|iter|step|steps|batch|sample|min|h|hour)\b
  | \b[-+]?\d[\d.,]*[ ]?(s|sec|secs|seconds?|ms|us|ns|min|mins|minutes?|h|hrs?|hours?|d)\b
  | \b\d[\d.,]*[ ]?([kmgt]i?b(ytes)?|bytes)\b
  | 0x[0-9a-f]+
  | \b(pid|tid|thread|eta|elapsed|time|mem|memory|max[ ]mem|util|attempt|retry|retries|try|wait\w*
     |heartbeat|uptime|alive|temp\w*|power|utili[sz]ation)[a-z_]*["']?[ ]?[(:=\#]*[ ]?\d[\d.,]*%?
    """,
    re.X,
)
_NUMBER = re.compile(r"[-+]?\d[\d,_]*(\.\d+)?(e[-+]?\d+)?|(?<![a-z])(nan|inf)(?![a-z])")
# Words in lines that measure the training.
_STRONG = re.compile(
    r"(?<![a-z])(step|steps|global_?steps?|iter|iters|iteration|iterations|epoch|epochs|ep|batch"
    r"|batches|update|updates|num_updates|minibatch|tokens?|samples|episode|episodes|timesteps?"
    r"|total_timesteps)(?![a-z])|loss|perplexity|accuracy|reward|grad_?norm|%\||\d/\d+ ?\["
)
_NOISE = re.compile(
    r"retry|retri|wait|heartbeat|watchdog|time-?out|timed out|still |alive|attempt|monitor|util"
    r"|nvidia-smi|gpu ?\d* ?:|polling|keepalive|lease"
)
_STEP = re.compile(
    r"(?<![a-z])(global_?steps?|total_timesteps|num_updates|steps?|iterations?|iters?|it|updates?"
    r"|batch|minibatch)[\"']?[]\s:=#(|\[/]{1,40}(\d[\d,_]*(?:\.\d+)?(?:e\+?\d+)?)(?![\d.,_]*[ ]?%)"
)
_BAR = re.compile(r"(?<![\d./])(\d[\d,_]*)(?:\.0)?/(\d[\d,_]*)(?![\d/.])")
# Progress bars that count something other than the steps of the training.
_OTHER_BAR = re.compile(
    r"examples/s|[kmg]i?b/s|\b(map|filter|tokeni[sz]|load|download|sav|generat|fetch|eval|valid|test"
    r"|sanity|predict)[a-z]*\b"
)
_RANKS = ("global", "total", "num_u", "step", "iter", "it", "upd", "bat", "mini")


class Template(NamedTuple):
    """A line without its numbers, and the numbers."""

    words: str
    numbers: Tuple[str, ...]


def split_line(line: str) -> Template:
    """Split a line into words and numbers, without those of clocks, rates and memory.

    >>> split_line("[2026-11-20 10:00:00] step 1,950 | loss 2.5 | 3.3 it/s")
    Template(words='[ ] step # | loss # |', numbers=('1950', '2.5'))
    """
    text = _TIMES.sub(" ", line.lower())
    numbers: List[str] = []

    def note(match: "re.Match[str]") -> str:
        numbers.append(match.group().replace(",", "").replace("_", ""))
        return "#"

    text = _NUMBER.sub(note, text)
    text = "".join(char for char in text if " " <= char <= "~")
    # Progress bars grow: [=====>....]
    text = re.sub(r"([=>.\-*~+_ ])\1*", r"\1", text)
    text = re.sub(r"[=>.\-]{2,}", "=", text)
    return Template(text.strip(), tuple(numbers))


class NamedStep(NamedTuple):
    """A step that a line names, and the last words before its number."""

    step: int
    label: str


def read_named_step(line: str) -> Optional[NamedStep]:
    """Parse the step that a line names.

    Lines with the same label belong to one counter; a setting has a label of its own.

    >>> read_named_step("epoch 3, step: 1,950 loss 2.5"), read_named_step("Steps:  40%|###")
    (NamedStep(step=1950, label='epoch # step'), None)
    """
    lower = _ESCAPES.sub("", line.lower())
    best = None
    for match in _STEP.finditer(lower):
        rank = next(n for n, word in enumerate(_RANKS) if match.group(1).startswith(word))
        if best is None or rank < best[0]:
            try:
                value = float(match.group(2).replace(",", "").replace("_", ""))
            except ValueError:
                continue
            if value < 1e15 and value == int(value):
                best = (rank, int(value), match.start(2))
    if best is None:
        return None
    words = re.sub("[^a-z_#]+", " ", _NUMBER.sub("#", lower[: best[2]]))
    return NamedStep(best[1], words.strip()[-40:])


def read_step(line: str) -> Optional[int]:
    """Parse the step in a line, from words or from the count of a progress bar.

    >>> [read_step(x) for x in ("step: 1,950", "'global_step': 40", " 4%| | 40/1000 [00:12", "ok")]
    [1950, 40, 40, None]
    """
    found = read_named_step(line)
    if found is not None:
        return found.step
    bar = read_bar(line)
    return bar[0] if bar else None


def read_training_bar(line: str) -> Optional[Tuple[int, int]]:
    """Parse the count and total of a progress bar, unless it is of data, a file or an evaluation.

    >>> read_training_bar("Map:  50%|##   | 5/10 [00:01<00:01, 5.1 examples/s]")
    """
    bar = read_bar(line)
    return None if bar is None or _OTHER_BAR.search(line.lower()) else bar


def read_bar(line: str) -> Optional[Tuple[int, int]]:
    """Parse the count and total of a progress bar.

    >>> read_bar(" 4%|4         | 40/1000 [00:12<04:48,  3.3it/s]")
    (40, 1000)
    """
    if "[" not in line and "%" not in line:
        return None
    bar = _BAR.search(_TIMES.sub(" ", _ESCAPES.sub("", line.lower())))
    if bar is None:
        return None
    count, total = (int(text.replace(",", "").replace("_", "")) for text in bar.groups())
    return count, total


class Progress:
    """The progress in the lines of one log.

    ``is_known``: its lines show progress, so that other lines do not count as progress.
    """

    def __init__(self) -> None:
        self.seen: Dict[str, Template] = {}
        self.moves: Dict[str, int] = {}
        self.is_known = False
        self.step: Optional[int] = None

    def feed(self, line: str) -> bool:
        """Process a line of the log; return True if it shows progress."""
        line = _ESCAPES.sub("", line)[-_LINE_CHARS:]
        found = split_line(line)
        if not found.numbers:
            return False
        is_strong = bool(_STRONG.search(line.lower()))
        before = self.seen.pop(found.words, None)
        self.seen[found.words] = found
        if len(self.seen) > _TEMPLATES:
            oldest = next(iter(self.seen))
            del self.seen[oldest]
            self.moves.pop(oldest, None)
        if before is None:
            has_moved = is_strong
        elif before.numbers == found.numbers:
            has_moved = False
        elif is_strong or not re.search("[a-z]", found.words):
            has_moved = True
        else:
            has_moved = not _NOISE.search(line.lower()) and _counts_up(before, found)
        if has_moved:
            if is_strong:
                step = read_step(line)
                self.step = self.step if step is None else step
            count = self.moves.get(found.words, 0) + 1
            self.moves[found.words] = count
            # A full bar may belong to data loading, so the next phase may show progress
            # differently.
            if _is_complete(line):
                self.is_known = False
            elif count >= 3:
                self.is_known = True
        return has_moved


def _counts_up(before: Template, found: Template) -> bool:
    for old, new in zip(before.numbers, found.numbers):
        if old.isdecimal() and new.isdecimal() and int(new) > int(old):
            return True
    return False


def _is_complete(line: str) -> bool:
    bar = _BAR.search(line)
    return bool(bar) and bar is not None and bar.group(1) == bar.group(2) != "1"


class LogReader:
    """Reads the new part of a log."""

    def __init__(self, path: str, progress: Any = None) -> None:
        """``progress``: it gets each new line, in place of a Progress."""
        self.path = path
        self.offset = 0
        self.rest = b""
        self.progress = progress or Progress()

    def has_moved(self) -> bool:
        """Read the new part of the log; return True if it shows progress."""
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:  # truncated
                    self.offset, self.rest = 0, b""
                if size - self.offset > _GAIN_BYTES:
                    self.offset, self.rest = size - _GAIN_BYTES, b""
                    file.seek(self.offset)
                    self.offset += len(file.readline(_GAIN_BYTES))
                file.seek(self.offset)
                data = file.read(_GAIN_BYTES)
        except OSError:
            return False
        if not data:
            return False
        self.offset += len(data)
        before = self.rest
        pieces = re.split(b"[\r\n]+", before + data)
        self.rest = pieces[-1][-_GAIN_BYTES:]
        has_moved = False
        for piece in pieces:
            if piece.strip():
                has_moved |= self.progress.feed(piece.decode("utf-8", "replace"))
        # Dots, one for each batch, on a line that is not complete.
        is_longer = len(pieces) == 1 and before and not re.search(rb"[0-9A-Za-z]", data)
        return has_moved or bool(is_longer)
