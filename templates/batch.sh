# The batch script of a job: it claims an attempt of the run, runs the body of job.sbatch, and records
# the beginning and the end. harness.sh sources this.
#
# What needs judgement is decided in Python (jobside.sh): which attempt starts if it is not the
# run's first, why it ended, and whether and how the run continues.
# shellcheck shell=bash disable=SC1091,SC2154 # attempt_dir and host are the harness's

# batch [after|relaunch JOB]: JOB had the run before: another job, or this one.
batch() {
    stopped='' child='' warned='' overdue=''
    trap 'warned=1' URG # Slurm's warning, at a short job's start, too
    . "$HPCRUN_RUN_DIR/jobside.sh" || exit 1
    local attempt job begun code beat python taken=1 pause now
    job=$(slurm_job)
    # A first attempt needs no Python to start: it is found meanwhile.
    unset HPCRUN_JOBSIDE_PYTHON # of the job in which this one was submitted
    exec {python}< <(find_python)
    [ "${SLURM_RESTART_COUNT:-0}${1-}${HPCRUN_SURVIVE-}${HPCRUN_SAVES-}${HPCRUN_SPARE_NODES-}${HPCRUN_ROLES-}" = 0 ] ||
        await_python "$python"
    [ -z "${SLURM_JOB_ID-}" ] || [ -z "${HPCRUN_SPARE_NODES-}" ] || choose_nodes
    attempt=$(claim "$HPCRUN_RUN_DIR" "$job" "${2-}") || exit
    [ -n "$attempt" ] || exit 0
    attempt_dir=$HPCRUN_RUN_DIR/attempts/$attempt
    export HPCRUN_ATTEMPT=$attempt
    take_count || taken='' # ends below, where a record can say so
    begun=$(now)
    write_begin "$attempt_dir" "$job" "$begun"
    say "attempt $attempt${job:+ of job $job} begins on ${SLURM_JOB_NODELIST:-$host}"
    [ -n "$taken" ] || { await_python "$python" && finish "$job" "$begun" 1; }
    [ "$attempt" -eq 0 ] || [ -z "$HPCRUN_JOBSIDE_PYTHON" ] ||
        jobside distrust_rebooted_node $((attempt - 1)) || finish "$job" "$begun" 1

    trap 'stop TERM' TERM
    trap 'stop INT' INT
    trap 'stop HUP' HUP
    trap 'overdue=1' USR2
    # bash runs a trap only while it waits, so the body runs in the background, where bash would
    # make it ignore INT.
    (
        trap - INT QUIT
        [ -z "${HPCRUN_ROLES-}" ] || start_roles
        exec bash -- "$HPCRUN_RUN_DIR/job.sbatch" body
    ) <&0 {python}<&- &
    child=$!
    [ -z "$stopped" ] || kill -TERM "$child" 2>/dev/null
    await_python "$python"
    exec {python}<&-

    # The beat ends with this process in any case: the pipe between them closes.
    exec {beat}> >(
        trap - TERM INT HUP
        # The launch goes first, since the watcher's modules take as long to load; unless the run
        # must survive the loss of this node, or its start is reported.
        {
            [ -n "${HPCRUN_SURVIVE-}" ] || [ -e "$HPCRUN_RUN_DIR/notify.json" ] || IFS= read -rt 2 _
            [ $? -eq 1 ] || jobside watch "${2-}"
        } <&0 &
        while :; do
            printf -v now '%(%s)T' -1
            write_record "$attempt_dir/beat" "$now"
            # Slurm reported a node as dead that is alive, and has restarted the job on another one.
            [ ! -d "$HPCRUN_RUN_DIR/attempts/$((attempt + 1))" ] || [ -e "$attempt_dir/end.json" ] ||
                kill -HUP $$
            # One of several runs in a job: only this process can end it alone.
            [ -z "${HPCRUN_SHARES_JOB-}" ] || [ ! -e "$HPCRUN_RUN_DIR/cancelled.json" ] || kill -INT $$
            # More often until the first step.
            [[ -e $attempt_dir/moved || $SECONDS -gt 600 ]] && pause=30 || pause=5
            IFS= read -rt "$pause" _
            [ $? -gt 128 ] || break
        done
    )
    await
    code=$?
    exec {beat}>&-
    finish "$job" "$begun" "$code"
}

# await_python DESCRIPTOR: export the Python that find_python prints to the descriptor, once.
await_python() {
    [ -z "${HPCRUN_JOBSIDE_PYTHON+set}" ] || return 0
    IFS= read -r HPCRUN_JOBSIDE_PYTHON <&"$1"
    export HPCRUN_JOBSIDE_PYTHON # empty if none answers
}

