"""A job submitted with sbatch alone."""

from __future__ import annotations

import subprocess

from tests.cluster.site import Site


def sbatch(site: Site, script: str, *options: str) -> str:
    """Submit a script without hpcrun; return the job's id."""
    path = site.project / "by hand.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    argv = ["sbatch", "--parsable", "--time=5", *options, str(path)]
    done = subprocess.run(
        argv, cwd=site.project, env=site.rig.env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
