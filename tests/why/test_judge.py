"""Selection of the cause among all events in a job's logs and records."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from hpcrun.why.ends import EndRecords
from hpcrun.why.fixes import JobSettings
from hpcrun.why.judge import FailureEvidence, diagnose
from tests.why.logs import CHILD, LINES, OOM, STEPS, judge, read, told, traceback

# ---- forms of lines


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("", None),
        ("[rank3]: ", 3),
        ("[default3]:", 3),
        ("3: ", 3),
        ("[1,3]<stderr>:", 3),
        ("[node1:3] ", 3),
        ("node1: ", None),
        ("2026-11-20 08:00:00,123 ERROR ", None),
        ("2026-11-20T08:00:00.123456789Z stderr F ", None),
        ("[2026-11-20 08:00:00] [rank3]: ", 3),
        ("(RayTrainWorker pid=4242, ip=10.0.0.2) ", None),
        ("\x1b[36m(TaskRunner pid=4242)\x1b[0m ", None),
    ],
)
def test_line_prefixes_are_stripped_from_tracebacks(prefix: str, rank: int | None) -> None:
    text = STEPS + traceback("ValueError: no such optimizer", prefix)
    assert told(text) == ("code_error", "code_error", LINES + 4, rank)


def test_traceback_after_a_progress_bar_is_found() -> None:
    bar = "".join(f"\r {n}%|#  | {n}/100 [00:01<00:20, 4.70it/s]" for n in range(40))
    text = f"start\n{bar}{traceback('KeyError: 3')}"
    assert told(text) == ("code_error", "code_error", 5, None)


def test_rich_traceback_box_is_parsed() -> None:
    text = "╭──── Traceback (most recent call last) ────╮\n│ train.py:3 in main │\n╰────╯\n"
    assert told(f"{text}ValueError: no\n")[::2] == ("code_error", 4)


def test_traceback_in_a_json_line_is_parsed() -> None:
    line = {"level": "error", "exc_info": traceback("FileNotFoundError: [Errno 2] /data/x")}
    assert told(f"{json.dumps(line)}\n")[:3] == ("no_file", "missing_file", 1)


def test_interleaved_tracebacks_of_ranks_are_separated() -> None:
    one = traceback("ValueError: no", "[rank1]: ").splitlines()
    two = traceback(OOM, "[rank0]: ").splitlines()
    text = "".join(f"{a}\n{b}\n" for a, b in zip(one, two, strict=True))
    assert told(text) == ("cuda_oom", "oom_gpu", 8, 0)


def test_truncated_traceback_is_a_code_error() -> None:
    text = traceback("x").partition("\nx")[0]
    assert told(text)[:2] == ("code_error", "code_error")


def test_source_lines_in_frames_are_no_evidence() -> None:
    # The line of code in the traceback names a port.
    assert told(traceback("ValueError: no"))[0] == "code_error"


@pytest.mark.parametrize("block", [60, 200, 1 << 20])
def test_line_numbers_are_independent_of_block_size(block: int) -> None:
    found = read(STEPS + "a\rb\n" + traceback(OOM) + STEPS[:50], block=block)
    assert [event.line for event in found.events] == [LINES + 5]


# ---- root before symptom


def test_launcher_errors_are_symptoms() -> None:
    text = STEPS + traceback(OOM) + CHILD
    text += "srun: error: node1: task 0: Exited with exit code 1\n"
    text += "slurmstepd: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-20T08:00:03 ***\n"
    assert told(text)[0] == "cuda_oom"
    assert told(CHILD + traceback(OOM))[0] == "cuda_oom"


def test_records_take_precedence_over_launcher_reports() -> None:
    log = "failed (exitcode: 255) local_rank: 0 (pid: 31620) of binary: bash"
    failed = EndRecords(state="FAILED", exit_code=255, rank=0, host="n1")
    found = judge(log, records=failed).cause
    assert found is not None
    assert found.title == "rank 0 on n1 ended with exit code 255, and its log does not say why"
    # A bare command has no known rank, but a known host.
    log = "srun: error: n1: task 0: Exited with exit code 3"
    found = judge(log, records=EndRecords(state="FAILED", exit_code=3, host="n1")).cause
    assert found is not None
    assert found.title == "the job on n1 ended with exit code 3, and its log does not say why"


def test_slurm_record_names_user_and_reason() -> None:
    by = EndRecords(state="CANCELLED", cancelled_by="its user, ada", when="after 27 s")
    out = EndRecords(state="NODE_FAIL", node_reason="DIMM 3 is broken")
    held = EndRecords(state="CANCELLED", has_begun=False, node_reason="Prolog error", node_out="n3")
    shut = EndRecords(state="FAILED", slurm_code="0:53", output="/no/such/x.out")
    causes = [judge("", records=one).cause for one in (by, out, held, shut)]
    assert [cause.title if cause else "" for cause in causes] == [
        "cancelled by its user, ada, after 27 s",
        "a node died: DIMM 3 is broken",
        "the job never started: Prolog error",
        "Slurm could not open the job's output file on the node: /no/such/x.out",
    ]


def test_accounting_data_explains_a_job_without_output() -> None:
    most = "with 7.9 GiB used of the 8.0 GiB of memory that it had asked for"
    record = EndRecords(state="FAILED", exit_code=137, when="after 3 min", memory=most)
    found = diagnose(FailureEvidence(records=record, job=JobSettings(name="4711")))
    assert found.cause is not None
    assert found.cause.title == (
        "the job ended with exit code 137 (as after signal 9) after 3 min, with 7.9 GiB used of the"
        " 8.0 GiB of memory that it had asked for, and Slurm no longer knows its output file"
    )
    assert found.fixes == ["hpcrun why FILE  # with its output file"]
    known = diagnose(FailureEvidence(records=structs.replace(record, output="/x/4711.out")))
    assert known.cause is not None and known.cause.title.endswith("and its log is missing")


def test_watchdog_timeout_is_a_symptom_of_a_crash() -> None:
    watchdog = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=24, "
        "OpType=ALLREDUCE) ran for 600083 milliseconds before timing out.\n"
    )
    assert told(watchdog)[:2] == ("nccl_watchdog", "nccl")
    assert told(watchdog, STEPS + traceback("KeyError: 'x'"))[0] == "code_error"


def test_rank_missing_from_a_collective_is_named() -> None:
    line = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=24)\n"
    logs = [read("".join(f"[rank{rank}]: {line.format(rank)}" for rank in (1, 2, 3)))]
    cause = diagnose(FailureEvidence(logs=logs, ranks=range(4))).cause
    assert cause is not None and cause.title.endswith("have waited for rank 0")
    cause = diagnose(FailureEvidence(logs=logs, ranks=range(1, 4))).cause
    assert cause is not None and "waited for" not in cause.title


def test_first_failed_rank_is_the_cause() -> None:
    text = traceback("ValueError: a", "[rank0]: ") + traceback("ValueError: b", "[rank2]: ")
    assert told(text)[3] == 0
    failed = EndRecords(state="FAILED", why="error", rank=2, host="n2")
    cause = judge(text, records=failed).cause
    assert cause is not None and (cause.rank, cause.host, cause.line) == (2, "n2", 8)


def test_crash_report_of_open_mpi_names_the_host() -> None:
    crash = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    crash += "  what():  std::bad_alloc\n[node7:09049] *** Process received signal ***\n"
    cause = judge(f"{crash}[node7:09049] Signal: Aborted (6)\n").cause
    assert cause is not None
    assert (cause.cls, cause.line, cause.host) == ("oom_host", 1, "node7")


def test_report_of_mpirun_names_the_rank_and_its_host() -> None:
    text = (
        "x.cu:37: k: block: [0,0,0], thread: [16,0,0] Assertion `j < size` failed.\n"
        "[node7:19346] Signal: Segmentation fault (11)\n"
        "mpirun noticed that process rank 3 with PID 0 on node node7 exited on signal 11.\n"
    )
    cause = judge(text).cause
    assert cause is not None and (cause.line, cause.rank, cause.host) == (1, 3, "node7")


def test_exception_chain_yields_the_known_or_last_exception() -> None:
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    known = traceback("OSError: [Errno 28] No space left on device")
    other = traceback("RuntimeError: could not save")
    assert told(known + link + other)[::2] == ("enospc", 4)
    assert told(traceback("KeyError: 'x'") + link + other)[::2] == ("code_error", 11)


def test_last_of_several_launches_is_diagnosed() -> None:
    text = STEPS + traceback("ValueError: first") + STEPS + traceback(OOM)
    found = judge(text)
    assert found.cause is not None and found.cause.id == "cuda_oom"
    assert [each.id for each in found.also] == ["code_error"]
    found = judge(f"SyntaxError: invalid syntax\n{2 * STEPS}{traceback('KeyError: 1')}")
    assert found.cause is not None and found.cause.id == "code_error"
    assert [each.id for each in found.also] == ["syntax"]
    killed = "job/slurm_script: line 3: 42 Killed                  python a.py\n"
    found = judge(STEPS + killed + STEPS + traceback("KeyError: 'x'"))
    assert [each.id for each in found.also] == ["killed"]


def test_error_followed_by_progress_is_no_cause() -> None:
    assert told(traceback(OOM) + STEPS) == ("", "", None, None)
    caught = traceback(OOM).replace("<module>", "step")
    assert told(caught + "Training complete\n")[0] == ""
    # A batch script prints this after a crash, too.
    assert told(traceback(OOM) + "Training complete\n")[0] == "cuda_oom"


@pytest.mark.parametrize(
    "line",
    [
        "UserWarning: libnuma.so: cannot open shared object file",
        "[W312 15:17:01.881960845 TCPStore.cpp:125] recvValue failed: Connection reset by peer",
        "Exception ignored in: <function X.__del__>\n" + traceback("AttributeError: no"),
        "node1:8:99 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536",
    ],
)
def test_warnings_are_no_cause(line: str) -> None:
    assert told(f"{STEPS}{line}\n")[0] == ""


def test_errors_during_exit_are_no_cause() -> None:
    thread = "Exception in thread Thread-2:\n" + traceback("ValueError: gone")
    assert told(f"{STEPS}{{'train_runtime': 12.5}}\n{thread}")[0] == ""
    assert told(f"{STEPS}{thread}")[0] != ""


PLAIN = "".join(f"question {n} answered in {n} s\n" for n in range(15))
LMOD = "Lmod has detected the following error: The following module(s) are unknown: cuda/12\n"
NO_CONDA = "job.sh: line 3: conda: command not found\n"
STACK = "".join(f"frame #{n}: c10::run() + 0x{n} (libtorch.so)\n" for n in range(200))


@pytest.mark.parametrize(
    "text",
    [
        traceback("ValueError: no") + "".join(f"epoch {n} done\n" for n in range(6)),
        traceback("ValueError: no") + "epoch 1\nepoch 2\nTraining complete\n",
        traceback("ValueError: no") + "".join(f"x: accuracy 0.{n}\n" for n in range(6)),
        traceback("ValueError: no") + "".join(f"{{'eval_loss': {n}}}\n" for n in range(6)),
        traceback("ValueError: no") + 8 * PLAIN,
        traceback("KeyboardInterrupt") + 3 * PLAIN,
        "train.py: error: unrecognized arguments: --x\n" + 8 * PLAIN,
        f"{LMOD}answered\nDONE\n",
        f"{LMOD}JOB STATISTICS\nState: COMPLETED (exit code 0)\n",
        traceback("ValueError: no") + "epoch 1\nepoch 2\nProcess finished with exit code 0\n",
        f"{NO_CONDA}step 1 loss 2\nstep 2 loss 2\n",
        f"cp: cannot stat 'x': No such file or directory\n{NO_CONDA}All done!\n",
    ],
)
def test_output_of_another_program_shows_that_the_job_continued(text: str) -> None:
    assert told(text)[0] == ""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # Output after a crash that belongs to no other program: a summary, a stack, other ranks.
        (traceback("ValueError: no") + "wandb:   epoch 3\nwandb:   loss 0.1\n" * 2, "code_error"),
        (traceback("ValueError: no") + STACK, "code_error"),
        (traceback("ValueError: no", "[rank1]: ") + 8 * PLAIN, "code_error"),
        (traceback("ValueError: no") + 2 * PLAIN, "code_error"),
        (traceback("KeyboardInterrupt") + "saving\nsaved\n", "ctrl_c"),
        ("job.sh: line 3: 4711 Killed  python train.py\nDONE\n", "killed"),
        ("srun: error: n1: task 0: Exited with exit code 1\nDONE\n", "srun_exit"),
        (f"{LMOD}job began\njob ended\n", "lmod"),
    ],
)
def test_output_after_a_crash_may_belong_to_it(text: str, wanted: str) -> None:
    assert told(text)[0] == wanted


def test_last_of_several_killed_launches_is_diagnosed() -> None:
    killed = "job.sh: line 3: 4711 Killed  python train.py\n"
    assert told(f"{killed}{2 * PLAIN}{killed}")[::2] == ("killed", 32)
    steps = "".join(f"step {step} loss 2.{step}\n" for step in range(4))
    assert told(f"{killed}{steps}{killed}")[::2] == ("killed", 6)
    assert told(3 * killed)[::2] == ("killed", 1)


@pytest.mark.parametrize(
    "line",
    [
        "/var/spool/job4711/slurm_script: line 3: cd: /no/dir: No such file or directory",
        "cp: cannot stat '/no/dir': No such file or directory",
        "bash: /no/dir: Permission denied",
    ],
)
def test_missing_command_or_file_of_a_shell_is_named(line: str) -> None:
    cause = judge(f"{line}\n").cause
    assert cause is not None and cause.title.endswith("on the node: /no/dir")


def test_shell_error_before_a_cancellation_is_no_cause() -> None:
    end = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T08:00:03 ***\n"
    assert told(f"{NO_CONDA}reading\n{end}")[:3] == ("cancelled", "cancelled", 3)
    exited = "srun: error: n1: task 0: Exited with exit code 127\n"
    assert told(f"job.sh: line 3: torchrun: command not found\n{exited}")[0] == "no_command"


def test_python_warning_with_a_long_path_is_a_warning() -> None:
    path = f"/home/{'a' * 90}/torch/cuda/__init__.py"
    words = "CUDA initialization: The NVIDIA driver on your system is too old (found version 1)"
    assert told(f"{path}:141: UserWarning: {words}\n")[0] == ""
    assert told(f"RuntimeError: {words}\n")[0] == "driver_old"


STAMPS = [
    "2026-11-20 10:{0}:{1},123 INFO",
    "[2026-11-20 10:{0}:{1}] ",
    "11/20/2026 10:{0}:{1} - INFO -",
    "Nov 20 10:{0}:{1} n1 train:",
    "I1120 10:{0}:{1}.345 4711 train.cc:12]",
]


def ranks_logs(failed: dict[int, tuple[int, str]], stamps: list[str] = STAMPS) -> list[str]:
    """Write 16 ranks' logs with times in several forms; those that failed say so in a minute."""
    logs = []
    for rank in range(16):
        minute, error = failed.get(rank, (40, ""))
        stamp = stamps[rank % len(stamps)]
        text = "".join(f"{stamp.format(f'{n:02}', '07')} step {n}\n" for n in range(minute + 1))
        logs.append(text + (traceback(error) if error else ""))
    return logs


