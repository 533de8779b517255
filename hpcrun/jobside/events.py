"""The events of a run that a user is notified of: a function of its records and its losses."""

import re
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

# The events that a job file may name, besides conditions such as ``loss < 2.0``.
EVENTS = ("started", "failed", "stalled", "preempted", "done", "nan", "diverged")
# Units of a time in a condition, in seconds.
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CONDITION = re.compile(
    r"\s*(loss|step|time_left)\s*(<=|>=|<|>)\s*([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*([smhd]?)\s*", re.I
)
# With fewer losses, nothing is known about a trend.
_LEAST_LOSSES = 40
_BLOCKS = 10
_MAX_LOSSES = 4000

_LOSS = re.compile(
    r"(?<![a-z0-9_./-])(?:train(?:ing)?[_/. -])?loss(?![a-z0-9_/.])[\"']?\s*[:=|(]?\s*"
    r"([-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+\.[0-9]+|[0-9]+\.?[0-9]*(?:e[-+]?[0-9]+)?|nan|inf))"
    r"(?![a-z0-9])",
    re.I,
)
# Words of an evaluation anywhere before the loss, and of other losses directly before it.
_EVALUATION = re.compile(
    r"(?<![a-z/])(eval|evaluat(e|ed|ing|ion)|val|valid|validat(e|ed|ing|ion)|test(ed|ing)?"
    r"|dev(?![0-9]))(?![a-z])",
    re.I,
)
_OTHER_LOSS = re.compile(
    r"(?<![a-z])(best|lowest|min|minimum|prev|previous|initial|target|ema|aux|auxiliary|kl|reg"
    r"|regulari[sz]ation|router|balance|balancing)[^a-z0-9]{1,3}$",
    re.I,
)


class Condition(NamedTuple):
    """The comparison of an event such as ``loss < 2.0``; times are in seconds."""

    name: str
    sign: str
    value: float

    def holds(self, value: Optional[float]) -> bool:
        """Return True if a value satisfies the condition; an unknown one does not."""
        if value is None or value != value:
            return False
        if self.sign == "<":
            return value < self.value
        if self.sign == "<=":
            return value <= self.value
        return value > self.value if self.sign == ">" else value >= self.value


class RunFacts(NamedTuple):
    """What is known about a run when its events are decided; None means unknown.

    Attributes:
        attempt: The number of the newest attempt, from 0; None before the first.
        end: How the run ended: "done", "pruned", "failed" or "cancelled"; "" while it may continue.
        preempted: The numbers of the attempts that were preempted.
        stalled_for: Seconds without progress of the newest attempt, if it has stalled.
        losses: Losses of the training in the order of its steps.
        time_left: Seconds until the time limit.
        cause: Why the run failed, or which rank blocks it.
    """

    attempt: Optional[int] = None
    end: str = ""
    preempted: Tuple[int, ...] = ()
    stalled_for: Optional[float] = None
    step: Optional[int] = None
    losses: Sequence[float] = ()
    time_left: Optional[float] = None
    cause: str = ""


class SweepFacts(NamedTuple):
    """What is known about a sweep: how many runs it has, and how many have ended in which way.

    Attributes:
        pruned: The runs that a search ended early; they are not among ``done``.
        first_failure: The first run that failed, and why; "" if none has.
    """

    runs: int
    begun: int
    done: int
    failed: int
    cancelled: int = 0
    pruned: int = 0
    first_failure: str = ""


class Event(NamedTuple):
    """An event of a run.

    Attributes:
        key: It identifies the event among all events of the run, and is part of a file name.
        kind: The word for it in a message.
        text: What happened, without the name of the run.
    """

    key: str
    kind: str
    text: str


def parse_condition(text: str) -> Optional[Condition]:
    """Parse a condition; None if the text is none.

    >>> parse_condition("loss < 2.0"), parse_condition("time_left<1h"), parse_condition("done")
    (Condition(name='loss', sign='<', value=2.0), Condition(name='time_left', sign='<', value=3600.0), None)
    """  # noqa: E501
    found = _CONDITION.fullmatch(text)
    if found is None:
        return None
    name, sign, number, unit = found.groups()
    if bool(unit) != (name.lower() == "time_left"):
        return None
    try:
        return Condition(name.lower(), sign, float(number) * _UNITS.get(unit.lower(), 1))
    except ValueError:
        return None