# start_roles: start the programs of a job with several, each as the body of a job.sbatch of its own.
start_roles() {
    [ -n "$HPCRUN_JOBSIDE_PYTHON" ] || die "no Python 3.6 or newer answers on $host: roles need one"
    exec "$HPCRUN_JOBSIDE_PYTHON" -I -S "$HPCRUN_RUN_DIR/jobside.pyz" run_roles
}

stop() {
    [ -n "$stopped" ] || say "received SIG$1: stopping"
    stopped=$1
    # Slurm has sent TERM to all processes; srun would forward it a second time.
    [ -z "$child" ] || [ "$1${SLURM_JOB_ID:+ of Slurm}" = 'TERM of Slurm' ] ||
        kill -TERM "$child" 2>/dev/null
}

# await: wait for $child and return its exit code. Any signal interrupts `wait`, also the CONT that
# Slurm sends before TERM, so it is repeated until the child is gone. (No trap for CONT: if two
# signals arrive together bash loses one.) KillWait after a stop, Slurm kills everything: the end is
# recorded before that.
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

# ---- The claim ---------------------------------------------------------------------------------

# next_attempt RUN_DIR JOB BEFORE KNOWN: print the number of the attempt that starts now; see claim.
# The first start of a run's first job is number 0: the process that creates that folder owns the
# run. KNOWN is an existing attempt.
next_attempt() {
    local folder last=-1 begun note="no Python 3.6 or newer answers on $host: the run does not continue by itself"
    [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || [ -n "$3" ] || { echo 0 && return; }
    [ -z "$HPCRUN_JOBSIDE_PYTHON" ] || { jobside next_attempt "${@:2}"; return; }
    for folder in "$1"/attempts/*; do
        [[ ! ${folder##*/} =~ ^[0-9]{1,9}$ ]] || [ "${folder##*/}" -le "$last" ] || last=${folder##*/}
    done
    folder=$1/attempts/$last
    [ ! -s "$folder/pruned.json" ] || [ -e "$folder/again" ] || return 0
    if [ "$3" = '' ] && { [ -z "${HPCRUN_SURVIVE-}" ] || [ -e "$folder/again" ]; }; then
        echo $((last + 1)) # restarted by Slurm or by its owner
    else
        say "attempt $last was the last one of this run: $note" >&2
        if [ ! -e "$folder/end.json" ]; then
            begun=$(sed -n 's/.*"begun_at": \([0-9.]*\).*/\1/p' "$folder/begin.json")
            write_end "$folder" "$2" "${begun:-$(now)}" "$(cat -- "$folder/beat" || now)" 1 '' '' \
                node_fail "$note"
        fi
        # What waits for it does not start, unless it was done: Slurm 24.05 to 25.11 may restart a
        # completed job that was preempted before.
        ! grep -qs '"exit_code": 0,' -- "$folder/end.json" || return 0
        return 93
    fi
}

# take_count: a job with a range of node counts has a folder for each count, with the files that
# depend on it. Install those for the count that Slurm has allocated. Not by $(<FILE): bash hides
# that it could not be read.
take_count() {
    local file text
    for file in "$HPCRUN_RUN_DIR/nodes-${SLURM_JOB_NUM_NODES-}"/*; do
        [ -e "$file" ] || continue
        text=$(cat -- "$file") && write_record "$HPCRUN_RUN_DIR/${file##*/}" "$text" && continue
        error "cannot read or write $HPCRUN_RUN_DIR on $host"
        return 1
    done
}

# choose_nodes: select as many of the job's nodes as the ranks need; the others are spare. From here
# on SLURM_JOB_NODELIST contains the selected ones.
choose_nodes() {
    export HPCRUN_ALLOCATED=${HPCRUN_ALLOCATED-$SLURM_JOB_NODELIST}
    [ -n "${HPCRUN_RELAUNCHED-}" ] || SLURM_JOB_NUM_NODES=$((SLURM_JOB_NUM_NODES - HPCRUN_SPARE_NODES))
    SLURM_JOB_NODELIST=$(jobside choose_nodes "$SLURM_JOB_NUM_NODES" ||
        scontrol show hostnames "$HPCRUN_ALLOCATED" | head -n "$SLURM_JOB_NUM_NODES" | paste -sd,)
    export SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES
}

# ---- The end -----------------------------------------------------------------------------------

