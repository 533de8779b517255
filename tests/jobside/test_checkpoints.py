"""Selection of the newest complete checkpoint, and pruning."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any
from unittest.mock import patch

import pytest

from hpcrun.jobside.__main__ import COMMANDS
from tests.jobside.written_checkpoints import write, write_record
from tests.workloads.trainer import as_by_srun, run_forked

WRITER = Path(__file__).parent / "write_checkpoints.py"


def call(function: str, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command of hpcrun.jobside in this process, where Python has started already."""
    argv, environ = command_of(function, words, environ)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        patch.dict(os.environ, environ, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        COMMANDS[argv[0]](argv[1:])
    written = (stream.detach().getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(argv, 0, *written)


def start(function: str, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command of hpcrun.jobside in a process of its own, as jobside.sh does."""
    argv, environ = command_of(function, words, environ)
    return subprocess.run(
        [sys.executable, "-m", "hpcrun.jobside", *argv],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )


def command_of(
    function: str, words: Sequence[object], environ: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of a command."""
    environ = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"} | environ
    if function == "prune_checkpoints":
        names = ("HPCRUN_CHECKPOINT_DIR", "HPCRUN_WORLD_SIZE", "HPCRUN_CHECKPOINT_KEEP")
        environ |= dict(zip(names, map(str, words), strict=True))
        words = ()
    return [function, *map(str, words)], environ


def newest(folder: Path, world: int = 2, **environ: str) -> tuple[str, str]:
    """Return the name of the newest complete checkpoint, and the messages about others."""
    done = call("newest_checkpoint", folder, world, **environ)
    path = done.stdout.removesuffix("\n")
    return path and str(Path(path).relative_to(folder)), done.stderr


def passed_over(name: str, reason: str) -> str:
    return f"hpcrun: checkpoint {name} is damaged ({reason}): passed over\n"


def safetensors(header: dict[str, Any], size: int, **options: Any) -> bytes:
    text = json.dumps(header, **options).encode()
    return struct.pack("<Q", len(text)) + text + b"\1" * size


def trainer(folder: Path, ranks: int = 2) -> Path:
    """Write a checkpoint in the Trainer's format."""
    for name in ("optimizer.pt", "scheduler.pt", *(f"rng_state_{r}.pth" for r in range(ranks))):
        write(folder / name)
    write(
        folder / "model.safetensors", safetensors({"w": {"shape": [8], "data_offsets": [0, 8]}}, 8)
    )
    state = {"best_model_checkpoint": None, "global_step": int(folder.name.split("-")[-1])}
    write(folder / "trainer_state.json", json.dumps(state, indent=2).encode() + b"\n")
    return folder


def cut(path: Path, size: int = -1) -> None:
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)


# ---- the frameworks' own checkpoints -------------------------------------------------------------

# The newest one that each way writes, and the one before.
WRITTEN = {
    "plain/files": ("ckpt_20.pt", "ckpt_10.pt"),
    "plain/folders": ("step-00000020", "step-00000010"),
    "plain/weights": ("step20.safetensors", "step10.safetensors"),
    "dcp": ("step-20", "step-10"),
    "fsdp": ("step_20", "step_10"),
    "megatron": ("iter_0000020", "iter_0000010"),
    "deepspeed-0": ("global_step20", "global_step10"),
    "deepspeed-1": ("global_step20", "global_step10"),
    "deepspeed-3": ("global_step20", "global_step10"),
    "accelerate": ("step_20", "step_10"),
    "accelerate-deepspeed": ("step_20", "step_10"),
    "trainer": ("checkpoint-20", "checkpoint-10"),
    "trainer-sharded": ("checkpoint-20", "checkpoint-10"),
    "trainer-deepspeed": ("checkpoint-20", "checkpoint-10"),
    "lightning": ("last.ckpt", "epoch=0-step=20.ckpt"),
    "lightning-fsdp": ("epoch=0-step=20.ckpt", "epoch=0-step=10.ckpt"),
    "lightning-deepspeed": ("epoch=0-step=20.ckpt", "epoch=0-step=10.ckpt"),
}
# Files that a resumed run does not read: the model's configuration and helper programs.
NOT_READ = {"config.json", "generation_config.json", "zero_to_fp32.py", "zero_to_torch.py"}


def matters(way: str, name: str, harm: str) -> bool:
    """Return True if a checkpoint is damaged without a file or a part of it."""
    if name.endswith(".py") or (harm == "gone" and name in NOT_READ):
        return False
    if name == "latest" and way == "accelerate-deepspeed":
        return harm != "gone"  # Accelerate names the tag itself
    return not (name.endswith(".json") and harm == "cut")  # the blank line at the end


# Those of each kind in CI; the others with `make test-all`.
CHOSEN = {"plain/files", "dcp", "deepspeed-3", "accelerate", "trainer", "lightning"}
MODULES = {each: each for each in ("accelerate", "lightning")} | {"trainer": "transformers.trainer"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=() if way in CHOSEN else pytest.mark.thorough) for way in WRITTEN],
)
def test_truncated_or_missing_file_makes_a_checkpoint_incomplete(way: str, tmp_path: Path) -> None:
    ranks = 1 if way.startswith("plain") or way == "lightning" else 2
    kind = way.split("/")[0]
    made = run_forked(
        [
            {**rank, "LOCAL_WORLD_SIZE": str(ranks), "DS_ACCELERATOR": "cpu"}
            for rank in as_by_srun(ranks)
        ],
        [kind, tmp_path / "made"],
        program=WRITER,
        module=MODULES.get(kind.partition("-")[0], "deepspeed"),
    )
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "made" / "/".join(way.split("/")[1:])
    last, before = WRITTEN[way]
    assert newest(folder, ranks) == (last, "")
    files = [path for path in [folder / last, *(folder / last).rglob("*")] if path.is_file()]
    assert files
    rng = random.Random(way)
    for path in files:
        content, times = path.read_bytes(), path.stat()
        for harm in ("cut", "half", "random", "empty", "gone"):
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            cuts = {"cut": len(content) - 1, "half": len(content) // 2, "empty": 0}
            cuts["random"] = rng.randrange(max(1, len(content) - 1))
            if harm == "gone":
                path.unlink()
            else:
                os.truncate(path, cuts[harm])
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            found, message = newest(folder, ranks)
            where = f"{path.relative_to(folder)} {harm}: {message}"
            if matters(way, path.name, harm):
                assert found == before, where
                assert bool(message) == (harm != "gone" or len(files) > 1), where
            else:
                assert (found, message) == (last, ""), where
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert newest(folder, ranks) == (last, "")


# ---- the newest checkpoint -----------------------------------------------------------------------


def test_folder_without_checkpoints_yields_none(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing") == ("", "")
    write(tmp_path / "events.out", b"x")
    write(tmp_path / "checkpoint-5" / "config.json", b"{}")
    assert newest(tmp_path) == ("", "")
    write(tmp_path / "step1.pt")
    where = [sys.executable, "-m", "hpcrun.jobside", "newest_checkpoint", "", "1"]
    assert subprocess.check_output(where, cwd=tmp_path) == b""


def test_newest_checkpoint_is_chosen_by_step(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        write(tmp_path / f"model_{step}.pt")
    assert newest(tmp_path) == ("model_100.pt", "")
    cut(tmp_path / "model_100.pt")
    damaged = passed_over("model_100.pt", "model_100.pt is cut off")
    assert newest(tmp_path) == ("model_20.pt", damaged)


def test_newest_checkpoint_is_chosen_by_time_without_steps(tmp_path: Path) -> None:
    for age, name in enumerate(["ckpt_300.pt", "ckpt.pt", "ckpt_400.pt"]):
        os.utime(write(tmp_path / name), (1_700_000_000 - age, 1_700_000_000 - age))
    assert newest(tmp_path) == ("ckpt_300.pt", "")
    os.utime(tmp_path / "ckpt.pt", (1_700_000_009, 1_700_000_009))
    assert newest(tmp_path) == ("ckpt.pt", "")


def test_checkpoint_name_may_be_only_a_step(tmp_path: Path) -> None:
    for step in (90, 100):
        write(tmp_path / f"{step}.pt")
    assert newest(tmp_path) == ("100.pt", "")


def test_exports_and_best_models_are_not_resumed_from(tmp_path: Path) -> None:
    write(tmp_path / "step-000020" / "model.pt")
    for later in ("adapters/pytorch_lora_weights.safetensors", "best/mp_rank_00_model_states.pt"):
        write(tmp_path / later)
    write(tmp_path / "universal" / "mp_rank_00_model_states.pt")
    write(tmp_path / "model_best.pt")
    for part in ("optimizer.pt", "training_args.bin", "model-00001-of-00002.safetensors"):
        write(tmp_path / part)
    assert newest(tmp_path) == ("step-000020", "")
    shutil.rmtree(tmp_path / "step-000020")
    (tmp_path / "best" / "mp_rank_00_model_states.pt").unlink()
    os.utime(tmp_path / "model_best.pt", (2_000_000_000, 2_000_000_000))
    assert newest(tmp_path) == ("model_best.pt", "")


def test_partial_checkpoint_names_are_ignored(tmp_path: Path) -> None:
    """Named by the reference trainer and the examples: NAME.partial, part-N, partial."""
    names = ("step-00000020", "stage1-epoch2-step15")
    for name in names:
        write(tmp_path / name / "state.pt")
        write(tmp_path / name / "checkpoint.json", b'{"step": 7}\n')
    for name in ("step-00000030.partial", "part-000040", "partial", "step-50.stale", ".x"):
        write(tmp_path / name / "state.pt")
        write(tmp_path / name / "random_states_0.pkl")
    damaged = [passed_over("part-000040", "it was not finished")]
    damaged.append(passed_over("step-00000030.partial", "it was not finished"))
    assert newest(tmp_path) == (names[0], "".join(damaged))
    write(tmp_path / "step-60.pt.tmp")
    damaged.insert(0, passed_over("step-60.pt.tmp", "it was not finished"))
    assert newest(tmp_path) == (names[0], "".join(damaged))
    write(tmp_path / names[0] / "state.pt.tmp")  # of a later attempt
    assert newest(tmp_path)[0] == names[0]
    write(tmp_path / names[0] / "rank1.pt.part")
    damaged.append(passed_over(names[0], "rank1.pt.part was not finished"))
    assert newest(tmp_path) == (names[1], "".join(damaged))


def test_killed_save_does_not_hide_the_best_model(tmp_path: Path) -> None:
    write(tmp_path / "step-60.pt.tmp")
    assert newest(tmp_path) == ("", "")
    write(tmp_path / "model_best.pt")
    assert newest(tmp_path) == ("model_best.pt", "")


@pytest.mark.parametrize("name", ["part", "tmp", "partial"])
def test_killed_first_save_yields_no_checkpoint(tmp_path: Path, name: str) -> None:
    """A complete file in the folder is not a complete checkpoint."""
    write(tmp_path / name / "model.safetensors", safetensors({"w": {"data_offsets": [0, 8]}}, 8))
    assert newest(tmp_path) == ("", "")


def test_accelerate_files_in_custom_folders_are_complete(tmp_path: Path) -> None:
    """The previous one has no random states either, so this format does not use them."""
    for step in (10, 20):
        folder = tmp_path / f"step-{step}"
        write(folder / "model.safetensors", safetensors({"w": {"data_offsets": [0, 8]}}, 8))
        write(folder / "optimizer.bin")
    assert newest(tmp_path) == ("step-20", "")
    for rank in (0, 1):
        write(tmp_path / "step-10" / f"random_states_{rank}.pkl")
    damaged = passed_over("step-20", "random_states_0.pkl is missing")
    assert newest(tmp_path) == ("step-10", damaged)


def test_latest_file_naming_a_damaged_tag_is_ignored(tmp_path: Path) -> None:
    for step in (10, 20):
        for rank in (0, 1):
            part = f"global_step{step}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            write(tmp_path / part)
        write(tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt")
    (tmp_path / "latest").write_text("global_step20")
    assert newest(tmp_path) == ("global_step20", "")
    missing = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (tmp_path / "global_step20" / missing).unlink()
    damaged = passed_over("global_step20", f"{missing} is missing")
    assert newest(tmp_path) == ("global_step10", damaged)


def test_deepspeed_rank_count_is_read_from_its_record(tmp_path: Path) -> None:
    """The record contains the number of ranks and whether there are optimizer states."""
    record: dict[str, Any] = {"dp_world_size": 300, "ds_config": {"mics_shard_size": 2}}
    for step in (1, 2):
        for rank in range(2):
            part = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
            write_record(write(tmp_path / f"global_step{step}" / part), record)
    assert newest(tmp_path, 16) == ("global_step2", "")
    del record["ds_config"]
    first = "zero_pp_rank_0_mp_rank_00_model_states.pt"
    write_record(tmp_path / "global_step2" / first, record)
    missing = "zero_pp_rank_2_mp_rank_00_model_states.pt is missing"
    assert newest(tmp_path, 16) == ("global_step1", passed_over("global_step2", missing))
    record["ds_config"] = {"stage": 1}
    write_record(write(tmp_path / "global_step3" / "mp_rank_00_model_states.pt"), record)
    shutil.rmtree(tmp_path / "global_step2")
    damaged = passed_over("global_step3", "it has no optimizer states")
    assert newest(tmp_path, 1) == ("global_step1", damaged)


def test_universal_deepspeed_checkpoint_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "global_step7_universal"
    write(folder / "mp_rank_00_model_states.pt")
    for name in ("optimizer_state.pt", "0.weight/fp32.pt", "0.weight/exp_avg.pt"):
        write(folder / "zero" / name)
    assert newest(tmp_path, 4) == (folder.name, "")
    (folder / "zero" / "0.weight" / "fp32.pt").unlink()
    assert newest(tmp_path, 4) == ("", passed_over(folder.name, "zero/0.weight/fp32.pt is missing"))


def test_checkpoint_is_found_in_the_folder_itself_and_deep_below(tmp_path: Path) -> None:
    write(tmp_path / "a" / "random_states_0.pkl")
    write(tmp_path / "a" / "pytorch_model" / "mp_rank_00_model_states.pt")
    assert start("newest_checkpoint", tmp_path / "a", 1).stdout == f"{tmp_path}/a\n"
    deep = "lightning_logs/version_0/checkpoints/epoch=1-step=6.ckpt"
    write(tmp_path / "b" / deep)
    assert newest(tmp_path / "b") == (deep, "")


@pytest.mark.slow
@pytest.mark.parametrize("hostile", ["a b", "$(touch x)", "';\"", "-n", "*", "ü", "[0]", "\\"])
def test_checkpoint_names_are_not_interpreted_as_code(hostile: str, tmp_path: Path) -> None:
    folder = tmp_path / hostile
    for step in (1, 2):
        trainer(folder / f"{hostile}x" / f"checkpoint-{step}")
        write(folder / f"{hostile}x" / f"checkpoint-{step}" / f"{hostile}.pt")
    assert newest(folder) == (f"{hostile}x/checkpoint-2", "")
    cut(folder / f"{hostile}x" / "checkpoint-2" / f"{hostile}.pt")
    damaged = passed_over("checkpoint-2", f"{hostile}.pt is cut off")
    assert newest(folder) == (f"{hostile}x/checkpoint-1", damaged)
    assert "removed" not in call("prune_checkpoints", folder, 2, 1).stdout
    write(folder / f"{hostile}x" / "checkpoint-2" / f"{hostile}.pt")
    assert "removed checkpoint checkpoint-1;" in call("prune_checkpoints", folder, 2, 1).stdout
    assert left(folder / f"{hostile}x") == {"checkpoint-2"}


# ---- complete checkpoints ------------------------------------------------------------------------


def test_checkpoint_with_missing_ranks_is_incomplete(tmp_path: Path) -> None:
    for step in (1, 2):
        trainer(tmp_path / f"checkpoint-{step}", ranks=4)
    assert newest(tmp_path, 4) == newest(tmp_path, 2) == ("checkpoint-2", "")
    # All belong to another run.
    assert newest(tmp_path, 8) == ("checkpoint-2", "")
    (tmp_path / "checkpoint-2" / "rng_state_3.pth").unlink()
    reason = "it has the random states of 3 of 4 ranks"
    assert newest(tmp_path, 4) == ("checkpoint-1", passed_over("checkpoint-2", reason))
    # Better than none.
    shutil.rmtree(tmp_path / "checkpoint-1")
    used = "hpcrun: checkpoint checkpoint-2 is used all the same: no other is whole\n"
    assert newest(tmp_path, 4) == ("checkpoint-2", passed_over("checkpoint-2", reason) + used)


def test_interrupted_first_save_is_incomplete(tmp_path: Path) -> None:
    """There is no earlier checkpoint for comparison."""
    folder = tmp_path / "checkpoint-5"
    write(folder / "config.json", b"{}\n")
    write(folder / "model.safetensors", safetensors({}, 0) + b" " * 20)
    assert newest(tmp_path)[0] == ""
    write(folder / "model.safetensors", safetensors({"a": {"data_offsets": [0, 9]}}, 9))
    assert newest(tmp_path) == ("", passed_over("checkpoint-5", "trainer_state.json is missing"))
    shutil.rmtree(folder)
    write(folder / "pytorch_model" / "mp_rank_00_model_states.pt")
    assert newest(tmp_path) == ("", passed_over("checkpoint-5", "random_states_0.pkl is missing"))


def test_custom_checkpoint_without_its_last_file_is_incomplete(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        for name in ("model.pt", "optimizer.pt"):
            write(tmp_path / f"step_{step}" / name)
    write(tmp_path / "step_2" / "ema.pt")  # only now and then
    assert newest(tmp_path) == ("step_3", "")
    (tmp_path / "step_3" / "optimizer.pt").unlink()
    reason = "it has no optimizer.pt, as the ones before it have"
    assert newest(tmp_path) == ("step_2", passed_over("step_3", reason))


def test_reference_trainer_checkpoint_requires_its_record(tmp_path: Path) -> None:
    for step in (10, 20):
        write(tmp_path / f"step-{step:08d}" / "state.pt")
        write(tmp_path / f"step-{step:08d}" / "checkpoint.json", b'{"step": 7}\n')
    write(tmp_path / "step-00000010" / "eval.json", b"{}\n")  # an evaluation comes later
    assert newest(tmp_path) == ("step-00000020", "")
    (tmp_path / "step-00000020" / "checkpoint.json").unlink()
    reason = "it has no checkpoint.json, as the ones before it have"
    assert newest(tmp_path) == ("step-00000010", passed_over("step-00000020", reason))


def test_checkpoint_without_its_marker_is_incomplete(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path / f"save{step}" / "weights.pt")
        write(tmp_path / f"save{step}" / "DONE", b"")
    marker = "DONE"
    assert newest(tmp_path, HPCRUN_CHECKPOINT_MARKER=marker) == ("save2", "")
    write(tmp_path / "step3" / "weights.pt")
    write(tmp_path / "step3" / "DONE", b"")
    write(tmp_path / "step4" / "weights.pt")  # last: a later mark would make step3 the newest
    damaged = passed_over("step4", "DONE is missing")
    assert newest(tmp_path, HPCRUN_CHECKPOINT_MARKER=marker) == ("step3", damaged)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"separators": (",", ":")}])
def test_safetensors_is_checked_by_its_header(options: dict[str, Any], tmp_path: Path) -> None:
    header = {
        "b": {"dtype": "U8", "shape": [9], "data_offsets": [900, 909]},
        "a": {"dtype": "U8", "shape": [900], "data_offsets": [0, 900]},
        "__metadata__": {"format": "pt"},
    }
    header |= {f"empty{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(9)}
    path = write(tmp_path / "step1.safetensors", safetensors(header, 909, **options))
    assert newest(tmp_path) == (path.name, "")
    size = path.stat().st_size
    for wrong in (size - 1, size + 1):
        os.truncate(path, wrong)
        reason = f"{path.name} has {wrong} bytes of {size}"
        assert newest(tmp_path) == ("", passed_over(path.name, reason))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "whole"),
    [
        ("a1.pt", bytes.fromhex("80028a0a6cfc9c46f920") + b"old torch" * 9, True),
        ("a1.pkl", pickle.dumps(list(range(99)), protocol=2), True),
        ("a1.pkl", pickle.dumps(list(range(99)), protocol=4), True),
        ("a1.pkl", pickle.dumps(list(range(99)), protocol=4)[:60] + b".", False),
        ("a1.pkl", pickle.dumps(list(range(99)), protocol=2)[:-1], False),
        ("a1.pkl", b"", False),
        ("a1.pt", b"PK\3\4", False),
        ("a1.pt", b"\0" * 4096, False),
        ("a1.bin", b"\0" * 4096, True),
        ("a1.bin", b"of no known form, but there", True),
        ("x.json", b"[1]", True),
        ("x.json", b"[1, {", False),
        ("x.json", b"7", True),
        ("x.json", b"", False),
        ("my_model_states.pt", pickle.dumps("is not DeepSpeed's", protocol=2), True),
        ("x.json", b'{"a": {}', True),  # that far it is not read
        ("x.json", b'{\n  "a": {\n    "b": 123456789\n  }', False),
        ("x.json", b'{\n  "a": {\n    "b": 123456789\n  }\n}\n', True),
        ("x.json", b'{"a": 1, "b": [1, 2, 3', False),
        ("DONE", b"", True),
        ("events.out", b"", True),
    ],
)
def test_file_is_checked_by_its_start_and_end(
    name: str, content: bytes, whole: bool, tmp_path: Path
) -> None:
    for step in (1, 2):
        write(tmp_path / f"step{step}" / "weights.pt")
    write(tmp_path / "step2" / name, content)
    found, message = newest(tmp_path)
    assert found == ("step2" if whole else "step1"), message


def test_dangling_link_makes_a_checkpoint_incomplete(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path / f"step{step}" / "weights.pt")
    (tmp_path / "step2" / "base.bin").symlink_to(tmp_path / "step1" / "weights.pt")
    (tmp_path / "last.ckpt").symlink_to("step2")
    assert newest(tmp_path) == ("step2", "")
    (tmp_path / "step2" / "base.bin").unlink()
    (tmp_path / "step2" / "base.bin").symlink_to("nowhere")
    reason = "base.bin is a link to nothing"
    assert newest(tmp_path) == ("step1", passed_over("step2", reason))


@pytest.mark.slow
def test_thousands_of_files_are_checked_quickly(tmp_path: Path) -> None:
    for step in range(50):
        folder = trainer(tmp_path / f"checkpoint-{step}")
        for number in range(14):
            (folder / f"extra{number}.pt").hardlink_to(folder / "optimizer.pt")
    assert len(list(tmp_path.glob("*/*"))) == 1000

    def seconds() -> float:  # of the CPU: this machine may be busy
        begun = getrusage(RUSAGE_CHILDREN)
        judged = start("judge_checkpoints", tmp_path, 2, "first").stdout
        assert judged == f"whole\t{tmp_path}/checkpoint-49\t\n"
        used = getrusage(RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime

    assert 0 < min(seconds() for _ in range(5)) < 1.5  # about 0.2
    pictures = tmp_path / "wandb" / "media"  # twice as many take twice as long
    pictures.mkdir(parents=True)
    for number in range(30_000):
        (pictures / f"sample_{number}_0123456789abcdef0123456789.png").touch()
    assert 0 < min(seconds() for _ in range(2)) < 12  # about 3


# ---- pruning, room ---------------------------------------------------------------------


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_pruning_keeps_the_newest_complete_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5, 6):
        trainer(tmp_path / f"checkpoint-{step}")
    for step in (2, 6):
        cut(tmp_path / f"checkpoint-{step}" / "optimizer.pt")
    said = call("prune_checkpoints", tmp_path, 2, 2).stdout
    assert left(tmp_path) == {f"checkpoint-{step}" for step in (2, 4, 5, 6)}
    assert said == "".join(
        f"hpcrun: removed checkpoint checkpoint-{step}; newer ones that are whole: 2\n"
        for step in (3, 1)
    )
    call("prune_checkpoints", tmp_path, 2, 0)
    assert left(tmp_path) == {f"checkpoint-{step}" for step in (2, 5, 6)}


@pytest.mark.slow
def test_pruning_keeps_the_best_and_referenced_checkpoints(tmp_path: Path) -> None:
    for step in range(1, 9):
        folder = trainer(tmp_path / f"checkpoint-{step}")
    best = {"best_model_checkpoint": "out/checkpoint-1", "global_step": 8}
    write(folder / "trainer_state.json", json.dumps(best, indent=2).encode())
    (tmp_path / "best.pt").symlink_to("checkpoint-2/model.safetensors")
    (tmp_path / "latest").write_text("checkpoint-3\n")
    (tmp_path / "last").symlink_to(tmp_path / "checkpoint-4")
    run = tmp_path.with_name("run")
    write(run / "attempts" / "0" / "resume", f"{tmp_path}/checkpoint-5\n".encode())
    call("prune_checkpoints", tmp_path, 2, 1, HPCRUN_RUN_DIR=str(run))
    kept = {f"checkpoint-{step}" for step in (1, 2, 3, 4, 5, 8)}
    assert left(tmp_path) == {*kept, "best.pt", "latest", "last"}


def test_pruning_keeps_checkpoints_older_than_the_run(tmp_path: Path) -> None:
    """Runs that save into one folder, as the tasks of a sweep, remove their own alone; those of
    earlier attempts, too, where a start has replaced what depends on its number of nodes."""
    run, folder = tmp_path / "run", tmp_path / "shared"
    for step in (1, 2):
        trainer(folder / f"checkpoint-{step}")
        os.utime(folder / f"checkpoint-{step}", (1000, 1000))
    write(run / "spec.yaml", b"{}")
    os.utime(run / "spec.yaml", (2000, 2000))
    for step in (3, 4, 5):
        os.utime(trainer(folder / f"checkpoint-{step}"), (3000, 3000))
    write(run / "plan.json", b"{}")
    call("prune_checkpoints", folder, 2, 1, HPCRUN_RUN_DIR=str(run))
    assert left(folder) == {"checkpoint-1", "checkpoint-2", "checkpoint-5"}


def test_pruning_keeps_other_files_and_other_folders(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere" / "step1" / "model.pt")
    folder = tmp_path / "checkpoints"
    others = {"best.ckpt", "final.pt", "epoch=1-val_loss=0.25.ckpt", "last.ckpt", "adapters.bin"}
    others |= {"epoch=2-val_loss=0.20.ckpt"}
    for name in [*others, "epoch=0-step=1.ckpt", "epoch=0-step=2.ckpt"]:
        write(folder / name)
    write(folder / "step2" / "model.pt")
    (folder / "step1").symlink_to(elsewhere.parent)
    (folder / "step2" / "data").symlink_to(tmp_path / "elsewhere")
    write(folder / "step3" / "model.pt")
    call("prune_checkpoints", folder, 1, 1)
    assert left(folder) == {*others, "epoch=0-step=2.ckpt", "step1", "step3"}
    assert elsewhere.exists()


def test_pruning_keeps_best_checkpoint_of_lightning(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path / f"epoch=0-step={step}.ckpt")
    best = {"best_model_path": f"{tmp_path}/epoch=0-step=1.ckpt"}
    write_record(tmp_path / "epoch=0-step=3.ckpt", best)
    call("prune_checkpoints", tmp_path, 1, 1)
    assert left(tmp_path) == {"epoch=0-step=1.ckpt", "epoch=0-step=3.ckpt"}


# Layouts of checkpoints in many files, the oldest first, how many there are and `keep`.
LAYOUTS: dict[str, tuple[list[str], int, int]] = {
    "file per rank": ([f"rank{r}_step{{n}}00.pt" for r in range(4)], 3, 2),
    "folder per rank": ([f"rank_{r}/step_{{n}}.pt" for r in range(4)], 5, 2),
    "folders per rank": ([f"rank{r}/checkpoint-{{n}}/model.pt" for r in range(3)], 4, 1),
    "composer": ([f"ep0-ba{{n}}00-rank{r}.pt" for r in range(4)], 3, 1),
    "folds": ([f"fold{f}_epoch{{n}}.pt" for f in range(3)], 4, 1),
    "components": ([f"{part}/{{n}}00.pt" for part in ("ema", "model", "opt")], 3, 2),
    "components beside": ([f"{part}{{n:03d}}.pt" for part in ("ema", "model", "opt")], 4, 2),
    "GAN": (["G_{n}000.pth", "D_{n}000.pth"], 3, 1),
    "lightning": (["epoch={n}-step={n}00.ckpt"], 4, 2),
    "folder per step": (["step_{n}/rank_0.pt", "step_{n}/rank_1.pt"], 4, 1),
}


def save(folder: Path, names: list[str], at: float) -> None:
    """Write one checkpoint, with each file a second after the previous one."""
    for number, name in enumerate(names):
        os.utime(write(folder / name), (at + number, at + number))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pruning_treats_all_files_of_one_step_as_one_checkpoint(
    layout: str, tmp_path: Path
) -> None:
    patterns, count, keep = LAYOUTS[layout]
    for number in range(1, count + 1):
        save(tmp_path, [each.format(n=number) for each in patterns], 1000 * number + 10**9)
    done = call("prune_checkpoints", tmp_path, 4, keep)
    newest_ones = range(count - keep + 1, count + 1)
    assert files_in(tmp_path) == {each.format(n=n) for each in patterns for n in newest_ones}
    assert "kept" not in done.stdout and done.stderr == ""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("harm", ["missing", "being written", "cut"])
def test_pruning_does_not_count_an_incomplete_newest_checkpoint(
    layout: str, harm: str, tmp_path: Path
) -> None:
    patterns, count, _ = LAYOUTS[layout]
    for number in range(1, count + 1):
        save(tmp_path, [each.format(n=number) for each in patterns], 1000 * number + 10**9)
    last = tmp_path / patterns[-1].format(n=count)
    if harm == "missing" and len(patterns) > 1:
        last.unlink()
    elif harm == "being written":
        last.rename(f"{last}.tmp")
    else:
        cut(last)
    before = files_in(tmp_path)
    call("prune_checkpoints", tmp_path, 4, 1)
    after = files_in(tmp_path)
    previous = {each.format(n=count - 1) for each in patterns}
    newest_one = {name for name in before if name not in {
        each.format(n=number) for each in patterns for number in range(1, count)
    }}  # fmt: skip
    assert previous | newest_one <= after
    assert after == before - {each.format(n=n) for each in patterns for n in range(1, count - 1)}


@pytest.mark.parametrize(
    "names",
    [
        [f"{stage}/step_{n}.pt" for stage, n in (("pre", 1000), ("pre", 2000), ("sft", 10))],
        [f"exp{number}/step_{step}.pt" for number in (1, 2) for step in (1, 2, 3)],
        [f"checkpoint_{rank}_{step}.pt" for step in (100, 200) for rank in range(4)],
        [f"checkpoint_{rank}_epoch{step}.pt" for step in (1, 2) for rank in range(4)],
        [f"model_{step}_{rank}.pt" for step in (100, 200) for rank in range(4)],
        [f"model_{rank}.pt" for rank in range(4)],
        [f"fold{fold}.pt" for fold in range(5)],
        ["model_1.pt", "model_2.pt", "ema_1.pt", "model_3.pt", "ema_3.pt", "swa_3.pt"],
        # The counter restarted, so neither is certainly older.
        ["step_100.pt", "step_200.pt", "step_300.pt", "step_10.pt"],
    ],
    ids=lambda names: names[0],
)  # fmt: skip
def test_pruning_keeps_checkpoints_of_unclear_order(names: list[str], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        save(tmp_path, [name], 10**9 + number)
    keep = 3 if names[-1] == "step_10.pt" else 1
    done = call("prune_checkpoints", tmp_path, 4, keep)
    assert files_in(tmp_path) == set(names)
    assert "removed" not in done.stdout


def test_pruning_reports_checkpoints_kept_for_unclear_order(tmp_path: Path) -> None:
    for number, name in enumerate(f"{stage}/step_{n}.pt" for stage in "ab" for n in (1, 2, 3)):
        save(tmp_path, [name.replace("a/step_", "a/step_1000")], 10**9 + number)
    note = "hpcrun: kept 4 older checkpoints (step_10001.pt ...): "
    done = call("prune_checkpoints", tmp_path, 1, 1)
    assert done.stdout.startswith(note), done.stdout


def test_pruning_never_removes_a_part_of_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    """Random layouts: ranks, components, folds and stages, in folders or names, in any order."""
    rng = random.Random(37)
    for number in range(60 if os.environ.get("HPCRUN_TEST_ALL") else 30):
        folder = tmp_path / str(number)
        patterns, world = make_layout(rng)
        steps = sorted(rng.sample([1, 2, 9, 10, 99, 100, 1000, 12345], rng.randint(2, 6)))
        complete: list[list[str]] = []
        for at, step in enumerate(steps):
            names = [each.format(n=step) for each in patterns]
            is_last = at == len(steps) - 1
            if is_last and rng.random() < 0.5:  # it is being saved
                rng.shuffle(names)
                save(folder, names[: rng.randint(0, len(names) - 1)], 10**9 + 100 * at)
            else:
                save(folder, names, 10**9 + 100 * at)
                complete.append(names)
        before, keep = files_in(folder), rng.randint(1, 3)
        call("prune_checkpoints", folder, world, keep)
        after = files_in(folder)
        surely = {name for names in complete[-keep:] for name in names}
        assert surely <= after, (patterns, steps, keep, sorted(surely - after))
        gone = before - after
        for names in complete:  # whole or not at all
            assert gone.isdisjoint(names) or gone.issuperset(names), (patterns, names)
        assert gone <= {name for names in complete for name in names}, (patterns, steps, gone)


def make_layout(rng: random.Random) -> tuple[list[str], int]:
    """Create the file names of one checkpoint, with {n} for its step; and a world size."""
    ranks, parts = (
        rng.choice([1, 2, 4]),
        rng.choice([["model"], ["model", "ema"], ["G", "D", "opt"]]),
    )
    word = rng.choice(["step", "step_", "step=", "epoch", "ep", "iter_", "", "ba", "checkpoint-"])
    rank_word = rng.choice(["rank", "rank_", "shard-", "fold"])
    shape = rng.choice([
        "{part}/{rank}/{step}.pt", "{rank}/{part}_{step}.pt", "{part}_{step}_{rank}.pt",
        "{step}/{part}_{rank}.pt", "{rank}_{part}_{step}.pt", "{part}-{step}/{rank}.pt",
        "run7/{part}/{step}_{rank}.pt", "{rank}/{step}/{part}.pt",
    ])  # fmt: skip
    return [
        shape.format(part=part, rank=f"{rank_word}{rank}", step=word + "{n}")
        for rank in range(ranks)
        for part in parts
    ], ranks


# Checkpoints in the order in which they were written, and the one that a run resumes from.
@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["step_5.pt", "wandb/run-1/files/media/step_9.npz"], "step_5.pt"),
        (["step-100/m.pt", "_tmp_step-200/m.pt"], "step-100"),
        (["ckpt-100.pt", "tmp_ckpt-200.pt"], "ckpt-100.pt"),
        (["step-100/m.pt", "step-200-tmp/m.pt"], "step-100"),
        (["step-100/m.pt", "step-200.writing/m.pt"], "step-100"),
        (["step-200/m.pt", "step-300-incomplete/m.pt"], "step-200"),
        (["epoch0_step900.pt", "epoch1_step100.pt"], "epoch1_step100.pt"),
        (["epoch=0-step=900.ckpt", "epoch=1-step=1000.ckpt"], "epoch=1-step=1000.ckpt"),
        (["pretrain/step_2000.pt", "finetune/step_20.pt"], "finetune/step_20.pt"),
        (["tokens_9.5B.pt", "tokens_10.0B.pt"], "tokens_10.0B.pt"),
        (["tokens_900M.pt", "tokens_1.2B.pt"], "tokens_1.2B.pt"),
        (
            ["version_0/checkpoints/epoch=9-step=90.ckpt", "version_1/checkpoints/step=9.ckpt"],
            "version_1/checkpoints/step=9.ckpt",
        ),
        ([f"rank{r}_step{n}.pt" for n in (100, 200) for r in range(3)][:-1], "rank2_step100.pt"),
        ([f"{part}/{n}.pt" for n in (1, 2, 3) for part in ("ema", "model")][:-1], "model/2.pt"),
        ([f"rank_{r}/step_{n}.pt" for n in (9, 10, 11) for r in (0, 1)][:-1], "rank_1/step_10.pt"),
        # The averaged weights are not saved each time.
        (["m_1.pt", "ema_1.pt", "m_2.pt", "m_3.pt", "ema_3.pt", "m_4.pt"], "m_4.pt"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)  # fmt: skip
def test_resume_starts_from_the_newest_complete_checkpoint(
    names: list[str], wanted: str, tmp_path: Path
) -> None:
    for number, name in enumerate(names):
        save(tmp_path, [name], 10**9 + number)
    assert newest(tmp_path, 1)[0] == wanted


def test_incomplete_set_of_ranks_is_ignored_with_a_reason(tmp_path: Path) -> None:
    for step in (100, 200):
        save(tmp_path, [f"rank{rank}_step{step}.pt" for rank in range(3)], 10**9 + step)
    cut(tmp_path / "rank1_step200.pt")
    found, said = newest(tmp_path, 3)
    assert found == "rank2_step100.pt"
    assert passed_over("rank2_step200.pt", "rank1_step200.pt: rank1_step200.pt is cut off") in said


@pytest.mark.parametrize("way", ["safetensors", "zip", "pickle"])
def test_file_truncated_anywhere_is_damaged(way: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    contents = {
        "safetensors": safetensors({"w": {"shape": [4], "data_offsets": [0, 400]}}, 400),
        "zip": write(tmp_path / "made").read_bytes(),
        "pickle": pickle.dumps([0.5] * 99, protocol=4),
    }
    (tmp_path / "made").unlink(missing_ok=True)
    name = {"safetensors": "{}.safetensors", "zip": "{}.pt", "pickle": "{}.pkl"}[way]
    write(tmp_path / "step1" / name.format("w"), contents[way])
    second = write(tmp_path / "step2" / name.format("w"), contents[way])
    assert newest(tmp_path)[0] == "step2"
    for _ in range(12):
        second.write_bytes(contents[way][: rng.randrange(len(contents[way]))])
        assert newest(tmp_path)[0] == "step1"


def test_check_of_hundreds_of_checkpoints_reads_each_once(tmp_path: Path) -> None:
    for step in range(100):
        save(tmp_path, [f"rank{rank}_step{step}.pt" for rank in range(8)], 10**9 + step)
    begun = getrusage(RUSAGE_CHILDREN)
    done = start("prune_checkpoints", tmp_path, 8, 2)
    used = getrusage(RUSAGE_CHILDREN)
    assert done.stdout.count("removed") == 98 * 8
    assert used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime < 5  # about 1


def test_little_space_for_the_next_checkpoint_is_reported(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert call("save_room", tmp_path, free // 2).stderr == ""
    warned = call("save_room", tmp_path, free).stderr
    assert warned.startswith(f"hpcrun: {tmp_path} has ") and "B free: " in warned
    assert call("save_room", tmp_path / "missing", free).stderr == ""


def test_short_text_file_is_a_valid_custom_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "step-10.pt", b'{"step": 10}')
    write(tmp_path / "step-20.pt", b"PK\x03\x04 cut")
    assert newest(tmp_path, 1) == ("step-10.pt", passed_over("step-20.pt", "step-20.pt is cut off"))


def test_pickle_with_code_is_only_read(tmp_path: Path) -> None:
    """The .metadata of a checkpoint may be anybody's: nothing that it names is called."""
    marker = tmp_path / "called"
    folder = tmp_path / "c/step-20"
    write(folder / "__0_0.distcp")
    write(folder / ".metadata", f"cos\nsystem\n(S'touch {marker} # __0_0.distcp'\ntR.".encode())
    assert newest(tmp_path / "c")[0] == "step-20"
    assert not marker.exists()
