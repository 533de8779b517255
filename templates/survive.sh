# The end of an attempt: its reason, its record, and whether the run continues. harness.sh sources
# this in the batch script.
#
# HPCRUN_SURVIVE names the ends after which the run continues; without it none does. Decisions on
# the evidence that is collected here are made in Python: hpcrun/jobside/ends.py.
# shellcheck shell=bash disable=SC1091,SC2154 # attempt_dir, stopped and overdue are the harness's

# ---- The record of the end --------------------------------------------------------------------

# finish ATTEMPT JOB BEGUN CODE: write the end record, and start the next attempt if the run
# continues. The exit code is that of the process that failed first, whatever the launcher returned,
# so that Slurm shows the relevant code.
finish() {
    local attempt=$1 job=$2 begun=$3 code=$4 first='' signal=null stopped_by=null tries=0
    local why newest end note pause next='' pid heir decided=() facts=()
    # Slurm sends TERM to all processes, which would end those whose answers are awaited here.
    trap '' TERM INT HUP URG USR2
    end_what_is_left
    for pid in $(jobs -p); do
        [ "$pid" = "$child" ] || kill -TERM "$pid" 2>/dev/null # what waits for the time limit
    done
    if [ -n "$stopped" ]; then
        stopped_by="\"$stopped\""
        signal=15
    else
        first=$(first_failure)
        # A record of another node may appear with a delay on a network file system.
        while [ "$code" -ne 0 ] && [ -z "$first" ] && [ $tries -lt 3 ]; do
            sleep 0.5
            tries=$((tries + 1))
            first=$(first_failure)
        done
        if [ -n "$first" ]; then
            code=${first#*'"exit_code": '}
            code=${code%%,*}
            # It is used in arithmetic, where bash would execute the text of an index.
            [[ $code =~ ^[0-9]{1,3}$ ]] || code=1
        elif [ "$code" -eq 0 ] && [ ! -e "$attempt_dir/launched" ]; then
            error "the job's setup ended before the training was started"
            code=1
        elif [ "$code" -eq 0 ] && [ -n "${HPCRUN_ALLOCATED-}" ] && [ -n "$(lost_nodes)" ]; then
            # With spare nodes (--no-kill) srun succeeds without the ranks of a dead node.
            error "a node died before its ranks had ended: $(lost_nodes | paste -sd,)"
            code=1
        fi
        ! signal_of "$code" >/dev/null || signal=$((code - 128))
    fi
    end="{\"attempt\": $attempt, \"job_id\": \"$job\", \"begun_at\": $begun,\
 \"stopped_by\": $stopped_by, \"first_failure\": ${first:-null}"
    mapfile -t decided < <(
        mapfile -t facts < <(find_evidence "$code" "$first" "$end")
        jobside end "$code" "${facts[@]}" $(($(printf '%(%s)T' -1) - ${begun%.*}))
    )
    why=${decided[0]-} newest=${decided[1]-} note=${decided[2]-} pause=${decided[3]-0}
    if [ -z "$why" ]; then
        # Then hpcrun uses the rest of the record.
        [ "$code" -ne 0 ] || why='done'
        [ -z "${HPCRUN_SURVIVE-}" ] || [ "$code" -eq 0 ] ||
            note="no Python 3.6 or newer answers on $host: the run does not continue by itself"
    fi
    # A program that was asked to end, saved and exited with 0 has not completed its work.
    [ "$code" -ne 0 ] || [ "$why" = "done" ] || code=143 signal=15
    end+=", \"exit_code\": $code, \"signal\": $signal, \"ended_at\": $(now),\
 \"why\": $(json_text "$why"), \"checkpoint\": $(json_text "$newest")"
    rm -f -- "$attempt_dir/environment" # the same values, where hosts.sh was killed
    . "$HPCRUN_RUN_DIR/local.sh"
    if [ "$note" = yes ] && [ -z "$stopped$overdue" ] && spare_is_left "$why"; then
        next='"relaunch"'
        say "attempt $attempt ended ($why), and the run goes on on other nodes of the job"
        clean_nodes "$host" ''
    elif [ "$note" = yes ]; then
        write_record "$attempt_dir/end.json" "$end, \"next\": \"requeue\"}"
        say "attempt $attempt ended ($why), and the run goes on"
        clean_nodes "$host" "$stopped$overdue" # ranks that still run need their folders
        next=$(go_on "$pause") ||
            note='Slurm would not start it again: see logs/batch.log'
    fi
    [ -z "$next" ] || note=''
    end+=", \"next\": ${next:-null}, \"note\": $(json_text "$note")}"
    write_record "$attempt_dir/end.json" "$end"
    heir=$(successor)
    [ -z "$heir" ] || [ "$next" = "\"$heir\"" ] || timeout 20 scancel --state=PENDING "$heir"
    [ -n "$next" ] || clean_nodes "$host" "$stopped$overdue"
    # A stopped job may be requeued, and then needs them; hpcrun removes them at the end.
    if [ -z "$next" ] && { [ -z "$stopped" ] ||
        grep -q '^#SBATCH --no-requeue' -- "$HPCRUN_RUN_DIR/job.sbatch"; }; then
        rm -f -- "$HPCRUN_RUN_DIR/secrets.env"
    fi
    say "attempt $attempt ended with exit code $code"
    [ -z "${HPCRUN_CHECKPOINT_KEEP-}" ] || jobside prune_checkpoints
    if [ "$next" = '"relaunch"' ]; then
        trap - TERM INT HUP URG USR2
        export HPCRUN_RELAUNCHED=1
        exec bash -- "$HPCRUN_RUN_DIR/harness.sh" batch relaunch "$job"
    fi
    exit "$code"
}

# end_what_is_left: if this node's slurmd or network is down, nobody ends the step's processes here:
# they would continue, and save, during the next attempt. Those of a step that srun still controls
# may be saving, in the time that Slurm grants them.
end_what_is_left() {
    local pids nodes
    [ -n "${SLURM_JOB_ID-}" ] || return 0
    [ "$stopped" = HUP ] || ! kill -0 "$child" 2>/dev/null || return 0
    pids=$(guards node && guards rank)
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086 # numbers
    kill -KILL $pids 2>/dev/null
    . "$HPCRUN_RUN_DIR/local.sh"
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    clean_node "$host" ${nodes[@]+"${nodes[@]}"}
}

first_failure() {
    local file
    for file in "$attempt_dir"/failures/*.json; do
        [ -e "$file" ] && cat -- "$file"
        return 0
    done
}

# ---- Why it ended ------------------------------------------------------------------------------

# slurm_field NAME RECORD: print a field of the output of `scontrol --oneliner show job`.
slurm_field() {
    [[ " $2" =~ \ $1=([^ ]*) ]] && printf '%s\n' "${BASH_REMATCH[1]}"
}

# slurm_state RECORD: print Slurm's decision on the job, as the name of a final state; nothing while
# it runs. Until the job is over scontrol shows all ends as COMPLETING (20.11 to 26.05).
slurm_state() {
    local said
    case $(slurm_field JobState "$1")-$(slurm_field Reason "$1") in
    COMPLETING-TimeLimit) echo TIMEOUT ;;
    COMPLETING-NodeDown) echo NODE_FAIL ;;
    COMPLETING-* | PENDING-*)
        said=$(slurmstepd_says)
        if begins_again "$1"; then
            [ "$said" != CANCELLED ] || said=''
            if [ -z "$said" ] && [ -n "$(lost_nodes)" ]; then
                said=NODE_FAIL
            fi
            echo "${said:-REQUEUED}"
        elif is_preempted "$1" && [ "$said" != CANCELLED ]; then # by its owner, in the grace
            echo PREEMPTED
        else
            echo CANCELLED
        fi
        ;;
    -) [ -z "${SLURM_JOB_ID-}" ] || slurmstepd_says ;;
    RUNNING-*) ! begins_again "$1" || echo NODE_FAIL ;; # on other nodes, beside this attempt
    *) slurm_field JobState "$1" ;;
    esac
}

# begins_again RECORD: succeed if Slurm restarts the job by itself, or has done so.
begins_again() {
    local restarts
    restarts=$(slurm_field Restarts "$1") && [ "$restarts" -gt "${SLURM_RESTART_COUNT:-0}" ]
}

# is_preempted RECORD: succeed if Slurm has started to preempt the job, which may still have grace
# time.
is_preempted() {
    case $(slurm_field PreemptTime "$1") in '' | None) return 1 ;; esac
}

# slurmstepd_says: print the state that follows from slurmstepd's last messages about this job,
# which it writes into the job's output.
slurmstepd_says() {
    local job="JOB ${SLURM_JOB_ID-} .* CANCELLED AT" step="STEP ${SLURM_JOB_ID-}[.].* DUE TO"
    # For a step it also prints CANCELLED when a grace time starts.
    case $(batch_log | grep -a "\*\*\* \($job\|$step\) " | tail -n 1) in
    *"DUE TO PREEMPTION"*) echo PREEMPTED ;;
    *"DUE TO TIME LIMIT"*) echo TIMEOUT ;;
    *"DUE TO NODE FAILURE"*) echo NODE_FAIL ;;
    *"DUE TO "* | '') ;;
    *) echo CANCELLED ;;
    esac
}

# ran_out_of_memory: succeed if a step's process was killed because the host was out of memory.
# slurmstepd reports it at the end of the step ("Detected 1 oom_kill event", "exceeded memory
# limit"), and srun names the task.
ran_out_of_memory() {
    batch_log | grep -qaiE '^(slurmstepd|srun)[^ ]*: error: .*(oom.kill|out of memory|memory limit)'
}

# batch_log: print this attempt's part of the job's own output.
batch_log() {
    local text
    text=$(tail -c 262144 -- "$HPCRUN_RUN_DIR/logs/batch.log" 2>/dev/null | tr -d '\0')
    printf '%s\n' "${text##*hpcrun: attempt "$HPCRUN_ATTEMPT" of job }"
}

# show_job [RECORD]: print Slurm's record of this job. RECORD is the end record without its closing
# brace. If slurmctld does not answer it is written at once, since Slurm may kill this process soon;
# for a run that may continue the query is then repeated for an hour, as nothing else ends the job
# meanwhile.
show_job() {
    local answer tries=0 most=2
    [ -n "${SLURM_JOB_ID-}" ] || return 1
    [ -z "${1-}" ] || [ -z "${HPCRUN_SURVIVE-}" ] || most=720
    until answer=$(timeout 10 scontrol --oneliner show job "$(slurm_job)" 2>&1); do
        is_silent "$answer" && ! is_replaced || return 1
        [ $tries -gt 0 ] || [ -z "${1-}" ] || write_record "$attempt_dir/end.json" "$1}"
        [ $((tries += 1)) -lt "$most" ] || return 1
        sleep 5
    done
    printf '%s\n' "$answer"
}

# is_silent ANSWER: succeed if a command failed because slurmctld did not answer it.
is_silent() {
    case $1 in
    *"slurm controller"* | *"timed out"* | *"Zero Bytes"* | '') ;;
    *) return 1 ;;
    esac
}

# is_replaced: succeed if the run's next attempt has started although this one still runs, because
# Slurm considered its node dead.
is_replaced() { [ -d "$HPCRUN_RUN_DIR/attempts/$((HPCRUN_ATTEMPT + 1))" ]; }

# lost_nodes: print the job's nodes that Slurm reports as down or not responding, that have rebooted
# since this script started, that were removed from a job with spare nodes, even if they are back by
# now, and those that the preflight found to be bad.
lost_nodes() {
    local line file began booted name kept=''
    printf -v began '%(%FT%T)T' $(($(printf '%(%s)T' -1) - SECONDS))
    for file in "$attempt_dir"/bad/*; do
        [ ! -e "$file" ] || printf '%s\n' "${file##*/}"
    done
    [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] || [ -n "${HPCRUN_ALLOCATED-}" ] || return 0
    [ -z "${HPCRUN_ALLOCATED-}" ] ||
        kept=$'\n'$(scontrol show hostnames "$(slurm_field NodeList "$(show_job)")" 2>/dev/null)$'\n'
    [[ $kept == *$'\n'$host$'\n'* ]] || kept='' # not Slurm's answer on this job as it runs here
    while IFS= read -r line; do
        name=$(slurm_field NodeName "$line")
        case $(slurm_field State "$line") in
        *DOWN* | *NOT_RESPONDING* | *FAIL* | *\**) printf '%s\n' "$name" ;;
        *)
            booted=$(slurm_field BootTime "$line")
            if [[ $booted == 2*T* && $booted > $began || -n $kept && $kept != *$'\n'$name$'\n'* ]]; then
                printf '%s\n' "$name"
            fi
            ;;
        esac
    done < <(timeout 10 scontrol --oneliner show node "$SLURM_JOB_NODELIST" 2>/dev/null)
}

