"""Errors that ended nothing: caught, retracted, or part of another launch."""

from __future__ import annotations

import time

import pytest

from hpcrun.why.ends import EndRecords
from hpcrun.why.rules import BY_ID
from tests.why.logs import CHILD, OOM, STEPS, judge, told, traceback


def test_exception_in_thread_is_no_cause_if_training_continues() -> None:
    error = traceback("ValueError: no").replace("in <module>", "in run")
    text = f"Exception in thread Thread-2:\n{error}"
    assert told(text)[0] == "code_error"
    assert told(f"{text}step 1 loss 2.0\nstep 2 loss 2.0\n")[0] == ""


def test_logged_traceback_is_no_cause_if_training_continues() -> None:
    error = traceback("ValueError: no", at="data.py").replace("in <module>", "in load")
    logged = f"2026-11-20 08:00:00 ERROR {error}"
    assert told(logged)[:3] == ("code_error", "code_error", 4)
    assert told(f"{logged}step 1 loss 2.0\nstep 2 loss 2.0\n")[0] == ""
    assert told(f"2026-11-20 08:00:00 WARNING {error}")[0] == ""
    assert told(f"2026-11-20 ERROR Task exception was never retrieved\nfuture: x\n{error}")[0] == ""


def test_worker_error_is_no_cause_if_all_ranks_continue() -> None:
    line = "[rank1]: ValueError: a question has no answer\n"
    assert told(line + "[rank0]: words\n" * 9)[0] == "code_error"
    assert told(line + "[rank0]: words\n" * 40)[0] == ""


def test_repeated_worker_errors_are_no_cause() -> None:
    lines = "".join(f"(Worker pid=4) ValueError: question {n} has no answer\n" for n in range(30))
    assert told(lines[:90])[0] == "code_error"
    assert told(lines + STEPS + lines)[0] == ""


@pytest.mark.parametrize(
    "line",
    [
        "Test: [{}/124] Data 75",
        "08:00:00 INFO request {} answered",
        "[08:00:00] request {} is answered",
        "- file {}",
        "/data/{}.jpg",
        "| {} | 0.5 |",
    ],
)
def test_other_output_after_an_error_shows_that_the_program_continued(line: str) -> None:
    after = "".join(f"{line.format(n)}\n" for n in range(120))
    error = traceback("ValueError: no")
    for begin in (error, error.replace("<module>", "load"), f"{OOM}\n"):
        assert told(begin + after)[0] == ""


@pytest.mark.parametrize(
    "end",
    [
        traceback("ValueError: no"),
        "train.py: error: unrecognized arguments: --x\n",
        "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-20T08:00:03 ***\n",
        "run.sh: line 3: 4711 Killed                  python train.py\n",
        "the page says: No space left on device\n",
    ],
)
def test_a_thousand_lines_after_an_error_show_that_the_program_continued(end: str) -> None:
    after = [f"Error with {n}, confirm existence\n" for n in range(1200)]
    assert told(end + "".join(after))[0] == ""
    assert told(end + "".join(after[:800]))[2] == end.count("\n")
    assert told(f"[rank1]: step\n{end}[rank0]: step\n{''.join(after)}")[0] == "", "of no rank"
    ranks = "".join(f"[rank1]: {line}" for line in after)
    assert told(f"[rank1]: ValueError: no\n{end}{ranks}")[0] != "", "of the other ranks"


@pytest.mark.parametrize(
    "line",
    [
        "-rw-r--r-- 1 u g 1.2K Jan  5 12:00 model_{}.pt",
        "results/model_{}.pt",
        "removed 'results/model_{}.pt'",
        "'model_{0}.pt' -> '/home/u/model_{0}.pt'",
    ],
)
def test_file_list_after_an_error_does_not_show_progress(line: str) -> None:
    after = [f"{line.format(n)}\n" for n in range(60)]
    assert told(traceback(OOM) + "".join(after))[0] == "cuda_oom"
    assert told(traceback(OOM) + "saved ".join(["", *after]))[0] == ""


