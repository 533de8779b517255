"""How large hpcrun is, and how much of it a daily verb loads: the figures that say it stays small.

    python -m bench.house                  all of them; some three minutes
    python -m bench.house --only size imports
    python -m bench.house --checkout DIR   the same for another checkout, with this one's programs
    python -m bench.house --json

What is measured is installed from the checkout into its .venv-bench, beside submitit. Figures of
time are ratios or medians of whole processes in turns. How many files a new launcher or verb
touches is not among them: that takes a person.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.figures import Figures, measure_all
from bench.following import measure_following
from bench.rows import Row, report
from bench.site import ROOT, Site, make_site
from bench.start import measure_help
from bench.status import measure_status
from bench.submit import PRESET, measure_submit


def measure_size(checkout: Path) -> list[Row]:
    """Count the lines and the files of Python in hpcrun/."""
    sizes = {path: _lines(path) for path in sorted((checkout / "hpcrun").rglob("*.py"))}
    metrics = [path for path in sizes if path.is_relative_to(checkout / "hpcrun" / "metrics")]
    by_part: dict[str, int] = {}
    for path, lines in sizes.items():
        inside = path.relative_to(checkout / "hpcrun").parts
        part = inside[0] if len(inside) > 1 else "hpcrun"
        by_part[part] = by_part.get(part, 0) + lines
    parts = sorted(by_part.items(), key=lambda part: -part[1])
    longest = max(sizes, key=lambda path: sizes[path])
    return [
        Row(
            "lines",
            "lines of Python in hpcrun/",
            "lines",
            sum(sizes.values()),
            bar=40_500,
            goal=36_000,
            notes=[
                f"{sum(sizes[path] for path in metrics)} of them in metrics/",
                ", ".join(f"{part} {lines}" for part, lines in parts),
            ],
        ),
        Row(
            "files",
            "files of Python in hpcrun/",
            "files",
            len(sizes),
            bar=240,
            goal=200,
            notes=[
                f"{len(metrics)} of them in metrics/",
                f"the longest: {longest.relative_to(checkout)}, {sizes[longest]} lines",
            ],
        ),
    ]


def measure_imports(site: Site) -> list[Row]:
    """Count the modules of hpcrun that three verbs import, as python -X importtime lists them.

    The job is a real one that has ended: Slurm still has it, its records and log are complete.
    """
    answer = site.call(site.hpcrun, "submit", "--wait", "--json", "--", "echo", "hello")
    job_id = json.loads(answer[answer.index("{") :])["job_id"]
    rows = []
    for name, words, about, bar, goal in (
        ("submit", ["submit", PRESET, "--dry-run"], f"submit {PRESET} --dry-run", 70, 50),
        ("status", ["status", job_id], "status JOBID, of a job that has ended", 60, 45),
        ("logs", ["logs", job_id], "logs JOBID, of the same job", 50, 40),
    ):
        all_of_them = imported(site, *words)
        ours = [module for module in all_of_them if module.partition(".")[0] == "hpcrun"]
        rows.append(
            Row(
                f"imports-{name}",
                f"modules of hpcrun imported by {about}",
                "modules",
                len(ours),
                bar=bar,
                goal=goal,
                notes=[_by_package(ours), f"{len(all_of_them)} modules in all"],
            )
        )
    return rows


def imported(site: Site, *words: str) -> list[str]:
    """Call hpcrun; list the modules that it imports. Raises CalledProcessError."""
    argv = [site.python, "-X", "importtime", site.hpcrun, *words]
    done = subprocess.run(
        argv, env=site.env, cwd=site.project, capture_output=True, text=True, check=True
    )
    return imported_modules(done.stderr)


def imported_modules(text: str) -> list[str]:
    """Read what python -X importtime prints.

    >>> imported_modules('''import time: self [us] | cumulative | imported package
    ... import time:       132 |        132 |   _io
    ... hello
    ... import time:       201 |        333 | hpcrun.errors
    ... ''')
    ['_io', 'hpcrun.errors']
    """
    lines = [line for line in text.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines if "[us]" not in line]


def install(checkout: Path) -> None:
    """Install a checkout's hpcrun beside its peers, as `make bench` does."""
    peers = checkout / ".venv-bench"
    made = ["make", "-C", str(checkout), ".venv-bench/.ready", f"PYTHON={sys.executable}"]
    pip = [str(peers / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    for argv in (made, [*pip, "--force-reinstall", str(checkout)]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(argv)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main() -> int:
    """Read the command line, measure, print the table; 1 where a figure misses its bar."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.house", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="FIGURE", default=[])
    parser.add_argument("--rounds", type=int, default=15, help="of the ratios; 15")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    checkout = given.checkout.resolve()
    figures: Figures = {
        "imports": lambda site, _: measure_imports(site),
        "submit": lambda site, rounds: measure_submit(site, rounds),
        "follow": lambda site, rounds: _commands(
            measure_following(site, 60.0 if rounds >= 5 else 15.0)
        ),
        "help": lambda site, rounds: measure_help(site, 2 * rounds),
        # Last: its 10,000 runs stay in the folder.
        "status": lambda site, rounds: measure_status(site, rounds),
    }
    names = ["size", *figures]
    if unknown := set(given.only) - set(names):
        parser.error(f"no figure: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    asked = given.only or names
    rows = measure_size(checkout) if "size" in asked else []
    if set(asked) & set(figures):
        install(checkout)
        with make_site(checkout / ".venv-bench") as site:
            rows += measure_all({n: figures[n] for n in figures if n in asked}, site, given.rounds)
    return report(rows, as_json=given.json)


def _commands(rows: Iterable[Row]) -> list[Row]:
    """Keep the figures of Slurm commands."""
    return [row for row in rows if row.name.startswith("follow")]


def _by_package(modules: list[str]) -> str:
    counts: dict[str, int] = {}
    for module in modules:
        words = module.split(".")
        package = ".".join(words[:2]) if len(words) > 2 else "hpcrun"
        counts[package] = counts.get(package, 0) + 1
    return ", ".join(f"{name.removeprefix('hpcrun.')} {n}" for name, n in sorted(counts.items()))


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


if __name__ == "__main__":
    sys.exit(main())