def decide_events(on: Sequence[str], facts: RunFacts) -> List[Event]:
    """Return the events in ``on`` that have happened, the oldest first.

    An event stays in the result after it has happened: the caller sends those that are new.

    >>> facts = RunFacts(attempt=0, step=40, losses=[3.0, 1.5], end="done")
    >>> [event.key for event in decide_events(["started", "failed", "done", "loss < 2"], facts)]
    ['started', 'loss-lt-2', 'done']
    """
    events = []
    for word in on:
        condition = parse_condition(word)
        if condition is not None:
            events += _decide_condition(word, condition, facts)
        elif word == "started" and facts.attempt is not None:
            events.append(Event("started", "started", "started"))
        elif word == "preempted":
            events += [
                Event("preempted-{}".format(n), word, "attempt {} was preempted".format(n))
                for n in facts.preempted
            ]
        elif word == "stalled" and facts.stalled_for is not None and not facts.end:
            text = "has stalled: no progress for {}".format(format_time(facts.stalled_for))
            text += "; " + facts.cause if facts.cause else ""
            events.append(Event("stalled-{}".format(facts.attempt or 0), word, text))
        elif word == "nan" and any(not is_finite(loss) for loss in facts.losses):
            events.append(Event("nan", word, "the loss is not finite"))
        elif word == "diverged" and has_diverged(facts.losses):
            low = min(loss for loss in facts.losses if is_finite(loss))
            text = "the loss diverges: {:.4g} after {:.4g}".format(facts.losses[-1], low)
            events.append(Event("diverged", word, text))
        elif word == facts.end:
            text = "failed" if word == "failed" else "is done"
            text += ": " + facts.cause if facts.cause and word == "failed" else ""
            events.append(Event(word, word, text))
    order = {"started": 0, facts.end: 2}
    return sorted(events, key=lambda event: order.get(event.kind, 1))


def decide_sweep_events(on: Sequence[str], facts: SweepFacts) -> List[Event]:
    """Return the events of a sweep: its start, its first failure, and a summary at its end.

    >>> facts = SweepFacts(runs=3, begun=3, done=1, failed=1, first_failure="run 2 failed: nan")
    >>> [event.text for event in decide_sweep_events(["failed", "done"], facts)]
    ['run 2 failed: nan; 2 of 3 runs are over']
    >>> [event.text for event in decide_sweep_events(["done"], facts._replace(pruned=1))]
    ['is over: of 3 runs 1 is done, 1 was pruned, 1 failed']
    """
    over = facts.done + facts.pruned + facts.failed + facts.cancelled
    events = []
    if "started" in on and facts.begun:
        events.append(Event("started", "started", "started"))
    if over < facts.runs:
        if "failed" in on and facts.failed:
            text = "{}; {} of {} runs are over".format(facts.first_failure, over, facts.runs)
            events.append(Event("failed", "failed", text))
    elif ("done" in on or ("failed" in on and facts.failed)) and over > facts.cancelled:
        counts = [_count(facts.done, "is done", "are done")]
        counts += [_count(facts.pruned, "was pruned", "were pruned")] if facts.pruned else []
        counts += ["{} failed".format(facts.failed)] if facts.failed else []
        if facts.cancelled:
            counts.append(_count(facts.cancelled, "was cancelled", "were cancelled"))
        text = "is over: of {} runs {}".format(facts.runs, ", ".join(counts))
        events.append(Event("over", "failed" if facts.failed else "done", text))
    return events


def _count(number: int, one: str, many: str) -> str:
    return "{} {}".format(number, one if number == 1 else many)


def _decide_condition(word: str, condition: Condition, facts: RunFacts) -> List[Event]:
    if condition.name == "loss":
        value = next((loss for loss in facts.losses if condition.holds(loss)), None)
    else:
        value = facts.time_left if condition.name == "time_left" else facts.step
    if facts.end and condition.name == "time_left":
        return []
    if not condition.holds(value):
        return []
    signs = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    number = "{:g}".format(condition.value)
    if float(number) != condition.value:  # :g has six digits
        number = repr(condition.value)
    key = "-".join((condition.name, signs[condition.sign], number))
    if condition.name == "time_left":
        return [Event(key, word, "{} left until the time limit".format(format_time(value or 0)))]
    text = "{} {} {}".format(condition.name, condition.sign, number)
    # The message ends with the newest loss, which may not satisfy the condition any more.
    if condition.name == "loss" and not condition.holds(facts.losses[-1]):
        text += " was reached ({:.4g})".format(value or 0)
    return [Event(key, word, text)]


def is_finite(value: float) -> bool:
    """Return True for a number other than NaN and the infinities."""
    return value == value and value not in (float("inf"), float("-inf"))


