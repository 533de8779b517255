"""A project's own templates, rendered by Jinja.

The template loader is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import jinja2
import jinja2.meta

from hpcrun.errors import InputError
from hpcrun.plan.setup import uses_modules
from hpcrun.render.quoting import FILTERS


def render_own(loader: jinja2.BaseLoader, name: str, values: Mapping[str, object]) -> str:
    """Render ``NAME.j2``. Raises InputError for a template that is wrong."""
    environment = make_environment(loader)
    try:
        _check_template(environment, loader, f"{name}.j2")
        return environment.get_template(f"{name}.j2").render(values)
    except (jinja2.TemplateError, UnicodeDecodeError) as error:
        where, line = _place(error, f"{name}.j2")
        raise InputError(
            f"templates/{where}{f':{line}' if line else ''}: {error}",
            fix="mend the template in templates/",
        ) from error


def _check_template(environment: jinja2.Environment, loader: jinja2.BaseLoader, name: str) -> None:
    """A project's own template must override blocks of the shipped one. Raises InputError."""
    source, _, _ = loader.get_source(environment, name)
    if source == loader.get_source(environment, f"hpcrun/{name}")[0]:
        return
    bases = set(jinja2.meta.find_referenced_templates(environment.parse(source)))
    if not bases:
        raise InputError(
            f"templates/{name}: it overrides no block of hpcrun's template, but replaces it",
            fix=f'begin it with {{% extends "hpcrun/{name}" %}}',
        )
    known = environment.get_template(f"hpcrun/{name}").blocks
    for block in environment.get_template(name).blocks:
        if f"hpcrun/{name}" in bases and block not in known:
            raise InputError(
                f"templates/{name}: there is no block {block}",
                fix=f"the blocks are {', '.join(known)}",
            )


def _place(error: Exception, name: str) -> tuple[str, int | None]:
    """Where in a template an error is: Jinja's own word, else the traceback's."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            name, line = file.rpartition("/")[2], trace.tb_lineno
        trace = trace.tb_next
    return getattr(error, "name", None) or name, getattr(error, "lineno", None) or line


@lru_cache(maxsize=1)
def make_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """Make what templates are rendered in: a value that is missing is an error.

    Kept for the next call, since compiling templates takes longer than all else: the runs of a
    sweep share a loader.
    """
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(FILTERS)
    environment.filters["uses_modules"] = uses_modules
    return environment
