#!/bin/bash
# What `hpcrun shell` runs on a node, in a step beside the job's own: finds the job's environment in
# its processes here, and becomes a shell, or a command, with that environment. It needs bash 4.2.
#
#   shell.sh FOLDER [CMD...]   FOLDER: where to begin if the job has no process here ('': home)
set -u

say() { printf 'hpcrun: %s\n' "$*" >&2; }

# Variables of a rank, not of the job; a program that sees them would wait for the other ranks.
of_a_rank=' RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE
 ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE '

# Find the environment closest to that of the training: a process after the setup is better than the
# batch script, and a launcher better than a rank. Processes of another job or node, of this step,
# in a container, or without read permission do not count.
best=0 found=() from='' folder=$1
shift
for process in /proc/[0-9]*; do
    [ -O "$process" ] || continue
    [ "$process/ns/mnt" -ef /proc/self/ns/mnt ] || continue
    words=() of_job=0 weight=1
    while IFS= read -r -d '' word; do
        words[${#words[@]}]=$word
        case $word in
        SLURM_JOB_ID="$SLURM_JOB_ID") of_job=1 ;;
        SLURMD_NODENAME="${SLURMD_NODENAME-}") ;;
        SLURMD_NODENAME=* | HPCRUN_INSIDE=* | "SLURM_STEP_ID=$SLURM_STEP_ID") continue 2 ;;
        HPCRUN_NODE_RANK=* | HPCRUN_ATTEMPT=* | MASTER_ADDR=*) weight=$((weight + 4)) ;;
        LOCAL_RANK=*) weight=$((weight - 2)) ;;
        esac
    done 2>/dev/null <"$process/environ"
    if [ $of_job -eq 1 ] && [ $weight -gt $best ]; then
        best=$weight
        found=("${words[@]}")
        folder=$(readlink "$process/cwd") || folder=$HOME
        from=${process#/proc/}
    fi
done

# Variables of the terminal and of this step are kept.
own=("TERM=${TERM-dumb}")
[ -z "${COLORTERM-}" ] || own[1]=COLORTERM=$COLORTERM
if [ $best -eq 0 ]; then
    say "the job has no process on ${SLURMD_NODENAME:-this node} yet: this is Slurm's environment"
    while IFS= read -r -d '' word; do
        found[${#found[@]}]=$word
    done </proc/self/environ
fi
for index in "${!found[@]}"; do
    name=${found[index]%%=*}
    case $name in
    TERM | COLORTERM | SHLVL | PWD | OLDPWD | _ | PS1) continue ;;
    esac
    [[ $of_a_rank == *[[:space:]]"$name"[[:space:]]* ]] || own[${#own[@]}]=${found[index]}
done

# All CPUs that the job has here, not only the first ones, to which Slurm binds a step's task.
[ -z "$from" ] || ! type taskset >/dev/null 2>&1 ||
    taskset -p "$(taskset -p "$from" | sed 's/.* //')" $$ >/dev/null 2>&1
[ -n "$folder" ] || folder=$HOME
cd -- "$folder" 2>/dev/null || say "$folder: no such folder here"
if [ $# -eq 0 ]; then
    own[${#own[@]}]="PS1=[job ${SLURM_JOB_ID-} ${SLURMD_NODENAME:-$(uname -n)}] \\w\\$ "
    # No start-up files: they would put the login's PATH before the job's.
    set -- bash --norc --noprofile -i
fi

# bash exports the variables itself: a command's arguments are visible to everybody on the node, and
# a value may be a secret. env passes only what bash cannot export: functions, and its own names.
hpcrun_own=("${own[@]}") hpcrun_odd=() hpcrun_env=$(type -P env)
unset -v own words found
for hpcrun_word in $(compgen -e); do unset -v "$hpcrun_word" 2>/dev/null; done
for hpcrun_word in "${hpcrun_own[@]}"; do
    case ${hpcrun_word%%=*} in
    '' | [0-9]* | *[!A-Za-z0-9_]* | BASH* | SHELLOPTS | UID | EUID | PPID | GROUPS | DIRSTACK | \
        FUNCNAME | *RANDOM | *SECONDS | EPOCHREALTIME | LINENO | HISTCMD | IFS)
        hpcrun_odd[${#hpcrun_odd[@]}]=$hpcrun_word ;;
    *) export "${hpcrun_word?}" ;;
    esac
done 2>/dev/null # a language that this node does not know
exec "$hpcrun_env" -u _ ${hpcrun_odd[@]+"${hpcrun_odd[@]}"} "$@"
