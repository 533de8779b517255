"""The context of a command: its project, its cluster and the directory of its runs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from stat import S_IWOTH
from string import Template
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct, field, structs

from hpcrun import files
from hpcrun.assets import config_dir, home_dir, state_dir
from hpcrun.errors import InputError
from hpcrun.ownership import is_trusted, refuse_foreign_file
from hpcrun.remote import Connect, LocalTransport, ShowProgress, Transport, no_progress_bar
from hpcrun.sandbox import check_owned, sandbox_dir
from hpcrun.spec import Cluster, EnvironmentKind

if TYPE_CHECKING:
    from hpcrun.remote import Prompts

PROFILE = "hpcrun.yaml"

# Variables of a surrounding job or launcher that a new job must not inherit: options for another
# submission, and the ranks of another process group. Complete names are listed where users may have
# variables with the same prefix.
_SCRUB_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SRUN_",
    "SBATCH_",
    "SALLOC_",
    "HPCRUN_",
    "TORCHELASTIC_",
    "PMI_",
    "PMIX_",
    "OMPI_",
)
# Variables that the user sets to configure hpcrun.
_KEEP_NAMES = frozenset({"HPCRUN_CLUSTER", "HPCRUN_SANDBOX_DIR", "HPCRUN_TRUST"})
_SLURM_VARIABLES = ("SLURM_CONF", "SLURM_JWT")
_SCRUB_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE"}
    | {"LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
# These variables would change hpcrun's own Slurm commands: SQUEUE_PARTITION hides jobs, and
# SCANCEL_INTERACTIVE makes scancel prompt. Jobs keep them because they belong to the user.
_SLURM_OPTION_PREFIXES = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")
# Variables to remove, keyed by the variable that shows that hpcrun runs inside a job: those set by
# Slurm, and those set by hpcrun's harness.
_SCRUB_INSIDE = {
    "SLURM_JOB_ID": {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"},
    "HPCRUN_RUN_DIR": {
        *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"),
        *("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
    },
}

# The variables of the user's shell that a job with a clean environment keeps: the user's identity
# and home, the locale, and the location of the site's module system (but not the loaded modules).
_CLEAN_NAMES = frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "KRB5CCNAME"}
    | {"MODULESHOME", "LMOD_PKG", "LMOD_CMD"}
)
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


class CommandState(Struct, kw_only=True):
    """State that changes while one command runs, shared by a context and its copies.

    Attributes:
        synced: Run directories, and directories of all runs, whose records were just copied from
            the cluster's host, so that the next reader need not fetch them again.
        accounts_queried: The number of finished jobs for which Slurm's accounting was queried.
        user_name: The user's name on the cluster's host; None before it was queried.
        git_state: The commit of the project and whether tracked files differ from it; None before
            git was queried.
        secrets: Values of secrets that were read from a run's directory. They stay masked after the
            job has removed its own copy.
    """

    synced: set[Path] = field(default_factory=set)
    accounts_queried: int = 0
    user_name: str | None = None
    git_state: tuple[str | None, bool | None] | None = None
    secrets: dict[Path, list[bytes]] = field(default_factory=dict)


class Context(Struct, frozen=True, kw_only=True):
    """The settings of a command that every action needs, created once by the command line.

    Attributes:
        debug: Enable diagnostics in a new run.
        command: The command line; empty in the Python API.
        code: A copy of the code of an earlier run to use instead of the project's current code.
        deadline: The time.monotonic() value after which Slurm queries stop waiting.
        waiting: A context manager around each Slurm command, which may tell a waiting user so.
        bar: Report the progress of long operations.
        connect: Create the transport to the cluster; called only by transport().
    """

    environ: dict[str, str]
    cwd: Path
    project: Path
    cluster: Cluster
    cluster_source: str
    runs_dir: Path
    cache_dir: Path
    # from a hostfile; empty: Slurm allocates, or this machine
    hosts: list[str] = field(default_factory=list)
    debug: bool = False
    command: list[str] = field(default_factory=list)
    code: Path | None = None
    deadline: float | None = None
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    bar: Callable[[str, str], AbstractContextManager[ShowProgress]] = no_progress_bar
    connect: Connect = LocalTransport
    session: CommandState = field(default_factory=CommandState)

    def transport(self, slurm_conf: str | None = None) -> Transport:
        """Return the transport to the cluster, for its own or another slurm.conf."""
        env = slurm_environment(self, slurm_conf)
        more = {} if self.cluster.host is None else {"bar": self.bar}
        return self.connect(env, deadline=self.deadline, waiting=self.waiting, **more)


def find_project(cwd: Path) -> Path:
    """Return the nearest directory at or above ``cwd`` with an hpcrun.yaml, or else ``cwd``.

    Above ``cwd``, an hpcrun.yaml of another user is ignored in directories that anyone can write
    to, such as /tmp.
    """
    for folder in (cwd, *cwd.parents):
        with contextlib.suppress(OSError):
            if not (folder / PROFILE).is_file():
                continue
            if folder == cwd or not folder.stat().st_mode & S_IWOTH:
                return folder
            with contextlib.suppress(InputError):
                _refuse_others(folder)
                return folder
    return cwd


def _refuse_others(project: Path) -> None:
    refuse_foreign_file(project / PROFILE, "a profile says which commands run, and where")


def project_of_job(job: Path) -> Path | None:
    """Return the project that contains a job file, or that contains its jobs/ directory.

    Return None if the file belongs to no project.
    """
    folder = job.parent
    project = find_project(folder)
    if (project / PROFILE).is_file():
        return project
    return folder.parent if folder.name == "jobs" else None


def load_context(
    environ: Mapping[str, str],
    cwd: Path,
    cluster: str | None = None,
    ask: Prompts | None = None,
    *,
    job_file: Path | None = None,
) -> Context:
    """Find the project and the cluster.

    Args:
        ask: Answers the prompts of a login to the cluster's host.
        job_file: Determines the project. If that project has no profile, the project around ``cwd``
            provides it.
    """
    around = find_project(cwd)
    project = (project_of_job(job_file) if job_file is not None else None) or around
    name = cluster or environ.get("HPCRUN_CLUSTER") or None
    has_profile = (project / PROFILE).is_file()
    profile, source = _find_cluster(environ, project if has_profile else around, name)
    return build_context(environ, cwd, project, profile, source, ask)


def load_all_contexts(
    environ: Mapping[str, str], cwd: Path
) -> tuple[list[Context], list[InputError]]:
    """Return the contexts of the project's own cluster and of all profiles of the user.

    Each directory of runs appears once. Errors in profiles are returned, so that one invalid
    profile does not hide the others.
    """
    names = [file.stem for file in sorted((config_dir(environ) / "clusters").glob("*.yaml"))]
    found: dict[Path, Context] = {}
    faults: list[InputError] = []
    here = (find_project(cwd) / PROFILE).is_file() or _sandbox_profile(environ) is not None
    for name in [*([None] if here else []), *names]:
        try:
            context = load_context(environ, cwd, name)
            found.setdefault(context.runs_dir, context)
        except InputError as fault:
            faults.append(fault)
    return list(found.values()), faults


def use_system_ssh(context: Context, ask: Prompts | None = None) -> Context:
    """Return a context that connects by the system's ssh, whatever its profile names."""
    if context.cluster.host is None:
        return context
    from hpcrun.remote import build_ssh_connect

    connect = build_ssh_connect(context.cluster, context.runs_dir, ask, system_ssh=True)
    return structs.replace(context, connect=connect)


