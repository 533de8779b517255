"""Parse #SBATCH lines as sbatch does: its grammar of quotes, and getopt's of options."""

from __future__ import annotations

import re

from msgspec import Struct

# Long options of sbatch 20.11 to 26.05; "=" takes a value, "?" may take one.
_LONG = """
account= acctg-freq= array= batch= bb= bbf= begin= chdir= cluster-constraint= clusters= comment=
consolidate-segments constraint= container= container-id= contiguous core-spec= cores-per-socket=
cpu-freq= cpus-per-gpu= cpus-per-task= deadline= delay-boot= dependency= distribution= error=
exclude= exclusive? export= export-file= external extra= extra-node-info= get-user-env? gid=
gpu-bind= gpu-freq= gpus= gpus-per-node= gpus-per-socket= gpus-per-task= gres= gres-flags= help
hint= hold ignore-pbs input= job-name= kill-on-invalid-dep= licenses= mail-type= mail-user=
mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? no-kill? no-requeue
nodefile= nodelist= nodes= ntasks=
ntasks-per-core= ntasks-per-gpu= ntasks-per-node= ntasks-per-socket=
oom-kill-step? open-mode= output= overcommit oversubscribe parsable partition= power= prefer=
priority= profile= propagate? qos= quiet reboot requeue reservation= resv-ports? segment= signal=
sockets-per-node= spread-job spread-segments stepmgr switches= tasks-per-node= test-only
thread-spec= threads-per-core= time= time-min= tmp= tres-bind= tres-per-task= uid= usage
use-min-nodes verbose version wait wait-all-nodes= wckey= wrap= x11?
"""
TAKES_VALUE = {word.rstrip("=?"): word[-1] in "=" for word in _LONG.split()}
MAY_TAKE_VALUE = {word.rstrip("?") for word in _LONG.split() if word.endswith("?")}
# Options of srun that pyxis and other plugins add to sbatch on some sites.
PLUGIN_PREFIXES = (
    "container-",
    "no-container",
    "uenv",
    "view",
    "environment",
    "bell",
    "image",
    "module",
    "volume",
)
SHORT = {
    "a": "array",
    "A": "account",
    "b": "begin",
    "B": "extra-node-info",
    "C": "constraint",
    "c": "cpus-per-task",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "h": "help",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "s": "oversubscribe",
    "S": "core-spec",
    "t": "time",
    "V": "version",
    "v": "verbose",
    "w": "nodelist",
    "W": "wait",
    "x": "exclude",
}


# What separates the components of a heterogeneous job. The script runs in the first one.
COMPONENT = re.compile(rb"(?m)^#SBATCH[ \t]+(?:hetjob|packjob)\b.*$")


class Directive(Struct, frozen=True):
    """An option of a #SBATCH line.

    Attributes:
        option: The long name as sbatch knows it; the name as written if sbatch does not know it.
        written: The name as written, e.g. ``-N``.
        value: The value after removal of quotes.
        known: sbatch knows the option.
        has_value: A value is given, even an empty one.
        start: The first byte of the option.
        line_start: The first byte of its line.
    """

    option: str
    written: str
    value: str
    start: int
    end: int
    line_start: int
    known: bool = True
    has_value: bool = False


def parse_directives(data: bytes) -> tuple[list[Directive], list[Directive]]:
    """Return the directives in effect, and those below the first command, which are ignored.

    >>> found, late = parse_directives(b"#!/bin/sh\\n#SBATCH -N2 --mem 4G # x\\n:\\n#SBATCH -n1\\n")
    >>> [(one.option, one.value) for one in found], [one.option for one in late]
    ([('nodes', '2'), ('mem', '4G')], ['ntasks'])
    """
    found: list[Directive] = []
    late: list[Directive] = []
    start, is_late = 0, False
    for raw in data.split(b"\n"):
        line = raw.decode("utf-8", "surrogateescape")
        if line.startswith("#SBATCH") and not re.match(r"#SBATCH\w", line):
            (late if is_late else found).extend(parse_line(line, start))
        elif line.strip() and not line.lstrip().startswith("#"):
            is_late = True
        start += len(raw) + 1
    return found, late


def parse_line(line: str, line_start: int) -> list[Directive]:
    """Return the options of a #SBATCH line."""
    words = split_words(line[len("#SBATCH") :])
    offset = line_start + len("#SBATCH")

    def place(begin: int, end: int) -> tuple[int, int]:
        text = line[len("#SBATCH") :]
        before = len(text[:begin].encode("utf-8", "surrogateescape"))
        inside = len(text[begin:end].encode("utf-8", "surrogateescape"))
        return offset + before, offset + before + inside

    found: list[Directive] = []
    index = 0
    while index < len(words):
        text, begin, end = words[index]
        index += 1
        name, equals, value = text.partition("=")
        has_value = bool(equals)
        known = True
        if text.startswith("--"):
            option = expand_abbreviation(name[2:])
            known = option in TAKES_VALUE
            takes = TAKES_VALUE.get(option, False)
            # An unknown option may be a plugin's; its value is the next word that is no option.
            guess = not known and not has_value and index < len(words)
            if (
                (takes or (guess and not words[index][0].startswith("-")))
                and not has_value
                and index < len(words)
            ):
                value, _, end = words[index]
                has_value = True
                index += 1
            found.append(
                Directive(option, name, value, *place(begin, end), line_start, known, has_value)
            )
        elif text.startswith("-") and len(text) > 1:
            letter, rest = text[1], text[2:]
            option = SHORT.get(letter, "")
            known = bool(option)
            if option and TAKES_VALUE.get(option):
                has_value = bool(rest)
                value = rest
                if not rest and index < len(words):
                    value, _, end = words[index]
                    has_value = True
                    index += 1
            elif option and rest and option not in MAY_TAKE_VALUE:
                words.insert(index, (f"-{rest}", begin, end))
                value = ""
            else:
                value = rest
            written = f"-{letter}" if option else text
            start, stop = place(begin, end)
            found.append(
                Directive(option or text, written, value, start, stop, line_start, known, has_value)
            )
        else:
            found.append(Directive("", text, text, *place(begin, end), line_start, False))
    return found


def expand_abbreviation(name: str) -> str:
    """Return the long option that an unambiguous beginning means, as getopt does.

    >>> expand_abbreviation("constrain"), expand_abbreviation("ntask-per-node")
    ('constraint', 'ntask-per-node')
    """
    if name in TAKES_VALUE:
        return name
    begun = [option for option in TAKES_VALUE if option.startswith(name)]
    return begun[0] if len(begun) == 1 and name else name


def split_words(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a #SBATCH line with their first and last positions.

    An unquoted ``#`` ends the line, and a backslash is removed, as in sbatch's ``get_argument``.

    >>> split_words(" -J 'a b' --mem=4G#x")
    [('-J', 1, 3), ('a b', 4, 9), ('--mem=4G', 10, 18)]
    """
    words: list[tuple[str, int, int]] = []
    index = 0
    while index < len(text):
        if text[index].isspace():
            index += 1
            continue
        if text[index] == "#":
            break
        begin, quote, word = index, "", ""
        while index < len(text):
            char = text[index]
            if char == "\\" and index + 1 < len(text):
                word += text[index + 1]
                index += 2
                continue
            if quote:
                if char == quote:
                    quote = ""
                else:
                    word += char
            elif char in "'\"":
                quote = char
            elif char.isspace() or char == "#":
                break
            else:
                word += char
            index += 1
        words.append((word, begin, index))
        if index < len(text) and text[index] == "#":
            break
    return words
