"""Read the times that lines print: time stamps, elapsed times of progress bars, and durations.

A time stamp is a date and a time of day, a time of day at the start of a line, or the seconds since
1970 under a key of a JSON object (``"time_ms": 1700000000000``). Times that were printed in
different ways cannot be compared, so each has a *clock*.
"""

from __future__ import annotations

import re
from calendar import timegm

from hpcrun.patterns import pattern_of

# Clocks: how a time was printed. Without a date, seconds since midnight; of a progress bar, since
# it was first drawn.
DATED, DAY_OR_MONTH_FIRST, WITHOUT_YEAR = "date", "date, day or month first", "date without year"
TIME_OF_DAY, ELAPSED = "time of day", "elapsed"

MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
DATE = (
    rf"(?:\d{{4}}[-/.]\d\d[-/.]\d\d | 20\d{{6}} | \d\d(?:[-/]\d\d|[-/.]\d\d[-/.](?:\d{{4}}|\d\d))"
    rf"| (?:{WEEKDAY},?[ ]{{1,2}})?(?:\d{{1,2}}[ -]{MONTH} | {MONTH}[ ]{{1,2}}\d{{1,2}})"
    r"(?:,?[ -]\d{4}|-\d\d)?)"
    r"(?:[T_|-][ ]?|[ ,]{1,2})"
)
CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d{1,9}|,\d{3,9}(?![\d,]))?)?"  # a CSV's comma ends it
HALF, ZONE = r"[ ]?[AP]M\b", r"Z|[ ]?[+-]\d\d:?\d\d\b"

