"""Build the Jinja environment from a project's templates and those that hpcrun ships.

This is the only module of the package that reads files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcrun.assets import build_hook, cache_dir, shipped_folder
from hpcrun.errors import InputError
from hpcrun.ownership import is_own, refuse_foreign_file


def open_templates(
    project: Path | None, environ: Mapping[str, str] | None = None, *, is_sent: bool = False
) -> jinja2.Environment:
    """Open a project's own templates, with the shipped ones as fallback.

    ``hpcrun/NAME`` always names a shipped template. Undefined values are errors. A project's
    templates run in Jinja's sandbox, where they cannot reach Python.

    Args:
        project: The project, whose templates are in ``templates/``.
        environ: Enables the cache of compiled shipped templates in the user's cache folder. A
            project's templates are not cached, because each copy has another path.
        is_sent: True if the result is sent to another machine; links out of the project are errors
            then.
    """

    class ProjectLoader(jinja2.FileSystemLoader):
        """Loads a project's templates, and adds the line end that a one-line block lacks."""

        def get_source(
            self, environment: jinja2.Environment, template: str
        ) -> tuple[str, str, Callable[[], bool]]:
            source, filename, uptodate = super().get_source(environment, template)
            refuse_foreign_file(Path(filename), "a template writes what a job runs")
            top = os.path.realpath(project or "")
            if is_sent and not Path(os.path.realpath(filename)).is_relative_to(top):
                raise InputError(
                    f"{filename}: a symbolic link to a file outside the project, whose content "
                    "would be sent to the cluster",
                    fix="copy the template into the project",
                )
            whole = re.sub(r"([^\n])(\{%-?\s*endblock)", r'\1{{ "\\n" }}\2', source)
            return whole, filename, uptodate

    own = None if project is None else project / "templates"
    built_in = jinja2.FileSystemLoader(shipped_folder("templates"))
    with_archive = jinja2.ChoiceLoader([jinja2.FunctionLoader(_load_archive), built_in])
    loaders: list[jinja2.BaseLoader] = [jinja2.PrefixLoader({"hpcrun": with_archive}), built_in]
    is_own = own is not None and own.is_dir()
    if own is not None and is_own:
        loaders.insert(0, ProjectLoader(own))
    kind = jinja2.Environment
    if is_own:
        kind = ImmutableSandboxedEnvironment
    return kind(
        loader=jinja2.ChoiceLoader(loaders),
        bytecode_cache=None if environ is None or is_own else _bytecode_cache(environ),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _load_archive(name: str) -> str | None:
    """Return an archive as text that encodes its bytes (surrogateescape)."""
    return build_hook().decode("utf-8", "surrogateescape") if name == "hook.pyz" else None


def _bytecode_cache(environ: Mapping[str, str]) -> jinja2.BytecodeCache | None:
    """Open the cache of compiled templates; None without a folder that only the user can write.

    The cache contains code, so a folder that others can write is not used.
    """
    folder = cache_dir(environ) / "templates"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except (OSError, ValueError):
        return None
    if not is_own(info) or not stat.S_ISDIR(info.st_mode):
        return None

    class Cache(jinja2.FileSystemBytecodeCache):
        """Ignores errors, so that a full or read-only disk does not prevent submission."""

        def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
            with contextlib.suppress(OSError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
            with contextlib.suppress(OSError):
                super().dump_bytecode(bucket)

    return Cache(str(folder))
