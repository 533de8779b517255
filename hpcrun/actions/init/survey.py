"""What Slurm reports of a cluster, and what this machine shows of it."""

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
from hpcrun.actions.there import Spot, ask, parse_environ, spots, there, want
from hpcrun.assets import home_dir
from hpcrun.context import Context, slurm_transport
from hpcrun.errors import OutOfReach
from hpcrun.plan import Answers, first_host
from hpcrun.remote import Result
from hpcrun.slurm import (
    SHOW_CLUSTERS,
    SHOW_CONFIG,
    SHOW_PARTITIONS,
    SHOW_QOS,
    SINFO,
    TIMEOUT,
    NodeRow,
    SlurmConfig,
    associations_argv,
    check_answered,
    parse_associations,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_sinfo,
    says,
    show_nodes_argv,
)
from hpcrun.spec import Fabric

T = TypeVar("T")

# Kinds of nodes that are looked at one by one: few clusters have more than ten.
_MOST_KINDS = 64
# File systems that nodes share, by the type in the mount table.
_SHARED = re.compile(
    r"nfs4?|lustre|lustre_lite|gpfs|beegfs|fhgfs|ceph|wekafs|panfs|pvfs2|orangefs|dvs|cifs|smb3?"
    r"|afs|ocfs2|gfs2|9p|virtiofs|daos|quobyte|fuse\.(?:ceph|daos|dfuse|juicefs|glusterfs|sshfs|"
    r"beegfs|gcsfuse|quobyte|weka|moosefs|s3fs|goofys|lizardfs)\S*|glusterfs"
)
_SCRATCH_VARIABLES = (
    "SCRATCH", "PSCRATCH", "CSCRATCH", "SCRATCHDIR", "SCRATCH_DIR", "SCRATCH_PATH",
    "GLOBALSCRATCH", "GSCRATCH", "VSC_SCRATCH", "CCFRSCRATCH", "WORKDIR", "WORK", "WRKDIR",
    "MYSCRATCH", "FASTDIR", "PROJECT_SCRATCH",
)  # fmt: skip
_SCRATCH_PLACES = (
    "/scratch/$USER", "/scratch/users/$USER", "/global/scratch/users/$USER",
    "/lustre/$USER", "/lustre/scratch/$USER", "/lustre/users/$USER", "/gpfs/scratch/$USER",
    "/gpfs/$USER", "/beegfs/$USER", "/weka/$USER", "/mnt/scratch/$USER", "/mnt/lustre/$USER",
    "/fsx/$USER", "/fsx", "/nobackup/$USER", "/data/$USER", "/shared/$USER",
    "/network/scratch/$USER",
)  # fmt: skip
_HAS_TORCH = "import importlib.util as u; print(int(u.find_spec('torch') is not None))"
# The user's name and number, the host's name, and the groups, which may have blanks in their names.
_WHO = r"""
printf '%s\n' "$(id -un)" "$(id -u)" "$(uname -n)"
getent group $(id -G) | cut -d: -f1 || id -Gn | tr ' ' '\n'
"""
# Devices of networks, and what a port of InfiniBand's is.
DEVICES = r"""
ls -d "$1"/sys/class/{net,cxi,cxi_user,infiniband}/* "$1"/opt/amazon/efa 2>/dev/null
for port in "$1"/sys/class/infiniband/*/ports/*/link_layer; do
  [ -e "$port" ] && printf '%s %s\n' "$port" "$(cat "$port")"
done
"""
# What a login shell's profile sets, and a plain command over ssh may lack.
_OF_LOGINS = (*_SCRATCH_VARIABLES, "SLURM_CONF")
# Where Slurm's commands are if no PATH says so: installers' defaults, and Bright's.
_SLURM_FOLDERS = (
    "/opt/slurm/bin", "/usr/local/slurm/bin", "/usr/slurm/bin", "/opt/slurm/current/bin",
    "/opt/slurm/default/bin", "/cm/shared/apps/slurm/current/bin", "/usr/local/bin",
    "/cm/local/apps/slurm/current/bin", "/opt/software/slurm/bin", "/run/slurm/bin",
)  # fmt: skip
_LOGIN = r"""
for shell in 'bash --norc' 'bash --norc -l'; do
  timeout 20 $shell -c 'printf "\n%s\n" "$1"; type -P scontrol; printf "\n%s\n" "$1"; env -0
    printf "\n%s\n" "$1"' bash "$1" </dev/null 2>/dev/null
done
shift
for folder; do [[ ! -x $folder/scontrol ]] || printf '%s\n' "$folder"; done
"""