# note_silent_nodes: record the job's other nodes that are unreachable from here as bad. A node that
# refuses a connection is alive.
note_silent_nodes() (
    mkdir -p -- "$attempt_dir/bad"
    while IFS= read -r line; do
        name=$(slurm_field NodeName "$line") port=$(slurm_field Port "$line") || port=6818
        address=$(slurm_field NodeAddr "$line")
        [ "$name" = "$host" ] || reach "$address" "$port" 2>/dev/null ||
            write_record "$attempt_dir/bad/$name" "it cannot be reached from $host" &
    done < <(timeout 10 scontrol --oneliner show node "$SLURM_JOB_NODELIST" 2>/dev/null)
    wait
)

# find_evidence CODE FIRST BEGIN: print why this attempt ended, on one line each: the job's state in
# Slurm; 1 if Slurm has started to preempt it; 1 if the processes were asked to end (`limit`:
# because of the time limit); the run's own finding (stalled; node: one of its nodes is bad or gone;
# memory: a process was killed because the host was out of memory); how far it came (setup, ranks).
# FIRST is the record of its first failure, or empty, BEGIN the begin of its end record.
find_evidence() {
    local shown='' state='' preempted='' told='' mark='' phase=ranks logs asked
    asked=("$attempt_dir"/told-*)
    # After a success no query to Slurm is needed.
    if [ "$1" -ne 0 ] || [ -n "$stopped$overdue" ] || [ -e "${asked[0]}" ] ||
        [ -e "$attempt_dir/stop" ]; then
        shown=$(show_job "$3, \"exit_code\": $1, \"signal\": null, \"ended_at\": $(now)")
        state=$(slurm_state "$shown")
        ! is_replaced || state=NODE_FAIL
        ! is_preempted "$shown" || preempted=1
        [ -n "$2" ] || { [ -z "$stopped" ] && [ ! -e "${asked[0]}" ]; } || told=1
        [ ! -e "$attempt_dir/stop" ] || told=limit
        [ -z "$(lost_nodes)" ] || mark=node
        # Slurm reports a node as down minutes after it died, when the other ranks have already
        # failed.
        if [ -z "$mark$state$stopped" ] && [ -n "$shown" ] && [ "$SLURM_JOB_NUM_NODES" -gt 1 ] &&
            [[ " ${HPCRUN_SURVIVE-} " == *" node_fail "* ]]; then
            note_silent_nodes
            [ -z "$(lost_nodes)" ] || mark=node
        fi
        [ -n "$mark" ] || ! ran_out_of_memory || mark=memory
        [ ! -e "$attempt_dir/stalled" ] || mark=stalled
    fi
    logs=("$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT"/rank-*.log)
    [ -e "${logs[0]}" ] || [ -e "$attempt_dir/began" ] || phase=setup
    printf '%s\n' "$state" "$preempted" "$told" "$mark" "$phase"
}