def test_end_line_of_batch_script_does_not_show_progress() -> None:
    assert told(f"{OOM}\nDone\n")[0] == "cuda_oom"
    assert told(f"{OOM}\nstep 1 loss 2.0\nDone\n")[0] == told(f"{OOM}\nTraining done\n")[0] == ""


@pytest.mark.parametrize(
    "line",
    [
        "wandb: Tracking run with wandb version 0.16.1",
        "I tensorflow/core/x.cc:210] This TensorFlow binary is optimized to use instructions",
    ],
)
def test_startup_message_of_a_library_marks_another_launch(line: str) -> None:
    assert told(f"{traceback(OOM)}{line}\n")[0] == ""
    assert told(f"{traceback(OOM)}wandb: Run summary of TensorFlow\n")[0] == "cuda_oom"


def test_gpu_assertion_always_ends_the_program() -> None:
    failed = "x.cu:3: f: block: [0,0,0], thread: [3,0,0] Assertion `t < n` failed.\n"
    bars = "Training:   0%|   | 2/9 [00:02<33, 1.19s/it]\nEpoch 1:   0%|   | 0/8 [00:02<?, ?it/s]\n"
    assert told(failed + bars)[0] == "device_assert"
    assert told(failed + STEPS)[0] == told(f"ValueError: no\n{bars}")[0] == ""


def test_python_warning_after_an_error_marks_another_launch() -> None:
    warned = "/env/x/numpy.py:22: RuntimeWarning: numpy.dtype size changed\n"
    assert told(traceback("ValueError: no") + warned)[0] == ""
    tracker = warned.replace("numpy.py", "resource_tracker.py")  # it outlives the program
    assert told(traceback("ValueError: no") + tracker)[0] == "code_error"
    assert told(traceback("ValueError: no", "[rank1]: ") + warned)[0] == "code_error"


def test_launches_are_separated_by_lines_between_events() -> None:
    failed = "x.cu:3: f: block: [0,0,0], thread: [3,0,0] Assertion `t < n` failed.\n"
    ended = traceback("RuntimeError: CUDA error: device-side assert triggered")
    words = "a b\n" * 25
    assert told(f"{ended}words\n{failed * 32}")[2] == 4, "of one launch"
    assert told(f"{ended}{words}{failed * 32}")[2] == 30


def test_source_lines_shown_by_ipython_are_no_errors() -> None:
    code = '--> 218     raise NotImplementedError("You need a GPU: No CUDA GPUs are available")\n'
    error = "RuntimeError: No CUDA GPUs are available\n"
    assert told(f"{code}{error}")[2] == 2
    assert told(f"{code[4:]}{error}")[2] == 1


def test_shell_trace_after_a_failed_command_shows_progress() -> None:
    failed = "+ cp x /app\ncp: cannot stat 'x': No such file or directory\n"
    assert told(f"{failed}+ true\nINFO: a file is made\n")[0] == ""
    assert told(f"{failed}+ truncate y\nINFO: a file is made\n")[0] == "shell_no_file"


@pytest.mark.parametrize("line", ["    Shape: f32[{}]", "#{} main ()", "/lib/x.so [0x7f3a{:08x}]"])
def test_lines_of_a_message_or_stack_do_not_show_progress(line: str) -> None:
    after = "".join(f"{line.format(n)}\n" for n in range(120))
    assert told(traceback("ValueError: no") + after)[2] == 4


def test_repeated_first_line_of_the_log_marks_another_launch() -> None:
    banner = "08:00:00 Setting up the training script\n"
    text = f"{banner}{traceback('ValueError: no')}"
    assert told(text)[0] == "code_error"
    assert told(f"{text}{banner}ready\n")[0] == ""
    assert told(f"{text}{banner}{traceback('KeyError: 3')}")[2] == 10
    ruled = f"{'-' * 40}\nProlog\n{traceback('ValueError: no')}{'-' * 40}\nEpilog\n"
    assert told(ruled)[2] == 6, "a line is no banner"


