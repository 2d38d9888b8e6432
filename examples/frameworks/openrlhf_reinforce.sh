#!/usr/bin/env bash
# REINFORCE with a baseline in OpenRLHF under rayguard: REWARD=reward.py GPUS=8 examples/frameworks/openrlhf_reinforce.sh [--a.b C ...]
#
# Needs OpenRLHF 0.11 with vLLM, and rayguard beside it; REWARD is a file with a reward function, or the address of a server, as
# OpenRLHF has it. It is OpenRLHF's own command with one line before it, which switches the plugin on in Ray's workers and
# keeps the command going (docs/frameworks/openrlhf.md, docs/run.md). OPTIONS="--dry-run train.log" starts nothing: it says what
# would be done about a run with that log.
set -euo pipefail

GPUS=${GPUS:-8} PLACE=${PLACE:-run/openrlhf}
# shellcheck disable=SC2086 # OPTIONS are words
exec rayguard run ${OPTIONS:-} -- \
    python3 -m openrlhf.cli.train_ppo_ray \
    --actor.model_name_or_path "${MODEL:-Qwen/Qwen3-4B}" \
    --reward.remote_url "${REWARD:?a file with a reward function, or an address}" \
    --data.prompt_dataset "${DATA:-zhuzilin/dapo-math-17k}" \
    --data.input_key prompt \
    --data.label_key label \
    --data.apply_chat_template \
    --actor.num_nodes 1 \
    --actor.num_gpus_per_node "$GPUS" \
    --ref.num_nodes 1 \
    --ref.num_gpus_per_node "$GPUS" \
    --vllm.num_engines "$GPUS" \
    --vllm.tensor_parallel_size 1 \
    --vllm.gpu_memory_utilization 0.6 \
    --vllm.sync_backend nccl \
    --vllm.enable_sleep \
    --train.colocate_all \
    --ds.zero_stage 3 \
    --ds.enable_sleep \
    --ds.param_dtype bf16 \
    --algo.advantage.estimator reinforce_baseline \
    --rollout.batch_size 128 \
    --rollout.n_samples_per_prompt 8 \
    --train.batch_size 1024 \
    --ckpt.path "$PLACE/ckpt" \
    --ckpt.output_dir "$PLACE/final" \
    --ckpt.save_steps 20 \
    --ckpt.max_num 3 \
    "$@"
