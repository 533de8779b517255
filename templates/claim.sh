# Ownership of the run: how a job's batch script claims the run, and passes it to another job if
# Slurm may not restart its own. harness.sh sources this in the batch script, with survive.sh.
# shellcheck shell=bash disable=SC2154 # attempt_dir and host are the harness's

# ---- The claim ---------------------------------------------------------------------------------

# claim JOB BEFORE: create the folder of this start's attempt, and print its number; BEFORE is the
# job that had the run before, or empty. If the run is over or belongs to another job, print nothing
# and fail with the exit code of a superfluous job.
claim() {
    local attempt='' next mode
    # bash reads files from this folder, so nobody else may write to it. The job keeps its umask; an
    # explicit mode also overrides a default ACL.
    mode=$(printf '%o' $((0755 & ~$(umask))))
    while :; do
        next=$(next_attempt "$1" "$2" "$attempt") || return
        [ -n "$next" ] || return 0
        if [ "$next" = "$attempt" ]; then
            say "attempt $attempt of this run is taken: job ${1:-here} is a duplicate and ends" >&2
            return 93
        fi
        attempt=$next next=$HPCRUN_RUN_DIR/attempts/$next
        ! mkdir -m "$mode" -- "$next" 2>/dev/null || break
        # A file of another host may appear with a delay on a network file system.
        [ -d "$next" ] || die "cannot write to $HPCRUN_RUN_DIR on $host"
    done
    # shellcheck disable=SC2174 # the parent folders exist
    mkdir -p -m "$mode" -- "$next/failures" "$next/ended" "$next/local" "$HPCRUN_RUN_DIR/logs/$attempt"
    echo "$attempt"
}

