"""Remove the prefixes that launchers and loggers print before a message, and read ranks and times.

Text that may be a measurement is never removed as a prefix: brackets with a counter (``[10/90]``,
``[Epoch 3]``) are kept.
"""

from __future__ import annotations

import re
from calendar import timegm

from msgspec import Struct

from hpcrun.curves.names import SPLITS
from hpcrun.patterns import pattern_of

# Colours, cursor movements, window titles and links (ECMA-48 CSI and OSC sequences, charsets).
_ESCAPES = pattern_of(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][0-9A-Z]|[=>78cDEHM])"
)

_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE|SUCCESS)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
_DATE = (
    rf"(?:\d{{4}}[-/.]\d\d[-/.]\d\d | 20\d{{6}} | \d\d(?:[-/]\d\d|[-/.]\d\d[-/.](?:\d{{4}}|\d\d))"
    rf"| (?:{_WEEKDAY},?[ ]{{1,2}})?(?:\d{{1,2}}[ -]{_MONTH} | {_MONTH}[ ]{{1,2}}\d{{1,2}})"
    r"(?:,?[ -]\d{4}|-\d\d)?)"
    r"(?:[T_|-][ ]?|[ ,]{1,2})"
)
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d{1,9}|,\d{3,9}(?![\d,]))?)?"  # a CSV's comma ends it
_HALF, _ZONE = r"[ ]?[AP]M\b", r"Z|[ ]?[+-]\d\d:?\d\d\b"

# Words of the program that may precede a colon and must not be mistaken for a host name.
_NO_HOST = r"(?!\w*(?:loss|step|iter|epoch|acc|lr|top|map|norm|val|train|batch|ppl))"
_FILE = r"[\w./-]{1,100}\.(?:py|cc|cpp|cu|rs|go)"

