"""Create a cluster profile from Slurm's information and the user's choices, or update one."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, structs

from hpcrun.actions.cluster_host import ClusterHost, HostEnvironment, open_host
from hpcrun.actions.environments import describe_missing_environment
from hpcrun.actions.init import survey
from hpcrun.assets import config_dir, home_dir, shipped_folder
from hpcrun.context import (
    PROFILE,
    Context,
    build_context,
    find_project,
    load_context,
    read_text,
    refuse_other_clusters,
)
from hpcrun.errors import InputError, OutOfReach
from hpcrun.files import write_atomically
from hpcrun.plan import (
    Change,
    ClusterFacts,
    Site,
    SlurmOutputs,
    build_site,
    find_changes,
    format_names,
    format_profile,
    is_mig,
)
from hpcrun.remote import Transport
from hpcrun.signals import defer_signals
from hpcrun.spec import (
    Cluster,
    Setup,
    format_flow,
    json_schema,
    load_cluster,
    remove_value,
    set_value,
)
from hpcrun.text import format_size

if TYPE_CHECKING:
    from hpcrun.remote import Prompts

SCHEMAS = ".hpcrun"
SANDBOX = "sandbox"  # the name of the sandbox's profile and of its cluster in Slurm
NO_PYTHON = "CHECK: no Python with torch was found; setup: {venv: FOLDER} or {conda: NAME}"
_HUBS = "CHECK: set to false if nodes cannot reach Hugging Face; enables offline mode"


class InitState(Struct, frozen=True, kw_only=True):
    """The findings of init.

    Attributes:
        profile: The file to write or update.
        before: The current content of that file.
        old: The parsed profile to update; None for a new one, or if a sandbox's was copied.
        text: The text to update; "" for a new profile. A new one may start from the text of a
            shipped profile.
        seen: The properties of the machine.
        site: Slurm's information; None without Slurm.
        facts: None without Slurm.
        base: The values known without a query: the sandbox's own profile, else nothing.
    """

    environ: dict[str, str]
    project: Path
    profile: Path
    for_user: bool
    name: str
    base: Cluster
    seen: survey.Survey
    before: str = ""
    old: Cluster | None = None
    text: str = ""
    answers: SlurmOutputs | None = None
    site: Site | None = None
    facts: ClusterFacts | None = None
    changed: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    is_one_machine: bool = False  # this machine is the only node, so all nodes see its disks


class Question(Struct, frozen=True):
    """A question to the user: its answers (none: yes or no), its default, and details.

    Attributes:
        is_path: Any text that choose_python() accepts is an answer; "" leaves it open.
    """

    key: str
    text: str
    default: str
    answers: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    is_path: bool = False


def survey_cluster(
    environ: Mapping[str, str],
    cwd: Path,
    *,
    name: str | None,
    for_user: bool,
    host: str | None = None,
    like: str | None = None,
    prompts: Prompts | None = None,
) -> InitState:
    """Find the profile and query Slurm, on this machine or on a ``host``; nothing is changed.

    Args:
        like: Start from a copy of this shipped profile.
        prompts: Asks for a password.

    Raises:
        InputError: The profile cannot be read, or is that of another cluster.
        OutOfReach: The host cannot be reached, or Slurm does not respond.
    """
    project, clusters = find_project(cwd), config_dir(environ) / "clusters"
    chosen = environ.get("HPCRUN_CLUSTER") or "/"
    has_profile = "/" not in chosen and (clusters / f"{chosen}.yaml").is_file()
    if not name and not like and has_profile and not (project / PROFILE).is_file():
        name = chosen
    target = _find_profile(project, clusters, name or like, for_user)
    text = ""
    if like is not None:
        assert target is not None
        text = _read_site_profile(like, target)
    elif target == project / PROFILE:
        _check_same_cluster(target, name or environ.get("HPCRUN_CLUSTER"), clusters)
    known: Mapping[str, str] | None = None
    if host is None or (target is not None and target.exists()):
        context = _find_context(environ, cwd, project, name, prompts)
        _check_same_host(context.cluster, context.cluster_source, host)
    else:
        cluster = Cluster(name=name or host, host=host)
        context, known = _connect_to_host(environ, cwd, project, cluster, prompts)
    far = context.cluster.host is not None
    has_slurm = far or shutil.which("scontrol", path=environ.get("PATH")) is not None
    if has_slurm and not far:
        refuse_other_clusters(context.cluster, environ)
    first = survey.first_queries(has_slurm=has_slurm) if known is None else []
    login_host = open_host(context, first, known)
    seen = survey.survey_site(login_host, None if far else project, has_slurm=has_slurm)
    login, answers = login_host.login, seen.answers
    called = name or (answers.config.cluster if answers else "") or context.cluster.name
    of_user = clusters / (re.sub(r"[^\w.-]", "-", called) + ".yaml")
    if name is None and target is not None and not target.exists():
        # If it is the user's only profile and that of this cluster, every command uses it here.
        target = None if list(clusters.glob("*.yaml")) == [of_user] else target
    profile = target or of_user
    before = _read_exact(profile)
    if like is not None:
        text = _adapt_site_profile(text, name, context, login)
    text = text or before
    old = load_cluster(text, source=str(profile)) if text else None
    if old is not None:
        _check_same_host(old, str(profile), host)
    if name and answers is not None and answers.config.has_accounting:
        _check_own_cluster(name, answers.config.cluster, login_host)
    base = context.cluster
    if old is not None and answers is not None and _is_foreign_sandbox(old, answers.config.cluster):
        old, base = None, base if answers.config.cluster == SANDBOX else Cluster()
    found = InitState(
        environ=dict(login.environ),
        project=project,
        profile=profile,
        for_user=profile.parent == clusters,
        name=called,
        base=base,
        seen=seen,
        before=before,
        old=old,
        text=text,
        answers=answers,
    )
    return found if answers is None else _compare_with_cluster(found, answers)


def _check_own_cluster(name: str, own: str, host: ClusterHost) -> None:
    """Raise InputError if the name is that of another cluster of the same accounting database."""
    if name == own:
        return
    if name in survey.list_clusters(host):
        raise InputError(
            f"--cluster {name}: Slurm's commands here belong to {own}, another cluster",
            fix=f"run it on a login node of {name}, or with SLURM_CONF set to its slurm.conf",
        )


def _own_conf(found: InitState) -> str | None:
    """Return the slurm.conf of this shell; the profile needs it to query the same Slurm later."""
    conf = found.environ.get("SLURM_CONF")
    is_here = found.base.host is None and found.site is not None
    return conf if is_here and conf and conf.startswith("/") else None


def _check_same_host(cluster: Cluster, source: str, host: str | None) -> None:
    """Raise InputError if the profile's cluster is not on ``host``."""
    own = cluster.host
    if host is not None and own != host:
        raise InputError(
            f"{source}: the profile is for {f'the host {own}' if own else 'this machine'}, not "
            f"for {host}",
            fix=f"hpcrun init --host {host} --user --cluster NAME writes another one",
        )