# ---- Continuation ------------------------------------------------------------------------------

# go_on PAUSE: start the next attempt, after a delay in seconds. Prints the way as JSON: "requeue",
# or the number of another job.
go_on() {
    local pause=$1 nodes shown excluded heir
    shown=$(show_job)
    if [ "$(slurm_state "$shown")" = CANCELLED ] || [ -e "$HPCRUN_RUN_DIR/cancelled.json" ]; then
        say "the job was cancelled meanwhile" >&2
        return 1
    fi
    nodes=$({ lost_nodes; [ -z "${HPCRUN_ALLOCATED-}" ] || bad_nodes; } | sort -u | paste -sd,)
    excluded=$(slurm_field ExcNodeList "$shown")
    [ -z "$nodes" ] || [ "${excluded:-(null)}" = '(null)' ] || nodes=$excluded,$nodes
    # It restarts anyway, or already has: requeueing would end that attempt.
    ! begins_again "$shown" || { exclude "$nodes" && echo '"requeue"' && return; }
    heir=$(successor)
    if [ -z "$heir" ] || ! insist 720 timeout 20 scontrol update JobId="$heir" \
        StartTime="now+$pause" ${nodes:+ExcNodeList="$nodes"} >&2; then
        # Slurm may forget a delay that is set on a job while it ends; another job keeps it. And if
        # this one has come back to a bad node it has already waited its two minutes.
        [ "$pause" -gt 0 ] || { [ -d "$attempt_dir/bad" ] && [ ! -e "$attempt_dir/launched" ]; } ||
            ! requeue "$nodes" || return 0
        heir=$(chain "$pause" "$nodes" 720) || return 1
    fi
    hand_on "$(slurm_job)" "$heir"
    printf '"%s"\n' "$heir"
}

