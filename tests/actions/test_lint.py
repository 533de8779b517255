"""The check of a script that is about to be submitted."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from hpcrun.actions import find_script_errors, lint, lint_paths
from hpcrun.context import load_context


def test_fault_of_the_checks_does_not_stop_a_submission(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise IndexError("string index out of range")

    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n")
    monkeypatch.setattr(lint, "lint_script", fail)
    context = load_context(clean_environ, tmp_path)
    (found,) = find_script_errors(context, str(tmp_path / "a.sbatch"), {})
    assert "internal error of hpcrun lint: IndexError" in found.message


def test_sourced_files_are_checked_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "env.sh").write_text(
        "#!/bin/bash\nexport NCCL_DEBUG=DEBUG\n#SBATCH -N 9\nexport PYTHONUNBUFFERED=1\nset -e\n"
    )
    script = tmp_path / "jobs" / "a.sbatch"
    head = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5 -c 8 # ü\n"
    body = "source env.sh\npython t.py \\ \n  --lr 1\necho done\n"
    script.write_text(head + body)
    (found,) = lint_paths(["jobs/a.sbatch"])
    shown = [(one.file, one.line, one.rule) for one in found.findings if one.severity != "note"]
    assert shown == [
        ("jobs/env.sh", 2, "bad-nccl-value"),
        ("jobs/a.sbatch", 4, "blank-after-backslash"),
        ("jobs/a.sbatch", 5, "dangling-arguments"),
    ]
    assert found.fixed == (head + body).replace("\\ \n", "\\\n")


def test_messages_name_the_lines_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.sh").write_text("A=1\n" * 9)
    (tmp_path / "first.sh").write_text("A=1\npython first.py\n")
    generated = "#!/bin/bash\n#SBATCH -p a\n#SBATCH -p b\n#SBATCH -N 1 -t 5\nls\n"
    body = f"source env.sh\npython a.py\npython b.py\ncat >g <<'END'\n{generated}END\n"
    inserted = "source env.sh\nsource first.sh\npython b.py\n"

    def list_messages(text: str) -> list[str]:
        (tmp_path / "a.sbatch").write_text(f"#!/bin/bash\n#SBATCH -N 1 -t 5\n{text}")
        (found,) = lint_paths(["a.sbatch"])
        return [f"{one.file}:{one.line}: {one.message}" for one in found.findings]

    runs = "if it fails, the program in {} runs, and decides the job's state"
    messages = list_messages(body)
    assert "a.sbatch:4: " + runs.format("line 5") in messages
    assert "a.sbatch:9: -p b replaces a of line 8" in messages
    messages = list_messages(body.replace("source env.sh\n", ""))
    assert "a.sbatch:8: -p b replaces a of line 7" in messages
    assert "first.sh:2: " + runs.format("line 5 of a.sbatch") in list_messages(inserted)


@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        ("bash train.sh\n", True),
        ("cd x || exit 1\nsh train.sh\n", True),
        ("bash train.sh\necho end\n", False),
        ("bash train.sh --lr 1\n", False),
        ("bash train.sh &\n", False),
        ("bash -x train.sh\n", False),
    ],
)
def test_script_that_bash_runs_last_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, is_read: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text("export NCCL_DEBUG=DEBUG\n")
    (tmp_path / "a.sbatch").write_text(f"#!/bin/bash\n#SBATCH -N 1 -t 5\n{body}")
    (found,) = lint_paths(["a.sbatch"])
    assert (("train.sh", "bad-nccl-value") in [(x.file, x.rule) for x in found.findings]) == is_read


@pytest.mark.parametrize("sourced", ["", "# nothing\n", "#SBATCH -t 5\n", "A=1\n"])
def test_directives_below_a_sourced_file_are_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sourced: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.sh").write_text(sourced)
    (tmp_path / "a.sbatch").write_text(
        "#!/bin/bash\n#SBATCH -N 1 -t 5\nsource env.sh\n#SBATCH -N 2\nls\n"
    )
    (found,) = lint_paths(["a.sbatch"])
    assert [(one.line, one.rule) for one in found.findings] == [(4, "late-directive")]


@pytest.mark.parametrize(
    "line",
    [
        "source /etc/env.sh",
        "source ../env.sh",
        "source missing.sh",
        "source broken.sh",
        "source open.sh",
        "source $DIR/env.sh",
        "if true; then source env.sh; fi",
        "source env.sh; ls",
    ],
)
def test_other_sourced_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.sh").write_text("export NCCL_DEBUG=DEBUG\n")
    (tmp_path / "broken.sh").write_text("export NCCL_DEBUG=DEBUG\nif\n")
    (tmp_path / "open.sh").write_text("export NCCL_DEBUG=DEBUG\ncat <<END\n")
    (tmp_path / "a.sbatch").write_text(f"#!/bin/bash\n#SBATCH -N 1 -t 5\n{line}\nls\n")
    (found,) = lint_paths(["a.sbatch"])
    assert "bad-nccl-value" not in [one.rule for one in found.findings]