@pytest.mark.parametrize("stamp", [*STAMPS, ""])
def test_first_failed_of_16_ranks_is_the_cause(stamp: str) -> None:
    """Files of symptoms are read first; without times the first file decides."""
    symptom = "OSError: [Errno 28] No space left on device"
    failed = dict.fromkeys(range(16), (30, symptom)) | {11: (5, "KeyError: 'x'")}
    stamps = [stamp] if stamp else ["rank {0}{1}: "]
    assert told(*ranks_logs(failed, stamps))[0] == ("code_error" if stamp else "enospc")
    mixed = judge(*ranks_logs(failed), "no time at all\n").cause
    assert mixed is not None and (mixed.id, mixed.file) == ("code_error", "11.log")


def test_rank_with_a_known_cause_precedes_one_that_failed_seconds_earlier() -> None:
    failed = {3: (5, "KeyError: 'x'"), 9: (5, OOM)}
    assert told(*ranks_logs(failed))[0] == "cuda_oom"
    # Times with a zone cannot be compared with times without one.
    late = [log.replace("2026-11-20 10", "2026-11-20T19") for log in ranks_logs(failed)]
    zoned = [log.replace(",123 INFO", "Z INFO") for log in late]
    assert told(*zoned)[0] == "cuda_oom"


def test_times_across_new_year_are_ordered() -> None:
    new = f"2027-01-01 00:00:01 step 1\n{traceback('ValueError: no')}"
    old = f"2026-12-31 23:50:00 step 1\n{traceback('KeyError: 1')}"
    cause = judge(new, old).cause
    assert cause is not None and cause.file == "1.log"


