"""The Python that hpcrun's templates were translated to says what Jinja makes of them."""

from __future__ import annotations

import jinja2
import pytest

from hpcrun.assets import Templates, shipped
from hpcrun.plan.types import Plan
from hpcrun.render import shipped as translated
from hpcrun.render.files import template_values
from hpcrun.render.own import render_own
from tests.pairs import pairwise
from tests.render import test_combinations as combinations
from tests.render import test_golden as golden
from tests.render.translate import SHIPPED, TEMPLATES, translate

FACTORS = {
    "preset": combinations.PRESETS,
    "launcher": combinations.LAUNCHERS,
    "fabric": combinations.FABRICS,
    "nodes": ["1", "2"],
}


def test_it_is_that_of_today() -> None:
    made = translate(jinja2.FileSystemLoader(shipped("templates")))
    assert SHIPPED.read_text() == made, "make templates"


def same(plan: Plan) -> None:
    values = template_values(plan) | {"before": "/runs/a.", "after": "-b c"}
    for name in TEMPLATES:
        by_jinja = render_own(Templates(None).loader(), name, values)
        assert translated.RENDER[name](values) == by_jinja, name


@pytest.mark.parametrize("case", golden.CASES)
def test_it_says_what_jinja_makes_of_the_golden_cases(case: str) -> None:
    same(golden.plan_of(case))


@pytest.mark.slow
def test_it_says_what_jinja_makes_of_any_two_settings() -> None:
    for row in pairwise(FACTORS):
        same(combinations.plan_of(**row))


def test_what_has_no_translation_is_named() -> None:
    templates = {f"{name}.j2": "{% for one in plan recursive %}{% endfor %}" for name in TEMPLATES}
    with pytest.raises(NotImplementedError, match=r"array.sbatch:1: For"):
        translate(jinja2.DictLoader(templates))
