"""Project templates: allowed overrides, and errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.errors import InputError
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from tests.needs import require_root
from tests.plan.making import plan

EXTENDS = '{% extends "hpcrun/job.sbatch.j2" %}\n'


def rendered(project: Path, text: str | bytes, name: str = "job.sbatch") -> str:
    """Render with one template of a project."""
    (project / "templates").mkdir()
    path = project / "templates" / f"{name}.j2"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    files = render_files(plan("script: a.py\nsecrets: [TOKEN]"), open_templates(project))
    return next(file.text for file in files if file.name == name)


def test_block_on_one_line_ends_with_its_line(tmp_path: Path) -> None:
    text = rendered(tmp_path, EXTENDS + "{% block setup %}module load x{% endblock %}")
    assert "\nmodule load x\n" in text


def test_secrets_do_not_depend_on_the_setup_block(tmp_path: Path) -> None:
    text = rendered(tmp_path, EXTENDS + "{% block setup %}{% endblock %}")
    assert '. "$HPCRUN_RUN_DIR/secrets.env" || exit 1' in text


def shipped(environ: dict[str, str]) -> list[str]:
    """Render the bundled templates, with compiled templates in the user's cache folder."""
    files = render_files(plan("script: a.py"), open_templates(None, environ))
    return [file.text for file in files]


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "hpcrun" / "templates").glob("*.cache"))


def test_compiled_templates_are_cached(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    wanted = shipped(environ)
    assert kept(tmp_path) and kept(tmp_path)[0].parent.stat().st_mode & 0o777 == 0o700
    written = [path.stat().st_mtime_ns for path in kept(tmp_path)]
    assert shipped(environ) == wanted
    assert [path.stat().st_mtime_ns for path in kept(tmp_path)] == written
    for path in kept(tmp_path):
        path.write_bytes(path.read_bytes()[:100])
    assert shipped(environ) == wanted


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_cache_writable_by_others_is_not_used(tmp_path: Path, mode: int) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = tmp_path / "hpcrun" / "templates"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    if mode & 0o020:
        require_root()
        os.chown(folder, -1, 12345)  # a group other than those of root and the user
    assert shipped(environ) and not kept(tmp_path)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert shipped(environ) and not kept(tmp_path)


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "/sys"])
def test_rendering_works_without_a_cache_folder(place: str) -> None:
    assert shipped({"XDG_CACHE_HOME": place})


def test_project_templates_are_not_cached(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "job.sbatch.j2").write_text(EXTENDS)
    render_files(plan("script: a.py"), open_templates(tmp_path, {"XDG_CACHE_HOME": str(tmp_path)}))
    assert not kept(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EXTENDS + "{% block setupp %}x{% endblock %}", "there is no block setupp"),
        ("#!/bin/bash\necho mine\n", "it overrides no block of hpcrun's template"),
        ("", "it overrides no block of hpcrun's template"),
        (EXTENDS + "{% block setup %}\n{{ nope }}\n{% endblock %}", "job.sbatch.j2:3: 'nope' is"),
        (EXTENDS + "{% block setup %}\n{% if %}\n{% endblock %}", "job.sbatch.j2:3: "),
        (EXTENDS + "{% block setup %}\n{{ 1 / 0 }}\n{% endblock %}", "job.sbatch.j2:3: division"),
        (EXTENDS + "{% block setup %}{{ range(10**9) }}{% endblock %}", "Range too big"),
        (EXTENDS + '{% block setup %}{{ "\\ud800" }}{% endblock %}', "surrogates not allowed"),
        (EXTENDS + '{% block setup %}{% include "job.sbatch.j2" %}{% endblock %}', "recursion"),
        ('{% extends "hpcrun/nope.j2" %}', "nope.j2"),
        (b"\xff\xfe", "templates/job.sbatch.j2: 'utf-8' codec"),
    ],
)
def test_template_mistakes_are_reported(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        rendered(tmp_path, text)
    assert message in str(caught.value)
