"""Inspect the user's own DeepSpeed JSON with the job's DeepSpeed, and their Accelerate YAML."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcrun.actions.program import content_of, find_program, parse_script
from hpcrun.actions.start_folder import StartFolder
from hpcrun.assets import shipped_folder
from hpcrun.context import Context, expand_user_path, read_text
from hpcrun.errors import HpcrunError, InputError, Problem, SpecError
from hpcrun.plan import (
    BATCH_KEYS,
    CPU_ADAM,
    DeepSpeedInput,
    DeepSpeedProbe,
    RequestedTraining,
    compose_deepspeed_config,
    configures_deepspeed,
    decide_framework,
    find_deepspeed_argument,
    given_precision,
    merge_accelerate_file,
)
from hpcrun.remote import RunCommand, Transport, explain_no_answer
from hpcrun.runs import write_file
from hpcrun.spec import Accelerate, JobSpec, Node, build_struct, parse_document, parse_hjson
from hpcrun.structs import decodable

# In seconds: importing torch and deepspeed from a slow network file system takes a minute.
PATIENCE = 90.0
VERSION_PATIENCE = 20.0
_DAY = 86400.0

_VERSION = """
import importlib.metadata
try:
    print(importlib.metadata.version("deepspeed"))
except importlib.metadata.PackageNotFoundError:
    print("none")
"""


def inspect_deepspeed(
    context: Context,
    spec: JobSpec,
    python: str,
    extra_args: Sequence[str] = (),
    *,
    start: StartFolder,
) -> DeepSpeedInput:
    """Read the user's own JSON and check it with the DeepSpeed of the job.

    If the interpreter cannot be queried, the result has a note.

    Args:
        python: The interpreter that runs the training.
        start: The folder of relative paths in the arguments.

    Raises:
        InputError: DeepSpeed rejects the configuration.
        SpecError: A file cannot be read.
    """
    on_cpus = context.cluster.accelerator == "cpu" or not spec.resources.gpus_per_node
    if spec.deepspeed is None and not on_cpus:
        return DeepSpeedInput()
    script = find_program(context, spec, inside=False).path
    code = (content_of(script) if script is not None else None) or b""
    given = DeepSpeedInput(own_optimizer=CPU_ADAM.encode() in code)
    if on_cpus:
        words = [*(spec.command or []), *spec.args, *extra_args]
        elsewhere = _asked_elsewhere(start, words, script, code)
        given = msgspec.structs.replace(given, elsewhere=elsewhere)
    return _inspect_section(context, spec, python, given) if spec.deepspeed else given


def _asked_elsewhere(
    start: StartFolder, words: Sequence[str], script: Path | None, code: bytes
) -> str:
    """Find requests for DeepSpeed besides the job's section: arguments, their files, the script."""

    if asked := find_deepspeed_argument(words):
        return asked
    for name in [word.rpartition("=")[2] for word in words]:
        data = None
        if name.endswith((".json", ".yaml", ".yml", ".sh")):
            path = start.resolve(name)
            data = content_of(path) if path is not None else None
        if data is None or b"deepspeed" not in data.lower():
            continue
        text = data.decode("utf-8", "replace")
        if name.endswith(".sh"):
            if asked := find_deepspeed_argument(text.split()):
                return f"{name}: {asked}"
            continue
        if configures_deepspeed(text):
            return f"{name}: deepspeed"
    if script is None or b"deepspeed" not in code.lower():
        return ""
    facts = parse_script(code, sys.version_info[:2]).facts
    own = [name for name in facts.own_settings if "deepspeed" in name] if facts else []
    return f"{script.name}: {own[0]}=" if own else ""


def _inspect_section(
    context: Context, spec: JobSpec, python: str, given: DeepSpeedInput
) -> DeepSpeedInput:
    section, file = spec.deepspeed, None
    if section is None or not (section.config_file or section.config):
        return given
    if section.config_file:
        text = _own_file(context, "deepspeed.config_file", section.config_file, "JSON")
        file = parse_hjson(text, section.config_file)
    given = msgspec.structs.replace(given, file=file)
    if "/" not in python or spec.setup.container is not None:
        return given
    training = RequestedTraining(
        framework=decide_framework(spec),
        precision=spec.precision or given_precision(section, file) or "bf16",
        batch=dict.fromkeys(BATCH_KEYS, 1),
        nvme_path="/tmp",
    )
    config = compose_deepspeed_config(section, training, file=file)
    host, cache_dir = context.cluster.host, context.cache_dir
    answer, note = query_deepspeed(context.transport(), python, config, cache_dir, host=host)
    return msgspec.structs.replace(given, answer=answer, note=note)


