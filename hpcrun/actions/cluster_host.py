"""The host on which Slurm's commands run: its login environment, directories and query results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from hpcrun.assets import home_dir
from hpcrun.context import Context, expand_user_path, refuse_other_clusters
from hpcrun.remote import Answers, FolderProbe, LoginEnvironment, Query, ReadOwnFiles, Transport
from hpcrun.runs import RUN_ID, parse_sweep_id


class HostEnvironment(Struct, frozen=True, kw_only=True):
    """The environment of a login on the host, and the directories of the runs and caches.

    Attributes:
        base: The directory for relative paths of jobs.
    """

    environ: Mapping[str, str]
    base: Path
    runs_dir: Path
    cache_dir: Path

    def resolve(self, text: str, where: str) -> Path:
        """Expand ``~`` and variables in a path that a job uses. Raises InputError."""
        return expand_user_path(text, self.environ, self.base, where)


class ClusterHost:
    """The host of a context's cluster; the result of each query is cached."""

    def __init__(self, login: HostEnvironment, transport: Transport, answers: Answers) -> None:
        self.login = login
        self.answers = answers
        self._transport = transport

    def run_queries(self, queries: Iterable[Query[Any]]) -> Answers:
        """Run the queries without a cached result in one round trip; return all results.

        Raises:
            OutOfReach: The host does not respond.
        """
        new = [query for query in queries if query not in self.answers]
        if new:
            self.answers = self.answers | self._transport.run_queries(new)
        return self.answers


def open_host(
    context: Context,
    queries: Iterable[Query[Any]] = (),
    environ: Mapping[str, str] | None = None,
) -> ClusterHost:
    """Query the login environment and all other known ``queries`` in one round trip.

    Args:
        environ: The login environment, if known; then no round trip may be needed.

    Raises:
        OutOfReach: The host does not respond.
        InputError: The profile names a variable that a login there does not have.
    """
    transport = context.transport()
    if context.cluster.host is None:
        login = HostEnvironment(
            environ=context.environ,
            base=context.project,
            runs_dir=context.runs_dir,
            cache_dir=context.cache_dir,
        )
        return ClusterHost(login, transport, transport.run_queries(queries))
    if environ is None:
        answers = transport.run_queries([LoginEnvironment(), *queries])
        environ = answers[LoginEnvironment()]
    else:
        answers = transport.run_queries(queries)
    return ClusterHost(_resolve_login(context, environ), transport, answers)


def find_user_name(context: Context) -> str:
    """Return the user's name on the cluster's host; "" if its login does not set one."""
    if context.session.user_name is None:
        environ = open_host(context).login.environ
        context.session.user_name = environ.get("USER") or environ.get("LOGNAME") or ""
    return context.session.user_name


def _resolve_login(context: Context, environ: Mapping[str, str]) -> HostEnvironment:
    """Resolve the directories of the profile of a remote cluster. Raises InputError."""
    refuse_other_clusters(context.cluster, environ)
    home, source, profile = Path(home_dir(environ)), context.cluster_source, context.cluster
    return HostEnvironment(
        environ=environ,
        base=home,
        runs_dir=expand_user_path(profile.runs_dir, environ, home, f"{source}: runs_dir"),
        cache_dir=expand_user_path(profile.cache_dir, environ, home, f"{source}: cache_dir"),
    )


FolderKey = Literal["runs_dir", "cache_dir"]


def probe_of_folder(context: Context, key: FolderKey) -> FolderProbe:
    """Return the query whether a directory of the profile is writable."""
    path, expands = _folder_text(context, key)
    return FolderProbe(path, expands=expands)


def files_in_cache(context: Context, name: str) -> ReadOwnFiles:
    """Return the query for the user's files in a subdirectory of the cache."""
    path, expands = _folder_text(context, "cache_dir")
    return ReadOwnFiles(f"{path}/{name}", expands=expands)


def _folder_text(context: Context, key: FolderKey) -> tuple[str, bool]:
    """Return a directory of the profile, and whether the host has to expand ~ and variables."""
    if context.cluster.host is None:
        return str(getattr(context, key)), False
    return str(getattr(context.cluster, key)), True


def find_local_path(context: Context, path: Path) -> Path | None:
    """Return the local path for a path of the cluster.

    Of a remote cluster, only the directories of its runs exist here, in the mirror. Return None for
    any other path, because a local file with the same name is a different file.
    """
    path = Path(os.path.normpath(path))  # ".." in a record must not lead out of the mirror
    if context.cluster.host is None:
        return path
    for folder in (path, *path.parents):
        mirrored = context.runs_dir / folder.name
        if (RUN_ID.fullmatch(folder.name) or parse_sweep_id(folder.name)) and mirrored.is_dir():
            return mirrored / path.relative_to(folder)
    return None
