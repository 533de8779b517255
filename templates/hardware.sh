#!/bin/bash
# What a node has: its network and its GPUs. The harness sources this. It needs bash 4.2.
#
#   bash hardware.sh fabric [ROOT]   print the network that this node would train over, by what
#                                    the kernel shows below ROOT/sys; the devices go to stderr
# shellcheck disable=SC2154 # $host is the harness's
set -u

# interface_to ADDRESS: print the interface that has the address, or that routes to it.
interface_to() {
    local line PATH=$PATH:/usr/sbin:/sbin
    if ! command -v ip >/dev/null; then # in an image, as pyxis has it
        routed_interface "$1" ''
        return
    fi
    line=$(exec ip -o address show to "$1" 2>/dev/null)
    if [ -n "$line" ]; then
        line=${line#*: }
        printf '%s\n' "${line%%[[:space:]]*}"
        return
    fi
    ip -o route get "$1" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p'
}

# routed_interface ADDRESS ROOT: print the interface that routes to an IPv4 address, by the kernel's
# routing table, whose numbers are in the CPU's byte order, the lowest byte first.
routed_interface() {
    local name target mask address='' best=-1 found='' part parts
    [[ $1 =~ ^[0-9]+(\.[0-9]+){3}$ ]] || return 0
    [[ $1 != 127.* ]] || found=lo best=$((16#FFFFFFFF))
    IFS=. read -ra parts <<<"$1"
    for part in "${parts[@]}"; do
        printf -v address '%02x%s' "$part" "$address"
    done
    while read -r name target _ _ _ _ _ mask _; do
        [[ $target$mask =~ ^[0-9A-F]{16}$ ]] || continue # the heading
        # The longest matching mask wins; as a number of this byte order a longer one is greater.
        if ((16#$mask > best && (16#$address & 16#$mask) == 16#$target)); then
            best=$((16#$mask)) found=$name
        fi
    done <"$2/proc/net/route"
    [ -z "$found" ] || printf '%s\n' "$found"
}

# find_fabric ROOT: slingshot, efa, gib, fastrak, infiniband, roce, omni-path, plugin or ethernet.
# Ports that are down do not count. If a node has several, the fastest one is printed.
find_fabric() {
    local fabric=ethernet devices='' kind
    for kind in slingshot efa gib fastrak infiniband roce omni-path plugin; do
        devices=$("${kind}_devices" "$1")
        if [ -n "$devices" ]; then
            fabric=$kind
            break
        fi
    done
    devices=${devices//$'\n'/, }
    printf 'hpcrun: fabric: %s (%s)\n' "$fabric" "${devices:-no other network is up}" >&2
    printf '%s\n' "$fabric"
}

# Slingshot: a card of the cxi driver. (Its first generation appears as RoCE.)
slingshot_devices() {
    local device state
    for device in "$1"/sys/class/cxi/cxi*; do
        [ -e "$device" ] || continue
        for state in "$device"/device/net/*/operstate; do
            [ ! -e "$state" ] || [ "$(<"$state")" != down ] || continue 2
        done
        printf '%s\n' "${device##*/}"
    done
}

# Google's A3 Mega and A3 Ultra: the kernel shows their cards as plain Ethernet and RoCE; Google's
# plugin uses them (cluster-toolkit, examples/machine-learning/a3-*/nccl-tests).
fastrak_devices() { net_plugins "$1/var/lib/tcpxo/lib64"; }
gib_devices() { net_plugins "$1/usr/local/gib/lib64"; }

# net_plugins FOLDER: print the libraries by which NCCL uses networks that it does not support
# itself.
net_plugins() {
    local file
    for file in "$1"/libnccl-net*.so*; do
        [ ! -e "$file" ] || printf '%s\n' "$file"
    done
}

# plugin_devices: print an NCCL plugin that the job was given, for any network.
plugin_devices() {
    local name folder path=${LD_LIBRARY_PATH-}
    for name in NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN "${!NCCL_FASTRAK_@}" "${!NCCL_GPUDIRECTTCPX_@}"; do
        [[ ${!name-} == @(|none) ]] || printf '%s\n' "$name"
    done
    while IFS= read -r folder; do
        [ -z "$folder" ] || net_plugins "$folder"
    done <<<"${path//:/$'\n'}"
}

efa_devices() { rdma_devices "$1" efa Unspecified; }
infiniband_devices() { rdma_devices "$1" verbs InfiniBand; }
roce_devices() { rdma_devices "$1" verbs Ethernet; }
omni-path_devices() { rdma_devices "$1" omni-path InfiniBand; }

# rdma_devices ROOT KIND LAYER: print the devices of a kind with an active port of this link layer.
rdma_devices() {
    local device port layer state
    for device in "$1"/sys/class/infiniband/*; do
        for port in "$device"/ports/*; do
            layer='' state=''
            { read -r layer <"$port/link_layer"; read -r state <"$port/state"; } 2>/dev/null
            if [[ $layer == "$3" && $state == *ACTIVE* ]]; then
                [ "$(rdma_kind "$device")" != "$2" ] || printf '%s\n' "${device##*/}"
                break
            fi
        done
    done
}

# rdma_kind DEVICE: print the kind, by driver. EFA and Omni-Path also appear here, and need plugins.
rdma_kind() {
    cd -P -- "$1/device/driver" 2>/dev/null || cd / # in a process of its own
    case ${PWD##*/} in
    efa) printf 'efa\n' ;;
    hfi1*) printf 'omni-path\n' ;;
    *) printf 'verbs\n' ;;
    esac
}

# set_nccl_devices ROOT INTERFACE: set NCCL's variables on this node, since names differ between
# nodes. Existing settings, in the environment or in NCCL's own files, are kept.
set_nccl_devices() {
    local infiniband other
    case ${HPCRUN_FABRIC-} in
    ethernet | infiniband | roce | efa | slingshot | fastrak | gib | plugin)
        # The route to rank 0 is known to work; NCCL would use the first interface that it finds,
        # perhaps a virtual one. "=" selects this one only, and not all whose names start with it.
        if [ -n "$2" ] && ! in_nccl_conf NCCL_SOCKET_IFNAME "$1"; then
            export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-=$2}"
        fi
        ;;
    esac
    [ "${NCCL_NET-}" = IB ] || return 0
    infiniband=$(infiniband_devices "$1")
    other=$(
        roce_devices "$1"
        omni-path_devices "$1"
    )
    if [ -z "$infiniband$other" ]; then
        error "$host: no InfiniBand or RoCE port is up, and NCCL_NET=IB would stop NCCL:" \
            "nccl.fabric: ethernet trains over TCP"
        return 1
    fi
    if [ "${HPCRUN_FABRIC-}" = infiniband ] && [ -n "$infiniband" ] && [ -n "$other" ] &&
        ! in_nccl_conf NCCL_IB_HCA "$1"; then
        # An additional port in Ethernet mode belongs to storage or to Slurm.
        export NCCL_IB_HCA="${NCCL_IB_HCA:-=${infiniband//$'\n'/,}}"
    fi
    # A verbs plugin (IBext, which has SHARP; gIB) accepts only its own name: if one is requested,
    # IB would disable it silently.
    case ${NCCL_NET_PLUGIN:-none},${NCCL_COLLNET_ENABLE:-0} in
    none,0) ;;
    *) unset NCCL_NET ;;
    esac
}