def build_context(
    environ: Mapping[str, str],
    cwd: Path,
    project: Path,
    profile: Cluster,
    source: str,
    ask: Prompts | None,
) -> Context:
    """Create the context of a cluster; a cluster behind ssh has a local mirror of its runs."""
    connect: Connect = LocalTransport
    if profile.host is None:
        runs_dir, cache_dir = (
            expand_user_path(getattr(profile, key), environ, project, f"{source}: {key}")
            for key in ("runs_dir", "cache_dir")
        )
    else:
        # The import is deferred because only a remote cluster needs the SSH transport.
        from hpcrun.remote import build_ssh_connect

        # Two profiles with the same name, such as those of two projects, may store runs in
        # different directories of the host.
        name = f"{profile.name}@{profile.host}-{crc32(profile.runs_dir.encode()):08x}"
        name = re.sub(r"[^A-Za-z0-9._@-]", "-", name).strip(".")
        runs_dir, cache_dir = (state_dir(environ) / name / part for part in ("runs", "cache"))
        connect = build_ssh_connect(profile, runs_dir, ask)
    return Context(
        environ=dict(environ),
        cwd=cwd,
        project=project,
        cluster=profile,
        cluster_source=source,
        runs_dir=runs_dir,
        cache_dir=cache_dir,
        connect=connect,
    )