def inspect_accelerate(context: Context, spec: JobSpec) -> tuple[JobSpec, list[str]]:
    """Apply the user's YAML for ``accelerate launch`` to a job; return it with notes on the file.

    Raises InputError.
    """
    name = spec.accelerate.config_file if spec.accelerate is not None else None
    if name is None:
        return spec, []

    problems: list[Problem] = []
    text = _own_file(context, "accelerate.config_file", name, "YAML")
    root = parse_document(text, name, problems)
    keys = build_struct(Accelerate, Node({"config": root}, name), problems).config
    lines = {key: node.line for key, node in root.entries.items()}
    spec, found = merge_accelerate_file(spec, keys, lines)
    if problems or found.problems:
        raise SpecError([*problems, *found.problems])
    return spec, found.notes


def _own_file(context: Context, where: str, name: str, kind: str) -> str:
    path = expand_user_path(name, context.environ, context.project, where)
    if not path.is_file():
        raise InputError(
            f"{where}: {path}: {'a folder' if path.is_dir() else 'no such file'}",
            fix=f"name a {kind} file; paths start at {context.project}",
        )
    top = context.project.resolve()
    is_in_project = Path(os.path.abspath(path)).is_relative_to(context.project)  # noqa: PTH100
    leads_out = is_in_project and not path.resolve().is_relative_to(top)
    if leads_out and context.cluster.host is not None:
        raise InputError(
            f"{where}: {path}: a symbolic link to a file outside the project, whose content "
            "would be sent to the cluster",
            fix=f"name the file itself: {path.resolve()}",
        )
    return read_text(path)


def query_deepspeed(
    transport: Transport,
    python: str,
    config: Mapping[str, Any],
    cache_dir: Path,
    *,
    host: str | None = None,
) -> tuple[DeepSpeedProbe | None, str]:
    """Query an interpreter's DeepSpeed about a configuration, or use its cached answer.

    A cached answer is valid for one version of DeepSpeed; that of another ``host``, where each
    query costs a round trip, is valid for a day.

    Returns:
        The answer, None if the interpreter has no DeepSpeed; and a note if the query failed.
    """
    cannot = f"could not check the DeepSpeed JSON with {python}: "
    probe, text = _probe(), json.dumps(config, sort_keys=True)
    env = (("LC_ALL", "C"),)
    about_version = RunCommand((python, "-c", _VERSION), timeout=VERSION_PATIENCE, env=env)
    about_config = RunCommand((python, "-c", probe), timeout=PATIENCE, stdin=text, env=env)
    if host is not None:
        kept = _kept_in(cache_dir, python, host, probe, text)
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if time.time() - kept.stat().st_mtime < _DAY:
                return _decode(kept.read_bytes()), ""
        answers = transport.run_queries([about_version, about_config])
    else:
        answers = transport.run_queries([about_version])
    result = answers[about_version]
    version = result.stdout.strip()
    if result.exit_code != 0 or not version:
        code = f"it ended with code {result.exit_code} and printed nothing"
        return None, cannot + (explain_no_answer(result) or code)
    if version == "none":
        return None, ""
    if host is None:
        kept = _kept_in(cache_dir, python, version, probe, text)
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return _decode(kept.read_bytes()), ""
        answers = transport.run_queries([about_config])
    result = answers[about_config]
    try:
        answer = _decode(result.stdout)
    except msgspec.DecodeError:
        code = f"it ended with code {result.exit_code} while it loaded DeepSpeed {version}"
        return None, cannot + (explain_no_answer(result) or code)
    _keep(kept, result.stdout)
    return answer, ""


def _probe() -> str:
    return (shipped_folder("templates") / "deepspeed_probe.py").read_text(encoding="utf-8")


def _kept_in(cache_dir: Path, *words: str) -> Path:

    key = hashlib.sha256(os.fsencode("\0".join(words))).hexdigest()[:32]
    return cache_dir / "deepspeed-answers" / f"{key}.json"


def _decode(text: str | bytes) -> DeepSpeedProbe:
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return msgspec.json.decode(data, type=decodable(DeepSpeedProbe))


def _keep(kept: Path, text: str) -> None:
    with contextlib.suppress(OSError, HpcrunError):  # an unwritable cache is ignored
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, os.fsencode(text))