def test_repeated_settings_block_marks_another_launch() -> None:
    heading = "\n===== Training Configuration =====\n"
    error = traceback("ValueError: no")
    text = f"nohup: ignoring input\n{heading}seed : {{}}\n{error}"
    assert told(f"{text}{heading}seed : 4\n")[0] == ""
    for other in (heading, "\n===== Best Model =====\n"):  # written late, or a result
        assert told(f"{text.replace(heading, '')}{other}seed : 4\n")[0] == "code_error"
    results = "\n===== Best Model =====\n"
    assert told(f"{text.replace(heading, results)}{results}seed : 4\n")[0] == "code_error"


def test_cancellation_after_a_failed_single_process_launch_is_the_cause() -> None:
    """The processes of one program have different numbers."""
    text = f"Process Process-1:\n{traceback('ValueError: no').replace('<module>', 'run')}{{}}"
    text += "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-20T08:00:03 ***\n"
    steps = "".join(f"step {step} loss 2.{step}\n" for step in range(4)) + "words\n" * 20
    assert told(text.format(steps))[0] == "step_cancelled"
    assert told(text.format(""))[0] == "code_error"
    assert told(text.replace("Process-1", "Process-2").format(steps))[0] == "code_error"


def test_launcher_banner_marks_another_launch() -> None:
    ranks = "".join(traceback("ValueError: no", f"[rank{rank}]: ") for rank in (0, 1))
    plain = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    for begin in (
        f"WARNING:__main__:\n*****\n{plain}",
        f"W0530 torch/distributed/run.py:9] {plain}",
    ):
        assert told(f"{ranks}{begin}ready\n")[0] == ""
        assert told(ranks + begin + ranks)[2] == 12 + begin.count("\n")
    assert told(f"{ranks}*****\n{plain}ready\n")[0] != "", "an older one writes it at its end"


def test_errors_after_an_interrupt_are_no_cause() -> None:
    text = traceback("KeyboardInterrupt") + traceback("RuntimeError: no lock", "[rank1]: ")
    assert told(text)[:3] == ("ctrl_c", "cancelled", 4)
    other = traceback("RuntimeError: no lock", "[rank1]: ") + traceback("KeyboardInterrupt")
    assert told(other)[0] == "code_error"


@pytest.mark.parametrize("by", ["KeyboardInterrupt", "x.SignalException: Process 4 got signal: 1"])
def test_chained_errors_after_an_interrupt_are_no_cause(by: str) -> None:
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    for chain in (("queue.Empty", by), (by, "ValueError: no"), (by, "KeyError: 30", by)):
        assert told(during.join(map(traceback, chain)))[1] == "cancelled", chain
    chain = (OOM, by)
    assert told(during.join(map(traceback, chain)))[0] == "cuda_oom"


def test_traceback_torn_by_another_rank_is_no_cause() -> None:
    root = traceback("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'")
    torn = traceback('RuntimeError:   File "train.py", line 3, in main')
    assert told(root + "waiting\n" * 60 + torn)[:3] == ("no_file", "missing_file", 4)


def test_terminated_long_after_a_launcher_failure_is_another_launch() -> None:
    text = traceback("ValueError: no") + CHILD
    assert told(f"{text}{'quiet' * 9}\nTerminated\n")[0] == "code_error"
    again = "a setting\n" * 200
    assert told(f"{text}{again}Terminated\n")[:2] == ("terminated", "cancelled")


def test_rank_and_host_are_taken_from_torchrun_report() -> None:
    report = (
        f"{CHILD}Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_08:00:00\n"
        "  host      : gpu07\n  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 4242)\n"
    )
    cause = judge(traceback("ValueError: no") + report).cause
    assert cause is not None and (cause.rank, cause.host) == (2, "gpu07")
    cause = judge(traceback("ValueError: no", "[rank1]: ") + report).cause
    assert cause is not None and (cause.rank, cause.host) == (1, None)


