"""Remove the prefixes that launchers and loggers print before a message, and read ranks and times.

Text that may be a measurement is never removed as a prefix: brackets with a counter (``[10/90]``,
``[Epoch 3]``) are kept.
"""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.curves.lines.times import CLOCK, DATE, HALF, MONTH, WEEKDAY, ZONE
from hpcrun.curves.names import SPLITS
from hpcrun.patterns import pattern_of

# Colours, cursor movements, window titles and links (ECMA-48 CSI and OSC sequences, charsets).
_ESCAPES = pattern_of(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][0-9A-Z]|[=>78cDEHM])"
)

_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE|SUCCESS)"
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
    | \|[ ] (?= {DATE} {CLOCK} [ ]\| )                                         # | time | INFO |
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
    | \[? (?P<time> {WEEKDAY} [ ] {MONTH} [ ]{{1,2}} \d{{1,2}} [ ] {CLOCK}
          (?: [ ][A-Z]{{3,4}} )? [ ] \d{{4}} (?=\s)
        | (?: {DATE} )? {CLOCK} (?: {HALF} )? (?: {ZONE} | [ ]UTC )?
          (?: :(?=[A-Za-z]) | [:,]? (?= \s | \[ | {_LEVEL}\b ) )
        | {DATE} (?={_LEVEL}\b) )
    | -[ ](?P<process> \d{{1,6}} )[ ]-[ ][\w.]{{1,80}}[ ]-[ ][\w.]{{1,80}}:\d{{1,6}}   # levanter
      [ ]-[ ]{_LEVEL}[ ]::
    | (?i: gpu|worker|process|device ) [ ]? \#? (?P<named> \d{{1,6}} ) : (?=\s)
    | [a-z_]\w{{0,40}} (?: ::\w{{1,40}} ){{1,8}} : (?=\s)                         # tracing of Rust
    | (?: [A-Za-z][\w.]{{1,40}} (?: [ ] | [ ]-[ ] | :[ ]? ) | [ ]{{1,40}} )? [\[<]? {_LEVEL}
      (?: [ ]{{0,4}} : [\w.-]{{1,80}} : | [ ]? [:>] (?: (?!\d) | (?=\d{{1,9}}-[a-z]|{DATE}) )
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
# A split and the name of its data: "[val c4]", "[val.clean]", "[val_1]", "[val2]", "[test2017]";
# but neither a count ("[val 100]") nor a file, a logger or a host ("[eval.py]", "[eval.utils]",
# "[test01]", "[dev2]").
_DATA = pattern_of(
    r"(?P<split>[a-z]{3,12}) (?: [ /.] (?! (?:py|cc|cpp|cu|rs|go|set|data|results?|metrics) $ )"
    r" (?! (?<=\.) (?:utils?|helpers?|common|core|base|main|cli|app|loop|run(?:ner)?|train(?:er)?"
    r" |eval(?:uate|uator|uation)?|test(?:er)?|engine|model|log(?:ger|ging)?) $ )"
    r" (?P<named> [a-z] [\w-]{0,40} )"
    r"| (?: _ | (?<=val) | (?<=valid) | (?=(?:19|20)\d\d$) ) (?P<numbered> [1-9]\d{0,3} )"
    r"| _ (?P<worded> [a-z] [\w-]{0,40} ) )",
    re.VERBOSE | re.ASCII,
)
_DATED = pattern_of(r"\d{1,4}[-/]\d{1,2}[-/]\d{1,4}|\d:\d\d:\d\d")
# Suffix that the logging handlers of rich and absl print at the right edge: "   train.py:123".
_SUFFIX = pattern_of(
    r"(?:[ ]+[\w./-]{1,100}|[ ]+\([\w./: -]{1,100})\.(?:py|cc):\d{1,6}\)?$", re.ASCII
)
_MAX_PREFIXES = 14
_EVALUATED = ("eval", "test")


class StrippedLine(Struct, frozen=True, gc=False):
    """A line without its prefixes, and the contents of the prefixes.

    Attributes:
        text: The message.
        rank: Rank from an unambiguous prefix (``[rank3]:``), or None.
        label: Number from a prefix that may be a rank or a count of the program (``3:``, printed by
            srun --label), or None.
        tag: Last bracket before the message that names a split (``[valid]``), in lower case.
        data: Name of the data of an evaluation in that bracket (``c4`` in ``[val c4]``), or "".
    """

    text: str
    rank: int | None = None
    label: int | None = None
    tag: str = ""
    data: str = ""


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
    StrippedLine(text='step=1', rank=3, label=None, tag='', data='')
    >>> strip_prefixes("2: 2026-11-20 08:04:09 - trainer - INFO - step=1 - loss=2").text
    'step=1 - loss=2'
    >>> strip_prefixes("[1,5]<stdout>:INFO:root:[Epoch 0][Batch 99] loss=2")
    StrippedLine(text='[Epoch 0][Batch 99] loss=2', rank=5, label=None, tag='', data='')
    """
    text = strip_escapes(text)
    start, rank, label, tag, data, stamped = 0, None, None, "", "", False
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
            elif (on := _DATA.fullmatch(inside.lower())) and SPLITS.get(on["split"]) in _EVALUATED:
                tag, data = on["split"], on["named"] or on["numbered"] or on["worded"]
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
    return StrippedLine(text, rank, label, tag, data)
