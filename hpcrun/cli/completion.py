"""Shell completion for bash, zsh and fish.

click determines which kind of value the position on the line takes. This module provides hpcrun's
own values and the shell scripts, and installs these. Completion never queries Slurm and prints no
error.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from hpcrun.assets import config_dir, home_dir, list_jobs, shipped_folder
from hpcrun.errors import InputError
from hpcrun.files import open_plain
from hpcrun.runs import ARRAY, RUN_ID, sweep_folder_name


def main() -> None:
    """Answer a shell's request, without any other output at the user's prompt."""
    try:
        shell, *words = sys.argv[1:]
        answer = SHELLS[shell](words).complete()
        os.write(1, f"{answer}\n".lstrip("\n").encode("utf-8", "surrogateescape"))
    except BaseException:  # Ctrl-C too; the verb itself reports a broken profile
        os._exit(1)
    os._exit(0)


# ---- shells ------------------------------------------------------------------------------------


class _Complete(ShellComplete, ABC):
    """The common part of all shells; ``words`` are the arguments that the shell's script passes."""

    def __init__(self, words: Sequence[str] = (), prog_name: str = "hpcrun") -> None:
        from hpcrun.cli.main import hpcrun

        super().__init__(hpcrun, {}, prog_name, "")
        self.words = words

    def source(self) -> str:
        """Return the shell's script, which calls this installation of hpcrun.

        It does not call another program named hpcrun on the PATH, such as that of HPCToolkit.
        ``python -c`` would search the current folder first, which may contain an hpcrun, too.
        """
        root = str(Path(__file__).parents[2])
        code = f"import sys; sys.path[0] = {root!r}; from hpcrun.cli.completion import main; main()"
        argv = shlex.join([sys.executable, "-c", code])
        template = (shipped_folder("templates") / f"completion.{self.name}").read_text(
            encoding="utf-8"
        )
        return template % {**self.source_vars(), "argv": argv}

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words of a line before the one that is being typed, and that one."""
        *words, _, current = self.words
        return words, current

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return the completions; those of ``--option=value`` include the option."""
        if "--" in args:
            return [_FILES]
        option, is_joined, _ = incomplete.partition("=")
        before = f"{option}=" if is_joined and option.startswith("--") else ""
        return [
            CompletionItem(before + item.value, item.type, _one_line(item.help))
            for item in super().get_completions(args, incomplete)
            if item.type == "file" or _one_line(item.value)
        ]

    def format_completion(self, item: CompletionItem) -> str:
        """Format an item for the shell's script: its type, a comma, its value."""
        # No space follows "key=".
        kind = "open" if item.value.endswith("=") and item.type == "plain" else item.type
        return f"{kind},{self.write(item)}"

    @abstractmethod
    def write(self, item: CompletionItem) -> str:
        """Format a value and its description."""


def _one_line(text: str | None) -> str:
    """Return the first line of a text if it is printable, else ""."""
    first = (text or "").partition("\n")[0]
    return first if first.isprintable() else ""


class BashComplete(_Complete):
    """bash replaces only the text after the last COMP_WORDBREAKS, such as "=", without quotes.

    bash before 4.4 lacks nosort, and before 4.0 (macOS) compopt: it does not complete files there.
    """

    name = "bash"

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words of the line up to the cursor; note the text that bash will replace."""
        replaced, line = self.words
        self.quote = _open_quote(line)
        *words, current = _split(line)
        self.kept = len(current) - len(_split(self.quote + replaced)[-1])
        return words[1:], current

    def write(self, item: CompletionItem) -> str:
        return quote_bash(item.value[self.kept :], self.quote)


def _split(line: str) -> list[str]:
    r"""Split a bash command line into words; the last one is being typed, and may be empty.

    >>> _split("hpcrun submit 'my jo"), _split("hpcrun ")
    (['hpcrun', 'submit', 'my jo'], ['hpcrun', ''])
    """
    *words, current = split_arg_string(line + "_")
    return [*words, current[:-1]]


def _open_quote(line: str) -> str:
    for quote in ("", "'", '"'):
        try:
            shlex.split(line + "_" + quote)
        except ValueError:
            continue
        return quote
    return ""


def quote_bash(text: str, quote: str) -> str:
    r"""Quote a text for bash after an open quote, or without one.

    >>> print(quote_bash("it's $1", ""), quote_bash("it's $1", '"'), quote_bash("it's", "'"))
    it\'s\ \$1 it's \$1 it'\''s
    """
    if quote == "'":
        return text.replace("'", r"'\''")
    return re.sub(r'(["$`\\])' if quote else r"([^\w@%+=:,./-])", r"\\\1", text)


class ZshComplete(_Complete):
    """zsh shows a value's description after a colon."""

    name = "zsh"

    def write(self, item: CompletionItem) -> str:
        value = item.value.replace("\\", "\\\\").replace(":", "\\:")
        return f"{value}:{item.help}" if item.help else value


