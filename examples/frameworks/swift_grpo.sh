#!/usr/bin/env bash
# A GRPO run of ms-swift in server mode under rayguard: MODEL=/models/Qwen2.5-7B-Instruct examples/frameworks/swift_grpo.sh [--a B ...]
#
# Needs ms-swift 4.6 with vLLM, and rayguard beside it. Both of ms-swift's own commands run with one line before them: the
# server is started again where it ends or serves nobody, its clients wait for it and push the last weights; the trainer goes
# on from its newest checkpoint that is whole and finite (docs/frameworks/ms-swift.md, docs/run.md).
# OPTIONS="--dry-run train.log" starts nothing: it says what would be done about a trainer with that log.
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct} PORT=${PORT:-8000}

trainer() {
    # shellcheck disable=SC2086 # OPTIONS are words
    rayguard run ${OPTIONS:-} -- \
        CUDA_VISIBLE_DEVICES="${TRAINER_GPUS:-0,1,2,3,4,5}" NPROC_PER_NODE="${RANKS:-6}" \
        swift rlhf \
        --rlhf_type grpo \
        --model "$MODEL" \
        --reward_funcs accuracy \
        --dataset AI-MO/NuminaMath-TIR#1000 \
        --use_vllm true \
        --vllm_mode server \
        --vllm_server_host 127.0.0.1 \
        --vllm_server_port "$PORT" \
        --tuner_type full \
        --torch_dtype bfloat16 \
        --max_completion_length 2048 \
        --per_device_train_batch_size 2 \
        --gradient_accumulation_steps 4 \
        --num_generations 8 \
        --learning_rate 1e-6 \
        --deepspeed zero2 \
        --save_steps 20 \
        --save_total_limit 3 \
        --output_dir "${PLACE:-run/swift_grpo}" \
        "$@"
}

if [[ ${OPTIONS:-} == *--dry-run* ]]; then
    trainer "$@"
    exit
fi
rayguard run -- CUDA_VISIBLE_DEVICES="${SERVER_GPUS:-6,7}" \
    swift rollout --model "$MODEL" --port "$PORT" --data_parallel_size 2 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" || true' EXIT
trainer "$@"
