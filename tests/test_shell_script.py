"""What `hpcrun shell` runs on a node: the environment that it takes over, and how."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hpcrun.assets import shipped_folder

SCRIPT = shipped_folder("templates") / "shell.sh"


def test_no_value_is_a_word_of_a_command(tmp_path: Path) -> None:
    seen = tmp_path / "words"
    env = tmp_path / "env"
    env.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{seen}"\nexec /usr/bin/env "$@"\n')
    env.chmod(0o755)
    step = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "4242424", "HOME": "/"}
    step |= {"SLURM_STEP_ID": "7", "OF_THE_STEP": "1"}
    job = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "4242424",
        "HPCRUN_ATTEMPT": "0",
        "WANDB_API_KEY": "s3cret",
        "RANK": "3",
        "own": "a b\nc",
        "hpcrun.odd": "(1 2)",
        "list": "(1 2)",
        "IFS": "e",
        "SECONDS": "9",
        "BASH_FUNC_module%%": '() { echo loaded "$1"; }',
    }
    with subprocess.Popen(["sleep", "60"], env=job, cwd=tmp_path) as process:
        try:
            inside = "module cuda; pwd; unset IFS; /usr/bin/env -0 | sort -z | tr '\\0\\n' '\\n '"
            words = ["bash", "-c", SCRIPT.read_text(), "hpcrun", "", "bash", "-c", inside]
            done = subprocess.run(words, env=step, capture_output=True, text=True, check=False)
        finally:
            process.kill()
    assert done.stderr == "" and done.returncode == 0
    loaded, where, *lines = done.stdout.splitlines()
    assert (loaded, where) == ("loaded cuda", str(tmp_path))
    shown = dict(line.split("=", 1) for line in lines if "=" in line)
    assert shown["WANDB_API_KEY"] == "s3cret" and shown["own"] == "a b c"
    assert shown["hpcrun.odd"] == shown["list"] == "(1 2)"
    assert "RANK" not in shown and "OF_THE_STEP" not in shown and "hpcrun_own" not in shown
    assert "s3cret" not in seen.read_text()