# in_nccl_conf NAME ROOT: succeed if a file of NCCL sets the variable, which the environment would
# override.
in_nccl_conf() {
    grep -qs "^$1=" -- "${NCCL_CONF_FILE:-${HOME-}/.nccl.conf}" "$2/etc/nccl.conf"
}

# check_gpus: bf16 needs compute capability 8.0; below, it is rejected or many times slower. An old
# driver does not report it. HPCRUN_GPUS is preflight.sh's answer, and caches this one for node.sh,
# since the query takes up to a second.
check_gpus() {
    local capability name
    [ -n "${HPCRUN_NEEDS_BF16-}" ] || return 0
    [ -n "${HPCRUN_GPUS-}" ] ||
        HPCRUN_GPUS=$(timeout 30 nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader \
            ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"} 2>/dev/null)
    export HPCRUN_GPUS
    while IFS=, read -r capability name; do
        if [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] && [ "${capability%.*}" -lt 8 ]; then
            error "$host: ${name# } has no bf16 units (compute capability $capability):" \
                "set precision: fp16 (--set precision=fp16)"
            return 1
        fi
    done <<<"$HPCRUN_GPUS"
}

# gpu_cpus ROOT: print the CPUs next to each GPU that this task sees, one line each in its order, as
# in 0-15,64-79; "-" if unknown. NVIDIA's GPUs are queried by nvidia-smi, AMD's in the kernel's
# files.
gpu_cpus() {
    local known visible=${CUDA_VISIBLE_DEVICES-} shown number uuid address file
    known=$(timeout 30 nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader 2>/dev/null)
    if [[ $known != *:*:* ]]; then
        known=$(kfd_gpus "$1")
        visible=${ROCR_VISIBLE_DEVICES-${HIP_VISIBLE_DEVICES-$visible}}
    fi
    [ -n "$visible" ] || visible=$(cut -d , -f 1 <<<"$known")
    for shown in ${visible//,/ }; do
        file=''
        while IFS=', ' read -r number uuid address; do
            [[ $shown == @("$number"|"$uuid") && $address == *:*:* ]] || continue
            printf -v file '%04x:%s' "$((16#${address%%:*}))" "${address#*:}"
            file=$1/sys/bus/pci/devices/${file,,}/local_cpulist
        done <<<"$known"
        cat -- "$file" 2>/dev/null || printf -- '-\n'
    done
}

# kfd_gpus ROOT: print AMD's GPUs in the format of nvidia-smi, in the order in which programs count
# them.
kfd_gpus() {
    local folder number=0 name value place domain simds
    while IFS= read -r folder; do
        place=0 domain=0 simds=0
        while read -r name value; do
            case $name in
            simd_count) simds=$value ;; # none: a CPU
            location_id) place=$value ;;
            domain) domain=$value ;;
            esac
        done < <(cat -- "$folder/properties" 2>/dev/null) # it cannot be read: another job's
        [ "$simds" -gt 0 ] || continue
        printf '%d, -, %x:%02x:%02x.%x\n' "$number" "$domain" \
            $((place >> 8 & 255)) $((place >> 3 & 31)) $((place & 7))
        number=$((number + 1))
    done < <(printf '%s\n' "$1"/sys/class/kfd/kfd/topology/nodes/* | sort -V)
}

# bind_rank ROOT: bind this process to those of its CPUs that are next to its rank's GPU, by the
# lines of gpu_cpus in HPCRUN_GPU_CPUS. With HPCRUN_BINDING=exclusive, ranks at the same place
# divide its cores among them, as do ranks whose places are unknown.
bind_rank() {
    local places=() place before=0 ranks=0 other first cores=() line
    mapfile -t places <<<"${HPCRUN_GPU_CPUS-}"
    place=${places[LOCAL_RANK]:--}
    for ((other = 0; other < HPCRUN_RANKS_PER_NODE; other++)); do
        [ "${places[other]:--}" = "$place" ] || continue
        [ "$other" -ge "$LOCAL_RANK" ] || before=$((before + 1))
        ranks=$((ranks + 1))
    done
    mapfile -t cores < <(cores_near "$place" "$1")
    if [ "$HPCRUN_BINDING" = exclusive ] && [ "${#cores[@]}" -ge "$ranks" ]; then
        first=$((before * ${#cores[@]} / ranks))
        cores=("${cores[@]:first:(before + 1) * ${#cores[@]} / ranks - first}")
    fi
    line=$(IFS=, && LC_ALL=C taskset -pc "${cores[*]}" "$$" 2>&1 | tail -n 1)
    case $line in
    *": "[0-9]*) say "rank ${RANK-} on $host: CPUs ${line##*: }; next to its GPU: ${place/#-/unknown}" ;;
    *) say "rank ${RANK-} on $host is not bound to CPUs: ${line:-taskset failed}" ;;
    esac
}

# cores_near PLACE ROOT: print those of this process's cores that are at a place, else all of them;
# one line each, with its hardware threads.
cores_near() {
    local allowed near cpu siblings core last='' threads=''
    allowed=$(cpus_of "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$2/proc/self/status")")
    near=$(grep -Fx -f <(cpus_of "$1") <<<"$allowed") || near=$allowed
    while read -r core cpu; do
        if [ "$core" != "$last" ]; then
            [ -z "$threads" ] || printf '%s\n' "$threads"
            threads=''
        fi
        threads+=${threads:+,}$cpu last=$core
    done < <(
        for cpu in $near; do
            siblings=$(cat -- "$2/sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list" 2>/dev/null)
            printf '%s %s\n' "${siblings%%[,-]*}" "$cpu"
        done | sort -k 1,1n -k 2,2n
    )
    printf '%s\n' "$threads"
}

# cpus_of LIST: print the numbers in a list in the kernel's notation, as in 0-3,8.
cpus_of() {
    local part
    for part in ${1//,/ }; do
        [[ $part != [0-9]* ]] || seq "${part%-*}" "${part#*-}"
    done
}

if [ "${BASH_SOURCE[0]}" = "$0" ] && [ "${1-}" = fabric ]; then
    find_fabric "${2-}"
fi
