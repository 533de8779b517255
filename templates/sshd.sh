#!/bin/bash
# What `hpcrun code` runs on a node: one SSH session on standard input and output, for the user who
# runs it. It needs bash 4.2, and OpenSSH's sshd and ssh-keygen.
#
#   sshd.sh KEY   KEY: the public key that may log in, besides those of ~/.ssh/authorized_keys
set -u
umask 077

say() { printf 'hpcrun: %s\n' "$*" >&2; }

# A server for one session needs no privileges, but sshd is in the folders of administrators.
sshd=$(PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin type -P sshd) || {
    say "$(uname -n) has no sshd, so VS Code cannot connect to it"
    exit 1
}
folder=$(mktemp -d "${TMPDIR:-/tmp}/hpcrun-sshd-XXXXXX") || exit
trap 'rm -rf -- "$folder"' EXIT
ssh-keygen -q -t ed25519 -N '' -f "$folder/host" </dev/null >&2 || exit
printf '%s\n' "$1" >"$folder/keys"

# sshd gives a session an environment of its own; these variables make it that of the job.
pairs=''
for name in PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV MODULEPATH \
    LOADEDMODULES CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES SLURM_JOB_ID SLURM_CPUS_ON_NODE; do
    value=${!name-}
    case $value in
    '' | *[\"\\]* | *$'\n'*) ;;
    *) pairs+=" \"$name=$value\"" ;;
    esac
done
cat >"$folder/config" <<EOF
HostKey $folder/host
AuthorizedKeysFile $folder/keys .ssh/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
PrintMotd no
LogLevel ERROR
Subsystem sftp internal-sftp
SetEnv$pairs
EOF
# As root, which only a test cluster allows, sshd needs its folder for unprivileged children.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
"$sshd" -i -e -f "$folder/config"
