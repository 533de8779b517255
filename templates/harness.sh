#!/bin/bash
# hpcrun's harness: the part that is the same in every job. It records the run's history (begin, beat,
# end, the first failure) and starts the processes. It needs bash 4.2 and coreutils.
#
#   batch [after|relaunch JOB]   claim this attempt, run the body of job.sbatch, wait for it, and record
#                   the end (batch.sh); JOB had the run before: another job, or this one
#   launch SRUN...  find the address of rank 0, write the hostfile, start one `node` per task
#   launch WAY PYTHON HOST...  the same on the hosts of a hostfile, by ssh or pdsh: hosts.sh
#   node            on each node: log file, network interface, then node.sh
#   rank CMD...     around each rank: check the world, log file, run CMD, record a failure
#   stacks          on each node, in a stall: write the stacks of its ranks (stacks.sh)
#   beside S NODES COUNT MODE  run another mode on each of these nodes, next to the ranks
#   ask             on each node: ask the ranks to save and end
#   guard HOST      on another node: check that the batch script's HOST is alive (batch.sh)
#
# Each file has one writer and appears by rename. attempts/N/: begin.json, beat (epoch seconds, at
# least every 30 s), hostfile, failures/TIME-WHO.json, end.json. Exit code 93: a duplicate of a job that
# already has this attempt, or a superfluous job that was to continue the run.
#
# A function, here and in the files beside this one, prints its result, which the caller captures; its
# status tells whether it succeeded; error messages go to stderr. It sets no variable of its caller.
# State beyond a function: attempt_dir, the mode's folder in the run; child, stopped, released, warned
# and overdue, which traps read and set. Names in capitals are environment variables.
# shellcheck disable=SC1091 # the sourced files are beside this one
set -u

# Not $HOSTNAME: bash imports it from the environment, which srun copies from node 0.
host=${SLURMD_NODENAME:-$(uname -n)}

. "${BASH_SOURCE[0]%/*}/records.sh" || exit 1

