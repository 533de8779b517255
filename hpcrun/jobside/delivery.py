"""Sends each event of a run exactly once to each channel, whoever sends it.

RUN/notify/EVENT@CHANNEL.N/ is a try: its sender has created it with mkdir, which succeeds once, on
network file systems too. It then contains either ``sent`` or ``failed``, with the reason. After a
failure the next try is allowed after a pause. A try that contains neither is that of a sender that
is still at work or has died; after ten minutes another one sends, so that an event may arrive twice
if its sender died between the answer of the channel and the record of it, but never gets lost.
"""

import json
import os
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from hpcrun.jobside.channels import (
    TIMEOUT_S,
    Channel,
    ChannelError,
    Message,
    name_channels,
    send,
)
from hpcrun.jobside.events import (
    Event,
    RunFacts,
    SweepFacts,
    compose_message,
    decide_events,
    decide_sweep_events,
)
from hpcrun.jobside.records import read_json, read_line, write_record

# The file with the channels' targets, mode 0600, and the directory of the tries.
CONFIG, FOLDER = "notify.json", "notify"
# A try without a result is given up after this many seconds.
ABANDONED_AFTER_S = 600.0
# After a failure, the next try waits twice as long each time, between these limits.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 3600.0
MAX_TRIES = 12
PER_HOUR = 10


class Try(NamedTuple):
    """A try to send an event: its number from 0, its time, and its result."""

    number: int
    at: float
    is_sent: bool
    error: str


class Tries(NamedTuple):
    """All tries of a run by event and channel, as in ``failed@slack``."""

    by_key: Mapping[str, List[Try]]

    def is_due(self, key: str, now: float) -> bool:
        """Return True if an event has to be sent now."""
        tries = self.by_key.get(key, [])
        if not tries:
            return True
        last = tries[-1]
        if any(each.is_sent for each in tries) or last.number + 1 >= MAX_TRIES:
            return False
        pause = min(FIRST_PAUSE_S * 2**last.number, LONGEST_PAUSE_S)
        return now - last.at >= (pause if last.error else ABANDONED_AFTER_S)

    def count_since(self, channel: str, at: float) -> int:
        """Count the messages that a channel got, or may have got, since a time."""
        return sum(
            each.at >= at and not each.error
            for key, tries in self.by_key.items()
            if key.rpartition("@")[2] == channel
            for each in tries
        )


class Ledger:
    """The record of the tries of a run, or of a sweep, in its directory."""

    def __init__(self, run: str) -> None:
        self.run = run

    def read(self) -> Tries:
        return read_tries(self.run)

    def claim(self, key: str, tries: Tries) -> Optional[str]:
        """Claim the next try of an event; return its name, or None if another sender has it."""
        name = next_try(key, tries)
        path = os.path.join(self.run, FOLDER, name)
        try:
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            os.mkdir(path, 0o755)
        except OSError:
            return None
        return name

    def record(self, name: str, error: str) -> None:
        """Record the result of a try; "" if the message was sent."""
        path = os.path.join(self.run, FOLDER, name, "failed" if error else "sent")
        write_record(path, error)


def next_try(key: str, tries: Tries) -> str:
    """Return the name of the next try of an event.

    >>> next_try("failed@slack", Tries({"failed@slack": [Try(0, 0.0, False, "HTTP 503")]}))
    'failed@slack.1'
    """
    last = tries.by_key.get(key, [])
    return "{}.{}".format(key, last[-1].number + 1 if last else 0)


def read_config(run: str) -> Dict[str, Any]:
    """Read a run's notify.json; {} if the run sends nothing. Only the owner's file counts."""
    path = os.path.join(run, CONFIG)
    try:
        if os.lstat(path).st_uid != os.getuid():
            return {}
    except OSError:
        return {}
    return read_json(path)


def read_channels(config: Mapping[str, Any]) -> List[Channel]:
    """Return the channels of a run's notify.json."""
    return name_channels([(str(kind), str(target)) for kind, target in config.get("to") or []])


def read_tries(run: str) -> Tries:
    """Read all tries of a run."""
    found: Dict[str, List[Try]] = {}
    folder = os.path.join(run, FOLDER)
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    for name in names:
        key, _, number = name.rpartition(".")
        if not key or not number.isdecimal():
            continue
        where = os.path.join(folder, name)
        try:
            at = os.stat(where).st_mtime
        except OSError:
            continue
        is_sent = os.path.exists(os.path.join(where, "sent"))
        error = "" if is_sent else read_line(os.path.join(where, "failed"))
        found.setdefault(key, []).append(Try(int(number), at, is_sent, error))
    return Tries({key: sorted(tries) for key, tries in found.items()})