def _connect_to_host(
    environ: Mapping[str, str], cwd: Path, project: Path, cluster: Cluster, prompts: Prompts | None
) -> tuple[Context, Mapping[str, str]]:
    """Log in to a host without a profile, and find its Slurm; also return the login environment.

    Raises OutOfReach.
    """
    # The directory of its runs is not known yet, so nothing is mirrored.
    context = build_context(environ, cwd, project, cluster, f"--host {cluster.host}", prompts)
    login, keys = survey.find_slurm(context)
    exported = {name: text for name, text in login.items() if name not in ("SHELLOPTS", "BASHOPTS")}
    connect = context.connect

    def connect_so(env: Mapping[str, str], **options: Any) -> Transport:
        return connect({**exported, **env}, **options)

    cluster = structs.replace(cluster, **keys)
    return structs.replace(context, cluster=cluster, connect=connect_so), login


def _read_site_profile(like: str, target: Path) -> str:
    """Return the text of a shipped profile. Raises InputError if that is impossible."""
    known = {file.stem: file for file in shipped_folder("sites").glob("*.yaml")}
    if like not in known:
        listed_sites = ", ".join(sorted(known))
        close = difflib.get_close_matches(like, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {listed_sites}"
        raise InputError(f"--like {like}: no built-in profile has this name", fix=hint)
    if target.exists():
        raise InputError(f"{target}: a profile already exists", fix="move it away, or edit it")
    return known[like].read_text()


def _adapt_site_profile(
    text: str, name: str | None, context: Context, login: HostEnvironment
) -> str:
    """Adapt a shipped profile: name, host, and directories whose variables are not set."""
    environ, cluster = login.environ, context.cluster
    for key, value, variable in re.findall(r"(?m)^((?:runs|cache)_dir): (\S*\$(\w+)\S*).*$", text):
        if not environ.get(variable):
            look = f"~/hpcrun/{key[:-4]} # CHECK: {value}, but {variable} is not set there"
            text = re.sub(rf"(?m)^{key}: .*$", f"{key}: {look}", text)
    if name:
        text = re.sub("(?m)^name: .*$", f"name: {format_flow(name)}", text)
    way = {
        "host": cluster.host,
        "login_shell": cluster.login_shell or None,
        "slurm_path": cluster.slurm_path,
    }
    for key, value in way.items():
        if value is not None and cluster.host is not None:
            text = set_value(text, [key], value)
    return text


def _read_exact(profile: Path) -> str:
    """Read a profile, if it exists, with its line ends, which are preserved when it is written."""
    if not profile.exists():
        return ""
    read_text(profile)  # reports errors
    with profile.open(encoding="utf-8", newline="") as file:
        return file.read()


def check_unchanged(found: InitState) -> None:
    """Raise InputError if the profile was changed since it was read."""
    if _read_exact(found.profile) != found.before:
        raise InputError(
            f"{found.profile}: it was changed during hpcrun init",
            fix="nothing was written; run it again",
        )


def _find_context(
    environ: Mapping[str, str],
    cwd: Path,
    project: Path,
    name: str | None,
    prompts: Prompts | None = None,
) -> Context:
    """Return the context whose Slurm is queried: the profile's, else the sandbox's, else here.

    A cluster without a profile is not an error here.
    """
    wanted = name or environ.get("HPCRUN_CLUSTER") or None
    known = wanted is not None and (
        wanted == SANDBOX or (config_dir(environ) / "clusters" / f"{wanted}.yaml").is_file()
    )
    if known or (project / PROFILE).is_file():
        bare = {**environ, "HPCRUN_CLUSTER": ""}
        context = load_context(bare, cwd, wanted if known else None, prompts)
        is_here = not _is_foreign_sandbox(context.cluster)
        if is_here and (wanted is None or known or context.cluster.name == wanted):
            return context
    bare = {key: value for key, value in environ.items() if key != "HPCRUN_CLUSTER"}
    plain = Context(
        environ=bare,
        cwd=cwd,
        project=project,
        cluster=Cluster(),
        cluster_source="defaults",
        runs_dir=project,
        cache_dir=project,
    )
    if wanted is not None or environ.get("SLURM_CONF"):
        return plain
    with contextlib.suppress(InputError):
        return load_context(bare, project, SANDBOX)
    return plain


def _is_foreign_sandbox(cluster: Cluster, here: str = SANDBOX) -> bool:
    """Return True if a profile is that of a sandbox, and not of the Slurm ``here``."""
    is_gone = cluster.slurm_conf is not None and not Path(cluster.slurm_conf).exists()
    return cluster.name == SANDBOX and (is_gone or here != SANDBOX)


def _find_profile(project: Path, folder: Path, name: str | None, for_user: bool) -> Path | None:
    """Return the profile's file; None for a user's profile named after the cluster."""
    if name is not None and "/" in name:
        raise InputError(f"--cluster {name}: a name, not a path")
    if for_user and not name:
        return None
    if for_user or (name is not None and (folder / f"{name}.yaml").is_file()):
        return folder / f"{name}.yaml"
    return project / PROFILE


def _check_same_cluster(profile: Path, name: str | None, clusters: Path) -> None:
    """Raise InputError if the project's profile is not that of the cluster named by the user."""
    if not name or not profile.is_file():
        return
    of = load_cluster(read_text(profile), source=str(profile)).name
    fix = f"hpcrun init --user --cluster {name} writes {clusters}/{name}.yaml"
    if name == SANDBOX:
        fix = "the sandbox needs none: hpcrun submit JOB --cluster sandbox"
    if of != name:
        raise InputError(f"{profile}: the project's profile is for another cluster, {of}", fix=fix)


def _compare_with_cluster(found: InitState, answers: SlurmOutputs) -> InitState:
    old = found.old
    site = build_site(
        answers, old.gpu_types if old else None, keep=list(old.partitions) if old else ()
    )
    if old and old.partitions and not site.partitions:
        raise OutOfReach(
            f"{found.profile} names {len(old.partitions)} partitions, and Slurm shows none now",
            fix="nothing was changed; sinfo shows what there is",
        )
    facts = ClusterFacts(
        read_on=time.strftime("%Y-%m-%d"),
        values={
            "slurm_version": answers.config.version or None,
            "max_array_size": answers.config.max_array_size,
        },
        partitions=site.partitions,
        gpu_types=site.gpu_types,
        sure=answers.associations is not None,
    )
    here = {"127.0.0.1", "::1", "localhost", found.seen.host}
    return structs.replace(
        found,
        site=site,
        facts=facts,
        changed=[*find_changes(old, facts), *_find_python_change(found)] if old else [],
        warnings=_find_removed(old, site, answers) if old else [],
        is_one_machine=bool(answers.limits)
        and all(one.address in here for one in answers.limits.values()),
    )


def _find_removed(old: Cluster, site: Site, answers: SlurmOutputs) -> list[str]:
    """Return warnings about names in the profile that the cluster no longer has."""
    warnings = []
    if old.partition is not None and answers.partitions:
        for name in old.partition.split(","):
            if name not in {row.name for row in answers.partitions}:
                warnings.append(f"partition: {name} no longer exists; name another one")
    gres = {one.gres for one in site.gpu_types.values()}
    for name, one in old.gpu_types.items():
        if one.gres and one.gres not in gres:
            warnings.append(f"gpu_types.{name}: no node has the GPUs {one.gres} any more")
        if one.partition and one.partition not in site.partitions:
            warnings.append(f"gpu_types.{name}: the partition {one.partition} no longer exists")
    if old.account is not None and site.accounts and old.account not in site.accounts:
        yours = ", ".join(site.accounts)
        warnings.append(f"account: {old.account} is not one of yours; you have {yours}")
    return warnings


# ---- files -------------------------------------------------------------------------------------


def schema_files(found: InitState, *, job: bool) -> dict[Path, str]:
    """Return the JSON Schemas for editors that are missing or from another version."""
    files: dict[Path, str] = {}
    folder = found.profile.parent if found.for_user else found.project / SCHEMAS
    wanted = {folder / "cluster.schema.json": _encode_schema(json_schema("cluster"))}
    if job:
        wanted[found.project / SCHEMAS / "job.schema.json"] = _encode_schema(json_schema("job"))
    if any(path.parent.name == SCHEMAS for path in wanted):
        wanted[found.project / SCHEMAS / ".gitignore"] = "*\n"  # init can write them again
    for path, text in wanted.items():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.read_text() == text:
                continue
        files[path] = text
    return files


def _encode_schema(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, indent=1) + "\n"


def write_files(files: Mapping[Path, str], found: InitState) -> None:
    """Write files atomically, creating directories as needed; Ctrl-C is deferred until the end.

    Raises:
        InputError: A file cannot be written; detected before the first is written, if possible.
    """
    # Links in the user's own configuration are intended, wherever they lead.
    folder = found.profile.parent if found.for_user else None
    own = {path for path in files if path.parent == folder}
    made = {}
    for path, text in files.items():
        _check_place(path)
        if path not in own:
            _check_inside(path, found.project)
        try:
            made[path] = text.encode("utf-8")
        except UnicodeEncodeError as error:
            name = error.object[max(error.start - 20, 0) : error.end]
            raise InputError(
                f"{path}: a name in it is not UTF-8: {name!r}",
                fix="rename that folder, or write the file by hand",
            ) from error
    with defer_signals():
        for path, content in made.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{path.parent}: {error.strerror}") from error
            with write_atomically(path, follows=path in own) as file:
                file.write(content)


def _check_place(path: Path) -> None:
    if path.exists():
        if not path.is_file():
            raise InputError(f"{path}: not a file", fix="move it away")
        folder = Path(os.path.realpath(path)).parent
    else:
        folder = path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder", fix="move it away")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: you cannot write to {folder}", fix="run it in another folder")