class FishComplete(_Complete):
    """fish shows a value's description after a tab, and adds no space to "key="."""

    name = "fish"

    def write(self, item: CompletionItem) -> str:
        return f"{item.value}\t{item.help}" if item.help else item.value


SHELLS = {shell.name: shell for shell in (BashComplete, ZshComplete, FishComplete)}


# ---- shell start files ---------------------------------------------------------------------------


def install_script(shell: str, name: str, script: str) -> list[tuple[Path, bool]]:
    """Install the script where the shell finds it; return each file, and whether it changed.

    fish reads scripts from a folder; for bash and zsh a line is added to the user's start file.
    """
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
    place = shlex.quote(str(target))
    line = f"[ ! -r {place} ] || . {place}  # completion of hpcrun"
    return [(target, changed), (start, _add_line(start, line))]


def _write(path: Path, text: str) -> bool:
    from hpcrun.runs import write_file  # deferred: only --install writes

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


# ---- the values --------------------------------------------------------------------------------

# Completion of files and folders is delegated to the shell.
_FILES = CompletionItem("", "file")
# Number of newest runs whose records are read, for the Slurm id and state.
_OPENED = 30
_MOST = 200
# Length of the time stamp at the start of a run id: YYYYMMDD-HHMMSS-.
_STAMP = 16


def complete_values(kinds: Sequence[str], current: str) -> list[CompletionItem]:
    """Return the completions for a position that takes these kinds of values."""
    named = {
        "jobs": complete_jobs,
        "runs": complete_runs,
        "clusters": complete_clusters,
        "keys": complete_keys,
    }
    items = [
        CompletionItem(value, help=meaning)
        for kind in kinds
        if kind in named
        for value, meaning in named[kind](current)
        if value.startswith(current)
    ]
    # A job may be a file.
    takes_files = "files" in kinds or ("jobs" in kinds and not items)
    return [*items, _FILES] if takes_files else items


def complete_runs(current: str) -> list[tuple[str, str]]:
    """Return runs, newest first, by Slurm id and by the part of the run id after its time stamp."""
    from hpcrun.context import load_context
    from hpcrun.monitor import list_names

    runs_dir = load_context(os.environ, Path.cwd()).runs_dir
    names = list_names(runs_dir)
    items = []
    if not current or current[0].isdecimal():
        for name in islice(_newest(names, ""), _OPENED):
            record = _read(runs_dir / name / "submitted.json")
            found = re.search(rb'"job_id": ?"([0-9_]+)"', record)
            if found and found[1].startswith(current.encode()):
                items.append((found[1].decode(), _describe_run(runs_dir / name)))
    # Offer the whole id after a part of its date has been typed, else only the part after the date.
    by_date = bool(re.match(r"\d{5}", current))
    if not items or by_date:
        for name in islice(_newest(names, current), _MOST):
            value = name.removesuffix(ARRAY)
            what = _describe_run(runs_dir / name) if len(items) < _OPENED else ""
            items.append((value if by_date else value[_STAMP:], what))
    return items


