"""Completion: the offered words, and the three real shells."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem

from hpcrun.cli.completion import SHELLS, BashComplete
from hpcrun.cli.main import VERBS
from hpcrun.cli.main import hpcrun as hpcrun_group
from hpcrun.cli.options import Value
from tests.cli.calling import Caller
from tests.needs import require_command
from tests.source import ROOT
from tests.waiting import PATIENCE


@pytest.fixture
def site(hpcrun: Caller) -> Caller:
    """A project with jobs and runs, and another program called hpcrun on the PATH."""
    hpcrun.write("jobs/my job.yaml", "description: two words\nscript: x.py\n")
    hpcrun.write("train.py", "")
    for number, name in enumerate(("20261120-081455-zero2-7k3q", "20261121-081455-lr.0-8m4r")):
        (hpcrun.runs / name / "attempts" / "0").mkdir(parents=True)
        (hpcrun.runs / name / "submitted.json").write_text(f'{{"job_id": "100{number}"}}')
    (hpcrun.runs / "20261121-081455-lr-8m4r.array").mkdir()
    (hpcrun.runs / "20261121-081455-lr-8m4r.array" / "submitted.json").write_text(
        '{"job_id": "2000"}'
    )
    (hpcrun.runs / "20261120-081455-zero2-7k3q" / "attempts" / "0" / "end.json").write_text(
        '{"exit_code": 3}'
    )
    other = hpcrun.project.parent / "toolkit"
    other.mkdir()
    (other / "hpcrun").write_text("#!/bin/sh\necho HPCToolkit\n")
    (other / "hpcrun").chmod(0o755)
    hpcrun.environ["PATH"] = f"{other}:{os.environ['PATH']}"
    return hpcrun


def asked(site: Caller, *words: str) -> list[str]:
    """Return the completions, computed in this process."""
    done = site(*words, entry=complete)
    assert (done.code, done.err) == (0, ""), done
    return done.out.strip("\n").splitlines()


def complete() -> None:
    """Run the program that the completion scripts call."""
    shell, *words = sys.argv[1:]
    print(SHELLS[shell](words).complete())


def as_a_process(site: Caller, *words: str, cwd: Path | None = None) -> list[str]:
    """Run the program as the bash script does."""
    script = site("completion", "bash").out
    found = re.search(r"< <\((.*) bash \"\$2\"", script)
    assert found is not None
    done = subprocess.run(
        [*shlex.split(found[1]), *words],
        cwd=cwd or site.project,
        env=site.environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def bash(site: Caller, line: str) -> list[str]:
    """Complete as bash does: with the text to replace, and the line up to the cursor."""
    return asked(site, "bash", re.split(r"[ \"'=:]", line)[-1], line)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("hpcrun stat", ["plain,status"]),
        ("hpcrun nosuch x", []),
        ("hpcrun status ", ["plain,2000", "plain,1000"]),
        ("hpcrun status 10", ["plain,1000"]),
        ("hpcrun status z", ["plain,zero2-7k3q"]),
        ("hpcrun status lr", ["plain,lr-8m4r"]),
        (
            "hpcrun status 2026112",
            ["plain,20261121-081455-lr-8m4r", "plain,20261120-081455-zero2-7k3q"],
        ),
        ("hpcrun status 20261120-", ["plain,20261120-081455-zero2-7k3q"]),
        ("hpcrun logs --no", ["plain,--node"]),
        ("hpcrun submit my", ["plain,my\\ job"]),
        ("hpcrun submit 'my", ["plain,my job"]),
        ("hpcrun submit ./tr", ["file,"]),
        ("hpcrun submit x -- ./tr", ["file,"]),
        ("hpcrun submit --set precision=b", ["plain,bf16"]),
        ("hpcrun submit --set prec", ["open,precision="]),
        ("hpcrun submit --after zer", ["plain,zero2-7k3q"]),
        ("hpcrun submit --cluster=san", ["plain,sandbox"]),
        ("hpcrun submit --nodes x --cluster san", ["plain,sandbox"]),
        ("hpcrun --ver", ["plain,--version"]),
        ("hpcrun sandbox u", ["plain,up"]),
        ("hpcrun schema c", ["plain,cluster"]),
        ("hpcrun parse tr", ["file,"]),
        ("hpcrun parse --plot ", ["file,"]),
        ("hpcrun parse z", ["plain,zero2-7k3q", "file,"]),
        ("hpcrun hostfile z", ["plain,zero2-7k3q", "file,"]),
        ("hpcrun show lr", ["plain,lr-8m4r"]),
        ("hpcrun show my", ["plain,my\\ job"]),
        ("hpcrun top -n ", []),
        ("hpcrun 'unclosed", []),
        ("hpcrun status \udcff\x1b[2J", []),
    ],
)
def test_completion_offers_matching_words(site: Caller, line: str, answer: list[str]) -> None:
    assert bash(site, line) == answer


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_with_run_arguments_completes_runs(verb: str) -> None:
    command = hpcrun_group.get_command(click.Context(hpcrun_group), verb)
    assert command is not None
    for param in command.params:
        if isinstance(param, click.Argument) and param.name in ("job", "jobs", "logs", "what"):
            assert isinstance(param.type, Value), param.name
            names_jobs = verb in ("submit", "run", "fit", "when", "rehearse", "notify")
            last = "jobs" if names_jobs else "runs"
            assert param.type.kinds[-1] == last or param.type.kinds == ("runs", "files")


def test_completion_lists_commands_with_descriptions(site: Caller) -> None:
    lines = asked(site, "fish", "--", "")
    assert dict(line.removeprefix("plain,").split("\t") for line in lines) == VERBS


@pytest.mark.slow
def test_completion_describes_runs(site: Caller) -> None:
    assert asked(site, "fish", "status", "--", "z") == [
        "plain,zero2-7k3q\tzero2, exit code 3, 11-20 08:14 UTC",
    ]
    assert asked(site, "zsh", "submit", "--", "my") == ["plain,my job:two words"]
    assert asked(site, "zsh", "submit", "--", "--cluster=san") == [
        "plain,--cluster=sandbox:a Slurm on this machine"
    ]


@pytest.mark.slow
def test_completion_prints_nothing_on_errors(site: Caller) -> None:
    site.write("hpcrun.yaml", "runs_dir: [\n")
    assert as_a_process(site, "bash", "", "hpcrun status ") == []
    site.write("hpcrun.yaml", "runs_dir: $NO_SUCH_VARIABLE/runs\n")
    assert as_a_process(site, "bash", "", "hpcrun status ") == []
    site.write("hpcrun.yaml", "runs_dir: /nonexistent/runs\n")
    assert as_a_process(site, "bash", "", "hpcrun status ") == []
    assert as_a_process(site) == []
    assert as_a_process(site, "bash") == []


def test_completion_script_calls_the_hpcrun_that_printed_it(site: Caller, tmp_path: Path) -> None:
    """It calls neither another hpcrun on the PATH, nor a folder called hpcrun."""
    (tmp_path / "hpcrun").mkdir()
    (tmp_path / "hpcrun" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    words = ("bash", "stat", "hpcrun stat")
    assert as_a_process(site, *words, cwd=tmp_path) == ["plain,status"]
    assert as_a_process(site, *words) == asked(site, *words)


@pytest.mark.parametrize("value", ["my job", "a'b", 'a"b', "$x", "a:b=c", "é", "a\\b"])
@pytest.mark.parametrize("begun", ["", "'", '"', "m", "a"])
def test_bash_completions_are_quoted(value: str, begun: str) -> None:
    quote = begun if begun in ("'", '"') else ""
    completion = BashComplete(["" if quote else begun, f"hpcrun submit {begun}"])
    args, current = completion.get_completion_args()
    assert (args, current) == (["submit"], "" if quote else begun)
    written = completion.write(CompletionItem(value))
    line = f"printf %s {quote}{written}{quote}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == value


def test_incomplete_lines_are_split() -> None:
    assert BashComplete(["", ""]).get_completion_args() == ([], "")
    assert BashComplete(["a\\", "hpcrun a\\"]).get_completion_args() == ([], "a")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_install_writes_the_shell_files(site: Caller, shell: str) -> None:
    home = Path(site.environ["HOME"])
    start = home / f".{shell}rc"
    if shell != "fish":
        start.write_text("alias x=y")
    done = site("completion", shell, "--install")
    assert done.code == 0, done
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert site("completion", shell, "--install").code == 0
    assert before == {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    if shell != "fish":
        first, second = start.read_text().splitlines()
        assert first == "alias x=y"
        assert ".config/hpcrun/completion-hpcrun" in second
    else:
        assert (home / ".config/fish/completions/hpcrun.fish").is_file()


def test_invalid_alias_is_refused(site: Caller) -> None:
    done = site("completion", "bash", "--command", "a; rm -rf /")
    assert done.code == 2
    assert "not the name of a command" in done.err
    assert (
        "complete -o nosort -F _hr_completion hr"
        in site("completion", "bash", "--command", "hr").out
    )


class Terminal:
    """A shell on a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def type(self, text: str, expected: str) -> None:
        """Type text, and wait until a text is shown."""
        os.write(self._descriptor, text.encode())
        shown, deadline = "", time.monotonic() + PATIENCE
        while expected not in shown:
            assert time.monotonic() < deadline, f"typed {text!r}, waited for {expected!r}: {shown}"
            if select.select([self._descriptor], [], [], 0.2)[0]:
                piece = os.read(self._descriptor, 1 << 16).decode("utf-8", "replace")
                shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", piece)


