"""What the cluster cannot say of itself: the choices, and the profile made from them."""

from __future__ import annotations

from msgspec import Struct, field

from hpcrun.controller.init.init import SCHEMAS, Found
from hpcrun.controller.init.surroundings import (
    Folder,
    Python,
    fabric_guess,
    pythons,
    scratch_folders,
)
from hpcrun.plan.profile import Choices, listed, profile_text

_HUBS = "LOOK: false where compute nodes reach no hub; it sets the hubs' offline switches"


class Question(Struct, frozen=True, kw_only=True):
    """One thing to ask: the answers that there are (none: a yes or a no), Enter's answer, why."""

    key: str
    text: str
    default: str
    answers: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)


class Options(Struct, frozen=True, kw_only=True):
    """Places for runs and Pythons, best first, and the questions that are left."""

    folders: list[Folder]
    pythons: list[Python]
    questions: list[Question]


def find_options(found: Found) -> Options:
    """Look around on this machine, and list what only the user can say."""
    folders = scratch_folders(found.environ)
    questions = []
    site = found.site
    if site is not None:
        with_gpus = [name for name, said in site.partitions.items() if said.gpus_per_node]
        names = with_gpus or list(site.partitions)
        if len(names) > 1 and site.partition is not None:
            questions.append(
                Question(
                    key="partition",
                    text="Partition of jobs that name none",
                    default=site.partition,
                    answers=names,
                )
            )
        if len(site.accounts) > 1 and site.account is not None:
            questions.append(
                Question(
                    key="account",
                    text="Account to charge",
                    default=site.account,
                    answers=site.accounts,
                )
            )
    if len(folders) > 1:
        questions.append(
            Question(
                key="folder",
                text="Folder for runs and caches",
                default=folders[0].text,
                answers=[folder.text for folder in folders],
                details=[f"{folder.text}  {folder_word(folder, found)}" for folder in folders],
            )
        )
    if site is not None and not found.is_one_machine:
        text = "Do compute nodes reach the internet"
        questions.append(Question(key="internet", text=text, default="yes"))
    return Options(
        folders=folders, pythons=pythons(found.project, found.environ), questions=questions
    )


def folder_word(folder: Folder, found: Found) -> str:
    """Say what is known of a place for runs."""
    free = f"{folder.file_system or 'unknown file system'}, {size_text(folder.free)} free"
    if folder.shared is False and not found.is_one_machine:
        return f"{free}; LOOK: on this machine's own disk, which other nodes may not see"
    if folder.shared is None and not found.is_one_machine:
        return f"{free}; LOOK: do all nodes see it?"
    return free


def size_text(count: float) -> str:
    """Write a number of bytes in a unit that fits.

    >>> size_text(79_718_219_776), size_text(12e12)
    ('79.7 GB', '12.0 TB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.1f} PB"


def new_profile(found: Found, options: Options, answers: dict[str, str]) -> str:
    """Write a new profile with the answers, where a question had one, and defaults."""
    site, folder = found.site, _folder(options, answers)
    comments = {"internet": _HUBS, "fabric": _fabric_word()}
    top = "~/hpcrun"
    if folder is not None:
        top = "~/hpcrun" if folder.text == "~" else f"{folder.text}/hpcrun"
        comments["runs_dir"] = folder_word(folder, found)
    partition = answers.get("partition") or (site.partition if site else None)
    has_gpus = site is not None and any(said.gpus_per_node for said in site.partitions.values())
    accelerator = found.base.accelerator
    if site is not None and site.partitions and not has_gpus:
        accelerator = "cpu"
        comments["accelerator"] = "no partition that you can use has GPUs"
    account = answers.get("account") or (site.account if site else None)
    if site is not None and len(site.accounts) > 1:
        comments["account"] = f"yours: {listed(site.accounts)}"
    if site is not None and len(site.partitions) > 1:
        comments["partition"] = "of jobs that name none"
    python, setup = _python(found, options, comments)
    tmp = found.answers.config.tmp if found.answers else ""
    choices = Choices(
        name=found.name,
        runs_dir=f"{top}/runs",
        cache_dir=f"{top}/cache",
        accelerator=accelerator,
        local_dir=tmp if tmp not in ("", "/tmp") and tmp.startswith("/") else None,
        slurm_conf=found.base.slurm_conf,
        partition=partition,
        account=account,
        internet=answers.get("internet", "yes") == "yes",
        python=python,
        setup=setup,
        env=dict(found.base.env),
        comments=comments,
    )
    schema = "cluster.schema.json" if found.for_user else f"{SCHEMAS}/cluster.schema.json"
    return profile_text(choices, found.facts, site, schema)


def _folder(options: Options, answers: dict[str, str]) -> Folder | None:
    wanted = answers.get("folder")
    named = [folder for folder in options.folders if folder.text == wanted]
    return next(iter([*named, *options.folders]), None)


def _fabric_word() -> str:
    guess = fabric_guess()
    if guess is None:
        return "as the nodes show"
    return f"as the nodes show; a guess by {guess[1]} on this machine: {guess[0]}"


def _python(
    found: Found, options: Options, comments: dict[str, str]
) -> tuple[str | None, dict[str, str]]:
    """The Python that trains, as the profile says it: by itself, or an environment."""
    best = next(iter(options.pythons), None)
    if best is None:
        return None, {}
    lacks = "" if best.has_torch else "LOOK: it has no torch yet; where is the one that trains?"
    if best.key == "python":
        if lacks:
            comments["python"] = lacks
        return best.value, {}
    if found.for_user and not best.value.startswith("/"):
        return None, {}  # a project's own; its jobs say so
    if lacks:
        comments["setup"] = lacks
    return None, {best.key: best.value}