def test_ctrl_c_of_the_launcher_precedes_errors_of_its_ranks() -> None:
    complaint = "RuntimeError: PytorchStreamWriter failed writing file"
    failed = dict.fromkeys(range(16), (9, complaint))
    launcher = f"[2026-11-20 10:08:30,5] [INFO] waits\n{traceback('KeyboardInterrupt')}"
    assert told(*ranks_logs(failed), launcher)[:2] == ("ctrl_c", "cancelled")


def test_watchdog_message_names_the_missing_rank() -> None:
    line = "[rank{0}]:[E1120 10:4{0}:07.345 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught "
    line += "collective operation timeout: WorkNCCL(SeqNum=24) ran for 1800083 milliseconds\n"
    texts = ["2026-11-20 10:00:00 packing data\n", *(line.format(rank) for rank in (3, 2, 1))]
    logs = [read(text, f"{at}.log") for at, text in enumerate(texts)]
    cause = diagnose(FailureEvidence(logs=logs, ranks=range(4))).cause
    assert cause is not None and cause.title.endswith("have waited for rank 0")
    assert (cause.rank, cause.file) == (1, "3.log")
    # The other ranks waited for the rank that had lost its workers.
    lost = "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"
    assert told(*texts[1:], f"{texts[0]}{traceback(lost, '[rank0]: ')}")[0] == "dl_worker_gone"


