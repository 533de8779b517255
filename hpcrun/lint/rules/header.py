"""Rules for the #SBATCH lines: their syntax, values and output files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from hpcrun.lint.directives import (
    PLUGIN_PREFIXES,
    TAKES_VALUE,
    Directive,
    parse_line,
)
from hpcrun.lint.request import is_array, is_multi_node, list_indices
from hpcrun.lint.rule import Edit, Found, rule
from hpcrun.lint.script import Script, iterate_lines

SECTION = "Directives"
# Options of which the value is a text, in which any character is legal.
# Loading torch on several nodes alone may take minutes: a shorter limit is a slip, or a test.
_SHORT_MINUTES = 5
_TEXTS = {"comment", "wckey", "job-name"}
_FILES = ("output", "error", "input")


@rule(
    "late-directive",
    "error",
    "a `#SBATCH` line below the first command",
    section=SECTION,
    source="sbatch(1): sbatch stops at the first line that is neither blank nor a comment",
    fix="move the line above the first command",
    bad="#SBATCH -N 1\nmodule load cuda\n#SBATCH --time=1:00:00\n",
    good="#SBATCH -N 1\n#SBATCH --time=1:00:00\nmodule load cuda\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.late:
        if one.start > one.line_start and one.known and not _is_in_text(script, one.line_start):
            yield Found(one.start, f"sbatch ignores {_written(one)}: a command stands above it")


@rule(
    "misspelled-directive",
    "error",
    "a misspelled `#SBATCH`, e.g. `#SBTACH` or `#sbatch`",
    section=SECTION,
    source="sbatch(1): only lines that begin with #SBATCH are read",
    fix="write #SBATCH",
    bad="#SBATCH -N 1\n#SBTACH --gres=gpu:4\n",
    good="#SBATCH -N 1\n##SBATCH --gres=gpu:4\n",
)
def _(script: Script) -> Iterator[Found]:
    for start, line in _header_lines(script):
        found = re.match(r"#([A-Za-z]{4,8})(?=\s+-{1,2}\w)", line)
        if found is None or found[1] == "SBATCH":
            continue
        close = difflib.SequenceMatcher(None, found[1].upper(), "SBATCH").ratio()
        if close >= 0.8 and sorted(found[1].upper())[:1] != ["X"]:
            edit = Edit(start, start + len(found[0]), "#SBATCH")
            yield Found(start, f"{found[0]} is a comment: sbatch ignores the line", edit)


@rule(
    "spaced-directive",
    "note",
    "`# SBATCH` with a blank, which is a comment",
    section=SECTION,
    source="sbatch(1): only lines that begin with #SBATCH are read",
    fix="write #SBATCH, or ##SBATCH if the line is disabled on purpose",
    bad="#SBATCH -N 1\n# SBATCH --mem=4G\n",
    good="#SBATCH -N 1\n##SBATCH --mem=4G\n",
)
def _(script: Script) -> Iterator[Found]:
    for start, line in _header_lines(script):
        found = re.match(r"#[ \t]+SBATCH\s+(-\S+)", line)
        if found:
            yield Found(start, f"this line is a comment: sbatch ignores {found[1]}")


@rule(
    "indented-directive",
    "error",
    "an indented `#SBATCH` line",
    section=SECTION,
    source="sbatch(1): only lines that begin with #SBATCH are read",
    fix="remove the blanks before #SBATCH",
    bad="#SBATCH -N 1\n  #SBATCH --mem=4G\n",
    good="#SBATCH -N 1\n#SBATCH   --mem=4G\n",
)
def _(script: Script) -> Iterator[Found]:
    for start, line in _header_lines(script):
        found = re.match(r"[ \t]+(?=#SBATCH\s+-)", line)
        if found:
            edit = Edit(start, start + len(found[0]), "")
            yield Found(start, "sbatch ignores a directive that does not begin the line", edit)


@rule(
    "variable-in-directive",
    "error",
    "a variable in a `#SBATCH` line",
    section=SECTION,
    source="sbatch(1): bash does not read the directives, so $VAR is not expanded",
    fix="write the value, use a pattern such as %j, or pass the option on the command line",
    bad="#SBATCH --output=$HOME/logs/%j.out\n",
    good="#SBATCH --output=logs/%j.out\n#SBATCH --comment='costs $5'\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.directives:
        if one.option not in _TEXTS and re.search(r"\$(\w+|\{|\()", one.value):
            yield Found(one.start, f"sbatch does not expand {one.value}: it uses the text as it is")


@rule(
    "variable-in-job-name",
    "warning",
    "a variable or a file pattern in the job's name",
    section=SECTION,
    source="sbatch(1): neither $VAR nor %j is expanded in --job-name",
    fix="pass --job-name to sbatch on the command line",
    bad="#SBATCH --job-name=run-$SEED\n",
    good="#SBATCH --job-name=run-1\n#SBATCH --output=%x-%j.out\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("job-name")
    if one is not None and (found := re.search(r"\$\{?\w+\}?|%[AaJjNux]\b", one.value)):
        yield Found(one.start, f"the name contains the text {found[0]}, which is not expanded")


@rule(
    "tilde-in-directive",
    "error",
    "a `~` in the path of an output file",
    section=SECTION,
    source="sbatch(1): bash does not read the directives, so ~ is not expanded",
    fix="write the absolute path, or a path relative to the directory of submission",
    bad="#SBATCH --output=~/logs/%j.out\n",
    good="#SBATCH --output=logs/%j.out\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.directives:
        if one.option in (*_FILES, "chdir") and one.value.startswith("~"):
            yield Found(one.start, f"sbatch does not expand ~: {one.value} is a folder named ~")


@rule(
    "unknown-option",
    "error",
    "an option that sbatch does not have",
    section=SECTION,
    source="sbatch(1), and its answer: unrecognized option",
    fix="write the option that was meant",
    bad="#SBATCH --ntask-per-node=4\n",
    good="#SBATCH --ntasks-per-node=4\n#SBATCH --constrain=a100\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.directives:
        name = one.written.lstrip("-")
        if one.known or not one.written.startswith("-"):
            continue
        if not one.written.startswith("--"):
            yield Found(one.start, f"sbatch has no option {one.written}: it refuses the script")
            continue
        if name.startswith(PLUGIN_PREFIXES):
            continue
        dashed = name.replace("_", "-")
        close = difflib.get_close_matches(dashed, TAKES_VALUE, 1, cutoff=0.8)
        renamed = {"workdir": "chdir", "cpus": "cpus-per-task", "gpu": "gpus", "memory": "mem"}
        meant = renamed.get(dashed) or (close[0] if close else "")
        if meant:
            text = f"sbatch has no option --{name}: it refuses the script; --{meant} was meant"
            edit = None
            if dashed == meant:
                edit = Edit(one.start, one.start + len(one.written.encode()), f"--{meant}")
            yield Found(one.start, text, edit)
        elif name not in ("cpu-bind", "mpi", "label", "unbuffered", "kill-on-bad-exit", "exact"):
            text = f"sbatch has no option --{name}, unless a plugin of the site adds it"
            yield Found(one.start, text, severity="warning")


@rule(
    "srun-option-in-directive",
    "error",
    "an option of srun in a `#SBATCH` line",
    section=SECTION,
    source="sbatch(1), and its answer: unrecognized option",
    fix="pass the option to srun",
    bad="#SBATCH --cpu-bind=cores\n",
    good="#SBATCH --hint=nomultithread\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.directives:
        name = one.written.lstrip("-").replace("_", "-")
        if name in ("cpu-bind", "mpi", "label", "unbuffered", "kill-on-bad-exit", "exact", "pty"):
            yield Found(one.start, f"--{name} is an option of srun: sbatch refuses the script")


@rule(
    "container-option-in-directive",
    "warning",
    "an option of pyxis in a `#SBATCH` line",
    section=SECTION,
    source="pyxis, README: sbatch has the options only where the site enables them (pyxis#55)",
    fix="pass the option to srun",
    bad="#SBATCH --container-image=pytorch.sqsh\nsrun python t.py\n",
    good="srun --container-image=pytorch.sqsh python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.directives:
        name = one.written.lstrip("-")
        if name.startswith(("container-", "no-container")):
            yield Found(one.start, f"on many sites sbatch refuses --{name}, an option of pyxis")
            return


@rule(
    "text-in-directive",
    "error",
    "a word in a `#SBATCH` line that is not an option",
    section=SECTION,
    source="sbatch 22.05: Invalid directive found in batch script",
    fix="write --OPTION=VALUE with two ASCII dashes and no blanks around =",
    bad="#SBATCH nodes=2\n",
    good="#SBATCH --nodes=2   # a comment\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.directives:
        if one.written and not one.written.startswith("-"):
            if re.match("[\u2010-\u2015\u2212]", one.written) or _is_template(script, one):
                continue
            yield Found(one.start, f"sbatch refuses the script: {one.written} is not an option")


@rule(
    "unicode-dash",
    "error",
    "a dash that is not ASCII in a `#SBATCH` line or before an option",
    section=SECTION,
    source="sbatch 22.05 refuses it in directives; programs take it for an ordinary word",
    fix="replace it with - or --",
    bad="#SBATCH \u2013nodes=2\n",
    good='#SBATCH --nodes=2\necho "2 \u2013 3"\n',
)
def _(script: Script) -> Iterator[Found]:
    for start, line in iterate_lines(script.data):
        is_directive = line.startswith(("#SBATCH", "#!"))
        if not is_directive and line.lstrip().startswith("#"):
            continue
        code = re.split(r"\s#", line)[0]
        pattern = "(?<=\\s)-?[\u2010-\u2015\u2212][\u2010-\u2015\u2212-]?(?=\\w)"
        for found in re.finditer(pattern, code if is_directive else _outside_quotes(code)):
            at = start + len(line[: found.start()].encode("utf-8", "surrogateescape"))
            name = line[found.end() :].split("=")[0].split()[0]
            dashes = "--" if len(name) > 1 else "-"
            edit = Edit(at, at + len(found[0].encode()), dashes)
            yield Found(at, f"{found[0]}{name} begins with a dash that is no ASCII -", edit)


@rule(
    "short-option-equals",
    "error",
    "a short option with `=`, e.g. `-N=2`",
    section=SECTION,
    source='getopt(3): the value is "=2"; sbatch 22.05: "=2" is not a valid node count',
    fix="write -N 2, or the long option with =",
    bad="#SBATCH -N=2\n",
    good="#SBATCH -N 2\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.directives:
        if not one.written.startswith("--") and one.known and one.value.startswith("="):
            edit = Edit(one.start + len(one.written), one.start + len(one.written) + 1, " ")
            yield Found(one.start, f"the value of {one.written} is {one.value!r}, with the =", edit)


@rule(
    "missing-value",
    "error",
    "an option without the value that it needs",
    section=SECTION,
    source="sbatch 22.05: option requires an argument",
    fix="write the value, or remove the line",
    bad="#SBATCH --nodes=\n",
    good="#SBATCH --nodes=2\n#SBATCH --mail-user=\n",
)
def _(script: Script) -> Iterator[Found]:
    needed = {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "time", "mem", "array"}
    needed |= {"gpus", "gpus-per-node", "gpus-per-task", "mem-per-cpu", "cpus-per-gpu"}
    for one in script.directives:
        if not one.known or not TAKES_VALUE.get(one.option):
            continue
        if not one.has_value or (one.option in needed and not one.value.strip()):
            yield Found(one.start, f"{one.written} has no value: sbatch refuses the script")


@rule(
    "unmatched-quote",
    "error",
    "a quote in a `#SBATCH` line that is not closed",
    section=SECTION,
    source="sbatch 22.05: fatal: Unmatched ' in ...",
    fix="close or remove the quote",
    bad="#SBATCH --job-name=it's\n",
    good='#SBATCH --job-name="it\'s"\n',
)
def _(script: Script) -> Iterator[Found]:
    for start, line in _header_lines(script):
        if not line.startswith("#SBATCH"):
            continue
        quote = ""
        index = len("#SBATCH")
        while index < len(line):
            char = line[index]
            if char == "\\":
                index += 2
                continue
            if quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == "#":
                break
            index += 1
        if quote:
            yield Found(start, f"sbatch refuses the script: {quote} is not closed")


@rule(
    "hash-in-value",
    "warning",
    "an unquoted `#` inside the value of a directive",
    section=SECTION,
    source="sbatch's get_argument: an unquoted # ends the line, also without a blank before it",
    fix="quote the value",
    bad="#SBATCH --job-name=run#3\n",
    good="#SBATCH --job-name=run3 # the third\n",
)
def _(script: Script) -> Iterator[Found]:
    for start, line in _header_lines(script):
        if line.startswith("#SBATCH") and (found := re.search(r"[^\s#]#", line[7:])):
            at = 7 + found.start()
            words = parse_line(line, start)
            if (
                words
                and words[-1].end <= start + len(line[: at + 1].encode())
                and not re.search(r"['\"]", line[: at + 1])
            ):
                text = f"sbatch reads only {words[-1].value!r}: an unquoted # ends the line"
                yield Found(words[-1].start, text)


@rule(
    "dos-line-ends",
    "error",
    "DOS line ends",
    section=SECTION,
    source="sbatch 22.05: Batch script contains DOS line breaks",
    fix="dos2unix SCRIPT",
    bad="#!/bin/bash\r\n#SBATCH -N 1\r\n",
    good="#!/bin/bash\n#SBATCH -N 1\n",
)
def _(script: Script) -> Iterator[Found]:
    at = script.data.find(b"\r\n")
    if at >= 0:
        whole = script.text.replace("\r\n", "\n")
        edit = Edit(0, len(script.data), whole)
        yield Found(at, "sbatch refuses a script with DOS line ends", edit)


@rule(
    "missing-interpreter",
    "error",
    "a first line that is not `#!` and an interpreter",
    section=SECTION,
    source="sbatch 22.05: This does not look like a batch script",
    fix="begin the script with #!/bin/bash",
    bad="\n#SBATCH -N 1\nhostname\n".replace("\n#", " \n#", 1),
    good="#!/bin/bash\n#SBATCH -N 1\nhostname\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.text.startswith("#!"):
        yield Found(0, "sbatch refuses a script that does not begin with #!")


@rule(
    "sh-with-bash-syntax",
    "warning",
    "`#!/bin/sh` with syntax that only bash has",
    section=SECTION,
    source="POSIX has no arrays, no [[ ]] and no source; on Debian and Ubuntu sh is dash",
    fix="write #!/bin/bash",
    bad="#!/bin/sh\nA=(1 2)\necho ${A[0]}\n",
    good="#!/bin/sh\nA=1\necho $A\n",
)
def _(script: Script) -> Iterator[Found]:
    if not re.match(r"#!\s*(/usr)?/bin/(env\s+)?sh\b", script.shebang):
        return
    for one in script.assignments:
        if one.items is not None:
            yield Found(one.start, "sh has no arrays: where sh is dash, the script fails here")
            return
    for command in script.commands:
        if command.name == "source":
            yield Found(command.start, "sh has no source where it is dash: write a dot")
            return
    found = re.search(rb"(?m)^[^#\n]*\[\[ ", script.data)
    if found:
        yield Found(found.end() - 3, "sh has no [[ ]]: where sh is dash, the test fails")


@rule(
    "bad-time-limit",
    "error",
    "a time limit that sbatch cannot read",
    section=SECTION,
    source="sbatch(1): minutes, minutes:seconds, h:m:s, days-hours, days-hours:minutes[:seconds]",
    fix="write hours:minutes:seconds, e.g. --time=2:00:00",
    bad="#SBATCH --time=2h\n",
    good="#SBATCH --time=2-00\n",
)
def _(script: Script) -> Iterator[Found]:
    for name in ("time", "time-min"):
        one = script.option(name)
        if one is None or not one.value or "$" in one.value:
            continue
        legal = r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|(?i:infinite|unlimited)|-1"
        if not re.fullmatch(legal, one.value.strip()) and not _is_placeholder(one.value):
            yield Found(one.start, f"sbatch refuses the time limit {one.value}")


@rule(
    "minutes-meant-as-hours",
    "warning",
    "a time limit in minutes that looks like hours",
    section=SECTION,
    source="sbatch(1): a single number is minutes, and A:B is minutes:seconds",
    fix="write hours:minutes:seconds, e.g. --time=24:00:00",
    bad="#SBATCH --time=24:00\n",
    good="#SBATCH --time=24:00:00\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("time")
    if one is None:
        return
    found = re.fullmatch(r"(\d+):(\d+)", one.value)
    if found and found[2] == "00" and int(found[1]) in (6, 8, 12, 18, 24, 36, 48, 72, 96, 120):
        yield Found(one.start, f"{one.value} is {int(found[1])} minutes, not hours")
    elif one.value in ("12", "24", "36", "48", "72", "96"):
        yield Found(one.start, f"{one.value} is {one.value} minutes, not hours")
    elif found and int(found[1]) < _SHORT_MINUTES and is_multi_node(script):
        yield Found(one.start, f"{one.value} is {int(found[1])} min {int(found[2])} s, not hours")


@rule(
    "no-time-limit",
    "note",
    "a job without a time limit",
    section=SECTION,
    source="sbatch(1): the limit is that of the partition; a short limit helps to start early",
    fix="set --time to a little more than the job needs",
    bad="#SBATCH -N 1\n#SBATCH --gres=gpu:1\npython train.py\n",
    good="#SBATCH -N 1\n#SBATCH --time=4:00:00\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if script.directives and not script.has("time"):
        text = "no --time: the partition's default or maximum applies, and backfill skips the job"
        yield Found(script.directives[0].line_start, text)


@rule(
    "zero-time-limit",
    "warning",
    "a time limit of zero",
    section=SECTION,
    source="sbatch(1): a limit of zero requests no limit",
    fix="set the time that the job needs",
    bad="#SBATCH --time=00:00:00\n",
    good="#SBATCH --time=00:10:00\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("time")
    if one is not None and re.fullmatch(r"0+(:0+)*|0+-0+(:0+)*", one.value):
        yield Found(one.start, "a limit of zero requests no limit, which most partitions refuse")


@rule(
    "duplicate-directive",
    "warning",
    "the same option twice with different values",
    section=SECTION,
    source="sbatch uses the last one",
    fix="remove the other",
    bad="#SBATCH -p debug\n#SBATCH --partition=gpu\n",
    good="#SBATCH --mail-type=BEGIN\n#SBATCH --mail-type=END\n",
)
def _(script: Script) -> Iterator[Found]:
    seen: dict[str, Directive] = {}
    for one in script.directives:
        if not one.known or one.option in ("mail-type", "verbose", "signal", "profile"):
            continue
        before = seen.get(one.option)
        if before is not None and before.value != one.value:
            line = script.describe_line(before.start, one.start)
            text = f"{one.written} {one.value} replaces {before.value} of {line}"
            yield Found(one.start, text)
        seen[one.option] = one


@rule(
    "placeholder",
    "warning",
    "a value that was meant to be replaced",
    section=SECTION,
    source="copied templates",
    fix="write the value for your account and site",
    bad="#SBATCH --account=<your_account>\n",
    good="#SBATCH --account=abc123\n",
)
def _(script: Script) -> Iterator[Found]:
    lines: set[int] = set()
    for one in script.directives:
        if _is_template(script, one) and one.line_start not in lines:
            lines.add(one.line_start)
            yield Found(one.start, "the line is a template that a program must fill in")
        elif one.known and _is_placeholder(one.value):
            yield Found(one.start, f"{one.written} still has the placeholder {one.value}")


@rule(
    "bad-mail-type",
    "error",
    "a value of --mail-type that sbatch does not know",
    section=SECTION,
    source="sbatch 22.05: Invalid --mail-type specification",
    fix="use NONE, BEGIN, END, FAIL, REQUEUE, ALL, TIME_LIMIT_80 ...",
    bad="#SBATCH --mail-type=DONE\n",
    good="#SBATCH --mail-type=END,FAIL\n",
)
def _(script: Script) -> Iterator[Found]:
    known = {"NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "STAGE_OUT", "INVALID_DEPEND"}
    known |= {"TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"}
    for one in script.directives:
        if one.option == "mail-type" and one.value and not _is_placeholder(one.value):
            wrong = [word for word in one.value.split(",") if word.strip().upper() not in known]
            if wrong:
                yield Found(one.start, f"sbatch refuses --mail-type={wrong[0]}")


@rule(
    "mail-without-type",
    "note",
    "--mail-user without --mail-type",
    section=SECTION,
    source="sbatch(1): without --mail-type no mail is sent",
    fix="add --mail-type=END,FAIL",
    bad="#SBATCH --mail-user=a@b.org\n",
    good="#SBATCH --mail-user=a@b.org\n#SBATCH --mail-type=END\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("mail-user")
    if one is not None and one.value and not script.has("mail-type"):
        yield Found(one.start, "no mail is sent without --mail-type")


@rule(
    "bad-mail-user",
    "warning",
    "a value of --mail-user that is no address",
    section=SECTION,
    source="sbatch(1), --mail-user: a user or an address; several are separated by commas",
    fix="write one address",
    bad="#SBATCH --mail-user=ada@b.org@b.org\n#SBATCH --mail-type=END\n",
    good="#SBATCH --mail-user=ada@b.org,bob@b.org\n#SBATCH --mail-type=END\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("mail-user")
    for part in one.value.split(",") if one is not None else ():
        reserved = re.search(r"(?i)@(.*\.)?example(\.(com|org|net|edu))?$", part)
        if one is not None and (part.count("@") > 1 or reserved):
            yield Found(one.start, f"{part} is no address: no mail will arrive")
            return


@rule(
    "wrap-in-script",
    "warning",
    "--wrap in a `#SBATCH` line",
    section=SECTION,
    source="sbatch reads --wrap on the command line only, before it reads the script",
    fix="remove --wrap",
    bad='#SBATCH --wrap "sleep 60"\npython train.py\n',
    good="#SBATCH --comment=wrap\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("wrap")
    if one is not None:
        yield Found(one.start, "--wrap has no effect here: sbatch runs the script")


@rule(
    "output-folder",
    "note",
    "an output file in a folder that must exist before submission",
    section="Output files",
    source="Slurm 23.02 and later create the folder; before, the job fails without any output",
    fix="mkdir -p the folder before sbatch",
    bad="#SBATCH --output=logs/%j.out\n",
    good="#SBATCH --output=%j.out\n",
)
def _(script: Script) -> Iterator[Found]:
    seen: set[str] = set()
    for name in ("output", "error"):
        one = script.option(name)
        folder = one.value.rpartition("/")[0] if one is not None else ""
        if one is None or not folder or folder in seen or folder in (".", "..", "/tmp", "/dev"):
            continue
        if one.value.startswith(("~", "$")) or "$" in folder or _is_placeholder(one.value):
            continue
        seen.add(folder)
        made = [
            each
            for each in script.commands
            if each.name == "mkdir" and any(_same_folder(word, folder) for word in each.args)
        ]
        if made:
            text = f"{folder} must exist before the job starts: mkdir in the script is too late"
            yield Found(one.start, text, severity="warning")
        else:
            text = f"before Slurm 23.02 the job fails without any output if {folder} does not exist"
            yield Found(one.start, text)


@rule(
    "output-overwritten",
    "note",
    "an output file with the same name for every job",
    section="Output files",
    source="sbatch(1), --open-mode: the file is truncated unless the site or the job appends",
    fix="add %j to the name",
    bad="#SBATCH --output=train.log\n",
    good="#SBATCH --output=train-%j.log\n",
)
def _(script: Script) -> Iterator[Found]:
    if script.value("open-mode") == "append" or is_array(script):
        return
    one = script.option("output")
    if one is None or not one.value or "$" in one.value or one.value.startswith("/dev/"):
        return
    if not re.search(r"%\d*[jJAst]", one.value):
        yield Found(one.start, f"the next job overwrites {one.value}")


@rule(
    "output-shared-by-array",
    "warning",
    "an output file that all tasks of an array write",
    section="Output files",
    source="sbatch(1), filename pattern: %A is the same for all tasks, %a is the index",
    fix="add %A_%a to the name",
    bad="#SBATCH --array=0-9\n#SBATCH --output=log_%A.txt\npython t.py $SLURM_ARRAY_TASK_ID\n",
    good="#SBATCH --array=0-9\n#SBATCH --output=log_%A_%a.txt\npython t.py $SLURM_ARRAY_TASK_ID\n",
)
def _(script: Script) -> Iterator[Found]:
    indices = list_indices(script)
    for name in ("output", "error"):
        one = script.option(name)
        if one is None or not indices or len(indices) < 2 or one.value.startswith("/dev/"):
            continue
        if not re.search(r"%\d*[jJa]", one.value):
            yield Found(one.start, f"all {len(indices)} tasks write to {one.value}")


@rule(
    "array-pattern-without-array",
    "note",
    "`%a` or `%A` in the name of an output file of a job that is no array",
    section="Output files",
    source="sbatch 22.05 writes 4294967294 for %a",
    fix="use %j, or submit with --array",
    bad="#SBATCH --output=log_%A_%a.txt\npython t.py\n",
    good="#SBATCH --output=log_%A_%a.txt\npython t.py $SLURM_ARRAY_TASK_ID\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("output")
    if one is None or "%a" not in one.value or is_array(script):
        return
    if not any(use.name.startswith("SLURM_ARRAY") for use in script.uses):
        yield Found(one.start, "without --array, %a is 4294967294: the job is no array here")


@rule(
    "unknown-pattern",
    "warning",
    "a `%` in the name of an output file that is no pattern of Slurm",
    section="Output files",
    source="sbatch(1), filename pattern: %%, %A, %a, %b, %J, %j, %N, %n, %s, %t, %u, %x",
    fix="write one of Slurm's patterns",
    bad="#SBATCH --output=out/u%-%j.txt\n",
    good="#SBATCH --output=out/%u-%5j.txt\n",
)
def _(script: Script) -> Iterator[Found]:
    for name in ("output", "error"):
        one = script.option(name)
        if one is not None and not _is_placeholder(one.value):
            rest = re.sub(r"%%|%\d*[AabJjNnrstuxW]", "", one.value)
            if found := re.search("%.?", rest):
                yield Found(one.start, f"{found[0]} is no pattern: the name keeps or loses it")


@rule(
    "output-on-local-disk",
    "warning",
    "an output file in /tmp",
    section="Output files",
    source="/tmp is the local disk of the first node, and may be removed with the job",
    fix="write to a shared file system",
    bad="#SBATCH --output=/tmp/%j.out\n",
    good="#SBATCH --output=%j.out\n",
)
def _(script: Script) -> Iterator[Found]:
    for name in ("output", "error"):
        one = script.option(name)
        if one is not None and one.value.startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):
            yield Found(one.start, f"{one.value} is on the local disk of a compute node")


def _written(one: Directive) -> str:
    text = one.written
    if one.has_value and one.value:
        text += (" " if not text.startswith("--") else "=") + one.value
    return text


def _is_in_text(script: Script, at: int) -> bool:
    """Return True if a line is part of a string or a here-document, e.g. of a generated script."""
    if script.tree is None:
        return False
    node = script.tree.root_node.descendant_for_byte_range(at, at + 1)
    return bool(node is not None and node.type != "comment")


def _header_lines(script: Script) -> Iterator[tuple[int, str]]:
    """Yield the lines above the first command."""
    for start, line in iterate_lines(script.data):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield start, line


def _outside_quotes(line: str) -> str:
    """Return a line with the content of quotes blanked out."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", lambda found: "\0" * len(found[0]), line)


