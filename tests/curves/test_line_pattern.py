"""A learned pattern reads a line like the line reader does, or not at all."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.curves.lines.formats.known import FORMATS
from hpcrun.curves.lines.line import read_line
from hpcrun.curves.lines.line_pattern import (
    LinePattern,
    NumberSlot,
    is_noise,
    layout_of,
    learn_pattern,
)
from hpcrun.curves.row import Mark, Row, TableHead

Answer = tuple[str, Row | Mark | TableHead] | None


def agrees(pattern: LinePattern, line: str) -> bool:
    """Return True if a pattern matches a line and agrees with the line reader."""
    found = pattern.regex.fullmatch(line.encode())
    if found is None:
        return True
    shown = read_line(line)
    if shown is None or not isinstance(shown[1], Row):
        return False
    row = pattern.rows[None] if pattern.key is None else None
    same_layout = pattern.key is not None or (
        row is not None and layout_of(pattern.format, row) == layout_of(shown[0], shown[1])
    )
    return same_layout and pattern.explains(found.groups(), shown[1])


def by_shape(learned_from: str, line: str) -> Row | None:
    """What a pattern of one line says of another: the first's row with the other's numbers."""
    first = learned_from.encode()
    pattern = learn_pattern(first, read_line)
    assert pattern is not None, learned_from
    assert agrees(pattern, line), (learned_from, line)
    shown = read_line(line)
    if pattern.regex.fullmatch(line.encode()) is None or shown is None:
        return None
    return shown[1] if isinstance(shown[1], Row) else None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("step=1 loss=2.5 lr=1e-05", "step=1234 loss=0.125 lr=3e-16"),
        ("step: 9, loss: 2.5, step_time: 250ms", "step: 10, loss: 12.5, step_time: 1500ms"),
        ("step=1 loss=-0.5", "step=2 loss=0.25"),
        ("step=1 loss=.239", "step=2 loss=.24"),
        ("step=1 loss=-.239", "step=2 loss=-.5"),
        ('{"step": 3, "loss": 2.1, "memory": 7}', '{"step": 40, "loss": 20.125, "memory": 123}'),
        ("2026-11-20 08:04:09,098 step=1 loss=2.5", "2027-01-02 18:14:59,123 step=2 loss=2.25"),
        ("[rank0]: step=1 loss=2.5", "[rank12]: step=7 loss=3.5"),
        (
            " iteration        6/   20000 | consumed samples:         3072 | elapsed time per "
            "iteration (ms): 104.2 | lm loss: 1.092833E+01 | loss scale: 1.0 | skipped:   0 |",
            " iteration    10006/   20000 | consumed samples:      5123072 | elapsed time per "
            "iteration (ms): 96.2 | lm loss: 2.092833E+00 | loss scale: 65536.0 | skipped:  12 |",
        ),
        (
            "  6%|#         | 6/100 [00:00<33:19,  9.60it/s]",
            "100%|##########| 100/100 [33:19<00:00, 10.20it/s]",
        ),
        ("step     9 loss  2.5000 lr 1e-05", "step 10009 loss 12.5000 lr 1e-05"),
    ],
)
def test_lines_of_one_shape_share_a_pattern(first: str, second: str) -> None:
    assert by_shape(first, second) is not None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("step=1 loss=2.5", "step=-1 loss=2.5"),
        ("step=1 loss=2.5", "step=1.5 loss=2.5"),
        ("step=1 loss=2.5", "step=1 loss=2.5 x"),
        ("step=1 loss=2.5", "step=1 loss=nan"),
        ("step=1 loss=2.5", "step=1 loss=2"),
        ("step=1 loss=2.5", "step=1 loss=2.5e-05"),
        ("step=1 loss=2.5", "step=1 loss=2.5.1"),
        ("step=1 loss=2.5", "step=1234567890123456789 loss=2.5"),
        ("step=1 loss=2", "step=1 loss=" + "1" * 400),
    ],
)
def test_lines_of_another_shape_do_not_match_the_pattern(first: str, second: str) -> None:
    text = second.encode()
    pattern = learn_pattern(first.encode(), read_line)
    assert pattern is not None
    assert pattern.regex.fullmatch(text) is None


def test_every_example_is_learned_or_refused_but_never_misread() -> None:
    learned = 0
    for form in FORMATS:
        line = form.example.encode()
        pattern = learn_pattern(line, read_line)
        if pattern is None:
            continue
        learned += 1
        assert pattern.regex.fullmatch(line) is not None, form.name
        assert agrees(pattern, form.example), form.name
    assert learned > len(FORMATS) // 2


def test_noise_is_recognized_with_any_numbers() -> None:
    assert is_noise(b"epoch of rank 3 took 4.5 s", read_line)
    assert not is_noise(b"step=1 loss=2.5", read_line)


NUMBERS = st.one_of(
    st.integers(0, 10**9).map(str),
    st.floats(0, 1e6, allow_nan=False).map(lambda value: f"{value:.4f}"),
    st.floats(1e-9, 1e6, allow_nan=False).map(lambda value: f"{value:.3e}"),
    st.integers(1000, 10**9).map(lambda value: f"{value:,}"),
    st.sampled_from(["nan", "inf", "0", "007", "1.", "-3.5", "1:02:03", "2026-11-20"]),
)
PRINTED = st.from_regex(r"[-+]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][-+]?[0-9]{1,2})?", fullmatch=True)


@pytest.mark.slow
@given(st.lists(PRINTED, min_size=1))
def test_numbers_match_float(texts: list[str]) -> None:
    found = NumberSlot(0, 0).convert([text.encode() for text in texts])
    assert [*map(float, found)] == [*map(float, texts)]


KEYS = st.sampled_from(
    ["step", "loss", "lr", "epoch", "grad_norm", "tokens_per_second", "eta", "rank", "eval_loss"]
)


@pytest.mark.slow
@given(
    st.lists(st.tuples(KEYS, NUMBERS, NUMBERS), min_size=1, max_size=6),
    st.sampled_from(["=", ": ", ":", " "]),
    st.sampled_from([" ", ", ", " | ", "  ", " - "]),
    st.sampled_from(["", "[rank1]: ", "2026-11-20 08:04:09,098 - x - INFO - ", "3: "]),
)
def test_patterns_of_random_pair_lines_agree_with_the_reader(
    pairs: list[tuple[str, str, str]], sign: str, between: str, prefix: str
) -> None:
    first, second = (
        prefix + between.join(f"{pair[0]}{sign}{pair[which]}" for pair in pairs) for which in (1, 2)
    )
    shown = read_line(first)
    if shown is None or not isinstance(shown[1], Row):
        return
    pattern = learn_pattern(first.encode(), read_line)
    if pattern is None:
        return
    assert agrees(pattern, second), (first, second)
    for line in (first, second):
        assert agrees(pattern, line.replace(" ", "  ")), (first, line)


LINES = sorted(
    {
        line
        for path in (Path(__file__).parent / "logs").iterdir()
        for line in re.split(r"[\n\r\0]", path.read_text(encoding="utf-8", errors="replace"))
        if 10 < len(line) < 400
    }
)


@pytest.mark.slow
def test_patterns_of_real_lines_match_other_numbers_and_blanks() -> None:
    """Mutate every twelfth line of the project's logs: a pattern says the same, or nothing."""
    rng, tried = random.Random(1), 0
    for line in LINES[::12]:
        shown = read_line(line)
        if shown is None or not isinstance(shown[1], Row):
            continue
        pattern = learn_pattern(line.encode(), read_line)
        if pattern is None:
            continue
        tried += 1
        places = [found.start() for found in re.finditer(" ", line)]
        for place in rng.sample(places, min(4, len(places))):
            assert agrees(pattern, f"{line[:place]} {line[place:]}"), line
        digits = [found.start() for found in re.finditer(r"\d", line)]
        for place in rng.sample(digits, min(4, len(digits))):
            if re.search("[:%]", line[max(0, place - 3) : place + 5]):
                continue  # no program prints 1100 %, nor 1 h 234 min
            wider = f"{line[:place]}{rng.randrange(1, 10)}{line[place:]}"
            assert agrees(pattern, wider), wider
    assert tried > 75
