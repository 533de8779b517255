"""Bash scripts that run on the cluster; they need bash, coreutils, tar, gzip and Slurm's commands.

Each script takes one round trip. It starts with the text of build_preamble(), which sets ``RUNS``,
the folder of the runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpcrun.errors import InputError

# In the folder of the runs: prefix of uploads that are incomplete, and the folder of the copies of
# code, which are named by a hash of their content.
INCOMING, CODE = ".incoming-", ".code"
# In the folder where sbatch ran: its output and exit code, for a client that lost the connection.
ANSWER = ".sbatch-answer"
# The record of the job id in it, which clients receive with the other records of the run.
ANSWERED = "answered.json"
_WRITE_OUT = "write the path out, or ./~NAME for a folder of that name"
# Last member of a stream of files: a stream without it was truncated.
WHOLE = ".whole"
# Number of copies of code that are kept on the cluster.
_TREES = 12
# Exit codes of DELIVER and SEND: the copy of the code, or the folder that BRING unpacked, does not
# exist; the stream was truncated.
NO_CODE, CUT_SHORT = 75, 74


def quote(word: str) -> str:
    """Quote a word for bash, whatever characters it contains.

    >>> quote("it's")
    "'it'\\\\''s'"
    """
    return "'" + word.replace("'", "'\\''") + "'"


def quote_profile_path(text: str) -> str:
    """Quote a path of a profile; bash on the host expands the home folder and variables.

    >>> [quote_profile_path(path) for path in ("~/my runs", "$SCRATCH/runs", "runs")]
    ['"$HOME"\\'/my runs\\'', '"${SCRATCH:?is not set there}"\\'/runs\\'', '"$HOME"/\\'runs\\'']

    Raises:
        InputError: The path begins with the home folder of another user.
    """
    if re.match("~[^/]", text):
        raise InputError(f"{text}: only your own home folder is known, as ~/", fix=_WRITE_OUT)
    if text == "~" or text.startswith("~/"):
        text = "$HOME" + text[1:]
    head = "" if text.startswith(("/", "$")) else '"$HOME"/'
    parts = []
    for part in re.split(r"(\$\$|\$\w+|\$\{\w+\})", text):
        if part == "$$":
            parts.append("'$'")
        elif part == "$HOME":
            parts.append('"$HOME"')
        elif part.startswith("$") and len(part) > 1:
            parts.append(f'"${{{part.strip("${}")}:?is not set there}}"')
        elif part:
            parts.append(quote(part))
    return head + "".join(parts)


def build_preamble(runs_dir: str, **arrays: Sequence[str]) -> str:
    """Set the folder of the runs and arrays of words; reset settings of the login's tools."""
    lines = ["unset -f cd; unset -v IFS CDPATH TAR_OPTIONS POSIXLY_CORRECT"]
    lines += [f"RUNS={quote_profile_path(runs_dir)}"]
    lines += [f"{name}=({' '.join(map(quote, words))})" for name, words in arrays.items()]
    return "\n".join(lines) + "\n"


# Variables that a login sets would change the output of Slurm's commands (see hpcrun/context.py).
UNFILTERED = """\
unset -v "${!SQUEUE_@}" "${!SINFO_@}" "${!SACCT_@}" "${!SCANCEL_@}" "${!SCONTROL_@}" \
    SLURM_CLUSTERS SLURM_TIME_FORMAT
"""


def build_environment(env: Mapping[str, str]) -> str:
    """Replace the environment. The script does it, so that no process list shows the values."""
    functions = {name[10:-2] for name in env if name.startswith("BASH_FUNC_")}
    plain = {name: value for name, value in env.items() if re.fullmatch(r"[A-Za-z_]\w*", name)}
    keep = " ".join(sorted(plain))
    known = " ".join(sorted(functions))
    exports = "\n".join(f"export {name}={quote(value)}" for name, value in plain.items())
    return f"""\
for name in $(compgen -e); do
  [[ " {keep} " == *" $name "* ]] || unset -v "$name"
done 2>/dev/null
for name in $(compgen -A function); do
  [[ {quote(f" {known} ")} == *" $name "* ]] || unset -f "$name"
done 2>/dev/null
{exports}
"""


