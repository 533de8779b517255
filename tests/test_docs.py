"""Commands, options, files and headings that the documents mention exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

from hpcrun.assets import list_jobs
from hpcrun.cli.main import VERBS, hpcrun
from hpcrun.spec.job import LauncherName
from tests.doc_commands import COMMANDS, command
from tests.source import ROOT, name

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^[ ]*(```|~~~)")


@pytest.mark.parametrize("words", COMMANDS)
def test_help_describes_the_verb_and_each_option(words: str) -> None:
    found = COMMANDS[words]
    assert found.help and len(found.help.splitlines()[0]) < 100
    text = found.get_help(click.Context(found, info_name=words, **hpcrun.context_settings))
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{words} {parameter.opts}"
            assert parameter.help[0].isupper() and parameter.help.endswith((".", ")."))
            assert all(option in text for option in parameter.opts)


def test_the_list_of_verbs_is_the_verbs() -> None:
    text = hpcrun.get_help(click.Context(hpcrun, info_name="hpcrun", **hpcrun.context_settings))
    for verb, summary in VERBS.items():
        assert re.search(rf"^  {verb} +\S", text, re.MULTILINE)
        assert summary.endswith(".")
    files = sorted((ROOT / "hpcrun" / "cli").glob("verbs_*.py"))
    commands = re.findall(
        r'^@click\.(?:command|group)\("(\w+)"', "".join(map(Path.read_text, files)), re.M
    )
    assert sorted(commands) == sorted(VERBS)


def test_page_of_commands_lists_every_command() -> None:
    rows = re.findall(r"`hpcrun (\w+)", (ROOT / "docs" / "commands.md").read_text())
    assert set(rows) >= set(VERBS)


# ---- the documents


def commands_in(text: str) -> Iterator[str]:
    """Return the hpcrun command lines in code blocks and code spans."""
    fenced = False
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        elif fenced:
            match = re.match(r"\s*(?:\$ )?(?:\w+=\S* )*(hpcrun .*)", line)
            if match:
                yield re.split(r"\s+#|\s+[|;&]|\s{3,}", match.group(1))[0]
        else:
            yield from re.findall(r"`(hpcrun [^`]*)`", line)


def wrong_in(line: str) -> str:
    """Return the part of a command line that does not exist; "" if all of it does."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:
        words = line.split()[1:]
    if not words or words[0].startswith(("-", "[", "<", "…", ".")) or words[0].isupper():
        return ""
    if words[0] not in VERBS:
        return f"no verb {words[0]}"
    found, rest = command(words[0]), words[1:]
    if isinstance(found, click.Group) and rest and rest[0] in found.commands:
        found, rest = found.commands[rest[0]], rest[1:]
    known = {"--help", "-h"} | {option for p in found.params for option in p.opts}
    if "--" in rest:
        rest = rest[: rest.index("--")]
    options = [word.split("=")[0].strip("[]") for word in rest if word.strip("[").startswith("-")]
    return ", ".join(f"no option {option}" for option in options if option not in known)


def test_the_reader_of_documents_reads() -> None:
    text = "Say `hpcrun jobs`.\n```\n$ A=b hpcrun submit x --nope  # why\nls\n```\n`hpcrun`\n"
    lines = list(commands_in(text))
    assert lines == ["hpcrun jobs", "hpcrun submit x --nope"]
    assert [wrong_in(line) for line in lines] == ["", "no option --nope"]
    assert wrong_in("hpcrun dance") == "no verb dance"
    assert wrong_in("hpcrun submit -- ls --all") == ""
    assert wrong_in("hpcrun sandbox up --nodes 3") == ""
    assert wrong_in("hpcrun sandbox up --nodez 3") == "no option --nodez"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_command_lines_exist(path: Path) -> None:
    wrong = {line: wrong_in(line) for line in commands_in(path.read_text(encoding="utf-8"))}
    assert {line: what for line, what in wrong.items() if what} == {}


def test_the_page_of_an_example_is_read_in_minutes() -> None:
    words = {name(p): len(p.read_text().split()) for p in ROOT.glob("examples/*/README.md")}
    assert len(words) == 5 and max(words.values()) <= 700, words


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert dead == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    found = set()
    fenced = False
    for line in path.read_text(encoding="utf-8").splitlines():
        fenced ^= bool(FENCE.match(line))
        heading = re.match(r"#+ +(.*)", line)
        if heading and not fenced:
            plain = re.sub(r"[^\w\- ]", "", heading.group(1).lower())
            found.add(plain.replace(" ", "-"))
    return found


def test_presets_named_in_documents_exist() -> None:
    jobs = list_jobs(ROOT / "no-such-project", {"HOME": "/nonexistent"})
    for path in DOCUMENTS:
        for found in re.findall(r"\b(?:ddp|zero[0-3])-\d+gpu(?:-\d+node)?\b", path.read_text()):
            assert found in jobs, f"{name(path)}: {found}"


def test_every_launcher_has_a_row_in_the_page_on_jobs() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert [one for one in get_args(LauncherName) if f"\n| {one} | " not in text] == []


def test_modules_named_in_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tops = (ROOT / folder for folder in ("hpcrun", "tests", "bench", "docs"))
    files = [f"/{name(path)}" for top in tops for path in top.rglob("*.py")]
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_0-9]+\.py)`", text))
    assert len(named) > 25
    assert {one for one in named if not any(file.endswith(f"/{one}") for file in files)} == set()
