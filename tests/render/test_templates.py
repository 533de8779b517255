"""A project's own templates: what they may change, and what is told when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.assets import Templates
from hpcrun.errors import InputError
from hpcrun.render.files import render_files
from tests.plan.making import plan

EXTENDS = '{% extends "hpcrun/job.sbatch.j2" %}\n'


def rendered(project: Path, text: str | bytes, name: str = "job.sbatch") -> str:
    """Render with one template of the project's own."""
    (project / "templates").mkdir()
    path = project / "templates" / f"{name}.j2"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    files = render_files(plan("script: a.py\nsecrets: [TOKEN]"), Templates(project))
    return next(file.text for file in files if file.name == name)


def test_a_block_on_one_line_ends_with_its_line(tmp_path: Path) -> None:
    text = rendered(tmp_path, EXTENDS + "{% block setup %}module load x{% endblock %}")
    assert "\nmodule load x\n" in text


def test_secrets_do_not_depend_on_the_setup_block(tmp_path: Path) -> None:
    text = rendered(tmp_path, EXTENDS + "{% block setup %}{% endblock %}")
    assert '. "$HPCRUN_RUN_DIR/secrets.env" || exit 1' in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (EXTENDS + "{% block setupp %}x{% endblock %}", "there is no block setupp"),
        ("#!/bin/bash\necho mine\n", "it overrides no block of hpcrun's template"),
        ("", "it overrides no block of hpcrun's template"),
        (EXTENDS + "{% block setup %}\n{{ nope }}\n{% endblock %}", "job.sbatch.j2:3: 'nope' is"),
        (EXTENDS + "{% block setup %}\n{% if %}\n{% endblock %}", "job.sbatch.j2:3: "),
        ('{% extends "hpcrun/nope.j2" %}', "nope.j2"),
        (b"\xff\xfe", "templates/job.sbatch.j2: 'utf-8' codec"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        rendered(tmp_path, text)
    assert said in str(caught.value)
