"""Root causes behind the final error: earlier stages, re-raised errors, lost connections."""

from __future__ import annotations

import pytest

from hpcrun.why import Cause
from hpcrun.why.ends import EndRecords
from tests.why.logs import CHILD, OOM, STEPS, judge, told, traceback

END = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-20T08:00:03{} ***\n"
SCANCEL, TIME_LIMIT = END.format(""), END.format(" DUE TO TIME LIMIT")
FULL = "OSError: [Errno 28] No space left on device: 'out/step_10.pt'"


def cause_in(text: str, records: EndRecords | None = None) -> Cause:
    cause = judge(text, records=records).cause
    assert cause is not None
    return cause


# ---- stages


@pytest.mark.parametrize(
    "missing",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'out/pretrain/model.pt'",
        "ValueError: Can't find a valid checkpoint at out/pretrain",
        "OSError: out/pretrain is not a local folder and is not a valid model identifier",
        "OSError: Error no file named pytorch_model.bin found in directory out/pretrain.",
        "RuntimeError: checkpoint out/pretrain/last.ckpt not found",
    ],
)
def test_first_failed_stage_is_the_cause_of_missing_checkpoints(missing: str) -> None:
    later = f"reading the options\n{traceback(missing)}"
    cause = cause_in(STEPS + traceback(OOM) + later + later.replace("reading", "checking"))
    assert (cause.cls, cause.line) == ("oom_gpu", STEPS.count("\n") + 4)
    assert cause.title.endswith("then found no checkpoint")


def test_stages_are_separated_by_their_headings() -> None:
    missing = traceback("FileNotFoundError: [Errno 2] No such file or directory: 'out/1/model.pt'")
    text = f"=== Stage 1: pretrain ===\n{STEPS}{traceback(OOM)}"
    text += f"=== Stage 2: finetune ===\n{missing}=== Stage 3: evaluate ===\n{missing}"
    cause = cause_in(text)
    assert cause.cls == "oom_gpu"
    assert cause.title == (
        "stage 1, pretrain, failed: out of GPU memory (2.00 GiB more requested); "
        "stages 2 and 3 then found no checkpoint"
    )
    diagnosis = judge(text)
    assert [each.id for each in diagnosis.also] == ["no_file"]


def test_full_disk_in_one_stage_is_the_cause_of_the_next_failure() -> None:
    broken = "RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive"
    text = f"[stage 1/3] tokenize\n{STEPS}[stage 2/3] train\n{STEPS}{traceback(FULL)}"
    cause = cause_in(f"{text}[stage 3/3] evaluate\n{traceback(broken)}")
    assert cause.cls == "disk" and cause.title.startswith("stage 2, train, failed: a disk is full")
    assert cause.line == text.count("\n")


def test_stages_under_torchrun_are_separated_by_their_headings() -> None:
    ranks = "".join(traceback(OOM, f"[rank{rank}]: ") for rank in (0, 1))
    missing = traceback("ValueError: Can't find a valid checkpoint at out/pretrain", "[rank0]: ")
    text = f"### STAGE 1 pretrain\n{ranks}{CHILD}### STAGE 2 finetune\n{missing}{CHILD}"
    cause = cause_in(text)
    assert (cause.cls, cause.line) == ("oom_gpu", 5)


def test_killed_stage_is_the_cause_of_a_missing_checkpoint() -> None:
    killed = "run.sh: line 4: 4711 Killed                  python pretrain.py\n"
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'out/last.ckpt'"
    assert told(STEPS + killed + traceback(missing))[:2] == ("killed", "oom_host")


@pytest.mark.parametrize(
    "text",
    [
        # A later launch that trained, and one that fails for a different reason.
        traceback(OOM) + STEPS + traceback("FileNotFoundError: no 'out/model.pt'"),
        traceback(OOM) + "again\n" + traceback("KeyError: 'lr'"),
    ],
)
def test_later_launch_with_an_unrelated_failure_is_diagnosed(text: str) -> None:
    assert told(text)[2] == text.count("\n")


def test_file_missing_in_every_launch_is_reported_for_the_last() -> None:
    missing = traceback("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'")
    assert told(3 * missing)[::2] == ("no_file", 12)


def test_launch_without_errors_keeps_the_previous_failure() -> None:
    banner = "08:00:00 Setting up the training script\n"
    failed = EndRecords(state="FAILED", exit_code=1)
    cause = cause_in(f"{banner}{traceback('ValueError: no')}{banner}ready\n", failed)
    assert cause.title == (
        "the last start logged no error; the one before failed: "
        "the program stopped with ValueError: no"
    )