def _check_inside(path: Path, project: Path) -> None:
    """Refuse a file of the project that is elsewhere: a repository may contain any link.

    Git's own directory counts as elsewhere, because git executes its files. Raises InputError.
    """
    top, real = Path(os.path.realpath(project)), Path(os.path.realpath(path))
    if real.is_relative_to(top) and ".git" not in real.relative_to(top).parts:
        return
    part = path
    while not part.is_symlink() and part != project:
        part = part.parent
    raise InputError(
        f"{part}: a symbolic link to a file outside the project, {os.path.realpath(part)}",
        fix="remove the link: hpcrun init writes a file or a folder of its own there",
    )


# ---- choices -----------------------------------------------------------------------------------


def find_questions(found: InitState) -> list[Question]:
    """List the questions that only the user can answer."""
    folders, site = found.seen.folders, found.site
    questions: list[Question] = []

    def ask(key: str, text: str, default: str | None, answers: list[str], *details: str) -> None:
        if len(answers) > 1 and default is not None:
            questions.append(Question(key, text, default, answers, list(details)))

    if site is not None:
        with_gpus = [name for name, one in site.partitions.items() if one.gpus_per_node]
        names = with_gpus or site.named_gpus or list(site.partitions)
        ask("partition", "Partition of jobs that name none", site.partition, names)
        ask("account", "Account to charge", site.account, site.accounts)
        if site.named_gpus:
            text = f"GPUs on a node of {', '.join(site.named_gpus)} (Slurm counts none)"
            ask("gpus", text, "1", ["0", "1", "2", "3", "4", "8"])
    texts = [folder.text for folder in folders]
    details = [f"{folder.text}  {describe_folder(folder, found)}" for folder in folders]
    ask("folder", "Folder for runs and caches", next(iter(texts), None), texts, *details)
    _ask_for_python(found, questions)
    if site is not None and not found.is_one_machine:
        questions.append(Question("internet", "Do compute nodes reach the internet", "yes"))
    return questions