# die [MESSAGE]: end this part of the job; without a message after a check that has printed one.
die() {
    [ $# -eq 0 ] || error "$@"
    # The first part that ends also ends the step: the codes of the others would hide this one.
    [ -z "${HPCRUN_NODE_RANK-}" ] || record_failure "node-$HPCRUN_NODE_RANK" null null 1
    exit 1
}

# code_of PID: return the exit code of a child that has ended. A signal makes `wait` return a code
# of its own, also if it arrives just as the child ends: bash keeps the child's.
code_of() {
    while kill -0 "$1"; do wait "$1"; done
    wait "$1"
} 2>/dev/null

# beside SECONDS NODES COUNT MODE...: run `harness.sh MODE...` on each of the COUNT nodes NODES, in
# parallel to the ranks; for at most SECONDS (0: no limit).
beside() (
    # Unset what the job requests for its ranks. A site's --export=NONE would leave the step no
    # environment. With NO_KILL srun would wait forever for a dead node.
    unset "${!SLURM_MEM@}" "${!SLURM_GPU@}" "${!SLURM_CPU@}" "${!SLURM_TRES@}" "${!SLURM_NTASKS@}" \
        "${!SLURM_STEP_@}" SLURM_DISTRIBUTION SLURM_NO_KILL
    # In a session of its own: if only the script is killed, its srun would end the guard's step.
    exec env SLURM_EXPORT_ENV=ALL setsid timeout -k 5 "$1" srun --overlap --mem=0 --gres=none --mpi=none \
        ${HPCRUN_HET_GROUP:+"--het-group=$HPCRUN_HET_GROUP"} --quiet --nodelist="$2" --nodes="$3" --ntasks="$3" --ntasks-per-node=1 --job-name="hpcrun-$4" \
        bash -- "$HPCRUN_RUN_DIR/harness.sh" "${@:4}"
)

# ---- launch ------------------------------------------------------------------------------------

launch() {
    local hosts=("$host") names='' place='' ends
    . "$HPCRUN_RUN_DIR/jobside.sh"
    HPCRUN_END_TIME=''
    [[ $1 != @(ssh|pdsh) ]] || { . "$HPCRUN_RUN_DIR/hosts.sh" && launch_hosts "$@"; exit 1; }
    # Slurm's commands run while the rest is prepared.
    if [[ -n ${SLURM_JOB_ID-} && $SLURM_JOB_NODELIST == *[[,]* ]]; then
        exec {names}< <(exec scontrol show hostnames "$SLURM_JOB_NODELIST")
    elif [ -n "${SLURM_JOB_ID-}" ]; then
        hosts=("$SLURM_JOB_NODELIST")
    fi
    exec {ends}< <(end_time)
    MASTER_PORT=$(free_port)
    if [ -n "$names" ]; then
        mapfile -t hosts <&"$names"
        exec {names}<&-
    fi
    [ "${#hosts[@]}" -eq "$HPCRUN_NODES" ] ||
        die "the job wants $HPCRUN_NODES node(s) and has ${#hosts[@]}: ${hosts[*]-}"

    exec {place}< <(find_place "${hosts[@]:0:2}")
    prepare_ranks
    IFS= read -r MASTER_ADDR <&"$place" || is_bare || exit 1
    export MASTER_ADDR MASTER_PORT
    IFS= read -r HPCRUN_END_TIME <&"$ends" || HPCRUN_END_TIME=$(end_time) # now slurmctld answers
    exec {place}<&- {ends}<&-
    if [ -n "${HPCRUN_PREFLIGHT-}" ] && [ "$HPCRUN_NODES" -gt 1 ] && [ "${NCCL_NET-}" = IB ]; then
        HPCRUN_FIRST_NODE=$(. "$HPCRUN_RUN_DIR/preflight.sh" && ports '')
        export HPCRUN_FIRST_NODE # another node must have some, too
    fi
    write_hostfile "${hosts[@]}"
    say "rank 0 is on ${hosts[0]}, at ${MASTER_ADDR:-no known address} port $MASTER_PORT"

    if [ -z "${SLURM_JOB_ID-}" ]; then
        exec bash -- "$HPCRUN_RUN_DIR/harness.sh" node
    fi
    # The guard, or the previous attempt's step, may still use these nodes.
    if [ -n "${HPCRUN_ALLOCATED-}" ]; then
        set -- "$1" --nodelist="$SLURM_JOB_NODELIST" --overlap "${@:2}"
        for _ in {1..300}; do
            [ -n "${HPCRUN_JOBSIDE_PYTHON-}" ] || break
            [ ! -e "$attempt_dir/guarded" ] || break
            sleep 0.1
        done
    fi
    [ -z "${HPCRUN_ROLE-}" ] || set -- "$1" --nodelist="$SLURM_JOB_NODELIST" "${@:2}"
    # A job submitted with --export=NONE would give its steps an empty environment.
    export SLURM_EXPORT_ENV=ALL
    # Set by salloc --gpus-per-task and the like: each rank would see one GPU, and could not reach
    # others.
    unset SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_GPU_BIND SLURM_TRES_BIND \
        SLURM_TRES_PER_TASK
    if [ -n "${SLURM_STEP_ID-}" ]; then
        # Inside a step (srun --pty bash), which holds the CPUs and has a binding.
        set -- "$1" --overlap "${@:2}"
        unset "${!SLURM_CPU_BIND@}" "${!SLURM_STEP_@}"
    fi
    exec "$@" bash -- "$HPCRUN_RUN_DIR/harness.sh" node </dev/null
}

# prepare_ranks: export where the ranks resume, and what they may know about the end of the job.
prepare_ranks() {
    local grace=''
    HPCRUN_RESUME=''
    if [ -z "${HPCRUN_SURVIVE-}${HPCRUN_SAVES-}" ] && [ ! -d "${HPCRUN_CHECKPOINT_DIR-}" ]; then
        # Empty lines, which no reader can see in part.
        (umask go-w && echo >"$attempt_dir/resume" && echo >"$attempt_dir/mark")
    elif [ -n "${HPCRUN_JOBSIDE_PYTHON=$(find_python)}" ]; then
        { IFS= read -rd '' HPCRUN_RESUME && IFS= read -rd '' grace; } < <(jobside prepare_launch)
    elif [ -n "${HPCRUN_SURVIVE-}" ] || [ -d "${HPCRUN_CHECKPOINT_DIR-}" ]; then
        say "no Python 3.6 or newer answers here: checkpoints are neither found nor pruned, stalls are" \
            "not noticed, and the run does not continue by itself"
    fi
    # Some scripts do not create it, and fail at their end.
    if [ -n "${HPCRUN_CHECKPOINT_DIR-}" ] && [ ! -d "$HPCRUN_CHECKPOINT_DIR" ]; then
        # A mode, because default ACLs override the umask. Folders above it have the usual one.
        # shellcheck disable=SC2174
        mkdir -p -m "$(umask -S),go-w" -- "$HPCRUN_CHECKPOINT_DIR" 2>/dev/null
    fi
    if grep -qsE '"method": ?"tpe"' -- "$HPCRUN_RUN_DIR/search.json"; then
        : "${HPCRUN_JOBSIDE_PYTHON=$(find_python)}"
        eval "$(jobside prepare_trial || echo die no values for this trial)"
    fi
    # For programs that check instead of handling a signal: this file appears, or this time comes.
    export HPCRUN_RESUME HPCRUN_END_TIME HPCRUN_STOP_FILE=$attempt_dir/stop
    # torchrun waits 30 s for ranks that save; torch 2.13 accepts another limit.
    [ -z "$grace" ] || export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-$grace}"
}

# end_time: print when Slurm will end the job, in epoch seconds; nothing if unknown.
end_time() {
    local shown
    [ -z "${SLURM_JOB_END_TIME-}" ] || { printf '%s\n' "$SLURM_JOB_END_TIME" && return; } # since 23.02
    [ -n "${SLURM_JOB_ID-}" ] || return 0
    shown=$(env -u SLURM_TIME_FORMAT timeout 10 scontrol --oneliner show job "$(slurm_job)" 2>/dev/null)
    [[ ! $shown =~ \ StartTime=[^\ ]+\ EndTime=([0-9-]+)T([0-9:]+) ]] ||
        date -d "${BASH_REMATCH[1]} ${BASH_REMATCH[2]}" +%s
}

# write_hostfile HOST...: write the hosts in the order of their ranks; export HPCRUN_HOSTFILE.
write_hostfile() {
    local lines
    export HPCRUN_HOSTFILE=$attempt_dir/hostfile
    printf -v lines "%s slots=$HPCRUN_RANKS_PER_NODE\n" "$@"
    write_record "$HPCRUN_HOSTFILE" "${lines%?}"
}

# find_place FIRST [SECOND]: print the address of rank 0, when Slurm answers; FIRST and SECOND are the
# first nodes of the job.
find_place() {
    if [ "$HPCRUN_NODES" -eq 1 ]; then
        [ -z "${SLURM_JOB_ID-}" ] || show_node "$host" >/dev/null
        printf '%s\n' "${HPCRUN_HOST:-127.0.0.1}" # a role may communicate with others
    elif is_bare; then
        first_address "$1" "$2" 2>/dev/null
    else
        first_address "$1" "$2"
    fi
}

# first_address FIRST SECOND: print the address at which the other nodes reach the first one. That
# is Slurm's own address for the node unless it is loopback: Debian resolves a host's own name to
# 127.0.1.1. Otherwise it is the address that this host, the first one, has on its route to the
# second.
first_address() {
    local first second shown PATH=$PATH:/usr/sbin:/sbin
    shown=$(show_node "$1,$2")
    first=$(node_address "$1" "$shown")
    if [ -z "$first" ] || is_loopback "$first"; then
        second=$(node_address "$2" "$shown")
        command -v ip >/dev/null || die "$1 resolves to loopback, and there is no ip (iproute2)"
        [ -n "$second" ] || die "the address of node $2 is not known: scontrol show node $2"
        first=''
        [[ ! $(ip -o route get "$second") =~ \ src\ ([^ ]+) ]] || first=${BASH_REMATCH[1]}
        [ -n "$first" ] || die "$1 has no route to $2 ($second)"
        if is_loopback "$first" && ! is_loopback "$second"; then
            die "$1 would reach $2 ($second) from $first, which $2 cannot reach"
        fi
    fi
    printf '%s\n' "$first"
}

# node_address NAME SHOWN: print Slurm's NodeAddr, resolved if that is a name; SHOWN are the records
# of nodes, a line each.
node_address() {
    local address=$1 found line
    while IFS= read -r line; do
        [[ $line == "NodeName=$1 "* && $line =~ \ NodeAddr=([^ ]+) ]] && address=${BASH_REMATCH[1]}
    done <<<"$2"
    if [[ $address =~ ^[0-9.]+$ || $address == *:* ]]; then
        printf '%s\n' "$address"
        return
    fi
    found=$(getent ahostsv4 "$address" || getent ahosts "$address")
    printf '%s\n' "${found%%[[:space:]]*}"
}

# show_node NAMES: print Slurm's records of them. Wait for a slurmctld that is being restarted, since
# srun would give up in seconds, and end a job that has waited for hours. Then wait until the nodes
# have registered, since a step would otherwise be delayed by minutes.
show_node() {
    local answer tries=0
    until answer=$(scontrol --oneliner show node "$1" 2>&1); do
        case $answer in
        *"slurm controller"* | *"timed out"* | *"Zero Bytes"*) ;;
        *) # those that it has printed are known
            printf '%s\n' "$answer"
            return 1
            ;;
        esac
        [ $tries -gt 0 ] || say "Slurm does not answer, so the launch waits for it" >&2
        [ $((tries += 1)) -le 120 ] || return 1
        sleep 5
    done
    [ $tries -eq 0 ] || sleep 20
    printf '%s\n' "$answer"
}