class Folder(Struct, frozen=True, kw_only=True):
    """A folder for runs: how a profile spells it, where it is, on what kind of file system.

    ``shared`` None: the file system's type does not show it. ``free`` is in bytes.
    """

    text: str
    path: str
    file_system: str
    shared: bool | None
    free: int


class Python(Struct, frozen=True, kw_only=True):
    """A Python that could train: the key and value of ``setup``, or of the profile's python."""

    key: str
    value: str
    path: str
    has_torch: bool


class Survey(Struct, frozen=True, kw_only=True):
    """What a cluster, and the machine whose Slurm is asked, show; ``answers`` None: no Slurm.

    ``folders`` for runs and ``pythons`` are the best first. ``fabric`` is a guess by devices, with
    its sign. ``host`` is the machine's own name.
    """

    answers: Answers | None
    folders: list[Folder]
    pythons: list[Python]
    fabric: tuple[Fabric, str] | None
    host: str


def find_slurm(context: Context) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Find out how Slurm's commands are reached on a host; return the login's environment.

    The second value is what the profile must say for it: login_shell, slurm_path, or nothing.
    Raises OutOfReach where there is no Slurm.
    """
    mark = os.urandom(16).hex()
    argv = ["bash", "-c", _LOGIN, "bash", mark, *_SLURM_FOLDERS]
    answer = context.transport().run(argv)
    parts = answer.stdout.split(f"\n{mark}\n")
    folders = parts[-1].splitlines()
    # A login's profile may end the shell, or start another one: then it has printed nothing.
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


def survey(context: Context, project: Path | None, *, has_slurm: bool) -> Survey:
    """Ask Slurm for everything that a profile has, and the machine for the rest.

    ``project``: its environments are Pythons, too. To be called by settle(). Raises OutOfReach
    where slurmctld does not answer, or the answer is not Slurm's.
    """
    who, devices = ("run", "bash", "-c", _WHO), ("run", "bash", "-c", DEVICES, "bash", "")
    found = list(_candidates(project, there(context).environ))
    probes = [("run", str(path), "-c", _HAS_TORCH) for _, _, path in found]
    slurm = [("run", *argv) for argv in (SHOW_CONFIG, SHOW_PARTITIONS, SINFO)]
    want(context, [who, devices, *probes, places.MOUNTS, *(slurm if has_slurm else ())])
    folders = scratch_folders(context)
    name, number, host, *groups = ask(context, [who])[0].stdout.splitlines() or ["", "", ""]
    answers = None
    if has_slurm:
        answers = _slurm(context, name or number)
        answers = structs.replace(answers, groups=sorted(groups), is_root=number == "0")
    return Survey(
        answers=answers,
        folders=folders,
        pythons=_pythons(found, ask(context, probes)),
        fabric=fabric_guess(ask(context, [devices])[0].stdout),
        host=host,
    )


# ---- Slurm -------------------------------------------------------------------------------------


def _slurm(context: Context, user: str) -> Answers:
    config = _config(context)
    partitions = _rows(context, SHOW_PARTITIONS, parse_partitions)
    nodes = _rows(context, SINFO, parse_sinfo)
    hosts = _kinds(nodes)
    names = [alike[0] for alike in hosts][:_MOST_KINDS]
    about_nodes = [show_nodes_argv(names)] if names else []
    who = [associations_argv(user, config.cluster), SHOW_QOS]
    want(context, [("run", *argv) for argv in (*about_nodes, *(who * config.has_accounting))])
    limits = {}
    if names:
        # What holds for one node of a kind holds for all of them; without an answer nothing does.
        text = _answer(context, about_nodes[0])
        one = {limits.name: limits for limits in parse_nodes(text or "")}
        limits = {host: one[alike[0]] for alike in hosts for host in alike if alike[0] in one}
    associations, qos = None, None
    # slurmdbd may not answer: limits are then not known.
    with contextlib.suppress(OutOfReach):
        listed, levels = (
            [_answer(context, argv) for argv in who] if config.has_accounting else (None, None)
        )
        if listed is not None:
            associations = parse_associations(listed, config.cluster)
        qos = None if levels is None else parse_qos(levels)
    return Answers(
        config=config,
        nodes=nodes,
        partitions=partitions,
        limits=limits,
        associations=associations,
        qos=qos,
    )


def list_clusters(context: Context) -> list[str]:
    """List the clusters of the accounting; none where that does not answer. For settle()."""
    with contextlib.suppress(OutOfReach):
        return (_answer(context, SHOW_CLUSTERS) or "").split()
    return []


def _kinds(nodes: Sequence[NodeRow]) -> list[list[str]]:
    """Return the first hosts of the rows of nodes, those of a kind together."""
    kinds: dict[tuple[int, int, str], list[str]] = {}
    for row in nodes:
        host = first_host(row.node_list) if row.nodes else ""
        if host:
            kinds.setdefault((row.cpus, row.memory, row.gres), []).append(host)
    return list(kinds.values())


def _config(context: Context) -> SlurmConfig:
    try:
        text = _needed(context, SHOW_CONFIG)
    except OutOfReach as error:
        if says(error.message, "no configuration"):
            raise OutOfReach(
                f"Slurm's commands are here, and know no cluster: {error.message}",
                fix="call it on a login node, or set SLURM_CONF; without a cluster: "
                "hpcrun sandbox up",
            ) from error
        raise
    config = parse_config(text)
    if not config.version and not config.cluster:
        raise _odd(SHOW_CONFIG, text)
    return config


def _rows(context: Context, argv: Sequence[str], parse: Callable[[str], list[T]]) -> list[T]:
    text = _needed(context, argv)
    rows = parse(text)
    # "No partitions in the system" is an answer too.
    if not rows and text.strip() and not text.startswith("No partition"):
        raise _odd(argv, text)
    return rows


def _needed(context: Context, argv: Sequence[str]) -> str:
    text = _answer(context, argv)
    if text is None:
        raise OutOfReach(
            f"{' '.join(argv)}: Slurm does not answer", fix="does the command work in your shell?"
        )
    return text


def _answer(context: Context, argv: Sequence[str]) -> str | None:
    """Return a command's answer; None where Slurm refuses it. Raises OutOfReach."""
    if context.cluster.host is None:
        result = slurm_transport(context).run(argv, timeout=TIMEOUT)
    else:
        (result,) = ask(context, [("run", *argv)])
        if result.exit_code in (124, 127) and not result.stdout:
            why = "gave no answer in time" if result.exit_code == 124 else "command not found"
            raise OutOfReach(
                f"{context.cluster.host}: {argv[0]}: {why}",
                fix="slurm_path: in the profile names the folder of Slurm's commands",
            )
    check_answered(result)
    return _clean(result.stdout) if result.exit_code == 0 else None


