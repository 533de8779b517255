"""Read a log into the events that tell of failures, and what lies between them.

A log of hundreds of MB is read once, block by block. Only lines that contain one of a few words are
examined, and every line of a traceback.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from hpcrun.why.lines import LogLine, parse_line
from hpcrun.why.rule import ERROR, HINT, ROOT, SYMPTOM, WEAK, FailureRule
from hpcrun.why.rules import BEFORE, CODE_ERROR, FAR_WORDS, TRACEBACK, WORDS, compiled, match
from hpcrun.why.times import last_time, when
from hpcrun.why.tracebacks import HEADER, Traceback, TracebackParser

# At the end of a log all words are searched; before it only those of FAR_WORDS.
NEAR_BYTES = 4 << 20
# This number of progress lines separates a failure from what happened after it.
MOVED_ON = 12
# Older events are dropped.
_MAX_EVENTS = 4000
# Of the text between two events these first and last bytes are examined.
_BETWEEN_BYTES, _END_BYTES, _FINAL_BYTES = 1 << 15, 1 << 13, 1 << 11
# A time stamp is searched in these bytes before an event.
_STAMP_BYTES = 1 << 12
# A traceback without an end is given up after this number of lines.
_MAX_TRACEBACK_LINES = 600
# Lines of a block that are examined, except in the last blocks; tracebacks are always examined.
_MAX_LINES_PER_BLOCK = 80
# Lines without their digits that are remembered as irrelevant.
_MAX_FORMS, _DIGITS = 1 << 15, b"0123456789"
# Longer lines are examined around their word only.
_MAX_LINE = 4000
# torchrun's summary: the process that failed first.
_FIRST_FAILURE = re.compile(
    rb"\(first observed failure\).{0,200}?host +: (?P<host>\S+).{0,80}?rank +: (?P<rank>\d+)",
    re.DOTALL,
)
_RAISED = re.compile(r"[a-z](?:Error|Exception)$")
# A traceback after one of these ends no process.
_HARMLESS = (
    "Exception ignored in",
    "Exception ignored on",
    "--- Logging error",
    "Error in atexit",
    "exception was never retrieved",
    "Error waiting on exit barrier",
)
_THREAD = "Exception in thread"
# The level of a logger before a traceback that the program has caught.
_LEVEL = re.compile(
    r"\b(?:(ERROR|CRITICAL|FATAL)|WARN(?:ING)?|INFO|DEBUG|[WI]\d{3,4} \d\d:\d\d)\b|\[[WID]\]"
)
# A warning on the line before a traceback, as loggers with exc_info write it.
_LOGGED_BEFORE = re.compile(rb"\d\d:\d\d.{0,200}\bWARN(?:ING)?\b|^\W*WARN(?:ING)?\b|\bWARN\w*:")
_PROGRESS = re.compile(
    rb"\d+%\||\d(?:it/s|s/it)|\b(?:\w{1,24}[_/])?[Ll]oss\b\W{0,6}\d|\b[Ee]p(?:och|isode)\b\W{0,4}\d"
    rb"|\b[Ss]teps?\b\W{0,4}\d|\biter(?:ation)?s?\b\W{0,4}\d|tokens/s|samples/s|\[ *\d+ ?/ ?\d+ *\]"
    rb"|(?i:\b(?:acc|accuracy|auc|f1|map|psnr|ppl|perplexity|reward|score)\b\W{0,6}\d)"
)
# The summary that wandb prints at the end of a program, however it ended.
_WANDB_SUMMARY = re.compile(rb"(?m)^.{0,30}?wandb(?:\x1b\[0m)?:.*")
# Messages of a program: no continuation of a message, no stack of native code, no list of files.
_MESSAGE = re.compile(
    rb"(?m)^(?!\s|frame |#\d|\d+# |@|File |.*0x[0-9a-f]{6}|[-dl][-rwx]{9}|[^\s/]\S*[./]\S*$|'"
    rb"|removed )(?=.*\w).{3,200}"
)
# Messages that programs and scripts write after a failure: uploads and teardown.
_TEARDOWN = re.compile(
    rb"(?i)upload|\bsync|transfer|rclone|rsync|\bs3\b|s3:|gs:|wandb|artifact|clean(?:ing|ed)?.?up"
    rb"|teardown|tear(?:ing)? down|shut(?:ting)? ?down|destroy|releas|\bclos(?:ing|ed|e)\b|terminat"
    rb"|kill|exit|sending|waiting|leaked|archiv|compress|backtrace|process ?group|socket|nccl|flush"
)
_PYTHON_WARNING = re.compile(rb"(?m)^\S+(?<!resource_tracker)\.py:\d+: \w*Warning: ")
# The first lines of torchrun, DeepSpeed's launcher, wandb and TensorFlow.
_LAUNCH = re.compile(
    rb"(?:WARNING:[\w.]+:\s+\*+\s+|run\.py:\d+\] )Setting OMP_|:main\] nnodes="
    rb"|Tracking run with wandb |This TensorFlow binary is optimized"
)
_SETTINGS_HEADING = re.compile(
    rb"(?im)^[-=*#]{3,} ?(?:[a-z]+ )*(?:config|setting|arg)\w* ?[-=*#]{3,}$"
)
# A launch begins with a heading of settings, or with the log's first line if that has more than
# these bytes. An error is identified by its first characters, as many.
_IDENTIFYING = 16
# So many of a log's first lines, up to its first line of progress, and so many of these that are
# written again show that the program was started again.
_HEAD_LINES, _REPEATED_LINES = 60, 5
# An error that is repeated more often did not end the program.
_MAX_REPEATS = 8
_FINISHED = re.compile(
    rb"(?im)training (?:is |has )?(?:completed?|finished|done|ended)|end of training\b"
    rb"|(?:finished|done|completed) training|completed successfully|finished successfully"
    rb"|train_runtime|exits successfully|training took|exit code 0\b|\bstate: completed\b"
    rb"|`?max_(?:steps|epochs)=\d+`? reached"
)
# The last step of all: 50000/50000.
_LAST_STEP = re.compile(rb"(?:^|[\s\[(|])(\d{2,}) ?/ ?\1(?=[\s\])|:,]|$)")
# The end of a batch script, however its program ended.
_SCRIPT_DONE = re.compile(rb"(?im)^\W*(?:all )?(?:done|finished|success)\W*$")
# An error is withdrawn by words in these bytes after it, and with it errors of its kind that are at
# most so many lines apart.
_WITHDRAWN_BYTES, _WITHDRAWN_ROWS = 400, 3
_WITHDRAWN = re.compile(
    rb"(?im)^\+ true$"  # of a shell that shows its commands
    rb"|\b(?:skipp(?:ed|ing)|retry(?:ing)?|trying (?:again|another|port|with|\S+(?=\W*\n))"
    rb"|ignoring|(?:using|loading|going to) .{1,60} instead|reconnect(?:ed|ing)|continuing"
    rb"|will continue|attempt \d+ succeeded|fall(?:ing|s)? ?back)\b"
    rb"|^WARN(?:ING)?\b.{0,80}\b(?:failed|error)"
)
# If there is no other event, one of these last lines may be an error.
_LAST_LINES = 12
_ERROR_LINE = re.compile(
    r"^(?:\[(?!E\])[^\]]{1,40}\] |&+ )*\[?(?P<name>E(?=\])|(?<=& )FAILED"
    r"|(?:Error|ERROR|FATAL|[Ff]atal|FAILED)(?=[\]:]))[\]:]*\s+(?P<why>[\"'A-Za-z].*)"
)
# Warnings end no program, whatever they say, nor do the lines of code that IPython shows.
_WARNING_LEVEL = re.compile(
    r"\b[A-Za-z]*[Ww]arning\b|\bWARN(?:ING)?\b|\[?W\d{3,4} \d\d:\d\d|\bNCCL INFO\b"
    r"|\[[WID](?:\]|::| \w+\.cpp:)|\b[WI] (?:tensorflow|external)/"
    r"|(?<![=\w])(?:DEBUG|TRACE|INFO)\b"
)
_WARNING_LINE = re.compile(
    r"^-+> \d+ |^\S+\.py:\d+: \w*Warning:"
    r"|(?i:[\"']?\b(?:level|levelname|severity)[\"']?\s*[:=]\s*[\"']?(?:warn(?:ing)?|info|debug)\b)"
)
# Further on in a line a level counts only if it precedes the error.
_LEVEL_COLUMN = 110
# Programs often retry, or work without a network or a library.
_OPTIONAL = ("auth_network", "import")
# Lines of progress after which a program is alive.
_STEPS_OF_ALIVE = 3
# Connection errors that a program retried; the exception that ends it may not name them.
_CONNECTION_TROUBLE = re.compile(
    r"(?i)connection (?:reset|aborted|refused|error|timed out|broken)|connect ?timeout"
    r"|read ?timed? ?out|max retries exceeded|remote end closed|server disconnected|name resolution"
    r"|\b50[234]\b.{0,30}(?:error|gateway|unavailable)|failed to establish|protocolerror"
    r"|network is unreachable"
)
# Rules whose lines end a process without a traceback; and those of launchers of several processes.
_ENDING = ("argparse", "local_rank_arg", "hydra", "syntax", "no_script", "killed")
_LAUNCHER_RULES = ("torchrun_child", "torchrun_exit", "mpi_abort", "ray_actor", "nccl_remote_exit")
# Headings of a script's stages: "=== Stage 2/3: finetune ===". A log with more of them than
# _MAX_STAGES has no stages.
_STAGE_WORDS = (b"tage ", b"tage_", b"TAGE ", b"hase ", b"HASE ")
_MAX_STAGES = 50
_STAGE = re.compile(
    rb"^(?:[^\w\n]|\d|(?:INFO|starting|start|running|begin|beginning) ){0,60}"
    rb"(?:[Ss]tage|STAGE|[Pp]hase|PHASE)[ _]?(?P<number>\d{1,2})(?: ?(?:/|of) ?\d{1,2})?"
    rb"(?:[\])]?(?:[:.,-]| -)? *(?P<name>[A-Za-z][\w .-]{0,40}?))?[^\w\n]*$"
)


class LogEvent(Struct, kw_only=True):
    """A line that tells of a failure; lines count from 1.

    Attributes:
        kind: That of the rule, or less if the line stands where it ends no process.
        is_task: ``rank`` is only the label of srun, a task's number.
        progress: Lines of progress since the event before; a new launch counts as MOVED_ON.
        steps: Lines of progress alone, as far as they were counted.
        messages: Lines with other messages since the event before.
        is_relaunched: A launch began since the event before.
        is_rerun: The log's first lines were written again since the event before: the same program.
        chain: Shared by the tracebacks of one chain; 0 for lines outside of tracebacks.
        begin: The header of the traceback, else the line itself.
        ends: It ended its process.
        after_finish: The training had finished before.
        is_withdrawn: The next lines say that the program works without what failed.
        at: The time of the line, or of the last line before it that has one.
        values: The groups of the pattern.
        connection_error: The last connection error before the exception, if the program made no
            progress after it.
    """

    rule: FailureRule
    kind: int
    file: str
    line: int
    text: str
    rank: int | None = None
    host: str | None = None
    is_task: bool = False
    progress: int = 0
    steps: int = 0
    messages: int = 0
    is_relaunched: bool = False
    is_rerun: bool = False
    chain: int = 0
    in_traceback: bool = False
    begin: int = 0
    ends: bool = False
    after_finish: bool = False
    is_withdrawn: bool = False
    at: tuple[bool, float] | None = None
    values: dict[str, str] = {}
    connection_error: LogEvent | None = None


class Stage(Struct, frozen=True):
    """A heading of a script's stage."""

    line: int
    number: int
    name: str = ""


