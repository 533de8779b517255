"""sbatch: the command line, its answer, and the grammar of #SBATCH lines."""

from __future__ import annotations

import re

from msgspec import Struct

SCRIPT = "job.sbatch"


def sbatch_argv(script: str = SCRIPT) -> list[str]:
    """Build the submission of a script that lies in the current folder.

    The job's WorkDir is the folder that sbatch is run in, and tags the run.
    """
    return ["sbatch", "--parsable", script]


class Estimate(Struct, frozen=True):
    """When and where a job would start: ``start`` is the cluster's local time, as Slurm has it."""

    start: str
    processors: int
    nodes: str
    partition: str


def estimate_argv() -> list[str]:
    """Build the question when a job would start; sbatch reads the script from its input."""
    return ["sbatch", "--test-only"]


def parse_estimate(stderr: str) -> Estimate | None:
    """Read the answer to ``sbatch --test-only``; None where it is a refusal.

    >>> parse_estimate("sbatch: Job 5 to start at 2026-11-20T12:00:00 using 8 processors on nodes "
    ...                "n[1-2] in partition gpu")
    Estimate(start='2026-11-20T12:00:00', processors=8, nodes='n[1-2]', partition='gpu')
    """
    # 26.05 prints a stray letter behind the time.
    match = re.search(
        r"to start at (\S+)(?: \S+)? using (\d+) processors on nodes (\S*)"
        r"(?: in partition (\S+))?",
        stderr,
    )
    if match is None:
        return None
    return Estimate(match[1], int(match[2]), match[3], match[4] or "")


def parse_sbatch(stdout: str) -> str | None:
    """Read the job id from ``sbatch --parsable``; None where there is none.

    A federation adds the cluster behind a semicolon; a site's wrapper may print lines before, or
    sbatch's usual sentence in place of the bare id.

    >>> parse_sbatch("123\\n"), parse_sbatch("welcome\\n45;mpp2\\n"), parse_sbatch("error\\n")
    ('123', '45', None)
    >>> parse_sbatch("Submitted batch job 630114 on cluster mpp2\\n")
    '630114'
    """
    for line in reversed(stdout.splitlines()):
        match = re.fullmatch(r"\s*(?:Submitted batch job )?(\d+)(;\S+| on cluster \S+)?\s*", line)
        if match:
            return match.group(1)
    return None


def quote_directive(value: str) -> str:
    r"""Quote a value for an ``#SBATCH --name=value`` line.

    sbatch has a quote parser of its own (src/sbatch/opt.c, ``get_argument``): an unquoted ``#``
    or blank ends the value, a lone quote is fatal, and a backslash escapes the next character,
    inside quotes too. A newline cannot be carried: the caller refuses it before.

    >>> print(quote_directive("plain-1.2"))
    plain-1.2
    >>> print(quote_directive('it\'s "run" #3 \\ x'))
    "it's \"run\" #3 \\ x"
    """
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]-]+", value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def quote_pattern(path: str) -> str:
    r"""Write a path for ``--output``, whose file names are patterns (sbatch(1), FILENAME PATTERN).

    A backslash ends the meaning of ``%``, and is itself taken out; the pattern's grammar also
    reads a WorkDir that goes before a relative path.

    >>> print(quote_pattern(r"/runs/50%\a"), quote_pattern("/runs/a"))
    /runs/50\%\\a /runs/a
    """
    return re.sub(r"([%\\])", r"\\\1", path)