def _clean(text: str) -> str:
    """Replace what is not text in an answer: names end up on terminals and in files."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def _odd(argv: Sequence[str], text: str) -> OutOfReach:
    first = text.strip().splitlines()[0][:60] if text.strip() else ""
    return OutOfReach(
        f"{' '.join(argv)}: the answer is not Slurm's: {first!r}",
        fix="does something else answer by that name? Try the command in your shell",
    )


# ---- folders -----------------------------------------------------------------------------------


def scratch_folders(context: Context) -> list[Folder]:
    """Find writable places for runs, best first: scratch that nodes share, home, the rest."""
    environ = there(context).environ
    user = environ.get("USER", "")
    texts = [f"${name}" for name in _SCRATCH_VARIABLES if environ.get(name, "").startswith("/")]
    texts += [place for place in _SCRATCH_PLACES if user or "$USER" not in place]
    named = {
        text: Path(
            home_dir(environ)
            if text == "~"
            else text.replace("$USER", user)
            if text.startswith("/")
            else environ[text[1:]]
        )
        for text in (*texts, "~")
    }
    seen = spots(context, list(named.values()), probe=False)
    mounts = places.read_mounts(context)
    found: dict[str, Folder] = {}
    for (text, path), spot in zip(named.items(), seen, strict=True):
        if spot.at == path and not spot.fault and not spot.refusal:
            found.setdefault(spot.real, _folder(text, spot, mounts))
    # sorted() keeps the order of those that are alike: variables first, home last.
    return sorted(found.values(), key=lambda one: {True: 0, None: 1, False: 2}[one.shared])


def _folder(text: str, spot: Spot, mounts: Sequence[places.Mount]) -> Folder:
    mount = places.mount_of(spot.real, mounts)
    kind = mount.type if mount is not None else ""
    is_local = kind in places.LOCAL_TYPES | places.MEMORY_TYPES
    shared = True if _SHARED.fullmatch(kind) else False if is_local else None
    return Folder(text=text, path=spot.real, file_system=kind, shared=shared, free=spot.bytes or 0)


# ---- fabric ------------------------------------------------------------------------------------


def fabric_guess(devices: str) -> tuple[Fabric, str] | None:
    """Guess the fabric by a machine's devices: the fabric and its sign; None: no sign.

    >>> fabric_guess("/sys/class/infiniband/mlx5_0/ports/1/link_layer Ethernet")
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


