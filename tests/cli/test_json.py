"""Every command that reads or submits prints JSON that conforms to its schema, as do errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import click
import jsonschema  # type: ignore[import-untyped]
import pytest

from hpcrun.why.rule import FailureClass
from tests.cli.calling import Caller, Done
from tests.doc_commands import COMMANDS
from tests.json_schemas import FOLDER, check_json, load_schema
from tests.source import ROOT

DOCUMENT = (ROOT / "docs" / "json.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
# Commands whose standard output has another purpose, and the reason.
WITHOUT = {
    "run": "its output is the program's",
    "shell": "its output is the shell's",
    "schema": "it prints JSON anyway",
    "code": "it holds a job",
    "notebook": "it prints the address of a page",
    "open": "it holds a port open",
    "ui": "it serves a page until Ctrl-C",
    "notify": "it sends messages",
    "sync": "it sends metrics",
    "connect": "it opens a connection",
    "completion": "it prints a program for the shell",
    "sandbox": "its verbs have it",
    "sandbox up": "it changes things, and sandbox status reads them",
    "sandbox down": "it changes things, and sandbox status reads them",
}
SPEAKING = [words for words in COMMANDS if words not in WITHOUT]
SCHEMAS = sorted(path.name.removesuffix(".schema.json") for path in FOLDER.glob("*.schema.json"))


def schema_of(words: str) -> str:
    """Return the name of a command's schema, which subcommands share."""
    return words.split()[0]


@pytest.mark.parametrize("words", SPEAKING)
def test_every_command_has_json_and_a_schema(words: str) -> None:
    options = {name for p in COMMANDS[words].params for name in p.opts}
    assert "--json" in options
    assert schema_of(words) in SCHEMAS
    section = REFERENCE.partition(f"### hpcrun {words}\n")[2].partition("\n### ")[0]
    assert f"json/{schema_of(words)}.schema.json" in section


def test_listed_exceptions_have_no_json() -> None:
    for words in WITHOUT:
        command = COMMANDS.get(words, click.Command("x"))
        assert "--json" not in {name for p in command.params for name in p.opts}, words


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_describes_every_key(name: str) -> None:
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] and schema["description"]
    silent = [path for path, part in properties(schema) if not described(part)]
    assert silent == []