# ---- the records


def test_successful_run_has_no_cause() -> None:
    found = judge(traceback(OOM), records=EndRecords(state="COMPLETED", exit_code=0))
    assert (found.verdict, found.cause, found.also, found.fixes) == (None, None, [], [])


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        (EndRecords(state="TIMEOUT"), "time_limit"),
        (EndRecords(state="FAILED", why="time_limit"), "time_limit"),
        (EndRecords(state="PREEMPTED", why="preempted"), "preempted"),
        (EndRecords(state="NODE_FAIL"), "node_fail"),
        (EndRecords(state="CANCELLED", why="cancelled"), "cancelled"),
        (EndRecords(state="OUT_OF_MEMORY", rank=1, host="n1"), "oom_host"),
        (EndRecords(state="FAILED", unfit="2 of 8 GPUs", host="n1"), "node_fail"),
        (EndRecords(state="FAILED", why="stalled", stalled="rank 2 is in load"), "other"),
        (EndRecords(state="FAILED", exit_code=137, signal=9, rank=1, host="n1"), "oom_host"),
        (EndRecords(state="FAILED", exit_code=3, rank=1, host="n1"), "other"),
    ],
)
def test_records_alone_yield_a_cause(records: EndRecords, wanted: str) -> None:
    cause = judge(STEPS, records=records).cause
    assert cause is not None and cause.cls == wanted
    assert cause.title


