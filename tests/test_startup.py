"""hpcrun starts fast: what is heavy is imported where it is used."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.cli.main import VERBS
from tests.loaded_modules import MSGSPEC, libraries, loaded
from tests.source import ROOT, imports, modules, name, part, tree

LIGHT = {*MSGSPEC, "_yaml", "click", "hjson", "jinja2", "markupsafe", "yaml"}


def test_help_imports_click_alone(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    found = loaded(clean_environ, tmp_path, ["--help"], ["--version"], ["no-such-verb"])
    assert libraries(found) == {"click"}
    assert not found & {"asyncio", "subprocess"}


def test_help_of_a_verb_imports_nothing_heavy(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    found = loaded(clean_environ, tmp_path, *([verb, "--help"] for verb in VERBS))
    assert libraries(found) == {"click"}


def test_daily_verbs_import_light_libraries(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    (tmp_path / "hpcrun.yaml").write_text("python: python3\nruns_dir: runs\n")
    (tmp_path / "a.log").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n')
    lines = [["jobs"], ["show", "zero2-4gpu"], ["submit", "zero3-4gpu", "--dry-run"]]
    found = loaded(clean_environ, tmp_path, *lines, ["status"], ["schema"])
    assert "yaml" in found  # they really ran
    assert libraries(found) <= LIGHT
    found = loaded(clean_environ, tmp_path, ["parse", "a.log"])
    assert "msgspec" in found
    assert libraries(found) <= {*LIGHT, "numpy"}


def test_logs_of_a_run_import_nothing_of_its_state(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    (tmp_path / "hpcrun.yaml").write_text("python: python3\nruns_dir: runs\n")
    folder = tmp_path / "runs" / "20261121-081455-train-8m4r" / "logs" / "0"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("step 1 loss 2.5\n")
    program = (
        "import sys; from hpcrun.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "logs", "8m4r"],
        cwd=tmp_path,
        env=clean_environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "step 1 loss 2.5\n"
    found = set(done.stderr.split())
    assert "hpcrun.actions.logs" in found
    states = ("hpcrun.slurm.", "hpcrun.monitor.status", "hpcrun.views.status")
    assert not [module for module in found if module.startswith(states)]


def test_ctrl_c_while_libraries_are_imported_is_no_traceback(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environ = clean_environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "hpcrun", "--help"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_nothing_is_imported_before_ctrl_c_is_no_traceback(clean_environ: dict[str, str]) -> None:
    program = (
        "import sys; before = set(sys.modules); import hpcrun.cli.start\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {name for name in done.stdout.split() if name.startswith("hpcrun")}
    assert found == {"hpcrun", "hpcrun.version", "hpcrun.cli", "hpcrun.cli.start"}


def test_ctrl_c_while_an_error_is_shown_is_no_traceback(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    program = (
        "import os, signal, hpcrun.cli.main, hpcrun.cli.start as start\n"
        "hpcrun.cli.main.print_failure = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "start.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "no-such-verb"],
        env=clean_environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_the_command_line_is_given_ctrl_c_back(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    program = (
        "import os, signal, sys, hpcrun.cli.main, hpcrun.cli.start as start\n"
        "hpcrun.cli.main.main = lambda: print(signal.getsignal(signal.SIGINT).__name__)\n"
        "start.main()\n"
    )
    environ = clean_environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "default_int_handler\n"


@pytest.mark.slow
def test_modules_of_the_command_line_can_be_imported_alone(clean_environ: dict[str, str]) -> None:
    # Most tests run hpcrun where everything is imported. Each fork imports what one module needs.
    program = (
        "import click, jinja2, json, msgspec, numpy, os, sys, yaml\n"
        "for name, lines in json.loads(sys.argv[1]).items():\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        try: exec(lines)\n"
        "        except BaseException as error: print(name, repr(error), flush=True)\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    needed = {}
    for path in modules():
        if part(path) == "cli":
            inside = [
                ast.unparse(node)
                for node in ast.walk(tree(path))
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hpcrun.")
            ]
            needed[name(path)] = "\n".join(inside)
    assert len(needed) > 20 and any("hpcrun.actions" in lines for lines in needed.values())
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(needed)],
        env=clean_environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("path", [p for p in modules() if part(p) == "cli"], ids=name)
def test_verbs_import_at_their_start_what_is_light(path: Path) -> None:
    if path.stem.startswith("verbs_") or path.stem in ("main", "options", "output"):
        found = imports(path, at_start=True)
        assert libraries({full.split(".")[0] for full in found}) <= {"click"}
        inside = {full for full in found if full.startswith("hpcrun.")}
        allowed = ("hpcrun.cli.options", "hpcrun.cli.output", "hpcrun.errors", "hpcrun.version")
        assert all(full.startswith(allowed) for full in inside), inside
