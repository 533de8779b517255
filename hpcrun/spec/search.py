"""The search of a sweep: its settings, and the space from which values are drawn."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct

# Values of a sweep that are text, and not a list or a range, are settings of its search.
METHODS = ("grid", "random", "tpe")
RANKING = ("metric", "goal", "prune", "prune_from", "prune_factor")
SETTINGS = ("search", "trials", "parallel", "search_seed", *RANKING)
GOALS = ("minimize", "maximize")
# Digits of drawn numbers, which is more than a training depends on.
_DIGITS = 6
_MAX_INT = 1 << 53


class Range(Struct, frozen=True, kw_only=True):
    """A range of numbers, both ends included, from which values are drawn.

    Attributes:
        kind: float, log (uniform in the logarithm) or int.
    """

    kind: Literal["float", "log", "int"]
    low: float
    high: float

    def describe(self) -> str:
        """Describe the range.

        >>> Range(kind="log", low=1e-5, high=1e-1).describe()
        '1e-05 to 0.1, log'
        """
        kind = {"float": "", "log": ", log", "int": ", whole numbers"}[self.kind]
        return f"{self.low:.{_DIGITS}g} to {self.high:.{_DIGITS}g}{kind}"

    def draw(self, share: float) -> str:
        """Return the value at a share of the range, from 0 up to 1.

        >>> lr = Range(kind="log", low=1e-5, high=1e-1)
        >>> lr.draw(0.5), Range(kind="int", low=2, high=4).draw(0.99)
        ('0.001', '4')
        """
        if self.kind == "int":
            low = int(self.low)
            return str(min(low + int(share * (int(self.high) - low + 1)), int(self.high)))
        if self.kind == "log":
            start, end = math.log(self.low), math.log(self.high)
            value = math.exp(start + share * (end - start))
        else:
            value = self.low + share * (self.high - self.low)
        rounded = float(f"{value:.{_DIGITS}g}")
        inside = min(max(rounded, self.low), self.high)
        return f"{rounded:.{_DIGITS}g}" if inside == rounded else repr(inside)


class Search(Struct, frozen=True, kw_only=True):
    """How the runs of a sweep are chosen.

    Attributes:
        method: grid, random or tpe.
        metric: What the runs are ranked by, with its name in ``hpcrun parse``.
        goal: minimize or maximize.
        prune: asha, or None.
        prune_from: The step of the first rung; None: derived from the first complete run.
        prune_factor: One of this many runs continues at each rung.
        space: The values of each parameter, or the range that they are drawn from.
    """

    method: str = "grid"
    trials: int | None = None
    parallel: int | None = None
    seed: int = 0
    metric: str | None = None
    goal: str = "minimize"
    prune: str | None = None
    prune_from: int | None = None
    prune_factor: int = 4
    space: dict[str, list[str] | Range] = {}

    def describe_pruning(self) -> str:
        """Describe the steps at which runs are compared; "" without pruning.

        >>> Search(prune="asha", prune_from=100).describe_pruning()
        'asha at steps 100, 400, 1600 ...: the best 1 of 4 continue'
        """
        if self.prune is None:
            return ""
        factor = self.prune_factor
        if self.prune_from is None:
            when = f"at 1% of the steps of the first complete run, then at {factor} times the step"
        else:
            steps = ", ".join(str(self.prune_from * factor**rung) for rung in range(3))
            when = f"at steps {steps} ..."
        return f"{self.prune} {when}: the best 1 of {factor} continue"

    @property
    def size(self) -> int | None:
        """The number of combinations; None if the space is continuous."""
        counts = [
            len(values)
            if isinstance(values, list)
            else int(values.high) - int(values.low) + 1
            if values.kind == "int"
            else None
            for values in self.space.values()
        ]
        known = [count for count in counts if count is not None]
        return math.prod(known) if len(known) == len(counts) else None

    def draw(self, number: int) -> dict[str, str]:
        """Draw a combination. Equal numbers give equal values, on any machine.

        >>> search = Search(method="random", space={"act": ["relu", "gelu"]})
        >>> [search.draw(number)["act"] for number in range(4)]
        ['gelu', 'relu', 'relu', 'gelu']
        """
        drawn = {}
        for key, values in self.space.items():
            digest = hashlib.sha256(f"{self.seed}\0{number}\0{key}".encode()).digest()
            share = int.from_bytes(digest[:6], "big") / (1 << 48)
            if isinstance(values, list):
                drawn[key] = values[int(share * len(values))]
            else:
                drawn[key] = values.draw(share)
        return drawn


def read_search(sweep: Mapping[str, Any]) -> tuple[Search, list[tuple[str, str]]]:
    """Read the search of a sweep, and the problems as pairs of key and message.

    >>> sweep = {"search": "random", "trials": "8", "lr": {"log": ["1e-5", "1e-2"]}}
    >>> read_search(sweep)[0].space
    {'lr': Range(kind='log', low=1e-05, high=0.01)}
    >>> read_search({"lr": "1e-4"})[1]
    [('lr', 'expected a list, as in [a, b], or a range, as in {log: [1e-5, 1e-2]}; got 1e-4')]
    """
    problems: list[tuple[str, str]] = []
    given = {key: value for key, value in sweep.items() if isinstance(value, str)}
    space: dict[str, list[str] | Range] = {}
    for key, values in sweep.items():
        if isinstance(values, str):
            if key not in SETTINGS:
                message = "expected a list, as in [a, b], or a range, as in {log: [1e-5, 1e-2]}"
                problems.append((key, f"{message}; got {values}"))
        elif isinstance(values, list):
            space[key] = values
        else:
            found = _read_range(values)
            if isinstance(found, str):
                problems.append((key, found))
            else:
                space[key] = found
    method = given.get("search", "grid")
    if method not in METHODS:
        expected = ", ".join(METHODS)
        problems.append(("search", f"expected one of {expected}; got {method}"))
    numbers: dict[str, int] = {}
    for key, least in (
        *(("trials", 1), ("parallel", 1), ("search_seed", 0)),
        *(("prune_from", 1), ("prune_factor", 2)),
    ):
        if key in given:
            is_number = given[key].isascii() and given[key].isdecimal() and len(given[key]) < 10
            if not is_number or int(given[key]) < least:
                message = f"expected a whole number, at least {least}; got {given[key]}"
                problems.append((key, message))
            else:
                numbers[key] = int(given[key])
    if method == "grid":
        problems += [
            (key, f"only with search: {' or '.join(METHODS[1:])}")
            for key in ("trials", "search_seed")
            if key in given
        ]
        problems += [
            (key, "a range needs search: random and trials, the number of runs")
            for key, values in space.items()
            if isinstance(values, Range)
        ]
    elif method in METHODS and "trials" not in given:
        problems.append(("trials", "is missing: the number of runs"))
    metric, goal = given.get("metric"), given.get("goal", "minimize")
    if goal not in GOALS:
        problems.append(("goal", f"expected one of {', '.join(GOALS)}; got {goal}"))
    if "goal" in given and metric is None:
        problems.append(("goal", "only with metric, whose goal it is"))
    if method == "tpe" and metric is None:
        message = "is missing: search: tpe minimizes a metric of the curve, as in metric: eval_loss"
        problems.append(("metric", message))
    if metric is not None and not re.fullmatch(r"[A-Za-z][A-Za-z0-9 _/.@-]*", metric):
        message = f"expected the name of a metric, as in eval_loss; got {metric}"
        problems.append(("metric", message))
    prune = given.get("prune")
    if prune is not None and prune != "asha":
        problems.append(("prune", f"expected asha; got {prune}"))
    if prune is not None and metric is None:
        message = "needs a metric by which runs are compared, as in metric: eval_loss"
        problems.append(("prune", message))
    problems += [
        (key, "only with prune: asha")
        for key in ("prune_from", "prune_factor")
        if key in given and prune is None
    ]
    search = Search(
        method=method,
        trials=numbers.get("trials"),
        parallel=numbers.get("parallel"),
        seed=numbers.get("search_seed", 0),
        metric=metric,
        goal=goal,
        prune=prune,
        prune_from=numbers.get("prune_from"),
        prune_factor=numbers.get("prune_factor", 4),
        space=space,
    )
    return search, problems


def _read_range(values: Mapping[str, list[str]]) -> Range | str:
    """Read a range, as in {log: [1e-5, 1e-2]}, or return what is wrong."""
    if len(values) != 1:
        return "expected one range, as in {log: [1e-5, 1e-2]}"
    ((kind, ends),) = values.items()
    try:
        low, high = (float(end) for end in ends)
    except ValueError:
        return f"{kind}: expected two numbers, the lowest and the highest value"
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return f"{kind}: expected two numbers, the lower one first; got {', '.join(ends)}"
    if kind == "log" and low <= 0:
        return f"log: expected numbers above 0; got {', '.join(ends)}"
    if kind == "int" and (low != int(low) or high != int(high) or max(-low, high) > _MAX_INT):
        return f"int: expected whole numbers; got {', '.join(ends)}"
    return Range(kind=cast(Literal["float", "log", "int"], kind), low=low, high=high)
