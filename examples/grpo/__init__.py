"""The main job: a GRPO-shaped loop on Ray and vLLM that is disturbed on purpose and does not notice."""
