# The records of an attempt, as far as bash writes them: they must exist even if no Python runs.
# harness.sh and script.sh source this. hpcrun/jobside/records.py defines their fields.
# shellcheck shell=bash disable=SC2154 # host is the caller's

record_version=1 # RECORD_VERSION in hpcrun/jobside/records.py

say() { printf 'hpcrun: %s\n' "$*"; }

error() { printf 'hpcrun: error: %s\n' "$*" >&2; }

# now: print epoch seconds with milliseconds. Before bash 5 that needs a process.
now() {
    local at=${EPOCHREALTIME-}
    at=${at/,/.} # some languages have a comma there
    if [ -n "$at" ]; then printf '%s\n' "${at%???}"; else date +%s.%3N; fi
}

# write_record FILE TEXT: write atomically; whatever the job's umask, nobody else can write to it.
write_record() {
    (umask go-w && printf '%s\n' "$2" >"$1.part") && mv -f -- "$1.part" "$1"
}

# json_text TEXT: print as JSON; null if it is empty.
json_text() {
    local LC_ALL=C text=${1//[^ -~]/?}
    text=${text//\\/\\\\}
    if [ -n "$1" ]; then printf '"%s"\n' "${text//\"/\\\"}"; else echo null; fi
}

# slurm_job: print the job id for Slurm's commands; a task's own number may mean its whole array.
slurm_job() {
    printf '%s\n' "${SLURM_ARRAY_JOB_ID-${SLURM_JOB_ID-}}${SLURM_ARRAY_TASK_ID+_$SLURM_ARRAY_TASK_ID}"
}

# signal_of CODE: print the name of the signal that an exit code represents. A program may exit with
# 255.
signal_of() { [ "$1" -gt 128 ] && kill -l "$1" 2>/dev/null; }

# signal_number CODE: print the number of that signal as JSON.
signal_number() { if signal_of "$1" >/dev/null; then echo $(($1 - 128)); else echo null; fi; }

# claim RUN_DIR JOB BEFORE: create the folder of this start's attempt, and print its number; BEFORE
# is the job that had the run before, or empty. The caller's next_attempt RUN_DIR JOB BEFORE KNOWN
# prints the number to try, KNOWN if this job is a duplicate of that attempt's, or nothing if the run
# is over or belongs to another job. Fails with the exit code of a superfluous job.
claim() {
    local attempt='' next mode
    # bash reads files from this folder, so nobody else may write to it. The job keeps its umask; an
    # explicit mode also overrides a default ACL.
    mode=$(printf '%o' $((0755 & ~$(umask))))
    while :; do
        next=$(next_attempt "$1" "$2" "$3" "$attempt") || return
        [ -n "$next" ] || return 0
        if [ "$next" = "$attempt" ]; then
            say "attempt $attempt of this run is taken: job ${2:-here} is a duplicate and ends" >&2
            return 93
        fi
        attempt=$next
        ! mkdir -m "$mode" -- "$1/attempts/$attempt" 2>/dev/null || break
        # A file of another host may appear with a delay on a network file system.
        [ -d "$1/attempts/$attempt" ] || { error "cannot write to $1 on $host"; return 1; }
    done
    # shellcheck disable=SC2174 # the parent folders exist
    mkdir -p -m "$mode" -- "$1/attempts/$attempt"/{failures,ended,local} "$1/logs/$attempt"
    echo "$attempt"
}

# write_begin FOLDER JOB BEGUN: write the begin record of the attempt in this folder.
write_begin() {
    local nodes=${SLURM_JOB_NODELIST:-$host} group
    # Of a heterogeneous job, the nodes of all components; the first one's are those above.
    for group in "${!SLURM_JOB_NODELIST_HET_GROUP_@}"; do
        [[ $group == *_0 ]] || nodes+=,${!group}
    done
    write_record "$1/begin.json" "{\"version\": $record_version, \"attempt\": ${1##*/},\
 \"job_id\": \"$2\", \"host\": \"$host\", \"pid\": $$, \"nodes\": \"$nodes\",\
 \"begun_at\": $3, \"restarts\": ${SLURM_RESTART_COUNT:-0}}"
}

# write_end FOLDER JOB BEGUN ENDED CODE STOPPED FIRST WHY NOTE: write the end record of an attempt
# after which the run does not continue. STOPPED is the signal that requested the end, FIRST the
# record of the process that failed first; they, WHY and NOTE may be empty.
write_end() {
    local signal=15
    [ -n "$6" ] && [ "$5" -ne 0 ] || signal=$(signal_number "$5")
    write_record "$1/end.json" "{\"version\": $record_version, \"attempt\": ${1##*/},\
 \"job_id\": \"$2\", \"begun_at\": $3, \"stopped_by\": $(json_text "$6"), \"first_failure\": ${7:-null},\
 \"exit_code\": $5, \"signal\": $signal, \"ended_at\": $4, \"why\": $(json_text "$8"),\
 \"checkpoint\": null, \"next\": null, \"note\": $(json_text "$9")}"
}

# write_failure FOLDER WHO RANK LOCAL_RANK CODE WHY: record the failure of a process with its time,
# which identifies the first one. RANK, LOCAL_RANK and WHY are JSON.
write_failure() {
    write_record "$1/failures/$(date +%s%6N)-$2.json" "{\"version\": $record_version, \"rank\": $3,\
 \"local_rank\": $4, \"node\": ${HPCRUN_NODE_RANK:-0}, \"host\": \"$host\", \"exit_code\": $5,\
 \"signal\": $(signal_number "$5"), \"at\": $(now), \"why\": $6}"
}