def properties(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all keys of a schema."""
    if isinstance(schema, list):
        for item in schema:
            yield from properties(item, path)
    if isinstance(schema, dict):
        for key, part in schema.get("properties", {}).items():
            yield f"{path}.{key}", part
        for key, part in schema.items():
            yield from properties(part, f"{path}.{key}")


def described(part: Any) -> bool:
    """Return whether a key has a description or a named definition, or a list described items."""
    named = part.get("description") or any(key in part for key in ("$ref", "anyOf", "oneOf"))
    return bool(named) or ("items" in part and described(part["items"]))


# ---- docs/json.md


def examples() -> list[tuple[str, str]]:
    """Return the JSON examples of each section with its command, and those in the schemas."""
    found = [
        (name, json.dumps(example))
        for name in SCHEMAS
        for example in load_schema(name).get("examples", ())
    ]
    for section in re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        name = schema_of(heading.removeprefix("hpcrun ")) if "hpcrun " in heading else "error"
        found += [(name, block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    return found


def values(text: str, name: str) -> list[Any]:
    """Return the values of an example: one, or for logs one per line."""
    if name == "logs":
        return [json.loads(line) for line in text.splitlines()]
    return [json.loads(text)]


def test_every_schema_has_an_example() -> None:
    missing = set(SCHEMAS) - {name for name, _ in examples()}
    assert missing == set()


@pytest.mark.parametrize(("name", "text"), examples())
def test_examples_conform_to_their_schemas(name: str, text: str) -> None:
    for value in values(text, name):
        check_json(name, value)


# ---- errors


def error_of(done: Done) -> Any:
    assert done.out == "", done
    assert "Traceback" not in done.err, done
    answer = json.loads(done.err.splitlines()[-1])
    check_json("error", answer)
    assert answer["error"]["exit_code"] == done.code
    return answer["error"]


@pytest.mark.parametrize(
    ("argv", "message", "fix"),
    [
        (["status", "nothing"], "nothing: no such run in ", "hpcrun status lists the runs"),
        (["dance"], "no such command: dance", "hpcrun --help"),
        (["status", "-n", "0"], "Invalid value for '-n'", "hpcrun status --help"),
        (["logs", "nothing"], "nothing: no such run", "hpcrun status lists the runs"),
        (["parse", "no.log"], "no.log: no such file", "hpcrun status lists the runs"),
        (["show", "nothing"], "nothing: no such run", "hpcrun status lists the runs"),
        (["submit"], "name a job", "hpcrun submit --help"),
        (["submit", "nothing"], "nothing: no such job", "hpcrun jobs lists the available jobs"),
        (["jobs", "--nope"], "No such option", "hpcrun jobs --help"),
        (["hostfile", "a[1-"], "a[1-", None),
    ],
)
def test_error_is_json(hpcrun: Caller, argv: list[str], message: str, fix: str | None) -> None:
    done = hpcrun(*argv, "--json")
    error = error_of(done)
    assert message in error["message"] and done.code == 2
    assert fix is None or fix in error["fix"]
    assert error["problems"] == []
    # Without --json the error is plain text.
    assert hpcrun(*argv).err.splitlines()[-1][0] != "{"


def test_json_error_contains_all_problems_of_a_file(hpcrun: Caller) -> None:
    hpcrun.write("bad.yaml", "command: [a]\nbath: 1\nresources: {gpus: 2}\n")
    error = error_of(hpcrun("submit", "bad.yaml", "--json", "--dry-run"))
    shown = [(p["source"], p["line"], p["path"]) for p in error["problems"]]
    assert shown == [("bad.yaml", 2, "bath"), ("bad.yaml", 3, "resources.gpus")]
    assert error["message"].count("\n") == 1


def test_json_error_for_missing_slurm(hpcrun: Caller) -> None:
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    error = error_of(hpcrun("submit", "job.yaml", "--json"))
    assert error["exit_code"] == 4 and "sbatch: command not found" in error["message"]


@pytest.mark.parametrize("verb", ["submit", "resubmit"])
def test_follow_with_json_is_refused(hpcrun: Caller, verb: str) -> None:
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    error = error_of(hpcrun(verb, "job.yaml", "--json", "--follow"))
    assert error["exit_code"] == 2
    assert error["fix"] == f"hpcrun {verb} --json, then hpcrun logs -f --json JOB"
    assert not hpcrun.runs.exists()


def test_show_file_with_json_is_refused(hpcrun: Caller) -> None:
    error = error_of(hpcrun("show", "7", "--file", "job.sbatch", "--json"))
    assert error["exit_code"] == 2 and "without --json" in error["fix"]


def test_options_after_the_separator_belong_to_the_job(hpcrun: Caller) -> None:
    done = hpcrun("submit", "--nodes", "0", "--", "echo", "--json")
    assert done.code == 2 and done.err.startswith("error: --nodes: ")


# ---- commands that need no Slurm


def test_jobs_json_lists_project_and_built_in_jobs(hpcrun: Caller) -> None:
    hpcrun.write("jobs/mine.yaml", "description: my own\ncommand: [hostname]\n")
    hpcrun.write("jobs/bad.yaml", "nope: 1\n")
    answer = hpcrun("jobs", "--json").json
    check_json("jobs", answer)
    jobs = {job["name"]: job for job in answer["jobs"]}
    assert jobs["mine"]["description"] == "my own" and jobs["mine"]["from"] == "project"
    assert "nope: unknown key" in jobs["bad"]["error"] and jobs["bad"]["description"] is None
    assert jobs["zero2-4gpu"]["from"] == "built-in"


def test_show_json_of_a_job(hpcrun: Caller) -> None:
    answer = hpcrun("show", "zero2-4gpu", "--json").json
    check_json("show", answer)
    assert answer["job"]["resources"]["gpus_per_node"] == 4
    config = "{a: .nan, b: [-.inf]}"
    hpcrun.write("j.yaml", f"framework: deepspeed\ndeepspeed: {{config: {config}}}\n")
    job = hpcrun("show", "j.yaml", "--json").json["job"]
    assert job["deepspeed"]["config"] == {"a": "NaN", "b": ["-Infinity"]}


def test_hostfile_json_conforms_to_its_schema(hpcrun: Caller) -> None:
    for argv in (["node[01-02,7]", "--slots", "4"], ["a", "--to", "plain"]):
        answer = hpcrun("hostfile", *argv, "--json").json
        check_json("hostfile", answer)
    assert answer["slots"] is None and answer["hosts"] == [{"host": "a", "slots": None}]


def test_sandbox_status_json_without_a_sandbox(hpcrun: Caller) -> None:
    done = hpcrun("sandbox", "status", "--json")
    check_json("sandbox", done.json)
    assert done.code == 4 and done.json == {"sandbox": None}


@pytest.mark.parametrize("name", ["why", "wait", "status"])
def test_schemas_list_every_failure_class(name: str) -> None:
    schema = json.loads((ROOT / "docs" / "json" / f"{name}.schema.json").read_text())
    assert schema["$defs"]["cause"]["properties"]["class"]["enum"] == [*get_args(FailureClass)]
