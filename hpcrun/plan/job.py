"""A job on its cluster during planning, and the placeholders that its texts may contain."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct

from hpcrun.plan.batch import BatchSizes
from hpcrun.plan.findings import Findings
from hpcrun.plan.types import Launcher, PlanInputs, Topology
from hpcrun.spec import Cluster, FrameworkName, JobSpec

# Values that only a node knows, in texts and variables of a job: bash expands them there.
LOCAL_DIR = "${HPCRUN_LOCAL_DIR}"
ARCHITECTURE = "${HPCRUN_ARCHITECTURE}"
# The checkpoint from which an attempt resumes: the harness finds it at the start of the attempt.
RESUME = "${HPCRUN_RESUME}"
# The value of a parameter that a search draws when the trial starts.
TRIAL = "${HPCRUN_TRIAL_%s}"
NODE_REFERENCE = re.compile(
    r"\$\{(HPCRUN_(?:LOCAL_DIR|ARCHITECTURE|RESUME|TRIAL_[A-Za-z0-9_]+"
    r"|(?:ROLE_[A-Z0-9_]+_)?(?:HOST|PORT)))\}"
)

# Placeholders that not every run has, and the condition for each.
_ONLY_WITH = {
    "accelerate_config": "launcher: accelerate",
    "after_checkpoint_dir": "--after RUN, one run of hpcrun's",
    "deepspeed_config": "a deepspeed: block",
    "host": "roles",
    "port": "roles",
    "zero_stage": "a deepspeed: block",
}
# bash expands these variables on the node: they are not placeholders.
_TOKEN = re.compile(
    r"\$\{HPCRUN_(?:LOCAL_DIR|RESUME|TRIAL_[A-Za-z0-9_]+)\}|\{\{|\}\}"
    r"|\{([A-Za-z_][A-Za-z0-9_]*(?:\.(?:host|port))?)\}|[{}]"
)
# Characters of a text that a message shows.
_SHOWN = 200
_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*(?:\.(?:host|port))?)\}")


class Job(Struct, frozen=True, kw_only=True):
    """A job on its cluster, with the decisions that all parts of its plan read.

    Attributes:
        program: The key that the job uses: script, module or command.
        values: Values of the placeholders and of the HPCRUN_* variables; paths of configuration
            files are added when these are built.
        asks_for_deepspeed: True if the job requests DeepSpeed, in its section or elsewhere.
        rocm: True for AMD GPUs, which torch and the plan also call cuda.
    """

    spec: JobSpec
    cluster: Cluster
    place: PlanInputs
    topology: Topology
    launcher: Launcher
    framework: FrameworkName
    program: Literal["script", "module", "command", "reference"]
    precision: str
    fabric: str
    batch: BatchSizes
    code_dir: str
    values: dict[str, str]
    found: Findings
    asks_for_deepspeed: bool
    rocm: bool

    def fill(self, text: str, path: str) -> str:
        return fill(text, self.values, path, self.found)


def fill(text: str, values: Mapping[str, str], path: str, found: Findings) -> str:
    """Fill ``{name}`` in a job file's text; ``{{`` is a literal brace, other braces are refused.

    >>> found = Findings()
    >>> fill("--out={run_dir}/{{x}}", {"run_dir": "/r"}, "args[0]", found)
    '--out=/r/{x}'
    >>> _ = fill("{precison}", {"precision": "bf16"}, "args[1]", found)
    >>> print(found.problems[0])
    args[1]: {precison}: no such placeholder; did you mean {precision}?
    """

    def one(match: re.Match[str]) -> str:
        token, name = match[0], match[1]
        if token in ("{{", "}}"):
            return token[0]
        if token.startswith("$"):
            return token
        if name in values:
            return values[name]
        if name is None:
            shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
            message = f"a lone {token} in {shown}; write {token * 2} for a brace"
        elif name in _ONLY_WITH:
            message = f"{{{name}}}: there is one only with {_ONLY_WITH[name]}"
        else:
            close = difflib.get_close_matches(name, values, 1)
            hint = "there are " + " ".join(f"{{{known}}}" for known in sorted(values))
            hint = f"did you mean {{{close[0]}}}?" if close else hint
            message = f"{{{name}}}: no such placeholder; {hint}"
        found.refuse(path, message)
        return token

    return _TOKEN.sub(one, text)


def fill_trial(text: str, values: Mapping[str, str]) -> str:
    """Fill in the values of a trial where its job would.

    >>> fill_trial("--lr=${HPCRUN_TRIAL_lr}", {"lr": "1e-4"})
    '--lr=1e-4'
    """
    for key, value in values.items():
        text = text.replace(TRIAL % key, value)
    return text


def fill_known_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Fill the known ``{name}`` in a word from the command line and leave all else as typed.

    >>> fill_known_placeholders('{"batch": {micro_batch_per_gpu}}', {"micro_batch_per_gpu": "4"})
    '{"batch": 4}'
    """
    return _NAME.sub(lambda match: values.get(match[1], match[0]), text)


def escape_placeholders(text: str, keep: Collection[str]) -> str:
    """Escape an argument so that fill() gives what fill_known_placeholders() gives.

    >>> escape_placeholders('{"nodes": {nodes}}', {"nodes"})
    '{{"nodes": {nodes}}}'
    """

    def one(match: re.Match[str]) -> str:
        return match[0] if match[1] in keep else re.sub("[{}]", r"\g<0>\g<0>", match[0])

    return re.sub(rf"{_NAME.pattern}|[{{}}]", one, text)
