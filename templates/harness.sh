#!/bin/bash
# hpcrun's harness: the part of every job that is always the same. It keeps the run's history
# (begin, beat, end, the first failure) and starts the processes. It needs bash 4.2 and coreutils.
#
#   batch [after|relaunch JOB]   claim this attempt (claim.sh), run the body of job.sbatch, wait for it,
#                   record the end (survive.sh); JOB had the run before: another one, or this one itself
#   launch SRUN...  find the address of rank 0, write the hostfile, start one `node` per task
#   launch WAY PYTHON HOST...  the same on the hosts of a hostfile, by ssh or pdsh: hosts.sh
#   node            on each node: log file, network interface, then node.sh
#   rank CMD...     around each rank: check the world, log file, run CMD, record a failure
#   stacks          on each node, where the run does not move on: what its ranks are at (stacks.sh)
#   beside S NODES COUNT MODE  run another mode on each of these nodes, beside the ranks (survive.sh)
#   ask             on each node: ask the ranks to save and end (survive.sh)
#   guard HOST      on a node beside the batch script's HOST: see whether that is alive (claim.sh)
#
# Each file has one writer and appears by rename. attempts/N/: begin.json, beat (epoch seconds,
# every 30 s or less), hostfile, failures/TIME-WHO.json, end.json. Exit code 93: a duplicate of a job that
# has this attempt already, or one that was to go on with the run and is not needed.
#
# A function, here and in the files beside this one, returns a result in one way: it prints the
# result, which the caller captures; its status says whether it worked; error messages go to
# stderr. It sets no variable of its caller. What a mode keeps beyond a function is listed here:
# attempt_dir, its folder in the run; child and stopped, warned and overdue, which traps read and
# set. Names in capitals are environment.
# shellcheck disable=SC1091 # what it sources lies beside it
set -u

# Not $HOSTNAME: bash takes it over from the environment, which srun brings along from node 0.
host=${SLURMD_NODENAME:-$(uname -n)}

say() { printf 'hpcrun: %s\n' "$*"; }

error() { printf 'hpcrun: error: %s\n' "$*" >&2; }