def build_command(argv: Sequence[str], cwd: str | None) -> str:
    """Run a command in a folder. Exit code 127 means that the command does not exist."""
    cd = f"builtin cd -- {quote(cwd)} || exit 126\n" if cwd is not None else ""
    word = quote(argv[0])
    return f"""\
{cd}type -P -- {word} >/dev/null || exit 127
exec {" ".join(map(quote, argv))}
"""


def build_sbatch_call(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Run a command found on the login's PATH in an environment whose own PATH may lack it."""
    word = quote(argv[0])
    return f"""\
found=$(type -P -- {word})
{build_environment(env)}
[[ ! $found || $(type -P -- {word}) == "$found" ]] || PATH=${{found%/*}}:$PATH
{build_command(argv, None)}"""


# Functions of REFRESH and COPY. ``tail``, ``most``, ``whole`` and ``overlap`` are set before.
_LOG_FUNCTIONS = r"""
choose_range() {  # KNOWN: of a log with $inode and $size, set kind, from and start; 1: no news
  local was=$1 offset
  kind=B start=0
  from=$((whole || size <= tail ? 0 : size - tail))
  if [[ ${was%% *} == "$inode" && ${was##* } -le $size ]]; then
    was=${was#* } offset=${was##* } start=${was%% *}
    if ((whole && start > 0)); then
      kind=L from=0
    elif ((whole || size - offset <= most)); then
      ((offset < size)) || return 1
      kind=L from=$((offset - start > overlap ? offset - overlap : start))
    fi
  fi
  [[ $kind == L && $from -ge $start ]] || start=$from
}
send_log() {  # PATH KIND NAME INODE FROM SIZE SECONDS
  local length=$(($6 - $5))
  printf '%s %s %s %s %s %s\n' "${@:2}"
  ((length)) || return 0
  { tail -c +$(($5 + 1)) -- "$1"; head -c "$length" /dev/zero; } 2>/dev/null | head -c "$length"
}
"""

# The request has one line per item. "R NAME" is a requested run. "K NAME/FILE STATE" is a file that
# the client has: for a log STATE is its inode, first and last byte, for other files size and mtime.
# "N" requests the names of all runs, and the first records of those that no "H NAME" lists.
# The use of nodes (usage/N/node-K) is sent like logs, but from the beginning, because its first
# line is needed; if a run has more than ``most`` bytes that the client lacks, none is sent.
# ``pause`` is the interval in seconds at which the files are polled until the connection ends;
# empty: once.
#
# The answer to each poll is compressed if that is worth a process (its first byte tells). It has
# lines and bytes: "D NAME" is an existing run, "G NAME" a requested run that does not exist, "F
# SIZE" is followed by SIZE bytes of a tar, "L NAME/FILE INODE FROM TO SECONDS" by bytes of a log;
# "B" replaces "L" if the client's copy restarts at FROM. "." ends the answer. Records are read
# before logs, so that a client that sees the end of a job also sees its whole output.
REFRESH = (
    _LOG_FUNCTIONS
    + r"""
cd -- "$RUNS" 2>/dev/null || { printf '=.\n'; exit 0; }
LC_ALL=C; shopt -s nullglob
declare -A known here; runs=() names=() listed=
for line in "${request[@]}"; do
  IFS=' ' read -r kind name what <<<"$line"
  case $kind in
    R) runs+=("$name") ;;
    K) known[$name]=$what ;;
    H) here[$name]=1 ;;
    N) listed=1 ;;
  esac
done
exec {never}<> <(:)

find_changes() {  # set wanted, logs, and the amount of both
  local at run name mode inode size seconds start from kind
  local folder last used left links=()
  local -A use=()
  gone=() records=() files=() wanted=() bytes=1024 logs=() amount=0
  if [[ $listed ]]; then
    for name in [0-9]*-*; do
      [[ -d $name && ! -L $name ]] || continue
      names+=("$name")
      [[ ${here[$name]-} ]] || records+=("$name"/{submitted,task,sweep}.json)
    done
  fi
  for run in "${runs[@]}"; do
    [[ -d $run ]] || gone+=("$run")
    # The other scripts are the same in all runs, and nothing reads them here.
    records+=("$run"/*.{json,yaml,sbatch} "$run"/node.sh "$run"/attempts/*/* "$run"/attempts/*/*/*)
    records+=("$run"/successors/* "$run"/notify/*/* "$run"/roles/*/plan.json)
    records+=("$run"/roles/*/attempts/*/* "$run"/roles/*/attempts/*/failures/*)
    files+=("$run"/{,roles/*/}logs/* "$run"/{,roles/*/}logs/*/*)
  done
  if [[ $pause ]]; then
    # On NFS what others write is seen when the file is opened.
    for name in "${files[@]}"; do if [[ -f $name ]]; then : <"$name"; fi; done
  fi 2>/dev/null
  for name in "${files[@]}"; do # the output of an sbatch script may be in another file system
    case $name in */logs/batch.*) [[ ! -L $name ]] || links+=("$name") ;; esac
  done
  for run in "${runs[@]}"; do
    for folder in "$run"{,/roles/*}/usage; do  # of the last attempt that has any
      last=
      for name in "$folder"/*; do
        name=${name##*/}
        [[ $name =~ ^[0-9]{1,9}$ ]] && ((10#$name >= 10#${last:-0})) && last=$name
      done
      [[ ! $last ]] || files+=("$folder/$last"/node-*)
    done
  done
  files=("${records[@]}" "${files[@]}")
  for ((at = 0; at < ${#files[@]}; at += 2000)); do
    while IFS=' ' read -r mode inode size seconds name; do
      [[ $mode == 8??? ]] || continue
      case $name in
        */secrets.env | */notify.json) ;;
        */usage/*/node-*)
          [[ $name =~ /node-[0-9]{1,9}$ ]] || continue
          if [[ ! ${known[$name]-} ]]; then
            use[${name%%/*}]+="$inode $size $seconds $name"$'\n'
          elif whole=1 choose_range "${known[$name]}" && ((size - from <= most)); then
            known[$name]="$inode $start $size"
            logs+=("$kind $inode $from $size $seconds $name"); amount=$((amount + size - from))
          fi ;;
        */logs/*)
          # A program may write other files beside the logs.
          [[ ! $name =~ [^A-Za-z0-9._+/-]|/\.|[^/]{121} ]] || continue
          choose_range "${known[$name]-}" || continue
          known[$name]="$inode $start $size"
          logs+=("$kind $inode $from $size $seconds $name"); amount=$((amount + size - from)) ;;
        *)
          [[ ${known[$name]-} != "$size $seconds" && $size -le $largest ]] || continue
          [[ $name =~ ^.{1,155}/[^/]{1,100}$ ]] || continue  # ustar's limits
          known[$name]="$size $seconds"
          wanted+=("$name"); bytes=$((bytes + 512 + (size + 511) / 512 * 512)) ;;
      esac
    done < <(
      stat -c '%f %i %s %Y %n' -- "${files[@]:at:2000}" 2>/dev/null
      ((at || ! ${#links[@]})) || stat -L -c '%f %i %s %Y %n' -- "${links[@]}" 2>/dev/null
    )
  done
  # All nodes of a run or none, because the use of some is not that of the run.
  left=$most
  for run in "${!use[@]}"; do
    used=0
    while IFS=' ' read -r _ size _; do used=$((used + size)); done <<<"${use[$run]%?}"
    ((used <= left)) || continue
    left=$((left - used)) amount=$((amount + used))
    while IFS=' ' read -r inode size seconds name; do
      known[$name]="$inode 0 $size"
      logs+=("B $inode 0 $size $seconds $name")
    done <<<"${use[$run]%?}"
  done
}
send() {
  local each kind inode from size seconds name
  ((${#names[@]} == 0)) || printf 'D %s\n' "${names[@]}"
  ((${#gone[@]} == 0)) || printf 'G %s\n' "${gone[@]}"
  if ((${#wanted[@]})); then
    printf 'F %s\n' "$bytes"
    { printf '%s\n' "${wanted[@]}" | tar --format=ustar -b 1 --no-recursion -cf - -T - 2>/dev/null
      head -c "$bytes" /dev/zero; } | head -c "$bytes"
  fi
  for each in "${logs[@]}"; do
    IFS=' ' read -r kind inode from size seconds name <<<"$each"
    send_log "$name" "$kind" "$name" "$inode" "$from" "$size" "$seconds"
  done
  printf '.\n'
}
for ((;;)); do
  find_changes
  if ((amount + bytes + 32 * ${#names[@]} > 8192)) && type -P gzip >/dev/null; then
    printf Z; send | gzip -1 -c
  else
    printf '='; send
  fi
  [[ $pause ]] || exit 0
  listed='' names=()
  read -r -t "$pause" -u "$never"
done
"""
)

# The request: for each of ``paths``, an output file of any job, its name in the mirror and its
# known state, as for REFRESH. The answer has the format of REFRESH for logs. Unreadable files are
# reported on stderr as "gone NUMBER" or "closed NUMBER", by their index in ``paths``.
COPY = (
    _LOG_FUNCTIONS
    + r"""
LC_ALL=C
logs=() amount=0
for i in "${!paths[@]}"; do
  IFS=' ' read -r mode inode size seconds < <(stat -L -c '%f %i %s %Y' -- "${paths[i]}" 2>/dev/null)
  [[ $mode == 8??? ]] || { echo "gone $i" >&2; continue; }
  [[ -r ${paths[i]} ]] || { echo "closed $i" >&2; continue; }
  choose_range "${known[i]}" || continue
  logs+=("$i $kind $inode $from $size $seconds"); amount=$((amount + size - from))
done
send() {
  local each i kind inode from size seconds
  for each in "${logs[@]}"; do
    IFS=' ' read -r i kind inode from size seconds <<<"$each"
    send_log "${paths[i]}" "$kind" "${names[i]}" "$inode" "$from" "$size" "$seconds"
  done
  printf '.\n'
}
if ((amount > 8192)) && type -P gzip >/dev/null; then
  printf Z; send | gzip -1 -c
else
  printf '='; send
fi
"""
)

# A stream of files is unpacked under a unique name and renamed into place. So a folder that is sent
# twice exists once, and only the script whose rename succeeded runs sbatch.
_INSIDE = r"""
own_umask=$(umask)  # the job's
umask go-w
mkdir -p -- "$RUNS" && cd -- "$RUNS" || exit 73
part=$PWD/$incoming-$$-$RANDOM
trap 'rm -rf -- "$part"' EXIT
"""
_TAR = rf"""
mkdir -- "$part" && tar -C "$part" --no-same-owner -xzpf - || {{
  head -c 65536 /dev/zero >"$part/room"; exit 73  # tar may not say that the disk is full
}}
# The modes are the sender's: what the login's umask hides stays hidden.
[[ $(umask) == 0022 ]] || chmod -R -- "-$(umask)" "$part" || exit 73
[[ -e $part/{WHOLE} ]] || exit {CUT_SHORT}
"""
_UNPACK = _INSIDE + _TAR

# Runs on the transfer host, and unpacks the files that DELIVER then uses on another host, which has
# the same RUNS.
BRING = (
    _UNPACK
    + r"""
mv -T -- "$part" "$PWD/$incoming" 2>/dev/null || [[ -d $incoming ]] || exit 73
"""
)

# ``names``: the folders; sbatch runs in the first. ``tree``: the copy of its code, or "". ``base``:
# the copy that the stream's changes apply to, or "". ``brought``: BRING has unpacked the stream.
DELIVER = (
    rf"""
left={INCOMING} answer={ANSWER} record={ANSWERED} store={CODE} no_code={NO_CODE} most={_TREES}
"""
    + r"""
answered() {  # NAME: print what sbatch answered there
  for ((i = 0; i < 300; i++)); do
    if [[ -d $1/$answer ]]; then
      [[ -s $1/$answer/code ]] || break  # the disk was full
      printf 'A %s\n' "$(<"$1/$answer/code")"
      cat -- "$1/$answer/out"; cat -- "$1/$answer/err" >&2
      exit 0
    fi
    sleep 0.1
  done
  echo unknown; exit 0
}
"""
    + _INSIDE
    + r"""
first=${names[0]}
if [[ $brought ]]; then
  mv -T -- "$PWD/$incoming" "$part" 2>/dev/null || [[ -d $first ]] || exit "$no_code"
else
"""
    + _TAR
    + r"""
fi
[[ ! -d $first ]] || answered "$first"
if [[ $tree ]]; then
  if [[ ! -d $store/$tree ]]; then
    mkdir -p -- "$store" "$part/new" || exit 73
    if [[ $base ]]; then
      [[ -d $store/$base ]] || exit "$no_code"
      cp -a -- "$store/$base/." "$part/new" || exit 73
    elif [[ ! -d $part/code ]]; then
      exit "$no_code"
    fi
    while IFS= read -r -d '' name; do rm -rf -- "$part/new/$name"; done <"$part/gone"
    if [[ -d $part/code ]]; then cp -a -- "$part/code/." "$part/new" || exit 73; fi
    mv -T -- "$part/new" "$store/$tree" 2>/dev/null || [[ -d $store/$tree ]] || exit 73
  fi
  touch -c -- "$store/$tree"
  cp -a -- "$store/$tree" "$part/runs/$first/code" || exit 73
fi
for ((i = 1; i < ${#names[@]}; i++)); do
  [[ -d ${names[i]} ]] || mv -T -- "$part/runs/${names[i]}" "${names[i]}" || exit 73
done
mkdir -- "$part/answer" && head -c 65536 /dev/zero >"$part/answer/room" || exit 73
mv -T -- "$part/runs/$first" "$first" 2>/dev/null || answered "$first"
rm -f -- "$part/answer/room"
(
  umask "$own_umask"
  cd -- "$first" || exit 126
  run_sbatch
) </dev/null >"$part/answer/out" 2>"$part/answer/err"
code=$?
echo "$code" >"$part/answer/code"
# For a client that never got the answer; it is a record that clients receive.
read -r job <"$part/answer/out"; job=${job%%;*}
[[ $code != 0 || ! $job =~ ^[0-9]{1,18}$ ]] ||
  printf '{"version": 1, "job_id": "%s"}\n' "$job" >"$first/$record"
mv -T -- "$part/answer" "$first/$answer"
ls -1t -- "$store" 2>/dev/null | tail -n +$((most + 1)) |
  while IFS= read -r old; do rm -rf -- "${store:?}/$old"; done
for old in "$left"*; do  # of a submission that was killed; another one's may end meanwhile
  at=$(stat -c %Y -- "$old" 2>/dev/null) && (($(date +%s) - at > 86400)) && rm -rf -- "$old"
done
answered "$first"
"""
)

SEND = (
    _UNPACK
    + r"""
for name in "${names[@]}"; do
  mkdir -p -- "$(dirname -- "$name")" && mv -fT -- "$part/runs/$name" "$name" || exit 73
done
for name in "${gone[@]}"; do rm -f -- "$name" || exit 73; done
"""
)

REMOVE = (
    f"store={CODE}\n"
    + r"""
cd -- "$RUNS" 2>/dev/null || exit 0
moved=()
for i in "${!names[@]}"; do
  [[ -e ${names[i]} || -L ${names[i]} ]] || continue
  if ! mv -T -- "${names[i]}" "${trash[i]}"; then
    for j in "${moved[@]}"; do mv -T -- "${trash[j]}" "${names[j]}"; done
    exit 73
  fi
  moved+=("$i")
done
for i in "${moved[@]}"; do
  rm -rf -- "${trash[i]}" 2>/dev/null && continue
  chmod -R u+rwX -- "${trash[i]}"; rm -rf -- "${trash[i]}"
done
for run in [0-9]*; do [[ ! -d $run ]] || exit 0; done
for tree in "$store"/*; do  # no run is left, and none was just refused: they go, too
  [[ -d $tree ]] && (($(date +%s) - $(stat -c %Y -- "$tree") > 600)) && rm -rf -- "$tree"
done
rmdir -- "$store" 2>/dev/null
exit 0
"""
)