def test_first_failed_rank_of_torchrun_report_is_the_cause() -> None:
    text = "".join(traceback("ValueError: no", f"[rank{rank}]: ") for rank in (1, 2, 0))
    text += (
        f"{CHILD}Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_08:00:00\n"
    )
    text += "  host      : node1\n  rank      : 2 (local_rank: 2)\n"
    cause = judge(text).cause
    assert cause is not None
    assert (cause.line, cause.rank, cause.host) == (8, 2, "node1")


def test_killed_rank_is_taken_from_torchrun_report() -> None:
    text = "failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python\n"
    text += "Root Cause (first observed failure):\n[0]:\n  host      : node1\n"
    text += "  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 7)\n"
    cause = judge(text).cause
    assert cause is not None
    assert (cause.cls, cause.rank, cause.host) == ("oom_host", 0, "node1")


def test_only_host_in_the_log_is_the_host_of_a_single_process() -> None:
    ended = "srun: error: {}: task 0: Exited with exit code 1\n"
    cause = judge(traceback("ValueError: no") + ended.format("node7")).cause
    assert cause is not None
    assert (cause.line, cause.rank, cause.host) == (4, 0, "node7")
    two = judge(traceback("ValueError: no") + ended.format("node7") + ended.format("node8")).cause
    assert two is not None
    assert (two.line, two.host) == (4, None)


@pytest.mark.parametrize(
    "after",
    [
        "WARNING:pipeline:the evaluation failed: Command 'python eval.py' returned 1\n",
        "falling back to the slow tokenizer\n",
        "one sample is skipped\n",
        "Retrying in 3 s\n",
    ],
)
def test_error_retracted_by_the_next_line_is_no_cause(after: str) -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'\n"
    assert told(f"start\n{error}{after}the results are in out/\n")[0] == ""
    assert told(f"start\n{error}the results are in out/\n")[0] == "no_file"
    failed = EndRecords(state="FAILED", exit_code=1)
    assert told(f"start\n{error}{after}", records=failed)[0] == "no_file"


def test_retracted_message_includes_its_tracebacks() -> None:
    """A library explains this way why none of the decoders it tries can be loaded."""
    error = traceback("OSError: no decoder", at=f"{LIBRARY}/x/load.py").replace("<module>", "load")
    text = f"GPU decode unavailable (\nVersion 8:\n{error}\nVersion 7:\n{error}"
    for end in ("\n", "\r\n"):
        taken_back = f"{text}[end]; trying decord/OpenCV.\nfound 3\n".replace("\n", end)
        assert told(taken_back)[0] == ""
        assert told(f"{text}[end]; trying hard to load\n".replace("\n", end))[2] == 6
        other = traceback("ValueError: no").replace("<module>", "load") + "reading\n" * 5
        assert told(other.replace("\n", end) + taken_back)[2] == 4


def test_shell_error_is_no_cause_if_python_ran_afterwards() -> None:
    warned = "/env/x/trainer.py:131: FutureWarning: `GradScaler(args...)` is deprecated.\n"
    for line in (
        "CondaError: Run 'conda init' before 'conda activate'\n",
        "job.sh: line 3: module: command not found\n",
    ):
        assert told(f"{line}{warned}ready\n")[0] == ""
        assert told(f"{line}x: a warning: it is deprecated\nready\n")[0] == "no_command"
    assert told(f"job.sh: line 3: 4711 Killed  python train.py\n{warned}")[0] == "killed"


