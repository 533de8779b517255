"""Views of the cause of a failure, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcrun.runs import PRUNED
from hpcrun.text import BOLD, Display, dim, paint, replace_unprintable

if TYPE_CHECKING:
    from hpcrun.why import Cause, Diagnosis

# A line of a log may be arbitrarily long.
_MAX_ALSO_LENGTH = 150
_MAX_LINE_LENGTH = 300


def format_cause_rows(diagnosis: Diagnosis | None) -> list[tuple[str, str]]:
    """Return rows about the cause of a failure, its evidence and its fixes, for two columns."""
    cause = diagnosis.cause if diagnosis is not None else None
    if diagnosis is None or cause is None:
        return []
    rows = [("cause", format_cause(cause))]
    if cause.file is not None or not cause.text.isupper():  # a state is already shown above
        rows.append(("line", _format_evidence(cause)))
    return rows + [("fix", replace_unprintable(fix)) for fix in diagnosis.fixes[:2]]


def format_cause(cause: Cause) -> str:
    """Describe a cause in one sentence, with the process that failed.

    >>> from hpcrun.why.rule import Cause
    >>> format_cause(Cause(id="x", cls="oom_gpu", title="out of GPU memory", rank=3, host="n1"))
    'out of GPU memory (rank 3 on n1)'
    """
    whose = cause.whose
    is_named = not whose or whose in cause.title
    return replace_unprintable(cause.title + ("" if is_named else f" ({whose})"))


def format_cause_suffix(diagnosis: Diagnosis | None) -> str:
    """Return the suffix for the state of a finished job; "" if the cause is unknown."""
    cause = diagnosis.cause if diagnosis is not None else None
    if cause is not None and cause.without_log:  # rank and exit code are already shown
        return f", and {cause.without_log}"
    return f": {replace_unprintable(cause.title)}" if cause is not None else ""


def _format_evidence(cause: Cause) -> str:
    if cause.file is None:
        return replace_unprintable(cause.text)
    where = f"{cause.file}:{cause.line}" if cause.line else cause.file
    return replace_unprintable(f"{where}: {cause.text[:_MAX_LINE_LENGTH]}")


def format_diagnosis(source: str, diagnosis: Diagnosis, state: str, display: Display) -> list[str]:
    """Lay out the diagnosis of one failed job."""
    head = f"{source}: {state}" if state else source
    cause = diagnosis.cause
    if cause is None:
        text = "no failure found"
        if diagnosis.verdict is not None:
            text = "it failed, and neither its logs nor Slurm explain why"
        elif state == "COMPLETED":
            text = "completed successfully"
        elif state == PRUNED:
            text = "ended by its search: other runs were better (hpcrun status)"
        return [f"{replace_unprintable(head)}: {text}"]
    lines = [f"{replace_unprintable(head)}: {paint(format_cause(cause), BOLD, display)}"]
    if (evidence := _format_evidence(cause)) not in ("", state):
        lines.append(f"  {evidence}")
    lines += [f"  - {replace_unprintable(fix)}" for fix in diagnosis.fixes]
    if diagnosis.also:
        lines.append(dim("  also:", display))
        lines += [
            dim(f"    {shorten(f'{format_cause(each)}: {_format_evidence(each)}')}", display)
            for each in diagnosis.also
        ]
    return lines


def shorten(text: str) -> str:
    """Shorten a text to one line.

    >>> shorten("a" * 200)[-4:], len(shorten("a" * 200)), shorten("short")
    ('a...', 150, 'short')
    """
    return text if len(text) <= _MAX_ALSO_LENGTH else f"{text[: _MAX_ALSO_LENGTH - 3]}..."


def diagnosis_json(diagnosis: Diagnosis | None) -> dict[str, Any]:
    """Return the JSON of a diagnosis: verdict, cause, further causes and fixes."""
    if diagnosis is None:
        return {"verdict": None, "cause": None, "also": [], "fixes": []}
    return {
        "verdict": diagnosis.verdict,
        "cause": cause_json(diagnosis.cause),
        "also": [cause_json(each) for each in diagnosis.also],
        "fixes": diagnosis.fixes,
    }


def cause_json(cause: Cause | None) -> dict[str, Any] | None:
    """Return the JSON of one cause; ``class`` has a fixed set of values."""
    if cause is None:
        return None
    return {
        "id": cause.id,
        "class": cause.cls,
        "title": cause.title,
        "file": cause.file,
        "line": cause.line or None,
        "text": cause.text,
        "rank": cause.rank,
        "host": cause.host,
    }