# ---- re-raised exceptions


def raised_again(name: str, where: str, error: str, prefix: str = "") -> str:
    """Return the output of torch for an exception re-raised from a worker."""
    inner = traceback(error, prefix, at="/env/torch/_utils/worker.py").replace("<module>", "fetch")
    head = traceback(f"{name}: Caught {error.partition(':')[0]} in {where}.", prefix)
    return head + inner.replace("Traceback", "Original Traceback", 1)


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
@pytest.mark.parametrize(
    ("where", "error", "id_", "says"),
    [
        ("replica 1 on device 1", OOM, "cuda_oom", "2.00 GiB more"),
        (
            "DataLoader worker process 0",
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.jpg'",
            "no_file",
            "/data/a.jpg",
        ),
        ("DataLoader worker process 3", "KeyError: 'label'", "code_error", "'label'"),
        ("pin memory thread for device 0", "ValueError: bad shape 3", "code_error", "bad shape 3"),
    ],
)
def test_original_of_a_reraised_exception_is_the_cause(
    where: str, error: str, id_: str, says: str, prefix: str
) -> None:
    text = STEPS + raised_again(error.partition(":")[0], where, error, prefix)
    cause = cause_in(text)
    assert cause.id == id_ and says in cause.title and cause.line == text.count("\n")
    assert not judge(text).also, "what raises it again is no other cause"


def test_original_of_a_reraised_exception_is_as_fatal_as_the_outer_one() -> None:
    text = raised_again("ValueError", "DataLoader worker process 0", "ValueError: no")
    assert told(f"{text}\nsaving\nuploading the logs\n")[0] == "code_error"


