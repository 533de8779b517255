"""The house style, as far as a test can hold it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from tests.source import PACKAGE, REFERENCE, ROOT, TRACER, modules, name, tree


def has_one_sentence(path: Path) -> bool:
    first, _, _ = (ast.get_docstring(tree(path)) or "").partition("\n\n")
    return first.endswith((".", ":")) and "\n" not in first.rstrip()


def test_every_module_has_a_docstring_of_one_sentence() -> None:
    named = [path for path in modules() if path.name not in ("__init__.py", "__main__.py")]
    assert named and [name(path) for path in named if not has_one_sentence(path)] == []


def test_public_functions_and_classes_have_docstrings() -> None:
    bare = [
        f"{name(path)}: {node.name}"
        for path in modules()
        for node in tree(path).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert bare == []


def test_no_module_has_a_vague_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
    assert [name(path) for path in PACKAGE.rglob("*.py") if path.stem in vague] == []


def test_no_file_contains_paths_of_a_developer() -> None:
    files = [*modules(), TRACER, *REFERENCE.glob("*.py"), *(ROOT / "templates").iterdir()]
    files += [*(ROOT / "jobs").iterdir(), *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    found = [
        name(path) for path in files if re.search(r"/work/(main|shared)|/root/", path.read_text())
    ]
    assert found == []


TOP_LEVEL = {
    *(".ci", ".github", ".gitignore", "bench", "docs", "examples", "hostfiles", "hpcrun", "jobs"),
    *("templates", "tests", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE"),
    *("MANIFEST.in", "Makefile", "README.md", "SECURITY.md", "constraints.txt", "pyproject.toml"),
    *("ruff.toml", "setup.cfg"),
}


def test_repository_has_no_other_top_level_entries() -> None:
    """Files that a test wrote into the checkout must not be committed."""
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    tracked = {line.partition("/")[0].strip('"') for line in done.stdout.splitlines()}
    assert tracked <= TOP_LEVEL


# What a shell function may set beyond its own variables: the heads of the files name them.
SHELL_STATE = {
    "batch.sh": {"attempt_dir", "child", "stopped", "warned", "overdue"},
    "harness.sh": {"attempt_dir", "child", "stopped", "released"},
    "hosts.sh": {"attempt_dir", "child", "stopped"},
    "local.sh": {"hpcrun_exported"},
    "script.sh": {"stopped"},
    "usage.sh": {
        *("value", "cpu_of", "cpus", "cpu_time", "cpu_ticks"),
        *("memory_of", "memory_used", "memory_total"),
        *("nvidia", "nvidia_pid", "has_header", "gpu_samples", "memory_peak"),
        *("gpu_util", "gpu_memory", "gpu_peak", "gpu_power", "gpu_names", "gpu_number"),
    },
}


def set_by(function: str) -> set[str]:
    """Return the variables that a shell function sets and does not declare; not environment's.

    >>> sorted(set_by("f() {\\n    local a b='x y'\\n    a=1 c='d=2' # e=3\\n    read -r b g\\n}"))
    ['c', 'g']
    """
    code = re.sub(r"(?m)(^|\s)#\s.*$", "", function)
    code = re.sub(r"""'[^']*'|"(\\.|[^"\\])*\"""", "''", code)
    declared = {
        word.partition("=")[0]
        for names in re.findall(r"\blocal ([^\n;]+)", code)
        for word in names.split()
    }
    found = set(re.findall(r"(?<![\w$/.\-{#])([a-z_]\w*)(?:\[[^]]*\])?\+?=(?!=)", code))
    for names in re.findall(r"\b(?:read|mapfile)((?: -\w+(?: [\d']+)?)*(?: \w+)+)", code):
        found |= {word for word in names.split() if not re.match(r"[-\d']", word)}
    for pair in re.findall(r"\b(?:for|printf -v) (\w+)|\bexec \{(\w+)\}", code):
        found |= set(filter(None, pair))
    return {one for one in found - declared if one != "_" and not one.isupper()}


def test_shell_functions_change_no_other_variables() -> None:
    scripts = sorted((ROOT / "templates").glob("*.sh"))
    functions = {
        (path.name, found[1]): found[0]
        for path in scripts
        for found in re.finditer(r"(?ms)^([\w-]+)\(\) \{(?: .*?\}$|\n.*?^\})", path.read_text())
    }
    assert len(functions) > 60
    more = {
        where: extra
        for where, text in functions.items()
        if (extra := set_by(text) - SHELL_STATE.get(where[0], set()))
    }
    assert more == {}


def test_no_substitution_contains_a_case_statement() -> None:
    """The first pattern's parenthesis would end `>(...)` before bash 5.2, `$(...)` in 4.2.0."""
    for path in sorted((ROOT / "templates").glob("*.sh")):
        text = path.read_text()
        for begin in re.finditer(r"[<>$]\(", text):
            depth, end = 1, begin.end()
            while depth and end < len(text):
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            inside = re.sub(r"#.*", "", text[begin.end() : end])
            line = text.count("\n", 0, begin.start()) + 1
            assert not re.search(r"\bcase\b", inside), f"{path.name}:{line}"


def test_scripts_run_in_bash_4_2() -> None:
    """What came with 4.3 to 5.3: namerefs, wait -n, negative indices that are set, and the like."""
    newer = (
        r"wait -[nfp]|\b(?:local|declare|typeset) -\w*n|\b(?:mapfile|readarray)\b[^|;]* -d|\$\{ "
        r"|\$\{\w+(?:\[[^]]*\])?@\w\}|\b(?:EPOCHSECONDS|SRANDOM|BASH_MONOSECONDS)\b|\w\[-\d+\]\+?="
    )
    for path in sorted((ROOT / "templates").glob("*.sh")) + sorted(
        (ROOT / "templates").glob("*.j2")
    ):
        code = re.sub(r"(?m)(?:^|\s)#.*|\{[{%#].*?[}%#]\}", "", path.read_text())
        assert not re.findall(newer, code), path.name


def test_arrays_that_may_be_empty_are_iterated_by_index() -> None:
    """Before bash 4.4 the values of an empty array end a script under set -u; indices do not."""
    # One value at least.
    filled = {
        "alike",
        "cores",
        "fields",
        "gpu_fields",
        "harness.sh: hosts",
        "hpcrun_own",
        "kept",
        "lines",
        "facts",
        "overwritten",
        "own",
        "parts",
        "paths",
        "pids",
        "rows",
        "words",
    }
    scripts = sorted((ROOT / "templates").glob("*.sh"))
    spelled_out = {
        f"{path.name}: {array}"
        for path in scripts
        # ${x[@]+"${x[@]}"} is no such expansion.
        for array in re.findall(r"(?<!\+\")\$\{(\w+)\[[@*]\]\}", path.read_text())
        if array not in filled
    }
    assert scripts and spelled_out - filled == set()


def test_no_test_is_skipped_in_ci() -> None:
    """tests/needs.py alone may skip, and in CI it fails."""
    banned = re.compile(r"skipif|importorskip|xfail|mark\.skip|pytest\.skip|doctest: *\+" "SKIP")
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("hpcrun/**/*.py")]
    known = {ROOT / "tests" / "needs.py", Path(__file__)}
    assert [
        name(path) for path in files if path not in known and banned.search(path.read_text())
    ] == []