# die [MESSAGE]: end this part of the job; without a message after a check, which has printed one.
die() {
    [ $# -eq 0 ] || error "$@"
    # What ends one node's part ends the step: the codes of the others would hide this one.
    [ -z "${HPCRUN_NODE_RANK-}" ] || record_failure "node-$HPCRUN_NODE_RANK" '"rank": null' 1
    exit 1
}

# write_record FILE TEXT: whole or not at all; whatever the job's umask, nobody else may write it.
write_record() {
    (umask go-w && printf '%s\n' "$2" >"$1.part") && mv -f -- "$1.part" "$1"
}

# slurm_job: the job for Slurm's commands. The number of one task is also that of its whole array.
slurm_job() {
    printf '%s\n' "${SLURM_ARRAY_JOB_ID-${SLURM_JOB_ID-}}${SLURM_ARRAY_TASK_ID+_$SLURM_ARRAY_TASK_ID}"
}

# json_text TEXT: as JSON; null where it is empty.
json_text() {
    local LC_ALL=C text=${1//[^ -~]/?}
    text=${text//\\/\\\\}
    if [ -n "$1" ]; then printf '"%s"\n' "${text//\"/\\\"}"; else echo null; fi
}

# now: epoch seconds, milliseconds behind the point. Before bash 5 that takes a process.
now() {
    local at=${EPOCHREALTIME-}
    at=${at/,/.} # some languages have a comma there
    if [ -n "$at" ]; then printf '%s\n' "${at%???}"; else date +%s.%3N; fi
}

# ---- batch -------------------------------------------------------------------------------------

batch() {
    stopped='' child='' warned='' overdue=''
    trap 'warned=1' URG # Slurm's warning, at a short job's start, too
    . "$HPCRUN_RUN_DIR/survive.sh" && . "$HPCRUN_RUN_DIR/claim.sh" &&
        . "$HPCRUN_RUN_DIR/jobside.sh" || exit 1
    local attempt job begun code beat taken=1 secure_at=0 pause
    job=$(slurm_job)
    HPCRUN_JOBSIDE_PYTHON=$(find_python)
    export HPCRUN_JOBSIDE_PYTHON
    [ -z "${SLURM_JOB_ID-}" ] || [ -z "${HPCRUN_SPARE_NODES-}" ] || choose_nodes
    attempt=$(claim "$job" "${2-}") || exit
    [ -n "$attempt" ] || exit 0
    attempt_dir=$HPCRUN_RUN_DIR/attempts/$attempt
    export HPCRUN_ATTEMPT=$attempt
    take_count || taken='' # ends below, where a record can say so
    begun=$(now)
    write_record "$attempt_dir/begin.json" "{\"attempt\": $attempt, \"job_id\": \"$job\",\
 \"host\": \"$host\", \"pid\": $$, \"nodes\": \"${SLURM_JOB_NODELIST:-$host}\",\
 \"begun_at\": $begun, \"restarts\": ${SLURM_RESTART_COUNT:-0}}"
    say "attempt $attempt${job:+ of job $job} begins on ${SLURM_JOB_NODELIST:-$host}"
    [ -n "$taken" ] || finish "$attempt" "$job" "$begun" 1
    [ "$attempt" -eq 0 ] || note_rebooted_node $((attempt - 1)) || finish "$attempt" "$job" "$begun" 1

    # The beat ends with this process, however it ends: the pipe between them closes.
    exec {beat}> >(
        trap - TERM INT HUP
        # (In a list, as after ||, what ends with & would have no input.)
        if [ -n "${HPCRUN_ALLOCATED-}" ]; then stand_guard <&0 & fi
        write_record "$attempt_dir/kill_wait" "$(kill_wait)" # as it ends slurmctld may be silent
        jobside watch <&0 &
        while :; do
            write_record "$attempt_dir/beat" "$(printf '%(%s)T' -1)"
            if [ "$SECONDS" -ge "$secure_at" ]; then
                secure_at=$((SECONDS + 300))
                ! secure "${2-}" || secure_at=$((1 << 62))
            fi
            # Slurm calls a node dead that is not, and has begun the job again on another one.
            ! is_replaced || [ -e "$attempt_dir/end.json" ] || kill -HUP $$
            # One of several runs in a job: nobody but itself can end it alone.
            [ -z "${HPCRUN_SHARES_JOB-}" ] || [ ! -e "$HPCRUN_RUN_DIR/cancelled.json" ] || kill -INT $$
            # More often until the first step.
            [[ -e $attempt_dir/moved || $SECONDS -gt 600 ]] && pause=30 || pause=5
            IFS= read -rt "$pause" _
            [ $? -gt 128 ] || break
        done
    )

    trap 'stop TERM' TERM
    trap 'stop INT' INT
    trap 'stop HUP' HUP
    trap 'overdue=1' USR2
    # Bash runs a trap only while it waits: so the body is in the background, where bash would
    # have it ignore INT.
    (
        trap - INT QUIT
        exec bash -- "$HPCRUN_RUN_DIR/job.sbatch" body
    ) <&0 {beat}>&- &
    child=$!
    [ -z "$stopped" ] || kill -TERM "$child" 2>/dev/null
    await
    code=$?
    exec {beat}>&-
    finish "$attempt" "$job" "$begun" "$code"
}

stop() {
    [ -n "$stopped" ] || say "received SIG$1: stopping"
    stopped=$1
    # Slurm's TERM has come to all processes; srun would pass it on once more.
    [ -z "$child" ] || [ "$1${SLURM_JOB_ID:+ of Slurm}" = 'TERM of Slurm' ] ||
        kill -TERM "$child" 2>/dev/null
}

# await: wait for $child and return its exit code. Any signal ends `wait` early, also the CONT that
# Slurm sends before TERM, so it is called again until the child is gone. (No trap for CONT: of two
# signals that come together bash loses one.) After a stop Slurm kills everything KillWait later: the
# end is recorded before that.
await() {
    local tenths=0 most
    while [ -z "$stopped" ]; do
        [ -n "$warned" ] || wait "$child"
        if [ -n "$warned" ]; then
            warned=''
            near_the_end
        fi
        [ -z "$overdue" ] || return 143
        [ -n "$stopped" ] || kill -0 "$child" 2>/dev/null || { code_of "$child"; return; }
    done
    most=$(cat -- "$attempt_dir/kill_wait" 2>/dev/null)
    [[ $most =~ ^[0-9]{1,5}$ ]] || most=30
    most=$((5 * most)) # tenths of a second: the other half is for what comes next
    while kill -0 "$child" 2>/dev/null && [ $tenths -lt $most ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
    return 143
}

# code_of PID: the exit code of a child, once it has ended. A signal ends `wait` with a code of its own, also
# one that comes just as the child ends: bash keeps the child's. Without what bash prints of a killed child.
code_of() {
    while kill -0 "$1"; do wait "$1"; done
    wait "$1"
} 2>/dev/null

# ---- launch ------------------------------------------------------------------------------------

launch() {
    local hosts=("$host")
    . "$HPCRUN_RUN_DIR/jobside.sh" && . "$HPCRUN_RUN_DIR/survive.sh"
    HPCRUN_RESUME=$(newest_checkpoint "${HPCRUN_CHECKPOINT_DIR-}" "$HPCRUN_WORLD_SIZE")
    write_record "$attempt_dir/resume" "$HPCRUN_RESUME"
    write_record "$attempt_dir/mark" "$([ -z "$HPCRUN_RESUME" ] || jobside mark_of "$HPCRUN_RESUME")"
    [ -n "$HPCRUN_JOBSIDE_PYTHON" ] || { [ -z "${HPCRUN_SURVIVE-}" ] && [ ! -d "${HPCRUN_CHECKPOINT_DIR-}" ]; } ||
        say "no Python 3.6 or newer answers here: checkpoints are neither found nor pruned, stalls are" \
            "not noticed, and the run does not continue by itself"
    if [ -n "$HPCRUN_RESUME" ]; then
        say "there is a checkpoint to go on from: $HPCRUN_RESUME"
    elif [ "$HPCRUN_ATTEMPT" -gt 0 ] && [ -n "${HPCRUN_CHECKPOINT_DIR-}" ] &&
        [ -n "$(find "$HPCRUN_CHECKPOINT_DIR/" -type f -size +0 -print -quit 2>/dev/null)" ]; then
        say "what lies in $HPCRUN_CHECKPOINT_DIR is no whole checkpoint of a form known to hpcrun:" \
            "checkpoint.marker names the last file that a script writes"
    fi
    # For programs that would rather look than be asked: this file appears, or that second comes.
    export HPCRUN_RESUME HPCRUN_END_TIME=${SLURM_JOB_END_TIME-} HPCRUN_STOP_FILE=$attempt_dir/stop
    [[ $1 != @(ssh|pdsh) ]] || { . "$HPCRUN_RUN_DIR/hosts.sh" && launch_hosts "$@"; exit 1; }
    if [ -n "${SLURM_JOB_ID-}" ]; then
        mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    fi
    [ "${#hosts[@]}" -eq "$HPCRUN_NODES" ] ||
        die "the job wants $HPCRUN_NODES node(s) and has ${#hosts[@]}: ${hosts[*]-}"

    [ -z "${SLURM_JOB_ID-}" ] || [ "$HPCRUN_NODES" -gt 1 ] || show_node "$host" >/dev/null
    MASTER_ADDR=127.0.0.1
    if is_bare && [ "$HPCRUN_NODES" -gt 1 ]; then
        MASTER_ADDR=$(first_address "${hosts[0]}" "${hosts[1]}" 2>/dev/null)
    elif [ "$HPCRUN_NODES" -gt 1 ]; then
        MASTER_ADDR=$(first_address "${hosts[0]}" "${hosts[1]}") || exit 1
    fi
    MASTER_PORT=$(free_port)
    export MASTER_ADDR MASTER_PORT
    HPCRUN_END_TIME=${HPCRUN_END_TIME:-$(end_time "$(show_job)")} # now slurmctld answers
    write_hostfile "${hosts[@]}"
    say "rank 0 is on ${hosts[0]}, at ${MASTER_ADDR:-no known address} port $MASTER_PORT"

    if [ -z "${SLURM_JOB_ID-}" ]; then
        exec bash -- "$HPCRUN_RUN_DIR/harness.sh" node
    fi
    # torchrun's own patience with ranks that save is 30 s; that of torch 2.13 can be told.
    [ -z "${HPCRUN_SURVIVE-}${HPCRUN_SAVES-}" ] ||
        export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-$(grace)}"
    # The guard may be on one of these nodes, and the step of the attempt before may still end there.
    if [ -n "${HPCRUN_ALLOCATED-}" ]; then
        set -- "$1" --nodelist="$SLURM_JOB_NODELIST" --overlap "${@:2}"
        for _ in {1..300}; do [ ! -e "$attempt_dir/guarded" ] || break; sleep 0.1; done
    fi
    # A job submitted with --export=NONE would give its steps an empty environment.
    export SLURM_EXPORT_ENV=ALL
    # From salloc --gpus-per-task and the like: each rank would see one GPU, and reach no other.
    unset SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_GPU_BIND SLURM_TRES_BIND \
        SLURM_TRES_PER_TASK
    if [ -n "${SLURM_STEP_ID-}" ]; then
        # Inside a step (srun --pty bash), which holds the allocation's CPUs and has its own binding.
        set -- "$1" --overlap "${@:2}"
        unset "${!SLURM_CPU_BIND@}" "${!SLURM_STEP_@}"
    fi
    exec "$@" bash -- "$HPCRUN_RUN_DIR/harness.sh" node </dev/null
}

# write_hostfile HOST...: the hosts in the order of their ranks; exports HPCRUN_HOSTFILE.
write_hostfile() {
    local lines
    export HPCRUN_HOSTFILE=$attempt_dir/hostfile
    printf -v lines "%s slots=$HPCRUN_RANKS_PER_NODE\n" "$@"
    write_record "$HPCRUN_HOSTFILE" "${lines%?}"
}

# first_address FIRST SECOND: the address at which the other nodes reach the first one. Slurm's
# own address for the node, where that is not loopback: Debian resolves a host's own name to
# 127.0.1.1. Else the address that this host, the first one, has on its route to the second.
first_address() {
    local first second PATH=$PATH:/usr/sbin:/sbin
    first=$(node_address "$1")
    if [ -z "$first" ] || is_loopback "$first"; then
        second=$(node_address "$2")
        command -v ip >/dev/null || die "$1 resolves to loopback, and there is no ip (iproute2)"
        [ -n "$second" ] || die "the address of node $2 is not known: scontrol show node $2"
        first=$(ip -o route get "$second" | sed -n 's/.* src \([^ ]*\).*/\1/p')
        [ -n "$first" ] || die "$1 has no route to $2 ($second)"
        if is_loopback "$first" && ! is_loopback "$second"; then
            die "$1 would reach $2 ($second) from $first, which $2 cannot reach"
        fi
    fi
    printf '%s\n' "$first"
}

# node_address NAME: by Slurm's NodeAddr, resolved if that is a name.
node_address() {
    local address=$1 found
    [[ ! " $(show_node "$1")" =~ \ NodeAddr=([^ ]+) ]] || address=${BASH_REMATCH[1]}
    if [[ $address =~ ^[0-9.]+$ || $address == *:* ]]; then
        printf '%s\n' "$address"
        return
    fi
    found=$(getent ahostsv4 "$address" || getent ahosts "$address")
    printf '%s\n' "${found%%[[:space:]]*}"
}

# show_node NAME: print Slurm's record of it. A slurmctld that is being restarted is waited for: srun
# would give up in seconds, and end a job that has waited for hours. And then until the nodes have
# registered: before that it puts a step off for minutes.
show_node() {
    local answer tries=0
    until answer=$(scontrol --oneliner show node "$1" 2>&1); do
        case $answer in
        *"slurm controller"* | *"timed out"* | *"Zero Bytes"*) ;;
        *) return 1 ;;
        esac
        [ $tries -gt 0 ] || say "Slurm does not answer, so the launch waits for it" >&2
        [ $((tries += 1)) -le 120 ] || return 1
        sleep 5
    done
    [ $tries -eq 0 ] || sleep 20
    printf '%s\n' "$answer"
}

# is_bare: whether the job is a command alone. What ranks need of the network it may do without.
is_bare() { [ "${HPCRUN_LAUNCHER-}" = none ]; }

is_loopback() { [[ $1 == 127.* || $1 == ::1 ]]; }

# free_port: the job id and the restart count distinguish jobs and attempts; below 32768, where the
# kernel takes ports for outgoing connections (net.ipv4.ip_local_port_range).
free_port() {
    local id=${SLURM_JOB_ID:-$RANDOM} try port
    for try in 0 1 2 3 4 5 6 7 8 9; do
        port=$((12000 + (id * 7 + HPCRUN_ATTEMPT * 1009 + try * 101) % 18000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    printf '%s\n' "$port"
}

# ---- node and rank -----------------------------------------------------------------------------

node() {
    local interface code batch
    export HPCRUN_NODE_RANK=${SLURM_NODEID:-0}
    exec {batch}>&2 >>"$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT/node-$HPCRUN_NODE_RANK.log" 2>&1
    . "$HPCRUN_RUN_DIR/hardware.sh" && . "$HPCRUN_RUN_DIR/local.sh" &&
        . "$HPCRUN_RUN_DIR/preflight.sh" || exit 1
    trap 'code=$?; end_strays; leave_folder $code' EXIT
    if [ "${SLURM_LOCALID:-0}" -eq 0 ]; then
        compare_clocks "$batch" &
        preflight "$batch" || die
    fi
    exec {batch}>&-
    # Left to itself gloo takes the address of the host's name, which may be 127.0.1.1.
    interface=${MASTER_ADDR:+$(interface_to "$MASTER_ADDR")}
    if [ -n "$interface" ]; then
        export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
    elif [ "$HPCRUN_NODES" -gt 1 ] && ! is_bare && PATH=$PATH:/usr/sbin:/sbin command -v ip >/dev/null; then
        bad_node "no interface leads to rank 0 at $MASTER_ADDR"
        die "$host has no interface that leads to rank 0 at $MASTER_ADDR"
    fi
    [ "$HPCRUN_NODE_RANK${SLURM_LOCALID:-0}" != 00 ] || watch_locks "${HPCRUN_CACHE_DIR-}"
    set_nccl_devices '' "$interface" || die
    check_allocation || die
    if [ "${SLURM_LOCALID:-0}" -eq 0 ]; then
        check_gpus || die
        say "node $HPCRUN_NODE_RANK is $host, interface ${interface:-unknown}"
        [ "${HPCRUN_LAUNCHER-}" != deepspeed ] || check_hostfile || die
        [ "$HPCRUN_NODE_RANK" -eq 0 ] || is_bare || reach "$MASTER_ADDR" "$MASTER_PORT" || die
    fi
    HPCRUN_GPU_CPUS=$([ -z "${HPCRUN_BINDING-}" ] || gpu_cpus '')
    export HPCRUN_GPU_CPUS
    keep_overwritten
    ! is_bare || : >"$attempt_dir/began" # there are no ranks whose logs show it
    guarded bash -- "$HPCRUN_RUN_DIR/node.sh"
    code=$?
    [ -z "$stopped" ] || await_ranks
    # DeepSpeed's launcher ends with 0 when it is killed: what counts is how the ranks ended.
    if [ "$code" -eq 0 ] && [ -z "$stopped" ] && ! check_ended; then
        code=1
    fi
    finish_guarded "node-$HPCRUN_NODE_RANK" '"rank": null' "$code"
}

rank() {
    local code
    if [ "${WORLD_SIZE:-}" != "$HPCRUN_WORLD_SIZE" ]; then
        die "this process sees a world of ${WORLD_SIZE:-no} ranks, and the job has" \
            "$HPCRUN_WORLD_SIZE: the nodes would train apart"
    fi
    if [ "$LOCAL_RANK" -ge "$HPCRUN_RANKS_PER_NODE" ]; then
        die "$host has more ranks than the $HPCRUN_RANKS_PER_NODE that the job wants on each node:" \
            "has the allocation more CPUs on one node than on another? salloc --ntasks-per-node"
    fi
    # A file of its own: Python writes a line in pieces, and ranks would tear each other's apart.
    exec >>"$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT/rank-$RANK.log" 2>&1
    # What only some launchers set.
    export NODE_RANK=$HPCRUN_NODE_RANK GROUP_RANK=$HPCRUN_NODE_RANK
    export LOCAL_WORLD_SIZE=$HPCRUN_RANKS_PER_NODE
    restore_overwritten
    [ -z "${HPCRUN_BINDING-}" ] || { . "$HPCRUN_RUN_DIR/hardware.sh" && bind_rank ''; }
    # Python writes its stacks when it gets SIGABRT, and goes on (by_faulthandler in stacks.sh): what
    # is ignored stays so through exec. abort() ends a process all the same, as it must (abort(3)).
    export PYTHONFAULTHANDLER=${PYTHONFAULTHANDLER-1}
    trap '' ABRT
    guarded "$@"
    code=$?
    [ "$code" -ne 0 ] || : >"$attempt_dir/ended/node-$HPCRUN_NODE_RANK-$LOCAL_RANK"
    finish_guarded "rank-$RANK" "\"rank\": $RANK, \"local_rank\": $LOCAL_RANK" "$code"
}

# guarded CMD...: run CMD, pass on a request to stop (and note it in $stopped), return CMD's code.
guarded() {
    local code which
    child='' stopped=''
    trap asked_to_stop TERM INT
    trap '[ -z "$child" ] || kill -"${HPCRUN_STOP_SIGNAL:-TERM}" "$child" 2>/dev/null' USR1
    # In the background so that traps run; bash would let it ignore INT, hence the reset. Where
    # util-linux has the option, CMD does not outlive a guard that is killed.
    (
        trap - INT QUIT
        # One that has it on this node need not be asked for each rank; in an image is another one.
        which=${HPCRUN_INSIDE-}$(type -P setpriv)
        if [ "$which" = "${HPCRUN_SETPRIV-no}" ] || setpriv --pdeathsig KILL true 2>/dev/null; then
            export HPCRUN_SETPRIV=$which
            exec setpriv --pdeathsig KILL -- "$@"
        fi
        exec "$@"
    ) <&0 &
    child=$!
    [ -z "$stopped" ] || asked_to_stop
    code_of "$child"
    code=$?
    # Nobody is left to pass it on to: what comes now may not keep the failure from its record.
    trap '' TERM INT USR1
    return "$code"
}

# asked_to_stop: TERM has come. Slurm sends it to every process of the step, so CMD has it already,
# and shall not get it twice; a launcher that ends its ranks tells their guards alone.
asked_to_stop() {
    local mark=$attempt_dir/told-$HPCRUN_NODE_RANK tenths=0
    stopped=1
    if [ -n "${SLURM_JOB_ID-}" ] && [ "$mode" = node ]; then
        : >>"$mark"
        [ "$HPCRUN_NODE_RANK${SLURM_LOCALID:-0}" != 00 ] || note_preemption "$mark" & # one asks for all
        return
    fi
    while [ -n "${SLURM_JOB_ID-}" ] && [ $((tenths += 1)) -le 5 ]; do
        [ ! -e "$mark" ] || return
        sleep 0.1
    done
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}

# note_preemption FILE: note, for `hpcrun status`, whether Slurm is preempting the job, which it calls
# RUNNING until the grace is over.
note_preemption() {
    [[ $(timeout 10 scontrol --oneliner show job "$(slurm_job)" 2>/dev/null) != *" PreemptTime=2"* ]] ||
        write_record "$1" '"preempted"'
}

# signal_of CODE: the name of the signal that an exit code stands for. A program may end with 255.
signal_of() { [ "$1" -gt 128 ] && kill -l "$1" 2>/dev/null; }

# finish_guarded WHO FIELDS CODE: end with CODE; a failure is recorded.
finish_guarded() {
    local signal
    # DeepSpeed's ranks on CPUs leave 69 MB each there (csrc/cpu/comm/shm.cpp).
    rm -f -- "/dev/shm/deepspeed_allreduce_buffer_${UID}_${MASTER_ADDR-}_${MASTER_PORT-}"_*
    if [ "$3" -ne 0 ] && [ -z "$stopped" ]; then
        ! signal=$(signal_of "$3") || say "${1/-/ } on $host: Signal $(($3 - 128)) (SIG$signal)"
        record_failure "$1" "$2" "$3"
        # Before the launcher hears of it: the next attempt is to leave out a node whose GPU broke.
        [ "$mode" != rank ] || ! . "$HPCRUN_RUN_DIR/preflight.sh" || examine_node
    fi
    exit "$3"
}

# record_failure WHO FIELDS CODE: with its time, by which the first one is found; and with what is
# wrong with the node, where that is known.
record_failure() {
    local signal=null why=null
    ! signal_of "$3" >/dev/null || signal=$(($3 - 128))
    [[ $1 != node-* || ! -r $attempt_dir/bad/$host ]] || why=$(quoted "$(<"$attempt_dir/bad/$host")")
    write_record "$attempt_dir/failures/$(date +%s%6N)-$1.json" \
        "{$2, \"node\": ${HPCRUN_NODE_RANK:-0}, \"host\": \"$host\",\
 \"exit_code\": $3, \"signal\": $signal, \"at\": $(now), \"why\": $why}"
}

# ---- checks on each node -----------------------------------------------------------------------

# check_allocation: whether the node has the GPUs that the job wants, and this process sees them all.
check_allocation() {
    local wanted=${HPCRUN_GPUS_PER_NODE:-0} devices=()
    [ "$wanted" -gt 0 ] || return 0
    [ -n "${SLURM_JOB_ID-}" ] || [ "${HPCRUN_DEVICE-}" = cuda ] || return 0
    if [ "${SLURM_GPUS_ON_NODE:-$wanted}" -lt "$wanted" ]; then
        error "$host: Slurm gave it $SLURM_GPUS_ON_NODE GPU(s), and the job wants $wanted on each" \
            "node"
        return 1
    fi
    IFS=, read -ra devices <<<"${CUDA_VISIBLE_DEVICES-}"
    if [ "${#devices[@]}" -gt 0 ] && [ "${#devices[@]}" -lt "${HPCRUN_GPUS_PER_TASK:-$wanted}" ]; then
        error "$host: a task sees ${#devices[@]} of the $wanted GPUs" \
            "(CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES): GPUs must not be bound to tasks"
        return 1
    fi
}

# check_hostfile: without it, or with others in it, DeepSpeed's launcher would train on this node
# alone.
check_hostfile() {
    local tries=0 lines=0
    # What another node wrote may take a moment to show on a network file system.
    until [ -s "$HPCRUN_HOSTFILE" ]; do
        if [ $((tries += 1)) -gt 10 ]; then
            error "$host: the hostfile $HPCRUN_HOSTFILE is missing: each node would train alone"
            return 1
        fi
        sleep 0.5
    done
    lines=$(grep -c "^[^ ]* slots=$HPCRUN_RANKS_PER_NODE\$" -- "$HPCRUN_HOSTFILE")
    [ "$lines" -ne "$HPCRUN_NODES" ] || return 0
    error "$host: the hostfile $HPCRUN_HOSTFILE has $lines of the job's $HPCRUN_NODES nodes"
    return 1
}

# reach ADDRESS PORT: whether rank 0's node answers. Launchers wait for it for many minutes, and
# then do not say which node was missing. A refused connection is an answer too: nothing listens
# there yet. Only an error that says the host cannot be reached counts, and only if it lasts.
reach() {
    local message status began=$SECONDS
    while :; do
        # shellcheck disable=SC2016 # the inner shell expands it
        message=$(LC_ALL=C timeout 8 bash -c 'exec 3<>"/dev/tcp/$1/$2"' - "$1" "$2" 2>&1)
        status=$?
        case $message in
        *"No route to host"* | *"unreachable"* | *"timed out"* | *"Host is down"*) ;;
        *) [ $status -eq 124 ] || return 0 ;;
        esac
        [ $((SECONDS - began)) -lt 15 ] || break
        sleep 1
    done
    message=${message##*: }
    error "$host: cannot reach rank 0's node at $1, port $2: ${message:-no answer}"
    return 1
}

# Launchers overwrite these; DeepSpeed's counts 0, 1, 2, which on a shared node may be another job's
# GPUs, and Accelerate's sets no precision beside DeepSpeed's JSON.
overwritten=(CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ACCELERATE_MIXED_PRECISION)
keep_overwritten() {
    local name
    for name in "${overwritten[@]}"; do
        [ -z "${!name+set}" ] || export "HPCRUN_NODE_$name=${!name}"
    done
}

restore_overwritten() {
    local name kept
    for name in "${overwritten[@]}"; do
        kept=HPCRUN_NODE_$name
        if [ -n "${!kept+set}" ]; then
            export "$name=${!kept}"
        else
            unset "$name"
        fi
    done
}

# ask: pass the job's signal on to each rank of this node, by its guard; to a bare command by the node's.
ask() {
    local whose=rank
    [ ! -e "$attempt_dir/began" ] || whose=node # the batch script does not know the launcher
    # shellcheck disable=SC2046 # numbers
    kill -USR1 $(guards $whose) 2>/dev/null
}

# check_ended: whether every rank of this node has ended well.
check_ended() {
    local ended=("$attempt_dir/ended/node-$HPCRUN_NODE_RANK-"*)
    case ${HPCRUN_LAUNCHER-} in
    '' | srun | pdsh | none) return 0 ;; # each task is one rank, or a command
    esac
    [ -e "${ended[0]}" ] || ended=()
    [ "${#ended[@]}" -ne "$HPCRUN_RANKS_PER_NODE" ] || return 0
    error "$host: the launcher ended, but ${#ended[@]} of its $HPCRUN_RANKS_PER_NODE ranks ended" \
        "well: was it killed?"
    return 1
}

# await_ranks: DeepSpeed's launcher ends at once when it is asked to stop, and passes nothing on. Its ranks may
# be saving, and would end with this task. Under Slurm they get the signal themselves, and its whole grace.
await_ranks() {
    local tries=0
    [ "${HPCRUN_LAUNCHER-}" = deepspeed ] || return 0
    # shellcheck disable=SC2046 # numbers
    [ -n "${SLURM_JOB_ID-}" ] || kill -TERM $(guards rank) 2>/dev/null
    while [ -n "$(guards rank)" ] && { [ -n "${SLURM_JOB_ID-}" ] || [ $((tries += 1)) -le 40 ]; }; do
        sleep 0.5
    done
}

# guards MODE: the processes that run `harness.sh MODE` for this run on this node. Not srun, which has the same
# words and would pass a signal on to all ranks; nor those of another node of a sandbox.
guards() {
    local file first
    while IFS= read -r file; do
        if { IFS= read -rd '' first <"$file"; } 2>/dev/null && [ "${first##*/}" = bash ] &&
            grep -qszF -- "$HPCRUN_RUN_DIR/harness.sh" "$file" &&
            { [ -z "${SLURMD_NODENAME-}" ] ||
                grep -qszxF -- "SLURMD_NODENAME=$SLURMD_NODENAME" "${file%/*}/environ"; }; then
            printf '%s\n' "${file//[^0-9]/}"
        fi
    done < <(grep -lszxF -- "$1" /proc/[0-9]*/cmdline)
}

# ------------------------------------------------------------------------------------------------

mode=$1
shift
attempt_dir=${HPCRUN_RUN_DIR-}/attempts/${HPCRUN_ATTEMPT:-0}
case $mode in
batch | launch | node | rank | ask) "$mode" "$@" ;;
stacks) . "${BASH_SOURCE[0]%/*}/stacks.sh" && stacks ;;
beside) . "${BASH_SOURCE[0]%/*}/survive.sh" && beside "$@" ;;
clean) . "${BASH_SOURCE[0]%/*}/local.sh" && clean_node "$host" "$@" ;;
guard) . "${BASH_SOURCE[0]%/*}/survive.sh" && . "${BASH_SOURCE[0]%/*}/claim.sh" && guard "$@" ;;
address | session | task)
    . "${BASH_SOURCE[0]%/*}/hosts.sh" && "$mode" "$@"
    ;;
*) die "no such mode: $mode" ;;
esac