def _ask_for_python(found: InitState, questions: list[Question]) -> None:
    """Ask which Python trains, unless the project's own environment has torch."""
    usable = [one for one in found.seen.pythons if one.has_torch]
    if not usable and not found.seen.pythons[:1]:
        return
    if not usable:
        first = found.seen.pythons[0]
        if first.key == "python" and found.base.host is None:
            text = (
                "Python that trains: a virtual environment, a conda environment or an interpreter "
                "(Enter: none yet)"
            )
            questions.append(Question("python", text, "", is_path=True))
    elif len(usable) > 1 and not usable[0].of_project:
        details = [f"{one.key} {one.value}" for one in usable]
        values = [one.value for one in usable]
        questions.append(Question("python", "Python that trains", values[0], values, details))


def describe_folder(folder: survey.Folder, found: InitState) -> str:
    """Describe a directory for runs."""
    free = f"{folder.file_system or 'unknown file system'}, {format_size(folder.free)} free"
    if folder.shared is False and not found.is_one_machine:
        return f"{free}; CHECK: on this machine's own disk, which other nodes may not see"
    if folder.shared is None and not found.is_one_machine:
        return f"{free}; CHECK: do all nodes see it?"
    return free


def build_profile(found: InitState, answers: dict[str, str]) -> str:
    """Write a new profile from the answers, and defaults for the other questions."""
    site, guess, base = found.site, found.seen.fabric, found.base
    comments = {"internet": _HUBS, "fabric": "as the nodes show"}
    if guess is not None:
        comments["fabric"] += (
            f"; a guess by {guess[1]} on {base.host or 'this machine'}: {guess[0]}"
        )
    wanted = [folder for folder in found.seen.folders if folder.text == answers.get("folder")]
    folder = next(iter([*wanted, *found.seen.folders]), None)
    top = "~/hpcrun"
    if folder is not None:
        top = "~/hpcrun" if folder.text == "~" else f"{folder.text}/hpcrun"
        comments["runs_dir"] = describe_folder(folder, found)
    partition = answers.get("partition") or (site.partition if site else None)
    facts = found.facts
    slurm: dict[str, Any] = {}
    gpus = int(answers.get("gpus", "1")) if site is not None and site.named_gpus else 0
    if facts is not None and site is not None and gpus:
        slurm["gres"] = False
        comments["slurm"] = "Slurm reports no GPUs here: jobs get whole nodes, with their GPUs"
        counted = {
            name: structs.replace(one, gpus_per_node=gpus) if name in site.named_gpus else one
            for name, one in facts.partitions.items()
        }
        facts = structs.replace(facts, partitions=counted)
    hint = found.environ.get("SBATCH_HINT") or found.environ.get("SLURM_HINT")
    if hint == "nomultithread":
        slurm["hint"] = hint  # like the site's default for every shell: CPUs are cores then
    has_gpus = facts is not None and any(one.gpus_per_node for one in facts.partitions.values())
    accelerator = base.accelerator
    if site is not None and site.partitions and not has_gpus:
        accelerator = "cpu"
        comments["accelerator"] = "no partition that you can use has GPUs"
    account = answers.get("account") or (site.account if site else None)
    if site is not None and len(site.accounts) > 1:
        comments["account"] = f"yours: {format_names(site.accounts)}"
    if site is not None and len(site.partitions) > 1:
        comments["partition"] = "of jobs that name none"
    python, setup = choose_python(found, comments, answers.get("python"))
    tmp = found.answers.config.tmp if found.answers else ""
    types: dict[str, bool] = {}  # GPU types of that partition, and whether each is a whole GPU
    if facts is not None and partition in facts.partitions:
        for name in facts.partitions[partition].gpu_types:
            types[name] = not is_mig(facts.gpu_types[name].gres or "")
    whole = [name for name, is_whole in types.items() if is_whole]
    gpu_type = whole[0] if len(whole) == 1 < len(types) else None
    comments["gpu_type"] = "of jobs that name none: else a slice of a GPU may come"
    chosen = {
        "name": found.name,
        "host": base.host,
        "login_shell": base.login_shell or None,
        "slurm_path": base.slurm_path,
        "accelerator": accelerator if accelerator != "cuda" else None,
        "slurm_conf": base.slurm_conf or _own_conf(found),
        "runs_dir": f"{top}/runs",
        "cache_dir": f"{top}/cache",
        "local_dir": tmp if tmp not in ("", "/tmp") and tmp.startswith("/") else None,
        "partition": partition,
        "account": account,
        "gpu_type": gpu_type,
        "slurm": slurm,
        "internet": answers.get("internet", "yes") == "yes",
        "setup": setup,
        "python": python,
        "env": base.env,
    }
    schema = "cluster.schema.json" if found.for_user else f"{SCHEMAS}/cluster.schema.json"
    return format_profile(chosen, comments, facts, site, schema)


