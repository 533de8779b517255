#!/bin/bash
# Runs once on every node, then as every rank, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.
if [ "${1-}" = rank ]; then
    exec /opt/env/bin/python -c 'import os, signal as s, sys; s.pthread_sigmask(s.SIG_UNBLOCK, [s.SIGTERM]); os.execvp(sys.argv[1], sys.argv[1:])' \
        bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \
        /opt/env/bin/python /scratch/runs/20261120-081455-train-7k3q/code/train_gpt.py \
        --deepspeed-config /scratch/runs/20261120-081455-train-7k3q/deepspeed.json \
        --micro-batch-per-gpu 4 \
        --gradient-accumulation-steps 1 \
        --precision bf16 \
        --activation-checkpointing false \
        --checkpoint-dir /scratch/runs/20261120-081455-train-7k3q/checkpoints \
        --steps 60
fi

# ---- This node: its own folder, copies and commands
# shellcheck disable=SC1091 # the files are beside this one
. "$HPCRUN_RUN_DIR/setup.sh" && . "$HPCRUN_RUN_DIR/local.sh" || exit 1
local_folder /tmp 1 # HPCRUN_LOCAL_DIR; the harness removes it
[ -n "${TORCH_EXTENSIONS_DIR-}" ] || export TORCH_EXTENSIONS_DIR=/scratch/cache/torch_extensions/f321e099/"$HPCRUN_ARCHITECTURE"
[ -n "${TRITON_CACHE_DIR-}" ] || export TRITON_CACHE_DIR=/scratch/cache/triton/"$HPCRUN_ARCHITECTURE"
export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPCRUN_LOCAL_DIR"/flight-
name_flight_record /opt/env/bin/python # torch before 2.8 reads other names

# ---- Launch
# Launchers replace $$ and ${local_rank} in arguments, so the program's are above.
# When DeepSpeed's launcher is asked to end, it kills its ranks after 30 s, whatever the grace time.
# Slurm also signals the ranks: the launcher does not need the signal, and ends after them.
wait_for_ranks=()
[ -z "${SLURM_JOB_ID-}" ] || wait_for_ranks=(/opt/env/bin/python -c 'import os, signal as s, sys; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGTERM]); os.execvp(sys.argv[1], sys.argv[1:])')
# shellcheck disable=SC2016 # the rank's shell expands it
exec "${wait_for_ranks[@]}" /opt/env/bin/python -m deepspeed.launcher.runner \
    --hostfile="$HPCRUN_HOSTFILE" --no_ssh --node_rank="$HPCRUN_NODE_RANK" \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
    --no_local_rank --no_python bash -c 'exec bash -- "$HPCRUN_RUN_DIR/node.sh" rank'
