"""Marks: lines that measure nothing but say where the run stands.

An epoch begins, or a run does again: Slurm requeues the job, or a program goes on from a checkpoint
and says so. Only what cannot mean anything else counts: a job that its time limit ended is no
restart, nor is an option of that name.
"""

from __future__ import annotations

import re

from hpcrun.metrics.row import Mark
from hpcrun.patterns import pattern_of

_EPOCH = pattern_of(
    r"[\s=*#>|~-]{0,200}"
    r"(?:(?:start(?:ing|ed)?|begin(?:ning)?|running)[ ]{1,2}(?:of[ ]|train(?:ing)?[ ])?"
    r"|train(?:ing)?[ ])?"
    r"epoch(?![ ]=[ ])[\s:#=]{0,8}\[?(?P<epoch>\d{1,9})(?:\s{0,4}(?:/|of)\s{0,4}\d{1,9})?\]?"
    r"(?: (?:summary|results|metrics|statistics)(?=:|\s{0,8}\Z))?"
    r"(?: \| (?:epoch )?time: \d{1,4}m \d{1,2}s)?"
    r"(?:, total (?:micro|generation) batches \d{1,9})?[\s.:=*#<|~…-]{0,200}",
    re.IGNORECASE,
)
_SLURM = pattern_of(
    r"\*\*\* (?:JOB|STEP) [\d._+\w]{1,40} ON \S{1,200} CANCELLED AT \S{10,40} DUE TO "
    r"(?:PREEMPTION|JOB REQUEUE|NODE FAILURE)"
)
_REQUEUED = pattern_of(
    r"(?:slurmstepd|srun|slurmd)?:? ?(?:error: )?(?:job \d{1,12} (?:has been )?requeued"
    r"|requeu?e?ing (?:slurm )?job[ :]{1,2}\d{1,12}|requeued (?:slurm )?job[ :]{1,2}\d{1,12})\b"
    r"|.{0,120}will restart worker group",
    re.IGNORECASE,
)
_STEP = r"(?:global[_ ]?)?(?:steps?|iter(?:ation)?s?|updates?)[ :=#_-]{0,3}"
_RESUMED = pattern_of(
    rf"""
    [ \t]{{0,3}} (?: [=*>#-]{{1,40}} [ ]{{0,2}} )? (?:
      (?: (?:successfully[ ])? (?: resum(?:ed|ing) | continuing | restarting ) )
        [ ]{{1,2}} (?: (?:the[ ])? (?:model[ ])? (?:training|run|job)[ ] )? (?: from | at | of )\b
        [^\n]{{0,200}}?
        (?: \b {_STEP}(?P<step1>\d{{1,15}}) | checkpoint-(?P<step2>\d{{1,15}}) \b | \Z )
    | (?:successfully[ ])? loaded[ ]checkpoint[ ] [^\n]{{0,300}}?
        (?: \bat[ ]{_STEP}(?P<step3>\d{{1,15}})
          | \(epoch[ ]\d+(?:[ ]@[ ](?P<step4>\d{{1,15}})[ ]updates)?\) )
    | (?:loading|loaded)[ ](?:the[ ])?checkpoint[ ](?:from|at)[ ]{_STEP}(?P<step5>\d{{1,15}})
    | resume[ ]training\b [^\n]{{0,100}} \bfrom[ ](?:epoch[ ]\d{{1,9}}|{_STEP}(?P<step8>\d{{1,15}}))
    | resumed[ ]epoch:[ ]\d{{1,9}},[ ]iter:[ ](?P<step6>\d{{1,15}})
    | restor(?:ed|ing)[ ](?:all[ ])?states?[ ]from[ ]the[ ]checkpoint\b [^\n]{{0,200}}?
        (?: \bstep=(?P<step7>\d{{1,15}}) | \Z )
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WORDS = ("epoch", "Epoch", "EPOCH")


def read_mark(text: str) -> Mark | None:
    """Read a line without prefixes.

    >>> read_mark("Epoch 3/20"), read_mark("Resuming training from checkpoint-500")
    (Mark(epoch=3.0, restart=False, step=None), Mark(epoch=None, restart=True, step=500))
    >>> read_mark("Epoch 3: early stopping"), read_mark("resume: None")
    (None, None)
    """
    if "***" in text and _SLURM.search(text):
        return Mark(restart=True)
    if len(text) > 600:
        return None
    if any(word in text for word in _WORDS) and (begun := _EPOCH.fullmatch(text)):
        return Mark(epoch=float(begun["epoch"]))
    if resumed := _RESUMED.match(text):
        step = next((group for group in resumed.groups() if group), None)
        return Mark(restart=True, step=None if step is None else int(step))
    if _REQUEUED.match(text):
        return Mark(restart=True)
    return None