def _same_folder(word: str, folder: str) -> bool:
    return word.rstrip("/").removeprefix("./") == folder.rstrip("/").removeprefix("./")


def _is_template(script: Script, one: Directive) -> bool:
    """Return True for a directive with the braces of a template, e.g. Jinja's."""
    line = script.data[one.line_start :].split(b"\n", 1)[0]
    return b"{{" in line or b"{%" in line


def _is_placeholder(value: str) -> bool:
    """Return True for values such as <account>, YOUR_ACCOUNT and {{ name }}.

    >>> [_is_placeholder(one) for one in ("<you>", "{{ x }}", "your_account", "a100", "{a}-%j")]
    [True, True, True, False, True]
    >>> [_is_placeholder(one) for one in ("X", "JOB_NAME", "a_your_qos", "OUT/x.txt", "yourself")]
    [True, True, True, False, False]
    """
    return bool(
        re.search(r"<[\w .@-]*[A-Za-z][\w .@-]*>|\{\{.*\}\}|\{[A-Za-z_]\w*\}|(?i:x{5,})", value)
        or re.search(r"(?i)\[(todo|your|my)\b[^]]*\]", value)
        or re.search(r"(?i)(^|[/_-])your[-_]\w|name[-_]of[-_](the|your|my)[-_]", value)
        or re.fullmatch(r"\(?(([A-Z]+_)*(NAME|PATH|MEMORY|CONSTRAINT)|X)\)?", value)
        or re.fullmatch(r"\(?(ACCOUNT|PARTITION|QOS|TIME|PROJECT|EMAIL)\)?", value)
        or re.fullmatch(
            r"(?i)(your|my)[-_ ]?(account|project|partition|queue|email|user|name|qos)"
            r"([-_@].*)?|(?i:XXX+|TODO|CHANGE_?ME|REPLACE_?ME)",
            value,
        )
    )