def test_run_that_stopped_restarting_reports_the_reason() -> None:
    cause = judge(STEPS, records=EndRecords(state="TIMEOUT", gave_up="it saved nothing new")).cause
    assert cause is not None and cause.title.endswith("; it saved nothing new")
    for gave_up in ("", "it has had its 2 attempts"):
        records = EndRecords(state="PREEMPTED", gave_up=gave_up)
        fixes = diagnose(
            FailureEvidence(records=records, job=JobSettings(name="7", is_run=True))
        ).fixes
        assert any("survive" in fix for fix in fixes) is not bool(gave_up), fixes


def test_canceling_user_is_named_despite_launcher_signal() -> None:
    log = STEPS + traceback("torch.elastic.SignalException: Process 42 got signal: 15", at="run")
    asked = judge(log, records=EndRecords(state="FAILED", exit_code=1)).cause
    assert asked is not None and asked.title == "a process was asked to terminate"
    records = EndRecords(state="CANCELLED", cancelled_by="its user, me", exit_code=1)
    cause = judge(log, records=records).cause
    assert cause is not None and cause.title == "cancelled by its user, me"


REQUEUE = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-20T08:00:03 DUE TO JOB REQUEUE\n"


def test_ended_run_is_not_reported_as_restarting() -> None:
    assert judge(REQUEUE).fixes == ["nothing to do: it starts again"]
    for records in (EndRecords(state="FAILED", is_over=True), EndRecords(is_over=True)):
        found = judge(REQUEUE, records=records, job=JobSettings(name="7", is_run=True))
        assert found.cause is not None and found.cause.title.endswith("did not start again")
        assert found.fixes == ["hpcrun resubmit 7"]


