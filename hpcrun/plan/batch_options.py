"""Decide whether a script's option for a batch size counts the samples of one GPU or of all."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

from hpcrun.plan.script_facts import ScriptFacts
from hpcrun.plan.script_parsers import ParserOption

Scope = Literal["gpu", "all", "unclear"]

# Lookarounds instead of "\b", because an underscore is a word character in regular expressions.
_ALL_NAME = re.compile(r"(?<![a-z])(global|total|effective|overall|full)(?![a-z])")
_GPU_NAME = re.compile(r"(?<![a-z])(micro|per|device|local|each)(?![a-z])")
_UNIT = r"(?:gpus?|devices?|ranks?|process(?:es)?|workers?|replicas?|cards?|cores?)"
_ALL_HELP = re.compile(
    rf"\b(?:global|total|effective|overall)\b|\b(?:all|across|over)(?: all| the)? {_UNIT}\b"
    r"|\b(?:summed|divided|split) (?:over|by|across|among)\b"
)
_GPU_HELP = re.compile(
    rf"\bmicro|\b(?:per|each|one|a single)[- ](?:single )?{_UNIT}\b|\blocal batch|{_UNIT}-wise"
)


def batch_scope(option: ParserOption, scripts: Sequence[ScriptFacts]) -> Scope:
    """Decide by its name, help and use whether a batch option counts one GPU's samples or all.

    A size that is not divided by the number of ranks is that of each rank. Contradicting hints make
    the result "unclear".

    Args:
        scripts: The facts about the script and the modules of its project.

    >>> batch_scope(ParserOption(["--batch"], help="Total batch size"), [])
    'all'
    >>> batch_scope(ParserOption(["--micro_train_batch_size"]), [])
    'gpu'
    >>> [batch_scope(ParserOption([flag]), []) for flag in ("--train_batch_size", "--bs")]
    ['unclear', 'gpu']
    """
    names = [name.lstrip("-").replace("-", "_").lower() for name in option.names]
    text = " ".join(option.help.lower().split())
    hints: set[Scope] = set()
    for of_all, of_gpu, texts in (
        (_ALL_NAME, _GPU_NAME, [name.replace("_", " ") for name in names]),
        (_ALL_HELP, _GPU_HELP, [text]),
    ):
        if any(map(of_all.search, texts)):
            hints.add("all")
        if any(map(of_gpu.search, texts)):
            hints.add("gpu")
    divided = {name.lower() for one in scripts for name in one.divided_names}
    loaded = {name.lower() for one in scripts for name in one.loader_batch_names}
    if divided & set(names):
        hints.add("all")
    elif loaded & set(names):
        hints.add("gpu")
    if len(hints) == 1:
        return hints.pop()
    # train_batch_size is the batch of all GPUs in DeepSpeed and that of one GPU elsewhere.
    is_ambiguous = any(name.startswith("train_batch") for name in names)
    return "unclear" if hints or is_ambiguous else "gpu"


def options_for_all(options: Collection[ParserOption], scripts: Sequence[ScriptFacts]) -> set[str]:
    """Return the spellings of batch options that count the samples of all GPUs."""
    return {
        name
        for option in options
        if any("batch" in name or name.lstrip("-") in ("b", "bs", "bsz") for name in option.names)
        if batch_scope(option, scripts) == "all"
        for name in option.names
    }