def choose_python(
    found: InitState, comments: dict[str, str], answer: str | None = None
) -> tuple[str | None, dict[str, Any]]:
    """Return the Python for the training as the profile names it: a path or an environment.

    hpcrun's own Python, and the system's, count only if they have torch.

    Raises:
        InputError: The answer is none of an interpreter, an environment or the name of one.
    """
    pythons = found.seen.pythons
    if answer:
        best = next((one for one in pythons if one.value == answer), None)
        best = best or _parse_python(answer, found)
    else:
        best = next(iter(pythons), None)
    if best is None or (best.key == "python" and not best.has_torch and not answer):
        comments["python"] = NO_PYTHON
        return None, {}
    lacks = (
        ""
        if best.has_torch
        else ("CHECK: no torch here; set this to the Python that runs your training")
    )
    if best.key == "python":
        if lacks:
            comments["python"] = lacks
        return best.value, {}
    if found.for_user and not best.value.startswith(("/", "~")):
        return None, {}  # an environment of the project is set in its jobs
    if lacks and best.key != "uv":
        comments["setup"] = lacks
    return None, {best.key: True if best.key == "uv" else best.value}


def _parse_python(answer: str, found: InitState) -> survey.Python:
    """Return the Python that the user typed: a path, or the name of a conda environment."""
    path = found.project / answer.replace("~", home_dir(found.environ), 1)
    if "/" not in answer and not path.exists():
        return survey.Python(key="conda", value=answer, path="", has_torch=True)
    if path.is_dir():
        key = "conda" if (path / "conda-meta").is_dir() else "venv"
        path = path / "bin/python"
    else:
        key = "python"
    if not os.access(path, os.X_OK):
        raise InputError(f"{answer}: no Python there: {path}")
    return survey.Python(key=key, value=answer, path=str(path), has_torch=True)