def has_diverged(losses: Sequence[float]) -> bool:
    """Return True if the loss ends well above its minimum, after it had decreased.

    >>> falls = [3.0 - 0.02 * step for step in range(80)]
    >>> has_diverged(falls), has_diverged(falls + [2.9] * 20)
    (False, True)
    """
    known = [loss for loss in losses if is_finite(loss)]
    if len(known) < _LEAST_LOSSES or min(known) <= 0:
        return False
    size = len(known) // _BLOCKS
    levels = [_median(known[at : at + size]) for at in range(0, size * _BLOCKS, size)]
    low, begun, end = min(levels[:-1]), levels[0], min(levels[-1], _median(known[-5:]))
    return end >= 1.5 * low and end - low >= 0.5 * (begun - low) and begun >= 1.2 * low


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def format_time(seconds: float) -> str:
    """Format a time with one unit.

    >>> format_time(40), format_time(150), format_time(9000), format_time(400000)
    ('40 s', '2 min', '2.5 h', '4.6 d')
    """
    if seconds < 90:
        return "{:.0f} s".format(seconds)
    if seconds < 5400:
        return "{:.0f} min".format(seconds / 60)
    if seconds < 172800:
        return "{:.1f} h".format(seconds / 3600)
    return "{:.1f} d".format(seconds / 86400)


def compose_message(config: Any, event: Event, facts: RunFacts) -> str:
    """Compose the sentence that is sent: run, event, progress, and the command that tells more.

    Args:
        config: The content of the run's notify.json.

    >>> config = {"name": "pretrain", "run_id": "20261128-1-pretrain-abcd", "cluster": "lumi"}
    >>> event = Event("failed", "failed", "failed: out of GPU memory (rank 3 on n1)")
    >>> compose_message(config, event, RunFacts(attempt=1, step=40, losses=[2.5], end="failed"))
    'pretrain on lumi failed: out of GPU memory (rank 3 on n1); step 40, loss 2.5, attempt 2. hpcrun why 20261128-1-pretrain-abcd'
    """  # noqa: E501
    name, run_id = config.get("name") or "run", config.get("run_id") or ""
    where = " on " + config["cluster"] if config.get("cluster") else ""
    text = event.text
    # "pretrain on lumi: loss < 2", but "pretrain on lumi is done".
    link = " " if text.split(" ")[0].rstrip(":") in ("started", "failed", "is", "has") else ": "
    progress = []
    if facts.step is not None:
        progress.append("step {}".format(facts.step))
    if facts.losses:
        progress.append("loss {:.4g}".format(facts.losses[-1]))
    if facts.attempt:
        progress.append("attempt {}".format(facts.attempt + 1))
    if event.key == "over" or run_id.endswith(".array"):
        return "{}{}{}{}. hpcrun status {}".format(name, where, link, text, run_id)
    verb = {"failed": "why", "nan": "parse", "diverged": "parse", "done": "parse"}
    more = "hpcrun {} {}".format(verb.get(event.kind, "status"), run_id)
    tail = "; " + ", ".join(progress) if progress else ""
    return "{}{}{}{}{}. {}".format(name, where, link, text, tail, more)


class LossReader:
    """Collects the losses of the training from the lines of a log, at most a few thousand."""

    def __init__(self) -> None:
        self.losses: List[float] = []
        self._stride, self._seen = 1, 0

    def feed(self, line: str) -> None:
        loss = read_loss(line)
        if loss is None:
            return
        self._seen += 1
        # The last value is always kept, older ones only at every stride.
        if len(self.losses) > 1 and (self._seen - 1) % self._stride and is_finite(self.losses[-1]):
            self.losses[-1] = loss
        else:
            self.losses.append(loss)
        if len(self.losses) > _MAX_LOSSES:
            self.losses, self._stride = self.losses[::2], 2 * self._stride


def read_loss(line: str) -> Optional[float]:
    """Parse the training's loss in a line; None if there is none.

    This is only for notifications from within a job, where hpcrun's parser is not available.

    >>> [read_loss(x) for x in ("step 1 loss 2.5", "{'loss': 1e-3, 'lr': 1}", "lm loss: 2.1E+00 |")]
    [2.5, 0.001, 2.1]
    >>> [read_loss(x) for x in ("eval loss: 2.5", "val_loss=2", "loss_scale: 4", "train_loss=nan")]
    [None, None, None, nan]
    >>> [read_loss(x) for x in ("best loss: inf, loss: 1,234.5", "dev loss: 2", "loss: 1,234")]
    [1234.5, None, None]
    """
    for found in _LOSS.finditer(line):
        before = line[: found.start()]
        if _EVALUATION.search(before):
            return None
        number = found.group(1)
        if not _OTHER_LOSS.search(before):
            # Of 1,234 it is unknown whether it is one number, two, or has a decimal comma.
            is_clear = "." in number or not re.match(",[0-9]", line[found.end() :])
            return float(number.replace(",", "")) if is_clear else None
    return None
