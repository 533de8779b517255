# Launching on the hosts of a hostfile, without Slurm; the harness sources this. It needs bash 4.2
# and ssh. launch_hosts runs on the first host. address, session, and task for each rank that
# DeepSpeed's launcher starts, run on each host, over ssh.
#
# A session's standard input is its lifeline: it closes when the process that holds the other end
# exits for any reason, and the session then terminates its processes. A line is sent every ten
# seconds, so that a disconnected host terminates its part, too.
#
# State beyond a function: hosts; sessions and lines, the ssh processes and their lifelines, by
# index of the host; pipes, the folder of their pipes; runner, DeepSpeed's launcher.
# shellcheck shell=bash disable=SC1090,SC1091 # the sourced files are beside this one
# shellcheck disable=SC2154 # $attempt_dir and $host are the harness's

ssh_options=(-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5
    -o ServerAliveCountMax=3)

# ---- on the first host -------------------------------------------------------------------------

# launch_hosts ssh|pdsh PYTHON HOST...: start a `node` on each host over ssh; or all ranks through
# DeepSpeed's launcher, which uses pdsh.
launch_hosts() {
    local way=$1 python=$2 index address code=1
    hosts=("${@:3}") sessions=() lines=() stopped='' runner=''
    pipes=$(mktemp -d) || exit 1
    trap 'stopped=1' TERM INT HUP
    for index in "${!hosts[@]}"; do open_session "$index"; done
    if await_ready && address=$(on_host 0 address "${hosts[1]-}") && [ -z "$stopped" ]; then
        export MASTER_ADDR=${address% *} MASTER_PORT=${address#* }
        say "rank 0 is on ${hosts[0]}, at $MASTER_ADDR port $MASTER_PORT"
        write_hostfile "${hosts[@]}"
        write_environment
        [ "$way" = ssh ] || start_pdsh "$python"
        send_all "$way"
        follow_hosts
        code=$?
        [ "$way" = ssh ] || [ $code -ne 0 ] || [ -n "$stopped" ] || check_all_ended || code=1
    fi
    close_sessions
    rm -rf -- "$pipes" "$attempt_dir/environment"
    [ -z "$stopped" ] || code=143
    exit "$code"
}

open_session() {
    local line script
    mkfifo -- "$pipes/in.$1" || exit 1
    exec {line}<>"$pipes/in.$1"
    lines[$1]=$line
    script="cd -- $(printf %q "$HPCRUN_RUN_DIR") 2>/dev/null && [ -r hosts.sh ] || exit 90; "
    script+="exec bash ./harness.sh session $1 $HPCRUN_ATTEMPT"
    (
        let_lines_go
        exec ssh "${ssh_options[@]}" -- "${hosts[$1]}" "exec bash -c $(printf %q "$script")" \
            <"$pipes/in.$1" >"$pipes/out.$1" 2>"$pipes/err.$1"
    ) &
    sessions[$1]=$!
}

# let_lines_go: close the inherited lifelines, which every new process would otherwise keep open.
let_lines_go() {
    local line
    for line in "${lines[@]}"; do exec {line}>&-; done
}

# await_ready: wait until every host has answered; print why the others failed.
await_ready() {
    local began=$SECONDS index waiting=1 ready=0
    while [ -n "$waiting" ] && [ -z "$stopped" ] && [ $((SECONDS - began)) -lt 40 ]; do
        waiting=''
        for index in "${!hosts[@]}"; do
            if ! is_ready "$index" && kill -0 "${sessions[index]}" 2>/dev/null; then
                waiting=1
            fi
        done
        sleep 0.1
    done
    [ -z "$stopped" ] || return 1
    for index in "${!hosts[@]}"; do
        is_ready "$index" || { explain "$index"; ready=1; }
    done
    return $ready
}

is_ready() { grep -qx hpcrun-ready -- "$pipes/out.$1" 2>/dev/null; }

# explain INDEX: print to stderr why a session ended or did not start.
explain() {
    local status=0 message why
    kill -0 "${sessions[$1]}" 2>/dev/null || wait "${sessions[$1]}" || status=$?
    message=$(grep -v '^Warning: Permanently added' -- "$pipes/err.$1" | tail -n 1)
    case $status in
    0) why='does not answer' ;;
    90)
        why="cannot see the run folder $HPCRUN_RUN_DIR: runs_dir must be on a file system"
        why+=' that all hosts share'
        ;;
    255) why="cannot be reached by ssh: ${message:-the connection broke}" ;;
    *) why="ended with code $status${message:+: $message}" ;;
    esac
    error "host ${hosts[$1]} $why"
    case $message in
    *'ost key'*) printf '  fix: check its host key: ssh %s\n' "${hosts[$1]}" >&2 ;;
    esac
}

