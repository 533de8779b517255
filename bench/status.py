"""Measure `hpcrun status` with many recorded runs, and count the files that it opens."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from bench.rows import Row
from bench.site import Site
from bench.timing import in_turns

RUNS = 10_000
COPIED = ("plan.json", "submitted.json", "attempts/0/begin.json", "attempts/0/end.json")
# Runs the program with an audit hook (PEP 578) that counts the files opened below a folder.
COUNTER = """\
import os, sys
below, calls = sys.argv[1], []
def note(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        if os.fsdecode(args[0]).startswith(below):
            calls.append(args[0])
sys.addaudithook(note)
sys.argv = ["hpcrun", *sys.argv[2:]]
from hpcrun.cli.main import main
try:
    main()
finally:
    print(len(calls), file=sys.stderr)
"""


def measure_status(site: Site, rounds: int) -> list[Row]:
    """Time the listing of the newest runs among 10,000 finished ones."""
    write_runs(site, RUNS)
    times = in_turns({"status": site.command("status")}, rounds, env=site.env, cwd=site.project)
    shown = len(json.loads(site.call(site.hpcrun, "status", "--json"))["runs"])
    opened = _opened(site)
    few = in_turns(
        {"one": site.command("status", "20261101-000000-bench-0000")},
        max(rounds // 2, 3),
        env=site.env,
        cwd=site.project,
    )
    return [
        Row(
            "status",
            f"hpcrun status, {RUNS:,} runs recorded",
            "ms",
            times.milliseconds("status"),
            bar=200,
            goal=120,
            notes=[
                times.line("status", "hpcrun status"),
                few.line("one", "hpcrun status RUN, one of them in detail"),
            ],
        ),
        Row(
            "status-files",
            "  files of runs opened for it / rows shown",
            "x",
            opened / shown,
            bar=3,
            goal=3,
            notes=[f"{opened} opened, {shown} rows"],
        ),
    ]


def write_runs(site: Site, count: int) -> None:
    """Run one job to its end, and copy its records under other ids and job ids."""
    answer = site.call(site.hpcrun, "submit", "--wait", "--json", "--name", "bench", "--", "true")
    model = Path(json.loads(answer[answer.index("{") :])["run_dir"])
    site.call(site.hpcrun, "status", model.name)  # cached data of a finished run
    cached = [str(path.relative_to(model)) for path in (model / "cache").rglob("*.json")]
    texts = {name: (model / name).read_text() for name in (*COPIED, *cached)}
    job_id = json.loads(texts["submitted.json"])["job_id"]
    for number in range(count):
        run_id = f"202611{number // 1000 % 28 + 1:02d}-{number % 1000:06d}-bench-{_tail(number)}"
        run = site.runs / run_id
        for folder in ("attempts/0", "logs/0", "cache"):
            (run / folder).mkdir(parents=True)
        for name, text in texts.items():
            changed = text.replace(model.name, run_id).replace(job_id, str(1000 + number))
            (run / name).write_text(changed)
        (run / "logs/0/rank-0.log").write_text("step 1 loss 2.5\n")
    shutil.rmtree(model)


def _tail(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text


def _opened(site: Site) -> int:
    done = subprocess.run(
        [site.python, "-c", COUNTER, f"{site.runs}/", "status"],
        env=site.env,
        cwd=site.project,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stderr.splitlines()[-1])
