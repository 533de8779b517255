"""The user's own DeepSpeed JSON, shown to the DeepSpeed that will train; their Accelerate YAML."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcrun.assets import shipped
from hpcrun.controller.checks.places import answer_of
from hpcrun.controller.context import Context, read_text, user_path
from hpcrun.controller.program import content_of, find_program, parse_script
from hpcrun.errors import HpcrunError, InputError, Problem, SpecError
from hpcrun.plan import deepspeed
from hpcrun.plan.launchers import decide_framework
from hpcrun.runs.records import write_file
from hpcrun.spec.check import convert
from hpcrun.spec.deepspeed_json import parse_hjson
from hpcrun.spec.job import Accelerate, JobSpec
from hpcrun.spec.yaml12 import Node, parse_document
from hpcrun.structs import decodable

# seconds; importing torch and deepspeed from a cold network file system takes a minute.
PATIENCE = 90
VERSION_PATIENCE = 20

_VERSION = """
import importlib.metadata
try:
    print(importlib.metadata.version("deepspeed"))
except importlib.metadata.PackageNotFoundError:
    print("none")
"""


def inspect_deepspeed(
    context: Context, spec: JobSpec, python: str, extra_args: Sequence[str] = ()
) -> deepspeed.Given:
    """Read the user's own JSON and ask the DeepSpeed that will train about it.

    For a job without keys of its own nothing is asked. ``python`` is the interpreter that trains;
    one that cannot be asked is a note. Raises InputError, or SpecError for a file that cannot be
    read.
    """
    on_cpus = context.cluster.accelerator == "cpu" or not spec.resources.gpus_per_node
    if spec.deepspeed is None and not on_cpus:
        return deepspeed.Given()
    script = find_program(context, spec, inside=False).path
    code = (content_of(script) if script is not None else None) or b""
    given = deepspeed.Given(own_optimizer=deepspeed.CPU_ADAM.encode() in code)
    if on_cpus:
        words = [*(spec.command or []), *spec.args, *extra_args]
        elsewhere = _asked_elsewhere(context, words, script, code)
        given = msgspec.structs.replace(given, elsewhere=elsewhere)
    return _inspect_section(context, spec, python, given) if spec.deepspeed else given


def _asked_elsewhere(
    context: Context, words: Sequence[str], script: Path | None, code: bytes
) -> str:
    """Find what asks for DeepSpeed beside the job's section: words, their files, the script."""
    from hpcrun.plan.on_cpus import asked_by_file, asked_by_words  # here: most jobs have GPUs

    if asked := asked_by_words(words):
        return asked
    for name in [word.rpartition("=")[2] for word in words]:
        data = None
        if name.endswith((".json", ".yaml", ".yml", ".sh")):
            data = content_of(context.project / name)
        if data is None or b"deepspeed" not in data.lower():
            continue
        text = data.decode("utf-8", "replace")
        if name.endswith(".sh"):
            if asked := asked_by_words(text.split()):
                return f"{name}: {asked}"
            continue
        if asked_by_file(text):
            return f"{name}: deepspeed"
    if script is None or b"deepspeed" not in code.lower():
        return ""
    facts = parse_script(code, sys.version_info[:2]).facts
    own = [name for name in facts.gives if "deepspeed" in name] if facts else []
    return f"{script.name}: {own[0]}=" if own else ""


def _inspect_section(
    context: Context, spec: JobSpec, python: str, given: deepspeed.Given
) -> deepspeed.Given:
    section, file = spec.deepspeed, None
    if section is None or not (section.config_file or section.config):
        return given
    if section.config_file:
        text = _own_file(context, "deepspeed.config_file", section.config_file, "JSON")
        file = parse_hjson(text, section.config_file)
    given = msgspec.structs.replace(given, file=file)
    is_far = context.cluster.host is not None
    if "/" not in python or spec.setup.container is not None or is_far:
        return given
    training = deepspeed.Training(
        framework=decide_framework(spec),
        precision=spec.precision or deepspeed.given_precision(section, file) or "bf16",
        batch=dict.fromkeys(deepspeed.BATCH_KEYS, 1),
        nvme_path="/tmp",
    )
    config = deepspeed.compose_deepspeed_config(section, training, file=file)
    answer, note = ask_deepspeed(python, config, context.cache_dir, context.environ)
    return msgspec.structs.replace(given, answer=answer, note=note)


def inspect_accelerate(context: Context, spec: JobSpec) -> JobSpec:
    """Read the user's own YAML of ``accelerate launch``; return the job with what it says.

    Raises InputError, or SpecError for a file that cannot be read or contradicts the job.
    """
    name = spec.accelerate.config_file if spec.accelerate is not None else None
    if name is None:
        return spec
    from hpcrun.plan.accelerate_file import take_accelerate_file  # here: few jobs have one

    problems: list[Problem] = []
    text = _own_file(context, "accelerate.config_file", name, "YAML")
    root = parse_document(text, name, problems)
    keys = convert(Accelerate, Node({"config": root}, name), problems).config
    lines = {key: node.line for key, node in root.entries.items()}
    spec, found = take_accelerate_file(spec, keys, lines)
    if problems or found.problems:
        raise SpecError([*problems, *found.problems])
    return spec


def _own_file(context: Context, where: str, name: str, kind: str) -> str:
    path = user_path(name, context.environ, context.project, where)
    if not path.is_file():
        raise InputError(
            f"{where}: {path}: {'a folder' if path.is_dir() else 'no such file'}",
            fix=f"name a {kind} file; paths start at {context.project}",
        )
    return read_text(path)


def ask_deepspeed(
    python: str, config: Mapping[str, Any], cache_dir: Path, environ: Mapping[str, str]
) -> tuple[deepspeed.Answer | None, str]:
    """Ask an interpreter's DeepSpeed about a configuration, or use its cached answer.

    No answer where it has no DeepSpeed; with a note, the second value, where it cannot be asked.
    """
    cannot = f"{python} could not be asked about the DeepSpeed JSON: "
    code, version, fault = answer_of([python, "-c", _VERSION], environ, VERSION_PATIENCE)
    version = version.strip()
    if fault or code != 0 or not version:
        return None, cannot + (fault or f"it ended with code {code} and printed nothing")
    if version == "none":
        return None, ""
    import hashlib  # here: few jobs come to it, and OpenSSL takes long to load

    probe = (shipped("templates") / "deepspeed_probe.py").read_text(encoding="utf-8")
    text = json.dumps(config, sort_keys=True)
    key = hashlib.sha256("\0".join((python, version, probe, text)).encode()).hexdigest()[:32]
    kept = cache_dir / "deepspeed-answers" / f"{key}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(kept.read_bytes(), type=decodable(deepspeed.Answer)), ""
    code, output, fault = answer_of([python, "-c", probe], environ, PATIENCE, text)
    if not fault:
        try:
            answer = msgspec.json.decode(output, type=decodable(deepspeed.Answer))
        except msgspec.DecodeError:
            fault = f"it ended with code {code} while it loaded DeepSpeed {version}"
    if fault:
        return None, cannot + fault
    with contextlib.suppress(OSError, HpcrunError):  # a cache that cannot be written is none
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, output.encode())
    return answer, ""
