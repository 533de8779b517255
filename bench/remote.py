"""Measure the speed of commands on a laptop 50 ms away from the cluster; print one table.

    python -m bench.remote                      all benchmarks; takes about five minutes
 python -m bench.remote --only submit line   only these

A real sshd runs in front of a real Slurm on this machine, behind a proxy that delays each byte. The
number of round trips of a command is the slope of its wall time over the delay, minus the round
trips for logging in, which are measured separately (two for the keys of the connection, two for
that of the user). The proxy accepts connections immediately; a real network adds one round trip for
TCP's handshake. Compared processes run alternately, in the environment of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import measure_all
from bench.make_log import write_log
from bench.rows import Row, report
from bench.site import Site, make_site
from bench.status import write_runs
from bench.timing import Command, Times, in_turns
from tests.remote.link import Link
from tests.remote.sshd import Laptop, servers

# Round-trip times in seconds: a typical one, and a long one for the slope, so that the noise of a
# busy machine is small in comparison.
DELAY, DELAYS = 0.05, (0.05, 0.8)
RUNS = 200
MEGABYTES = 100
FILES = 40  # of the project
LOG_IN = """\
import sys
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import SshSettings
from hpcrun.remote.ssh import NO_PROMPTS
connection = open_connection(SshSettings(host="cluster"), NO_PROMPTS)
connection.forward_port("localhost", 1)
connection.close()
"""
WRITER = """\
for ((i = 0; i < 150; i++)); do
  echo "stamp $EPOCHREALTIME"
  sleep "0.$((RANDOM % 6))$((RANDOM % 10))"
done
"""
PEER = """\
rsync -a --delete ./ cluster:{folder}/ && ssh cluster 'cd {folder} && sbatch -o /dev/null job.sh'
"""
_STAMP = re.compile(rb"stamp ([0-9.]+)$")


@dataclass
class Far:
    """The cluster and the laptop, which are connected only by the link."""

    site: Site
    laptop: Laptop
    link: Link

    @property
    def env(self) -> dict[str, str]:
        """The environment of programs on the laptop."""
        kept = {name: os.environ[name] for name in ("LANG", "USER") if name in os.environ}
        path = f"{self.laptop.home}/bin:{Path(sys.prefix)}/bin:{os.environ['PATH']}"
        state = {"HPCRUN_SANDBOX_DIR": "/nonexistent", "HPCRUN_CLUSTER": "far"}
        return {**kept, **self.laptop.env, **state, "PATH": path}

    @property
    def project(self) -> Path:
        """The project on the laptop."""
        return self.laptop.home / "project"

    def call(self, *words: str, timeout: float = 300) -> str:
        """Run hpcrun on the laptop. Raises CalledProcessError."""
        argv = [self.site.hpcrun, *words]
        done = subprocess.run(
            argv, cwd=self.project, env=self.env, capture_output=True, text=True, timeout=timeout
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, argv, done.stdout, done.stderr)
        return done.stdout

    def take_turns(self, rounds: int, delay: float, **commands: Command) -> Times:
        """Time commands with a round-trip time of ``delay`` seconds."""
        self.link.delay = delay / 2
        try:
            return in_turns(commands, rounds, env=self.env, cwd=self.project)
        finally:
            self.link.delay = 0.0

    def trips(self, rounds: int, command: Command) -> tuple[int, Times, list[str]]:
        """Count the round trips of a command after the login; also return its times at DELAY."""
        log_in = Command([sys.executable, "-c", LOG_IN])
        at = {each: self.take_turns(rounds, each, it=command, login=log_in) for each in DELAYS}
        slope, login = (
            _slope([(delay, at[delay].milliseconds(name) / 1000) for delay in DELAYS])
            for name in ("it", "login")
        )
        notes = [
            f"{slope:.1f} in all, {login:.1f} of them to connect and log in",
            *(
                at[delay].line(name, f"{name}, round trips of {delay * 1000:.0f} ms")
                for delay in DELAYS
                for name in ("it", "login")
            ),
        ]
        return round(slope - login), at[DELAY], notes  # a number of round trips is an integer


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Fit a line.

    >>> _slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)])
    2.0
    """
    return statistics.linear_regression(*zip(*points, strict=True)).slope


@contextlib.contextmanager
def make_far(site: Site) -> Iterator[Far]:
    """Start a server in front of the site's Slurm, and create a laptop with a project."""
    home = site.folder / "far-home"
    home.mkdir()
    setting = f'SetEnv "HOME={home}" "SLURM_CONF={site.env["SLURM_CONF"]}"'
    with servers(site.folder, cluster=[setting]) as laptop:
        (server,) = laptop.servers
        link = Link(server.port)
        server.port, real = link.port, server.port
        laptop.trust(server)
        laptop.configure(laptop.usual())
        server.port = real
        far = Far(site, laptop, link)
        far.project.mkdir()
        (laptop.home / ".config/hpcrun/clusters").mkdir(parents=True)
        profile = (site.sandbox / "cluster.yaml").read_text()
        profile = re.sub(r"(?m)^(name|cache_dir): .*\n", "", profile)
        profile += f"name: far\nhost: cluster\ncache_dir: {home}/cache\n"
        (laptop.home / ".config/hpcrun/clusters/far.yaml").write_text(profile)
        kept = profile.replace("name: far", "name: kept\nssh: openssh")
        (laptop.home / ".config/hpcrun/clusters/kept.yaml").write_text(kept)
        for number in range(FILES):
            (far.project / f"part{number}.py").write_text(f"x = {number}\n" * 300)
        (far.project / "job.yaml").write_text(
            "command: [bash, job.sh]\nresources: {gpus_per_node: 0}\n"
        )
        (far.project / "job.sh").write_text("#!/bin/bash\ntrue\n")
        (far.project / "follow.yaml").write_text(
            "command: [bash, writer.sh]\nresources: {gpus_per_node: 0}\n"
        )
        (far.project / "writer.sh").write_text(WRITER)
        try:
            yield far
        finally:
            link.close()