# on_host INDEX MODE ARG...: run a mode of the harness on a host, and print its output.
on_host() {
    local script
    printf -v script ' %q' "$HPCRUN_RUN_DIR/harness.sh" "${@:2}"
    ssh -n "${ssh_options[@]}" -- "${hosts[$1]}" \
        "HPCRUN_ATTEMPT=$HPCRUN_ATTEMPT HPCRUN_RUN_DIR=$(printf %q "$HPCRUN_RUN_DIR") bash$script"
}

# write_environment: write the job's variables to a private file, since neither ssh nor pdsh
# forwards them. Variables of this host or this login are omitted.
write_environment() {
    (
        umask 077
        unset "${!SSH_@}" "${!XDG_@}" "${!SLURM_@}" HOME USER LOGNAME SHELL PWD OLDPWD SHLVL HOSTNAME \
            TMPDIR DISPLAY TERM CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
        set -o posix # lines that begin with `export`
        export -p >"$attempt_dir/environment"
    )
}

# send_all LINE: send a line to every session.
send_all() {
    local line
    for line in "${lines[@]}"; do printf '%s\n' "$1" >&"$line"; done
}

# start_pdsh PYTHON: start DeepSpeed's launcher, in a folder whose name needs no quoting. The hosts'
# shells parse its arguments, and unquoted variables that start with NCCL or PYTHON: so it gets none
# of the user's variables. The user's own .deepspeed_env files are not read either.
start_pdsh() {
    local mark="$HPCRUN_RUN_DIR $HPCRUN_ATTEMPT here" name
    (
        let_lines_go
        cd -- "$HPCRUN_RUN_DIR" || exit 1
        for name in $(compgen -e); do
            case $name in NCCL* | PYTHON* | MV2* | UCX* | MLFLOW*) unset "$name" ;; esac
        done
        export DS_ENV_FILE=/dev/null PDSH_SSH_ARGS_APPEND="${ssh_options[*]}" HPCRUN_HOST_MARK=$mark
        exec "$1" -m deepspeed.launcher.runner --hostfile="$HPCRUN_HOSTFILE" --launcher=pdsh \
            --force_multi --no_ssh_check --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
            --no_local_rank --no_python \
            bash "$HPCRUN_RUN_DIR/harness.sh" task "$HPCRUN_RUN_DIR" "$HPCRUN_ATTEMPT"
    ) </dev/null &
    runner=$!
}