# next_attempt JOB BEFORE KNOWN: print the number of the attempt that starts now; see claim. The
# first start of a run's first job is number 0: the process that creates that folder owns the run.
# KNOWN is an existing attempt.
next_attempt() {
    local last folder begin end owner='' restarts=-1
    [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || [ -n "$2" ] || { echo 0 && return; }
    last=$(last_attempt "$3")
    folder=$HPCRUN_RUN_DIR/attempts/$last
    begin=$(cat -- "$folder/begin.json" 2>/dev/null) end=$(cat -- "$folder/end.json" 2>/dev/null)
    [[ ! $begin =~ \"job_id\":\ \"([^\"]*)\" ]] || owner=${BASH_REMATCH[1]}
    [[ ! $begin =~ \"restarts\":\ ([0-9]+) ]] || restarts=${BASH_REMATCH[1]}
    if [ "$owner" = "$1" ] && [ "$2" != "$1" ] && [ "$restarts" -ge "${SLURM_RESTART_COUNT:-0}" ]; then
        echo "$last"
    elif [ -n "${HPCRUN_SURVIVE-}" ] && { has_ended "$last" || circles "$last" "$begin" "$1"; }; then
        end=$(cat -- "$folder/end.json")
        say "attempt $last was the last one of this run: see its end.json" >&2
        # Slurm 24.05 to 25.11 may restart a completed job that was preempted before.
        [[ ! $end =~ \"exit_code\":\ ([0-9]+) ]] || return "${BASH_REMATCH[1]}"
    elif [ "${owner:-$1}" = "$1" ] || { [ "$owner" = "$2" ] && is_wanted "$last" "$2" "$1" "$end"; }; then
        echo $((last + 1))
    else
        say "job $1 is not needed: attempt $last of this run is job $owner's" >&2
        return 93 # what waits for it is not to begin (stand_by)
    fi
}

# is_wanted ATTEMPT BEFORE JOB END: succeed if JOB should continue the run after ATTEMPT of job
# BEFORE, whose end record is END, or empty if its node died.
is_wanted() {
    local state
    [ ! -e "$HPCRUN_RUN_DIR/cancelled.json" ] || return 1
    [[ ! $4 =~ \"next\":\ \"([0-9]+)\" ]] || { [ "${BASH_REMATCH[1]}" = "$3" ] && return; } || return 1
    state=$(slurm_field JobState "$(timeout 20 scontrol --oneliner show job "$2" 2>/dev/null)") ||
        state=$(timeout 60 sacct --noheader --allocations --parsable2 --jobs="$2" --format=State 2>/dev/null)
    [ "$(HPCRUN_ATTEMPT=$1 jobside continuation "${state:-NODE_FAIL}")" = yes ]
}

# circles ATTEMPT BEGIN JOB: succeed if the run must end after ATTEMPT of this JOB, whose node died
# before its script could record that: Slurm restarts the job by itself without a limit. BEGIN is
# the attempt's begin record; an end record is written for it.
circles() {
    local folder=$HPCRUN_RUN_DIR/attempts/$1 note
    [[ $2 == *"\"job_id\": \"$3\""* && ! -e $folder/again ]] || return 1
    ! grep -qs '"next"' -- "$folder/end.json" || return 1
    note=$(HPCRUN_ATTEMPT=$1 jobside continuation "${HPCRUN_SURVIVE%% *}") ||
        note="no Python 3.6 or newer answers on $host: the run does not continue by itself"
    [ "$note" != yes ] && write_record "$folder/end.json" "${2%\}}, \"exit_code\": 1, \"signal\": null,\
 \"stopped_by\": null, \"first_failure\": null, \"ended_at\": $(cat -- "$folder/beat" || now),\
 \"why\": \"node_fail\", \"next\": null, \"note\": $(json_text "$note")}"
} 2>/dev/null

# last_attempt KNOWN: print the number of the last existing attempt, -1 for none; KNOWN is an
# existing one, or empty.
last_attempt() {
    local folder last=${1:--1}
    for folder in "$HPCRUN_RUN_DIR"/attempts/*; do
        [[ ! ${folder##*/} =~ ^[0-9]{1,9}$ ]] || [ "${folder##*/}" -le "$last" ] || last=${folder##*/}
    done
    echo "$last"
}

# has_ended ATTEMPT: succeed if the run did not continue after it, and no restart was requested
# since (`hpcrun requeue` creates the file `again`).
has_ended() {
    local folder=$HPCRUN_RUN_DIR/attempts/$1
    [ "$1" -ge 0 ] && [ ! -e "$folder/again" ] && grep -qs '"next": null' -- "$folder/end.json"
}

# note_rebooted_node ATTEMPT: fail if the node that ran the script of ATTEMPT has rebooted since,
# and the run is on it again: Slurm restarts the job by itself, without distrusting that node.
note_rebooted_node() {
    local begin node began booted
    [[ " ${HPCRUN_SURVIVE-} " == *" node_fail "* && ! -e $HPCRUN_RUN_DIR/attempts/$1/end.json ]] || return 0
    begin=$(cat -- "$HPCRUN_RUN_DIR/attempts/$1/begin.json" 2>/dev/null)
    [[ $begin =~ \"host\":\ \"([^\"]*)\" ]] && node=${BASH_REMATCH[1]}
    [[ $begin =~ \"begun_at\":\ ([0-9]+) ]] && printf -v began '%(%FT%T)T' "${BASH_REMATCH[1]}"
    booted=$(slurm_field BootTime "$(timeout 10 scontrol --oneliner show node "${node-}" 2>/dev/null)")
    [[ $booted == 2*T* && $booted > ${began-} ]] &&
        scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -qxF -e "$node" || return 0
    mkdir -p -- "$attempt_dir/bad"
    write_record "$attempt_dir/bad/$node" "it has booted while attempt $1 was running there"
    say "$node has booted while attempt $1 was running there, so the run goes on without it"
    return 1
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

# ---- Spare nodes -------------------------------------------------------------------------------

# choose_nodes: select as many of the job's nodes as the ranks need, healthy ones first; the others
# are spare. From here on SLURM_JOB_NODELIST contains the selected ones.
choose_nodes() {
    local fit
    export HPCRUN_ALLOCATED=${HPCRUN_ALLOCATED-$SLURM_JOB_NODELIST}
    [ -n "${HPCRUN_RELAUNCHED-}" ] || SLURM_JOB_NUM_NODES=$((SLURM_JOB_NUM_NODES - HPCRUN_SPARE_NODES))
    fit=$(healthy_nodes)
    SLURM_JOB_NODELIST=$({
        printf '%s\n' "$fit"
        scontrol show hostnames "$HPCRUN_ALLOCATED" | grep -vxF -e "$fit"
    } | grep . | head -n "$SLURM_JOB_NUM_NODES" | paste -sd,)
    export SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES
}

# bad_nodes: print the nodes that failed in any attempt of the run.
bad_nodes() {
    local file
    for file in "$HPCRUN_RUN_DIR"/attempts/*/bad/*; do
        [ ! -e "$file" ] || printf '%s\n' "${file##*/}"
    done
}

healthy_nodes() {
    scontrol show hostnames "$HPCRUN_ALLOCATED" |
        grep -vxF -e "$(bad_nodes; SLURM_JOB_NODELIST=$HPCRUN_ALLOCATED lost_nodes)"
}

# spare_is_left WHY: succeed if the ranks can be restarted in this job, on other nodes, after an end
# for this reason. The single warning before the time limit must not have been sent.
spare_is_left() {
    local node
    [ "$1" = node_fail ] && [ -n "${HPCRUN_ALLOCATED-}" ] && [ ! -e "$attempt_dir/stop" ] || return 1
    mkdir -p -- "$attempt_dir/bad"
    for node in $(lost_nodes); do
        [ -e "$attempt_dir/bad/$node" ] || write_record "$attempt_dir/bad/$node" "Slurm calls it down"
    done
    [ "$(healthy_nodes | wc -l)" -ge "$SLURM_JOB_NUM_NODES" ]
}

# stand_guard: start a watchdog on another of the job's nodes, and a second one in case that node
# dies. Slurm removes a dead node from such a job (--no-kill), even that of the batch script: then
# nobody is left to restart the ranks. The file `guarded` appears when the watchdog runs, or never
# will.
stand_guard() {
    local node
    while
        node=$(healthy_nodes </dev/null | grep -vxF -e "$host" | tail -n 1)
        { [ -z "$node" ] || beside 0 "$node" 1 guard "$host" 2>/dev/null; } | {
            read -r _
            : >"$attempt_dir/guarded"
            cat >/dev/null
        }
        IFS= read -rt 60 _
        [ $? -gt 128 ]
    do :; done
}

# guard HOST: run until the attempt ends. If the beat stops, and HOST is no longer one of the job's
# nodes, make Slurm restart the job.
guard() {
    local beat='' seen nodes
    echo # which tells stand_guard
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
        nodes=$(scontrol show hostnames "$(slurm_field NodeList "$(show_job)")" 2>/dev/null)
        [[ -n $nodes && $'\n'$nodes$'\n' != *$'\n'"$1"$'\n'* ]] || continue
        trap '' TERM
        say "$1 has died, and with it the job's script: it is started again" >>"$HPCRUN_RUN_DIR/logs/batch.log"
        requeue "$1" || scancel "$(slurm_job)" # another one waits (secure)
        return
    done
}

# ---- Continuation by another job ---------------------------------------------------------------

# secure BEFORE: make the run continue if a dead node ends this script. If Slurm is to restart the
# job, that must be allowed from the start; if a site forbids it, another job waits. BEFORE is the
# job that had the run before, or empty. Fails if Slurm does not answer or rejects that job now: the
# call is then repeated later.
secure() {
    local shown id begin=$attempt_dir/begin.json
    case " ${HPCRUN_SURVIVE-} ${SLURM_JOB_ID+job} " in *" preempted "*job* | *" node_fail "*job*) ;; *) return 0 ;; esac
    shown=$(show_job) || return
    case $1 in '' | "$(slurm_job)") ;; *) hand_on "$1" "$(slurm_job)" ;; esac # its node died
    [ "$(slurm_field Requeue "$shown")" = 0 ] && ! allow_requeue &&
        [ $((HPCRUN_ATTEMPT + 1)) -lt "$HPCRUN_MAX_ATTEMPTS" ] || return 0
    : >"$attempt_dir/chaining"
    id=$(trap '' TERM && chain 0 '' 1) &&
        write_record "$begin" "$(sed "s/}\$/, \"successor\": \"$id\"}/" "$begin")"
    rm -f -- "$attempt_dir/chaining"
    [ -n "$id" ] || return
    stand_by "$(slurm_job)" "$id" || true
}

# successor: print the job that waits to continue this run, if any.
successor() {
    local tries=0
    while [ -e "$attempt_dir/chaining" ] && [ $((tries += 1)) -le 25 ]; do sleep 0.2; done
    sed -n 's/.*"successor": "\([0-9]*\)".*/\1/p' "$attempt_dir/begin.json"
}

# chain PAUSE NODES TRIES: submit another job for the next attempt of this run, and print its
# number. It starts when this one is over, and exits at once if it is then superfluous (is_wanted).
chain() {
    local id job
    job=$(slurm_job)
    # A second job, if only the answer was lost, detects that it is superfluous.
    id=$(insist "$3" submit_next "$1" "$2" "$job") && [[ $'\n'$id =~ $'\n'([0-9]+)(;[^ ]*)?$ ]] || return 1
    printf '%s\n' "${BASH_REMATCH[1]}"
}

submit_next() {
    local name
    for name in "${!SLURM_@}" "${!SBATCH_@}" "${!HPCRUN_@}"; do
        case $name in
        SLURM_CONF | HPCRUN_RUN_DIR) ;;
        # The user's own defaults, if the job does not set them.
        SBATCH_ACCOUNT | SBATCH_PARTITION | SBATCH_QOS | SBATCH_CONSTRAINT | SBATCH_RESERVATION) ;;
        *) unset "$name" ;;
        esac
    done
    cd -- "$HPCRUN_RUN_DIR" && timeout 60 sbatch --parsable --begin="now+$1" ${2:+--exclude="$2"} \
        --dependency="afterany:$3" job.sbatch after "$3"
}

# insist TRIES COMMAND...: run one of Slurm's commands, and print its output. Wait some seconds per
# try for a restarting slurmctld: nothing else ends the job meanwhile.
insist() {
    local answer tries=0
    until answer=$("${@:2}" 2>&1); do
        [ $tries -gt 0 ] || say "${*:2}: ${answer:-no answer}" >&2
        is_silent "$answer" && ! is_replaced && [ $((tries += 1)) -lt "$1" ] || return 1
        sleep 5
    done
    printf '%s\n' "$answer"
}

# stand_by JOB NEXT: make the user's jobs that depend on the success of JOB alone depend on JOB or
# NEXT, since JOB may end on a dead node, where nobody is left to update them. (A list of several
# dependencies is joined differently.)
stand_by() {
    local id waits
    while read -r id waits; do
        [ "$waits" != "afterok:$1" ] ||
            timeout 20 scontrol update JobId="$id" Dependency="afterok:$1?afterok:$2" >&2
    done < <(who_waits)
}

# hand_on OLD NEW: make the user's jobs that depend on the success of job OLD depend on NEW, which
# continues it. For a dependency on the whole array of a task OLD, list each other task. Repeated
# until none is left: another task may have changed the same job at the same moment.
hand_on() {
    local id waits old new array=${1%_*} tries=0 found=1
    [[ $1 == *_* ]] || array=none
    while [ -n "$found" ] && [ $((tries += 1)) -le 5 ]; do
        found=''
        while read -r id waits; do
            [ "$waits" != "afterok:$1?afterok:$2" ] || waits=afterok:$1
            old=$1 waits=,$waits, new=$2
            if [[ $waits != *",afterok:$old,"* ]]; then
                [[ $waits == *",afterok:${array}_*,"* ]] || continue
                old="${array}_*" new+=$(other_tasks "$array" "$1")
            fi
            waits=${waits//",afterok:$old,"/,afterok:$new,}
            waits=${waits#,} found=1
            timeout 20 scontrol update JobId="$id" Dependency="${waits%,}" >&2
        done < <(who_waits)
        [ -z "$found" ] || sleep "0.$((RANDOM % 5 + 3))"
    done
}

# who_waits: print the user's pending jobs with their dependencies.
who_waits() {
    timeout 20 squeue --noheader --user="$(id -un)" --states=PENDING -o '%i %E' 2>/dev/null |
        sed 's/([a-z]*)//g'
}

# other_tasks ARRAY TASK: print `:ID` for each other task that has not completed.
other_tasks() {
    local id state
    while read -r id state; do
        [ "$id" = "$2" ] || [ "$state" = COMPLETED ] || printf ':%s' "$id"
    done < <(timeout 20 squeue --noheader --array --states=all --jobs="$1" -o '%i %T' 2>/dev/null)
}
