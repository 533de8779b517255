"""Lines of a log -> events: what of them tells of a failure, of whom, and what came between.

A log of hundreds of MB is read once, block by block; only lines with one of a few words are looked
at, and the lines of a traceback one by one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import count, islice

from msgspec import Struct

from hpcrun.why.rule import ERROR, HINT, ROOT, SYMPTOM, WEAK, Rule
from hpcrun.why.rules import BEFORE, CODE_ERROR, FAR_WORDS, TRACEBACK, WORDS, compiled, match
from hpcrun.why.times import last_time, when

# The last bytes of a log, in which all words are looked for.
NEAR = 4 << 20
# So many lines that show progress separate what failed before from what failed after.
MOVED_ON = 12
# Events that are kept, the last ones; and bytes of what lies between two that are looked at.
_MOST, _BETWEEN, _TAIL = 4000, 1 << 15, 1 << 13
# Bytes before an event in which the time is looked for.
_STAMPED = 1 << 12
# Lines after the begin of a traceback that are looked at one by one, where it does not end.
_DENSE = 600
# Lines of a block that are looked at, before the last ones; a traceback is looked at always.
_LOOKS = 80
# Forms of lines that are remembered.
_FORMS, _NUMBERS = 1 << 15, b"0123456789"
# Longer lines are looked at where their word is.
_LONGEST = 4000
_TRACEBACK = "Traceback (most recent call last)"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
# What launchers, schedulers and loggers put before a line; the groups say whose it is.
_LABEL = re.compile(
    r"\[(?:rank(?:: )?|Rank ?|RANK ?|default)(?P<a>\d{1,6})\]:? ?"
    r"|\[\d{1,6},(?P<b>\d{1,6})\]\s?<std(?:err|out)>:? ?"
    r"|\s{0,6}(?P<c>\d{1,5}): (?=\S|\s{2})"
    r"|\[(?P<h1>[A-Za-z][\w.-]*):(?P<d>\d{1,3})\]:? ?"
    r"|\[\d{9,}\.\d+\] "
    r"|\[(?P<h4>(?![\w./-]*\.(?:py|cpp|cc|cu|c|h|go|rs):)[a-z][\w.-]*\d[\w.-]*):\d{4,}(?::\d+)?\] ?"
    r"|(?P<h5>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] "
    r"|\((?:[\w.<>:-]+ )?(?:pid|PID)=\d+(?:, ip=(?P<h2>[\d.]+))?[^)]{0,80}\) ?"
    r"|(?!python)(?:slurmstepd-)?(?P<h3>[a-z][\w.-]*\d): (?=\S|\s{2})"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: ?[-|,:])? ?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?: ?[-|,:])? "
    r"|std(?:err|out) [FP] "
    r"|[EIWF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]]{1,120}\] "
    r"|\[?(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO)\]?(?:\s*[-|:]:? | )"
    r"|\[[\w./-]+:\d+(?::\w+)?\] "
    r"|\[\w+\.\w[\w.]*\]\[\w+\] - "
)
# Whose failure torchrun's summary calls the first.
_FIRST_FAILURE = re.compile(
    rb"\(first observed failure\).{0,200}?host +: (?P<host>\S+).{0,80}?rank +: (?P<rank>\d+)",
    re.DOTALL,
)
# A progress bar that the error stands behind, on the same line.
_BAR = re.compile(r"^.{0,400}?(?:it/s|s/it|B/s)[^\]\r]{0,80}\]")
# Of a traceback; Ray puts the exception's own one behind the last of these.
_FRAME = (*" \t│|>╭╰└├+╮╯─", "...", "ray.exceptions.RayTaskError(")
# Where a traceback begins that ends its process.
_TOP = ("in <module>", "in _run_module_as_main", "in main")
_NAME = re.compile(r"^((?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*))(?:\([\w.]+\))?(?::(?:\s.*)?)?$")
_STRICT = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Expired|Failure|Timeout|Full|Empty|NotFound|Iteration|Died"
    r"|Abort|Aborted|Fault|Denied|Refused|Found|Group|Exc|Missing\w*|Invalid\w*|OutOf\w+|Mismatch)$"
)
_RAISED = re.compile(r"[a-z](?:Error|Exception)$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# A traceback after one of these ends no process.
_HARMLESS = (
    "Exception ignored in", "Exception ignored on", "--- Logging error", "Error in atexit",
    "exception was never retrieved", "Error waiting on exit barrier",
)  # fmt: skip
# What a logger puts before a traceback that the program has caught.
_LEVEL = re.compile(
    r"\b(?:(ERROR|CRITICAL|FATAL)|WARN(?:ING)?|INFO|DEBUG|[WI]\d{3,4} \d\d:\d\d)\b|\[[WID]\]"
)
_THREAD = "Exception in thread"
# What clears away, or does without numpy, fails aside; as do threads without code of the program.
_ASIDE = re.compile(
    r", in (?:_feed|_run_finalizers|_remove_temp_dir)$|/resource_tracker\.py\"|_ARRAY_API not found"
)
_OWN = re.compile(r'^\s*File "(?!.*(?:/lib/python\d|-packages/))')
_PROGRESS = re.compile(
    rb"\d+%\||\d(?:it/s|s/it)|\b(?:\w{1,24}[_/])?[Ll]oss\b\W{0,6}\d|\b[Ee]p(?:och|isode)\b\W{0,4}\d"
    rb"|\b[Ss]teps?\b\W{0,4}\d|\biter(?:ation)?s?\b\W{0,4}\d|tokens/s|samples/s|\[ *\d+ ?/ ?\d+ *\]"
    rb"|(?i:\b(?:acc|accuracy|auc|f1|map|psnr|ppl|perplexity|reward|score)\b\W{0,6}\d)"
)
# What wandb prints at its program's end, however that was.
_SUMMARY = re.compile(rb"(?m)^.{0,30}?wandb(?:\x1b\[0m)?:.*")
# Lines that go on with no message, and are no stack of native code, no rule and no warning.
# Lists of files, as ls, rsync and tar print them, are no messages.
_PLAIN = re.compile(
    rb"(?m)^(?!\s|frame |#\d|@|File |.*0x[0-9a-f]{6}|[-dl][-rwx]{9}|[^\s/]\S*[./]\S*$|'|removed )"
    rb"(?=.*\w).{3,200}"
)
_WARNED = re.compile(rb"(?m)^\S+(?<!resource_tracker)\.py:\d+: \w*Warning: ")
# What torchrun, DeepSpeed's launcher, wandb and TensorFlow begin with.
_LAUNCHED = re.compile(
    rb"(?:WARNING:[\w.]+:\s+\*+\s+|run\.py:\d+\] )Setting OMP_|:main\] nnodes="
    rb"|Tracking run with wandb |This TensorFlow binary is optimized"
)
_SETTINGS = re.compile(rb"(?im)^[-=*#]{3,} ?(?:[a-z]+ )*(?:config|setting|arg)\w* ?[-=*#]{3,}$")
# A launch begins with a heading of settings, or with the log's first line written again where that
# has more than _TELLING bytes. An error is known by its first _TELLING characters; one that is
# written more than _GOT_OVER times did not end the program.
_TELLING, _GOT_OVER = 16, 8
_WELL = re.compile(
    rb"(?im)training (?:is |has )?(?:completed?|finished|done|ended)|end of training\b"
    rb"|(?:finished|done|completed) training|completed successfully|finished successfully"
    rb"|train_runtime|exits successfully|training took|exit code 0\b|\bstate: completed\b"
    rb"|`?max_(?:steps|epochs)=\d+`? reached"
)
# What a batch script says of itself, however its program ended.
_DONE = re.compile(rb"(?im)^\W*(?:all )?(?:done|finished|success)\W*$")
# An error is taken back by words in its next _NEXT bytes, others of its kind at most _ROW lines
# apart, too. Where nothing else tells of an error, the log's last _LAST lines may be one.
_NEXT, _ROW, _LAST = 400, 3, 12
_TAKEN_BACK = re.compile(
    rb"(?im)^\+ true$"  # of a shell that shows what it does
    rb"|\b(?:skipp(?:ed|ing)|retry(?:ing)?|trying (?:again|another|port|with|\S+(?=\W*\n))"
    rb"|ignoring|(?:using|loading|going to) .{1,60} instead|reconnect(?:ed|ing)|continuing"
    rb"|will continue|attempt \d+ succeeded|fall(?:ing|s)? ?back)\b"
    rb"|^WARN(?:ING)?\b.{0,80}\b(?:failed|error)"
)
_SAYS_ERROR = re.compile(
    r"^(?:\[(?!E\])[^\]]{1,40}\] |&+ )*\[?(?P<name>E(?=\])|(?<=& )FAILED"
    r"|(?:Error|ERROR|FATAL|[Ff]atal|FAILED)(?=[\]:]))[\]:]*\s+(?P<why>[\"'A-Za-z].*)"
)
# Warnings end no program, however they read (NCCL calls its errors so), nor does IPython's code.
_WARNING = re.compile(
    r"^-+> \d+ |^\S+\.py:\d+: \w*Warning:"
    r"|^.{0,110}?(?:\b[A-Za-z]*[Ww]arning\b|\bWARN(?:ING)?\b|\[?W\d{3,4} \d\d:\d\d|\bNCCL INFO\b"
    r"|\[[WID](?:\]|::| \w+\.cpp:)|\b[WI] (?:tensorflow|external)/"
    r"|(?<![=\w])(?:DEBUG|TRACE|INFO)\b)"
)
# Who finds no network or library often tries again, or does without.
_TRIED_AGAIN = ("auth_network", "import")
# Rules whose lines end a process without a traceback; and those of launchers of several.
_ENDING = ("argparse", "local_rank_arg", "hydra", "syntax", "no_script", "killed")
_LAUNCHERS = ("torchrun_child", "torchrun_exit", "mpi_abort", "ray_actor", "nccl_remote_exit")


class Event(Struct, kw_only=True):
    """A line that tells of a failure. ``line`` counts from 1, by line feeds.

    ``kind`` is the rule's, less where it stands in what ends no process. ``progress`` counts the
    lines that showed progress since the event before. ``chain``: those of one chain of tracebacks
    share a number, 0 is none; ``begin`` is the line of the traceback's head, and ``ends``: it ended
    its process; ``after_all``: the training had ended well before; ``is_taken_back``: the lines
    behind it say that the program does without. ``at``: the time in the line, or in the last one
    before it that has one. ``values`` are the pattern's groups.
    """

    rule: Rule
    kind: int
    file: str
    line: int
    text: str
    rank: int | None = None
    host: str | None = None
    progress: int = 0
    chain: int = 0
    in_traceback: bool = False
    begin: int = 0
    ends: bool = False
    after_all: bool = False
    is_taken_back: bool = False
    at: tuple[bool, float] | None = None
    values: dict[str, str] = {}


class Found(Struct, kw_only=True):
    """What a log tells. ``moved_on``: progress since the last event; ``lines``: how many lines
    since, ``plain``: those with a message; ``has_warned``: Python warned among them; ``is_well``:
    it says so; ``is_done``: its script does.

    ``is_parallel``: processes of its program print side by side. ``first``: rank and host that
    torchrun reports to have failed first, the last time that it does.
    """

    events: list[Event]
    moved_on: int = 0
    is_well: bool = False
    is_done: bool = False
    lines: int = 0
    plain: int = 0
    has_warned: bool = False
    is_parallel: bool = False
    first: tuple[int, str] | None = None


_Whose = tuple[int | None, str | None]  # the rank and the host of a line


class _Open(Struct):
    """A traceback that has begun: its last line so far, and what it is part of."""

    line: int
    text: str
    prefix: re.Pattern[str] | None
    chain: int
    cap: int
    begin: int = 0
    is_top: bool | None = None
    is_frame: bool = True
    is_logged: bool = False
    is_aside: bool = False


class Reader:
    """Takes a log's blocks of whole lines, in order; then ``found`` has what it tells."""

    def __init__(self, file: str, size: int, *, first_line: int = 1, offset: int = 0) -> None:
        """``size`` is the log's length in bytes; the first block begins at ``offset``."""
        self._file, self._size = file, size
        self._line, self._offset = first_line, offset
        self._events: list[Event] = []
        self._open: dict[_Whose, _Open] = {}
        # Lines without their digits, and whether such a line is worth a look.
        self._forms: dict[bytes, bool] = {}
        self._count = 0
        self._progress, self._is_well, self._is_parallel = 0, False, False
        self._since = b""
        self._text = ""
        self._at: tuple[bool, float] | None = None
        self._chains = count(1)
        self._chained: dict[_Whose, tuple[int, int]] = {}
        self._dense = 0
        self._cap = ROOT
        self._cap_line = -10
        self._first: tuple[int, str] | None = None
        self._banner = b"\0"
        self._got_over: dict[str, int] = {}

    def read(self, block: bytes) -> None:
        """Take the next block."""
        if not self._offset:
            heading = _SETTINGS.search(block[:_TAIL].partition(TRACEBACK)[0])
            line = (heading[0] if heading else block.partition(b"\n")[0])[:_LONGEST]
            line = line.translate(None, _NUMBERS)
            is_telling = len(line.strip(b"-=*#_ ")) > _TELLING and not WORDS.search(line)
            self._banner = line if is_telling else b"\0"
        is_near = self._offset + len(block) > self._size - NEAR
        is_last = self._offset + len(block) > self._size - NEAR // 4
        starts = self._lines_with_words(block) if is_near else _lines_with_far_words(block)
        at = counted = seen = index = looked = 0
        while at < len(block):
            if self._open and self._dense > _DENSE:
                self._give_up()
            if not self._open:
                index = bisect_left(starts, at, index)
                if index == len(starts):
                    break
                at = starts[index]
                self._dense = 0
                looked += 1
            self._dense += 1
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            # Lines that differ by their numbers alone say no more than the first one.
            raw = block[at:end]
            form = raw.translate(None, _NUMBERS)
            is_known = self._forms.get(form) is False or (
                looked > _LOOKS and not is_last and TRACEBACK not in raw
            )
            if not self._open and is_known:
                at = end + 1
                continue
            self._line += block.count(b"\n", counted, at)
            counted = at
            before = block[seen:at]
            is_boring, is_event = self._look(raw, before)
            if is_event and (first := _FIRST_FAILURE.search(block, at, end + 400)):
                self._first = int(first["rank"]), first["host"].decode("utf-8", "replace")
            if is_boring:
                self._learn(form, has_word=False)
            if is_event:
                seen = end
            at = end + 1
        self._line += block.count(b"\n", counted)
        self._offset += len(block)
        is_long = len(block) - seen > 2 * _BETWEEN  # its ends, without a copy of the rest
        ends = block[seen : seen + _BETWEEN] + block[-_BETWEEN:]
        self._between(ends if is_long else block[seen:])

    def found(self) -> Found:
        """Return what the log tells; nothing comes any more."""
        self._give_up()
        self._last_words()
        return Found(
            events=self._events,
            moved_on=self._progress,
            lines=self._line - self._events[-1].line if self._events else 0,
            plain=sum(1 for line in _PLAIN.findall(self._since) if not WORDS.search(line)),
            has_warned=_WARNED.search(self._since) is not None,
            is_well=self._is_well,
            is_done=_DONE.search(self._since) is not None,
            is_parallel=self._is_parallel,
            first=self._first,
        )

    def _lines_with_words(self, block: bytes) -> list[int]:
        """List where lines with a word begin: each form of a line is searched once."""
        at, starts = 0, []
        forms = block.translate(None, _NUMBERS).split(b"\n")
        for line, form in zip(block.split(b"\n"), forms, strict=True):
            has_word = self._forms.get(form)
            if has_word is None:
                has_word = WORDS.search(form) is not None
                self._learn(form, has_word=has_word)
            if has_word:
                starts.append(at)
            at += len(line) + 1
        return starts

    def _learn(self, form: bytes, *, has_word: bool) -> None:
        if len(self._forms) < _FORMS and len(form) < _LONGEST:
            self._forms[form] = has_word

    def _give_up(self) -> None:
        """End the tracebacks that are open: they were cut off."""
        for key, open_ in self._open.items():
            self._add_exception(key, open_, open_.line, open_.text, is_cut=True)
        self._open = {}

    def _last_words(self) -> None:
        """Take the last lines for an error where they say so, and nothing else tells of one."""
        text = self._since.rstrip()
        after = self._since.count(b"\n", len(text))
        lines = text.decode("utf-8", "replace").split("\n")[-_LAST:]
        words = [_SAYS_ERROR.search(clean(line)[0]) for line in lines]
        if (self._events and self._progress < MOVED_ON) or words[-1] is None:
            return
        at, found = next((at, found) for at, found in enumerate(words) if found is not None)
        line = self._line - after - (len(lines) - 1 - at)
        self._add(CODE_ERROR, found, WEAK, line, lines[at].strip(), (None, None))

    def _between(self, text: bytes) -> None:
        """Take note of progress since the last event."""
        if self._events and not self._since and _TAKEN_BACK.search(text[:_NEXT]):
            begin = self._events[-1].line
            for event in reversed(self._events):
                if begin - event.line > _ROW or event.is_taken_back:
                    break
                event.is_taken_back, begin = True, event.begin
        if len(text) > 2 * _BETWEEN:
            text = text[:_BETWEEN] + text[-_BETWEEN:]
        if self._events and _LAUNCHED.search(text):
            self._progress += MOVED_ON
        text = _SUMMARY.sub(b"", text) if b"wandb" in text else text
        self._since = (self._since + text)[-2 * _BETWEEN :]
        if self._progress < 4 * MOVED_ON:
            self._progress += sum(1 for _ in islice(_PROGRESS.finditer(text), 4 * MOVED_ON))
            if self._events and not self._is_parallel:
                # What the log began with is written again: another launch.
                lines = b"\n" + text.translate(None, _NUMBERS)
                self._progress += MOVED_ON * (b"\n" + self._banner + b"\n" in lines)
        end = text[-_TAIL:]
        has_ended = _WELL.search(end) or (self._progress and _DONE.search(end))
        self._is_well = self._is_well or bool(has_ended)

    # ---- one line

    def _look(self, raw: bytes, before: bytes) -> tuple[bool, bool]:
        """Look at a line; return whether it says nothing, and whether it made an event."""
        is_boring, events = True, self._count
        for text in _segments(raw):
            bare, rank, host = clean(text)
            self._text, key = text, (rank, host)
            says = self._open and self._in_traceback(bare, key, before)
            says = says or self._begins(bare, text, key, before)
            says = says or self._look_up(bare, text, key, before)
            is_boring = is_boring and not says
        return is_boring, self._count > events

    def _begins(self, bare: str, text: str, key: _Whose, before: bytes) -> bool:
        """Begin a traceback, or take note of what the next one is part of."""
        if any(link in bare for link in _CHAINED):
            last = next((e for e in reversed(self._events) if (e.rank, e.host) == key), None)
            if last is not None and last.in_traceback:
                self._chained[key] = last.chain, self._line
            return True
        if any(word in bare for word in _HARMLESS) or (_THREAD in bare and '"main"' not in bare):
            self._cap = WEAK if _THREAD in bare else HINT
            self._cap_line = self._line
            return True
        at = bare.find(_TRACEBACK)
        if at < 0:
            return False
        cap = self._cap if self._line - self._cap_line <= 3 else ROOT
        is_logged = False
        if (level := _LEVEL.search(text, 0, max(text.find(_TRACEBACK), 0))) is not None:
            is_logged = level[1] is not None and cap == ROOT
            cap = min(cap, WEAK if level[1] else HINT)
        chain, line = self._chained.pop(key, (0, 0))
        if not chain or self._line - line > 5:
            chain = next(self._chains)
        head = bare[:at]
        prefix = None
        if head.strip() and not _BAR.match(head) and "%|" not in head and "─" not in head:
            prefix = re.compile(re.sub(r"\\?\d+", r"\\d+", re.escape(head)))
        if re.search(rb"(?:^|\n)Process (?!Process-1:)\S+:\s*$", before[-200:]):
            self._is_parallel = True
        self._open[key] = _Open(
            self._line, bare.strip(), prefix, chain, cap, begin=self._line, is_logged=is_logged,
            is_aside=cap == WEAK and not is_logged,
        )  # fmt: skip
        return True

    def _in_traceback(self, bare: str, key: _Whose, before: bytes) -> bool:
        """Go on with an open traceback; False: the line is not of one."""
        open_ = self._open.get(key)
        if open_ is None:
            return False
        if open_.prefix is not None and (found := open_.prefix.match(bare)):
            bare = bare[found.end() :]
        if _TRACEBACK in bare or any(link in bare for link in _CHAINED):
            return False
        if not bare.strip():
            return True
        if bare.startswith(_FRAME) and (open_.is_frame or "File " in bare or not bare[0].isspace()):
            open_.line, open_.text, open_.is_frame = self._line, bare.strip(), True
            if open_.is_top is None:  # code in quotes is often what a model or a user wrote
                open_.is_top = bare.endswith(_TOP) and '"<st' not in bare
                if "-packages/" in bare and bare.endswith("in <module>"):
                    open_.cap = HINT  # a library has caught it as it was imported
            is_aside = open_.is_aside and _OWN.match(bare) is None
            open_.is_aside = is_aside or _ASIDE.search(bare) is not None
            return True
        name = _NAME.match(bare.rstrip()) or _NAME.match(bare.partition(": ")[0] + ":")
        if name is not None:
            last = name[2]
            is_camel = last[:1].isupper() and not last.isupper()
            is_camel = is_camel and bare[len(name[1]) :][:1] in ":(" and open_.is_top is not None
            if _STRICT.search(last) or (open_.is_frame and ("." in name[1] or is_camel)):
                del self._open[key]
                self._between(before)
                self._add_exception(key, open_, self._line, bare.strip())
                return True
        open_.is_frame = False
        return False

    # ---- events

    def _look_up(self, bare: str, text: str, key: _Whose, before: bytes) -> bool:
        found = match(bare)
        if found is not None:
            (rule, values), kind = found, found[0].kind
            if kind == ERROR or (kind == ROOT and rule.cls in _TRIED_AGAIN):
                kind = WEAK  # outside of a traceback
        else:
            rule, kind, plain = CODE_ERROR, WEAK, compiled(CODE_ERROR.id).search(bare.strip())
            if plain is None or not _RAISED.search(plain["name"]):
                return False
            if (plain["why"] or "0").isdigit():
                return False  # how many there were
            values = plain
        if rule.id != "ctrl_c" and "NCCL WARN" not in text and _WARNING.match(text):
            kind = HINT
        if kind != HINT:
            self._between(before)
        self._add(rule, values, kind, self._line, bare.strip(), key)
        return True

    def _add_exception(
        self, key: _Whose, open_: _Open, line: int, text: str, *, is_cut: bool = False
    ) -> None:
        found = None if is_cut else match(text)
        rule, kind, values = CODE_ERROR, ERROR, compiled(CODE_ERROR.id).search(text)
        if found is not None:
            rule, values = found
            kind = rule.kind
        if rule is CODE_ERROR and (open_.is_aside or _ASIDE.search(text)):
            kind = HINT
        elif is_cut:
            kind = WEAK
        if re.match(r'[\w.]+: +File "', text):  # another process wrote in its midst
            self._is_parallel, kind = True, SYMPTOM
        cap = ROOT if open_.is_logged and open_.is_top else open_.cap
        self._add(rule, values, min(kind, cap), line, text, key, open_)

    def _add(
        self,
        rule: Rule,
        match: re.Match[str] | None,
        kind: int,
        line: int,
        text: str,
        key: _Whose,
        open_: _Open | None = None,
    ) -> None:
        rank, host = key
        groups = {key: value for key, value in match.groupdict().items() if value} if match else {}
        # A group that stands twice in a pattern has a number behind its name.
        values = {key.rstrip("0123456789"): value for key, value in groups.items()}
        is_parallel = rank is not None
        if "rank" in values:
            rank = int(values["rank"])
        event = Event(
            rule=rule,
            kind=kind,
            file=self._file,
            line=line,
            text=text[:_LONGEST],
            rank=rank,
            host=values.get("host", host),
            chain=open_.chain if open_ is not None else 0,
            in_traceback=open_ is not None,
            begin=(open_.begin if open_ is not None else 0) or line,
            ends=bool(open_.is_top) if open_ is not None else rule.id in _ENDING,
            is_taken_back=open_ is None and _TAKEN_BACK.search(text.encode()) is not None,
            values=values,
        )
        if kind == HINT:
            return
        if kind < rule.kind and not event.ends:
            # What comes up again and again without an end is got over.
            form = f"{rule.id} {re.sub('[0-9]', '', text[:_TELLING])}"
            self._got_over[form] = self._got_over.get(form, 0) + 1
            if self._got_over[form] > _GOT_OVER:
                self._count += 1
                return
        self._is_parallel |= (
            is_parallel or bool(rank) or (kind == SYMPTOM and rule.id in _LAUNCHERS)
        )
        event.after_all = self._is_well
        self._at = when(self._text) or last_time(self._since[-_STAMPED:]) or self._at
        event.at = self._at
        event.progress = self._progress
        self._progress, self._since, self._is_well = 0, b"", False
        self._count += 1
        self._events.append(event)
        if len(self._events) > _MOST:
            del self._events[: _MOST // 4]


# ---- the text of a line


def clean(text: str) -> tuple[str, int | None, str | None]:
    """Take off colours, a progress bar and what was put before a line; return whose it is, too.

    >>> clean("[rank3]: ValueError: no")
    ('ValueError: no', 3, None)
    >>> clean("2026-11-20 08:00:00,123 ERROR node1: 2: OSError: no")
    ('OSError: no', 2, 'node1')
    >>> clean(" 5%|#  | 5/100 [00:01<00:20, 4.70it/s]Traceback (most recent call last):")[0]
    'Traceback (most recent call last):'
    """
    rank: int | None = None
    host: str | None = None
    text = _ANSI.sub("", text) if "\x1b" in text else text
    if "it/s" in text or "s/it" in text or "B/s" in text:
        text = _BAR.sub("", text)
    for _ in range(5):
        label = _LABEL.match(text)
        if label is None:
            break
        groups = label.groupdict()
        found = groups["a"] or groups["b"] or groups["c"] or groups["d"]
        rank = int(found) if found and rank is None else rank
        host = host or next(
            (value for key, value in groups.items() if value and key[0] == "h"), None
        )
        text = text[label.end() :]
    return text, rank, host


def _segments(raw: bytes) -> Iterator[str]:
    """Give the states of a line that progress bars overwrote, those with a word; all of others."""
    raw = raw.rstrip(b"\r")
    parts = [raw]
    if b"\r" in raw:
        parts = [part for part in raw.split(b"\r") if WORDS.search(part)][-50:]
    if TRACEBACK in raw and b"\\n" in raw:  # one line of JSON
        parts = [part.rstrip(b'"}] ') for part in raw.replace(b'\\"', b'"').split(b"\\n")]
    for part in parts:
        if len(part) > _LONGEST and (found := WORDS.search(part)):
            first = 0 if found.start() < _LONGEST // 2 else found.start() - 300
            part = part[first : first + _LONGEST]
        yield part.decode("utf-8", "replace")


def _lines_with_far_words(block: bytes) -> list[int]:
    starts: set[int] = set()
    for word in (*FAR_WORDS, BEFORE) if TRACEBACK in block else FAR_WORDS[1:]:
        at, most = block.find(word), len(starts) + _LOOKS
        while at >= 0 and (len(starts) < most or word.startswith(TRACEBACK)):
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(word, end) if end >= 0 else -1
    return sorted(starts)
