"""Formats of programs that boost trees, and of TensorFlow's estimators."""

from __future__ import annotations

import re

from hpcrun.metrics.lines.dicts import finite
from hpcrun.metrics.lines.fields import Field, Shape, build_row
from hpcrun.metrics.lines.formats.form import Format, compiled
from hpcrun.metrics.lines.prefixes import Line
from hpcrun.metrics.row import Row
from hpcrun.patterns import pattern_of


def _read_round(found: re.Match[str], line: Line) -> Row | None:
    """Read what a round of boosting scored on each set of data, named as the line names it."""
    cells = found["cells"].strip().split("\t")
    pairs = [cell.rpartition(":") for cell in cells]
    fields = [Field("step", float(found["step"]))]
    fields += [Field(key.strip(), finite(number.split("+")[0])) for key, _, number in pairs]
    return build_row(fields, Shape(), sure=True, verbatim=True)


# xgboost: python-package/xgboost/callback.py (EvaluationMonitor), src/learner.cc (EvalOneIter);
# LightGBM: python-package/lightgbm/callback.py (log_evaluation). Of a cross validation the mean.
BOOSTING = (
    Format(
        name="xgboost",
        needle="]\t",
        pattern=compiled(
            r"\[(?P<step>\d+)\](?P<cells>(?:\t[\w@.]{1,80}-[\w@.-]{1,40}:⟨N⟩(?:\+⟨N⟩)?\s?)+)\s*\Z"
        ),
        read=_read_round,
        example="[10]\ttrain-rmse:0.50125\teval-rmse:0.60125",
        look_alike="[10]\ttrain-rmse:low\teval-rmse:high",
    ),
    Format(
        name="lightgbm",
        needle="]\t",
        pattern=compiled(
            r"\[(?P<step>\d+)\](?P<cells>(?:\t[\w ]{1,80}'s [\w@.-]{1,40}: ⟨N⟩(?: \+ ⟨N⟩)?)+)\s*\Z"
        ),
        read=_read_round,
        example="[10]\ttraining's l2: 0.50125\tvalid_1's l2: 0.60125",
        look_alike="[10]\tvalid_0's l2: unknown",
    ),
)
# TensorFlow: tensorflow_estimator/python/estimator/estimator.py (_write_dict_to_summary).
ESTIMATOR = (
    Format(
        name="tensorflow estimator",
        needle="Saving dict for global step ",
        pattern=pattern_of(r"Saving dict for global step (?P<step>\d+): (?P<rest>\S+ = .*)"),
        split="eval",
        example="Saving dict for global step 1000: accuracy = 0.75, global_step = 1000, loss = 0.5",
        look_alike="Saving dict for global step 1000: loss = see below",
    ),
)
