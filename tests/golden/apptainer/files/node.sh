#!/bin/bash
# Runs once on every node, then as every rank, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.
if [ "${1-}" = rank ]; then
    exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \
        /opt/env/bin/python /scratch/runs/20261120-081455-train-7k3q/code/train.py \
        --data "$HPCRUN_LOCAL_DIR"/data
fi

# ---- This node: its own folder, copies and commands
# shellcheck disable=SC1091 # the files are beside this one
. "$HPCRUN_RUN_DIR/setup.sh" && . "$HPCRUN_RUN_DIR/local.sh" || exit 1
if [ -z "${HPCRUN_INSIDE-}" ]; then
    local_folder "${SLURM_TMPDIR:?not set on this node}"/run 1 # HPCRUN_LOCAL_DIR; the harness removes it
    if first_on_node copied; then
        stage /home/me/project/data data
        done_on_node copied
    fi
    runtime=$(find_runtime apptainer singularity) || exit 1
    # Values are literal: the shell does not expand a `$` in them.
    export HPCRUN_INSIDE=1 APPTAINER_NO_EVAL=1 SINGULARITY_NO_EVAL=1
    exec "$runtime" exec \
        --pwd /home/me/project \
        --bind /scratch/runs/20261120-081455-train-7k3q:/scratch/runs/20261120-081455-train-7k3q \
        --bind /home/me/project:/home/me/project \
        --bind /scratch/cache:/scratch/cache \
        --bind "${HPCRUN_LOCAL_DIR:?not set on this node}":"${HPCRUN_LOCAL_DIR:?not set on this node}" \
        --bind "${WORK:?not set on this node}"/corpus:/corpus:ro \
        --bind /home/me/project/weights:/home/me/project/weights \
        --nv \
        --no-home \
        '/home/me/project/images/my torch.sif' \
        bash -- "$HPCRUN_RUN_DIR/node.sh"
fi
restore # the job's variables, over the image's
export PATH=/opt/env/bin"${PATH:+:$PATH}"
export PYTHONPATH=/scratch/runs/20261120-081455-train-7k3q/code:/scratch/runs/20261120-081455-train-7k3q/hook.pyz"${PYTHONPATH:+:$PYTHONPATH}"
[ -n "${TORCH_EXTENSIONS_DIR-}" ] || export TORCH_EXTENSIONS_DIR=/scratch/cache/torch_extensions/05a576e3/"$HPCRUN_ARCHITECTURE"
[ -n "${TRITON_CACHE_DIR-}" ] || export TRITON_CACHE_DIR=/scratch/cache/triton/"$HPCRUN_ARCHITECTURE"
export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPCRUN_LOCAL_DIR"/flight-
export HF_DATASETS_CACHE="$HPCRUN_LOCAL_DIR"/hf
if first_on_node ready; then
begin_commands # one that fails ends the job
nvidia-smi -L
end_commands
done_on_node ready
fi
name_flight_record /opt/env/bin/python # torch before 2.8 reads other names

# ---- Launch
# Launchers replace $$ and ${local_rank} in arguments, so the program's are above.
# torch creates a folder of logs, by default in /tmp: the harness removes this one.
# shellcheck disable=SC2016 # the rank's shell expands it
exec /opt/env/bin/python -m torch.distributed.run \
    --nnodes=1 --nproc_per_node=1 --node_rank="$HPCRUN_NODE_RANK" \
    --rdzv_backend=static --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
    --log_dir="$HPCRUN_LOCAL_DIR" --no_python bash -c 'exec bash -- "$HPCRUN_RUN_DIR/node.sh" rank'
