"""A script with an argument parser, and the problems found in its arguments."""

from __future__ import annotations

import ast

from hpcrun.plan.script_arguments import check_arguments
from hpcrun.plan.script_facts import ScriptFacts, read_script
from hpcrun.plan.script_notes import (
    ProjectScript,
)

HEAD = "import argparse, sys, os\np = argparse.ArgumentParser(description='x')\n"
TAIL = "args = p.parse_args()\n"


def facts(text: str) -> ScriptFacts:
    return read_script(ast.parse(text))


def faults(script: ProjectScript, words: list[str]) -> list[str]:
    """Return the findings that certainly end the script."""
    return check_arguments(script.name, script.facts, words)[0]


SCRIPT = facts(
    f"{HEAD}p.add_argument('--batch_size', type=int)\np.add_argument('-n', '--epochs')\n"
    f"p.add_argument('-lr')\np.add_argument('files', nargs='*')\n{TAIL}"
)