def test_printed_error_text_is_no_cause() -> None:
    error = "Error(s) in loading state_dict for Net:\n"
    assert told(f"{error}{STEPS[:48]}")[0] == ""
    assert told(f"{error}Epoch 1/5\n" + "plain words\n" * 15)[0] == ""
    assert told(f"{error}Epoch 1/5\n")[0] == "size_mismatch", "of another rank, perhaps"
    assert told(f"[rank1]: {error}{STEPS[:48]}")[0] == "size_mismatch"
    assert told(error + "plain words\n" * 40)[0] == ""
    assert told(f"{error}plain words\n")[0] == "size_mismatch"
    assert told(traceback(f"RuntimeError: {error}".strip()) + "plain words\n" * 25)[0] != ""


@pytest.mark.parametrize("rule", ["slurm_oom", "xid", "nccl_watchdog", "nan_raised", "enospc"])
def test_progress_of_another_rank_does_not_clear_an_error(rule: str) -> None:
    line = {
        "nan_raised": "Loss is nan, stopping training",
        "xid": "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
    }.get(rule, BY_ID[rule].example)
    for prefix in ("", "[rank1]: "):
        for count in (1, 2, 4):
            assert told(f"step 1 loss 2.0\n{prefix}{line}\n{STEPS[: 16 * count]}")[0] == rule
    assert told(f"step 1 loss 2.0\n{line}\n{STEPS}")[0] == "", "of another launch"


def test_output_after_the_end_of_the_only_task_is_another_launch() -> None:
    ended = "srun: error: n1: task {}: Exited with exit code 1\n"
    error = traceback("ValueError: no")
    assert told(error + ended.format(0) + STEPS[:48])[0] == ""
    assert told(error + ended.format(1) + STEPS[:48])[0] == "code_error", "task 0 goes on"


def test_output_after_the_end_of_a_launcher_is_another_launch() -> None:
    ranks = "".join(traceback("ValueError: no", f"[rank{rank}]: ") for rank in (0, 1))
    again = "".join(f"epoch {n} of 20\n" for n in range(6))
    assert told(f"{ranks}{CHILD}{again}")[0] == ""
    assert told(f"{ranks}{again}")[0] == "code_error", "the other ranks may be alive"


def test_missing_cgroup_files_of_slurmstepd_are_no_cause() -> None:
    of_cgroup = "error: failed on path (null)/cgroup.procs: No such file or directory\n"
    assert told(f"step 1\nslurmstepd: {of_cgroup}")[0] == ""
    assert told(f"step 1\n{of_cgroup}")[0] == "shell_no_file"


@pytest.mark.parametrize(
    ("last", "line"),
    [
        ('Error: Error("invalid type: null, expected f64", line: 33, column: 10)\n', 2),
        ("[01/02/2026-08:00:00] [E] Engine set up failed\n&&&& FAILED convert # --onnx=x\n\n", 2),
        ("Error: 0.25\n", None),
        ("Error: it is only said\nand the program goes on\n", None),
    ],
)
def test_last_lines_of_a_log_are_recognized_as_its_end(last: str, line: int | None) -> None:
    assert told(f"start\n{last}")[1:3] == ("code_error" if line else "", line)


@pytest.mark.parametrize(
    ("prefix", "host"),
    [
        ("[1581715406.914568] [gpu12:42393:2] ", "gpu12"),
        ("[gpu12:42393] ", "gpu12"),
        ("gpu12:4711:4720 [0] ", "gpu12"),
        ("[trainer2.py:1234] ", None),
    ],
)
def test_host_is_read_from_the_line_prefix(prefix: str, host: str | None) -> None:
    cause = judge(f"{prefix}CUDA error: out of memory\n").cause
    assert cause is not None and cause.host == host


@pytest.mark.slow
def test_log_with_an_error_on_every_line_is_read_within_seconds() -> None:
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]
    lines = [f"{word} failed: ValueError: no {word} in {n}\n" for n in range(400) for word in words]
    text = "".join(lines) + traceback(OOM)
    began = time.process_time()
    assert told(text)[0] == "cuda_oom"
    assert time.process_time() - began < 20  # 13 MB


