"""The guards against traps 1 to 34 of docs/traps.md, and the tests that miss each of them.

Pure.
"""

from __future__ import annotations

from tests.traps.mutants import guard

HARNESS = "templates/harness.sh"
WORLD = "templates/world.sh"
HEADER, STEP = "tests/traps/test_header.py", "tests/traps/test_step.py"
RENDEZVOUS = "tests/traps/test_rendezvous.py"
ALONE, DIALECT = "tests/test_harness.py", "tests/slurm/test_dialect.py"

GUARDS = [
    # ---- The header
    guard(
        1,
        "templates/job.sbatch.j2",
        "{% block directives %}\n",
        "set -u\n{% block directives %}\n",
        "tests/render/test_golden.py::test_sbatch_reads_the_plans_directives",
        f"{HEADER}::test_a_script_of_the_job_is_no_second_header",
    ),
    guard(
        2,
        "hpcrun/slurm/sbatch.py",
        """    return f'"{escaped}"'\n""",
        "    return value\n",
        "tests/render/test_quoting.py::test_sbatch_reads_the_value_back",
    ),
    guard(
        2,
        "hpcrun/slurm/sbatch.py",
        """value.replace("\\\\", "\\\\\\\\")""",
        "value",
        "tests/render/test_quoting.py::test_sbatch_reads_the_value_back",
    ),
    guard(
        3,
        "hpcrun/slurm/sbatch.py",
        r"(;\S+| on cluster \S+)?",
        "",
        f"{DIALECT}::test_sbatch_answers",
        f"{HEADER}::test_only_standard_output_has_the_job_id",
    ),
    guard(
        3,
        "hpcrun/scheduler.py",
        "parse_sbatch(result.stdout)",
        "parse_sbatch(result.stdout + result.stderr)",
        f"{HEADER}::test_only_standard_output_has_the_job_id",
    ),
    guard(
        4,
        "hpcrun/runs/store.py",
        "        folder.logs.mkdir()\n",
        "",
        f"{HEADER}::test_the_logs_folder_is_there_before_the_job",
    ),
    guard(
        6,
        "templates/job.sbatch.j2",
        "{% else %}{{ value | bash }}{% endif %}",
        "{% else %}{{ value }}{% endif %}",
        f"{HEADER}::test_values_arrive_as_they_are",
    ),
    guard(
        7,
        HARNESS,
        "    export SLURM_EXPORT_ENV=ALL\n",
        "",
        f"{HEADER}::test_export_none_of_a_site_does_not_empty_the_ranks",
    ),
    guard(
        9,
        "hpcrun/controller/context.py",
        "name.startswith(_SCRUB_PREFIXES) or name in scrub",
        "name in scrub",
        "tests/controller/test_context.py::test_a_job_inherits_no_other_job",
    ),
    guard(
        9,
        "hpcrun/controller/context.py",
        "name.startswith(_SCRUB_PREFIXES) or name in scrub",
        "name.startswith(_SCRUB_PREFIXES)",
        "tests/controller/test_context.py::test_a_job_inherits_no_other_job",
    ),
    # ---- The step
    guard(
        10,
        "hpcrun/render/files.py",
        '        argv.append(f"--cpus-per-task={cpus}")\n',
        "        pass\n",
        f"{STEP}::test_a_rank_has_its_cpus",
    ),
    guard(
        12,
        "hpcrun/plan/launch.py",
        'return topology.ranks_per_node if decide_launcher(spec) == "srun" else 1',
        "return topology.ranks_per_node",
        f"{STEP}::test_a_launcher_is_started_once_on_each_node",
    ),
    guard(
        12,
        "hpcrun/plan/launch.py",
        'return topology.ranks_per_node if decide_launcher(spec) == "srun" else 1',
        "return 1",
        f"{STEP}::test_a_launcher_is_started_once_on_each_node",
    ),
    guard(
        13,
        HARNESS,
        "export HPCRUN_NODE_RANK=${SLURM_NODEID:-0}\n",
        "export HPCRUN_NODE_RANK=0\n",
        f"{STEP}::test_each_node_has_a_rank_of_its_own",
    ),
    guard(
        (14, 33),
        "hpcrun/render/files.py",
        '    argv.append("--kill-on-bad-exit=1")\n',
        "",
        f"{STEP}::test_a_rank_that_fails_ends_the_others",
    ),
    guard(
        16,
        HARNESS,
        '        set -- "$1" --overlap "${@:2}"\n',
        "",
        f"{STEP}::test_a_job_inside_a_step_gets_its_step",
    ),
    guard(
        17,
        HARNESS,
        '    [ "${#hosts[@]}" -eq "$HPCRUN_NODES" ] ||\n',
        "    true ||\n",
        f"{STEP}::test_an_allocation_of_other_nodes_than_planned_does_not_start",
        f"{ALONE}::test_no_world_of_another_size_is_started",
    ),
    guard(
        (17, 25),
        HARNESS,
        '    if [ "${WORLD_SIZE:-}" != "$HPCRUN_WORLD_SIZE" ]; then\n',
        "    if false; then\n",
        f"{ALONE}::test_a_rank_in_another_world_stops",
    ),
    # ---- The rendezvous
    guard(
        19,
        HARNESS,
        "12000 + (id * 7 + HPCRUN_ATTEMPT * 1009 + try * 101) % 18000",
        "29500",
        f"{RENDEZVOUS}::test_jobs_beside_each_other_have_ports_of_their_own",
        f"{RENDEZVOUS}::test_a_port_that_is_taken_is_passed_over",
    ),
    guard(
        19,
        HARNESS,
        "$((12000 + ",
        "$((32000 + ",
        f"{RENDEZVOUS}::test_jobs_beside_each_other_have_ports_of_their_own",
    ),
    guard(
        19,
        HARNESS,
        " 2>/dev/null || break\n    done\n    printf '%s\\n' \"$port\"",
        " 2>/dev/null\n        break\n    done\n    printf '%s\\n' \"$port\"",
        f"{RENDEZVOUS}::test_a_port_that_is_taken_is_passed_over",
    ),
    guard(
        (19, 24),
        HARNESS,
        " + HPCRUN_ATTEMPT * 1009",
        "",
        f"{RENDEZVOUS}::test_a_restart_has_a_port_of_its_own",
    ),
    guard(
        20,
        HARNESS,
        'if [ -z "$first" ] || is_loopback "$first"; then',
        'if [ -z "$first" ]; then',
        f"{RENDEZVOUS}::test_the_address_of_rank_0_is_one_that_others_reach",
    ),
    guard(
        21,
        "templates/node.sh.j2",
        '--rdzv_backend=static --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT"',
        '--rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT"',
        f"{RENDEZVOUS}::test_rank_0_is_on_the_first_node_whoever_comes_first",
    ),
    guard(
        23,
        HARNESS,
        "mapfile -t hosts",
        "mapfile hosts",
        f"{RENDEZVOUS}::test_the_hostfile_is_slurms_order_each_host_once",
    ),
    # ---- Hostfiles, DeepSpeed's launcher
    guard(
        25,
        WORLD,
        "        [ $tries -lt 10 ] || return 1\n",
        "        [ $tries -lt 10 ] || return 0\n",
        f"{RENDEZVOUS}::test_a_hostfile_that_is_gone_is_no_training_alone",
    ),
    guard(
        25,
        WORLD,
        '    [ "$lines" -eq "$HPCRUN_NODES" ]\n',
        "    true\n",
        f"{RENDEZVOUS}::test_a_hostfile_of_fewer_hosts_is_no_smaller_training",
    ),
    guard(
        26,
        HARNESS,
        '    if [ "$code" -eq 0 ] && [ -z "$stopped" ] && ! check_ended; then\n',
        "    if false; then\n",
        f"{RENDEZVOUS}::test_a_launcher_that_was_killed_is_no_success",
    ),
    guard(
        27,
        HARNESS,
        "    restore_overwritten\n",
        "",
        f"{RENDEZVOUS}::test_ranks_keep_the_gpus_that_slurm_gave",
    ),
    guard(
        31,
        HARNESS,
        '        printf \'%s slots=%s\\n\' "$name" "$HPCRUN_RANKS_PER_NODE"\n',
        "        printf '%s\\n' \"$name\"\n",
        f"{RENDEZVOUS}::test_the_hostfile_is_slurms_order_each_host_once",
    ),
    guard(
        31,
        HARNESS,
        '    if [ "$LOCAL_RANK" -ge "$HPCRUN_RANKS_PER_NODE" ]; then\n',
        "    if false; then\n",
        f"{STEP}::test_ranks_that_pile_up_on_a_node_do_not_train",
    ),
]