class LogFindings(Struct, kw_only=True):
    """The events of a log, and what comes after the last of them.

    Attributes:
        progress: Lines of progress after the last event; a new launch counts as MOVED_ON.
        is_relaunched: A launch began after the last event.
        is_finished: The training says that it finished; ``is_script_done``: its script does.
        lines: Lines after the last event; ``messages``: those with a message.
        has_python_warning: Python warned after the last event.
        is_parallel: Several processes write into the log.
        first_failure: The rank and host that torchrun last reported as the first failure.
        stages: The headings of stages.
    """

    events: list[LogEvent]
    progress: int = 0
    is_relaunched: bool = False
    is_finished: bool = False
    is_script_done: bool = False
    lines: int = 0
    messages: int = 0
    has_python_warning: bool = False
    is_parallel: bool = False
    first_failure: tuple[int, str] | None = None
    stages: list[Stage] = []


class LogReader:
    """Reads the blocks of a log in order; each consists of whole lines."""

    def __init__(self, file: str, size: int, *, first_line: int = 1, offset: int = 0) -> None:
        """``size``: bytes of the log; ``offset``: where its first block begins."""
        self._file, self._size = file, size
        self._line, self._offset = first_line, offset
        self._events: list[LogEvent] = []
        self._tracebacks = TracebackParser()
        self._contexts: dict[int, tuple[int, bool]] = {}
        # Lines without their digits, and whether such a line is to be examined.
        self._forms: dict[bytes, bool] = {}
        self._count = 0
        self._progress, self._is_finished, self._is_parallel = 0, False, False
        self._is_relaunched = self._is_rerun = False
        self._since = b""
        self._text = ""
        self._at: tuple[bool, float] | None = None
        self._traceback_lines = 0
        # The most that the next traceback tells, by what announced it on which line.
        self._cap, self._cap_line = ROOT, -10
        self._first_failure: tuple[int, str] | None = None
        self._banner = b"\0"
        self._head: frozenset[bytes] = frozenset()
        self._repeats: dict[str, int] = {}
        self._connection_error: LogEvent | None = None
        self._stages: list[Stage] = []

    def read(self, block: bytes) -> None:
        """Read the next block."""
        if not self._offset:
            self._banner, self._head = _find_banner(block), _find_head(block)
        is_near = self._offset + len(block) > self._size - NEAR_BYTES
        is_last = self._offset + len(block) > self._size - NEAR_BYTES // 4
        if is_near:
            self._find_stages(block)
        starts = self._lines_with_words(block) if is_near else _lines_with_far_words(block)
        at = counted = seen = index = examined = 0
        while at < len(block):
            if self._tracebacks.is_inside and self._traceback_lines > _MAX_TRACEBACK_LINES:
                self._close_tracebacks()
            if not self._tracebacks.is_inside:
                index = bisect_left(starts, at, index)
                if index == len(starts):
                    break
                at = starts[index]
                self._traceback_lines = 0
                examined += 1
            self._traceback_lines += 1
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            # Of lines that differ by their digits only the first one is examined.
            raw = block[at:end]
            form = raw.translate(None, _DIGITS)
            is_known = self._forms.get(form) is False or (
                examined > _MAX_LINES_PER_BLOCK and not is_last and TRACEBACK not in raw
            )
            if not self._tracebacks.is_inside and is_known:
                at = end + 1
                continue
            self._line += block.count(b"\n", counted, at)
            counted = at
            before = block[seen:at]
            is_irrelevant, is_event = self._examine_line(raw, before)
            if is_event and (first := _FIRST_FAILURE.search(block, at, end + 400)):
                host = first["host"].decode("utf-8", "replace")
                self._first_failure = int(first["rank"]), host
            if is_irrelevant:
                self._remember_form(form, has_word=False)
            if is_event:
                seen = end
            at = end + 1
        self._line += block.count(b"\n", counted)
        self._offset += len(block)
        is_long = len(block) - seen > 2 * _BETWEEN_BYTES  # its ends, without a copy of the rest
        ends = block[seen : seen + _BETWEEN_BYTES] + block[-_BETWEEN_BYTES:]
        self._read_between(ends if is_long else block[seen:])

    def finish(self) -> LogFindings:
        """Return the findings after the last block."""
        self._close_tracebacks()
        self._read_last_lines()
        return LogFindings(
            events=self._events,
            progress=self._progress,
            is_relaunched=self._is_relaunched,
            lines=self._line - self._events[-1].line if self._events else 0,
            messages=_count_messages(self._since),
            has_python_warning=_PYTHON_WARNING.search(self._since) is not None,
            is_finished=self._is_finished
            or _LAST_STEP.search(self._since[-_FINAL_BYTES:]) is not None,
            is_script_done=_SCRIPT_DONE.search(self._since) is not None,
            is_parallel=self._is_parallel,
            first_failure=self._first_failure,
            stages=self._stages if len(self._stages) <= _MAX_STAGES else [],
        )

    # ---- blocks

    def _lines_with_words(self, block: bytes) -> list[int]:
        """List where lines with a word begin: each form of a line is searched once."""
        at, starts = 0, []
        forms = block.translate(None, _DIGITS).split(b"\n")
        for line, form in zip(block.split(b"\n"), forms, strict=True):
            has_word = self._forms.get(form)
            if has_word is None:
                has_word = WORDS.search(form) is not None
                self._remember_form(form, has_word=has_word)
            if has_word:
                starts.append(at)
            at += len(line) + 1
        return starts

    def _remember_form(self, form: bytes, *, has_word: bool) -> None:
        if len(self._forms) < _MAX_FORMS and len(form) < _MAX_LINE:
            self._forms[form] = has_word

    def _find_stages(self, block: bytes) -> None:
        for word in _STAGE_WORDS:
            at = block.find(word)
            while at >= 0:
                begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
                end = end if end >= 0 else len(block)
                is_heading = block[at + len(word) : at + len(word) + 1].isdigit()
                found = _STAGE.match(block[begin:end][:_MAX_LINE]) if is_heading else None
                if found is not None and len(self._stages) <= _MAX_STAGES:
                    name = (found["name"] or b"").decode("utf-8", "replace").strip(" .-")
                    line = self._line + block.count(b"\n", 0, begin)
                    self._stages.append(Stage(line, int(found["number"]), name))
                at = block.find(word, end)
        self._stages.sort(key=lambda stage: stage.line)

    def _close_tracebacks(self) -> None:
        for each in self._tracebacks.close():
            self._add_exception(each, LogLine("", *each.process))

    def _read_last_lines(self) -> None:
        """Add an event if the last lines are an error message, and there is no other event."""
        text = self._since.rstrip()
        after = self._since.count(b"\n", len(text))
        lines = text.decode("utf-8", "replace").split("\n")[-_LAST_LINES:]
        errors = [_ERROR_LINE.search(parse_line(line).text) for line in lines]
        if (self._events and self._progress < MOVED_ON) or errors[-1] is None:
            return
        at, found = next((at, found) for at, found in enumerate(errors) if found is not None)
        number = self._line - after - (len(lines) - 1 - at)
        self._add(CODE_ERROR, found, WEAK, number, lines[at].strip(), LogLine(""))

    def _read_between(self, text: bytes) -> None:
        """Take note of progress, launches and ends since the last event."""
        if self._events and not self._since and _WITHDRAWN.search(text[:_WITHDRAWN_BYTES]):
            begin = self._events[-1].line
            for event in reversed(self._events):
                if begin - event.line > _WITHDRAWN_ROWS or event.is_withdrawn:
                    break
                event.is_withdrawn, begin = True, event.begin
        if len(text) > 2 * _BETWEEN_BYTES:
            text = text[:_BETWEEN_BYTES] + text[-_BETWEEN_BYTES:]
        self._is_relaunched |= bool(self._events and _LAUNCH.search(text))
        text = _WANDB_SUMMARY.sub(b"", text) if b"wandb" in text else text
        self._since = (self._since + text)[-2 * _BETWEEN_BYTES :]
        if self._progress < 4 * MOVED_ON:
            self._progress += sum(1 for _ in islice(_PROGRESS.finditer(text), 4 * MOVED_ON))
            if self._events and not self._is_parallel:
                # The first line of the log, or several of its first lines, are written again.
                lines = b"\n" + text.translate(None, _DIGITS)
                is_headed = len(self._head.intersection(lines.split(b"\n"))) >= _REPEATED_LINES
                if is_headed or b"\n" + self._banner + b"\n" in lines:
                    # In the trace of a shell it may be the same command with other numbers.
                    self._is_rerun |= not self._banner.startswith(b"+ ")
                    self._is_relaunched = True
        end = text[-_END_BYTES:]
        has_ended = _FINISHED.search(end) or (self._progress and _SCRIPT_DONE.search(end))
        self._is_finished = self._is_finished or bool(has_ended)

    # ---- lines

    def _examine_line(self, raw: bytes, before: bytes) -> tuple[bool, bool]:
        """Examine a line; return whether it is irrelevant, and whether it made an event."""
        is_irrelevant, events = True, self._count
        for text in _split_segments(raw):
            line = parse_line(text)
            self._text = text
            is_read, ended = self._tracebacks.read(line, self._line)
            if ended is not None:
                trouble = self._find_connection_error(before)
                self._read_between(before)
                self._add_exception(ended, line, trouble)
            is_read = is_read or self._begin_traceback(line, text, before)
            is_read = is_read or self._match_rules(line, text, before)
            is_irrelevant = is_irrelevant and not is_read
        return is_irrelevant, self._count > events

    def _begin_traceback(self, line: LogLine, text: str, before: bytes) -> bool:
        """Begin a traceback, or remember what the next one is part of."""
        if self._tracebacks.link(line, self._line):
            return True
        is_thread = _THREAD in line.text and '"main"' not in line.text
        if is_thread or any(word in line.text for word in _HARMLESS):
            self._cap = WEAK if is_thread else HINT
            self._cap_line = self._line
            return True
        if HEADER not in line.text:
            return False
        cap = self._cap if self._line - self._cap_line <= 3 else ROOT
        is_logged = False
        if (level := _LEVEL.search(text, 0, max(text.find(HEADER), 0))) is not None:
            is_logged = level[1] is not None and cap == ROOT
            cap = min(cap, WEAK if level[1] else HINT)
        elif cap == ROOT and _LOGGED_BEFORE.search(
            before[-1000:].rstrip(b"\n").rpartition(b"\n")[2]
        ):
            is_logged, cap = True, WEAK
        if re.search(rb"(?:^|\n)Process (?!Process-1:)\S+:\s*$", before[-200:]):
            self._is_parallel = True
        begun = self._tracebacks.begin(line, self._line, is_cleanup=cap == WEAK and not is_logged)
        if begun is not None:
            self._contexts[id(begun)] = cap, is_logged
        return True

    def _match_rules(self, line: LogLine, text: str, before: bytes) -> bool:
        stripped = line.text.strip()
        found = match(line.text)
        if found is not None:
            (rule, values), kind = found, found[0].kind
            if kind == ERROR or (kind == ROOT and rule.cls in _OPTIONAL):
                kind = WEAK  # outside of a traceback
        else:
            rule, kind, error = CODE_ERROR, WEAK, compiled(CODE_ERROR.id).search(stripped)
            if error is None or not _RAISED.search(error["name"]):
                return self._note_connection_error(line, stripped)
            if (error["why"] or "0").isdecimal():
                return False  # a number of errors
            values = error
        start = len(text) - len(line.text) + values.start()
        if rule.id != "ctrl_c" and "NCCL WARN" not in text and _is_warning(text, start):
            kind = HINT
            self._note_connection_error(line, stripped)
        if kind != HINT:
            self._read_between(before)
        self._add(rule, values, kind, self._line, stripped, line)
        return True

    def _note_connection_error(self, line: LogLine, text: str) -> bool:
        """Remember a retried connection error; it is no event by itself."""
        if not _CONNECTION_TROUBLE.search(text):
            return False
        event = LogEvent(
            rule=CODE_ERROR,
            kind=HINT,
            file=self._file,
            line=self._line,
            text=text[:_MAX_LINE],
            rank=line.rank,
            host=line.host,
        )
        self._connection_error = event
        return False

    def _find_connection_error(self, before: bytes) -> LogEvent | None:
        """Return the last connection error in the text before an exception.

        An error after which the program made progress does not count.
        """
        error, self._connection_error = self._connection_error, None
        if error is None:
            return None
        _, found, after = before[-2 * _BETWEEN_BYTES :].rpartition(error.text.encode())
        progress = sum(1 for _ in islice(_PROGRESS.finditer(after), _STEPS_OF_ALIVE))
        return error if found and progress < _STEPS_OF_ALIVE else None

    # ---- events

    def _add_exception(
        self, found: Traceback, line: LogLine, connection_error: LogEvent | None = None
    ) -> None:
        text = found.text or (found.frames[-1] if found.frames else HEADER)
        rule, kind, values = CODE_ERROR, ERROR, compiled(CODE_ERROR.id).search(text)
        matched = None if found.is_cut else match(text, found.frames)
        if matched is not None:
            rule, values = matched
            kind = rule.kind
        if rule is CODE_ERROR and found.is_cleanup:
            kind = HINT
        elif found.is_cut:
            kind = WEAK
        if found.is_torn:
            self._is_parallel, kind = True, SYMPTOM
        cap, is_logged = self._contexts.pop(id(found), (ROOT, False))
        if found.is_import_of_library:
            cap = HINT  # the library caught it
        cap = ROOT if is_logged and found.is_outermost else cap
        self._add(rule, values, min(kind, cap), found.line, text, line, found, connection_error)

    def _add(
        self,
        rule: FailureRule,
        match: re.Match[str] | None,
        kind: int,
        number: int,
        text: str,
        line: LogLine,
        found: Traceback | None = None,
        connection_error: LogEvent | None = None,
    ) -> None:
        groups = {key: value for key, value in match.groupdict().items() if value} if match else {}
        # Names of groups that occur several times in a pattern end with a digit.
        values = {key.rstrip("0123456789"): value for key, value in groups.items()}
        if rule is CODE_ERROR and found is not None and "why" not in values and found.source:
            values["why"] = found.source  # such as the condition of an assertion
        rank = int(values["rank"]) if "rank" in values else line.rank
        event = LogEvent(
            rule=rule,
            kind=kind,
            file=self._file,
            line=number,
            text=text[:_MAX_LINE],
            rank=rank,
            host=values.get("host", line.host),
            is_task=line.is_task and "rank" not in values,
            chain=found.chain if found is not None else 0,
            in_traceback=found is not None,
            begin=(found.begin if found is not None else 0) or number,
            ends=bool(found.is_outermost) if found is not None else rule.id in _ENDING,
            is_withdrawn=found is None and _WITHDRAWN.search(text.encode()) is not None,
            values=values,
            connection_error=connection_error,
        )
        if kind == HINT:
            return
        if kind < rule.kind and not event.ends:
            # The program recovers from errors that it reports again and again.
            form = f"{rule.id} {re.sub('[0-9]', '', text[:_IDENTIFYING])}"
            self._repeats[form] = self._repeats.get(form, 0) + 1
            if self._repeats[form] > _MAX_REPEATS:
                self._count += 1
                return
        self._is_parallel |= (
            line.rank is not None or bool(rank) or (kind == SYMPTOM and rule.id in _LAUNCHER_RULES)
        )
        self._at = when(self._text) or last_time(self._since[-_STAMP_BYTES:]) or self._at
        event.at, event.after_finish = self._at, self._is_finished
        event.steps, event.is_relaunched = self._progress, self._is_relaunched
        event.is_rerun = self._is_rerun
        event.progress = self._progress + MOVED_ON * self._is_relaunched
        if self._events and self._since:
            event.messages = _count_messages(self._since)
        self._replace_wrapper(found, event)
        if not self._events:  # a line after the first event is not written again by being there
            self._head &= frozenset(self._since.translate(None, _DIGITS).split(b"\n"))
        self._progress, self._since, self._is_finished = 0, b"", False
        self._is_relaunched = self._is_rerun = False
        self._count += 1
        self._events.append(event)
        if len(self._events) > _MAX_EVENTS:
            del self._events[: _MAX_EVENTS // 4]

    def _replace_wrapper(self, found: Traceback | None, event: LogEvent) -> None:
        """Remove the exception that only raises this one again."""
        if found is None or found.original_of is None:
            return
        for at in range(len(self._events) - 1, -1, -1):
            wrapper = self._events[at]
            if wrapper.chain == found.chain and wrapper.line == found.original_of:
                event.progress, event.steps = wrapper.progress, wrapper.steps
                event.messages, event.is_relaunched = wrapper.messages, wrapper.is_relaunched
                event.is_rerun = wrapper.is_rerun
                event.at, event.after_finish = wrapper.at, wrapper.after_finish
                del self._events[at]
                return


# ---- the text of blocks and lines


def _find_banner(block: bytes) -> bytes:
    """Return the line, without digits, by which another launch is recognised."""
    heading = _SETTINGS_HEADING.search(block[:_END_BYTES].partition(TRACEBACK)[0])
    line = (heading[0] if heading else block.partition(b"\n")[0])[:_MAX_LINE]
    line = line.translate(None, _DIGITS)
    is_specific = len(line.strip(b"-=*#_ ")) > _IDENTIFYING and not WORDS.search(line)
    return line if is_specific else b"\0"


def _find_head(block: bytes) -> frozenset[bytes]:
    """Return the first lines of a log, without digits, by which another launch is recognised."""
    text = block[:_END_BYTES].partition(TRACEBACK)[0]
    if (progress := _PROGRESS.search(text)) is not None:
        text = text[: progress.start()].rpartition(b"\n")[0]
    lines = text.translate(None, _DIGITS).split(b"\n")[:_HEAD_LINES]
    return frozenset(line for line in lines if len(line.strip(b"-=*#_ ")) > _IDENTIFYING // 2)


def _last_line(text: bytes) -> bytes:
    return text[-_MAX_LINE:].rstrip(b"\n").rpartition(b"\n")[2]


def _count_messages(text: bytes) -> int:
    lines = _MESSAGE.findall(text)
    return sum(1 for line in lines if not WORDS.search(line) and not _TEARDOWN.search(line))


def _is_warning(text: str, start: int) -> bool:
    """Return True if a logger's level marks the line as a warning, or less.

    >>> _is_warning("08:00 | WARNING | upload failed: No space left on device", 33)
    True
    >>> _is_warning('{"msg": "No space left on device", "level": "warning"}', 9)
    True
    >>> _is_warning("OSError: [Errno 28] No space left on device", 20)
    False
    """
    if _WARNING_LINE.search(text) is not None:
        return True
    return _WARNING_LEVEL.search(text, 0, max(_LEVEL_COLUMN, start)) is not None


def _split_segments(raw: bytes) -> Iterator[str]:
    """Split a line that progress bars overwrote, or that contains a traceback as JSON."""
    raw = raw.rstrip(b"\r")
    parts = [raw]
    if b"\r" in raw:
        parts = [part for part in raw.split(b"\r") if WORDS.search(part)][-50:]
    if TRACEBACK in raw and b"\\n" in raw:  # one line of JSON
        parts = [part.rstrip(b'"}] ') for part in raw.replace(b'\\"', b'"').split(b"\\n")]
    for part in parts:
        if len(part) > _MAX_LINE and (found := WORDS.search(part)):
            first = 0 if found.start() < _MAX_LINE // 2 else found.start() - 300
            part = part[first : first + _MAX_LINE]
        yield part.decode("utf-8", "replace")


def _lines_with_far_words(block: bytes) -> list[int]:
    starts: set[int] = set()
    for word in (*FAR_WORDS, BEFORE) if TRACEBACK in block else FAR_WORDS[1:]:
        at, most = block.find(word), len(starts) + _MAX_LINES_PER_BLOCK
        while at >= 0 and (len(starts) < most or word.startswith(TRACEBACK)):
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(word, end) if end >= 0 else -1
    return sorted(starts)