def _newest(names: Sequence[str], current: str) -> Iterator[str]:
    """Yield folders of runs whose id, or its end, starts with ``current``, without tasks."""
    there = frozenset(names)
    for name in names:
        is_meant = name.startswith(current) or name.startswith(current, _STAMP)
        if (
            is_meant
            and RUN_ID.fullmatch(name.removesuffix(ARRAY))
            and sweep_folder_name(name) not in there
        ):
            yield name


def _describe_run(folder: Path) -> str:
    run_id = folder.name.removesuffix(ARRAY)
    when = f"{run_id[4:6]}-{run_id[6:8]} {run_id[9:11]}:{run_id[11:13]} UTC"
    name = run_id[_STAMP:].rpartition("-")[0]
    state = "sweep" if run_id != folder.name else _read_state(folder)
    return ", ".join(text for text in (name, state, when) if text)


def _read_state(folder: Path) -> str:
    seen = re.search(rb'"state": ?"([A-Z_]+)"', _read(folder / "cache" / "seen.json"))
    if seen:
        return seen[1].decode().lower()
    try:
        names = [entry.name for entry in os.scandir(folder / "attempts")]
    except OSError:
        return ""
    attempts = [name for name in names if name.isdecimal()]
    if not attempts:
        return "not begun"
    end = _read(folder / "attempts" / max(attempts, key=int) / "end.json")
    code = re.search(rb'"exit_code": ?(\d+)', end)
    return f"exit code {code[1].decode()}" if code else "running"


def _read(path: Path) -> bytes:
    try:
        with open_plain(path) as file:
            return file.read(1 << 14)
    except OSError:
        return b""


def complete_jobs(_: str) -> Iterable[tuple[str, str]]:
    """Return the names of jobs that can be submitted."""
    from hpcrun.context import find_project

    for name, (whose, path) in sorted(list_jobs(find_project(Path.cwd()), os.environ).items()):
        yield name, _read_key(path, "description") or whose


def complete_clusters(_: str) -> Iterable[tuple[str, str]]:
    """Return the names of the user's profiles, the project's own, and the sandbox."""
    from hpcrun.context import PROFILE, find_project

    profiles = sorted((config_dir(os.environ) / "clusters").glob("*.yaml"))
    found = {path.stem: "yours" for path in profiles}
    own = _read_key(find_project(Path.cwd()) / PROFILE, "name")
    if own:
        found[own] = "this project's"
    found.setdefault("sandbox", "a Slurm on this machine")
    return found.items()


def _read_key(path: Path, key: str) -> str:
    """Return the value of a top-level key if it is a plain scalar on one line, else ""."""
    found = re.search(rf"^{key}: *([^\n#|>&*!]+)".encode(), _read(path), re.MULTILINE)
    return found[1].decode("utf-8", "replace").strip().strip("\"'") if found else ""


def complete_keys(current: str) -> list[tuple[str, str]]:
    """Return the keys of a job for --set, each with its =, or the values of one."""
    import json

    schema = json.loads((shipped_folder("jobs") / "job.schema.json").read_text(encoding="utf-8"))
    found = dict(_keys(schema))
    key, has_value, _ = current.partition("=")
    if has_value:
        _, allowed = found.get(key, ("", []))
        return [(f"{key}={one}", "") for one in allowed]
    return [(f"{name}=", meaning) for name, (meaning, _) in found.items()]


def _keys(node: object, path: str = "") -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Walk a schema: dotted key -> (its description, its values)."""
    if not isinstance(node, dict):
        return
    properties = node.get("properties")
    if isinstance(properties, dict):
        for key, inner in properties.items():
            yield from _keys(inner, f"{path}.{key}" if path else key)
        return
    allowed = [str(value) for value in node.get("enum", ()) if value is not None]
    kinds = node.get("type")
    if kinds == "boolean" or (isinstance(kinds, list) and "boolean" in kinds):
        allowed = ["true", "false"]
    yield path, (str(node.get("description", "")), allowed)
