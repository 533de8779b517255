"""The modules that a command imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.source import ROOT

# What a daily verb may need that Python does not have: no torch, and numpy, which takes longer to
# import than all of these, for curves alone. msgspec takes typing_extensions where it is there.
MSGSPEC = {"msgspec", "typing_extensions"}

PROGRAM = """\
import json, sys
before = set(sys.modules)
from hpcrun.cli.main import main
for line in json.loads(sys.argv[1]):
    sys.argv = ["hpcrun", *line]
    try:
        main()
    except SystemExit:
        pass
print(json.dumps(sorted({module.partition(".")[0] for module in set(sys.modules) - before})))
"""


def loaded(environ: dict[str, str], cwd: Path, *lines: list[str]) -> set[str]:
    """Call hpcrun with some command lines; return what is imported by then, by top names."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        cwd=cwd,
        env=environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def libraries(found: set[str]) -> set[str]:
    """Return what is neither Python's nor hpcrun's."""
    outside = found - sys.stdlib_module_names - {"hpcrun"}
    # What Cython and multiprocessing put among the modules is none.
    return {name for name in outside if "cython" not in name and name != "__mp_main__"}
