"""hpcrun completion."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrun.errors import InputError


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--install", is_flag=True, help="Install it where the shell loads it at startup.")
@click.option(
    "--command",
    "name",
    metavar="NAME",
    default="hpcrun",
    help="The alias that you type for hpcrun, if you have one.",
)
def command(shell: str, install: bool, name: str) -> int:
    """Print the shell script that completes verbs, options, jobs, runs and job ids.

    For this shell:  eval "$(hpcrun completion bash)"; zsh alike; fish:  hpcrun completion fish |
    source. For all to come: --install. It asks the hpcrun that wrote it, whatever the PATH has; run
    it again after hpcrun was moved.

    Where you call it as python -m hpcrun: alias hr='python -m hpcrun', and --command hr.
    """
    import re

    from hpcrun.cli.completion import SHELLS
    from hpcrun.cli.output import note, say

    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
        raise InputError(f"--command {name}: not the name of a command", fix="as in: --command hr")
    script = SHELLS[shell](prog_name=name).source()
    if not install:
        say(script.rstrip("\n"))
        return 0
    for path, is_changed in _install(shell, name, script):
        note(f"{'wrote' if is_changed else 'as it was'}: {path}")
    note(f"it works in each {shell} that starts from now on")
    return 0


def _install(shell: str, name: str, script: str) -> list[tuple[Path, bool]]:
    """Put the script where the shell finds it; return each file, and whether it was changed.

    fish reads a folder of its own; for bash and zsh a line is added to the user's own start file,
    once. Raises InputError, HpcrunError.
    """
    import os
    from shlex import quote

    from hpcrun.assets import config_dir, home_dir

    home = Path(home_dir(os.environ))
    if shell == "fish":
        base = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        target = base / "fish" / "completions" / f"{name}.fish"
        return [(target, _write(target, script))]
    target = config_dir(os.environ) / f"completion-{name}.{shell}"
    start = home / ".bashrc"
    if shell == "zsh":
        start = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    changed = _write(target, script)
    line = f"[ ! -r {quote(str(target))} ] || . {quote(str(target))}  # completion of hpcrun"
    return [(target, changed), (start, _add_line(start, line))]


def _write(path: Path, text: str) -> bool:
    from hpcrun.runs.records import write_file

    data = text.encode("utf-8", "surrogateescape")
    try:
        if path.is_file() and path.read_bytes() == data:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror}") from error
    write_file(path, data)
    return True


def _add_line(path: Path, line: str) -> bool:
    """Add a line to a file of the user's, through links and with its rights as they are."""
    data = line.encode("utf-8", "surrogateescape")
    try:
        before = path.read_bytes() if path.exists() else b""
        if data in before.splitlines():
            return False
        with path.open("ab") as file:
            file.write((b"" if not before or before.endswith(b"\n") else b"\n") + data + b"\n")
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}", fix=f"add this line where your shell starts: {line}"
        ) from error
    return True
