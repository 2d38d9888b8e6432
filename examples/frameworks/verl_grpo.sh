#!/usr/bin/env bash
# A GRPO run of verl under rayguard: MODEL=/models/Qwen3-8B GPUS=8 examples/frameworks/verl_grpo.sh [KEY=VALUE ...]
#
# Needs verl 0.9 with vLLM, GSM8K as verl's examples/data_preprocess/gsm8k.py writes it, and rayguard beside them. It is verl's
# own command with one line before it, which switches the plugin on in Ray's workers and keeps the command going
# (docs/frameworks/verl.md, docs/run.md). OPTIONS="--dry-run train.log" starts nothing: it says what would be done about
# a run with that log.
set -euo pipefail

DATA=${DATA:-$HOME/data/gsm8k}
# shellcheck disable=SC2086 # OPTIONS are words
exec rayguard run ${OPTIONS:-} -- \
    python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$DATA/train.parquet" \
    data.val_files="$DATA/test.parquet" \
    data.train_batch_size=512 \
    actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen3-8B}" \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    trainer.logger=console \
    trainer.project_name=gsm8k \
    trainer.experiment_name=qwen3_8b_grpo \
    trainer.n_gpus_per_node="${GPUS:-8}" \
    trainer.nnodes=1 \
    trainer.total_epochs=15 \
    trainer.save_freq=20 \
    "$@"
