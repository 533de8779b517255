"""hpcrun on every Slurm from 20.11 to 26.05: python -m tests.versions [RELEASE ...].

For each release a two-node Slurm with accounting is brought up twice: what
its commands answer is captured, and hpcrun goes its road from submission to the accounting.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.cluster.conftest import FORBIDS
from tests.cluster.rig import why_not
from tests.versions import capture, road, roots
from tests.versions.book import Book
from tests.versions.rig import ReleaseRig

CAPTURED = Path(__file__).parent.parent / "captured"
_FIX = "as root: apt-get install debootstrap"


def main() -> int:
    """Run the command line; the exit code is 1 if anything failed."""
    options = _options()
    reason = why_not() or ("" if shutil.which("debootstrap") else f"no debootstrap here; {_FIX}")
    if reason:
        sys.exit(f"tests.versions: {reason}")
    mirror = options.mirror or roots.own_mirror()
    options.cache.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        for release in options.releases:
            shutil.rmtree(options.cache / release, ignore_errors=True)
    began = time.monotonic()
    # One at a time for the downloads, all at once for the clusters: these mostly wait.
    trees = roots.make_roots(options.releases, options.cache, mirror)
    _say("all", f"unpacked ({time.monotonic() - began:.0f} s)")
    # A host dies with the thread that started it, so each cluster lives in a process of its own.
    with concurrent.futures.ProcessPoolExecutor(max_workers=options.jobs) as pool:
        tasks = [
            pool.submit(_one, release, trees[release], what)
            for what in options.only
            for release in options.releases
        ]
        failed = sum(not task.result() for task in tasks)
    _say("all", f"{len(tasks) - failed} of {len(tasks)} passed ({time.monotonic() - began:.0f} s)")
    return 1 if failed else 0


def _one(release: str, tree: Path, what: str) -> bool:
    """Capture output or run the scenarios on one release; return the result."""
    version = roots.slurm_version(tree)
    name = f"{release} {version} {what}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpcrun-versions-", dir="/var/tmp") as folder:
        rig = ReleaseRig(
            Path(folder) / "rig",
            tree=tree,
            version=version,
            settings=capture.SETTINGS,
            job_submit=FORBIDS if what == "road" else "",
            min_job_age=capture.MIN_JOB_AGE if what == "capture" else road.MIN_JOB_AGE,
        )
        try:
            rig.start()
            if what == "capture":
                source = f"two hosts with slurmdbd, Slurm {version} of Debian {release}"
                capture.capture(Book(rig, CAPTURED / version, source))
            else:
                road.drive(rig, lambda text: _say(name, text))
        except Exception:
            _say(name, f"FAILED\n{traceback.format_exc()}")
            return False
        finally:
            rig.stop()
    _say(name, f"done ({time.monotonic() - began:.0f} s)")
    return True


def _say(who: str, text: str) -> None:
    print(f"{who}: {text}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", default=[*roots.RELEASES])
    parser.add_argument("--only", action="append", choices=("capture", "road"))
    parser.add_argument("--cache", type=Path, default=Path("/var/tmp/hpcrun-slurm-versions"))
    parser.add_argument("--mirror", default="", help="this machine's own unless given")
    parser.add_argument("--fresh", action="store_true", help="unpack the releases anew")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    options = parser.parse_args()
    options.only = options.only or ["capture", "road"]
    unknown = sorted({*options.releases} - {*roots.RELEASES})
    if unknown:
        parser.error(f"{', '.join(unknown)}: known are {', '.join(roots.RELEASES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
