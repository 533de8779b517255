"""Reading JSON into types, by several threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.source import PACKAGE, ROOT, modules, name

# In a process of its own, since it may end that: types that all threads meet for the first time.
PROGRAM = """
import sys, threading
import msgspec
from hpcrun.structs import decodable
sys.setswitchinterval(1e-6)
def read(barrier, type_, told):
    barrier.wait()
    try:
        msgspec.convert({"last": "x"}, decodable(type_))
    except msgspec.ValidationError as error:
        told.append(str(error))
for _ in range(60):
    inner = [msgspec.defstruct(f"Inner{n}", [("a", int), ("b", list[str])]) for n in range(8)]
    fields = [(f"f{n}", each) for n, each in enumerate(inner)] + [("last", int)]
    type_ = msgspec.defstruct("Outer", fields)
    barrier, told = threading.Barrier(8), []
    threads = [threading.Thread(target=read, args=(barrier, type_, told)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert told == ["Expected `int`, got `str` - at `$.last`"] * 8, told
"""


@pytest.mark.slow
def test_threads_read_a_type_for_the_first_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done


def test_every_type_is_made_ready() -> None:
    lines = [
        f"{name(path)}: {line.strip()}"
        for path in modules()
        if path != PACKAGE / "structs.py"
        for line in path.read_text().splitlines()
    ]
    converted = [
        line
        for line in lines
        if "msgspec.convert(" in line
        or "type_info(" in line
        or ("msgspec.json.decode(" in line and "type=" in line)
    ]
    assert converted and [line for line in converted if "decodable(" not in line] == []
    assert [line for line in lines if "json.Decoder(" in line] == []