# is_bare: succeed if the job is a bare command, which may not need the network that ranks need.
is_bare() { [ "${HPCRUN_LAUNCHER-}" = none ]; }

is_loopback() { [[ $1 == 127.* || $1 == ::1 ]]; }

# free_port: print a port that job id and restart count make unique to the attempt; below 32768,
# where the kernel's ports for outgoing connections start (net.ipv4.ip_local_port_range).
free_port() {
    local id=${SLURM_JOB_ID:-$RANDOM} role=${HPCRUN_ROLE_INDEX:-0} try port
    for try in 0 1 2 3 4 5 6 7 8 9; do
        port=$((12000 + (id * 7 + HPCRUN_ATTEMPT * 1009 + role * 211 + try * 101) % 18000))
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
        check_beside "$batch" &
        preflight "$batch" || die
    fi
    exec {batch}>&-
    # By default gloo uses the address of the host's name, which may be 127.0.1.1.
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
    export HPCRUN_GPU_CPUS=''
    [ -z "${HPCRUN_BINDING-}" ] || HPCRUN_GPU_CPUS=$(gpu_cpus '')
    keep_overwritten
    ! is_bare || : >"$attempt_dir/began" # there are no ranks whose logs show it
    released=''
    if [ -n "${HPCRUN_ENDS_WITH_FIRST_NODE-}" ] && [ "$HPCRUN_NODE_RANK" -gt 0 ]; then
        trap release USR2
        await_first_node &
    fi
    [ "${SLURM_LOCALID:-0}" -ne 0 ] || record_usage
    guarded bash -- "$HPCRUN_RUN_DIR/node.sh"
    code=$?
    [ -z "$released" ] || [ -n "$stopped" ] || code=0
    # For `hpcrun status`, and for the other nodes.
    [ "$code" -ne 0 ] || ! is_bare || [ "$HPCRUN_NODES" -eq 1 ] || : >"$attempt_dir/ended/node-$HPCRUN_NODE_RANK"
    [ -z "$stopped" ] || await_ranks
    # DeepSpeed's launcher returns 0 when it is killed, so the results of the ranks count.
    if [ "$code" -eq 0 ] && [ -z "$stopped" ] && ! check_ended; then
        code=1
    fi
    finish_guarded "node-$HPCRUN_NODE_RANK" null null "$code"
}

