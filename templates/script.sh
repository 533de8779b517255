#!/bin/bash
# Runs a user's own sbatch script in a job of hpcrun, and records its begin and its end.
#
#   script.sh SUBMIT_DIR DIR SIGNAL SCRIPT [ARG...]
#
# job.sbatch is that script with one inserted line, which starts this file in its place. This file
# starts job.sbatch again, in the directory DIR and with the environment that sbatch, called in
# SUBMIT_DIR, would give it; the inserted line then does nothing. SIGNAL is TERM if the script itself handles the TERM of
# `--signal=B:TERM`. In the folder of the run it writes attempts/N/begin.json, beat and end.json, and
# links the output of the job as logs/batch.log and logs/batch.err.
set -u

submit_dir=$1 dir=$2 own_signal=$3 script=$4
shift 4
run_dir=${BASH_SOURCE[0]%/*}
host=${SLURMD_NODENAME:-$(uname -n)}
job=${SLURM_ARRAY_JOB_ID-${SLURM_JOB_ID-}}${SLURM_ARRAY_TASK_ID+_$SLURM_ARRAY_TASK_ID}
child='' stopped=''

# shellcheck disable=SC1091 # the file is beside this one; without it, the script is not recorded
. "$run_dir/records.sh"

# next_attempt RUN_DIR JOB BEFORE KNOWN: print the number of the attempt that starts now (see claim in
# records.sh): the one after KNOWN if Slurm has restarted its job since.
# shellcheck disable=SC2317 # claim calls it
next_attempt() {
    local begin='' owner='' restarts=-1
    [ -n "$4" ] || { echo 0; return; }
    for _ in {1..20}; do # on a network file system a file may appear late
        begin=$(cat -- "$1/attempts/$4/begin.json" 2>/dev/null)
        [ -z "$begin" ] || break
        sleep 0.5
    done
    [[ ! $begin =~ \"job_id\":\ \"([^\"]*)\" ]] || owner=${BASH_REMATCH[1]}
    [[ ! $begin =~ \"restarts\":\ ([0-9]+) ]] || restarts=${BASH_REMATCH[1]}
    if [ "$owner" != "$2" ] || [ "$restarts" -ge "${SLURM_RESTART_COUNT:-0}" ]; then
        echo "$4"
    else
        echo $(($4 + 1))
    fi
}

# link_output NUMBER NAME: link the file behind a stream of the job, which may be anywhere.
link_output() {
    local target
    target=$(readlink -- "/proc/$$/fd/$1") && [ -f "$target" ] || return 0
    [ "$1" != 2 ] || [ "$target" != "$(readlink -- "/proc/$$/fd/1")" ] || return 0
    # A link to a file in another file system must be a symbolic one.
    ln -f -- "$target" "$run_dir/logs/$2" 2>/dev/null || ln -sf -- "$target" "$run_dir/logs/$2" 2>/dev/null
}

# record_end CODE: write the record of the end.
record_end() {
    local why=''
    [ "$1" -ne 0 ] || why='done'
    write_end "$attempt_dir" "$job" "$begun" "$(now)" "$1" "$stopped" '' "$why" '' 2>/dev/null
}

# forward SIGNAL: pass a signal on to the script. Slurm sends USR1 and the like to the batch script
# only, but the TERM of a cancelled job, or of one at its time limit, to all processes.
# shellcheck disable=SC2317 # the traps below call it
forward() {
    [ "$1" != TERM ] || stopped=TERM
    if [ -n "$child" ] && { [ "$1" != TERM ] || [ "$own_signal" = TERM ]; }; then
        kill "-$1" "$child" 2>/dev/null
    fi
}

# start_script: replace this shell by the script.
start_script() {
    local before=${OLDPWD-}
    cd -- "$dir" || exit 1
    if [ -n "$before" ]; then OLDPWD=$before; else unset OLDPWD; fi
    export SLURM_SUBMIT_DIR=$submit_dir SHLVL=$((SHLVL - 1)) HPCRUN_SCRIPT=body
    exec "$script" "$@"
}

attempt=$(claim "$run_dir" "$job" "")
claimed=$?
[ "$claimed" -ne 93 ] || exit 93
if [ "$claimed" -ne 0 ]; then
    error "$run_dir cannot be written on $host: this job is not recorded"
    start_script "$@"
fi
attempt_dir=$run_dir/attempts/$attempt
begun=$(now)
write_begin "$attempt_dir" "$job" "$begun" 2>/dev/null
link_output 1 batch.log
link_output 2 batch.err

# The beat ends with this process in any case: the pipe between them closes.
exec {beat}> >(
    trap '' TERM INT HUP USR1 USR2
    while :; do
        write_record "$attempt_dir/beat" "$(printf '%(%s)T' -1)" 2>/dev/null
        IFS= read -rt 30 _
        [ $? -gt 128 ] || break
    done
)

for signal in HUP INT QUIT USR1 USR2 ALRM WINCH URG TERM; do
    # shellcheck disable=SC2064 # the name is expanded now
    trap "forward $signal" "$signal"
done
(
    trap - HUP INT QUIT USR1 USR2 ALRM WINCH URG TERM
    exec {beat}>&-
    start_script "$@"
) <&0 &
child=$!

# Any signal interrupts `wait`. After TERM Slurm kills everything within KillWait (30 s): the end is
# recorded before that, and again if the script ends in time.
ticks=0
while kill -0 "$child" 2>/dev/null; do
    if [ -z "$stopped" ]; then
        wait "$child"
    else
        sleep 0.2
        ticks=$((ticks + 1))
        [ "$ticks" -ne 100 ] || record_end 143
    fi
done
wait "$child" 2>/dev/null
code=$?
trap '' HUP INT QUIT USR1 USR2 TERM
exec {beat}>&-
record_end "$code"
exit "$code"