_STAMP = pattern_of(
    rf"""
    (?<![\d.:/]) (?: (?P<date> {DATE} ) | \b[IWEFD](?P<glog> (?:20\d\d)?\d{{4}} )[ ]{{1,2}} )
    (?P<clock> {CLOCK} ) (?P<half> {HALF} )? (?P<zone> {ZONE} )?
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
_MONTH_NAMED = pattern_of(MONTH)
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
    if len(numbers) < 2:  # a counter, as in "32/32 0:00:00"
        return None
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


# Seconds or milliseconds since 1970, as MLPerf, W&B and loggers that print JSON write them.
_SINCE_1970 = pattern_of(
    r"""["'](?:_?timestamp|time_?ms|time|ts|wall_?time|unix_?time|created|asctime)["'] ?: ?"""
    r"""["']?(?P<seconds>1[4-9]\d{8})(?:(?P<ms>\d{3})(?![\d])|\.\d{1,9})?(?![\d.])""",
    re.IGNORECASE,
)
# The clock of a tqdm bar, "12/100 [00:10<01:20", or an elapsed time, "elapsed_time": "0:00:21".
_BAR_CLOCK = pattern_of(
    r"(?:\d[\w.]{0,15}(?:/(?:\d[\w.]{0,15}|\?))? \[(?=[^\[\]<,]{1,40}[<,])"
    r"|\belapsed(?:[ _]time)?[\"']?[ :=]{1,3}[\"']?)"
    r"(?P<clock>(?:\d{1,4} days?, )?\d{1,6}:\d\d(?::\d\d)?)(?![\w:.])",
    re.IGNORECASE,
)
_NUMERIC_DATE = pattern_of(r"\d\d[-/.]\d\d[-/.](?:\d{4}|\d\d)(?!\d)", re.ASCII)
_MARKED_YEAR = pattern_of(r"\d{4}|\d{2}-[A-Z]|[A-Z][a-z]+-\d\d-\d\d", re.ASCII)


def find_clock(text: str) -> tuple[str, int, int] | None:
    """Return the clock of a line and where its time begins and ends, or None.

    >>> find_clock("12/09/24 08:04:09 step 3"), find_clock("5/9 [00:10<00:08, 2.0s/it]")
    (('date, day or month first', 0, 17), ('elapsed', 5, 10))
    """
    if found := _STAMP.search(text, 0, _TIME_SEARCH_CHARACTERS):
        date = found["date"]
        if date is not None and _NUMERIC_DATE.match(date):
            return DAY_OR_MONTH_FIRST, *found.span()
        printed = found["year"] or (_MARKED_YEAR.search(date) if date else found["glog"][4:])
        return DATED if printed else WITHOUT_YEAR, *found.span()
    if found := _TIME_OF_DAY.match(text):
        return TIME_OF_DAY, *found.span("clock")
    if ("[" in text or "elapsed" in text) and (found := _BAR_CLOCK.search(text)):
        return ELAPSED, *found.span("clock")
    if ('"' in text or "'" in text) and (found := _SINCE_1970.search(text)):
        return DATED, found.start("seconds"), found.end()
    return None


def read_clock(text: str, clock: str) -> float | None:
    """Return the time in a text that contains nothing else; None if it is invalid.

    >>> read_clock("1:03:31", ELAPSED), read_clock("1700000000250", DATED)
    (3811.0, 1700000000.25)
    """
    if clock == ELAPSED:
        return read_duration(text)
    if clock == DATED and text[:10].isdecimal() and text[10:11] in ("", ".", *"0123456789"):
        return float(text) if text[10:11] in ("", ".") else float(text) / 1000
    return read_time(text)


def swap_day_and_month(seconds: float) -> float:
    """Return a time as if its day and month had been printed in the other order.

    >>> swap_day_and_month(read_time("12/09/24 10:00:00")) == read_time("09/12/24 10:00:00")
    True
    """
    year = 1970 + int(seconds // (366 * 86400))
    while timegm((year + 1, 1, 1, 0, 0, 0)) <= seconds:
        year += 1
    months = (timegm((year, month, 1, 0, 0, 0)) for month in range(1, 13))
    begin, month = max((begin, month) for month, begin in enumerate(months, 1) if begin <= seconds)
    day = int((seconds - begin) // 86400) + 1
    return seconds if day > 12 else timegm((year, day, month, 0, 0, 0)) + seconds % 86400


_DAYS_AND_CLOCK = pattern_of(
    r"(?:(?P<days>\d{1,4}) ?d(?:ays?)?,? ?)?(?:(?P<hours>\d{1,4}):)?(?P<minutes>\d{1,6}):"
    r"(?P<seconds>\d\d(?:[.,]\d{1,9})?)"
)
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = (
    r"\d{1,9}(?:\.\d{1,20})? ?(?:d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)"
)
_PARTS = pattern_of(rf"{_PART}(?:(?:, | and |,| ){{0,2}}{_PART}){{0,3}}(?![\w/])", re.IGNORECASE)
_A_PART = pattern_of(r"(\d{1,9}(?:\.\d{1,20})?) ?([dhms])", re.IGNORECASE)


def read_duration(text: str) -> float | None:
    """Return the seconds of a duration at the start of a text; None if there is none.

    >>> [read_duration(t) for t in ("1:03:31", "1 day, 2:00:00", "15m19s", "3.5 hours", "2 GB")]
    [3811.0, 93600.0, 919.0, 12600.0, None]
    """
    if clock := _DAYS_AND_CLOCK.match(text):
        days, hours, minutes = (int(clock[name] or 0) for name in ("days", "hours", "minutes"))
        seconds = float(clock["seconds"].replace(",", "."))
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    if parts := _PARTS.match(text):
        pairs = _A_PART.findall(parts.group())
        return sum(float(number) * _UNIT_SECONDS[unit.lower()] for number, unit in pairs)
    return None


# Dates of builds and files, which are not those of the log.
_OTHER_DATE = pattern_of(
    r"default,|\b(?:gcc|python|built|compiled|version|released?|modified|created|copyright)\b"
    r"|\A[dl-][rwxst-]{9}",
    re.IGNORECASE,
)
_MAX_WORDS_BEFORE_STAMP = 4


def is_log_stamp(text: str) -> bool:
    """Return True if the time stamp of a line is the time at which the line was printed.

    >>> is_log_stamp("[rank0]: 2026-11-20 08:04:09 start"), is_log_stamp("End: 2026-11-20 08:04:09")
    (True, True)
    >>> is_log_stamp("Python 3.8.10 (default, Nov 26 2021, 20:14:08)")
    False
    """
    found = find_clock(text)
    before = text[: found[1]] if found else text
    is_over = " CANCELLED AT " in before
    return is_over or (
        len(before.split()) <= _MAX_WORDS_BEFORE_STAMP and not _OTHER_DATE.search(before)
    )


_NOT_TOTAL = pattern_of(
    r"epoch ?[:#=]? ?\[?\d|(?<!\d )(?:step|iter|batch)|\b(?:per|avg|average|mean|eta|remaining|left"
    r"|estimated?|limit|load|loading|eval|evaluation|inference|test|testing|validation|saving?"
    r"|compil\w*|prefill|request|timeout|warmup|prepar\w*|download\w*|tokeniz\w*|generat\w*|init\w*)\b",
    re.IGNORECASE,
)
_TRAINING = r"(?:training|train|fine-?tuning|pre-?training)"
_TOTAL = pattern_of(
    rf"""
    (?: [^\w\n]{{0,20}} (?:[a-z-]{{1,20}}[ :!.]{{1,2}}){{0,4}}? )
    (?: (?: (?:total|overall|full|whole|entire|net)[ _-]
            (?:(?:{_TRAINING}|wall[- ]?clock|elapsed|run(?:ning)?|execution)[ ])?
          | (?:{_TRAINING}|wall[- ]?clock|elapsed|execution|job)[ ] )
        (?:run[- ]?)?(?:time|duration)
      | time[ ](?:for|of)[ ](?:the[ ])?{_TRAINING} | time[ ]elapsed | runtime | elapsed | real(?=\t)
      | (?:{_TRAINING}|job|run|program|script|experiment|\d{{1,6}}[ ]epochs|done|finished|completed)
        (?:[ ](?:has|is|was|run|loop|process|job|phase|the[ ]model|successfully)){{0,4}}
        (?:[ ](?:complete|completed|finished|done|ended|took))? [!.:,]{{0,2}}
        (?:[ ]successfully)? [ ](?:in|after|took|within) )
    (?: [ :=\t] | taken|elapsed|is|was|took|about|approximately|for|the|whole|run|training
      | \(h:m:s\) | \( (?P<unit> s|sec|seconds|min|minutes|h|hours ) \)
      | (?P<word> [ ]in[ ](?:seconds|minutes|hours) ) ){{0,12}}
    (?P<duration> \d[^\n]{{0,60}} )
    """,
    re.VERBOSE | re.IGNORECASE,
)


_SENTENCE_END = pattern_of(r"(?<=[a-z\d)]\. )(?=total )", re.IGNORECASE)


def read_total_time(text: str) -> float | None:
    """Return the seconds that a line states as the time of the whole training, or None.

    >>> read_total_time("Training time 0:15:19"), read_total_time("real\\t15m19.250s")
    (919.0, 919.25)
    >>> read_total_time("5 epochs completed in 0.5 hours."), read_total_time("total time (s): 12.5")
    (1800.0, 12.5)
    >>> read_total_time("Time for training:  54.5 s")
    54.5
    >>> read_total_time("Model trained. Best val F1: 0.75 at epoch 7. Total time: 9.5 min")
    570.0
    >>> read_total_time("Epoch 3 training time: 12 s"), read_total_time("eta: 0:15:19")
    (None, None)
    """
    if len(text) > 200:
        return None
    # The last sentence of "training complete. Best val F1: 0.75 at epoch 7. Total time: 9.9 min".
    text = _SENTENCE_END.split(text)[-1]
    found = None if _NOT_TOTAL.search(text) else _TOTAL.match(text)
    if found is None:
        return None
    seconds = read_duration(found["duration"])
    if seconds is not None or not (
        unit := found["unit"] or (found["word"] or "").removeprefix(" in ")
    ):
        return seconds
    number = _A_NUMBER.match(found["duration"])
    return float(number[0]) * _UNIT_SECONDS[unit[0].lower()] if number else None


_LAP = pattern_of(
    rf"""
    [^\w\n]{{0,20}}
    (?= (?:[\w()]{{1,20}}[ :=-]{{1,4}}){{0,6}}? (?:time|took|takes?n?|duration|spent|cost)\b )
    (?: (?: time|cost|taken?|takes|took|spent|used|elapsed|duration|{_TRAINING}|one|each|this|the
          | current|whole|for|of|per|is|was|about|approximately|epoch(?:[ ]?[\[#]?\d{{1,6}}\]?
            (?:[ ]?/[ ]?\d{{1,6}})?)?|run|iters?|iterations?|steps? ) (?:[ :=,-]{{1,6}}|\b) ){{1,9}}
    (?: \( (?P<unit> s|sec|seconds|min|minutes|h|hours ) \) [ :=]{{1,3}} )?
    (?P<duration>
        \d[\d.:]{{0,28}} (?:[ ]?[a-z]{{1,8}}\b)? (?:[ ]?\d{{1,2}}[ ]?[a-z]{{1,8}}\b){{0,2}} )
    (?: [ ](?:at|for|in|per)[ ](?:(?:the|this|current|one|each)[ ])?\w{{1,12}}(?:[ ]\d{{1,6}})?
      | ,[ ]per[ ]step[ ]time:[ ]\d[\d.]{{0,20}}[ ]?m?s )?
    [.\s)*=-]{{0,10}} \Z
    """,
    re.VERBOSE | re.IGNORECASE,
)


def read_lap_time(text: str) -> float | None:
    """Return the seconds that a line states as those of an epoch, or since the line before.

    >>> [*map(read_lap_time, ("Time: 83.5 s", "took 1m 3s", "Epoch 3 took: 250 ms"))]
    [83.5, 63.0, 0.25]
    >>> [*map(read_lap_time, ("Time: 83.5", "evaluation took 3 s", "timeout: 30 s", "5 s"))]
    [None, None, None, None]
    """
    found = _LAP.match(text) if len(text) < 120 else None
    if found is None:
        return None
    number, _, unit = found["duration"].partition(" ")
    if milliseconds := _MILLISECONDS.fullmatch(found["duration"]):
        return float(milliseconds[1]) / 1000
    if found["unit"]:
        factor = _UNIT_SECONDS[found["unit"][0].lower()]
        return float(number) * factor if not unit and _A_NUMBER.fullmatch(number) else None
    return read_duration(found["duration"])


_MILLISECONDS = pattern_of(
    r"(\d{1,12}(?:\.\d{1,20})?) ?m(?:illi)?s(?:ec(?:ond)?s?)?", re.IGNORECASE
)
_A_NUMBER = pattern_of(r"\d{1,9}(?:\.\d{1,20})?(?=\W{0,3}\Z)")

# Lines that show that a run is over.
_ENDED = pattern_of(
    rf"""
    [^\n]{{0,60}}? (?:
      \bearly[ _-]?stop(?:ping|ped)\b (?! [ _]*(?:patience|counter|callback|[=:]) )
        (?! [^\n]{{0,40}} (?:counter|patience[ _]?[:=]) )
    | stopping[ _]early\b
    | \b{_TRAINING} (?:[ ](?:has|is|was|run|loop|job)){{0,3}}
        [ _-](?:complete|completed|finished|done|ended)\b
        (?! [ ](?:epoch|step|iter|batch|at[ ]step|\d) )
    | \b(?:finished|done)[ ]training\b | \[after[ ]training[ ]is[ ]done\] )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def states_end(text: str) -> bool:
    """Return True if a line says that the training is over.

    >>> states_end("Training finished."), states_end("stopping early at step 900")
    (True, True)
    >>> states_end("EarlyStopping counter: 3 out of 5"), states_end("train epoch 3 done")
    (False, False)
    """
    return len(text) < 300 and _ENDED.match(text) is not None
