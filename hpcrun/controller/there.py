"""What a job meets where it runs: variables, paths, files; here, or asked of the cluster's host.

Questions about files are collected: settle() computes as if all were there, asks about all of them
in one trip, and computes again by the answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from msgspec import Struct

from hpcrun.assets import home_dir
from hpcrun.controller.context import Context, user_path
from hpcrun.errors import InputError, OutOfReach
from hpcrun.transport import Result

T = TypeVar("T")

# Of each path, one on a line, letters for what it is; see look().
_LOOK = r"""
shopt -s nullglob dotglob
while IFS= read -r -d '' path; do
  found=-
  [[ -f $path ]] && found+=f; [[ -d $path ]] && found+=d; [[ -e $path ]] && found+=e
  [[ -x $path ]] && found+=x; [[ -w $path ]] && found+=w
  if [[ -d $path ]]; then inside=("$path"/*); ((${#inside[@]} == 0)) || found+=n; fi
  top=/${path#/}; top=/$(cut -d/ -f2 <<<"$top"); [[ -e $top ]] || found+=?
  printf '%s\n' "$found"
done
"""


class There(Struct, frozen=True):
    """The cluster's own words: a login's variables, and the folders of the runs and of caches."""

    environ: Mapping[str, str]
    runs_dir: Path
    cache_dir: Path


def there(context: Context) -> There:
    """Return what jobs meet; where the cluster is another machine, it is asked once."""
    if context.cluster.host is None:
        return There(context.environ, context.runs_dir, context.cache_dir)
    if None not in context.asked:
        answer = _ask(context, ["env", "-0"])
        if answer.exit_code != 0:
            raise OutOfReach(f"{context.cluster.host}: env ended with code {answer.exit_code}")
        pairs = (line.partition("=") for line in answer.stdout.split("\0") if "=" in line)
        context.asked[None] = {name: value for name, _, value in pairs}
    environ = cast(Mapping[str, str], context.asked[None])
    home, source, profile = Path(home_dir(environ)), context.cluster_source, context.cluster
    return There(
        environ,
        user_path(profile.runs_dir, environ, home, f"{source}: runs_dir"),
        user_path(profile.cache_dir, environ, home, f"{source}: cache_dir"),
    )


def _ask(context: Context, argv: Sequence[str], stdin: str | None = None) -> Result:
    """Ask what can be asked twice: again, where the link broke meanwhile."""
    transport = context.transport()
    try:
        return transport.run(argv, stdin=stdin)
    except OutOfReach as lost:
        if not lost.maybe_done:
            raise
        return transport.run(argv, stdin=stdin)


def path_there(context: Context, text: str, where: str) -> Path:
    """Fill ``~`` and variables of a path that a job uses. Raises InputError."""
    if context.cluster.host is None:
        return user_path(text, context.environ, context.project, where)
    environ = there(context).environ
    return user_path(text, environ, Path(home_dir(environ)), where)


def look(context: Context, path: Path | str) -> str:
    """Say what a path is where jobs run, by letters: e there, f file, d folder, x may be run,
    w may be written, n not empty; ? even its top folder is unknown there."""
    name = str(path)
    if context.cluster.host is None:
        return _look_here(Path(path))
    if name not in context.asked:
        context.asked[name] = None
    found = context.asked[name]
    return "efdxwn" if found is None else str(found)


def _look_here(path: Path) -> str:
    found = "e" if path.exists() else ""
    found += ("f" if path.is_file() else "") + ("d" if path.is_dir() else "")
    found += "".join(x for x, mode in (("x", os.X_OK), ("w", os.W_OK)) if os.access(path, mode))
    if path.is_dir() and os.access(path, os.R_OK) and any(path.iterdir()):
        found += "n"
    return found if found or Path(*path.parts[:2]).exists() else "?"


def settle(context: Context, compute: Callable[[], T]) -> T:
    """Compute what looks at files there; all that it looks at costs one trip, mostly.

    Raises what ``compute`` raises.
    """
    while True:
        error, found = None, None
        try:
            found = compute()
        except InputError as refused:
            error = refused
        wanted = [name for name, what in context.asked.items() if name and what is None]
        if not wanted:
            if error is not None:
                raise error
            return found  # type: ignore[return-value]
        stdin = "".join(f"{name}\0" for name in wanted)
        answer = _ask(context, ["bash", "-c", _LOOK], stdin)
        lines = answer.stdout.split("\n")
        for number, name in enumerate(wanted):
            context.asked[name] = lines[number] if number < len(lines) else ""


def here(context: Context, path: Path) -> Path:
    """Return the place in the mirror of a path in a run's folder; all else as it is."""
    if context.cluster.host is not None:
        for folder in (path, *path.parents):
            mirrored = context.runs_dir / folder.name
            if folder.name[:8].isdigit() and mirrored.is_dir():
                return mirrored / path.relative_to(folder)
    return path
