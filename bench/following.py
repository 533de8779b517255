"""Measure following: the number of Slurm queries, and the delay until a written line is shown.

A job that writes lines, and an array of 500 runs, most of them pending, are followed at the same
time for a little over a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import statistics
import subprocess
import time
from collections import Counter
from pathlib import Path

from bench.rows import Row
from bench.site import Site, noted

# Write lines in bursts and after pauses; each line ends with the time at which it was written.
WRITER = """\
import random, sys, time
chance = random.Random(7)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    for _ in range(chance.choice((1, 1, 1, 3))):
        print(f"stamp {time.time():.6f}", flush=True)
    time.sleep(chance.choice((0.05, 0.4, 1.1, 2.7, 6.0)))
"""
SWEEP = """\
name: many
command: [bash, -c, "sleep 600", "{lr}"]
resources: {gpus_per_node: 0, time: 30}
snapshot: false
sweep: {lr: [%s]}
"""
_STAMP = re.compile(rb"stamp ([0-9.]+)$")
RUNS = 500
SETTLE = 8.0  # seconds after the start that are ignored


def measure_following(site: Site, seconds: float) -> list[Row]:
    """Follow both for ``seconds`` (60 for the table), and count queries."""
    (site.project / "writer.py").write_text(WRITER)
    (site.project / "many.yaml").write_text(SWEEP % ", ".join(str(n) for n in range(RUNS)))
    one, one_notes = site.counting("one")
    many, many_notes = site.counting("many")
    length = str(seconds + SETTLE + 5)
    began = time.perf_counter()
    array = site.call(site.hpcrun, "submit", "many.yaml", "--json", env=many)
    took = time.perf_counter() - began
    job_id = json.loads(array[array.index("{") :])["job_id"]
    followers: list[subprocess.Popen[bytes]] = []
    try:
        words = ("submit", "--follow", "--", "python3", "writer.py", length)
        followers.append(_start(site, one, *words))
        followers.append(_start(site, many, "wait", job_id))
        since = time.time() + SETTLE
        until = since + seconds
        delays, shown = _delays(followers[0], until)
        called = [noted(file, since, until) for file in (one_notes, many_notes)]
        # A follower that has ended sends no queries, so the result would be meaningless.
        gone = [follower.poll() for follower in followers]
    finally:
        late = [follower.args for follower in followers if not _ends(follower)]
        site.clear_queue()
    if late:
        raise RuntimeError(f"20 s after Ctrl-C not over: {late}")
    if any(code is not None for code in gone):
        raise RuntimeError(f"a follower ended early, with code {gone}: {shown[-300:]!r}")
    a_minute = 60 / seconds
    later = sorted(delays)
    p95 = later[max(0, -(-len(later) * 95 // 100) - 1)]
    return [
        Row(
            "follow-one",
            "Slurm commands a minute, following 1 job",
            "",
            len(called[0]) * a_minute,
            bar=4,
            goal=2,
            notes=[_programs(called[0])],
        ),
        Row(
            "follow-many",
            f"Slurm commands a minute, following {RUNS} jobs",
            "",
            len(called[1]) * a_minute,
            bar=4,
            goal=2,
            notes=[f"{_programs(called[1])}; submitted in {took:.1f} s; waited for by hpcrun wait"],
        ),
        Row(
            "line",
            "line written -> line shown, p95",
            "s",
            p95,
            bar=0.3,
            goal=0.15,
            notes=[
                f"median {statistics.median(later):.3f} s, most {later[-1]:.3f} s, "
                f"{len(later)} lines, with silences of up to 6 s"
            ],
        ),
    ]


def _programs(called: list[str]) -> str:
    counts = Counter(words.split()[0] for words in called)
    return ", ".join(f"{count} {program}" for program, count in counts.items()) or "none"


def _start(site: Site, env: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    log = Path(site.folder / "follower.err").open("ab")  # noqa: SIM115 - the process has it
    with log:
        return subprocess.Popen(
            [site.hpcrun, *words],
            env=env,
            cwd=site.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _ends(follower: subprocess.Popen[bytes]) -> bool:
    """Stop a follower with Ctrl-C, otherwise kill it. Return whether Ctrl-C was enough."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(follower.pid, signal.SIGINT)
    try:
        follower.communicate(timeout=20)  # read its output to the end
    except subprocess.TimeoutExpired:
        os.killpg(follower.pid, signal.SIGKILL)
        follower.communicate()
        return False
    return True


def _delays(follower: subprocess.Popen[bytes], until: float) -> tuple[list[float], bytes]:
    """Read the output of the follower until a time; return the delay of each line in seconds."""
    assert follower.stdout is not None
    delays, rest, shown = [], b"", b""
    with selectors.DefaultSelector() as ready:
        ready.register(follower.stdout, selectors.EVENT_READ)
        while (left := until - time.time()) > 0:
            if not ready.select(left):
                break
            data = os.read(follower.stdout.fileno(), 65536)
            now = time.time()
            if not data:
                break
            shown += data
            *lines, rest = (rest + data).split(b"\n")
            stamps = [_STAMP.search(line) for line in lines]
            delays += [now - float(stamp[1]) for stamp in stamps if stamp]
    return delays, shown
