"""The table of formats, tried in this order."""

from __future__ import annotations

from hpcrun.metrics.lines.formats.boosting import BOOSTING, ESTIMATOR
from hpcrun.metrics.lines.formats.form import Format
from hpcrun.metrics.lines.formats.pretraining import PRETRAINING
from hpcrun.metrics.lines.formats.speech import SPEECH
from hpcrun.metrics.lines.formats.trainers import TRAINERS
from hpcrun.metrics.lines.formats.vision import VISION

FORMATS: tuple[Format, ...] = (
    *PRETRAINING,
    *SPEECH,
    *TRAINERS,
    *VISION,
    *BOOSTING,
    *ESTIMATOR,
)
