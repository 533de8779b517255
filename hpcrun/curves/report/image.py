"""Draw the curves of runs as a PNG, SVG or PDF image.

The output is byte-identical for identical runs and the same version of matplotlib.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.curves.names import (
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    SAMPLES_PER_SECOND,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from hpcrun.curves.report.axes import (
    FEWEST,
    Axis,
    By,
    is_visibly_noisy,
    panel_scale,
    shared_axis,
    smooth,
    tick_labels,
    time_unit,
    x_axis,
)
from hpcrun.curves.report.facts import has_curve, main_metric, point_text
from hpcrun.curves.report.files import checked_suffix, package_of
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.errors import InputError
from hpcrun.files import write_atomically
from hpcrun.text import format_count, format_value, truncate_start

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib's metadata by suffix, without the date, so that output is reproducible.
_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": "hpcrun"},
    ".pdf": {"CreationDate": None, "Creator": "hpcrun"},
}
TITLES = {
    LOSS: "loss",
    EVAL_LOSS: "evaluation loss",
    LR: "learning rate",
    GRAD_NORM: "gradient norm",
    TOKENS_PER_SECOND: "tokens per second",
    SAMPLES_PER_SECOND: "samples per second",
    STEP_SECONDS: "seconds per step",
}
_X_LABELS: dict[By, str] = {
    "step": "step",
    "epoch": "epoch",
    "tokens": "tokens",
    "time": "time",
    "order": "point, in the order of the log",
}
# Paul Tol's "bright" scheme and two colours of his "vibrant" scheme: distinct in grayscale and for
# colour-blind readers.
_COLOURS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE", "#EE7733", "#009988")
_PLAIN: Any = {"parse_math": False}  # a "$" in a name is literal, not TeX
_GREY = "#777777"
_FEW = 40  # up to this number, points get markers
_MOST_INSIDE = 9  # a legend of more entries is placed below the axes
_ALARM = "#cc3311"
_DASHES = ("-", "--", ":", "-.")
# Typed as Any because matplotlib's type for settings enumerates every key.
_STYLE: Any = {
    "svg.hashsalt": "hpcrun",  # a fixed salt makes the ids reproducible
    "svg.fonttype": "none",  # text elements instead of paths: smaller, and searchable
    "pdf.fonttype": 42,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "font.size": 9.0,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#444444",
    "xtick.color": "#666666",
    "ytick.color": "#666666",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "path.simplify": True,
    "agg.path.chunksize": 10000,
}


def write_image(runs: Sequence[ParsedRun], path: Path, *, by: By = "step") -> None:
    """Draw the runs into an image file whose suffix selects the format.

    Args:
        runs: The runs to draw.
        path: The output file.
        by: The quantity on the x axis, used if the logs of all runs provide it.

    Raises:
        InputError: The suffix is not supported, or the file cannot be written.
    """
    suffix = checked_suffix(path, "plot")
    with package_of("plot"):
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    if not any(run.curve.metrics for run in runs):
        raise InputError(f"{path}: there is no metric to draw")
    with matplotlib.rc_context(), warnings.catch_warnings(), write_atomically(path) as file:
        warnings.simplefilter("ignore")  # glyphs that the font lacks
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, runs, by)
        figure.savefig(file, format=suffix[1:], metadata=_METADATA.get(suffix))


def _draw(figure: Figure, runs: Sequence[ParsedRun], by: By) -> None:
    runs = [run for run in runs if run.curve.metrics]
    large = [main_metric(runs) or LOSS]
    # Show the speed metric that the most runs have.
    speeds = (TOKENS_PER_SECOND, SAMPLES_PER_SECOND, STEP_SECONDS)
    speed = max(speeds, key=lambda name: sum(name in run.curve.metrics for run in runs))
    small = [
        name
        for name in (EVAL_LOSS, LR, GRAD_NORM, speed)
        if name not in large
        and any(math.isfinite(value) for run in runs for value in run.curve.values(name))
    ]
    # Evaluation losses share a panel with training losses only if both have positions on the same
    # axis.
    curves = [run.curve for run in runs]
    if EVAL_LOSS in small and all(
        shared_axis(curves, name, by) == by for name in (*large, EVAL_LOSS)
    ):
        small.remove(EVAL_LOSS)
        large.append(EVAL_LOSS)
    small = [name for name in small if has_curve(runs, name)]
    rows = 2 if small else 1
    figure.set_size_inches(9.6, 5.2 + 1.9 * (rows - 1))
    grid = figure.add_gridspec(rows, max(1, len(small)), height_ratios=[3.0, 1.0][:rows])
    top = figure.add_subplot(grid[0, :])
    has_trend = _draw_panel(top, runs, large, by, ticks=(9, 8))
    _head(top, runs, large[0])
    _draw_legend(figure, top, _legend_entries(runs, large, has_trend=has_trend))
    for column, name in enumerate(small):
        below = figure.add_subplot(grid[1, column])
        _draw_panel(below, runs, [name], by, ticks=(max(4, 9 // len(small)), 5))
        below.set_title(TITLES[name], loc="left", fontsize=9, color="#333333")


def _draw_panel(
    axes: Axes, runs: Sequence[ParsedRun], names: Sequence[str], by: By, ticks: tuple[int, int]
) -> bool:
    """Draw metrics of all runs into one panel.

    Args:
        axes: The panel.
        runs: The runs.
        names: The metrics to draw.
        by: The quantity on the x axis.
        ticks: Maximum number of ticks on the x and y axes.

    Returns:
        Whether smoothed trends were drawn.
    """
    by = shared_axis([run.curve for run in runs], names[0], by)
    scale, beyond = panel_scale(runs, names)
    _set_value_ticks(axes, scale, most=ticks[1])
    size, unit = 1.0, _X_LABELS[by]
    if by == "time":
        axis_of_each = (x_axis(run.curve, name, by) for name in names for run in runs)
        size, unit = time_unit(max(x[-1] for x in axis_of_each if x))
    axes.set_xlabel(unit)
    axes.locator_params(axis="x", nbins=ticks[0], integer=by != "time")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.margins(x=0.01)
    axes.set_axisbelow(True)
    lines = [
        ([place / size for place in x], run.curve.values(name), _line_style(runs, names, n, row))
        for row, name in enumerate(names)
        for n, run in enumerate(runs)
        if (x := x_axis(run.curve, name, by))
    ]
    noisy = any(is_visibly_noisy(x, values, scale) for x, values, _ in lines)
    for x, values, look in lines:
        _draw_line(axes, x, values, look, with_trend=noisy and len(x) >= FEWEST)
    for number, run in enumerate(runs):
        colour = _line_style(runs, names, number, 0)["color"] if len(runs) > 1 else _GREY
        for restart in run.curve.restarts if by == "step" else ():
            if restart.resumed_at is not None:
                axes.axvline(restart.resumed_at, color=colour, ls=(0, (4, 4)), lw=0.8, zorder=1.5)
    if beyond:
        text = f"{format_count(beyond, 'value')} beyond this axis"
        axes.annotate(text, (0.995, 0.01), xycoords="axes fraction", ha="right", fontsize=7)
    return noisy


def _set_value_ticks(axes: Axes, scale: Axis, most: int) -> None:
    """Scale the y axis and label it with plain numbers instead of superscript exponents."""
    if scale.is_log:
        axes.set_yscale("log")
        axes.minorticks_off()
    at = scale.ticks(most)
    has_thousands = not scale.is_log and 10_000 <= scale.high < 1e9
    labels = [f"{tick:,.0f}" for tick in at] if has_thousands else None
    axes.set_yticks(at, labels or tick_labels(at, is_log=scale.is_log))
    axes.set_ylim(scale.low, scale.high)


def _line_style(
    runs: Sequence[ParsedRun], names: Sequence[str], number: int, place: int
) -> dict[str, Any]:
    """Return the line style: runs differ in colour and dash, metrics of a single run in colour."""
    if len(runs) == 1:
        return {"color": _COLOURS[place], "lw": 1.5}
    turn, colour = divmod(number, len(_COLOURS))
    dash = _DASHES[turn % len(_DASHES)]
    return {"color": _COLOURS[colour], "ls": dash, "lw": 0.9 if place else 1.5}


def _draw_line(
    axes: Axes, x: list[float], y: list[float], look: dict[str, Any], *, with_trend: bool
) -> None:
    finite = [value if math.isfinite(value) else math.nan for value in y]
    marker = {"marker": "o", "ms": 4, "mfc": "white"} if len(x) <= _FEW else {}
    faint = {"lw": 0.7, "alpha": 0.3} if with_trend else {}
    axes.plot(x, finite, **(look | marker | faint))
    if with_trend:
        axes.plot(x, smooth(x, finite), **look)
    broken = [place for place, value in zip(x, y, strict=True) if not math.isfinite(value)]
    if broken:
        ground, low = axes.get_xaxis_transform(), [0.02] * len(broken)
        axes.plot(broken, low, "x", color=_ALARM, ms=5, mew=1.4, transform=ground, clip_on=False)


def _head(axes: Axes, runs: Sequence[ParsedRun], name: str) -> None:
    title = truncate_start(runs[0].source, 80) if len(runs) == 1 else f"{len(runs)} runs"
    axes.set_title(title, loc="left", fontsize=13, weight="bold", color="#222222", pad=22, **_PLAIN)
    axes.annotate(
        *(_outcome(runs, name), (0, 1), (0, 7)),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9,
        color="#555555",
        **_PLAIN,
    )


def _outcome(runs: Sequence[ParsedRun], name: str) -> str:
    text = TITLES.get(name, truncate_start(name, 60))
    summary = runs[0].curve.summary(name)
    if len(runs) > 1 or summary is None:
        return text
    text += f" {format_value(summary.first.value)} → {format_value(summary.last.value)}"
    if summary.min is not None:
        text += f", lowest {point_text(summary.min)}"
    if restarts := runs[0].curve.restarts:
        text += f", {format_count(len(restarts), 'restart')}"
    return text


def _legend_entries(
    runs: Sequence[ParsedRun], names: Sequence[str], *, has_trend: bool
) -> list[tuple[str, dict[str, Any]]]:
    """List the legend entries as (text, line style)."""
    if len(runs) == 1:
        shown = [
            (TITLES.get(name, truncate_start(name, 44)), 0, place)
            for place, name in enumerate(names)
        ]
    else:
        shown = [(truncate_start(run.source, 44), number, 0) for number, run in enumerate(runs)]
    entries = [(label, _line_style(runs, names, number, place)) for label, number, place in shown]
    grey: dict[str, Any] = {"color": _GREY}
    if len(runs) > 1 and len(names) > 1:
        entries.append((TITLES[names[1]], grey | {"lw": 0.9, "marker": "o", "mfc": "white"}))
    if has_trend:
        entries.append(("raw values", grey | {"lw": 0.8, "alpha": 0.4}))
    if any(restart.resumed_at is not None for run in runs for restart in run.curve.restarts):
        entries.append(("restart", grey | {"ls": (0, (4, 4)), "lw": 0.8}))
    if not all(math.isfinite(v) for run in runs for name in names for v in run.curve.values(name)):
        entries.append(("not finite", {"color": _ALARM, "marker": "x", "ls": ""}))
    return entries


def _draw_legend(figure: Figure, axes: Axes, entries: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Add a legend inside the axes, or below the figure if it has many entries."""
    if len(entries) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], ms=5, **look) for _, look in entries]
    numbers = [str(number) for number in range(len(entries))]
    look: Any = {"fontsize": 8, "edgecolor": "none", "framealpha": 0.85}
    if len(entries) <= _MOST_INSIDE:
        legend = axes.legend(handles, numbers, loc="upper right", **look)
    else:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.2 * math.ceil(len(entries) / 2))
        legend = figure.legend(handles, numbers, loc="outside lower center", ncols=2, **look)
    # matplotlib hides lines whose label begins with "_", so the text is set afterwards.
    for text, (label, _) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
