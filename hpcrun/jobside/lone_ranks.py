"""A warning about ranks whose logs state that each of them trains alone.

The hook in each rank (hpcrun.jobside.rank_hook) stops most such jobs, but it does not see programs
in other languages, JAX, optimizers of one's own, or a Python that ignores PYTHONPATH. Equal curves
prove nothing, because ranks that train together often print the same averaged loss. Only a
statement of the program about the number of its processes counts, in the logs of several ranks.
"""

import os
import re
from typing import Callable, Dict, List, Mapping

from hpcrun.jobside.progress import LogReader, read_step
from hpcrun.jobside.records import write_record

CHECK_S, LIMIT_S = 10.0, 900.0
# Lines that only the only process of a training prints, with the source of each.
_STATEMENTS = re.compile(
    r"""
    (?:^\s*|[-:|\])]\ )(?P<statement>  # at the start of a line, or of logging's message
        Not\ using\ distributed\ mode$                     # DeiT, MAE, DINO
      | Initializing\ distributed:\ GLOBAL_RANK:\ 0,\ MEMBER:\ 1/1$  # Lightning
      | Rank\ of\ current\ process:\ 0\.\ World\ size:\ 1$  # Detectron2
      | Process\ rank:\ (?:0|-1),\ .*\bdistributed\ training:\ False\b  # Transformers' examples
      | Distributed\ environment:\ (?:DistributedType\.)?NO$  # Accelerate
      | Training\ with\ a\ single\ process\ on\ 1\ (?:GPUs|device)\b  # timm
      | Distributed\ training:\ False,\ GPU\ number:\ 1$   # MMEngine
      | JAX\ process:\ 0\ /\ 1$                            # Flax's examples
    )
    """,
    re.X | re.I,
)
# The rank and the size of the world in a program's own words.
_WORLD = re.compile(
    r"(?:^|(?<=[-:|\])] ))"
    r"(?:global[ _])?rank\W{1,3}0\W{1,4}(?:of |(?:and )?world[ _]?size\W{1,3}(?:is )?)1\W*$",
    re.I,
)
# The only words that may precede these: of times, levels and the main program. The line
# "[TP] rank 0, world_size 1" describes one of the groups of a healthy training, and so may a line
# that another module prints, or an indented line below the name of a group.
_NEUTRAL_WORDS = re.compile(
    r"(?<=\d)[TZ](?![a-z])|\b[DIW](?=\d{4}\b)|\b(?:DEBUG|INFO|NOTICE|WARN|WARNING)\b"
    r"|\b__main__(?::main\b|:<module>)?|\b(?:main|run|train)\.py\b",
    re.I,
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def find_statement(line: str) -> str:
    """Return what a line of a log states if its program is the only process of a training, or "".

    >>> find_statement("12:00 INFO: rank 0, world_size 1"), find_statement("[TP] rank 0 of 1")
    ('rank 0, world_size 1', '')
    """
    found = _STATEMENTS.search(line)
    if found:
        return found.group("statement")
    found = _WORLD.search(line)
    before = line[: found.start()] if found else ""
    if (
        found
        and not before[:1].isspace()
        and not re.search("[A-Za-z]", _NEUTRAL_WORDS.sub("", before))
    ):
        return found.group()
    return ""


class Statement:
    """The lines of one log: what it states about its processes, and whether a step follows."""

    def __init__(self) -> None:
        self.text = ""
        self.trains = False

    def feed(self, line: str) -> bool:
        """Process a line of the log."""
        if not self.text:
            self.text = find_statement(_ESCAPES.sub("", line[:1000]).rstrip())
        elif not self.trains:
            self.trains = read_step(line[:1000]) is not None
        return False


class LoneRanks:
    """Checks the logs of an attempt's first ranks and of its last one as it begins."""

    def __init__(self, environ: Mapping[str, str], complain: Callable[[str], None]) -> None:
        attempt = environ.get("HPCRUN_ATTEMPT", "0")
        self.attempt = os.path.join(environ["HPCRUN_RUN_DIR"], "attempts", attempt)
        self.logs = os.path.join(environ["HPCRUN_RUN_DIR"], "logs", attempt)
        self.world = int(environ.get("HPCRUN_WORLD_SIZE") or 1)
        # With `preflight: false` the hook is absent, and the ranks may be meant to train apart.
        hook = os.path.join(environ["HPCRUN_RUN_DIR"], "hook.pyz")
        self.is_on = self.world > 1 and os.path.exists(hook)
        self.complain = complain
        self.checks = 0
        self.statements: Dict[int, Statement] = {}
        self.readers: Dict[int, LogReader] = {}

    def check(self) -> None:
        """Read the new lines of the logs; warn once if several ranks train alone."""
        self.checks += 1
        if not self.is_on or self.checks * CHECK_S > LIMIT_S:
            return
        if os.path.exists(os.path.join(self.attempt, "joined")):
            self.is_on = False
            return
        for rank in sorted({0, 1, self.world - 1}):
            if rank not in self.readers:
                path = os.path.join(self.logs, "rank-{}.log".format(rank))
                self.statements[rank] = Statement()
                self.readers[rank] = LogReader(path, self.statements[rank])
            self.readers[rank].has_moved()
        alone = {rank: each for rank, each in self.statements.items() if each.trains}
        if len(alone) > 1:
            self.is_on = False
            self.warn(sorted(alone), alone[min(alone)].text)

    def warn(self, ranks: List[int], statement: str) -> None:
        """Write the warning to the batch script's log and for `hpcrun status`."""
        listed = ", ".join(str(rank) for rank in ranks[:-1]) + " and {}".format(ranks[-1])
        text = (
            '{} each print "{}", and the job has {} ranks: each trains by itself, and writes over '
            "the others' checkpoints. A script that takes its ranks from Slurm needs launcher: "
            "srun; if the ranks are to train apart: preflight: false"
        ).format(listed, statement, self.world)
        self.complain("hpcrun: warning: ranks " + text)
        folder = os.path.join(self.attempt, "warnings")
        os.makedirs(folder, exist_ok=True)
        write_record(os.path.join(folder, "ranks"), text)