_PREFIX = pattern_of(
    rf"""
      \[ \d{{1,6}} , (?:mpirank:)? (?P<mpi> \d{{1,6}} ) (?:,[\w-]{{1,40}})? \]
      <std(?:out|err)> :                                # mpirun --tag-output, SageMaker
    | \[ (?:debug|info|warning|error) [ ]{{1,8}} \] (?: [ ] [^\W\d][^\W\d :-]{{0,40}}  # structlog
        (?: [ ][^\W\d]{{1,40}} ){{0,5}} (?= [ ]{{1,60}} (?:\[[\w.]{{1,60}}\][ ])? \w{{1,60}}= ) [ ]*
        (?: \[[\w.]{{1,60}}\] )? )?
    | \[\d{{1,8}}\] (?= [ ] {_LEVEL}\b ) | \d{{10}} \.\d+ (?=\s)             # a process, a time
    | 20\d\d (?: [_-]\d\d ){{5}} (?=[\s,])                                 # a time by strftime
    | \[ (?! (?i:epoch|step|iter|iteration) \] )                                  # [rank0]: [INFO]
      (?P<tag> [^\[\]]{{1,200}} ) \] (?P<colon> : )?
    | \( (?: [^()\s]{{1,80}}[ ] )? pid=\d+ (?:,[ ]ip=[\d.]+)? \)                 # ray
      (?: [ ]\[repeated[^\]]{{0,80}}\] )?
    | [┌│└][ ] (?: (?:Info|Warning):[ ]? )?                                     # Julia
    | \|[ ] (?= {_DATE} {_CLOCK} [ ]\| )                                         # | time | INFO |
    | [ ]{{0,8}} (?P<label> \d{{1,6}} ) : (?=[\s{{]) (?![ ]+[\d.]+,|\tlearn)  # srun --label
    | \d{{1,3}}(?:\.\d{{1,3}}){{3}} : (?=\s)                                     # pdsh by address
    | {_NO_HOST} [a-z][a-z0-9.-]{{0,62}}\d[a-z0-9.-]{{0,20}} : [ ]               # pdsh by name
      (?= \s* (?: [^\s\d] | \d+ (?: [/:a-z] | [ ][a-z|-] ) ) )
    | [a-z][\w.-]{{1,60}}\d [ ]{{1,20}} \| [ ] (?=\S)                            # docker compose
    | std(?:out|err) (?: : | [ ][FP] ) (?=\s)                                    # kubelet
    | (?! \w*(?:step|iter|iteration|epoch|batch|update|it)s? : )
      [\w.-]{{1,80}} : \d{{1,6}} \t                                              # OLMo's logger
    | (?: - [ ] )? [({{]? {_FILE} (?: : | \[(?:line:)? | \( | [ ](?=\d+\)) )   # a line of source
      \d{{1,6}} [\])}}]{{0,2}} (?: :\w{{1,60}} | [ ]in[ ]\w{{1,60}}[ ]-- )? :? (?=\s)
    | \( [\w./-]{{1,100}} : \d{{1,6}} \) :? (?=\s)                               # ESPnet
    | [ ]{{0,8}} [IWEFD](?:20\d\d)?\d{{4}}[ ]+\d\d:\d\d:\d\d(?:\.\d+)?           # glog, absl
      (?:[ ]+\d+)? (?:[ ]+[\w.]{{1,40}})? [ ]+[^\s\]]{{1,120}}:\d+\]
    | \[? (?P<time> {_WEEKDAY} [ ] {_MONTH} [ ]{{1,2}} \d{{1,2}} [ ] {_CLOCK}
          (?: [ ][A-Z]{{3,4}} )? [ ] \d{{4}} (?=\s)
        | (?: {_DATE} )? {_CLOCK} (?: {_HALF} )? (?: {_ZONE} | [ ]UTC )?
          (?: :(?=[A-Za-z]) | [:,]? (?= \s | \[ | {_LEVEL}\b ) )
        | {_DATE} (?={_LEVEL}\b) )
    | -[ ](?P<process> \d{{1,6}} )[ ]-[ ][\w.]{{1,80}}[ ]-[ ][\w.]{{1,80}}:\d{{1,6}}   # levanter
      [ ]-[ ]{_LEVEL}[ ]::
    | (?i: gpu|worker|process|device ) [ ]? \#? (?P<named> \d{{1,6}} ) : (?=\s)
    | [a-z_]\w{{0,40}} (?: ::\w{{1,40}} ){{1,8}} : (?=\s)                         # tracing of Rust
    | (?: [A-Za-z][\w.]{{1,40}} (?: [ ] | [ ]-[ ] | :[ ]? ) | [ ]{{1,40}} )? [\[<]? {_LEVEL}
      (?: [ ]{{0,4}} : [\w.-]{{1,80}} : | [ ]? [:>] (?: (?!\d) | (?=\d{{1,9}}-[a-z]|{_DATE}) )
        | [ ]{{0,4}} (?= \s | [|\[\]-] ) )
    | (?P<between> (?: [=*>-]{{1,4}} | \| (?! [ ]{{3}} ) ) [ \t]          # " - name - "
        (?: (?: [\w<>/-]{{1,60}} (?: \.[\w<>-]{{1,60}} ){{1,8}} (?: :[\w<>]{{1,60}} )? :\d{{1,6}}
              | [A-Za-z_<] [\w.<>/-]{{0,100}} (?: :[\w<>]{{1,60}} :\d{{1,6}}
                  | (?<=[a-z_>])[ ]-[ ]\d{{1,6}} (?=[ ]-[ ]) )?     # a function and its line
              | [^|:=\n]{{1,60}}? (?= [ ] [-|][ ] {_LEVEL} [ ] ) )
            [ \t]+ (?= [-|][ \t] ) )? )
    | (?: [\w.-]{{1,60}} [ ] )? [\w./-]{{1,60}} \[\d{{1,8}}\] : (?=\s)               # syslog
    """,
    re.VERBOSE | re.ASCII,
)
_RANK = pattern_of(
    r"(?:(?:(?:global|local|world)[ _])?rank|default|gpu|proc|process|device|worker|cuda)"
    r"[ _:=#]{0,2}(\d{1,6})",
    re.IGNORECASE | re.ASCII,
)
# Brackets that contain a step or an epoch.
_PLACE = pattern_of(
    r"\b(?:epochs?|ep|steps?|iter[a-z]{0,7}|batch|it|update)[ _-]{0,8}[:=#]?[ ]{0,8}\d"
    r"|\d[ ]{0,8}/[ ]{0,8}\d|^[\d\s,%]+$|^\d+ \| [\d.]+$|\d%\) \d",
    re.IGNORECASE | re.ASCII,
)
# A bracket that names a split ("[Diff-Val (clean)]") must not be mistaken for a source location.
_WORDS, _SOURCE = pattern_of(r"[a-z]+"), pattern_of(r"[.:\d]")
_DATED = pattern_of(r"\d{1,4}[-/]\d{1,2}[-/]\d{1,4}|\d:\d\d:\d\d")
# Suffix that the logging handlers of rich and absl print at the right edge: "   train.py:123".
_SUFFIX = pattern_of(
    r"(?:[ ]+[\w./-]{1,100}|[ ]+\([\w./: -]{1,100})\.(?:py|cc):\d{1,6}\)?$", re.ASCII
)
_MAX_PREFIXES = 14


