"""Folders that the runs of a sweep would share, though each needs its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcrun.plan.script_facts import Option, ScriptFacts

# Options that name a folder which a script writes to, by what their authors call them.
_WRITTEN = re.compile(
    r"-+(?:\w+[-_])?(?P<kind>checkpoints?|ckpts?|save|output|out|results?)[-_]?"
    r"(?:dir|path|folder|directory|root)|-+(?:output|out|save)",
    re.IGNORECASE,
)
_CHECKPOINTS = re.compile(r"checkpoint|ckpt", re.IGNORECASE)
# A folder that is read: another run's, on purpose.
_READ = re.compile(r"resume|load|init|pretrain|from|restore|teacher|base|read|source|cache", re.I)
# An option that may tell the runs apart below a folder that they share.
_NAMES = re.compile(r"name|id$|tag|suffix|prefix|exp|run|title|version|group", re.IGNORECASE)
# No folder, or not a shared one: a number, a variable's value, nothing.
_NO_FOLDER = re.compile(r"[-+0-9.e]*|.*\$.*|none|null|true|false|/dev/.*", re.IGNORECASE)


def shared_folder_notes(
    script: str, facts: ScriptFacts, given: Sequence[Sequence[str]], *, reads_variables: bool
) -> list[str]:
    """Tell of an option for checkpoints or output that has one value in all runs of a sweep.

    ``given`` are the words that each run gives the script, placeholders filled, so that what a run
    has of its own differs. ``reads_variables``: the script or a module of the project names
    HPCRUN_* variables. A script that may find its folder by one, or runs that are named apart, are
    told nothing.

    >>> option = Option(["--checkpoint-dir"], default="checkpoints")
    >>> facts = ScriptFacts(options=[option])
    >>> words = [["--lr", "1e-3"], ["--lr", "1e-2"]]
    >>> len(shared_folder_notes("train.py", facts, words, reads_variables=False))
    1
    """
    if len(given) < 2 or _may_find_it(facts, reads_variables) or _are_named(facts, given):
        return []
    notes = []
    for option in facts.options:
        name = option.names[-1] if option.names else ""
        if not _WRITTEN.fullmatch(name) or _READ.search(name):
            continue
        values = {_value(words, option) for words in given}
        value = next(iter(values))
        if len(values) > 1 or _NO_FOLDER.fullmatch(value):
            continue
        of_checkpoints = _CHECKPOINTS.search(name) is not None
        own = "{checkpoint_dir}" if of_checkpoints else "{run_dir}/out"
        harm = "resume from each other's" if of_checkpoints else "write over each other's"
        notes.append(
            f"sweep: all {len(given)} runs give {script} the folder {value} for {name}: they would "
            f'share it, and may {harm}; args: [{name}, "{own}"]'
        )
    return notes


def _may_find_it(facts: ScriptFacts, reads_variables: bool) -> bool:
    """Tell whether the script may know its run's folder by a variable."""
    if not facts.variables:
        return reads_variables  # a module of the project reads one, it is not known which
    return bool({"HPCRUN_CHECKPOINT_DIR", "HPCRUN_RUN_DIR", "HPCRUN_"} & set(facts.variables))


def _are_named(facts: ScriptFacts, given: Sequence[Sequence[str]]) -> bool:
    """Tell whether an option that may be part of a folder's name differs from run to run."""
    return any(
        len({_value(words, option) for words in given}) > 1
        for option in facts.options
        if any(_NAMES.search(name) for name in option.names)
    )


def _value(words: Sequence[str], option: Option) -> str:
    """What an option is given; its default where it is not."""
    found = option.default
    for place, word in enumerate(words):
        name, equals, text = word.partition("=")
        if name in option.names:
            found = text if equals else " ".join(words[place + 1 : place + 2])
    return found
