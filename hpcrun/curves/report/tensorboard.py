"""Export runs as TensorBoard event files, with one folder per run.

    FOLDER/train.log/events.out.tfevents.0000000000.hpcrun      tensorboard --logdir FOLDER

Tags match those of the Hugging Face Trainer, so that its runs share the same charts. If a log has
no steps, or if its step counter restarts, the order of the points is used instead. Wall times are
the timestamps of the log. Without timestamps, the cumulative step times are written as seconds
since 1970, or 0 if unknown, so that TensorBoard's "relative" axis shows durations and no point is
dated to the time of the export.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpcrun.curves.curve import Curve
from hpcrun.curves.names import LR
from hpcrun.curves.report.axes import x_axis
from hpcrun.curves.report.files import package_of
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.files import write_atomically, write_error

# The name is fixed so that a repeated export replaces the file; two files would draw two curves.
EVENT_FILE = "events.out.tfevents.0000000000.hpcrun"


def write_tensorboard(runs: Sequence[ParsedRun], folder: Path) -> None:
    """Write the event files, one folder per run.

    Raises:
        InputError: The tensorboard package is missing, or a file cannot be written.
    """
    with package_of("tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    for run, name in zip(runs, folder_names([run.source for run in runs]), strict=True):
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder / name, error) from error
        with write_atomically(folder / name / EVENT_FILE) as file:
            records = RecordWriter(file)
            records.write(Event(file_version="brain.Event:2").SerializeToString())
            for step, wall_time, values in _merge_events(run.curve):
                summary = Summary(
                    value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values]
                )
                event = Event(step=step, wall_time=wall_time, summary=summary)
                records.write(event.SerializeToString())


def tag(name: str) -> str:
    """Return the TensorBoard tag of a metric.

    >>> [tag(name) for name in ("loss", "eval_loss", "lr", "rewards/margins", "val/acc")]
    ['train/loss', 'eval/loss', 'train/learning_rate', 'train/rewards/margins', 'val/acc']
    """
    if name == LR:
        return "train/learning_rate"
    if re.match(r"(train|eval|val|valid|validation|test)/.", name):
        return name
    split, _, rest = name.partition("_")
    return f"{split}/{rest}" if split in ("train", "eval", "test") and rest else f"train/{name}"


def metric_tags(curve: Curve) -> dict[str, str]:
    """Return a tag for each metric, with a number if two metrics would share one."""
    return dict(zip(curve.metrics, _number_duplicates(map(tag, curve.metrics)), strict=True))


def folder_names(sources: Sequence[str]) -> list[str]:
    """Return a unique, portable folder name for each run, derived from the end of its source.

    If sources share their last path component, the parent folder is included.

    >>> folder_names(["a/train.log", "b/train.log", "../x y.out", "17", "17"])
    ['a-train.log', 'b-train.log', 'x_y.out', '17', '17-2']
    """
    parts = [[p for p in source.split("/") if p not in ("", ".", "..")] for source in sources]
    plain = []
    for part in parts:
        has_twin = any(other[-1:] == part[-1:] and other != part for other in parts)
        chosen = "-".join(part[-2:] if has_twin else part[-1:])
        chosen = re.sub(r"[^\w.+=@-]", "_", chosen, flags=re.ASCII)
        plain.append(chosen.strip(".")[-100:] or "run")
    return _number_duplicates(plain, "-")


def _number_duplicates(names: Iterable[str], mark: str = "_") -> list[str]:
    """Append numbers to repeated names, ignoring case as some file systems do.

    >>> _number_duplicates(["a", "A", "b", "a"])
    ['a', 'A_2', 'b', 'a_3']
    """
    chosen: list[str] = []
    taken: set[str] = set()
    for name in names:
        one, count = name, 1
        while one.lower() in taken:
            count += 1
            one = f"{name}{mark}{count}"
        taken.add(one.lower())
        chosen.append(one)
    return chosen


def _merge_events(curve: Curve) -> Iterator[tuple[int, float, list[tuple[str, float]]]]:
    """Yield (step, wall time, [(tag, value)]) in step order; equal steps and times are merged."""
    events: dict[tuple[int, float], list[tuple[str, float]]] = {}
    tags = metric_tags(curve)
    for name, series in curve.metrics.items():
        own_tag = tags[name]
        steps = x_axis(curve, name, "step") or x_axis(curve, name, "order") or []
        times: Sequence[float] = series.times or x_axis(curve, name, "time") or [0.0] * len(steps)
        for step, time, value in zip(steps, times, series.values, strict=True):
            events.setdefault((int(step), time), []).append((own_tag, value))
    for (step, time), values in sorted(events.items(), key=lambda event: event[0]):
        yield step, time, values