def _pythons(
    candidates: Sequence[tuple[str, str, Path]], answers: Sequence[Result]
) -> list[Python]:
    """Return the Pythons that could train: those with torch first, the project's own first."""
    found: dict[str, Python] = {}
    for (key, value, path), answer in zip(candidates, answers, strict=True):
        if answer.exit_code not in (126, 127):
            has_torch = answer.exit_code == 0 and answer.stdout.strip() == "1"
            python = Python(key=key, value=value, path=str(path), has_torch=has_torch)
            found.setdefault(str(path), python)
    return sorted(found.values(), key=lambda python: not python.has_torch)


def _candidates(
    project: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, Path]]:
    """Yield what could train: key and value of the setup, and the Python; without ``project``
    those of a login elsewhere."""
    for name in (".venv", "venv", "env") if project is not None else ():
        if project is not None and (project / name / "pyvenv.cfg").is_file():
            yield "venv", name, project / name / "bin/python"
    if environ.get("VIRTUAL_ENV"):
        yield "venv", environ["VIRTUAL_ENV"], Path(environ["VIRTUAL_ENV"]) / "bin/python"
    if environ.get("CONDA_PREFIX"):
        name = environ.get("CONDA_DEFAULT_ENV") or environ["CONDA_PREFIX"]
        yield "conda", name, Path(environ["CONDA_PREFIX"]) / "bin/python"
    if project is not None:
        yield "python", sys.executable, Path(sys.executable)
        system = shutil.which("python3", path=environ.get("PATH"))
        if system:
            yield "python", system, Path(system)
        return
    for name in (".venv", "venv", "env"):
        yield "venv", f"~/{name}", Path(home_dir(environ)) / name / "bin/python"
    for folder in dict.fromkeys(environ.get("PATH", "").split(":")):
        if folder.startswith("/"):
            yield "python", f"{folder}/python3", Path(folder) / "python3"
