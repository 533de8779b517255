"""The completion script of a shell: made for this hpcrun, and put where the shell reads it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

from hpcrun import __version__
from hpcrun.assets import config_dir, home_dir, shipped
from hpcrun.errors import InputError
from hpcrun.runs.store import write_file

_MARK = "# completion of hpcrun"


def script(shell: str, command: str) -> str:
    """The script that completes a command's words by asking this very hpcrun.

    Whatever else has the name hpcrun on the PATH is not called: HPCToolkit has a program of that
    name. Raises InputError for a name that is none of a command.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", command):
        raise InputError(
            f"--command {command}: not the name of a command", fix="as in: --command hr"
        )
    text = (shipped("templates") / f"completion.{shell}").read_text(encoding="utf-8")
    for name, value in (
        ("ARGV", _argv()),
        ("VERSION", __version__),
        ("FUNCTION", "hpcrun_complete_" + re.sub(r"[^A-Za-z0-9_]", "_", command)),
        ("COMMAND", command),
    ):
        text = text.replace(f"@{name}@", value)
    return text


def _argv() -> str:
    """How to call hpcrun/cli/complete.py.

    Without site (-S), which takes longer than the answer where it has much to set up; so the
    folders of what is imported are named.
    """
    folders = [str(Path(__file__).parents[2])]
    for module in ("click", "msgspec", "yaml"):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parents[1]))
    named = list(dict.fromkeys(folders))
    code = f"import sys; sys.path[:1] = {named!r}; from hpcrun.cli.complete import main; main()"
    return shlex.join([sys.executable, "-S", "-E", "-c", code])


def install(shell: str, command: str) -> list[tuple[str, bool]]:
    """Put the script where the shell finds it: each file, and whether it was changed.

    fish reads a folder of its own; for bash and zsh a line is added to the user's own start file,
    once. Raises InputError, HpcrunError.
    """
    made = script(shell, command)
    home = Path(home_dir(os.environ))
    if shell == "fish":
        base = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        target = base / "fish" / "completions" / f"{command}.fish"
        return [(str(target), _put(target, made))]
    target = config_dir(os.environ) / f"completion-{command}.{shell}"
    start = home / ".bashrc"
    if shell == "zsh":
        start = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    changed = _put(target, made)
    quoted = shlex.quote(str(target))
    line = f"[ ! -r {quoted} ] || . {quoted}  {_MARK}"
    return [(str(target), changed), (str(start), _add_line(start, line))]


def _put(path: Path, text: str) -> bool:
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