# await_first_node: wait until the command has succeeded on the first node, then end it on this one.
await_first_node() {
    until [ -e "$attempt_dir/ended/node-0" ]; do sleep 2; done
    say "the command has succeeded on node 0, so it is ended here (ends_with: first_node)"
    while kill -USR2 $$ 2>/dev/null; do sleep 30; done
}

# release: handle USR2 from await_first_node: TERM at first, then KILL.
release() {
    [ -n "$child" ] || return
    if [ -z "$released" ]; then kill -TERM "$child"; else kill -KILL "$child"; fi 2>/dev/null
    released=1
}

# record_usage: record this node's use of CPUs, memory and GPUs (usage.sh) until this process and its
# children have ended: the pipe between them closes.
record_usage() {
    local folder=$HPCRUN_RUN_DIR/usage/$HPCRUN_ATTEMPT usage
    # shellcheck disable=SC2034 # only kept open
    exec {usage}> >(
        trap - TERM INT HUP EXIT
        umask go-w
        mkdir -p -- "$folder" &&
            exec bash -- "$HPCRUN_RUN_DIR/usage.sh" record "$folder/node-$HPCRUN_NODE_RANK" >/dev/null
    )
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
    # Each rank has a file of its own: Python writes a line in pieces, which would interleave.
    exec >>"$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT/rank-$RANK.log" 2>&1
    # Only some launchers set these.
    export NODE_RANK=$HPCRUN_NODE_RANK GROUP_RANK=$HPCRUN_NODE_RANK
    export LOCAL_WORLD_SIZE=$HPCRUN_RANKS_PER_NODE
    restore_overwritten
    [ -z "${HPCRUN_BINDING-}" ] || { . "$HPCRUN_RUN_DIR/hardware.sh" && bind_rank ''; }
    # On SIGABRT, Python writes its stacks and continues (by_faulthandler in stacks.sh), since
    # ignored signals stay ignored through exec. abort() still terminates a process, as it must
    # (abort(3)).
    export PYTHONFAULTHANDLER=${PYTHONFAULTHANDLER-1}
    trap '' ABRT
    guarded "$@"
    code=$?
    [ "$code" -ne 0 ] || : >"$attempt_dir/ended/node-$HPCRUN_NODE_RANK-$LOCAL_RANK"
    finish_guarded "rank-$RANK" "$RANK" "$LOCAL_RANK" "$code"
}

