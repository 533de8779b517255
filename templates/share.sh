#!/bin/bash
# Runs several runs of a sweep in one job: each with its own share of the node's GPUs and cores, its own
# folder, log and records, and its own end. It needs bash 4.2.
#
#   share.sh EACH RUNS GPUS BEFORE AFTER   start EACH of the sweep's RUNS, of GPUS GPUs each, whose
#                                          folders are BEFORE<number>AFTER, and wait for all of them
each=$1 runs=$2 gpus=$3 before=$4 after=$5
first=$((SLURM_ARRAY_TASK_ID * each))
# shellcheck disable=SC1090 # they lie in each run's folder
. "$before$first$after/clean.sh" && . "$before$first$after/hardware.sh"
set -u

# The job's GPUs: if Slurm does not count GPUs, the job has all of the node.
kind=CUDA_VISIBLE_DEVICES
[ ! -e /dev/kfd ] || kind=ROCR_VISIBLE_DEVICES
IFS=, read -ra devices <<<"${!kind-}"
[ "${#devices[@]}" -gt 0 ] || mapfile -t devices < <(seq 0 $((each * gpus - 1)))
mapfile -t cores < <(cores_near - '')

# share SLOT: set up the environment of a slot's run.
share() {
    local run=$before$((first + $1))$after from=$(($1 * ${#cores[@]} / each)) me=$BASHPID
    trap - INT QUIT TERM
    if [ "$gpus" -gt 0 ]; then
        unset CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
        export "$kind=$(IFS=, && printf '%s' "${devices[*]:$1*gpus:gpus}")"
    fi
    [ "${#cores[@]}" -lt "$each" ] ||
        (IFS=, && taskset -pc "${cores[*]:from:($1 + 1) * ${#cores[@]} / each - from}" "$me" >/dev/null)
    # Its harness runs as on a single machine, without Slurm: its processes are no steps of the job.
    unset SLURM_JOB_ID SLURM_JOBID
    export HPCRUN_SHARES_JOB=1
    exec bash -- "$run/job.sbatch" >>"$run/logs/batch.log" 2>&1 </dev/null
}

pids=()
for ((slot = 0; slot < each && first + slot < runs; slot++)); do
    [ ! -e "$before$((first + slot))$after/cancelled.json" ] || continue
    share "$slot" &
    pids[${#pids[@]}]=$!
done
trap : TERM # it comes to the runs, too; each records its end
code=0
for slot in "${!pids[@]}"; do
    while kill -0 "${pids[slot]}" 2>/dev/null; do wait "${pids[slot]}"; done
    wait "${pids[slot]}" || code=1 # bash keeps it, where a signal has ended the one above
done
exit $code
