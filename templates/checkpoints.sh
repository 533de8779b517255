#!/bin/bash
# The checkpoints of a run: which is the newest whole one, and which may go. Read by harness.sh. A
# file is judged by its ends, and one process reads the ends of all: they are large, many, and on a
# network file system.
#
#   newest_checkpoint DIR WORLD_SIZE       print the path of the newest whole one, if there is one
#   prune_checkpoints DIR WORLD_SIZE KEEP  remove whole ones that are older than the newest KEEP
#   save_room DIR BYTES                    warn where another one of this size may not fit
#
# A checkpoint is a folder with files of a framework, a folder whose name has a step or ends in
# .ckpt, or a file. HPCRUN_CHECKPOINT_MARKER names the file that the program writes into a folder as
# the last one.
# shellcheck disable=SC2030,SC2031 # judge_checkpoints is a shell of its own, and calls what needs its order

# What names say, in lower case: that it was being written; that a file holds data; its step (the third
# group); that it is a part of a checkpoint. And what a safetensors header says last.
in_writing='\.(partial|part|tmp|incomplete)'
data_file='\.(pt|pth|tar|bin|ckpt|pkl|npz|safetensors|distcp)'
step_word='(^|[^a-z])(steps?)[-_=.]?([0-9]{1,18})'
other_word='(^|[^a-z])(checkpoint|ckpt|iter|iteration|epoch|state|update|batch)[-_=.]?([0-9]{1,18})'
at_the_end="(^|[^0-9.])()([0-9]{1,18})($data_file)?\$"
last_offset='.*"data_offsets":\[[0-9]+,([0-9]+)'
part_of_one='^(optimizer|scheduler|scaler|rng_state|random_states|training_args)|-of-[0-9]+\.'

newest_checkpoint() {
    local state path reason found=''
    [ -d "$1" ] || return 0 # cd '' stays where it is
    while IFS=$'\t' read -r state path reason; do
        if [ "$state" = whole ]; then
            found=$path
            break
        fi
        printf 'hpcrun: checkpoint %s is damaged (%s): passed over\n' "${path##*/}" "$reason" >&2
        # Better than none: what fewer ranks wrote lacks random states at most.
        [ "$state" != ranks ] || [ -n "$found" ] || found=$path
    done < <(judge_checkpoints "$1" "$2" first)
    [[ -z $found || $state = whole ]] ||
        printf 'hpcrun: checkpoint %s is used all the same: no other is whole\n' "${found##*/}" >&2
    [ -z "$found" ] || printf '%s\n' "$found"
}