class StrippedLine(Struct, frozen=True, gc=False):
    """A line without its prefixes, and the contents of the prefixes.

    Attributes:
        text: The message.
        rank: Rank from an unambiguous prefix (``[rank3]:``), or None.
        label: Number from a prefix that may be a rank or a count of the program (``3:``, printed by
            srun --label), or None.
        tag: Last bracket before the message that names a split (``[valid]``), in lower case.
    """

    text: str
    rank: int | None = None
    label: int | None = None
    tag: str = ""


def strip_escapes(text: str) -> str:
    """Remove escape sequences, backspaces, and the byte order mark of files from Windows.

    >>> strip_escapes("\\ufeff\\x1b[31mstep: 1\\x1b[0m\\x08")
    'step: 1'
    """
    text = text.removeprefix("\ufeff")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text.replace("\x08", "") if "\x08" in text else text


def strip_prefixes(text: str) -> StrippedLine:
    """Remove escape sequences and the text that launchers and loggers print around a message.

    At most one space is removed with each prefix, so that indented messages (code, settings) remain
    indented. After a timestamp, all spaces are removed.

    >>> strip_prefixes("[rank3]: [2026-11-20 08:04:09,098] [INFO] [train.py:7:log] step=1")
    StrippedLine(text='step=1', rank=3, label=None, tag='')
    >>> strip_prefixes("2: 2026-11-20 08:04:09 - trainer - INFO - step=1 - loss=2").text
    'step=1 - loss=2'
    >>> strip_prefixes("[1,5]<stdout>:INFO:root:[Epoch 0][Batch 99] loss=2")
    StrippedLine(text='[Epoch 0][Batch 99] loss=2', rank=5, label=None, tag='')
    """
    text = strip_escapes(text)
    start, rank, label, tag, stamped = 0, None, None, "", False
    for _ in range(_MAX_PREFIXES):
        found = _PREFIX.match(text, start)
        if found is None or (found["between"] and not start):
            break
        kind = found.lastgroup
        if inside := found["tag"]:
            dated = _DATED.search(inside) is not None
            if not dated and _PLACE.search(inside):
                if not (found["colon"] and inside.isdecimal()):
                    break
                label = int(inside)
            elif ranked := _RANK.fullmatch(inside.strip()):
                rank = int(ranked[1])
            elif not _SOURCE.search(inside):
                names = (inside.lower(), *_WORDS.findall(inside.lower()))
                tag = next((name for name in names if name in SPLITS), tag)
            stamped |= dated
        elif kind == "time":
            stamped = True
        elif kind == "between":
            name = found["between"].strip("-| \t0123456789").lower()
            tag = name if name in SPLITS else tag
        elif kind == "label":
            label = int(found["label"])
        elif kind:
            rank = int(found[kind])
        start = found.end()
        if text[start : start + 1] in (" ", "\t"):
            start += 1
    text = text[start:].strip() if stamped else text[start:].rstrip()
    if text.endswith((")", *"0123456789")) and (
        suffix := _SUFFIX.search(text, max(0, len(text) - 120))
    ):
        text = text[: suffix.start()].rstrip()
    return StrippedLine(text, rank, label, tag)


_STAMP = pattern_of(
    rf"""
    (?<![\d.:/]) (?: (?P<date> {_DATE} ) | \b[IWEFD](?P<glog> (?:20\d\d)?\d{{4}} )[ ]{{1,2}} )
    (?P<clock> {_CLOCK} ) (?P<half> {_HALF} )? (?P<zone> {_ZONE} )?
    (?: [ ](?:UTC[ ])?(?P<year> (?:19|20)\d\d )\b )?
    """,
    re.VERBOSE | re.ASCII,
)
# A time without a date is a timestamp only at the start of a line; elsewhere it is a duration.
_TIME_OF_DAY = pattern_of(
    r"(?:\x1b\[[0-9;]*m|[\s\[(]|\b(?:INFO|DEBUG|WARNING)\b){0,8}(?P<clock>\d\d:\d\d:\d\d(?:\.\d{1,9}|,\d{3,9}(?![\d,]))?)"
    r"(?=[\s\]),|:]|$)",
    re.ASCII,
)
_TIME_SEARCH_CHARACTERS = 200
_DIGITS = pattern_of(r"\d+", re.ASCII)
_MONTH_NAMED = pattern_of(_MONTH)
_DOTTED_DATE = pattern_of(r"\d\d\.\d\d\.(?:\d{4}|\d\d)(?!\d)", re.ASCII)


