#!/usr/bin/env bash
# A GRPO run of EasyR1 under rayguard: MODEL=/models/Qwen3-4B GPUS=8 examples/frameworks/easyr1_grpo.sh [KEY=VALUE ...]
#
# Start it in a checkout of EasyR1, with rayguard installed beside it. It is EasyR1's own command with one line before it,
# which switches the plugin on in Ray's workers and keeps the command going (docs/frameworks/easyr1.md, docs/run.md).
# OPTIONS="--dry-run train.log" starts nothing: it says what would be done about a run with that log.
set -euo pipefail

# shellcheck disable=SC2086 # OPTIONS are words
exec rayguard run ${OPTIONS:-} -- \
    python3 -m verl.trainer.main \
    config="${CONFIG:-examples/config.yaml}" \
    worker.actor.model.model_path="${MODEL:-Qwen/Qwen3-4B}" \
    data.rollout_batch_size=512 \
    worker.actor.global_batch_size=128 \
    trainer.n_gpus_per_node="${GPUS:-8}" \
    trainer.experiment_name=qwen3_4b_math_grpo \
    trainer.save_freq=20 \
    trainer.save_limit=3 \
    "$@"