def _find_cluster(
    environ: Mapping[str, str], project: Path, name: str | None
) -> tuple[Cluster, str]:
    clusters = config_dir(environ) / "clusters"
    if name is not None and "/" in name:
        fix = f"the profile of --cluster NAME is {clusters}/NAME.yaml"
        raise InputError(f"--cluster {name}: a name, not a path", fix=fix)
    if name == "sandbox":
        if (sandbox := _sandbox_profile(environ)) is None:
            raise InputError("the sandbox is not running", fix="hpcrun sandbox up")
        profile, source = _load_profile(sandbox)
        if (project / PROFILE).is_file():
            _refuse_others(project)
            named, _ = _load_profile(project / PROFILE)
            profile = adopt_python(profile, named, environ, project)
        return profile, source
    if name is not None and (clusters / f"{name}.yaml").is_file():
        return _load_profile(clusters / f"{name}.yaml", name)
    if (project / PROFILE).is_file():
        _refuse_others(project)
        own = _load_profile(project / PROFILE)
        if name in (None, own[0].name):
            _check_slurm_conf(own[0], environ, project)
            return own
    known = sorted(file.stem for file in clusters.glob("*.yaml"))
    if name is not None:
        raise InputError(
            f"{name}: no such cluster",
            fix=f"hpcrun init --cluster {name} --user writes {clusters}/{name}.yaml, on its login "
            "node or with --host" + (f"; there are {', '.join(known)}" if known else ""),
        )
    if (sandbox := _sandbox_profile(environ)) is not None:
        return _load_profile(sandbox)
    if len(known) > 1:
        raise InputError(
            "several clusters are configured: " + ", ".join(known),
            fix="--cluster NAME, or export HPCRUN_CLUSTER=NAME",
        )
    return (
        _load_profile(clusters / f"{known[0]}.yaml", known[0]) if known else (Cluster(), "defaults")
    )


def adopt_python(
    sandbox: Cluster, profile: Cluster, environ: Mapping[str, str], project: Path
) -> Cluster:
    """Return a sandbox's profile with the Python that another profile names.

    An environment counts only if it exists on this machine, where the sandbox runs.
    """
    setup = profile.setup
    if profile.host is not None or setup.container is not None:
        return sandbox

    def find(text: str | None, inside: str = "") -> str | None:
        with contextlib.suppress(InputError):
            if text and (expand_user_path(text, environ, project, "setup") / inside).exists():
                return text
        return None

    conda = setup.conda
    if conda is not None and (conda.startswith(("~", "$")) or "/" in conda):
        conda = find(conda)
    venv = find(setup.venv, "bin/python")
    python = setup.python if setup.python and "/" not in setup.python else find(setup.python)
    own = structs.replace(sandbox.setup, venv=venv, conda=conda, uv=setup.uv, python=python)
    return structs.replace(sandbox, setup=own, python=find(profile.python) or sandbox.python)


def _check_slurm_conf(profile: Cluster, environ: Mapping[str, str], project: Path) -> None:
    """Refuse a slurm.conf that came with the project.

    Slurm's commands load the libraries that slurm.conf names, and the author of a cloned repository
    controls its files.

    Raises:
        InputError: The slurm.conf may have come with the project.
    """
    conf = profile.slurm_conf
    if profile.host is None and conf and _may_be_of_project(conf, environ, project):
        raise InputError(
            f"{project / PROFILE}: slurm_conf: {conf}: part of the project, or a relative path: "
            "Slurm's commands run the libraries that a slurm.conf names",
            fix="name the cluster's own slurm.conf by its absolute path; if you trust this "
            f"project: export HPCRUN_TRUST={project.resolve()}",
        )


def _may_be_of_project(conf: str, environ: Mapping[str, str], project: Path) -> bool:
    """Return True if a slurm.conf may have come with a project that the user does not trust.

    A project is its whole repository. A project that contains the user's home is the user's own.
    """
    if is_trusted(project):
        return False
    # /proc contains links to the current directory of each process.
    if not conf.startswith("/") or os.path.normpath(conf).lstrip("/").startswith(("proc/", "dev/")):
        return True
    repository = next((top for top in (project, *project.parents) if (top / ".git").exists()), None)
    top, real = os.path.realpath(repository or project), Path(os.path.realpath(conf))
    if Path(os.path.realpath(home_dir(environ))).is_relative_to(top):
        return False
    sandbox = _sandbox_profile(environ)
    is_sandbox = sandbox is not None and real.is_relative_to(os.path.realpath(sandbox.parent))
    return real.is_relative_to(top) and not is_sandbox


