"""Scripts that --check runs write no files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hpcrun.actions.init.read_only import FILTERS, format_filter, make_read_only
from hpcrun.errors import InputError


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("echo a > f", "echo a > /dev/null"),
        ("echo a 2>>f 2>&1", "echo a 2>>/dev/null 2>&1"),
        ("python t.py &> ~/$X/log", "python t.py &> /dev/null"),
        ("cat <<E > hosts\na\nE", "cat <<E > /dev/null\na\nE"),
        ("exec > >(tee log)", "exec > /dev/null"),
        ("if a; then > f; fi", "if a; then > /dev/null; fi"),
        ("[[ a > b ]] && (( 1 > 2 ))", "[[ a > b ]] && (( 1 > 2 ))"),
        ("export PATH=/usr/bin:$PATH", "export RANK_PROBE_IGNORED=/usr/bin:$PATH"),
        ("/bin/rm -rf ckpt", "rm -rf ckpt"),
        ("srun -n 1 /bin/rm ckpt", "srun -n 1 rm ckpt"),
        ("srun -o /d/log --error=e python t.py -o x", "srun    python t.py -o x"),
    ],
)
def test_writes_are_redirected(text: str, changed: str) -> None:
    assert make_read_only(text) == changed


@pytest.mark.parametrize(
    "text",
    [
        "bash -c 'echo a > f'",
        "C='ls > f'\neval $C",
        "A=/bin/rm\n$A f",
        "S='srun -o f'\n$S python t.py",
    ],
)
def test_writes_that_cannot_be_redirected_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--check: line"):
        make_read_only(text)


@pytest.mark.parametrize(
    "words",
    [
        ["sed", "-i", "s/a/b/", "data"],
        ["sed", "-ni", "s/a/b/", "data"],
        ["sed", "w data", "input"],
        ["sort", "-o", "data", "input"],
        ["sort", "-uodata", "input"],
        ["shuf", "--output=data", "input"],
        ["awk", '{print > "data"}', "input"],
    ],
)
def test_filters_write_no_file(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "data").write_text("a\n")
    (tmp_path / "input").write_text("c\nb\n")
    subprocess.run(["sh", write_filter(tmp_path, words[0]), *words[1:]], cwd=tmp_path, check=False)
    assert (tmp_path / "data").read_text() == "a\n"


def write_filter(folder: Path, name: str) -> str:
    path = folder / f"{name}.sh"
    path.write_text(format_filter(name, str(shutil.which(name))))
    return str(path)


def test_filters_filter(tmp_path: Path) -> None:
    words = {"sed": ["s/b/a/"], "sort": ["-r"], "awk": ["{print $1}"], "shuf": ["-n1"]}
    for name in FILTERS:
        argv = ["sh", write_filter(tmp_path, name), *words[name]]
        done = subprocess.run(argv, input=b"b\n", capture_output=True, check=True)
        assert done.stdout.strip() in (b"a", b"b")
