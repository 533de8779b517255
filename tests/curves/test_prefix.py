"""A truncated log yields a prefix of its curve; any numbers yield a curve."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.curves.parsing import parse_chunks

Line = Callable[[int, float], str]


def trainer_with_bar(step: int, loss: float) -> str:
    """Return the HF Trainer's output: the bar, the dictionary, the bar again."""
    drawn = f"\r{step:3d}%|####      | {step}/100 [00:{step % 60:02d}<01:00,  1.00s/it]"
    return f"{drawn}{' ' * 30}\n{{'loss': {loss:.4f}, 'epoch': {step / 40:.3f}}}\n{drawn}"


LINES: dict[str, Line] = {
    "pairs": lambda step, loss: f"[INFO] step={step} loss={loss:.4f} lr=1.0e-04\n",
    "json": lambda step, loss: json.dumps({"step": step, "loss": round(loss, 4)}) + "\n",
    "two counters": lambda step, loss: (
        f"Epoch: [{step // 10}][{step % 10:2d}/10]\tLoss {loss:.4f} ({loss:.4f})\n"
    ),
    "heading": lambda step, loss: (
        ("" if step % 10 else f"Epoch {step // 10 + 1}/20\n")
        + f"step: {step % 10 + 1}/10, loss: {loss:.4f}\n"
    ),
    # From 1 on: a first row of epoch 0.000 alone looks like one of a whole epoch.
    "trainer": lambda step, loss: f"{{'loss': {loss:.4f}, 'epoch': {(step + 1) / 40:.3f}}}\n",
    "trainer with a bar": trainer_with_bar,
}


def write(line: Line, steps: int) -> bytes:
    """Return a log of this many steps."""
    return "".join(line(step, 2 + 8 * math.exp(-step / 30)) for step in range(steps)).encode()


def points(data: bytes) -> list[tuple[int | None, float]]:
    """Read the training losses."""
    curve = parse_chunks("x", [(0, [data])]).curve
    return [*zip(curve.steps("loss"), curve.values("loss"), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_truncated_log_yields_a_prefix_of_the_curve(name: str, data: st.DataObject) -> None:
    log = write(LINES[name], 60)
    whole = points(log)
    assert len(whole) == 60
    cut = data.draw(st.integers(0, len(log)))
    found = points(log[:cut])
    assert found == whole[: len(found)]
    assert len(found) >= len(whole) * (cut - 200) // len(log) - 1


_NUMBERS = ("0", "1", "2", "7", "10", "0.5", "-1", "nan", "inf", "1e300", "99999999999", "9" * 20)
_FORMS = (
    "Epoch: [{}][{}/{}] loss {}\n",
    "{{'loss': {}, 'epoch': {}}}\n",
    "step={} loss={} lr={}\n",
    "Epoch {}/{}\n",
    "\r {}%|###| {}/{} [00:10<00:20, 1.0it/s]",
    "[{}/{}] batch {}/{} loss={}\n",
    "Resuming training from checkpoint step {}\n",
)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(_FORMS), st.lists(st.sampled_from(_NUMBERS), min_size=5)))
)
def test_extreme_numbers_do_not_crash(lines: list[tuple[str, list[str]]]) -> None:
    data = "".join(form.format(*numbers) for form, numbers in lines).encode()
    parse_chunks("x", [(0, [data]), (1, [data[: len(data) // 2]])], limit=20)
