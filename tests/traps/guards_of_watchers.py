"""The guards against traps 35 to 59 of docs/traps.md, and the tests that fail without them."""

from __future__ import annotations

from tests.traps.mutants import guard

HARNESS = "templates/harness.sh"
BATCH = "templates/batch.sh"
RENDEZVOUS, SIGNALS = "tests/traps/test_rendezvous.py", "tests/traps/test_signals.py"
WATCHING = "tests/traps/test_watching.py"
ALONE, VERDICT = "tests/test_harness.py", "tests/runs/test_verdict.py"
DIALECT, SCHEDULER = "tests/slurm/test_dialect.py", "tests/slurm/test_client.py"

GUARDS = [
    # ---- Signals, exit codes, requeue
    guard(
        35,
        "hpcrun/spec/rules.py",
        '    "signal": "survive: {save',
        '    "signals": "survive: {save',
        f"{SIGNALS}::test_signal_option_of_sbatch_is_refused",
    ),
    guard(
        36,
        BATCH,
        "    ) <&0 {python}<&- &\n    child=$!\n",
        "    ) <&0 {python}<&-\n    sh -c 'exit $0' $? &\n    child=$!\n",
        f"{SIGNALS}::test_stop_signal_is_handled_while_the_job_runs",
    ),
    guard(
        37,
        HARNESS,
        '    while kill -0 "$1"; do wait "$1"; done\n',
        "",
        f"{SIGNALS}::test_ranks_have_time_to_save_when_slurm_stops_the_job",
    ),
    guard(
        37,
        BATCH,
        '    while kill -0 "$child" 2>/dev/null && [ $tenths -lt $most ]; do\n',
        "    while false; do\n",
        f"{SIGNALS}::test_ranks_have_time_to_save_when_slurm_stops_the_job",
    ),
    guard(
        38,
        BATCH,
        '|| { code_of "$child"; return; }\n',
        "|| return 0\n",
        f"{ALONE}::test_setup_that_exits_before_the_launch_is_not_success",
    ),
    guard(
        38,
        HARNESS,
        '    code_of "$child"\n    code=$?\n',
        '    code_of "$child" || true\n    code=$?\n',
        f"{ALONE}::test_failed_job_has_the_exit_code_of_its_rank",
    ),
    guard(
        38,
        "hpcrun/jobside/finish.py",
        '            found = first.get("exit_code")\n',
        "            found = code\n",
        f"{ALONE}::test_rank_that_failed_first_is_named",
        f"{SIGNALS}::test_exit_code_is_that_of_the_first_failure",
    ),
    guard(
        (39, 40),
        HARNESS,
        "    trap asked_to_stop TERM INT\n",
        "    trap - TERM INT\n",
        f"{SIGNALS}::test_ranks_have_time_to_save_when_slurm_stops_the_job",
    ),
    guard(
        43,
        "hpcrun/plan/directives.py",
        '("no-requeue", None if restarts or by_slurm else True)',
        '("requeue", None if restarts or by_slurm else True)',
        f"{SIGNALS}::test_failed_job_is_not_requeued",
    ),
    guard(
        44,
        BATCH,
        '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]',
        '[ "$SLURM_RESTART_COUNT" -gt 0 ]',
        f"{SIGNALS}::test_first_start_has_restart_count_zero",
    ),
    guard(
        44,
        BATCH,
        '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]',
        "false",
        f"{SIGNALS}::test_first_start_has_restart_count_zero",
    ),
    guard(
        46,
        HARNESS,
        ' IFS= read -r MASTER_ADDR <&"$place" || is_bare || exit 1\n',
        ' IFS= read -r MASTER_ADDR <&"$place"\n',
        f"{RENDEZVOUS}::test_failing_address_lookup_ends_the_job",
    ),
    guard(
        46,
        "templates/setup.sh",
        "    set -e\n",
        "    set -eu\n",
        f"{SIGNALS}::test_setup_may_use_unset_variables",
    ),
    guard(
        46,
        "templates/setup.sh",
        "    set -e\n",
        "",
        f"{SIGNALS}::test_failing_setup_ends_the_job",
    ),
    guard(
        45,
        "hpcrun/slurm/commands.py",
        'return ["scancel", *(',
        'return ["scancel", "--name", *(',
        "tests/slurm/test_captured.py::test_captured_command_is_the_one_that_hpcrun_runs",
    ),
    # ---- Watching
    guard(
        47,
        "hpcrun/monitor/poll.py",
        "QUERY_PAUSE_S, MAX_QUERY_PAUSE_S, PAUSE_GROWTH = 30.0,",
        "QUERY_PAUSE_S, MAX_QUERY_PAUSE_S, PAUSE_GROWTH = 0.1,",
        "tests/cli/test_follow.py::test_pending_job_is_queried_rarely",
    ),
    guard(
        47,
        "hpcrun/monitor/status.py",
        "client.query_queue(transport, asked if by_ids else (), strict=is_strict)\n",
        "[row for one in asked for row in client.query_queue(transport, [one])]\n",
        "tests/cli/test_slurm_verbs.py::test_many_runs_need_one_query",
    ),
    guard(
        48,
        "hpcrun/runs/verdict.py",
        "    if last is None and quiet < SUBMISSION_GRACE_S:\n",
        "    if False:\n",
        f"{VERDICT}::test_state_is_decided_from_all_evidence",
    ),
    guard(
        49,
        "hpcrun/runs/verdict.py",
        "    if not evidence.in_reach:\n",
        "    if False:\n",
        f"{VERDICT}::test_state_is_decided_from_all_evidence",
        f"{VERDICT}::test_invariants_hold_for_all_evidence",
    ),
    guard(
        50,
        "hpcrun/slurm/states.py",
        'words = text.replace("+", " ").split()',
        "words = [text]",
        f"{DIALECT}::test_every_state_of_slurm_is_parsed",
    ),
    guard(
        51,
        "hpcrun/slurm/jobs.py",
        '"--parsable2", f"--delimiter',
        '"--json", f"--delimiter',
        "tests/slurm/test_captured.py::test_captured_command_is_the_one_that_hpcrun_runs",
    ),
    guard(
        52,
        "hpcrun/slurm/states.py",
        "return state if state in WAITING | ACTIVE | FINAL else UNKNOWN",
        'return state if state in WAITING | ACTIVE | FINAL else "COMPLETED"',
        f"{DIALECT}::test_every_state_of_slurm_is_parsed",
        f"{DIALECT}::test_unknown_state_is_never_final",
    ),
    guard(
        52,
        "hpcrun/slurm/states.py",
        '"SUSPENDED", ',
        "",
        f"{WATCHING}::test_every_state_of_slurm_is_known",
    ),
    guard(
        53,
        "hpcrun/slurm/jobs.py",
        '"--noheader", f"--states={states}", "--array"]',
        '"--noheader", f"--states={states}"]',
        "tests/slurm/test_captured.py::test_captured_command_is_the_one_that_hpcrun_runs",
    ),
    guard(
        54,
        "hpcrun/logs/files.py",
        "        if not data.startswith(place.seen):\n",
        "        if False:\n",
        "tests/logs/test_tail.py::test_truncated_file_is_read_again",
    ),
    guard(
        55,
        "hpcrun/plan/environment.py",
        '        "PYTHONUNBUFFERED": "1",\n',
        "",
        f"{SIGNALS}::test_output_is_unbuffered",
    ),
    guard(
        55,
        HARNESS,
        '    exec >>"$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT/rank-$RANK.log" 2>&1\n',
        "",
        f"{SIGNALS}::test_lines_of_ranks_are_not_mixed",
    ),
    guard(
        55,
        "hpcrun/logs/files.py",
        """max(data.rfind(b"\\n"), data.rfind(b"\\r", 0, -1)) + 1""",
        """data.rfind(b"\\n") + 1""",
        f"{WATCHING}::test_progress_bar_update_is_a_line",
    ),
    guard(
        58,
        "hpcrun/slurm/client.py",
        "                    return job.array  # the array's id, not that of one task\n",
        "                    continue\n",
        f"{SCHEDULER}::test_lost_reply_is_resolved_by_the_run_folder",
    ),
    guard(
        58,
        "templates/records.sh",
        '        ! mkdir -m "$mode" -- "$1/attempts/$attempt" 2>/dev/null || break\n',
        '        ! mkdir -p -- "$1/attempts/$attempt" 2>/dev/null || break\n',
        f"{ALONE}::test_one_of_many_concurrent_jobs_runs",
        f"{ALONE}::test_duplicate_job_ends_immediately_and_changes_nothing",
    ),
]