def describe_missing_python(found: InitState) -> str:
    """Say what to do if no Python with torch was found; "" if there is nothing to do."""
    own = found.old
    if any(one.has_torch for one in found.seen.pythons):
        return ""
    if own is not None and (own.setup != Setup() or own.python):
        return ""
    if found.base.host is not None:
        return (
            "no Python with torch was found on the cluster: create an environment there, and name "
            "it in the profile, as in setup: {venv: ~/venv} or {conda: NAME}"
        )
    return (
        "no Python with torch was found: create an environment, and run hpcrun init again: "
        f"{describe_missing_environment(found.project)}; if it exists elsewhere, name it in "
        "hpcrun.yaml, as in setup: {venv: FOLDER} or {conda: NAME}"
    )


def _find_python_change(found: InitState) -> list[Change]:
    """Return the change to an environment with torch that the profile does not name yet.

    Only a profile is changed whose Python has no torch, or that init has written without one.
    """
    old, best = found.old, next(iter(found.seen.pythons), None)
    if old is None or best is None or not best.has_torch or old.setup != Setup():
        return []
    own = next((one for one in found.seen.pythons if one.path == old.python), None)
    is_open = old.python is None and NO_PYTHON in found.text
    if not is_open and (old.python is None or own is None or own.has_torch):
        return []
    python, setup = choose_python(found, {})
    after = python or format_flow(setup)
    if not python and not setup:
        return []
    key = "python" if python else "setup"
    what = "changed" if old.python else "added"
    return [Change(what=what, key=key, before=old.python, after=after)]


def update_python(text: str, found: InitState) -> str:
    """Name the environment of _find_python_change() in the text of a profile."""
    if not _find_python_change(found):
        return text
    python, setup = choose_python(found, {})
    text = "".join(line for line in text.splitlines(keepends=True) if NO_PYTHON not in line)
    if python:
        return set_value(text, ["python"], python)
    if load_cluster(text, source=str(found.profile)).python is not None:
        text = remove_value(text, ["python"])
    return set_value(text, ["setup"], setup)
