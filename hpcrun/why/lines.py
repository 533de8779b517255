"""Lines of a log without colours, progress bars and the prefixes of launchers and loggers."""

from __future__ import annotations

import re

from msgspec import Struct

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
# Prefixes of launchers, schedulers and loggers. The group ``rank`` is the rank itself; ``task`` is
# srun's label: the number of a task, which is a node's if each task starts a launcher.
_LABEL = re.compile(
    r"\[(?:rank(?:: )?|Rank ?|RANK ?|default)(?P<rank>\d{1,6})\]:? ?"
    r"|\[\d{1,6},(?P<rank2>\d{1,6})\]\s?<std(?:err|out)>:? ?"
    r"|\s{0,6}(?P<task>\d{1,5}): (?=\S|\s{2})"
    r"|\[(?P<host>[A-Za-z][\w.-]*):(?P<rank3>\d{1,3})\]:? ?"
    r"|\[\d{9,}\.\d+\] "
    r"|\[(?P<host2>(?![\w./-]*\.(?:py|cpp|cc|cu|c|h|go|rs):)[a-z][\w.-]*\d[\w.-]*):\d{4,}(?::\d+)?"
    r"\] ?"
    r"|(?P<host3>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] "
    r"|\((?:[\w.<>:-]+ )?(?:pid|PID)=\d+(?:, ip=(?P<host4>[\d.]+))?[^)]{0,80}\) ?"
    r"|(?!python)(?:slurmstepd-)?(?P<host5>[a-z][\w.-]*\d): (?=\S|\s{2})"
    # Addresses and domain names, as pdsh and the deepspeed launcher write them.
    r"|(?P<host6>localhost|\d{1,3}(?:\.\d{1,3}){3}"
    r"|[a-z][\w-]*\d[\w-]*(?:\.[a-z\d][a-z\d-]*)*\.(?!(?:py|sh|cc?|cu|cpp|go|rs|so)\b)[a-z]{2,12}"
    r"|[a-z][\w-]*(?:\.[a-z\d][a-z\d-]*)*\.(?:local|localdomain|internal|lan|cluster|hpc|edu|gov)"
    r"): (?=\S|\s{2})"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: ?[-|,:])? ?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?: ?[-|,:])? "
    r"|std(?:err|out) [FP] "
    r"|[EIWF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]]{1,120}\] "
    r"|\[?(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO)\]?(?:\s*[-|:]:? | )"
    r"|\[[\w./-]+:\d+(?::\w+)?\] "
    r"|\[\w+\.\w[\w.]*\]\[\w+\] - "
)
_MAX_LABELS = 6
# A progress bar that precedes an error on the same line.
_PROGRESS_BAR = re.compile(r"^.{0,400}?(?:it/s|s/it|B/s)[^\]\r]{0,80}\]")


class LogLine(Struct, frozen=True):
    """The text of a log line and the process that wrote it, as far as its prefixes tell.

    ``is_task``: the rank is only the label of srun or a similar tool.
    """

    text: str
    rank: int | None = None
    host: str | None = None
    is_task: bool = False


def parse_line(text: str) -> LogLine:
    """Remove colours, a progress bar and prefixes from a line.

    >>> parse_line("[rank3]: ValueError: no")
    LogLine(text='ValueError: no', rank=3, host=None, is_task=False)
    >>> parse_line("2026-11-20 08:00:00,123 ERROR node1: 2: OSError: no")
    LogLine(text='OSError: no', rank=2, host='node1', is_task=True)
    >>> parse_line("10.0.0.2: [rank4]: KeyError: 3"), parse_line("1: [rank9]: KeyError: 3").rank
    (LogLine(text='KeyError: 3', rank=4, host='10.0.0.2', is_task=False), 9)
    >>> parse_line(" 5%|#  | 5/100 [00:01<00:20, 4.70it/s]Traceback (most recent call last):").text
    'Traceback (most recent call last):'
    """
    rank = task = host = None
    text = _ANSI.sub("", text) if "\x1b" in text else text
    if "it/s" in text or "s/it" in text or "B/s" in text:
        text = _PROGRESS_BAR.sub("", text)
    for _ in range(_MAX_LABELS):
        label = _LABEL.match(text)
        if label is None:
            break
        for name, value in label.groupdict().items():
            if value and name.startswith("rank"):
                rank = int(value) if rank is None else rank
            elif value and name == "task":
                task = int(value) if task is None else task
            elif value:
                host = host or value
        text = text[label.end() :]
    if rank is not None:
        return LogLine(text, rank, host)
    return LogLine(text, task, host, is_task=task is not None)