def test_canceling_user_is_named_despite_a_pending_restart() -> None:
    step = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-20T08:00:03 ***\n"
    preempted = REQUEUE.replace("JOB REQUEUE", "PREEMPTION")
    records = EndRecords(state="CANCELLED", cancelled_by="me", when="after 17 s", is_over=True)
    for log in (REQUEUE, STEPS + step, preempted):
        cause = judge(log, records=records).cause
        assert cause is not None and cause.title == "cancelled by me, after 17 s", log


def test_killed_batch_script_is_the_cause() -> None:
    killed = EndRecords(state="FAILED", killed="the job's script was killed")
    step = (
        "slurmstepd: error: *** STEP 1.0 ON n1 FAILED (non-zero exit code or other failure mode)\n"
    )
    for log in (STEPS, REQUEUE, step):
        cause = judge(log, records=killed).cause
        assert cause is not None and cause.title == killed.killed, log
    assert told(STEPS + traceback(OOM), records=killed)[0] == "cuda_oom"


def test_crash_before_the_time_limit_is_the_cause() -> None:
    end = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-20T08:00:03 DUE TO TIME LIMIT\n"
    timeout = EndRecords(state="TIMEOUT")
    assert told(STEPS + end, records=timeout)[:3] == ("time_limit", "time_limit", LINES + 1)
    assert told(STEPS + traceback("KeyError: 1") + end, records=timeout)[0] == "code_error"
    assert told(traceback("KeyError: 1") + STEPS + end, records=timeout)[0] == "time_limit"


def test_signal_sent_only_to_the_ranks_is_a_cancellation() -> None:
    """``scancel --signal=TERM`` yields state FAILED; a failure in the log takes precedence."""
    said = "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-20T08:00:03 ***\n"
    stopped = EndRecords(state="FAILED", why="stopped", exit_code=143)
    cause = judge(said, records=stopped).cause
    assert cause is not None and "stopped by a signal" in cause.title
    assert told(STEPS + traceback("KeyError: 1") + said, records=stopped)[0] == "code_error"


# ---- fixes


def test_fixes_contain_the_numbers_of_the_job() -> None:
    job = JobSettings(
        name="4711", is_run=True, micro_batch=4, accumulation=2, memory_mib=1000, limit=3600
    )
    fixes = judge(traceback(OOM), job=job).fixes
    assert fixes[0].startswith(
        "hpcrun resubmit 4711 --set batch.micro_batch_per_gpu=2 "
        "--set batch.gradient_accumulation_steps=4"
    )
    memory = judge(records=EndRecords(state="OUT_OF_MEMORY"), job=job).fixes[0]
    assert memory == "hpcrun resubmit 4711 --set resources.memory_per_node=2000M"
    time = judge(records=EndRecords(state="TIMEOUT"), job=job).fixes[0]
    assert time == "hpcrun resubmit 4711 --time 2:00:00"
    saved = judge(
        records=EndRecords(state="TIMEOUT"), job=structs.replace(job, has_checkpoints=True)
    )
    assert saved.fixes[0] == f"{time}  # resumes from the checkpoints"
    assert "--set batch.gradient_accumulation_steps" in fixes[0]
    alone = judge(traceback(OOM), job=structs.replace(job, accepts_accumulation=False)).fixes[0]
    assert "accumulation_steps" not in alone and alone.endswith(
        "no gradient accumulation in the script"
    )
    # Without a job, commands have no id to refer to.
    assert not any("JOB" in fix for fix in judge(traceback("ValueError: no")).fixes)


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        (
            'Error in file(file, "rt") : cannot open the connection\nExecution halted\n',
            "code_error",
        ),
        ("Error in library(foo) : there is no package called 'foo'\n", "import"),
        ("Error: cannot allocate vector of size 3.0 Gb\n", "oom_host"),
        ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n', "oom_host"),
        ("luajit: cuda runtime error (2) : out of memory at x.cu:66\n", "oom_gpu"),
        ("F0101 10:00:00.0 4 x.cpp:9] Check failed: a == b (1 vs. 2)\n", "code_error"),
        ("terminate called after throwing an instance\n  what():  no model\n", "code_error"),
        ("job1/slurm_script: line 3: FOO: unbound variable\n", "code_error"),
        ("ERROR: Could not consume arg: --x\n", "code_error"),
        ("FATAL:   could not open image /x/a.sif: failed to retrieve path\n", "missing_file"),
        ("Batch 3: Invalid loss, terminating training\n", "numerics"),
    ],
)
def test_failures_of_non_python_programs_are_recognized(text: str, cls: str) -> None:
    assert told(STEPS + text)[1] == cls