# requeue NODES: make Slurm restart this job, without NODES.
requeue() {
    local answer='' tries=0
    # It restarts anyway, or already has: requeueing would end that attempt. Checked each time,
    # since a node that was disconnected may learn of it late.
    until is_replaced || begins_again "$(show_job)" ||
        answer=$(timeout 20 scontrol requeue "$(slurm_job)" 2>&1); do
        [[ $answer != *"pending execution"* ]] || break # Slurm has done it itself
        [ $tries -gt 0 ] || say "scontrol requeue: ${answer:-no answer}" >&2
        # Submitted so that Slurm never restarts it by itself; its owner may while it runs.
        [[ $answer != *disabled* ]] || { [ $tries -eq 0 ] && allow_requeue && answer=''; }
        is_silent "$answer" && [ $((tries += 1)) -lt 720 ] || return 1
        sleep $((tries > 1 || ${#answer} ? 5 : 0))
    done
    exclude "$1"
    echo '"requeue"'
}

# exclude NODES: exclude nodes from the next start of the job, which is to be restarted. The TERM
# that Slurm sends to all processes of a requeued job also ends scontrol: the command is then
# repeated.
exclude() {
    local tries=0
    is_replaced || [ -z "$1" ] ||
        until timeout 20 scontrol update JobId="$(slurm_job)" ExcNodeList="$1" >&2; do
            [ $? -eq 143 ] && [ $((tries += 1)) -lt 5 ] || return 0
        done
}

# allow_requeue: a site may submit all jobs as not requeueable. The owner may change that while the
# job runs, but no longer while it is being ended.
allow_requeue() {
    timeout 20 scontrol update JobId="$(slurm_job)" Requeue=1 >/dev/null 2>&1
}

# ---- The time limit and the ranks --------------------------------------------------------------

# end_time RECORD: print when Slurm will end the job, in epoch seconds; nothing if unknown. (In the
# environment since Slurm 23.02.)
end_time() {
    local ends
    ends=$(slurm_field EndTime "$1")
    [[ $ends != [0-9]*T* ]] || date -d "${ends/T/ }" +%s
}

# grace: print for how many seconds ranks may save after a request to end: the partition's grace
# time before a preemption, and KillWait at the time limit.
grace() {
    {
        slurm_field GraceTime "$(timeout 5 scontrol --oneliner show partition "$SLURM_JOB_PARTITION" 2>/dev/null)"
        kill_wait
        echo 30
    } | sort -n | tail -n 1
}

# kill_wait: print how long the processes of a job that is being ended may live, in seconds.
kill_wait() {
    local found=''
    [[ ! $(timeout 5 scontrol show config 2>/dev/null) =~ KillWait[\ =]+([0-9]+) ]] ||
        found=${BASH_REMATCH[1]}
    echo "${found:-30}"
}

# near_the_end: handle Slurm's warning. The ranks are asked to save, if the job requests it; shortly
# before the limit the attempt is ended (USR2), while the job can still be restarted.
near_the_end() {
    local left=60 ends shown saves=${HPCRUN_SAVES-}
    : >"$attempt_dir/stop"
    shown=$(show_job)
    ends=$(end_time "$shown")
    [ -z "$ends" ] || left=$((ends - $(printf '%(%s)T' -1)))
    if is_preempted "$shown"; then
        # Some sites configure this (send_user_signal); the ranks are not informed until the grace
        # time ends.
        say "the job is being preempted, in $left s"
        write_record "$attempt_dir/stop" '"preempted"'
        saves=1
    else
        say "the time limit is $left s away"
        write_record "$attempt_dir/stop" '"time_limit"'
    fi
    case " ${HPCRUN_SURVIVE-} " in
    *" time_limit "*)
        (
            trap - INT HUP URG USR2
            trap 'kill "$!" 2>/dev/null; exit' TERM # by finish
            sleep $((left > 40 ? left - 25 : 15)) &
            wait "$!" && kill -USR2 $$
        ) &
        ;;
    esac
    [ -z "$saves" ] || ask_ranks &
}

# ask_ranks: on every node, forward the job's signal to the process of each rank, once. Slurm's
# warning may come a minute early, at the start of a short job: a rank without output gets half a
# minute from the launch.
ask_ranks() {
    while [ ! -e "$attempt_dir/began" ] && [ -z "$(find "$attempt_dir/launched" -mmin +0.5 2>/dev/null)" ] &&
        [ -z "$(find "$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT" -name 'rank-*' -size +0 -print -quit)" ]; do
        sleep 1 # `finish` ends this
    done
    say "asking the ranks to save, by SIG${HPCRUN_STOP_SIGNAL:-TERM}"
    beside 60 "$SLURM_JOB_NODELIST" "$SLURM_JOB_NUM_NODES" ask </dev/null
}

# beside SECONDS NODES COUNT MODE...: run `harness.sh MODE...` on each of the COUNT nodes NODES, in
# parallel to the ranks; for at most SECONDS (0: no limit).
beside() (
    # Unset what the job requests for its ranks. A site's --export=NONE would leave the step no
    # environment. With NO_KILL srun would wait forever for a dead node.
    unset "${!SLURM_MEM@}" "${!SLURM_GPU@}" "${!SLURM_CPU@}" "${!SLURM_TRES@}" "${!SLURM_NTASKS@}" \
        "${!SLURM_STEP_@}" SLURM_DISTRIBUTION SLURM_NO_KILL
    export SLURM_EXPORT_ENV=ALL
    # In a session of its own: if only the script is killed, its srun would end the guard's step.
    exec setsid timeout -k 5 "$1" srun --overlap --mem=0 --gres=none --mpi=none --quiet --nodelist="$2" \
        --nodes="$3" --ntasks="$3" --ntasks-per-node=1 --job-name="hpcrun-$4" \
        bash -- "$HPCRUN_RUN_DIR/harness.sh" "${@:4}"
)