# judge_checkpoints DIR WORLD_SIZE [first]: a line for each, the newest first, to the first whole one:
# whole, damaged or ranks (written by another number of them); its path; the reason.
judge_checkpoints() (
    until=${3-} order=() shapes=() number=0
    declare -A files=()
    CDPATH='' cd -- "$1" 2>/dev/null || exit 0
    export LC_ALL=C
    IFS=$'\n'
    set -f
    for line in $(find_checkpoints); do
        if [[ $line == ' '* ]]; then # a file of the checkpoint in a line above
            files[${order[number - 1]}]+=${line# }$'\n'
        else
            order[number]=$line
            number=$((number + 1))
        fi
    done
    mapfile -t shapes < <(shape "${order[*]-}")
    for ((number = 0; number < ${#order[@]}; number++)); do
        reason=$(damage "$2" "$number")
        state=${reason:+damaged} path=$PWD/${order[number]#./}
        [[ $reason != *" ranks" ]] || state=ranks
        printf '%s\t%s\t%s\n' "${state:-whole}" "${path%/.}" "$reason"
        [ -n "$state" ] || [ -z "$until" ] || break
    done
)

# find_checkpoints: print the checkpoints below this folder, the newest first, and below each one its
# files: ` TYPE SIZE NAME`, with the type as by find's %y%Y.
find_checkpoints() {
    local found line path folder name at rest unit time size step word tier
    local -a rows=() kinds=()
    local -A unit_of=() marked=() files=() time_of=() has_data=()
    found=$(find . -name '.?*' -type d -prune -o ! -type d ! -path '*[[:cntrl:]]*' \
        -printf '%y%Y %T@ %s %P\n' 2>/dev/null)
    for line in $found; do
        path=./${line#* * * }
        folder=${path%/*}
        unit_of[$folder]=''
        case ${path##*/} in
        trainer_state.json | random_states_*.pkl | *mp_rank_[0-9]*_states.pt | *.metadata | \
            *.distcp | "${HPCRUN_CHECKPOINT_MARKER:-/}")
            case ${folder##*/} in # what is a part of the folder above it
            pytorch_model* | optimizer* | model | optim) folder=${folder%/*} ;;
            esac
            # At the end of a training the Trainer writes its state beside its checkpoints, too.
            [ "$path" = ./trainer_state.json ] || marked[$folder]=1
            ;;
        esac
    done
    for folder in "${!unit_of[@]}"; do
        unit='' at=. rest=${folder#.}
        while [ -n "$rest" ] && [ -z "$unit" ]; do
            name=${rest#/}
            name=${name%%/*}
            at+=/$name rest=${rest#"/$name"}
            if [ -n "${marked[$at]-}" ] || is_unfinished "$name" || [[ $name =~ ^[0-9]+$ || \
                $name == *.ckpt || $name == last || $name == latest || \
                ${name,,} =~ $step_word || ${name,,} =~ $other_word ]]; then
                unit=$at
            fi
        done
        [ -n "$unit" ] || [ -z "${marked[.]-}" ] || unit=.
        unit_of[$folder]=$unit
    done
    for line in $found; do
        path=./${line#* * * }
        name=${path,,} time=${line#* } unit=${unit_of[${path%/*}]}
        if [ -n "$unit" ]; then
            at=$unit
        elif [[ $line == ff* && $name =~ ($data_file|$in_writing)$ && ! ${name##*/} =~ $part_of_one ]]; then
            at=$path
        else
            continue
        fi
        [[ ! $name =~ $data_file$ && $at != "$path" ]] || has_data[$at]=1
        size=${time#* } time=${time%% *} name=${path#"${unit:-${path%/*}}/"}
        [[ $time < "${time_of[$at]-}" ]] || time_of[$at]=$time
        files[$at]+=" ${line%% *} ${size%% *} ${name#./}"$'\n'
    done
    # What has no step (an export of the weights), is the best so far or was made of another one
    # counts only where nothing else is; but for names like last.ckpt and ckpt.pt.
    for unit in "${!has_data[@]}"; do
        name=${unit##*/} step=- word=none tier=0
        name=${name,,}
        if [[ $name =~ ^(last|latest) ]]; then
            :
        elif [[ $name =~ $step_word || $name =~ $other_word || $name =~ $at_the_end ]]; then
            step=$((10#${BASH_REMATCH[3]}))
            word=${BASH_REMATCH[2]:-${name%%"${BASH_REMATCH[0]}"}}
            word=${word:-number} # 100.pt
        elif [[ ! $name =~ ^(checkpoint|ckpt|snapshot|state|resume) ]]; then
            tier=1
        fi
        [[ ! $name =~ (^|[^a-z])best|universal ]] || tier=1
        case $name in *.old | *.stale) continue ;; esac
        if is_unfinished "$name"; then
            [ "$step" != - ] || continue
        else
            [ "${kinds[tier]:-$word}" = "$word" ] || word=none
            kinds[tier]=$word
        fi
        rows[tier]+="$step"$'\t'"${time_of[$unit]}"$'\t'"$unit"$'\n'
    done
    tier=0
    [ -n "${kinds[0]-}" ] || tier=1
    # By their steps where all have one, of one kind; else by their time.
    rest=-k1,1nr
    [ "${kinds[tier]:-none}" != none ] || rest=-k2,2r
    rest=$(sort -t $'\t' "$rest" -k2,2r -k1,1nr <<<"${rows[tier]-}")
    for line in $rest; do
        unit=${line##*$'\t'}
        printf '%s\n%s' "$unit" "${files[$unit]}"
    done
}

is_unfinished() { [[ $1 =~ ^(part|partial|tmp|temp|incomplete)$|^(part|tmp)-|$in_writing$ ]]; }

# damage WORLD_SIZE NUMBER: print what is wrong with this one of the order, if anything.
damage() {
    local world=$1 unit=${order[$2]} line type size name base all=$'\n' data='' weights='' older=''
    local root=$unit/ unfinished='' each alike=()
    local -A have=() tags=()
    [ -d "$unit" ] || root=${unit%/*}/
    ! is_unfinished "${unit##*/}" || wrong "it was not finished" || return 0
    for line in ${files[$unit]}; do
        type=${line%% *} size=${line#* } name=${line#* * }
        size=${size%% *} base=${name##*/}
        have[$name]=$size
        all+=$name$'\n'
        [ "$type" != lN ] || wrong "$name is a link to nothing" || return 0
        [[ ! $base =~ $in_writing$ ]] || unfinished+=$name$'\n'
        [[ $type == ff && $base != "${HPCRUN_CHECKPOINT_MARKER:-/}" ]] || continue
        case $base in
        *.json | *.metadata) ;;
        *mp_rank_[0-9]*_states.pt) tags[./${name%"$base"}]=1 weights=1 ;;
        *)
            [[ ${name,,} =~ $data_file$ ]] || continue
            [[ $base =~ $part_of_one && ! $base =~ -of- ]] || weights=1
            ;;
        esac
        [ "$size" -gt 0 ] || wrong "$name is empty" || return 0
        data+=$name$'\n'
    done
    for name in $unfinished; do
        # With the whole file beside it, it is of a later attempt to write the same one.
        [ -n "${have[${name%.*}]-}" ] || wrong "$name was not finished" || return 0
    done
    if [ "$root" = "$unit/" ]; then
        [ -z "${HPCRUN_CHECKPOINT_MARKER-}" ] || need "$HPCRUN_CHECKPOINT_MARKER" || return 0
        for ((each = $2 + 1; each < ${#order[@]}; each++)); do
            [ "${shapes[each]}" != "${shapes[$2]}" ] || alike+=("${order[each]}")
        done
        [ ${#alike[@]} -eq 0 ] ||
            older=$'\n'$(cut -d ' ' -f 3- <<<"${files[${alike[0]}]}")$'\n'
        check_framework && check_deepspeed && check_shards && check_older || return 0
    fi
    check_ends
}

wrong() {
    printf '%s\n' "$*"
    return 1
}

# has TEXT [PATTERN]: whether there is a file whose name begins so.
has() { [[ $all == *$'\n'"$1"${2-}* ]]; }

need() { [ -n "${have[$1]-}" ] || wrong "$1 is missing"; }

# check_framework: what the Trainer of transformers (Trainer._save_checkpoint: its state is the last
# thing that rank 0 writes) and Accelerate (checkpointing.py: the random states are) write.
check_framework() {
    if has '' '@(trainer_state.json|training_args.bin|rng_state)' || { [[ $unit =~ /checkpoint-[0-9]+$ ]] &&
        has '' '@(config|adapter_config).json' && ! has '' '@(optimizer|random_states_)'; }; then
        need trainer_state.json || return
        [ -n "$weights" ] || wrong "it has no weights" || return
        ! has global_step || need latest || return # Trainer has DeepSpeed follow it
        has '' '@(optimizer|scheduler|rng_state|global_step)' || return 0 # save_only_model
        has '' '@(optimizer|global_step)' || wrong "optimizer.pt is missing" || return
        has global_step || need scheduler.pt || return
        has rng_state.pth || check_ranks rng_state_ .pth
    elif has random_states_ || has pytorch_model/ || has pytorch_model_fsdp ||
        { has optimizer.bin && has '' '@(model.safetensors|pytorch_model.bin)' &&
            [[ -z $older || $older == *random_states_* ]]; }; then # or a script of one's own writes both
        [ -n "$weights" ] || wrong "it has no weights" || return
        check_ranks random_states_ .pkl
    fi
}

# check_ranks PREFIX SUFFIX: that each rank has written its file; or each of an earlier run, if that
# had as many ranks for the checkpoint before, too.
check_ranks() {
    local rank=0 before=0 count=0 name
    while [ -n "${have[$1$rank$2]-}" ]; do rank=$((rank + 1)); done
    [ "$rank" -lt "$world" ] || return 0
    while [[ $older == *$'\n'$1$before$2$'\n'* ]]; do before=$((before + 1)); done
    for name in "${!have[@]}"; do
        [[ $name != "$1"*"$2" ]] || count=$((count + 1))
    done
    [[ $count -eq $rank && $rank -gt 0 ]] || need "$1$rank$2" || return
    [ "$rank" -eq "$before" ] || wrong "it has the random states of $rank of $world ranks"
}

# check_deepspeed: the files of all ranks (runtime/engine.py: _get_ckpt_name, _get_zero_ckpt_name).
# `latest` is no sign: rank 0 writes it while others may still write.
check_deepspeed() {
    local tag part rank ranks mp dp optims first stage group sharded name
    for tag in "${!tags[@]}"; do
        tag=${tag#./} sharded='' optims='' ranks=0
        ! has "$tag" 'zero_pp_rank_+([0-9])_mp_rank_00_model_states.pt' || sharded=1
        for part in zero_pp_rank_ bf16_zero_pp_rank_ fp16_zero_pp_rank_; do
            ! has "$tag$part" '+([0-9])_mp_rank_+([0-9])_optim_states.pt' || optims=$part
        done
        printf -v mp %02d $ranks
        while has "$tag" "?(zero_pp_rank_+([0-9])_)mp_rank_${mp}_"; do
            ranks=$((ranks + 1))
            printf -v mp %02d $ranks
        done
        first=${tag}${sharded:+zero_pp_rank_0_}mp_rank_00_model_states.pt
        need "$first" || return
        if has "${tag}zero/"; then # universal: by parameter, not by rank (ds_to_universal.py)
            need "${tag}zero/optimizer_state.pt" || return
            for name in "${!have[@]}"; do
                [[ $name != "${tag}zero/"*/* ]] || need "${name%/*}/fp32.pt" || return
            done
            continue
        fi
        dp=$(pickled_number "$root$first" dp_world_size)
        dp=${dp:-$((world / ranks))}
        # With MiCS one group of ranks writes for all.
        group=${sharded:+$(pickled_number "$root$first" mics_shard_size)}
        [ "${group:-$dp}" -ge "$dp" ] || dp=$group
        if [ -z "$optims" ]; then
            stage=$(pickled_number "$root$first" stage)
            [ "${stage:-0}" -eq 0 ] || wrong "it has no optimizer states" || return
        fi
        while [ $((ranks -= 1)) -ge 0 ]; do
            printf -v mp %02d $ranks
            [ -n "$sharded" ] || need "${tag}mp_rank_${mp}_model_states.pt" || return
            for ((rank = 0; rank < dp; rank++)); do
                part=${rank}_mp_rank_$mp
                [ -z "$sharded" ] || need "${tag}zero_pp_rank_${part}_model_states.pt" || return
                [ -z "$optims" ] || need "$tag$optims${part}_optim_states.pt" || return
            done
        done
    done
}

# pickled_number FILE KEY: the number that a dictionary has for a key of torch.save, whose zip begins
# with the pickle, not compressed. In it a key has its length before and a memo (q, r) behind it.
pickled_number() {
    local at length
    printf -v length '\\x%02x\\x00{3}\\K' ${#2}
    at=$(head -c 4194304 -- "$1" | grep -aobPm1 "$length$2(?=[qr])") || return 0
    at=$(od -An -v -tx1 -j $((${at%%:*} + ${#2})) -N 10 -- "$1")
    [[ ${at// /} =~ ^(71..|72.{8})(4b(..)|4d(..)(..)|4a(..)(..)(..)(..)) ]] || return 0
    set -- "${BASH_REMATCH[@]:3}"
    printf '%d\n' "0x$7$6$5$4$3$2$1"
}

# check_shards: what an index of transformers names; what .metadata of torch.distributed.checkpoint,
# its last file, names (filesystem.py); what Lightning's strategies write last, or read first.
check_shards() {
    local name folder shard shards
    for name in "${!have[@]}"; do
        folder=${name%"${name##*/}"}
        case ${name##*/} in
        *.index.json)
            shards=$(grep -o '"[^"/]*\.\(safetensors\|bin\)"' -- "$root$name" | sort -u)
            for shard in $shards; do need "$folder${shard//\"/}" || return; done
            ;;
        model-*-of-* | pytorch_model-*-of-* | adapter_model-*-of-*)
            shard=${name##*/}
            need "$folder${shard%%-*}.${name##*.}.index.json" || return
            ;;
        *.distcp)
            has "$folder" '?(__+([0-9])).metadata' || wrong "${folder}.metadata is missing" || return
            ;;
        *.metadata)
            shards=$(grep -ao '__[0-9]*_[0-9]*\.distcp' -- "$root$name" | sort -u)
            for shard in $shards; do need "$folder$shard" || return; done
            ;;
        esac
    done
    if [[ $unit == *.ckpt ]]; then
        ! has .metadata || need meta.pt || return
        ! has checkpoint/ || need latest || return
    fi
    [ -z "${have[latest]-}" ] || has "$(<"${root}latest")/" || wrong "latest names what is not there"
}

# shape TEXT: it with one 0 for each number.
shape() { tr -s 0-9 '[0*]' <<<"$1"; }

# check_older: that no file of data is missing which all older ones of its kind
# have: of a program's own form nothing else says what it writes last. (checkpoint.json is the record
# of hpcrun's own trainer. Other JSON may be an evaluation's, which is written later.)
check_older() {
    local names name each
    names=$'\n'$(shape "$all")$'\n'
    for name in $(shape "$older"); do
        [[ ${name,,} =~ ${data_file}$|^checkpoint\.json$ ]] || continue
        [[ $names != *$'\n'"$name"$'\n'* ]] || continue
        for each in "${alike[@]}"; do
            [[ $(shape "${files[$each]}")$'\n' == *" $name"$'\n'* ]] || continue 2
        done
        wrong "it has no $name, as the ones before it have" || return
    done
}

# check_ends: that no file is cut off, by its first and last bytes.
check_ends() {
    local parts=() heads tails number name head tail frame
    for name in $data; do
        [ "${have[$name]}" -ge 22 ] || check_small "$name" || return 0
        [ "${have[$name]}" -lt 22 ] || parts+=("$root$name")
    done
    [ ${#parts[@]} -gt 0 ] || return 0
    mapfile -t heads < <(head -qc 16 -- "${parts[@]}" 2>/dev/null | od -An -v -tx1 -w16)
    mapfile -t tails < <(tail -qc 22 -- "${parts[@]}" 2>/dev/null | od -An -v -tx1 -w22)
    [ "${#heads[@]} ${#tails[@]}" = "${#parts[@]} ${#parts[@]}" ] || wrong "it changes" || return 0
    for ((number = 0; number < ${#parts[@]}; number++)); do
        name=${parts[number]#"$root"} head=${heads[number]// /} tail=${tails[number]// /}
        case $name:$head in
        *.safetensors:*) check_safetensors "$name" "$head" || return 0 ;;
        *.json:7b* | *.json:5b*) is_json_end "$tail" || wrong "$name is cut off" || return 0 ;;
        *:504b0304*) # zip, as torch.save writes it: what it holds is listed at its end
            [[ $tail == 504b0506* ]] || wrong "$name is cut off" || return 0
            ;;
        *:80028a0a6cfc9c46f9*) ;; # torch.save of old: its end cannot be told
        *:800[2-5]*) # pickle: at the end a point, and before it a frame of this size
            frame=0
            [[ $head != 80??95* ]] || frame=$((0x${head:12:2}${head:10:2}${head:8:2}${head:6:2} + 11))
            [[ $tail == *2e && $frame -le ${have[$name]} ]] || wrong "$name is cut off" || return 0
            ;;
        *.pt:00000000* | *.pth:00000000* | *.ckpt:00000000*) wrong "$name begins with zeros" || return 0 ;;
        esac
    done
}

check_small() {
    local text
    case $1 in
    *.json)
        text=$(<"$root$1")
        [[ $text != ["{["]* || $text == "{"*"}" || $text == "["*"]" ]] || wrong "$1 is cut off"
        ;;
    *.pkl | *.bin | *.tar | *.npz) ;; # may be as short
    *.safetensors) wrong "$1 is cut off" ;;
    *) # the begin of a zip or of a pickle; a script of one's own may write a word of text
        text=$(head -c 1 -- "$root$1" | od -An -tx1)
        [[ $text != *50 && $text != *80 ]] || wrong "$1 is cut off"
        ;;
    esac
}

# is_json_end HEX: whether these last bytes are a bracket and blank space; of what is written with
# indentation the last bracket has none.
is_json_end() {
    [[ $1 =~ ^((..)*)(5d|7d)(20|09|0a|0d)*$ ]] &&
        [[ ! ${BASH_REMATCH[1]} =~ ^((..)*0a)?(20|09)+$ ]]
}

# check_safetensors NAME HEAD: eight bytes with the size of the header; the header, JSON, which says
# where each tensor ends; the data, without holes (safetensors/src/tensor.rs). By the reference the
# last one in the header ends last.
check_safetensors() {
    local size=${have[$1]} head=$2 header count number text='' line end=0
    [[ $head == ????????00000000* ]] || wrong "$1 has no header of safetensors" || return
    header=$((0x${head:6:2}${head:4:2}${head:2:2}${head:0:2} + 8))
    [ "$header" -le "$size" ] || wrong "$1 is cut off" || return
    count=$header
    for ((number = 0; number < 16; number += 2)); do # read drops zeros
        [ "${head:number:2}" != 00 ] || count=$((count - 1))
    done
    IFS= read "-rN$count" text <"$root$1"
    text=${text//[[:space:]]/}
    [ "${#text}" -le 512 ] || text=${text: -512}
    [[ ! $text =~ $last_offset ]] || end=${BASH_REMATCH[1]}
    [ $((header + end)) -ne "$size" ] || return 0
    text=$(head -c "$header" -- "$root$1" | tr -d '[:space:]' |
        grep -ao '"data_offsets":\[[0-9]*,[0-9]*')
    for line in $text; do
        [ "${line##*,}" -le "$end" ] || end=${line##*,}
    done
    [ $((header + end)) -eq "$size" ] || wrong "$1 has $size bytes of $((header + end))"
}

# prune_checkpoints: remove only what is certainly a whole, older checkpoint of this run; all else
# stays, with a note. The files or folders of all ranks, components and folds that name the same
# progress are one checkpoint. It is complete if each series of names (rank0_step#.pt, ema/#.pt ...)
# has it whole, and is removed once KEEP complete ones are newer, by their numbers and by their times.
# So stays what is damaged, what is named for a metric, and what is_kept() tells.
prune_checkpoints() (
    keep=$3 world=$2 newest='' pointers='' unclear=() remove=() rows=() all_ranks=1
    declare -A series_in=() series_of=() is_ambiguous=() shape_of=() family_of=() \
        files=() names=() part_of=() count=() members=() unit_time=() first=() last=() time_of=()
    CDPATH='' cd -- "$1" 2>/dev/null || exit 0
    export LC_ALL=C
    [ "$keep" -ge 1 ] || keep=1
    mapfile -t rows < <(judge_checkpoints "$PWD" "$world" | name_checkpoints)
    [ ${#rows[@]} -gt 0 ] || exit 0
    while IFS=$'\t' read -r time path name; do
        printf -v time '%012d.%s' "${time%%.*}" "${time#*.}"
        [[ $time < ${unit_time[$path]-} ]] || unit_time[$path]=$time
        [[ ${name,,} =~ $data_file$ ]] || continue
        name=${name//[0-9]/} # alike for all ranks and steps
        [ -n "${files[$path $name]-}" ] || names[$path]+=$name$'\n'
        files[$path $name]=$((${files[$path $name]-0} + 1))
    done < <(printf '%s\0' "${rows[@]##*$'\t'}" |
        xargs -0 sh -c 'exec find "$@" ! -type d -printf "%T@\t%H\t%P\n"' sh 2>/dev/null)
    for row in "${rows[@]}"; do
        IFS=$'\t' read -r state identity family has_word series shape path <<<"$row"
        [ "$state" != whole ] || newest=${newest:-$path}
        [[ $identity != - && ! ${path##*/} =~ [0-9]\.[0-9]|loss|acc|metric|score|val ]] || continue
        # What was there before this run is another's, where several save into one folder. Other files
        # of the run than this may be replaced (take_count).
        [ "$path" -nt "${HPCRUN_RUN_DIR-/}/spec.yaml" ] || continue
        if [ -z "${series_of[$family $series]-}" ]; then
            series_of[$family $series]=1 series_in[$family]=$((${series_in[$family]-0} + 1))
            # Paths that differ in a number of unknown meaning: perhaps ranks, perhaps steps.
            [ "${shape_of[$family $shape]-$series}" = "$series" ] || is_ambiguous[$family $shape]=1
            shape_of[$family $shape]=$series
        fi
        # Without a word for progress, 0 to the number of ranks less one may be ranks.
        [ "$has_word" = 0 ] && [ $((10#${identity##* })) -lt "$world" ] || all_ranks=''
        [ "$state" = whole ] || continue
        family_of[$identity]=$family members[$identity]+=$shape$'\t'$series$'\t'$path$'\n'
        [ -n "${part_of[$identity $series]-}" ] || count[$identity]=$((${count[$identity]-0} + 1))
        part_of[$identity $series]=$path time=${unit_time[$path]-}
        [[ -n ${first[$identity]-} && $time > ${first[$identity]} ]] || first[$identity]=$time
        [[ $time < ${last[$identity]-} ]] || last[$identity]=$time
    done
    pointers=$(find . ! -path '*[[:cntrl:]]*' \( -type l -o -type f -size -2 \
        \( -name 'latest*' -o -name 'last*' -o -name 'best*' \) \))
    mapfile -t order < <([ ${#count[@]} -eq 0 ] || printf '%s\n' "${!count[@]}" | sort -r)
    for identity in ${order[@]+"${order[@]}"}; do
        family=${family_of[$identity]} newer=0 later=0 paths=() is_clear=1
        for other in "${order[@]}"; do
            [[ $other > $identity ]] || break
            [ "${family_of[$other]}" = "$family" ] || continue
            later=$((later + 1))
            if [ "$newer" -lt "$keep" ] && [ "${count[$other]}" -eq "${series_in[$family]}" ] &&
                [[ ! ${first[$other]} < ${first[$identity]} && ! ${last[$other]} < ${last[$identity]} ]] &&
                has_all_files "$other" "${members[$identity]%$'\n'}"; then
                newer=$((newer + 1))
            fi
        done
        [ "$later" -ge "$keep" ] || continue
        [ "${count[$identity]}" -eq "${series_in[$family]}" ] && [ "$newer" -ge "$keep" ] || is_clear=''
        [ -z "$all_ranks" ] || is_clear=''
        while IFS=$'\t' read -r shape series path; do
            [ -z "${is_ambiguous[$family $shape]-}" ] || is_clear=''
            paths+=("$path")
        done <<<"${members[$identity]%$'\n'}"
        if [ -n "$is_clear" ]; then
            for path in "${paths[@]}"; do
                [ "$path" != "$newest" ] || continue 2
                ! is_kept "$path" "$newest" "$pointers" || continue 2
            done
            remove+=("${paths[@]}")
        elif [ "$later" -gt "$keep" ]; then
            unclear+=("${paths[0]##*/}")
        fi
    done
    for path in ${remove[@]+"${remove[@]}"}; do
        # First another name: half removed it would be a damaged one.
        mv -T -- "$path" "${path%/*}/.hpcrun-removed-${path##*/}" || continue
        rm -rf -- "${path%/*}"/.hpcrun-removed-*
        printf 'hpcrun: removed checkpoint %s; newer ones that are whole: %s\n' "${path##*/}" "$keep"
    done
    [ ${#unclear[@]} -eq 0 ] ||
        printf 'hpcrun: kept %s older checkpoints (%s ...): it is not certain that complete newer ones replace them\n' \
            ${#unclear[@]} "${unclear[0]}"
)

# has_all_files IDENTITY MEMBERS: whether it has as many files of data as these lines of members, for
# each kind of file: a folder may lack those of some ranks. For prune_checkpoints.
has_all_files() {
    local shape series path name each other kinds
    while IFS=$'\t' read -r shape series path; do
        other=${part_of[$1 $series]-}
        [ -n "${names[$path]-}" ] || continue # a file, not a folder
        mapfile -t kinds <<<"${names[$path]%$'\n'}"
        for name in "${kinds[@]}"; do
            each=${files[$path $name]-0}
            [ "${files[$other $name]-0}" -ge "$each" ] || return 1
        done
    done <<<"$2"
}

# name_checkpoints: read the lines of judge_checkpoints from standard input, and print for each, with
# tabs between: the state; its identity, which sorts by progress (`-`: its name has none); its family,
# within which identities are compared; whether a word like `step` is before its number; its series,
# the path without the numbers of progress; its shape, the series without the numbers of unknown
# meaning; the path.
name_checkpoints() {
    local state path reason rest name at number word means each pass
    local identity series shape count has_word
    local -a texts numbers kinds
    while IFS=$'\t' read -r state path reason; do
        rest=${path#"$PWD"/} name=${rest##*/}
        # What is being written counts as a part of what it will be.
        [[ ! $name =~ ^(.*)$in_writing$ ]] || name=${BASH_REMATCH[1]}
        [[ ! $name =~ ^(part|tmp)-(.*)$ ]] || name=${BASH_REMATCH[2]}
        [[ $rest != */* ]] && rest=$name || rest=${rest%/*}/$name
        texts=() numbers=() kinds=() at=''
        while [[ $rest =~ ^([^0-9]*)([0-9]+)(.*)$ ]]; do
            texts+=("${BASH_REMATCH[1]}") numbers+=("${BASH_REMATCH[2]}")
            rest=${BASH_REMATCH[3]} word=''
            [[ ! ${texts[${#texts[@]} - 1],,} =~ ([a-z]+)[-_=.:]?$ ]] || word=${BASH_REMATCH[1]}
            case $word in
            step | steps | globalstep | epoch | epochs | ep | iter | iters | iteration | it | ba | \
                batch | batches | update | updates | token | tokens | sample | samples) means=progress ;;
            checkpoint | ckpt | state | snapshot) means=checkpoint ;;
            rank | fold | seed | shard | part | version | v | node | worker | mp | tp | pp | dp | \
                gpu | cv | split) means=fixed ;;
            *) means=unknown ;;
            esac
            [ ${#numbers[${#numbers[@]} - 1]} -le 18 ] || means=unknown
            kinds+=("$means")
        done
        count=${#numbers[@]} identity='' series='' shape='' has_word=1
        if [[ " ${kinds[*]-} " != *" progress "* ]]; then
            # Then the number of the checkpoint, or else the last one of the name.
            each=$count
            for pass in checkpoint unknown; do
                for ((number = count - 1; number >= 0; number--)); do
                    [ "${kinds[number]}" = "$pass" ] && each=$number && break 2
                    [[ ${texts[number]} != */* || $pass = checkpoint ]] || break
                done
            done
            [ "$each" -eq "$count" ] || [ ${#numbers[each]} -gt 18 ] || {
                kinds[each]=progress has_word=''
            }
        fi
        for ((number = 0; number < count; number++)); do
            series+=${texts[number]} shape+=${texts[number]}
            case ${kinds[number]} in
            progress)
                printf -v at '%s%018d' "${identity:+ }" "$((10#${numbers[number]}))"
                identity+=$at series+='#' shape+='#'
                ;;
            fixed) series+=${numbers[number]} shape+=${numbers[number]} ;;
            *) series+=${numbers[number]} shape+='*' ;;
            esac
        done
        # As many numbers are compared with each other, whatever their words.
        printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$state" "${identity:--}" "${#identity}" \
            "${has_word:-0}" "$series$rest" "$shape$rest" "$path"
    done
}

# is_kept PATH NEWEST POINTERS: whether this attempt began with it, a link or a file like
# `latest` names it, or the newest one does as the best (best_model_checkpoint in the Trainer's
# trainer_state.json, best_model_path in Lightning's).
is_kept() {
    local name=${1##*/} line target record best
    best="/${name//[^0-9A-Za-z_-]/.}([^0-9]|\$)"
    [ "$1" != "$(cat -- "${attempt_dir-}/resume" 2>/dev/null)" ] || return 0
    while IFS= read -r line; do
        [[ -n $line && $PWD/${line#./} != "$1"/* ]] || continue
        if [ -L "$line" ]; then
            target=$(readlink -f -- "$line")/
            [[ $target != "$(readlink -f -- "$1")"/* ]] || return 0
        else
            IFS= read -r target <"$line"
            [ "${target##*/}" != "$name" ] || return 0
        fi
    done <<<"$3"
    for record in "$2" "$2"/{trainer_state.json,meta.pt,checkpoint/mp_rank_00_model_states.pt}; do
        [ -f "$record" ] || continue
        ! head -c 4194304 -- "$record" | grep -qaE "$best" || return 0
    done
    return 1
}

# look_after_checkpoints [PAUSE]: until standard input ends, look for a new whole checkpoint every
# minute: then prune, and warn where another one may not fit.
look_after_checkpoints() {
    local newest seen=''
    while
        IFS= read -r -t"${1:-60}" _
        [ $? -gt 128 ]
    do
        newest=$(newest_checkpoint "$HPCRUN_CHECKPOINT_DIR" "$HPCRUN_WORLD_SIZE" 2>/dev/null)
        [ "$newest" != "$seen" ] || continue
        seen=$newest
        [ -z "${HPCRUN_CHECKPOINT_KEEP-}" ] ||
            prune_checkpoints "$HPCRUN_CHECKPOINT_DIR" "$HPCRUN_WORLD_SIZE" "$HPCRUN_CHECKPOINT_KEEP"
        [ -z "$newest" ] || save_room "${newest%/*}" "$(du -sb -- "$newest" | cut -f 1)"
    done
}

save_room() {
    local free
    free=$(df -B1 --output=avail -- "$1" 2>/dev/null) || return 0
    free=${free##*[!0-9]}
    [ -n "$free" ] || return 0
    [ "$free" -ge $(($2 * 6 / 5)) ] ||
        printf 'hpcrun: %s has %sB free: the next checkpoint may need %sB\n' "$1" \
            "$(numfmt --to=si "$free")" "$(numfmt --to=si "$2")" >&2
}
