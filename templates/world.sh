#!/bin/bash
# What keeps the processes of a job in one world, for hpcrun's harness, which takes these functions
# in. It needs bash 4.2 and coreutils. A check that fails says why in $trouble.
# shellcheck disable=SC2154 # $attempt_dir is the harness's
set -u

# check_allocation: the node has the GPUs that the job counts on, and this process sees them all.
check_allocation() {
    local wanted=${HPCRUN_GPUS_PER_NODE:-0} devices=()
    [ "$wanted" -gt 0 ] || return 0
    [ -n "${SLURM_JOB_ID-}" ] || [ "${HPCRUN_DEVICE-}" = cuda ] || return 0
    if [ "${SLURM_GPUS_ON_NODE:-$wanted}" -lt "$wanted" ]; then
        trouble="Slurm gave it $SLURM_GPUS_ON_NODE GPU(s), and the job wants $wanted on each node"
        return 1
    fi
    IFS=, read -ra devices <<<"${CUDA_VISIBLE_DEVICES-}"
    if [ "${#devices[@]}" -gt 0 ] && [ "${#devices[@]}" -lt "$wanted" ]; then
        trouble="a task sees ${#devices[@]} of the $wanted GPUs (CUDA_VISIBLE_DEVICES="
        trouble+="$CUDA_VISIBLE_DEVICES): GPUs must not be bound to tasks"
        return 1
    fi
}

# check_hostfile: without it, or with others in it, DeepSpeed's launcher would train on this node
# alone.
check_hostfile() {
    local tries=0 lines=0
    # What another node wrote may take a moment to show on a network file system.
    until [ -s "$HPCRUN_HOSTFILE" ]; do
        trouble="the hostfile $HPCRUN_HOSTFILE is missing: each node would train alone"
        [ $tries -lt 10 ] || return 1
        tries=$((tries + 1))
        sleep 0.5
    done
    lines=$(grep -c "^[^ ]* slots=$HPCRUN_RANKS_PER_NODE\$" -- "$HPCRUN_HOSTFILE")
    trouble="the hostfile $HPCRUN_HOSTFILE has $lines of the job's $HPCRUN_NODES nodes"
    [ "$lines" -eq "$HPCRUN_NODES" ]
}

# reach ADDRESS PORT: whether rank 0's node answers. Launchers wait for it for many minutes, and
# then do not say whom they missed. A refused connection is an answer too: nothing listens there
# yet. Only what says that the way is barred counts, and only if it lasts.
reach() {
    local said status began=$SECONDS
    while :; do
        # shellcheck disable=SC2016 # the inner shell expands it
        said=$(LC_ALL=C timeout 8 bash -c 'exec 3<>"/dev/tcp/$1/$2"' - "$1" "$2" 2>&1)
        status=$?
        case $said in
        *"No route to host"* | *"unreachable"* | *"timed out"* | *"Host is down"*) ;;
        *) [ $status -eq 124 ] || return 0 ;;
        esac
        [ $((SECONDS - began)) -lt 15 ] || break
        sleep 1
    done
    said=${said##*: }
    trouble="cannot reach rank 0's node at $1, port $2: ${said:-no answer}"
    return 1
}

# keep_overwritten: launchers overwrite them; DeepSpeed's counts 0, 1, 2, which on a shared node may be
# another job's GPUs, and Accelerate's sets no precision beside DeepSpeed's JSON.
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

# check_ended: every rank of this node has ended well.
check_ended() {
    local ended=("$attempt_dir/ended/node-$HPCRUN_NODE_RANK-"*)
    case ${HPCRUN_LAUNCHER-} in
    '' | srun | pdsh | none) return 0 ;; # each task is one rank, or a command
    esac
    [ -e "${ended[0]}" ] || ended=()
    trouble="the launcher ended, but ${#ended[@]} of its $HPCRUN_RANKS_PER_NODE ranks ended well:"
    trouble+=" was it killed?"
    [ "${#ended[@]}" -eq "$HPCRUN_RANKS_PER_NODE" ]
}

# await_ranks: DeepSpeed's launcher goes at once when it is asked to stop, and passes nothing on. Its
# ranks may be saving; this task's end would be theirs. Slurm asks them itself.
await_ranks() {
    local pid tenths=0
    [ "${HPCRUN_LAUNCHER-}" = deepspeed ] || return 0
    for pid in $(rank_guards); do
        [ -n "${SLURM_JOB_ID-}" ] || kill -TERM "$pid" 2>/dev/null
    done
    while [ -n "$(rank_guards)" ] && [ $tenths -lt 200 ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
}

# rank_guards: the processes that run `harness.sh rank` for this run on this node.
rank_guards() {
    local file
    while IFS= read -r file; do
        ! grep -qszF -- "$HPCRUN_RUN_DIR/harness.sh" "$file" || printf '%s\n' "${file//[^0-9]/}"
    done < <(grep -lszxF -- rank /proc/[0-9]*/cmdline)
}