# guarded CMD...: run CMD, forward a request to stop (and note it in $stopped), return CMD's code.
guarded() {
    local code which
    child='' stopped=''
    trap asked_to_stop TERM INT
    trap '[ -z "$child" ] || kill -"${HPCRUN_STOP_SIGNAL:-TERM}" "$child" 2>/dev/null' USR1
    # In the background so that traps run; bash would make it ignore INT, hence the reset. If
    # util-linux supports the option, CMD does not outlive a killed guard.
    (
        trap - INT QUIT
        # Checked once per node, not for each rank; an image has another version.
        which=${HPCRUN_INSIDE-}
        ! hash setpriv 2>/dev/null || which+=${BASH_CMDS[setpriv]-}
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
    # Nobody is left to forward it to: further signals must not prevent the failure's record.
    trap '' TERM INT USR1
    return "$code"
}

# asked_to_stop: handle TERM. Slurm sends it to every process of the step, so CMD has it already,
# and must not get it twice; a launcher that ends its ranks signals only their guards.
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

# note_preemption FILE: record for `hpcrun status` whether Slurm is preempting the job, which it
# shows as RUNNING during the grace time.
note_preemption() {
    [[ $(timeout 10 scontrol --oneliner show job "$(slurm_job)" 2>/dev/null) != *" PreemptTime=2"* ]] ||
        write_record "$1" '"preempted"'
}

# finish_guarded WHO RANK LOCAL_RANK CODE: exit with CODE, after recording a failure.
finish_guarded() {
    local signal
    # DeepSpeed's ranks on CPUs leave 69 MB each there (csrc/cpu/comm/shm.cpp).
    rm -f -- "/dev/shm/deepspeed_allreduce_buffer_${UID}_${MASTER_ADDR-}_${MASTER_PORT-}"_*
    if [ "$4" -ne 0 ] && [ -z "$stopped" ]; then
        ! signal=$(signal_of "$4") || say "${1/-/ } on $host: Signal $(($4 - 128)) (SIG$signal)"
        record_failure "$@"
        # Before the launcher learns of it: the next attempt should exclude a node whose GPU broke.
        [ "$mode" != rank ] || ! . "$HPCRUN_RUN_DIR/preflight.sh" || examine_node
    fi
    exit "$4"
}

# record_failure WHO RANK LOCAL_RANK CODE: record a failure, with the node's defect if known.
record_failure() {
    local why=null
    [[ $1 != node-* || ! -r $attempt_dir/bad/$host ]] || why=$(json_text "$(<"$attempt_dir/bad/$host")")
    write_failure "$attempt_dir" "$@" "$why"
}

# ---- checks on each node -----------------------------------------------------------------------

# check_allocation: check that the node has the GPUs that the job needs, and that this process sees
# all.
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

# check_hostfile: check the hostfile; without it, or with other hosts in it, DeepSpeed's launcher
# would train on this node alone.
check_hostfile() {
    local tries=0 lines=0
    # A file of another node may appear with a delay on a network file system.
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

# reach ADDRESS PORT: check that rank 0's node answers. Launchers wait for it for many minutes
# without naming the missing node. A refused connection is an answer, since nothing listens there
# yet. Only an error that reports the host as unreachable counts, and only if it persists.
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

# Launchers overwrite these; DeepSpeed's sets 0, 1, 2, which on a shared node may be another job's
# GPUs, and Accelerate's sets no precision with a DeepSpeed JSON.
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

# ask: forward the job's signal to each rank of this node through its guard; to a bare command
# through the node's.
ask() {
    local whose=rank
    [ ! -e "$attempt_dir/began" ] || whose=node # the batch script does not know the launcher
    # shellcheck disable=SC2046 # numbers
    kill -USR1 $(guards $whose) 2>/dev/null
}

# check_ended: check that every rank of this node has completed.
check_ended() {
    local ended=("$attempt_dir/ended/node-$HPCRUN_NODE_RANK-"*)
    case ${HPCRUN_LAUNCHER-} in
    '' | srun | pdsh | none | ray) return 0 ;; # each task is one rank, or a command
    esac
    [ -e "${ended[0]}" ] || ended=()
    [ "${#ended[@]}" -ne "$HPCRUN_RANKS_PER_NODE" ] || return 0
    error "$host: the launcher ended, but ${#ended[@]} of its $HPCRUN_RANKS_PER_NODE ranks ended" \
        "well: was it killed?"
    return 1
}

# await_ranks: DeepSpeed's launcher exits at once on a stop request, and forwards nothing. Its ranks
# may be saving, and would end with this task. Under Slurm they get the signal themselves, and the
# whole grace time.
await_ranks() {
    local tries=0
    [ "${HPCRUN_LAUNCHER-}" = deepspeed ] || return 0
    # shellcheck disable=SC2046 # numbers
    [ -n "${SLURM_JOB_ID-}" ] || kill -TERM $(guards rank) 2>/dev/null
    while [ -n "$(guards rank)" ] && { [ -n "${SLURM_JOB_ID-}" ] || [ $((tries += 1)) -le 40 ]; }; do
        sleep 0.5
    done
}

# guards MODE: print the processes that run `harness.sh MODE` for this run on this node, without
# srun, which has the same words and would forward a signal to all ranks, and without those of
# another node of a sandbox.
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
launch | node | rank | ask | beside) "$mode" "$@" ;;
batch | guard) . "${BASH_SOURCE[0]%/*}/batch.sh" && "$mode" "$@" ;;
stacks) . "${BASH_SOURCE[0]%/*}/stacks.sh" && stacks ;;
clean) . "${BASH_SOURCE[0]%/*}/local.sh" && clean_node "$host" "$@" ;;
address | session | task | end_marked)
    . "${BASH_SOURCE[0]%/*}/hosts.sh" && "$mode" "$@"
    ;;
*) die "no such mode: $mode" ;;
esac