def load_named_profile(environ: Mapping[str, str], cwd: Path, word: str) -> Cluster:
    """Load a profile by its path, or by its name among the user's profiles.

    Raises:
        InputError: There is no such profile.
        SpecError: The profile is invalid.
    """
    own = config_dir(environ) / "clusters" / f"{word}.yaml"
    file = cwd / word
    is_name = not file.is_file() and "/" not in word and own.is_file()
    return _load_profile(own if is_name else file)[0]


def _sandbox_profile(environ: Mapping[str, str]) -> Path | None:
    """Return the profile of the user's own sandbox, or None; other users' sandboxes are ignored."""
    try:
        folder = sandbox_dir(environ, os.getuid())
        profile = folder / "cluster.yaml"
        return profile if check_owned(folder) and profile.is_file() else None
    except InputError:
        return None


def _load_profile(path: Path, name: str = Cluster().name) -> tuple[Cluster, str]:
    """Load a profile; ``name`` is used if the profile does not name its cluster."""
    from hpcrun.spec import load_cluster  # deferred: many commands read no YAML

    profile = load_cluster(read_text(path), source=str(path))
    return structs.replace(profile, name=name) if profile.name == "default" else profile, str(path)


def is_in_mirror(path: Path, environ: Mapping[str, str]) -> bool:
    """Return True if a path is in the local mirror of another machine's records."""
    return path.resolve().is_relative_to(state_dir(environ).resolve())


def read_text(path: Path) -> str:
    """Read a text file written by the user.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        # The user's own shell has opened /dev/stdin and /dev/fd/3.
        is_stream = path.is_relative_to("/dev")
        data = path.read_bytes() if is_stream else files.read_plain(path)
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def expand_user_path(text: str, environ: Mapping[str, str], project: Path, where: str) -> Path:
    """Expand ``~``, ``~USER`` and ``$NAME`` in a path that is relative to the project.

    Raises:
        InputError: A variable is not set, or there is no such user; the message names ``where``.
    """
    expanded = text
    if "$" in text:
        try:
            expanded = Template(text).substitute(environ)
        except KeyError as error:
            raise InputError(
                f"{where}: {text}: {error} is not set", fix="set it, or write the path out"
            ) from error
        except ValueError as error:
            message = f"{where}: {text}: a $ that is not followed by a variable name"
            raise InputError(message, fix="write $$ for a dollar sign") from error
    if expanded == "~" or expanded.startswith("~/"):
        expanded = home_dir(environ) + expanded[1:]
    elif expanded.startswith("~"):
        user = expanded.partition("/")[0]
        expanded = os.path.expanduser(expanded)  # noqa: PTH111 - of another user
        if expanded.startswith("~"):
            fix = f"write the path out, or ./{user} for a folder of that name"
            raise InputError(f"{where}: {text}: there is no user {user[1:]}", fix=fix)
    return project / expanded


def job_environment(
    context: Context, kind: EnvironmentKind = "inherit", environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment for Slurm's commands, which a job inherits.

    ``inherit`` returns the user's environment without the variables of another job. ``clean``
    returns what every login shell sets, so that a job does not depend on the shell that submits it.
    sbatch --export=NONE is not used: Slurm versions differ in what it drops and in how srun treats
    it, and some start the user's login shell through su.

    Args:
        environ: The environment of a login on the cluster's host; by default the context's.
    """
    # These variables select the Slurm installation, and hold the user's token at sites without
    # munge (auth/jwt).
    environ = context.environ if environ is None else environ
    named = {name: environ[name] for name in _SLURM_VARIABLES if environ.get(name)}
    if context.cluster.slurm_conf:
        named["SLURM_CONF"] = context.cluster.slurm_conf
    if kind == "clean":
        kept = {
            name: value
            for name, value in environ.items()
            if name in _CLEAN_NAMES or name.startswith("LC_")
        }
        import shutil  # deferred: it imports the compression libraries

        # The path covers the system directories, and Slurm's own where it is installed elsewhere,
        # such as in /opt/slurm/bin.
        is_here = context.cluster.host is None
        sbatch = shutil.which("sbatch", path=environ.get("PATH")) if is_here else None
        folders = (*_SYSTEM_PATH, str(Path(sbatch).parent)) if sbatch else _SYSTEM_PATH
        return kept | {"PATH": ":".join(dict.fromkeys(folders))} | named
    inside = (names for sign, names in _SCRUB_INSIDE.items() if sign in environ)
    scrub = _SCRUB_NAMES.union(*inside)
    keep = {
        name: value
        for name, value in environ.items()
        if name in _KEEP_NAMES or not (name.startswith(_SCRUB_PREFIXES) or name in scrub)
    }
    return keep | named