def find_time(text: str) -> tuple[int, int] | None:
    """Return the span of the time stamp of a line, or None.

    >>> find_time("[2026-11-20 08:04:09,098] [INFO] step 3"), find_time("eta: 08:04:09")
    ((1, 24), None)
    """
    if found := _STAMP.search(text, 0, _TIME_SEARCH_CHARACTERS):
        return found.span()
    if found := _TIME_OF_DAY.match(text):
        return found.span("clock")
    return None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LEAP_YEAR = 1972  # assumed for timestamps without a year


def read_time(text: str) -> float | None:
    """Return the time of the first stamp in a text; None if there is none, or it is invalid.

    The result is in seconds since 1970; UTC is assumed if the stamp has no zone. Without a year, it
    is in seconds since the start of a leap year; without a date, since midnight.

    >>> read_time("2026-11-20 08:04:09,098"), read_time("2026-11-20T08:04:09+01:00")
    (1795161849.098, 1795158249.0)
    >>> read_time("01/02 00:00:01"), read_time("[08:04:09]"), read_time("2026-13-20 08:04:09")
    (86401.0, 29049.0, None)
    """
    found = _STAMP.search(text, 0, _TIME_SEARCH_CHARACTERS)
    if found is None:
        alone = _TIME_OF_DAY.match(text)
        return None if alone is None else _seconds(alone["clock"])
    seconds = _seconds(found["clock"], (found["half"] or "").strip())
    days = _days(found["date"] or found["glog"], found["year"])
    if seconds is None or days is None:
        return None
    zone = (found["zone"] or "").strip().replace(":", "")
    if len(zone) == 5:
        seconds -= (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 3600 + int(zone[3:]) * 60)
    return days * 86400 + seconds


def _days(text: str, year_behind: str | None) -> int | None:
    """Return the days of a date since 1970, or since the start of a leap year; None if invalid.

    With dots, the day comes before the month. Otherwise the month is assumed to come first, unless
    that is impossible.

    >>> _days("2026-11-20", None), _days("20/11/26", None), _days("Jan  2", None)
    (20777, 20777, 1)
    >>> _days("11.10.2025", None) == _days("2025-10-11", None)
    True
    """
    parts = _DIGITS.findall(text)
    if len(parts) == 1:  # 20261120, 1120
        parts = [parts[0][:-4], parts[0][-4:-2], parts[0][-2:]]
    numbers = [int(part) for part in parts if part]
    year = int(year_behind) if year_behind else None
    if numbers[0] > 31:
        year = numbers.pop(0)
    if named := _MONTH_NAMED.search(text):
        numbers.insert(0, _MONTHS.index(named[0][:3].lower()) + 1)
    month, day, *rest = numbers
    # Dotted dates are written day first everywhere; where that is impossible, the month is first.
    is_day_first = _DOTTED_DATE.match(text) is not None and day <= 12
    if year is None and (month > 12 or is_day_first):
        month, day = day, month
    if rest:
        year = rest[0] + (2000 if rest[0] < 100 else 0)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    begin = timegm((_LEAP_YEAR, 1, 1, 0, 0, 0)) if year is None else 0
    return (timegm((year or _LEAP_YEAR, month, day, 0, 0, 0)) - begin) // 86400


def _seconds(clock: str, half: str = "") -> float | None:
    """Return the seconds since midnight."""
    hours, minutes, *rest = clock.replace(",", ".").split(":")
    hour, seconds = int(hours), float(rest[0]) if rest else 0.0
    if half:
        hour = hour % 12 + (12 if half == "PM" else 0)
    if hour > 24 or int(minutes) > 59 or seconds >= 61:
        return None
    return hour * 3600 + int(minutes) * 60 + seconds
