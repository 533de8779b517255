# Revert what the submitting shell has exported: shell options, and functions named like commands
# that hpcrun's scripts call. job.sbatch sources this first, in POSIX mode, where no function hides
# `unset` or `set`. Functions of the environment's tools (module, conda ...) are kept.
# shellcheck shell=bash

# Bash's builtins.
unset -f alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs \
    disown echo enable eval exec exit export false fc fg getopts hash help history jobs kill let local \
    logout mapfile popd printf pushd pwd read readarray readonly return set shift shopt source suspend \
    test times trap true type typeset ulimit umask unalias unset wait [
# Commands.
unset -f awk basename bash cat chmod chown cmp cp cut date dd df dirname du env expr find flock getent \
    grep head hostname id ip join ldconfig ln ls lscpu lsof md5sum mkdir mkfifo mktemp mv nc numactl \
    numfmt nvidia-smi od paste pdsh ps python python3 readlink realpath rm rmdir rsync sacct sbatch \
    scancel scontrol sed seq setpriv setsid sh sinfo sleep sort squeue srun ssh stat tail tar taskset tee \
    timeout touch tr uname uniq wc which xargs
unset -v POSIXLY_CORRECT CDPATH GLOBIGNORE GREP_OPTIONS BASH_COMPAT
set +o posix
export -n SHELLOPTS BASHOPTS
set +o allexport +o errexit +o errtrace +o functrace +o keyword +o noclobber +o noglob +o notify \
    +o nounset +o physical +o pipefail +o verbose +o xtrace
# Some versions of bash do not know all of them.
shopt -u autocd cdable_vars cdspell dotglob execfail expand_aliases extdebug extglob failglob globstar \
    gnu_errfmt inherit_errexit lastpipe localvar_inherit localvar_unset nocaseglob nocasematch nullglob \
    shift_verbose xpg_echo compat31 compat32 compat40 compat41 compat42 compat43 compat44 2>/dev/null
true
