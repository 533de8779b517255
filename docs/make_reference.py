"""Write docs/reference.md, jobs/job.schema.json and the tables of failures in docs/faq.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from hpcrun import errors
from hpcrun.cli.main import SECTIONS, VERBS, hpcrun
from hpcrun.diagnose import rules
from hpcrun.diagnose.judge import faq_rows
from hpcrun.plan.build import build_plan
from hpcrun.plan.environment import placeholder_names
from hpcrun.plan.types import Dependency, Place
from hpcrun.spec.job import Batch, Cluster, DeepSpeed, JobSpec
from hpcrun.spec.schema import json_schema

FILE = Path(__file__).with_name("reference.md")
FAQ = Path(__file__).with_name("faq.md")
SCHEMA = Path(__file__).parent.parent / "jobs" / "job.schema.json"

HEAD = """\
# Reference

All verbs, keys and variables. `make docs` generates this page from the command line itself and from
the JSON Schemas; edit those, not this. What the keys are for, by topic: [jobs.md](jobs.md).
First steps: [tutorial.md](tutorial.md).
"""

# What job files and a script's environment can refer to; placeholder_names() has the names.
PLACEHOLDERS = {
    "accelerate_config": "this run's Accelerate YAML; with `launcher: accelerate`",
    "activation_checkpointing": "true or false, from the job",
    "after_checkpoint_dir": "the `{checkpoint_dir}` of the run that `--after` names",
    "backend": "what to give `init_process_group`: nccl, or gloo on CPUs",
    "cache_dir": "the profile's cache folder",
    "checkpoint_dir": "where to save and find checkpoints; a resubmitted run has the old run's",
    "code_dir": "the run's copy of your code, or the project with `snapshot: false`",
    "deepspeed_config": "this run's DeepSpeed JSON; with a `deepspeed:` block",
    "device": "cuda or cpu",
    "effective_batch": "micro batch x accumulation x ranks",
    "fabric": "the network between the nodes, or single-node",
    "gpus_per_node": "GPUs of each node",
    "gradient_accumulation_steps": "from the job",
    "launcher": "what starts the ranks",
    "local_dir": "the run's own folder on each node's local disk",
    "micro_batch_per_gpu": "from the job",
    "nodes": "number of nodes",
    "precision": "bf16, fp16 or fp32",
    "project_dir": "the folder that the job was submitted from",
    "ranks_per_node": "processes on each node",
    "resume": "the newest whole checkpoint as an attempt begins; empty where there is none",
    "run_dir": "the run's folder",
    "run_id": "the run's name",
    "world_size": "number of ranks in all",
    "zero_stage": "DeepSpeed's stage; with a `deepspeed:` block",
}

# What hpcrun reads, and what is known only in the job.
READ = {
    "HPCRUN_CLUSTER": "the cluster profile to use, as `--cluster NAME`",
    "HPCRUN_TRUST": "folders, separated by colons, whose `hpcrun.yaml`, jobs, templates, runs and "
    "slurm.conf count whoever owns them, and projects whose own slurm.conf counts",
    "HPCRUN_SANDBOX_DIR": "where the sandbox lives, instead of `hpcrun-sandbox` in "
    "`$XDG_RUNTIME_DIR` or, where there is none, a folder in `~/.cache/hpcrun`",
}
OF_THE_ATTEMPT = {
    "HPCRUN_ATTEMPT": "0, and one more after each requeue",
    "HPCRUN_END_TIME": "when Slurm will end the job, in epoch seconds; empty where nobody does",
    "HPCRUN_HOSTFILE": "the allocation as a hostfile",
    "HPCRUN_NODE_RANK": "the node's number, from 0",
    "HPCRUN_RESUME": "the newest whole checkpoint as the attempt begins, or empty",
    "HPCRUN_STOP_FILE": "a path: a file is there from when the time limit is near "
    "(`survive.save_before_end`)",
}


def reference() -> str:
    """Give the whole page."""
    parts = [HEAD, *_contents(), *_verbs(), _exit_codes(), *_keys(), _placeholders(), _variables()]
    return "\n".join(parts).rstrip() + "\n"


def _contents() -> Iterator[str]:
    for section, verbs in SECTIONS.items():
        yield f"- {section}: " + ", ".join(f"[{verb}](#hpcrun-{verb})" for verb in verbs)
    yield (
        "- Files: [job files](#job-files), [hpcrun.yaml](#hpcrunyaml), "
        "[placeholders](#placeholders)"
    )
    yield "- [Exit codes](#exit-codes), [environment variables](#environment-variables)\n"


# ---- verbs


def _verbs() -> Iterator[str]:
    yield "## Verbs\n"
    yield "Each has `-h`, too. The JSON that `--json` prints: [json.md](json.md).\n"
    for verb in VERBS:
        command = hpcrun.get_command(click.Context(hpcrun), verb)
        assert command is not None
        yield from _verb(f"hpcrun {verb}", command)


def _verb(words: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=words)
    yield f"### {words}\n"
    yield f"```text\n{' '.join([words, *command.collect_usage_pieces(context)])}\n```\n"
    text = re.sub(r"\x08\n?", "", command.help or "").strip()
    first, *rest = (f"{_plain(paragraph)}\n" for paragraph in text.split("\n\n"))
    yield first
    rows = [_option(option, context) for option in command.params if _is_shown(option)]
    if rows:
        yield _table(("option", "what it does"), rows)
    yield from rest
    if any("--json" in option.opts for option in command.params):
        name = f"{words.split()[1]}.schema.json"
        yield f"What `--json` prints: [{name}](json/{name}).\n"
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _verb(f"{words} {inner.name}", inner)


def _is_shown(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not parameter.hidden


def _option(parameter: click.Parameter, context: click.Context) -> tuple[str, str]:
    assert isinstance(parameter, click.Option)
    words = parameter.help or ""
    value = ""
    if not parameter.is_flag:
        value = f" {parameter.make_metavar(context)}"
    if isinstance(parameter.type, click.IntRange):
        value = " N"
        words += f" {_range(parameter.type)}"
    if parameter.show_default and parameter.default is not None:
        words += f" Default: {parameter.default}."
    names = ", ".join(f"`{name}`" for name in parameter.opts[:-1])
    last = f"`{parameter.opts[-1]}{value}`".replace("|", "\\|")
    return f"{names}, {last}" if names else last, _plain(words)


def _range(of: click.IntRange) -> str:
    return f"N: {of.min} or more." if of.max is None else f"N: {of.min} to {of.max}."


# ---- keys of YAML files


def _keys() -> Iterator[str]:
    yield "## Job files\n"
    yield (
        "`jobs/NAME.yaml` in your project, or any path. One of `script`, `module` and `command`; "
        "with none of them the reference trainer runs. A key that is absent has its default; in a "
        "job with `extends` it has the other job's value.\n"
    )
    yield from _rows("job", msgspec.to_builtins(JobSpec()) | {"name": "the file's"})
    yield "## hpcrun.yaml\n"
    yield (
        "Beside your code; or `~/.config/hpcrun/clusters/NAME.yaml`, chosen by `--cluster NAME`. "
        "`hpcrun init` writes it.\n"
    )
    yield from _rows("cluster", msgspec.to_builtins(Cluster()))


def _rows(kind: Any, defaults: Mapping[str, Any]) -> Iterator[str]:
    rows = list(_properties(json_schema(kind), "", defaults))
    yield _table(("key", "value", "default", "what it is"), rows)


def _properties(
    schema: Mapping[str, Any], under: str, defaults: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    for key, value in schema.get("properties", {}).items():
        if not isinstance(value, dict) or "description" not in value:
            continue  # what may stand there under conditions, or not at all
        path = f"{under}{key}"
        default = defaults.get(key)
        inner = value.get("additionalProperties")
        named = isinstance(inner, dict) and "properties" in inner
        # What a block is for stands in its type's docstring.
        words = " ".join(value.get("description", "").split("\n\n")[0].split())
        yield f"`{path}`", _cell(_type(value)), _cell(_default(default)), _plain(words)
        below = default if isinstance(default, dict) else {}
        if "properties" in value:
            yield from _properties(value, f"{path}.", below or _defaults_of(value))
        elif named:
            assert isinstance(inner, dict)
            yield from _properties(inner, f"{path}.NAME.", {})


def _defaults_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give what an absent block has once it is there."""
    made: Mapping[str, Any] = {}
    if schema.get("title") == "DeepSpeed":
        made = msgspec.to_builtins(DeepSpeed())
    return made


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        legal = [one for one in schema["enum"] if one is not None]
        return " \\| ".join(str(one).lower() if isinstance(one, bool) else one for one in legal)
    if "anyOf" in schema:
        each = [_type(one) for one in schema["anyOf"]]
        return (", or " if "," in each[0] else " or ").join(each)
    types = schema.get("type", [])
    kinds = {types} if isinstance(types, str) else set(types)
    pattern = schema.get("pattern", "")
    if "array" in kinds:
        return "list"
    if "object" in kinds:
        return "map" if schema.get("additionalProperties") else "block"
    if "UNLIMITED" in pattern:
        return "time"
    if "[KMGT]" in pattern:
        return "memory"
    if "-[1-9]" in pattern:
        return "a range"
    if "string" in kinds:
        return "text"
    if "integer" in kinds:
        least = schema.get("minimum")
        return "whole number" + (f", {least} or more" if least is not None else "")
    return "true \\| false" if "boolean" in kinds else ""


