"""Explain why something in a log that looks like a metric is not used."""

from __future__ import annotations

from collections.abc import Iterator

from hpcrun.curves.curve import Curve
from hpcrun.curves.lines.generic import explain_rejection
from hpcrun.curves.lines.line import read_line
from hpcrun.curves.lines.prefixes import strip_prefixes
from hpcrun.curves.names import LOSS, decode, is_loss_name, is_score_name, name_in
from hpcrun.curves.row import RowLayout
from hpcrun.curves.store import Store, choose_stand_in_loss
from hpcrun.patterns import pattern_of
from hpcrun.text import format_count, format_value

# A name of one to three words and its value.
_PAIR = pattern_of(
    r"(?<![\w/.])([^\W\d][\w@/.-]{0,40}(?: [^\W\d][\w@/.-]{0,40}){0,2})\s?[:=]\s?(?=[-+]?\d|nan)"
)
_MAX_LINE_CHARACTERS = 1000
_MAX_EXPLAINED = 20


def explain_unused(store: Store, curve: Curve) -> Iterator[str]:
    """Explain which metrics of lines that were read are not in the curve.

    >>> from hpcrun.curves.lines.log_reader import LogReader
    >>> from hpcrun.curves.derive import derive_curve
    >>> store, reader = Store(), LogReader()
    >>> store.begin(0)
    >>> store.add(reader.feed(b"acc: 0.5\\n"))
    >>> [*explain_unused(store, derive_curve(store))]
    ['acc (1 line): the lines have no step or epoch, and the log has no training loss']
    """
    proven = {form.layout for log in store.proven_logs() for form in log.forms.values()}
    _, stand_in = choose_stand_in_loss(store.proven_logs())
    rows: dict[tuple[str, ...], int] = {}
    reasons: dict[tuple[str, ...], str] = {}
    for form in (form for log in store.logs for form in log.forms.values()):
        shown = {*curve.metrics, stand_in}
        names = tuple(
            x
            for x in form.layout.names
            if shown.isdisjoint((x, name_in("eval", x), name_in("test", x)))
        )
        if not names:
            continue
        rows[names] = rows.get(names, 0) + form.rows
        if form.layout not in proven:
            is_placed = form.steps is not None or form.epochs is not None
            reasons[names] = _explain_unproven(form.layout, is_placed=is_placed)
        elif form.layout.scope.span == "run":
            reasons[names] = "the line summarizes the whole run"
        else:
            reasons[names] = (
                "other lines repeat the values with a position, or they are means of these"
            )
    for names, reason in reasons.items():
        yield f"{', '.join(names[:4])} ({format_count(rows[names], 'line')}): {reason}"
    yield from _explain_other_losses(store, curve)


def _explain_other_losses(store: Store, curve: Curve) -> Iterator[str]:
    """Explain which lines have a loss that the curve shows, but none of its values."""
    losses = curve.metrics.get(LOSS)
    if losses is None or len(losses.values) < losses.summary.count:
        return  # only some of the values are known
    for form in (form for log in store.proven_logs() for form in log.forms.values()):
        layout = form.layout
        if LOSS not in layout.names or layout.scope.span == "run" or layout.bar is not None:
            continue
        values = form.columns[layout.names.index(LOSS)]
        if {*losses.values}.isdisjoint(values):
            others = f"{LOSS} {format_value(values[0])} to {format_value(values[-1])}"
            yield (
                f"{others} ({format_count(form.rows, 'line')}): other lines have a loss with a "
                "better position, or of each batch"
            )


def _explain_unproven(layout: RowLayout, *, is_placed: bool) -> str:
    if any(map(is_loss_name, layout.names)):
        return (
            "such a line is a measurement only if it recurs at least three times with other values"
        )
    missing = "have unknown names" if is_placed else "have no step or epoch"
    return f"the lines {missing}, and the log has no training loss"


def explain_lines(text: bytes) -> Iterator[str]:
    """Explain which lines with the name of a loss or a score are not read; one for each name.

    >>> [*explain_lines(b"step 1 loss 2.5\\nbest accuracy: 0.75\\n")]
    ['line 2: best accuracy: "best" refers to a value of another line or to a setting']
    """
    seen: set[tuple[str, str]] = set()
    for number, line in enumerate(text.replace(b"\r", b"\n").split(b"\n"), 1):
        message = strip_prefixes(decode(line[:_MAX_LINE_CHARACTERS])).text
        names = [
            name for name in _PAIR.findall(message) if is_loss_name(name) or is_score_name(name)
        ]
        if not names or read_line(decode(line)) is not None:
            continue
        reason = explain_rejection(message)
        if (names[0], reason) not in seen and len(seen) < _MAX_EXPLAINED:
            seen.add((names[0], reason))
            yield f"line {number}: {names[0]}: {reason}"
