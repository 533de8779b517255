"""Create the logs: `python -m tests.curves.made [NAME ...]`, where a NAME may have * and ?.

MADE_PYTHONS may name further Pythons, parted by colons, for packages that do not go together.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from tests.curves.made import printed_language, printed_other, printed_plain
from tests.curves.made.catalogue import RUNS
from tests.curves.made.printed import FORMATS, make_printed
from tests.curves.made.runs import RunFailed, interpreters, make

LOGS = Path(__file__).resolve().parent.parent / "logs"
INDEX = LOGS / "index.yaml"
HEAD = """\
# What stands in each log, noted by the program that logged it: python -m tests.curves.made.
# points: training losses after restarts; step null: the log shows none; warnings: what a reader
# must worry about, by kind, [] for a healthy run; ambiguous: what the log alone does not tell.
"""


def main(patterns: list[str]) -> None:
    """Create all logs, or the named ones, for which the packages are installed."""

    def wanted(name: str) -> bool:
        return not patterns or any(fnmatch(name, pattern) for pattern in patterns)

    entries: dict[str, dict[str, Any]] = {}
    if INDEX.exists():
        entries = {entry["name"]: entry for entry in yaml.safe_load(INDEX.read_text())}
    assert printed_language and printed_other and printed_plain  # they fill FORMATS

    def keep(files: dict[str, bytes], entry: dict[str, Any]) -> None:
        entries[entry["name"]] = entry
        for name, text in files.items():
            (LOGS / name).write_bytes(text)
        sizes = ", ".join(f"{name} {len(text)} bytes" for name, text in files.items())
        print(f"{entry['name']}: {entry['framework']}, {entry['points']} points, {sizes}")

    for made in FORMATS:
        if wanted(made.name):
            keep(*make_printed(made))
    pythons = interpreters()
    for run in RUNS:
        if not wanted(run.name):
            continue
        fit = [python for python in pythons if all(python.has(need) for need in run.needs)]
        if not fit:
            print(f"{run.name}: not made: no Python here has {', '.join(run.needs)}")
            continue
        try:
            keep(*make(run, fit[0]))
        except RunFailed as error:
            print(f"{run.name}: not made: {error}")
    listed = [entries[name] for name in sorted(entries)]
    INDEX.write_text(
        HEAD + yaml.safe_dump(listed, sort_keys=False, default_flow_style=None, width=100)
    )


if __name__ == "__main__":
    main(sys.argv[1:])