def test_gpu_memory_fixes_are_commands_ordered_by_cost() -> None:
    job = JobSettings(name="7", is_run=True, framework="deepspeed", zero_stage=2)
    again = "hpcrun resubmit 7 --set deepspeed."

    def commands(job: JobSettings) -> list[str]:
        fixes = judge(traceback(OOM), job=job).fixes
        return [fix.partition("  #")[0] for fix in fixes if "deepspeed." in fix]

    assert commands(job) == [f"{again}zero_stage=3", f"{again}offload.optimizer=cpu"]
    offloaded = structs.replace(job, zero_stage=3, offload=["optimizer"])
    assert commands(offloaded) == [f"{again}offload.param=cpu"]
    assert commands(structs.replace(offloaded, offload=["optimizer", "param"])) == []
    assert commands(structs.replace(job, zero_stage=None)) == []
    # ZeRO-2 costs less speed than checkpointing, and ZeRO-3 more.
    fixes = judge(traceback(OOM), job=structs.replace(job, zero_stage=1)).fixes
    first, second = [fix for fix in fixes if "deepspeed." in fix or "checkpointing" in fix][:2]
    assert first.startswith(f"{again}zero_stage=2") and "checkpointing" in second
    keys = {"zero_stage": ["deepspeed.config.zero_optimization.stage"]}
    own = structs.replace(job, zero_keys=keys)
    assert commands(own)[0] == f"{again}config.zero_optimization.stage=3"
    script = structs.replace(job, deepspeed_file="conf/ds.json")
    assert commands(script) == []
    fixes = judge(traceback(OOM), job=script).fixes
    changes = [fix.partition("  #")[0] for fix in fixes if "ds.json" in fix]
    assert changes == [
        "set zero_optimization.stage to 3 in conf/ds.json",
        "set zero_optimization.offload_optimizer.device to cpu in conf/ds.json",
    ]
    trainer = structs.replace(job, framework="transformers")
    checkpointing = "hpcrun resubmit 7 -- --gradient_checkpointing true"
    assert any(fix.startswith(checkpointing) for fix in judge(traceback(OOM), job=trainer).fixes)
    trainer = structs.replace(trainer, arguments=["--gradient_checkpointing", "true"])
    assert not any("checkpointing" in fix for fix in judge(traceback(OOM), job=trainer).fixes)


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("nunpy", "did you mean numpy?"),
        ("transformer", "did you mean transformers?"),
        ("sklearn", "the package is called scikit-learn"),
        ("numpy", None),
        ("my_project", None),
    ],
)
def test_missing_module_suggests_the_nearest_name(module: str, hint: str | None) -> None:
    found = judge(traceback(f"ModuleNotFoundError: No module named '{module}'"))
    assert found.cause is not None and found.cause.title == f"No module named {module}"
    assert (found.fixes[0] if hint else None) == hint


def test_exception_without_a_message_shows_the_code_that_raised_it() -> None:
    text = traceback("AssertionError", "[rank1]: ")
    text = text.replace("raise RuntimeError('Address already in use')", "assert x > 0")
    cause = judge(text).cause
    assert cause is not None
    assert cause.title == "the program stopped with AssertionError: assert x > 0"
    cause = judge(traceback("ValueError: no")).cause
    assert cause is not None and cause.title == "the program stopped with ValueError: no"