@contextlib.contextmanager
def terminal(site: Caller, *argv: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environ = site.environ | {"TERM": "xterm", "PS1": "$ ", "INPUTRC": "/dev/null"}
    shell = subprocess.Popen(
        argv,
        cwd=site.project,
        env=environ | {"PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        yield Terminal(ours)
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
        os.close(theirs)


TYPED = [
    ("stat\t", "status "),
    ("z\t", "zero2-7k3q "),
    ("\x15hpcrun submit my\t", "my\\ job "),
    ("\x15hpcrun submit 'my\t", "'my job' "),
    ("\x15hpcrun submit --set precision=bf\t", "precision=bf16 "),
    ("\x15hpcrun parse tra\t", "train.py "),
    ("\x15hpcrun parse ze\t", "zero2-7k3q "),
    ("\x15hpcrun submit --cluster=san\t", "--cluster=sandbox "),
]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_works_in_real_bash_and_zsh(site: Caller, shell: str) -> None:
    require_command(shell)
    script = site.project / f"completion.{shell}"
    script.write_text(site("completion", shell).out)
    argv = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"]}[shell]
    with terminal(site, *argv) as typed:
        # zsh may discard input typed before it is ready, so wait for its first output.
        typed.type(f"PS1='$ '; . '{script}'; echo rea''dy\r", "ready\r\n")
        typed.type("hpcrun ", "hpcrun ")
        for keys, expected in TYPED:
            typed.type(keys, expected)


@pytest.mark.slow
def test_completion_works_in_real_fish(site: Caller) -> None:
    require_command("fish")
    script = site.project / "completion.fish"
    script.write_text(site("completion", "fish").out)
    program = f"source '{script}'; for line in $argv; complete -C $line; end"
    lines = [
        "hpcrun stat",
        "hpcrun submit my",
        "hpcrun submit --set precision=bf",
        "hpcrun parse tra",
    ]
    done = subprocess.run(
        ["fish", "-N", "-c", program, *lines],
        cwd=site.project,
        env=site.environ,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        *("status", "my job", "precision=bf16", "train.py")
    ]