@pytest.mark.parametrize(
    ("error", "id_", "says"),
    [
        (
            "RuntimeError: hpcrun: Lightning's Trainer has 1 rank, and the job has 2 ranks: each "
            "would train by itself, and write over the others' checkpoints.",
            "ranks_apart",
            "Lightning's Trainer has 1 rank, and the job has 2 ranks",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/d/x'", "no_file", "/d/x"),
        ("KeyError: 'label'", "code_error", "'label'"),
    ],
)
def test_error_inside_a_class_that_hydra_creates_is_the_cause(
    error: str, id_: str, says: str
) -> None:
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    outer = "hydra.errors.InstantiationException: Error in call to target 'model.Net':"
    shown = f'{outer}\n{error.partition(":")[0]}("{error.partition(": ")[2]}")\nfull_key: model\n'
    cause = cause_in(traceback(error) + link + traceback(outer) + shown.partition("\n")[2])
    assert cause.id == id_ and says in cause.title
    assert cause_in(traceback(outer)).id == "hydra_target"


# ---- ended while waiting

FRAMES = "".join(f"frame #{n}: c10::run() + 0x{n:x} (libtorch.so)\n" for n in range(60))
UPLOADS = "".join(f"uploading file {n} of 25 to the bucket\n" for n in range(25))
TEARDOWN = "".join(f"worker {n}: shutting down, releasing its queue\n" for n in range(40))
PLAIN = "".join(f"the monitor is still here after {n} minutes\n" for n in range(50))


@pytest.mark.parametrize("end", [SCANCEL, TIME_LIMIT], ids=["scancel", "time_limit"])
@pytest.mark.parametrize(
    "between",
    ["", FRAMES, UPLOADS, TEARDOWN, PLAIN],
    ids=["none", "frames", "uploads", "teardown", "plain"],
)
@pytest.mark.parametrize(
    ("error", "cls"),
    [(OOM, "oom_gpu"), ("ValueError: no", "code_error"), (FULL, "disk")],
)
def test_crash_before_a_cancellation_or_time_limit_is_the_cause(
    error: str, cls: str, between: str, end: str
) -> None:
    text = STEPS + traceback(error) + between + end
    assert told(text)[1:3] == (cls, STEPS.count("\n") + 4)
    state = "TIMEOUT" if "LIMIT" in end else "CANCELLED"
    assert told(text, records=EndRecords(state=state, cancelled_by="ada"))[1] == cls


@pytest.mark.parametrize(
    ("end", "cls"), [(SCANCEL, "cancelled"), (TIME_LIMIT, "time_limit")], ids=["scancel", "limit"]
)
def test_end_of_a_program_that_continued_training_is_the_cause(end: str, cls: str) -> None:
    caught = traceback("ValueError: no").replace("<module>", "load")
    assert told(STEPS + caught + STEPS + end)[1] == cls
    assert told(STEPS + caught + STEPS[:64] + end)[1] == cls
    assert told(STEPS + end)[1] == cls


def test_exception_after_the_time_limit_is_no_cause() -> None:
    assert told(STEPS + TIME_LIMIT + traceback("RuntimeError: interrupted"))[1] == "time_limit"


# ---- lost connections


@pytest.mark.parametrize(
    "retries",
    [
        "WARNING: ('Connection aborted.', ConnectionResetError(104)), retrying in 1 s\n" * 3,
        "2026-11-20 08:00:00 INFO Retrying: 503 Server Error: Service Unavailable for url\n" * 2,
        "WARNING urllib3: Retrying (total=4) after connection broken by ReadTimeoutError\n",
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: the session of the client was closed",
        "ValueError: empty response of the server",
    ],
)
def test_connection_errors_before_a_client_exception_are_the_cause(
    retries: str, error: str
) -> None:
    cause = cause_in(f"{STEPS}{retries}{traceback(error)}")
    assert cause.cls == "auth_network" and "network failure" in cause.title


def test_closed_client_is_a_network_failure() -> None:
    error = "RuntimeError: Cannot send a request, as the client has been closed."
    assert told(traceback(error))[1] == "auth_network"


def test_connection_errors_before_an_unrelated_exception_are_secondary() -> None:
    retries = "WARNING: Connection reset by peer, retrying in 1 s\n"
    diagnosis = judge(f"{STEPS}{retries}{traceback('KeyError: 3')}")
    assert diagnosis.cause is not None and diagnosis.cause.cls == "code_error"
    assert [each.id for each in diagnosis.also] == ["lost_connection"]
    recovered = judge(f"{retries}{STEPS}{traceback('KeyError: 3')}")
    assert recovered.also == [], "the training continued after them"


# ---- messages


@pytest.mark.parametrize(
    ("text", "cls", "says"),
    [
        (
            traceback("OSError: Not enough disk space. Needed: Unknown size (download: Unknown)"),
            "disk",
            "disk is full",
        ),
        (
            traceback("OSError: [Errno 28] No space left on device").replace(
                "raise RuntimeError('Address already in use')",
                "sl = self._semlock = _multiprocessing.SemLock(",
            ),
            "shm",
            "/dev/shm",
        ),
        (traceback(FULL), "disk", "disk is full"),
        (
            "x.cu:92: f: block: [0,0,0], thread: [2,0,0] Assertion `input_val >= zero && input_val "
            "<= one` failed.\n"
            + traceback("RuntimeError: CUDA error: device-side assert triggered"),
            "code_error",
            "outside 0 to 1",
        ),
        (
            traceback("RuntimeError: CUDA error: device-side assert triggered")
            + "x.cu:9: f: block: [0,0,0], thread: [2,0,0] "
            + "Assertion `srcIndex < srcSelectDimSize` failed.\n",
            "code_error",
            "index is out of range",
        ),
        (
            traceback("RuntimeError: CUDA error: device-side assert triggered"),
            "code_error",
            "an assertion on the GPU failed",
        ),
        (
            traceback(
                "torch.distributed.DistBackendError: NCCL error in: x.cpp:19, unhandled cuda error"
            )
            + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
            "Failed to CUDA calloc async 608 bytes\n",
            "oom_gpu",
            "out of GPU memory",
        ),
        (
            traceback("RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
            "driver",
            "GPU model does not support",
        ),
        (
            traceback("RuntimeError: Error(s) in loading state_dict for Net:")
            + '\tMissing key(s) in state_dict: "conv.weight".\n'
            + '\tUnexpected key(s) in state_dict: "module.conv.weight".\n',
            "code_error",
            "prefix module.",
        ),
        ("job/slurm_script: 12: exec: torchrun: not found\n", "missing_file", "torchrun"),
        ("run.sh: line 3: exec: torchrun: not found\n", "missing_file", "torchrun"),
        (
            "error: login9 cannot be reached by ssh: Could not resolve hostname login9\n",
            "rendezvous",
            "SSH could not resolve",
        ),
        ("ERROR: Could not consume arg: --lrr\nUsage: train.py\n", "code_error", "--lrr"),
        (
            "ERROR: The function received no value for the required argument: data\n",
            "code_error",
            "required argument: data",
        ),
        (
            "╭─ Error ──────────────╮\n│ No such option: --lrr │\n╰──────────────────────╯\n",
            "code_error",
            "No such option: --lrr",
        ),
        (
            "╭─ Error ────────────────╮\n│ Missing argument 'DATA'. │\n╰────────────────────╯\n",
            "code_error",
            "Missing argument 'DATA'",
        ),
        (
            "╭─ Parsing error ────────────╮\n│ Unrecognized options: --lrr │\n╰────────────────╯\n",
            "code_error",
            "Unrecognized options: --lrr",
        ),
        ("In 'config': Could not find 'model/large'\n", "code_error", "model/large"),
        ("Error parsing override 'lr=='\nmismatched input '='\n", "code_error", "configuration"),
    ],
)
def test_known_messages_map_to_their_cause(text: str, cls: str, says: str) -> None:
    cause = cause_in(STEPS + text)
    assert cause.cls == cls and says in cause.title, cause


# ---- warnings of programs that continued


@pytest.mark.parametrize(
    "line",
    [
        f"{'a.long.module.' * 10}upload:93 | WARNING | upload failed: {FULL}",
        f'{{"message": "upload failed: {FULL}", "logger": "sync", "level": "warning"}}',
        f'level=warning msg="upload failed: {FULL}"',
        f"WARNING:sync:upload failed: {FULL}",
    ],
)
def test_failed_upload_warning_is_no_cause(line: str) -> None:
    assert told(f"{STEPS}{line}\nstep 49990/50000 loss 2.1\nstep 50000/50000 loss 2.1\n")[0] == ""
    assert told(f"{STEPS}{line}\n")[0] == ""


def test_error_in_a_run_that_reaches_its_last_step_is_no_cause() -> None:
    error = f"upload failed: {FULL}\n"
    assert told(f"{STEPS}{error}  50000/50000 [1:02:03<00:00, 3.1it/s]\n")[0] == ""
    assert told(f"{STEPS}{error}  49000/50000 [1:02:03<00:10, 3.1it/s]\n")[0] == "enospc"


def test_traceback_of_a_warning_is_no_cause_if_training_continues() -> None:
    error = traceback(FULL).replace("<module>", "upload")
    warned = f"2026-11-20 08:00:00 WARNING upload failed\n{error}"
    assert told(f"{STEPS}{warned}step 49999/50000\nstep 50000/50000\n")[0] == ""
    assert told(f"{STEPS}{warned}")[0] == "enospc"


# ---- rank and host


@pytest.mark.parametrize(
    ("prefix", "rank", "host"),
    [
        ("10.0.0.2: [rank4]: ", 4, "10.0.0.2"),
        ("gpu07.cluster.example: [rank4]: ", 4, "gpu07.cluster.example"),
        ("node.hpc.local: [rank4]: ", 4, "node.hpc.local"),
        ("localhost: [rank4]: ", 4, "localhost"),
        ("1: [rank9]: ", 9, None),
        ("[rank9]: ", 9, None),
        ("3: ", 3, None),
    ],
)
def test_rank_and_host_are_read_from_line_prefixes(
    prefix: str, rank: int, host: str | None
) -> None:
    cause = cause_in(traceback("ValueError: no", prefix))
    assert (cause.line, cause.rank, cause.host) == (4, rank, host)


@pytest.mark.parametrize("prefix", ["train.py: ", "torch.cuda.x: ", "utils.data: "])
def test_module_names_in_prefixes_are_no_hosts(prefix: str) -> None:
    cause = cause_in(f"{prefix}CUDA error: out of memory\n")
    assert cause.host is None


def test_torchrun_summary_takes_precedence_over_srun_labels() -> None:
    report = (
        f"{CHILD}Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_08:00:00\n"
        "  host      : gpu07\n  rank      : 6 (local_rank: 2)\n  exitcode  : 1 (pid: 4242)\n"
    )
    labelled = "".join(f"1: {line}\n" for line in report.splitlines())
    cause = cause_in(traceback("ValueError: no", "1: ") + labelled)
    assert (cause.rank, cause.host) == (6, "gpu07")
    cause = cause_in(traceback("ValueError: no", "1: ") + f"1: {CHILD}")
    assert cause.rank is None, "the label is that of a node"


def test_rerun_of_the_same_program_is_no_later_stage() -> None:
    missing = traceback("FileNotFoundError: [Errno 2] No such file or directory: './weights.pt'")
    first = "2026-11-20 08:00:00 - INFO - Using device: gpu\n"
    again = "2026-11-20 08:09:31 - INFO - Using device: gpu\n"
    failed = traceback("ValueError: no such optimizer")
    cause = cause_in(f"{first}{failed}{again}{missing}")
    assert (cause.id, cause.line) == ("no_file", 10)
    staged = f"+ python train.py --stage 1\n{failed}+ python train.py --stage 2\n{missing}"
    assert cause_in(staged).id == "code_error", "the trace of a shell shows another stage"


def test_status_of_a_slurm_job_in_the_log_of_a_workflow_manager_is_its_cause() -> None:
    cancelled = "slurmstepd: error: *** JOB 47 ON n1 CANCELLED AT 2026-11-20T08:00:03 ***\n"
    rules = "".join(f"[Fri Nov 20 08:01:{n}] rule train: input: {n}.csv\n" for n in range(10, 60))
    status = "Error in rule train:\n    message: SLURM-job '48' failed, SLURM status is: '{}'\n"
    for state, cls in (("TIMEOUT", "time_limit"), ("OUT_OF_MEMORY", "oom_host")):
        cause = cause_in(cancelled + rules + status.format(state))
        assert (cause.cls, cause.line) == (cls, 53)


@pytest.mark.parametrize(
    ("signal", "cls"),
    [("SIGKILL(-9)", "oom_host"), ("SIGBUS(-7)", "shm"), ("EXIT(1)", "code_error")],
)
def test_signal_that_ended_the_workers_of_joblib_is_the_cause(signal: str, cls: str) -> None:
    error = "joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process managed"
    end = f"was terminated.\n\nThe exit codes of the workers are {{{signal}}}\n"
    assert cause_in(f"{traceback(error).rstrip()} {end}").cls == cls


def test_first_lines_written_again_mark_another_launch() -> None:
    head = "./logs\nEnvironment:\n\tPython: 3.11.{0}\n\tPyTorch: 2.0.{0}\n\tNumPy: 1.24.{0}\n"
    args = "\talgorithm: {1}\n\tdataset: OfficeHome\n\toutput_dir: ./logs\n\ttask: generalization\n"
    first = (head + args).format(0, "ERM")
    again = (head + args).format(1, "CORAL")
    cause = cause_in(f"{first}{traceback(OOM)}{again}using the model\n{SCANCEL}")
    assert cause.cls == "cancelled", "the second start was cancelled"
    other = "".join(f"\tsetting {n}: of the teardown\n" for n in range(9))
    assert cause_in(f"{first}{traceback(OOM)}{other}{SCANCEL}").cls == "oom_gpu"


def test_label_of_srun_is_the_rank_where_srun_names_the_task_too() -> None:
    error = "ValueError: no such optimizer"
    labelled = "".join(f"3: {line}\n" for line in traceback(error).splitlines())
    exits = "srun: error: node2: task 3: Exited with exit code 1\n"
    assert cause_in(labelled + exits).rank == 3
    ranked = f"0: [rank7]: {error}\n"
    assert cause_in(ranked + labelled + exits).rank != 3, "the label is the number of a node"


def test_lines_after_a_crash_in_a_short_log_are_no_other_launch() -> None:
    crash = "/var/spool/slurmd/job7/slurm_script: line 5: 80 Segmentation fault (core dumped) run"
    counts = "".join(f"('{name} positives in total', {n})\n" for n, name in enumerate("abcdefgh"))
    assert cause_in(f"Using the native backend.\n{crash} train.py\n{counts}").id == "crash"


# ---- srun


def test_kill_after_the_wait_of_srun_is_not_blamed_on_memory() -> None:
    """As Slurm 22.05 printed it; the ranks of the second node were still training."""
    text = (
        "srun: First task exited 600s ago\nsrun: StepId=23.0 tasks 4-7: running\n"
        "srun: StepId=23.0 tasks 0-3: exited\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=23.0\n"
        "srun: Job step aborted: Waiting up to 12 seconds for job step to finish.\n"
        "srun: error: n2: tasks 4-7: Killed\nhpcrun: attempt 0 ended with exit code 137\n"
    )
    diagnosis = judge(text, records=EndRecords(exit_code=137, signal=9))
    assert diagnosis.cause is not None
    assert diagnosis.cause.title == (
        "srun ended the remaining tasks 600 s after the first one had exited (srun --wait)"
    )
    assert diagnosis.also == [] and "memory" not in " ".join(diagnosis.fixes)


def test_error_before_the_wait_of_srun_is_the_cause() -> None:
    later = "srun: First task exited 30s ago\nsrun: error: n2: task 1: Killed\n"
    assert cause_in(STEPS + traceback(FULL) + later).cls == "disk"