def test_lines_after_a_truncated_traceback_are_not_part_of_it() -> None:
    cut = "".join(traceback("ValueError: no").splitlines(keepends=True)[:3])
    assert told(f"{cut}Resource usage summary:\n    Max Memory :     100 MB\n")[2] == 3
    assert told(f'{cut}words\n  File "x.py", line 3, in f\n    g()\nKeyError: 3\n')[2] == 7


def test_lines_before_the_first_frame_are_no_exception() -> None:
    head, frames = traceback("Interrupted: no").split("\n", 1)
    assert told(f"{head}\nStep: 99 (0) | Loss: 1.3\n{frames}")[2] == 5
    assert told(f"{head}\n{frames}")[2] == 4


def test_ray_task_error_is_replaced_by_its_original_exception() -> None:
    text = traceback(
        "ray.exceptions.RayTaskError(ValueError): ray::main() (pid=4, ip=10.0.0.2)\n  x"
    )
    assert told(f"{text}ValueError: no\n")[:3] == ("code_error", "code_error", 6)


@pytest.mark.parametrize(
    ("line", "cls"),
    [
        ("./run.sh: line 9: 74849 Killed: 9               python3 train.py", "oom_host"),
        ("srun: error: n1: task 0: Bus error", "shm"),
        ("srun: error: n1: task 0: Exited with exit code 1", "other"),
        ("error: *** JOB 1 ON n1 CANCELLED AT 08:00:00 DUE to SIGNAL Terminated ***", "cancelled"),
        ("XlaRuntimeError: Graph is not implemented for CUDA below version 12.3.", "driver"),
        ("requests.exceptions.ChunkedEncodingError: Connection broken", "auth_network"),
        ("Detected KeyboardInterrupt, attempting graceful shutdown ...", "cancelled"),
        ("RuntimeError: Ran out of memory in memory space hbm. Used 100G of 31G hbm.", "oom_gpu"),
        ("RuntimeError: can't alloc", "oom_host"),
        ("RuntimeError: can't allocate a port", "code_error"),
        ("08:00:00 - DEBUG - SIGINT received, delaying KeyboardInterrupt...", "cancelled"),
        ("FatalError: `Termination signal` is detected by the operating system.", "cancelled"),
        ("FatalError: `Segmentation fault` is detected by the operating system.", "code_error"),
        ("srun: Job has been cancelled", "cancelled"),
        ("srun: error: Unable to allocate resources: Job/step already completing", "cancelled"),
        ("srun: error: Unable to allocate resources: Invalid account", "other"),
        ('FATAL:   "bris": executable file not found in $PATH', "missing_file"),
        ("Exited with exit code 1.", "other"),
        ("{\x08Error using writetable (line 155)", "code_error"),
        ("Error in rule align_with_bwa:", "code_error"),
    ],
)  # fmt: skip
def test_variants_of_error_messages_are_recognized(line: str, cls: str) -> None:
    assert told(f"{line}\n")[1:3] == (cls, 1)


def test_aborted_step_without_a_failed_task_was_cancelled() -> None:
    abort = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    ended = f"{abort}slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-20T08:00:03 ***\n"
    exited = "srun: error: n1: task 0: Exited with exit code 1\n"
    assert told(ended)[1:3] == ("cancelled", 2)
    assert told(exited + ended)[1:3] == ("other", 1)


def test_optional_library_error_ranks_below_an_exception() -> None:
    line = "LOADER: failed to open x: x.so: cannot open shared object file: No such file\n"
    assert told(line)[1] == "import"
    assert told(line + traceback("ValueError: no"))[0] == "code_error"


def test_thread_errors_after_the_end_of_training_are_no_cause() -> None:
    error = traceback("AssertionError: no").replace("in <module>", "in run")
    assert told(f"{STEPS}End of training.\nException in thread Thread-1:\n{error}")[0] == ""


