"""The table of rules, and which rule a line matches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from hpcrun.why.memory import GPUS, MEMORY
from hpcrun.why.network import NETWORK, SLURM
from hpcrun.why.programs import DEEPSPEED, FILES
from hpcrun.why.rule import ERROR, FailureRule

# By the sections of docs/faq.md. If several rules match a line, the one of the greatest kind
# counts; among these the first one.
SECTIONS: dict[str, list[FailureRule]] = {
    "The job ended, by Slurm": SLURM,
    "Training failed: GPUs and memory": [*MEMORY, *GPUS],
    "Training failed: ranks and network": NETWORK,
    "Training failed: DeepSpeed, Trainer, checkpoints": DEEPSPEED,
    "Training failed: files and environment": FILES,
}
RULES = [rule for rules in SECTIONS.values() for rule in rules]
# Any exception for which there is no rule.
CODE_ERROR = FailureRule(
    id="code_error",
    cls="code_error",
    kind=ERROR,
    patterns=(r"^(?:[A-Za-z_]\w*\.)*(?P<name>[A-Za-z_]\w*)(?:\([\w.]+\))?(?::\s*(?P<why>.*))?$",),
    needles=("rror", "xception"),
    title="the program stopped with {name}: {why}",
    fixes=("`hpcrun logs --err JOB` has the traceback",),
    example="ValueError: no such optimizer",
    unlike="a value error",
    source="CPython",
)
BY_ID = {rule.id: rule for rule in (*RULES, CODE_ERROR)}
_RULES_OF: dict[str, list[int]] = {}  # by needle
for _at, _rule in enumerate(RULES):
    for _needle in _rule.needles:
        _RULES_OF.setdefault(_needle, []).append(_at)
# Only lines that contain one of these words are examined. The words are few, rare in the logs of
# healthy programs, and without digits. A rule whose example contains none of them adds its needles.
_WORDS = """
abort|atal|annot|an't|already in|Aborted|ABRT|busy or|CANCEL|ChildF|clients joined|closing|couldn't
crashed|Duplicate|died|dumped|does not |enied|efused|ead-only|exceeded|exitcode
expected, but|ed by peer|ed dead|EADDRINUSE|ERROR|fallen|finding|fault|gated|hpcrun: |illed|ilure
iled|imed out|imeout|invalid|illegal|is lost|Interrupt|Killed|loss is|memory limit
mismatch|module(s)|MPI|NaN|Ninja|No module|nable to|ncelled|ncclUniq|ninja|non-zero|ot found|o such
oom_kill|oom-kill|o space|oo many|oo old|ot a valid|ould not|OOM|PMI|rror|raceback|s a direc
reachable|return code|running low|remote peer|RESOURCE_EXH|SIG|Stale|STEPD|Signal|signal
shared memory|slots avail|srun: |size mism|socket I|Truncated|till |termina|Termina|uota
ut of memory|uncorrec|undefined sym|unavailable|unknown|unexpected|uncaught|UNCORR|Unable|WARN
Weights only|xception|Xid |_shm|een revoked| nan|'nan|NVRM|TERM_|Bootstrap|terpreter
runcated|Mismatch|ismatched|exit status|exit code|Killing sub|TERMINATION|noticed that|Process name
usable temp
GPUs are av|NVIDIA driver|properly conf|Lexer|not in struct|got stuck|aught sig|ot completion
no interface|no socket interface|misaligned|oom|OUT_OF|OutOf|insufficient|triggered|not supported
recv from|reset by peer|ocket closed|TASK FAIL|bad_alloc|cache blocks|No available mem|KV cache
Missing arg|Missing option|Missing param|Missing req|nrecognized|Invalid value for|received no
are required|is required|isk space|to CUDA|nexpected key|Missing key|annot send|must specify
onnection aborted|onnection reset|onnection broken|emote end closed|ax retries|isconnected
annot be reached|EnvironmentN|EnvironmentL|loss scale|no kernel|NoKernel|CUBLAS_|CUDNN_
"""


def compile_words(rules: Iterable[FailureRule]) -> re.Pattern[bytes]:
    """Compile a search for all words, grouped by their first letters for speed."""
    words = _WORDS.strip().replace("\n", "|").split("|")
    for rule in rules:
        if not any(word in rule.example for word in words):
            words += [re.sub(r"[0-9]", "", needle) for needle in rule.needles]
    by_letter: dict[str, list[str]] = {}
    for word in words:
        by_letter.setdefault(word[0], []).append(re.escape(word[1:]))
    parts = (f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_letter.items())
    return re.compile("|".join(parts).encode())


WORDS = compile_words(RULES)
# Before the end of a long log only these words are searched, one by one, which is fast; in blocks
# with a traceback also BEFORE, which may announce it.
TRACEBACK, BEFORE = b"Traceback (most", b"xception"
FAR_WORDS = (TRACEBACK, b"rror", b"NCCL WARN", b"CANCELLED AT")


@cache
def compiled(rule_id: str) -> re.Pattern[str]:
    """Compile the pattern of a rule on first use: most are never needed."""
    return re.compile(BY_ID[rule_id].pattern)


def match(line: str, frames: Sequence[str] = ()) -> tuple[FailureRule, re.Match[str]] | None:
    """Find the rule that says most about a line.

    Args:
        line: The line without prefixes; of a traceback, the exception.
        frames: The innermost frames of the traceback.

    >>> rule, found = match("srun: error: node07: task 3: Out Of Memory")
    >>> rule.id, found["host"], found["rank"]
    ('srun_oom', 'node07', '3')
    """
    best: tuple[FailureRule, re.Match[str]] | None = None
    likely = {at for needle, rules in _RULES_OF.items() if needle in line for at in rules}
    for rule in (RULES[at] for at in sorted(likely)):
        if best is not None and rule.kind <= best[0].kind:
            continue
        if rule.frames and not any(re.search(rule.frames, frame) for frame in frames):
            continue
        found = compiled(rule.id).search(line)
        best = best if found is None else (rule, found)
    return best