def _default(value: Any) -> str:
    if value is None or value in ({}, []) or isinstance(value, dict):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


# ---- the rest


def _exit_codes() -> str:
    codes = {
        0: "success, also of the job that was waited for or followed",
        1: "failure of the job that was waited for, or of the command; no metric was found",
        2: "invalid input: a file, an option, a value; nothing was done",
        3: "refused by Slurm",
        4: "Slurm, a host or a file system does not answer; the state is unknown, nothing is lost",
        124: "the timeout of `hpcrun wait --timeout`",
        130: "Ctrl-C; the command ends cleanly, and jobs go on",
    }
    known = {
        one.exit_code
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.HpcrunError)
    }
    assert known <= set(codes), known - set(codes)
    text = "`hpcrun run` and `hpcrun shell JOB -- COMMAND` return the program's own exit code.\n"
    rows = [(f"{code}", words) for code, words in codes.items()]
    return "\n".join(["## Exit codes\n", _table(("code", "meaning"), rows), text])


def _placeholders() -> str:
    missing = _names() ^ set(PLACEHOLDERS)
    assert not missing, f"make_reference.PLACEHOLDERS: {sorted(missing)}"
    text = (
        "In `args`, `env` and commands of a job, and in arguments after `--`. Your script has the "
        "same values in its environment, as `HPCRUN_NAME`. `{{` is a literal brace. An unknown "
        "name is an error. The keys of a sweep are placeholders too.\n"
    )
    rows = [(f"`{{{name}}}`", words) for name, words in sorted(PLACEHOLDERS.items())]
    return "\n".join(["## Placeholders\n", text, _table(("placeholder", "what it holds"), rows)])


