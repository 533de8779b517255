"""Survey of a cluster: Slurm's information, and the properties of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, structs

from hpcrun.actions.checks import places
from hpcrun.actions.cluster_host import ClusterHost
from hpcrun.actions.environments import (
    EnvironmentCandidate,
    list_active_environments,
    list_environments,
)
from hpcrun.assets import home_dir
from hpcrun.context import Context
from hpcrun.errors import OutOfReach
from hpcrun.plan import SlurmOutputs, first_host
from hpcrun.remote import (
    Answers,
    FolderProbe,
    FolderState,
    Query,
    Result,
    RunCommand,
    explain_no_answer,
    parse_environ,
)
from hpcrun.slurm import (
    SHOW_CLUSTERS,
    SHOW_CONFIG,
    SHOW_PARTITIONS,
    SHOW_QOS,
    SINFO,
    NodeRow,
    SlurmConfig,
    associations_argv,
    check_answered,
    matches_answer,
    parse_associations,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_sinfo,
    show_nodes_argv,
)
from hpcrun.spec import Fabric

T = TypeVar("T")

# The number of kinds of nodes that are queried; few clusters have more than ten.
_MOST_KINDS = 64
# Types in the mount table of file systems that nodes share.
_SHARED = re.compile(
    r"nfs4?|lustre|lustre_lite|gpfs|beegfs|fhgfs|ceph|wekafs|panfs|pvfs2|orangefs|dvs|cifs|smb3?"
    r"|afs|ocfs2|gfs2|9p|virtiofs|daos|quobyte|fuse\.(?:ceph|daos|dfuse|juicefs|glusterfs|sshfs|"
    r"beegfs|gcsfuse|quobyte|weka|moosefs|s3fs|goofys|lizardfs)\S*|glusterfs"
)
_SCRATCH_VARIABLES = (
    "SCRATCH",
    "PSCRATCH",
    "CSCRATCH",
    "SCRATCHDIR",
    "SCRATCH_DIR",
    "SCRATCH_PATH",
    "GLOBALSCRATCH",
    "GSCRATCH",
    "VSC_SCRATCH",
    "CCFRSCRATCH",
    "WORKDIR",
    "WORK",
    "WRKDIR",
    "MYSCRATCH",
    "FASTDIR",
    "PROJECT_SCRATCH",
)
_SCRATCH_PLACES = (
    "/scratch/$USER",
    "/scratch/users/$USER",
    "/global/scratch/users/$USER",
    "/lustre/$USER",
    "/lustre/scratch/$USER",
    "/lustre/users/$USER",
    "/gpfs/scratch/$USER",
    "/gpfs/$USER",
    "/beegfs/$USER",
    "/weka/$USER",
    "/mnt/scratch/$USER",
    "/mnt/lustre/$USER",
    "/fsx/$USER",
    "/fsx",
    "/nobackup/$USER",
    "/data/$USER",
    "/shared/$USER",
    "/network/scratch/$USER",
)
_HAS_TORCH = "import importlib.util as u; print(int(u.find_spec('torch') is not None))"
# Print the user's name and id, the host's name, and the groups, whose names may contain blanks.
_WHO = r"""
printf '%s\n' "$(id -un)" "$(id -u)" "$(uname -n)"
getent group $(id -G) | cut -d: -f1 || id -Gn | tr ' ' '\n'
"""
# List network devices, and the link layer of InfiniBand ports.
DEVICES = r"""
ls -d "$1"/sys/class/{net,cxi,cxi_user,infiniband}/* "$1"/opt/amazon/efa 2>/dev/null
for port in "$1"/sys/class/infiniband/*/ports/*/link_layer; do
  [ -e "$port" ] && printf '%s %s\n' "$port" "$(cat "$port")"
done
"""
_IDENTITY = RunCommand(("bash", "-c", _WHO))
_DEVICES = RunCommand(("bash", "-c", DEVICES, "bash", ""))
_CONFIG = RunCommand(tuple(SHOW_CONFIG))
_PARTITIONS = RunCommand(tuple(SHOW_PARTITIONS))
_NODES = RunCommand(tuple(SINFO))
_QOS = RunCommand(tuple(SHOW_QOS))
# Variables that a login shell's profile sets and that a plain ssh command may lack.
_OF_LOGINS = (*_SCRATCH_VARIABLES, "SLURM_CONF")
# Directories of Slurm's commands if PATH lacks them: installers' defaults, and Bright's.
_SLURM_FOLDERS = (
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
    "/usr/slurm/bin",
    "/opt/slurm/current/bin",
    "/opt/slurm/default/bin",
    "/cm/shared/apps/slurm/current/bin",
    "/usr/local/bin",
    "/cm/local/apps/slurm/current/bin",
    "/opt/software/slurm/bin",
    "/run/slurm/bin",
)
_LOGIN = r"""
for shell in 'bash --norc' 'bash --norc -l'; do
  timeout 20 $shell -c 'printf "\n%s\n" "$1"; type -P scontrol; printf "\n%s\n" "$1"; env -0
    printf "\n%s\n" "$1"' bash "$1" </dev/null 2>/dev/null
done
shift
for folder; do [[ ! -x $folder/scontrol ]] || printf '%s\n' "$folder"; done
"""


class Folder(Struct, frozen=True, kw_only=True):
    """A directory for runs: its text in a profile, its path, and its file system.

    Attributes:
        shared: None if the type of the file system does not determine it.
        free: Bytes.
    """

    text: str
    path: str
    file_system: str
    shared: bool | None
    free: int


class Python(Struct, frozen=True, kw_only=True):
    """A Python for trainings: the key and value of ``setup``, or of the profile's python."""

    key: str
    value: str
    path: str
    has_torch: bool
    of_project: bool = False


class Survey(Struct, frozen=True, kw_only=True):
    """The survey of a cluster and of the machine whose Slurm is queried.

    Attributes:
        answers: None without Slurm.
        folders: Directories for runs, the best first.
        pythons: Pythons for trainings, the best first.
        fabric: A guess from the devices, with its evidence.
        host: The machine's own name.
    """

    answers: SlurmOutputs | None
    folders: list[Folder]
    pythons: list[Python]
    fabric: tuple[Fabric, str] | None
    host: str


def find_slurm(context: Context) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Find Slurm's commands on a host.

    Returns:
        The login environment, and the keys that the profile needs: login_shell, slurm_path or none.

    Raises:
        OutOfReach: There is no Slurm on the host.
    """
    mark = os.urandom(16).hex()
    argv = ["bash", "-c", _LOGIN, "bash", mark, *_SLURM_FOLDERS]
    answer = context.transport().run(argv)
    parts = answer.stdout.split(f"\n{mark}\n")
    folders = parts[-1].splitlines()
    # A login's profile may exit or start another shell, and then nothing was printed.
    parts += [""] * (7 - len(parts))
    plain, login = parse_environ(parts[2]), parse_environ(parts[5])
    if parts[4].strip() and (
        not parts[1].strip() or any(login.get(key) != plain.get(key) for key in _OF_LOGINS)
    ):
        return login, {"login_shell": True}
    if parts[1].strip():
        return plain, {}
    if folders:
        path = f"{folders[0]}:{plain.get('PATH', '')}"
        return {**plain, "PATH": path}, {"slurm_path": folders[0]}
    raise OutOfReach(
        f"{context.cluster.host}: no Slurm there: scontrol is not on the PATH of its shells",
        fix="is that a login node of the cluster? Where `ssh HOST` finds sbatch in another folder, "
        "write a profile with host: and slurm_path: FOLDER, then call hpcrun init",
    )


def first_queries(*, has_slurm: bool) -> list[Query[Any]]:
    """Return the queries that survey_site() needs on any host."""
    slurm = [_CONFIG, _PARTITIONS, _NODES] if has_slurm else []
    return [_IDENTITY, _DEVICES, places.MOUNTS, *slurm]


def survey_site(host: ClusterHost, project: Path | None, *, has_slurm: bool) -> Survey:
    """Query Slurm for the content of a profile, and the machine for the rest.

    Args:
        project: Its environments are candidates for Python, too.

    Raises:
        OutOfReach: slurmctld does not respond, or the response is not Slurm's.
    """
    environ = host.login.environ
    candidates = list(_list_pythons(project, environ))
    probes = [RunCommand((one.python, "-c", _HAS_TORCH)) for one in candidates]
    folders = _scratch_probes(environ)
    queries: list[Query[Any]] = [*probes, *folders.values()]
    first = first_queries(has_slurm=has_slurm)
    if any(query not in host.answers for query in first):
        host.run_queries([*first, *queries])
    identity = host.answers[_IDENTITY].stdout.splitlines()
    name, number, host_name, *groups = identity or ["", "", ""]
    slurm = _SlurmQueries(host.answers, name or number) if has_slurm else None
    answers = host.run_queries([*queries, *(slurm.queries if slurm is not None else [])])
    found = None
    if slurm is not None:
        found = slurm.parse(answers)
        found = structs.replace(found, groups=sorted(groups), is_root=number == "0")
    return Survey(
        answers=found,
        folders=_usable_folders(folders, answers),
        pythons=_rank_pythons(candidates, [answers[probe] for probe in probes]),
        fabric=guess_fabric(answers[_DEVICES].stdout),
        host=host_name,
    )


# ---- Slurm -------------------------------------------------------------------------------------


class _SlurmQueries:
    """Slurm's responses to first_queries(), and the queries that follow from them."""

    def __init__(self, answers: Answers, user: str) -> None:
        self.config = _parse_slurm_config(answers)
        self.partitions = _rows(answers, _PARTITIONS, parse_partitions)
        self.nodes = _rows(answers, _NODES, parse_sinfo)
        # The properties of one node of a kind apply to all of them.
        self.kinds = _group_alike(self.nodes)
        names = [alike[0] for alike in self.kinds][:_MOST_KINDS]
        self.limits = RunCommand(tuple(show_nodes_argv(names))) if names else None
        self.associations = None
        if self.config.has_accounting:
            self.associations = RunCommand(tuple(associations_argv(user, self.config.cluster)))

    @property
    def queries(self) -> list[Query[Any]]:
        """Return the queries."""
        about_user = [self.associations, _QOS] if self.associations is not None else []
        return [*([self.limits] if self.limits is not None else []), *about_user]

    def parse(self, answers: Answers) -> SlurmOutputs:
        """Parse all responses of Slurm."""
        limits = {}
        if self.limits is not None:
            text = _answer(answers, self.limits)
            one = {limits.name: limits for limits in parse_nodes(text or "")}
            known = [alike for alike in self.kinds if alike[0] in one]
            limits = {host: one[alike[0]] for alike in known for host in alike}
        associations, qos = None, None
        # If slurmdbd does not respond, limits are unknown.
        with contextlib.suppress(OutOfReach):
            rows, levels = None, None
            if self.associations is not None:
                rows, levels = _answer(answers, self.associations), _answer(answers, _QOS)
            if rows is not None:
                associations = parse_associations(rows, self.config.cluster)
            qos = None if levels is None else parse_qos(levels)
        return SlurmOutputs(
            config=self.config,
            nodes=self.nodes,
            partitions=self.partitions,
            limits=limits,
            associations=associations,
            qos=qos,
        )


def list_clusters(host: ClusterHost) -> list[str]:
    """List the clusters in the accounting database; none if it does not respond."""
    query = RunCommand(tuple(SHOW_CLUSTERS))
    with contextlib.suppress(OutOfReach):
        return (_answer(host.run_queries([query]), query) or "").split()
    return []


def _group_alike(nodes: Sequence[NodeRow]) -> list[list[str]]:
    """Return the first hosts of the node rows, grouped by kind."""
    kinds: dict[tuple[int, int, str], list[str]] = {}
    for row in nodes:
        host = first_host(row.node_list) if row.nodes else ""
        if host:
            kinds.setdefault((row.cpus, row.memory, row.gres), []).append(host)
    return list(kinds.values())


def _parse_slurm_config(answers: Answers) -> SlurmConfig:
    try:
        text = _require_answer(answers, _CONFIG)
    except OutOfReach as error:
        if matches_answer(error.message, "no configuration"):
            raise OutOfReach(
                f"Slurm's commands are installed here, but find no cluster: {error.message}",
                fix="run it on a login node, or set SLURM_CONF; without a cluster: "
                "hpcrun sandbox up",
            ) from error
        raise
    config = parse_config(text)
    if not config.version and not config.cluster:
        raise _unexpected_output_error(SHOW_CONFIG, text)
    return config


def _rows(answers: Answers, query: RunCommand, parse: Callable[[str], list[T]]) -> list[T]:
    text = _require_answer(answers, query)
    rows = parse(text)
    # "No partitions in the system" is a valid response.
    if not rows and text.strip() and not text.startswith("No partition"):
        raise _unexpected_output_error(query.argv, text)
    return rows


def _require_answer(answers: Answers, query: RunCommand) -> str:
    text = _answer(answers, query)
    if text is None:
        raise OutOfReach(
            f"{' '.join(query.argv)}: Slurm does not answer",
            fix="does the command work in your shell?",
        )
    return text


def _answer(answers: Answers, query: RunCommand) -> str | None:
    """Return a command's output; None if Slurm refuses it. Raises OutOfReach."""
    result = answers[query]
    if why := explain_no_answer(result):
        raise OutOfReach(
            f"{query.argv[0]}: {why}",
            fix="slurm_path: in the profile of a cluster with host: names the folder of Slurm's "
            "commands",
        )
    check_answered(result)
    return _replace_control_characters(result.stdout) if result.exit_code == 0 else None


def _replace_control_characters(text: str) -> str:
    """Replace control characters in a response, because names end up on terminals and in files."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def _unexpected_output_error(argv: Sequence[str], text: str) -> OutOfReach:
    first = text.strip().splitlines()[0][:60] if text.strip() else ""
    return OutOfReach(
        f"{' '.join(argv)}: unexpected output: {first!r}",
        fix="another program may have that name; try the command in your shell",
    )


# ---- folders -----------------------------------------------------------------------------------


def _scratch_probes(environ: Mapping[str, str]) -> dict[str, FolderProbe]:
    """Return queries for possible directories of runs, by their text in a profile."""
    user = environ.get("USER", "")
    texts = [f"${name}" for name in _SCRATCH_VARIABLES if environ.get(name, "").startswith("/")]
    texts += [place for place in _SCRATCH_PLACES if user or "$USER" not in place]
    paths = {
        text: home_dir(environ)
        if text == "~"
        else text.replace("$USER", user)
        if text.startswith("/")
        else environ[text[1:]]
        for text in (*texts, "~")
    }
    return {text: FolderProbe(str(Path(path)), writes=False) for text, path in paths.items()}


def find_scratch_folders(host: ClusterHost) -> list[Folder]:
    """Find writable directories for runs, the best first; ``host`` has run first_queries()."""
    probes = _scratch_probes(host.login.environ)
    return _usable_folders(probes, host.run_queries(probes.values()))


def _usable_folders(probes: Mapping[str, FolderProbe], answers: Answers) -> list[Folder]:
    """Return the writable directories: shared scratch first, then home, then the rest."""
    mounts = places.parse_mounts(answers[places.MOUNTS])
    found: dict[str, Folder] = {}
    for text, probe in probes.items():
        state = answers[probe]
        if state.at == Path(probe.path) and not state.fault and not state.refusal:
            found.setdefault(state.real, _build_folder(text, state, mounts))
    # sorted() is stable, so variables stay first and the home last within a group.
    return sorted(found.values(), key=lambda one: {True: 0, None: 1, False: 2}[one.shared])


def _build_folder(text: str, state: FolderState, mounts: Sequence[places.Mount]) -> Folder:
    mount = places.mount_of(state.real, mounts)
    kind = mount.type if mount is not None else ""
    is_local = kind in places.LOCAL_TYPES | places.MEMORY_TYPES
    shared = True if _SHARED.fullmatch(kind) else False if is_local else None
    free = state.bytes or 0
    return Folder(text=text, path=state.real, file_system=kind, shared=shared, free=free)


# ---- fabric ------------------------------------------------------------------------------------


def guess_fabric(devices: str) -> tuple[Fabric, str] | None:
    """Guess the fabric from a machine's devices; return it with the evidence, or None.

    >>> guess_fabric("/sys/class/infiniband/mlx5_0/ports/1/link_layer Ethernet")
    ('roce', 'mlx5_0')
    """
    found = re.findall(r"(?m)/sys/class/(net|cxi|cxi_user|infiniband)/([^/\n]+)$", devices)
    for kind, name in sorted(found):
        if kind.startswith("cxi") or (kind == "net" and name.startswith("hsn")):
            return "slingshot", name
    for kind, name in sorted(found):
        if kind == "infiniband" and name.startswith(("efa", "rdmap")):
            return "efa", name
    layer = re.search(r"infiniband/([^/\n]+)/ports/\d+/link_layer (InfiniBand|Ethernet)", devices)
    if layer is not None:
        return ("infiniband" if layer[2] == "InfiniBand" else "roce"), layer[1]
    return ("efa", "/opt/amazon/efa") if "/opt/amazon/efa" in devices else None


# ---- Python ------------------------------------------------------------------------------------


def _rank_pythons(
    candidates: Sequence[EnvironmentCandidate], answers: Sequence[Result]
) -> list[Python]:
    """Rank the Pythons for trainings: those with torch first, of these the project's own first."""
    found: dict[str, Python] = {}
    for one, answer in zip(candidates, answers, strict=True):
        is_planned = one.key == "uv"  # the environment does not exist yet
        if is_planned or answer.exit_code not in (126, 127):
            has_torch = answer.exit_code == 0 and answer.stdout.strip() == "1"
            has_torch = has_torch or is_planned
            python = Python(
                key=one.key,
                value=one.value,
                path=one.python,
                has_torch=has_torch,
                of_project=one.of_project,
            )
            found.setdefault(one.python, python)
    return sorted(found.values(), key=lambda python: not python.has_torch)


def _list_pythons(
    project: Path | None, environ: Mapping[str, str]
) -> Iterator[EnvironmentCandidate]:
    """Yield candidates for the training; without ``project``, those of a login elsewhere."""
    if project is not None:
        yield from list_environments(project, environ)
        yield EnvironmentCandidate("python", sys.executable, sys.executable)
        system = shutil.which("python3", path=environ.get("PATH"))
        if system:
            yield EnvironmentCandidate("python", system, system)
        return
    yield from list_active_environments(environ)
    for name in (".venv", "venv", "env"):
        python = f"{home_dir(environ)}/{name}/bin/python"
        yield EnvironmentCandidate("venv", f"~/{name}", python)
    for folder in dict.fromkeys(environ.get("PATH", "").split(":")):
        if folder.startswith("/"):
            yield EnvironmentCandidate("python", f"{folder}/python3", f"{folder}/python3")
