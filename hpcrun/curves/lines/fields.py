"""Parse the keys and values (fields) of a line, and build a row if they are a measurement.

Fields come from a dict, from a format, or from other text (``generic``). Numbers in a dict may be
bare, quoted, or wrapped as Python prints them (``tensor(2.3, device='cuda:0')``,
``np.float64(2.3)``). Of a list of learning rates, the first one is used. One level of nesting is
read if its key names a split (``{"train": {"loss": ..}}``) or is a general word for metrics.

Fields are a row only if they show that something was measured. The conditions are:

- with a step: at least one metric that only a training run has (``names.MEASURED``, any loss, a
  score), or only other positions (a heading);
- with an epoch but no step: a loss, a score or a throughput, which no configuration contains;
- with neither: a loss and only known names, on a line without any sign of code or configuration
  (indentation, a comma at the end, a spaced ``=``).

A row is unsure if a loss occurs with unknown names, or on a line that does not consist of items
only. Unsure rows count only if such lines recur (``Store.proven_logs``). Settings are never rows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from operator import itemgetter

from msgspec import structs

from hpcrun.curves.names import (
    ELAPSED_SECONDS,
    EPOCH_RANK,
    EPOCH_SECONDS,
    LOSS,
    LOSSES,
    LR,
    MEASURED,
    RANK_SPELLINGS,
    SPLIT_SPELLINGS,
    SPLITS,
    STEP_RANK,
    STEP_SECONDS,
    TOTAL_SPELLINGS,
    UNITS,
    fold,
    is_loss_name,
    is_position_key,
    is_score_name,
    is_step_key,
    metric_of,
    name_in,
    name_of,
    split_of,
    words,
)
from hpcrun.curves.row import Field, LineFields, Row
from hpcrun.curves.scope import decide_scope, decide_split
from hpcrun.patterns import pattern_of

# Larger numbers are not counters. Every JSON reader represents integers up to this limit exactly.
LARGEST_COUNT = 2**53


# Repetitions are bounded so that lines that nearly match take linear time.
NUMBER = (
    r"[+-]?0{0,9}(?:[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)(?![\w])"
    r"|[+-]?(?:\d{1,3}(?:,\d{3}){1,6}(?!,?\d)(?:\.\d{1,40})?|\d{1,40}(?:\.\d{1,40}|\.(?![\w.]))?"
    r"|\.\d{1,40})(?:[eE][+-]?\d{1,4})?"
)
# Number objects of libraries as printed by Python: tensor(2.5, device='cuda:0'), np.float64(2.5).
WRAPPED = (
    r"(?:tensor|array|Array|DeviceArray|(?:np|numpy|torch|jnp|mx)\.\w{1,16})"
    rf"\([ ]?\[?(?P<wrapped>{NUMBER})\]?[^()]{{0,80}}(?:\([^()]{{0,80}}\)[^()]{{0,40}})?\)"
)
# Units of errors and scores: "RMSE_F=684.2 meV / A", "PSNR: 30.5 dB".
QUANTITY_UNIT = (
    r"(?:[mk]?eV|k(?:cal|J)/mol|mHa|dB|GPa)(?:[ ]?/[ ]?(?:A|Å|Ang(?:strom)?s?|atoms?)(?:\^?[23])?)?"
)
_QUANTITY_UNIT = pattern_of(QUANTITY_UNIT)
# Keys of nested dicts whose content belongs to the line.
_NESTED_KEYS = words(
    "metrics logs log values scalars stats data results metric train_metrics fields payload extra"
)

# Keys beside the "mean" of a dict that summarizes many values of one metric.
_STATISTICS = words("std stddev var min max median count n sum")
# Keys that contain the name of an object's "value".
_NAMES = ("metric", "name", "tag")

# Python literals that differ from JSON. Lists and wrapped numbers are reduced to one number.
_PYTHON = pattern_of(
    rf"""
    (?P<string> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
    | (?P<number> {NUMBER} ) (?= \s{{0,9}} [,}}] )
    | {WRAPPED}
    | \[ [ ]? (?P<listed> {NUMBER} )? [^\[\]{{}}]{{0,2000}} \]
    | \( [^(){{}}]{{0,400}} \)
    | [A-Za-z_][\w.]{{0,60}}
    """,
    re.VERBOSE,
)
_BRACES = pattern_of(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def finite(text: str) -> float:
    """Parse a number; raise ValueError if it exceeds a float.

    >>> finite("1.63e+6"), finite("00nan")  # as {:05.3f} pads it
    (1630000.0, nan)
    """
    value = float(text if text[-1:] not in ("n", "N", "f", "F") else text.replace("0", ""))
    if math.isinf(value) and text[-1] in "0123456789.":
        raise ValueError(text)
    return value


_DECODER = json.JSONDecoder(parse_float=finite, parse_int=finite)


def read_json(text: str, start: int = 0) -> tuple[dict[str, object], int] | None:
    """Decode a JSON object that begins at ``start``; return it and where it ends.

    >>> read_json('x {"a": 1, "b": NaN} y', 2)
    ({'a': 1.0, 'b': nan}, 20)
    """
    try:
        found, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return (found, end) if isinstance(found, dict) else None


def read_dict(text: str, start: int = 0) -> tuple[list[Field], int] | None:
    """Read a JSON object or Python dict that begins at ``start``; None if invalid or cut off.

    >>> read_dict("{'loss': '2.5', 'lr': [1e-4, 1e-4], 'n': None} tail")
    ([Field(key='loss', value=2.5, unit='', of=None, split=''), \
Field(key='lr', value=0.0001, unit='', of=None, split='')], 46)
    """
    if text.startswith(('{"', '{ "'), start) and (found := read_json(text, start)):
        return fields_of(found[0]), found[1]
    if (braces := _BRACES.match(text, start)) is None:
        return None
    read = read_json(_PYTHON.sub(_to_json, braces.group()))
    return None if read is None else (fields_of(read[0]), braces.end())


def _to_json(found: re.Match[str]) -> str:
    if found["string"]:
        return json.dumps(found["string"][1:-1])
    number = found["number"] or found["wrapped"]
    return f'"{number}"' if number else f'["{found["listed"]}"]' if found["listed"] else "null"


def fields_of(values: Mapping[str, object], split: str = "") -> list[Field]:
    """Return the numbers and words of a decoded object; other values are ignored.

    >>> [field.key for field in fields_of({"a": 1.0, "b": "2.5", "c": None, "d": {"e": 1.0}})]
    ['a', 'b']
    >>> fields_of({"val": {"loss": 1.0}})
    [Field(key='loss', value=1.0, unit='', of=None, split='eval')]
    >>> fields_of({"Loss/loss": {"mean": 2.5, "std": 0.25}})
    [Field(key='Loss/loss', value=2.5, unit='', of=None, split='')]
    """
    fields: list[Field] = []
    if named := next((values[key] for key in _NAMES if isinstance(values.get(key), str)), ""):
        values = {str(named) if key == "value" else key: value for key, value in values.items()}
    for key, value in values.items():
        if isinstance(value, list) and value and name_of(key) == LR:
            value = value[0]  # one per parameter group
        if isinstance(value, float):
            fields.append(Field(key, value, split=split))
        elif isinstance(value, str | bool):
            word = str(value)
            if counted := _COUNTED.fullmatch(word):
                count, of = map(float, counted.groups())
                fields.append(Field(key.partition("/")[0], count, of=of, split=split))
            else:
                fields.append(Field(key, number_or_word(word), split=split))
        elif isinstance(value, dict):
            if isinstance(mean := value.get("mean"), float) and not _STATISTICS.isdisjoint(value):
                fields.append(Field(key, mean, split=split))
            elif key.lower() == "losses" or is_loss_name(key):
                fields += named_losses(key, fields_of(value, split))
            elif not split and (key.lower() in SPLITS or key.lower() in _NESTED_KEYS):
                fields += fields_of(value, SPLITS.get(key.lower(), ""))
    return fields


def named_losses(key: str, fields: list[Field]) -> list[Field]:
    """Prefix the names in a dict of losses, so that "classification" is recognized as a loss.

    >>> [field.key for field in named_losses("losses", [Field("cls", 1.0), Field("box_loss", 2.0)])]
    ['loss/cls', 'box_loss']
    """
    if key.lower().endswith("losses"):
        key = key[:-2]
    return [
        field
        if isinstance(field.value, str) or is_loss_name(field.key) or is_known(field.key)
        else structs.replace(field, key=f"{key}/{field.key}")
        for field in fields
    ]


_COUNTED = pattern_of(r"(\d{1,15})/(\d{1,15})", re.ASCII)
_WHOLE_NUMBER = pattern_of(NUMBER)


def number_or_word(text: str) -> float | str:
    """Return a string as a number if possible, otherwise the string.

    >>> number_or_word("1.5e3"), number_or_word("mse"), number_or_word("1_0")
    (1500.0, 'mse', '1_0')
    """
    number = text.removesuffix("%")
    with suppress(ValueError):
        return finite(number) if _WHOLE_NUMBER.fullmatch(number) else text
    return text


def to_count(value: float | str) -> int | None:
    """Convert a value to a step number, or return None if it is not one.

    >>> to_count(12.0), to_count(1630000.0), to_count(0.5), to_count(-1.0), to_count("x")
    (12, 1630000, None, None, None)
    """
    if isinstance(value, str) or not 0 <= value < LARGEST_COUNT or value != int(value):
        return None
    return int(value)


def build_row(
    found: LineFields, *, sure: bool = False, verbatim: Collection[str] = ()
) -> Row | None:
    """Build the row of a line; return None if its fields are not a measurement.

    Args:
        found: The fields of the line, which are modified.
        sure: Whether the format of the line proves that it is a measurement.
        verbatim: Keys that are kept as names without interpretation.

    >>> row = build_row(LineFields([Field("step", 3.0, of=10.0), Field("loss", 2.5)]))
    >>> row.step, row.total, row.scope.split, row.values
    (3, 10, 'train', (('loss', 2.5),))
    >>> build_row(LineFields([Field("step", 30.0), Field("lr", 0.1)]))  # a scheduler's
    """
    split = decide_split(found)
    place = _find_position(found, split)
    if place is None:
        return None
    found.fields = _rename_total(found.fields, place.step is not None or place.epoch is not None)
    values = _name_values(found.fields, split, verbatim)
    _add_epoch_time(found, place, split, values)
    is_sure = sure or _judge(found, place, values)
    if is_sure is None or (not values and place.step is None):
        return None
    scope, values = decide_scope(found.fields, split, values)
    return structs.replace(place, scope=scope, values=tuple(values.items()), is_sure=is_sure)


def _rename_total(fields: list[Field], is_placed: bool) -> list[Field]:
    """Rename a total, or mean squared errors of both splits, to losses if the line has no loss.

    >>> [field.key for field in _rename_total([Field("loss_cls", 1.0), Field("total", 3.0)], False)]
    ['loss_cls', 'total_loss']
    >>> errors = [Field("train MSE", 1.5), Field("val MSE", 2.5)]
    >>> [field.key for field in _rename_total(errors, True)]
    ['train_loss', 'eval_loss']
    """
    lost = [field.key for field in fields if is_loss_name(field.key)]
    if any(name_of(key) in LOSSES for key in lost):
        return fields
    # "Total: 2.5 | PDE: 1.25 | IC: 0.5", but not "data 0.1 forward 0.2 total 0.5".
    parts = [f for f in fields if not (isinstance(f.value, str) or f.unit or is_known(f.key))]
    timed = sum(fold(part.key) in _TIMED for part in parts) > 1  # "data" alone is a term
    summed = len(parts) > 2 and not timed and all(float(part.value) % 1 for part in parts)
    errors: dict[str, str] = {}
    if is_placed and not lost and any(fold(field.key) in _TRAINING_ERROR for field in fields):
        sides = ((field.key, split_of(field.key)) for field in fields)
        errors = {key: f"{side}_loss" for key, side in sides if side and fold(key)[-4:] == "_mse"}
    if lost or (summed and is_placed):
        errors |= {f.key: "total_loss" for f in fields if f.key.lower() == "total"}
    return [structs.replace(field, key=errors.get(field.key, field.key)) for field in fields]


_TRAINING_ERROR = ("train_mse", "training_mse")
_TIMED = words("data load forward backward fwd bwd optim optimizer compute comm")
_BATCH = ("batch", "batches", "batch_idx", "batch_id")


def _find_position(found: LineFields, split: str) -> Row | None:
    """Find the position (step, epoch) of a line of a split.

    A field with the name of a counter is not a position if a better counter precedes it: in
    "step: 10 .. iter: 0.3", the second number is a duration.

    Returns:
        A row without values; None if the best step on the line is not a count.
    """
    rank, is_rounded = None, False
    steps: list[tuple[int, bool, Field]] = []
    epochs: list[tuple[int, float]] = []
    totals: list[int | None] = []
    for field in found.fields:
        if field.unit in ("k", "K") and fold(field.key) in STEP_RANK:  # "step: 12K"
            field = structs.replace(field, value=1000.0 * float(field.value), unit="")
            is_rounded = True
        key, value, count = fold(field.key), field.value, to_count(field.value)
        if is_step_key(field.key, field.unit):
            steps.append((STEP_RANK[key], bool(field.unit) or count is None, field))
        elif key in EPOCH_RANK and not field.unit:
            epochs += [] if isinstance(value, str) else [(EPOCH_RANK[key], value)]
        elif not isinstance(value, str):
            rank = count if key in RANK_SPELLINGS else rank
            totals += [count] if key in TOTAL_SPELLINGS else []
    step = total = epoch = None
    of_training, is_batch = split in ("", "train"), False
    if steps:
        _, is_none, best = min(steps, key=itemgetter(0, 1))
        if is_none and not found.counters:
            return None
        # "[10/90] .. Batch 0.25 (0.3)": seconds; "(5/80) .. Step: 1k": the exact one counts.
        steps = [] if is_none or (is_rounded and found.counters) else steps
    if steps:
        is_batch = fold(best.key).endswith(_BATCH)
        total = to_count(-1.0 if best.of is None else best.of)
        if of_training or not is_batch:  # an evaluation counts its own batches
            step = to_count(best.value)
        # "iteration:3 step:100/1687": the counter without a total contains the one with a total.
        around = (field.value for *_, field in steps if field.of is None is not best.of)
        epochs = epochs or [(0, value) for value in around if isinstance(value, float)]
    if epochs:
        _, named = min(epochs, key=itemgetter(0))
        epoch = named if abs(named) < LARGEST_COUNT else None
    counters = found.counters
    own_total = total is not None and counters[:1] != [(step, total)]
    # "[1/100] batch 50/646". A batch number beside a counter may also be the batch size.
    if epoch is None and (len(counters) > 1 or (counters and (own_total or is_batch))):
        epoch = float(counters[0][0])
    if counters and step is None:
        count, total = counters[-1]
        step = count if of_training else None
    if step is not None and total is None and totals:
        total = totals[0]
    return Row(step, epoch, rank=rank, total=total, bar=found.bar, is_rounded=is_rounded)


def _name_values(fields: list[Field], split: str, verbatim: Collection[str]) -> dict[str, float]:
    """Return values by canonical name; of several spellings of a metric, use the lowest rank."""
    # Tuples of name, rank, key and value.
    named: list[tuple[str, int, str, float]] = []
    for field in fields:
        value, key, known = field.value, fold(field.key), metric_of(field.key, field.unit)
        measured, factor = UNITS.get(field.unit.lower(), ("", 1.0))
        is_time = not field.unit or measured == STEP_SECONDS
        is_time &= _ELAPSED.search(key) is not None or (bool(field.unit) and key in _SPENT)
        if is_time and not isinstance(value, str):
            named.append((ELAPSED_SECONDS, 0, field.key, value * factor))
            continue
        if (
            isinstance(value, str)
            or key in _NOT_METRICS
            or (key in _TIME_STAMPS and value > _EARLIEST_STAMP)
            or (not field.unit and is_position_key(key))
        ):
            continue
        if field.key in verbatim:
            named.append((field.key, 0, field.key, value))
        elif field.of is not None and is_score_name(field.key):
            continue  # 9840/10000
        elif known is None:
            if _is_unit_of_score(field):
                name = name_in(split or field.split, field.key)
                named.append((name, 0, name, value))
        elif known.split in ("eval", "test") and known.name not in LOSSES:
            named.append((field.key, 0, field.key, value))
        else:
            name = name_in(known.split or field.split or split, known.name)
            named.append((name, known.rank, field.key, known.scale(value)))
    plainest = {name: rank for name, rank, *_ in sorted(named, key=itemgetter(1), reverse=True)}
    values: dict[str, float] = {}
    for name, rank, key, value in named:
        own = name if rank == plainest[name] and name not in values else name_in(split, key)
        if own == name or own not in LOSSES:  # a second loss must not become that of another split
            values.setdefault(own, value)
    if LR not in values:
        # Of several networks, use the first: "Generator Learning Rate: 2e-4, Discriminator ..".
        rates = (own for own in values if own not in verbatim and _OWN_LR.fullmatch(fold(own)))
        if (first := next(rates, None)) is not None:
            values[LR] = values[first]
    return values


def _is_unit_of_score(field: Field) -> bool:
    """Return True if a metric without a unit of its own may have the unit of a field.

    >>> [_is_unit_of_score(Field("RMSE_F", 684.25, unit)) for unit in ("", "meV / A", "s")]
    [True, True, False]
    """
    if not field.unit or (field.unit == "%" and not name_of(field.key)):
        return True
    return _QUANTITY_UNIT.fullmatch(field.unit) is not None


def is_time_of_epoch(key: str) -> bool:
    """Return True if a key without a step beside it may name the time of an epoch."""
    return fold(key) in _EPOCH_TIMES


def is_elapsed_time(key: str) -> bool:
    """Return True if a key may name the time since the start."""
    folded = fold(key)
    return folded in _SPENT or _ELAPSED.search(folded) is not None


def _add_epoch_time(found: LineFields, place: Row, split: str, values: dict[str, float]) -> None:
    """Add the time that an epoch took, or the time since the last such line.

    A line without a step states no time of a step.
    """
    if place.step is not None or found.counters or found.bar is not None:
        return
    if split not in ("", "train") or EPOCH_SECONDS in values:
        return
    for field in found.fields:
        key, (measured, factor) = fold(field.key), UNITS.get(field.unit.lower(), ("", 1.0))
        is_time = key in _EPOCH_TIMES and measured == STEP_SECONDS
        is_time |= key in _TIMES_OF_EPOCH and place.epoch is not None and not field.unit
        if is_time and isinstance(field.value, float):
            values[EPOCH_SECONDS] = field.value * factor
            return


_EPOCH_TIMES = words("epoch_time time_per_epoch epoch_duration time_epoch epoch_train_time")
_EPOCH_TIMES |= words("train_epoch_time")
_EPOCH_TIMES |= words(
    "time train_time training_time time_cost time_taken time_elapsed duration took"
)
# These need no unit on a line with an epoch.
_TIMES_OF_EPOCH = words(
    "training_cost time_cost epoch_seconds s_epoch train_epoch_time epoch_time time_per_epoch"
    " epoch_duration training_time train_time"
)
_OWN_LR = pattern_of(
    r"(?!min|max|base|warmup|init|final|start|end|target|peak)[a-z]+_(?:lr|learning_rate)"
)


def _judge(found: LineFields, place: Row, values: dict[str, float]) -> bool | None:
    """Judge whether the values are a measurement.

    Returns:
        True for a measurement, False if it is one only if such lines recur, None if it is not one.
    """
    if found.bar is not None:
        return True
    names = values.keys()
    lost = not LOSSES.isdisjoint(names)
    settings = not _SETTINGS.isdisjoint(fold(field.key) for field in found.fields)
    if not (values or found.stray_items or found.has_dict):
        # "Epoch: 2, global_step=25600" is the heading of a step.
        only_places = len(found.fields) > 1 and all(is_position_key(f.key) for f in found.fields)
        return True if only_places else None
    if (
        place.epoch is not None
        or found.counters
        or any(is_step_key(f.key, f.unit) for f in found.fields)
    ):
        lost = lost or any(map(is_loss_name, names))
        # "Epoch: [1][20/100] lr: 0.001" is the heading of its step. An integer named "error" is an
        # error code or count, not a score.
        scores = [name for name in names if values[name] % 1 or "error" not in name.lower()]
        shown = any(map(is_score_name, scores)) or (names == {LR} and place.total is not None)
        if settings and place.step is None:
            return None
        if not (lost or shown or MEASURED & names):
            # Other quantities count only if they recur in the log of a training.
            is_other = any(not is_known(name) for name in names) and not settings
            return False if is_other and not (found.stray_items or found.is_code) else None
        return True if not found.stray_items else False if lost or shown else None
    if any(map(is_loss_name, names)) and not found.stray_items:
        # "Generator loss: 2.5, Discriminator loss: 1.5", "recon loss: 2.5  ppl: 12.2"
        lost = lost or all(is_loss_name(name) or is_score_name(name) for name in names)
    if names == {LR} and not settings:
        return False  # "Current learning rate: 5e-4"
    if not lost:
        _drop_counts(values)
        return False if _states_scores(found, names) and not settings else None
    if found.stray_items and LOSS in values:
        return None  # "Pretrained model - loss: 2.5"
    if found.has_dict and any(split_of(f.key) and name_of(f.key) in LOSSES for f in found.fields):
        return True  # {"train/loss": 2.5, "train/dice": 0.5}
    worded = any(isinstance(field.value, str) for field in found.fields)
    known = all(is_known(field.key, field.unit) for field in found.fields)
    if known and not (found.is_code or found.stray_items):
        return True
    return None if worded or settings else False


def _drop_counts(values: dict[str, float]) -> None:
    """Drop counts of what was evaluated: the samples of {"accuracy": 0.5, "num_samples": 800}."""
    for name in [*values]:
        if _COUNT.match(fold(name)) and values[name] % 1 == 0:
            del values[name]


_COUNT = pattern_of(r"(?:num|n|number|total|count|nb)_|(?:count|support|samples|examples)\Z")


def _states_scores(found: LineFields, names: Collection[str]) -> bool:
    """Return True if a line without a position states scores, and otherwise only known names."""
    scores = [*filter(is_score_name, names)]
    others = [field for field in found.fields if field.key not in names]
    return (
        bool(scores)
        and _CONDITIONS.isdisjoint("_".join(map(fold, names)).split("_"))
        and all(is_known(name) or is_score_name(name) for name in names)
        and not any(isinstance(field.value, str) for field in others)
        and found.stray_items <= _MAX_STRAY_BESIDE_SCORES
    )


_MAX_STRAY_BESIDE_SCORES = 1
# Words of settings and of scores that were not measured here.
_CONDITIONS = words(
    "target threshold thresh weight coef min max minimum maximum best highest lowest patience delta"
    " expected baseline previous prev training_precision mixed bf16 fp16 fp32 amp dtype loss scale"
)
# Names of settings, and names that accompany losses of another kind, as in trading.
_SETTINGS = words(
    "batch_size num_workers max_epochs num_epochs epochs weight_decay momentum seed max_steps "
    "num_layers hidden_size dropout lr_scheduler optimizer wd bs hidden_dim max_depth n_estimators "
    "profit profits pnl win wins draw draws gain"
)


def is_known(key: str, unit: str = "") -> bool:
    """Return True if a key has a known meaning.

    >>> is_known("grad norm"), is_known("Global Step"), is_known("step_time"), is_known("gamma")
    (True, True, True, False)
    """
    folded = fold(key)
    return (
        folded in _KNOWN_KEYS
        or (folded.endswith("_time") and folded.count("_") < 3)
        or any(metric_of(key, each) is not None for each in (unit, "ms", "GB"))
        or (is_score_name(key) and folded.count("_") < 4)
    )


# Names of numbers that are not metrics: ranks, totals, counts of nan, elapsed and remaining times.
_NOT_METRICS = (
    RANK_SPELLINGS
    | TOTAL_SPELLINGS
    | words("nan inf total_time total_used_time elapsed elapsed_time eta remaining")
)
# Names of the seconds since the start, in loggers of Chainer, Stable-Baselines and RLlib.
_ELAPSED = pattern_of(r"(?:\A|_)(?:elapsed_time|time_elapsed|elapsed_s(?:econds)?|time_total_s)\Z")
# Names of the time since the line before, or since the start, which need a unit.
_SPENT = words("spent time_spent elapsed")
# Names of seconds since 1970; smaller numbers are durations.
_TIME_STAMPS = words("timestamp time_ms time ts wall_time walltime unix_time unixtime created")
_EARLIEST_STAMP = 1.4e9
_TIMES = words("time eta elapsed remaining mfu tflops flops duration ppl")
_KNOWN_KEYS = {*STEP_RANK, *EPOCH_RANK} | RANK_SPELLINGS | SPLIT_SPELLINGS | _TIMES
_KNOWN_KEYS |= {ELAPSED_SECONDS, EPOCH_SECONDS}