def _names() -> set[str]:
    """List the placeholders of a job that has them all."""
    place = Place(
        run_id="r",
        created="2026-01-01T00:00:00",
        run_dir="/r",
        project_dir="/p",
        cache_dir="/c",
        python="/usr/bin/python3",
    )
    spec = JobSpec(
        launcher="accelerate", framework="deepspeed", deepspeed=DeepSpeed(), batch=Batch()
    )
    plan = build_plan(spec, Cluster(), place, after=Dependency("1", "/r0/checkpoints"))
    # The last one is internal to the harness.
    return placeholder_names(plan.environment) - {"needs_bf16"}


def _variables() -> str:
    own = [(f"`{name}`", words) for name, words in READ.items()]
    in_job = [(f"`{name}`", text) for name, text in OF_THE_ATTEMPT.items()]
    return "\n".join(
        [
            "## Environment variables\n",
            "hpcrun itself reads:\n",
            _table(("variable", "what it does"), own),
            "It also respects `NO_COLOR` and `COLUMNS`.\n",
            "A job's processes have each [placeholder](#placeholders), as `HPCRUN_NODES`, and:\n",
            _table(("variable", "what it holds"), in_job),
        ]
    )


def faq(text: str) -> str:
    """Give the page of failures with its tables as the rules of hpcrun why have them."""
    for section in rules.SECTIONS:
        head, _, rest = text.partition(f"\n## {section}\n")
        before, _, after = rest.partition("\n| message | what it means |")
        assert after, section
        end = after.index("\n\n")
        rows = [
            (", ".join(f"`{_code(one)}`" for one in messages), _plain(what), _plain(fixes))
            for messages, what, fixes in faq_rows(section)
        ]
        names = ("message", "what it means", "what to type or change")
        table = _table(names, rows).rstrip()
        text = f"{head}\n## {section}\n{before}\n{table}{after[end:]}"
    return text


def _code(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Make words of a help text or docstring fit for Markdown: one line, nothing swallowed."""
    text = " ".join(text.replace("``", "`").split())
    spans = re.split(r"(`[^`]*`)", text)
    return "".join(span if span.startswith("`") else _cell(span) for span in spans)


def _cell(text: str) -> str:
    text = re.sub(r"(?<!\\)\|", r"\\|", text)
    return re.sub(r"([*<>_])", r"\\\1", text)


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
    FAQ.write_text(faq(FAQ.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(json.dumps(json_schema("job"), indent=2) + "\n", encoding="utf-8")