def measure_submit(far: Far, rounds: int) -> list[Row]:
    """Submit an unchanged project; compare with rsync and ssh host sbatch."""
    submit = Command([far.site.hpcrun, "submit", "job.yaml"])
    peer = Command(["bash", "-c", PEER.format(folder=far.site.folder / "peer")])
    far.site.hold_queue(True)
    try:
        trips, _, notes = far.trips(rounds, submit)
        both = far.take_turns(rounds, DELAY, hpcrun=submit, peer=peer)
    finally:
        far.site.clear_queue()
        far.site.hold_queue(False)
    return [
        Row("trips", "round trips of submit after the login", "", trips, 9, 5, notes),
        Row(
            "submit",
            "hpcrun submit of an unchanged project, 50 ms away",
            "s",
            both.milliseconds("hpcrun") / 1000,
            1.2,
            0.9,
            [both.line("hpcrun", "hpcrun submit")],
        ),
        Row(
            "ratio",
            "  of that / rsync, then ssh cluster sbatch",
            "x",
            both.ratio("hpcrun", "peer"),
            1.0,
            0.7,
            [both.line("peer", "rsync -a && ssh cluster sbatch")],
        ),
    ]


def measure_status(far: Far, rounds: int) -> list[Row]:
    """List runs that are already in the local mirror, except for new data."""
    write_runs(far.site, RUNS)
    far.call("status")
    trips, times, notes = far.trips(rounds, Command([far.site.hpcrun, "status"]))
    what = f"round trips of status of {RUNS} runs after the login"
    seconds = times.milliseconds("it") / 1000
    return [
        Row("status-trips", what, "", trips, 4, 3, notes),
        Row("status", "  seconds, 50 ms away", "s", seconds),
    ]


def measure_line(far: Far, rounds: int) -> list[Row]:
    """Follow a job, and measure the delay of each of its lines."""
    answer = far.call("submit", "follow.yaml", "--json")
    job = json.loads(answer)["job_id"]
    far.link.delay = DELAY / 2
    delays: list[float] = []
    argv = [far.site.hpcrun, "logs", "-f", job]
    pipe = subprocess.PIPE
    began = time.time()
    with subprocess.Popen(argv, cwd=far.project, env=far.env, stdout=pipe) as follower:
        assert follower.stdout is not None
        for line in follower.stdout:
            if (found := _STAMP.search(line.rstrip())) and float(found[1]) > began + 5:
                delays.append(time.time() - float(found[1]))
    far.link.delay = 0.0
    later = sorted(delays)
    p95 = later[max(0, -(-len(later) * 95 // 100) - 1)]
    note = f"median {statistics.median(later):.3f} s, most {later[-1]:.3f} s, {len(later)} lines"
    return [
        Row("line", "line written there -> shown here, p95, 50 ms away", "s", p95, 0.5, 0.3, [note])
    ]


def measure_parse(far: Far, rounds: int) -> list[Row]:
    """Parse a long log of a finished run for the first time, again, and as a local file."""
    run = json.loads(far.call("submit", "job.yaml", "--wait", "--json"))
    log = Path(run["run_dir"]) / "logs/0/rank-0.log"
    write_log(log, MEGABYTES * 10**6 // 150, MEGABYTES * 10**6 // 1200)
    far.link.delay = DELAY / 2
    began = time.perf_counter()
    far.call("parse", run["job_id"])
    first = time.perf_counter() - began
    far.link.delay = 0.0
    again = Command([far.site.hpcrun, "parse", run["job_id"]])
    here = Command([far.site.hpcrun, "parse", run["run_dir"]])
    trips, _, notes = far.trips(rounds, again)
    kept = Command([far.site.hpcrun, "parse", run["job_id"], "--cluster", "kept"])
    far.call(*kept.argv[1:])
    login = Command([sys.executable, "-c", LOG_IN])
    times = far.take_turns(rounds, DELAY, again=again, here=here, kept=kept, login=login)
    far.call("connect", "kept", "--close")
    size = log.stat().st_size / 1e6
    return [
        Row(
            "parse",
            f"parse of a log of {size:.0f} MB again, 50 ms away",
            "s",
            times.milliseconds("again") / 1000,
            0.5,
            0.4,
            [
                f"the first time: {first:.1f} s, over a link of no limit but its delay",
                times.line("again", "the second time"),
                times.line("login", "to connect and log in alone"),
                times.line("here", "the same log, here, where nothing is kept"),
            ],
        ),
        Row(
            "parse-kept",
            "  by a connection that ssh keeps (ssh: openssh)",
            "s",
            times.milliseconds("kept") / 1000,
            0.5,
            0.4,
            [times.line("kept", "the second time")],
        ),
        Row("parse-trips", "  round trips of it after the login", "", trips, 4, 3, notes),
    ]


FIGURES: dict[str, Callable[[Far, int], list[Row]]] = {
    "submit": measure_submit,
    "status": measure_status,
    "line": measure_line,
    "parse": measure_parse,
}


def main() -> int:
    """Read the command line, measure, print the table; return 1 if a value exceeds its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.remote", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="FIGURE", default=[])
    parser.add_argument("--rounds", type=int, default=7, help="of each delay; 7")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with make_site(Path(sys.prefix)) as site, make_far(site) as far:
        asked = {
            name: lambda _, rounds, measure=FIGURES[name]: measure(far, rounds)
            for name in FIGURES
            if name in (given.only or FIGURES)
        }
        rows = measure_all(asked, site, given.rounds)
    return report(rows, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