def test_logged_exception_at_the_end_ranks_above_a_timeout() -> None:
    timeout = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran\n"
    assert told(timeout, f"08:00:00 ERROR {traceback('ValueError: no')}")[0] == "code_error"


LIBRARY = "/env/lib/python3.10/site-packages"
IN_THREAD = (
    "Exception in thread Thread-5 (_pin_memory_loop):\nTraceback (most recent call last):\n"
    '  File "{}/loop.py", line 5, in _pin_memory_loop\n    call()\n'
)


@pytest.mark.parametrize(
    ("ended", "failed"),
    [
        (
            f"{IN_THREAD.format(LIBRARY)}EOFError\n",
            f"{IN_THREAD.format('/home/u/project')}EOFError\n",
        ),
        (
            traceback("OSError: [Errno 16] Device or resource busy: '.nfs0'", at="util.py").replace(
                "<module>", "_run_finalizers"
            ),
            traceback("OSError: [Errno 16] Device or resource busy: '.nfs0'"),
        ),
        (
            f"Error waiting on exit barrier.\n{traceback('RuntimeError: Broken pipe')}",
            f"Waiting on the barrier.\n{traceback('RuntimeError: Broken pipe')}",
        ),
        (
            traceback("AttributeError: _ARRAY_API not found"),
            traceback("AttributeError: array not found"),
        ),
        ("[W socket.cpp:697] The client socket has failed to connect to [n1]:29500\n", ""),
        ("CUDA out of memory. Tried to allocate 2 GiB, retrying with 8\n", f"{OOM}\n"),
        ("OSError: Address already in use\nTrying port 81\n", "OSError: Address already in use\n"),
        (
            traceback("ImportError: no", at=f"{LIBRARY}/x/__init__.py"),
            traceback("ImportError: no", at="/home/u/x/__init__.py"),
        ),
        (
            traceback("ValueError: no", "W0530 14:48:26.4 42 torch/x.py:9] "),
            traceback("ValueError: no", "E0530 14:48:26.4 42 torch/x.py:9] "),
        ),
        ("09:26.055 [I] x.so: cannot open shared object file\n", ""),
        ("slurmstepd: error: couldn't chdir to `/x': No such file: going to /tmp instead\n", ""),
        ("KeyError: 3\n", "KeyError: 'three'\n"),
        ("[W::find] no reference: Input/output error\n", "cp: x: Input/output error\n"),
        ("Error analysis is in out.csv\n", "Error: analysis is not in out.csv\n"),
        ("4711 Killed     nvidia-smi dmon\n", "4711 Killed     python train.py\n"),
    ],
)
def test_harmless_errors_are_no_cause_and_fatal_ones_are(ended: str, failed: str) -> None:
    assert told(STEPS + ended)[0] == ""
    assert not failed or told(STEPS + failed)[2] == (STEPS + failed).count("\n")


def test_caught_and_printed_exception_is_no_cause_if_training_continues() -> None:
    error = traceback("ValueError: no")
    caught = error.replace("<module>", "load")
    after = "step 38 loss 2.3\nstep 39 loss 2.3\n"
    assert told(STEPS + caught + after)[0] == ""
    assert told(STEPS + caught)[0] == told(STEPS + error + after)[0] == "code_error"
    answered = error.replace("train.py", "<string>")
    assert told(f"{STEPS}answer: {answered}{after}")[0] == ""


def test_wandb_summary_after_a_failure_is_no_progress() -> None:
    names = ("loss", "epoch", "eval/accuracy", "train/loss", "step", "score")
    summary = "".join(f"\x1b[34m\x1b[1mwandb\x1b[0m: {name} 3\n" for name in names * 9)
    assert told(STEPS + traceback(OOM) + summary)[0] == "cuda_oom"
    assert told(STEPS + traceback(OOM) + summary.replace("wandb", "train"))[0] == ""