def deliver(
    run: str,
    config: Mapping[str, Any],
    facts: RunFacts,
    *,
    details: Callable[[], RunFacts] = lambda: RunFacts(),
    image: Callable[[], bytes] = lambda: b"",
    deadline: Optional[float] = None,
    leave: Sequence[str] = (),
    ledger: Optional[Ledger] = None,
) -> List[str]:
    """Send the new events of a run to all its channels; return the failures.

    Args:
        details: Returns the facts with a cause, which takes long to find; called if a message about
            a failure is sent.
        image: Returns a PNG image of the curve; called if a message is sent that may have one.
        deadline: The time by time.monotonic() after which nothing more is sent.
        leave: Kinds of channels that are left to other senders.
        ledger: The record of the tries, if it is not in ``run``.
    """

    def compose(event: Event) -> Message:
        known = facts
        if event.kind == "failed":
            known = details()
            known = known if known.end else facts
            found = (each for each in decide_events(["failed"], known) if each.key == event.key)
            event = next(found, event)
        text = compose_message(config, event, known)
        has_image = event.kind not in ("started", "stalled", "preempted")
        return Message(
            text, event.kind, describe_facts(config, known), image() if has_image else b""
        )

    events = decide_events(config.get("on") or [], facts)
    ledger = ledger or Ledger(run)
    return send_events(ledger, config, events, compose, deadline=deadline, leave=leave)


def deliver_for_sweep(
    folder: str,
    config: Mapping[str, Any],
    facts: SweepFacts,
    *,
    deadline: Optional[float] = None,
    leave: Sequence[str] = (),
    ledger: Optional[Ledger] = None,
) -> List[str]:
    """Send the new events of a sweep; return the failures. The arguments are as in deliver().

    Args:
        folder: The directory of the sweep.
    """

    def compose(event: Event) -> Message:
        text = compose_message(config, event, RunFacts())
        return Message(text, event.kind, {**describe_facts(config, RunFacts()), **facts._asdict()})

    events = decide_sweep_events(config.get("on") or [], facts)
    ledger = ledger or Ledger(folder)
    return send_events(ledger, config, events, compose, deadline=deadline, leave=leave)


def send_events(
    ledger: Ledger,
    config: Mapping[str, Any],
    events: Sequence[Event],
    compose: Callable[[Event], Message],
    *,
    deadline: Optional[float],
    leave: Sequence[str],
) -> List[str]:
    """Send events that no sender has sent yet; return the failures.

    A failure is recorded, and never raised: a notification must not harm a run.
    """
    errors: List[str] = []
    channels = read_channels(config) if events else []
    limit = int(config.get("per_hour") or PER_HOUR)
    for event in events:
        message: Optional[Message] = None
        for channel in channels:
            is_unknown = not channel.target and channel.kind != "mail"
            if is_unknown or channel.kind in leave:
                continue
            tries, now = ledger.read(), time.time()
            key = "{}@{}".format(event.key, channel.name)
            if not tries.is_due(key, now) or tries.count_since(channel.name, now - 3600) >= limit:
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return errors
            name = ledger.claim(key, tries)
            if name is None:
                continue
            message = message or compose(event)
            error = ""
            try:
                timeout = TIMEOUT_S if left is None else max(1.0, min(left, TIMEOUT_S))
                send(channel, message, str(config.get("folder") or "/"), timeout)
            except ChannelError as failure:
                error = str(failure)
            except Exception as failure:  # whatever a channel's library raises
                error = type(failure).__name__
            ledger.record(name, error)
            errors += ["{}: {}".format(channel.name, error)] if error else []
    return errors


def describe_facts(config: Mapping[str, Any], facts: RunFacts) -> Dict[str, Any]:
    """Return the facts of a message for programs, as a webhook gets them."""
    loss = facts.losses[-1] if facts.losses else None
    return {
        "run_id": config.get("run_id"),
        "name": config.get("name"),
        "cluster": config.get("cluster"),
        "user": config.get("user"),
        "state": facts.end or "running",
        "attempt": facts.attempt,
        "step": facts.step,
        "loss": loss if loss is None or loss - loss == 0 else str(loss),
        "cause": facts.cause or None,
    }


def list_failures(tries: Tries) -> Dict[str, str]:
    """Return the reason of the last failure of each channel that still has an unsent event."""
    found: Dict[str, str] = {}
    for key, each in sorted(tries.by_key.items()):
        if each[-1].error:
            event, _, channel = key.rpartition("@")
            found[channel] = "{} not sent: {}".format(event, each[-1].error)
    return found


def write_config(path: str, config: Mapping[str, Any]) -> None:
    """Write a notify.json, readable only by its owner."""
    part = path + ".part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(config).encode() + b"\n")
    os.rename(part, path)


def send_test(channels: Sequence[Channel], folder: str, user: str) -> Dict[str, str]:
    """Send a test message to each channel; return the error of each, "" if it was accepted."""
    found = {}
    for channel in channels:
        text = "This is a test of hpcrun's notifications from {}.".format(os.uname().nodename)
        message = Message(text, "test", {"name": "test", "user": user, "run_id": None})
        try:
            send(channel, message, folder)
            found[channel.name] = ""
        except ChannelError as failure:
            found[channel.name] = str(failure)
    return found