# follow_hosts: wait until all hosts have ended, one has failed, or a stop is requested; return the
# exit code. DeepSpeed does not inform other nodes of a failed rank, so the ranks' own records are
# checked. After the first host has ended successfully the others have ten minutes, as under Slurm; unless a
# bare command has a role of its own on each host.
follow_hosts() {
    local index running code=0 first_end='' sent=$SECONDS records
    while [ -z "$stopped" ]; do
        if [ $((SECONDS - sent)) -ge 10 ]; then
            send_all alive
            sent=$SECONDS
        fi
        running=0
        for index in "${!sessions[@]}"; do
            if kill -0 "${sessions[index]}" 2>/dev/null; then
                running=$((running + 1))
            elif wait "${sessions[index]}"; then
                unset "sessions[index]"
                first_end=${first_end:-$SECONDS}
            else
                code=$?
                [ $code -ne 255 ] || explain "$index"
                unset "sessions[index]"
                return $code
            fi
        done
        if [ -n "$runner" ]; then
            records=("$attempt_dir"/failures/*.json)
            [ ! -e "${records[0]}" ] || code=1
            kill -0 "$runner" 2>/dev/null || { wait "$runner" || code=$?; return $code; }
        fi
        [ $code -eq 0 ] && [ $running -gt 0 ] || return $code
        if [ -n "$first_end" ] && ! is_bare && [ $((SECONDS - first_end)) -gt 600 ]; then
            error "$running host(s) still running ten minutes after another has ended"
            return 1
        fi
        sleep 0.2
    done
    return $code
}

# check_all_ended: check the ranks, since DeepSpeed's launcher returns 0 when it is killed.
check_all_ended() {
    local ended=("$attempt_dir"/ended/node-*)
    [ -e "${ended[0]}" ] || ended=()
    [ "${#ended[@]}" -ne "$HPCRUN_WORLD_SIZE" ] || return 0
    error "deepspeed ended, but ${#ended[@]} of $HPCRUN_WORLD_SIZE ranks ended well"
    return 1
}

# close_sessions: close the lifelines, and give the hosts time to clean up.
close_sessions() {
    local index tries=0
    let_lines_go
    for index in "${!sessions[@]}"; do # all may have ended: by index, for bash 4.2
        while kill -0 "${sessions[index]}" 2>/dev/null && [ $tries -lt 100 ]; do
            sleep 0.2
            tries=$((tries + 1))
        done
        kill -KILL "${sessions[index]}" 2>/dev/null
    done
    [ -z "$runner" ] || end_marked "$HPCRUN_RUN_DIR $HPCRUN_ATTEMPT here"
}

# ---- on each host ------------------------------------------------------------------------------

# address SECOND: print an address at which the second host reaches this one, the first, and a free
# port. The address is that of the route to the second host or, if only ssh resolves its name, the
# one at which ssh connected.
address() {
    local second found='' connection=()
    if [ -z "$1" ]; then
        printf '127.0.0.1 %s\n' "$(free_port)"
        return
    fi
    second=$(getent ahostsv4 "$1" || getent ahosts "$1")
    second=${second%%[[:space:]]*}
    if [ -n "$second" ] && ! is_loopback "$second"; then
        found=$(PATH=$PATH:/usr/sbin:/sbin ip -o route get "$second" |
            sed -n 's/.* src \([^ ]*\).*/\1/p')
    fi
    read -ra connection <<<"${SSH_CONNECTION-}"
    found=${found:-${connection[2]-}}
    if [ -z "$found" ] || is_loopback "$found"; then
        die "$host: no address known that $1 can reach: $1 does not resolve on $host"
    fi
    printf '%s %s\n' "$found" "$(free_port)"
}

# session INDEX ATTEMPT: run a host's part of the run while standard input is open.
session() {
    local way mark code=143 tenths=0
    child='' stopped=''
    export HPCRUN_RUN_DIR=$PWD HPCRUN_ATTEMPT=$2 SLURM_NODEID=$1 SLURM_LOCALID=0
    attempt_dir=$HPCRUN_RUN_DIR/attempts/$2
    mark="$HPCRUN_RUN_DIR $2 $1"
    printf 'hpcrun-ready\n'
    IFS= read -r way || exit 0
    trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT HUP
    (
        while IFS= read -rt 30 _; do :; done
        kill -TERM $$
    ) <&0 &
    if [ "$way" = ssh ]; then
        load_environment
        HPCRUN_HOST_MARK=$mark bash -- "$HPCRUN_RUN_DIR/harness.sh" node </dev/null &
        child=$!
    fi
    # Discard bash's messages about killed children: the reader may be gone, and cleanup must
    # continue.
    trap '' PIPE
    # As in await(): any signal interrupts `wait`. Rank 0 may be saving when it is asked to end.
    while [ -z "$stopped" ] && { [ -z "$child" ] || kill -0 "$child" 2>/dev/null; }; do
        if [ -n "$child" ]; then wait "$child"; else sleep 0.2; fi
    done
    [ -n "$stopped" ] || { code_of "$child"; code=$?; }
    while [ -n "$child" ] && kill -0 "$child" 2>/dev/null && [ $tenths -lt 100 ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
    end_marked "$mark"
    . "$HPCRUN_RUN_DIR/local.sh" && take_folder_away "$attempt_dir/local/$1"
    exit "$code"
}

# task RUN_DIR ATTEMPT: run a rank, started by DeepSpeed's launcher in the environment of a bare
# login.
task() {
    local name kept=()
    for name in RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES; do
        [ -z "${!name+set}" ] || kept+=("$name=${!name}")
    done
    export HPCRUN_RUN_DIR=$1 HPCRUN_ATTEMPT=$2
    attempt_dir=$HPCRUN_RUN_DIR/attempts/$2
    load_environment
    export "${kept[@]}"
    export SLURM_NODEID=$((RANK / HPCRUN_RANKS_PER_NODE)) SLURM_LOCALID=$LOCAL_RANK
    HPCRUN_HOST_MARK="$HPCRUN_RUN_DIR $2 $SLURM_NODEID" exec bash -- "$HPCRUN_RUN_DIR/harness.sh" node
}

load_environment() {
    local tries=0
    # A file of another host may appear with a delay on a network file system.
    until [ -r "$attempt_dir/environment" ] || [ $tries -ge 50 ]; do
        tries=$((tries + 1))
        sleep 0.2
    done
    . "$attempt_dir/environment" || die "$host: cannot read $attempt_dir/environment"
    cd -- "$HPCRUN_PROJECT_DIR" || die "$host: the project $HPCRUN_PROJECT_DIR does not exist here"
}

# end_marked MARK: terminate the processes of a session, whoever their parents are, then kill them.
end_marked() {
    local round file found
    for round in TERM 0 0 0 0 0 0 0 0 0 KILL KILL; do
        found=''
        for file in /proc/[0-9]*/environ; do
            if grep -qzFx -- "HPCRUN_HOST_MARK=$1" "$file" 2>/dev/null; then
                found=${file//[^0-9]/}
                kill "-$round" "$found" 2>/dev/null
            fi
        done
        [ -n "$found" ] || return 0
        sleep 0.5
    done
}