def current_slurm_conf(context: Context) -> str | None:
    """Return the slurm.conf of the context's Slurm, or None for the system's default."""
    return slurm_environment(context).get("SLURM_CONF")


def slurm_environment(context: Context, slurm_conf: str | None = None) -> dict[str, str]:
    """Return the environment of Slurm's commands; for a remote cluster, only the additions to it.

    Args:
        slurm_conf: The slurm.conf named in a run's record.
    """
    slurm_conf = trusted_slurm_conf(context, slurm_conf)
    if context.cluster.host is not None:
        conf = slurm_conf or context.cluster.slurm_conf
        return {"SLURM_CONF": conf} if conf else {}
    inherited = job_environment(context)
    env = {
        name: inherited[name] for name in inherited if not name.startswith(_SLURM_OPTION_PREFIXES)
    }
    if slurm_conf is not None:
        env["SLURM_CONF"] = slurm_conf
    return env


def trusted_slurm_conf(context: Context, conf: str | None) -> str | None:
    """Return the slurm.conf named in a record, or None if it came with the project."""
    if conf is None or context.cluster.host is not None or conf == context.cluster.slurm_conf:
        return conf
    if conf == context.environ.get("SLURM_CONF"):
        return conf
    return None if _may_be_of_project(conf, context.environ, context.project) else conf


def refuse_other_clusters(profile: Cluster, environ: Mapping[str, str]) -> None:
    """Raise InputError if the environment selects another cluster for Slurm, as -M does.

    hpcrun drops such variables, so it would query, and submit to, the cluster of the default
    slurm.conf. A profile with ``slurm_conf`` already names its cluster.
    """
    for name in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"):
        wanted = environ.get(name)
        if wanted and profile.slurm_conf is None and wanted != _cluster_of_conf(profile, environ):
            raise InputError(
                f"{name} is set to {wanted}: hpcrun uses the cluster of a slurm.conf, and does "
                "not support -M",
                fix=f"unset {name}; for {wanted} write a profile whose slurm_conf: names the "
                "slurm.conf of that cluster, or one with host: its login node",
            )


def refuse_clusters_option(profile: Cluster, environ: Mapping[str, str], wanted: str) -> None:
    """Raise InputError if ``--clusters`` of a script selects another cluster than the profile.

    Slurm numbers the jobs of each cluster: the job's number would be that of another job here.
    """
    if wanted and wanted != _cluster_of_conf(profile, environ):
        raise InputError(
            f"--clusters={wanted}: hpcrun follows the jobs of one cluster, {profile.name}",
            fix=f"remove the option, and write a profile for {wanted}, whose slurm_conf: names the "
            "slurm.conf of that cluster",
        )


_CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


def _cluster_of_conf(profile: Cluster, environ: Mapping[str, str]) -> str:
    """Read ClusterName from this machine's slurm.conf; return "" if it is unknown."""
    named = profile.slurm_conf or environ.get("SLURM_CONF")
    for conf in () if profile.host is not None else (named,) if named else _CONFS:
        with contextlib.suppress(OSError):
            text = files.read_plain(conf).decode("utf-8", "replace")
            found = re.search(r"(?mi)^[ \t]*ClusterName[ \t]*=[ \t]*([^\s#]+)", text)
            return found[1] if found else ""
    return ""


def is_slurm_conf_missing(context: Context, conf: str | None) -> bool:
    """Return True if a slurm.conf that local Slurm commands need no longer exists."""
    return conf is not None and context.cluster.host is None and not Path(conf).exists()


def slurm_transport(context: Context, slurm_conf: str | None = None) -> Transport:
    """Return the transport to the context's Slurm, or to the one of another slurm.conf.

    Raises:
        InputError: The profile's slurm.conf is missing, for which Slurm would search for a minute;
            or the environment names another cluster than Slurm's own commands would query.
    """
    conf = context.cluster.slurm_conf
    if slurm_conf is None and context.cluster.host is None:
        refuse_other_clusters(context.cluster, context.environ)
    if slurm_conf is None and conf and is_slurm_conf_missing(context, conf):
        if context.cluster.name == "sandbox":  # the profile that init wrote while it was running
            raise InputError("the sandbox is not running", fix="hpcrun sandbox up")
        raise InputError(
            f"{context.cluster_source}: slurm_conf: {conf}: no such file",
            fix="name the slurm.conf of this cluster, or remove the key to use the system's",
        )
    return context.transport(slurm_conf)