# finish JOB BEGUN CODE: write the end record, and start the next attempt if the run continues. The
# exit code is that of the process that failed first, so that Slurm shows the relevant code.
finish() {
    local job=$1 begun=$2 code=$3 pid result='' out next=''
    # Slurm sends TERM to all processes, which would end those whose answers are awaited here.
    trap '' TERM INT HUP URG USR2
    end_what_is_left
    for pid in $(jobs -p); do
        [ "$pid" = "$child" ] || kill -TERM "$pid" 2>/dev/null # what waits for the time limit
    done
    rm -f -- "$attempt_dir/environment" # the same values, where hosts.sh was killed
    if [ -n "$HPCRUN_JOBSIDE_PYTHON" ]; then
        exec {out}>&1
        result=$(jobside end "$code" "$begun" "$stopped" "$overdue" 3>&1 >&"$out" {out}>&-)
        exec {out}>&-
    fi
    if [ -n "$result" ]; then
        code=${result%% *} next=${result#* }
    else
        record_end "$job" "$begun" "$code"
        code=$?
    fi
    if [ "$next" = relaunch ]; then
        trap - TERM INT HUP URG USR2
        export HPCRUN_RELAUNCHED=1
        exec bash -- "$HPCRUN_RUN_DIR/harness.sh" batch relaunch "$job"
    fi
    exit "$code"
}

# record_end JOB BEGUN CODE: end the attempt without Python, and return the exit code of the batch
# script. The run does not continue; hpcrun judges the rest by the record.
record_end() {
    local code=$3 first='' why='' note='' record
    if [ -z "$stopped" ]; then
        for record in "$attempt_dir"/failures/*.json; do
            IFS= read -r first <"$record" || [ -n "$first" ] || continue
            break
        done 2>/dev/null # no rank has failed
    fi
    if [[ $first =~ \"exit_code\":\ ([0-9]{1,3}), ]]; then
        code=${BASH_REMATCH[1]}
    else
        first='' # none, or damaged: the end record must stay valid
    fi
    if [ "$code" -eq 0 ] && [ ! -e "$attempt_dir/launched" ]; then
        error "the job's setup ended before the training was started"
        code=1
    fi
    [ "$code" -ne 0 ] || why='done'
    if [ -n "${HPCRUN_SURVIVE-}" ] && [ "$code" -ne 0 ]; then
        note="no Python 3.6 or newer answers on $host: the run does not continue by itself"
        [ -z "$HPCRUN_JOBSIDE_PYTHON" ] ||
            note="no decision was made whether the run continues: see the end of logs/batch.log"
    fi
    write_end "$attempt_dir" "$1" "$2" "$(now)" "$code" "$stopped" "$first" "$why" "$note"
    if [ -z "$stopped" ] || grep -q '^#SBATCH --no-requeue' -- "$HPCRUN_RUN_DIR/job.sbatch"; then
        rm -f -- "$HPCRUN_RUN_DIR/secrets.env" # else the job may be requeued, and needs them
    fi
    say "attempt $HPCRUN_ATTEMPT ended with exit code $code"
    return "$code"
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

# ---- The time limit ----------------------------------------------------------------------------

# near_the_end: handle Slurm's warning. The ranks are asked to save, if the job requests it; shortly
# before the limit the attempt is ended (USR2), while the job can still be restarted.
near_the_end() {
    local left=60 why=time_limit saves=${HPCRUN_SAVES-}
    : >"$attempt_dir/stop"
    read -r why left < <(jobside time_left || echo time_limit 60)
    if [ "$why" = preempted ]; then
        say "the job is being preempted, in $left s"
        saves=1
    else
        say "the time limit is $left s away"
    fi
    write_record "$attempt_dir/stop" "\"$why\""
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

# ---- The watchdog of a job with spare nodes ----------------------------------------------------

# guard HOST: run on another node until the attempt ends. If the beat stops, and HOST is no longer
# one of the job's nodes, Slurm is made to restart the job.
guard() {
    local beat='' seen
    . "$HPCRUN_RUN_DIR/jobside.sh"
    [ -n "${HPCRUN_JOBSIDE_PYTHON-}" ] || HPCRUN_JOBSIDE_PYTHON=$(find_python)
    echo # to the watcher (hpcrun/jobside/watcher.py)
    exec >/dev/null
    while :; do
        IFS= read -rt 60 _
        # At the end of input the script is ending, or is gone.
        [ $? -gt 128 ] || for _ in {1..60}; do
            [ ! -e "$attempt_dir/end.json" ] || return 0
            sleep 1
        done
        seen=$beat beat=$(cat -- "$attempt_dir/beat" 2>/dev/null)
        [ "$beat" = "$seen" ] || continue
        (trap '' TERM && jobside replace_host "$1") && return
    done
}
