"""What vLLM counts in a text of Prometheus, engine by engine. Pure: whoever asks is ``server_answers``."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from rayguard.runner.serving.silence import EngineCounters

_RUNNING, _SLEEP = "vllm:num_requests_running", "vllm:engine_sleep_state"
_TOKENS = frozenset({"vllm:generation_tokens_total", "vllm:prompt_tokens_total"})
# What an engine tells with each step also where no token is done: pieces of a long prompt fill its cache.
_OTHERS = frozenset({"vllm:kv_cache_usage_perc", "vllm:num_requests_waiting", "vllm:num_preemptions_total"})


def counters_of(text: str) -> dict[str, EngineCounters]:
    """Return what each engine counts; empty where the text is not vLLM's, or no such text at all."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    awake: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name.startswith("vllm:") else ():
                engine = sample.labels.get("engine", "0")
                if sample.name in _TOKENS or sample.name in _OTHERS or sample.name == _RUNNING:
                    found[engine][sample.name] += sample.value
                elif sample.name == _SLEEP and sample.labels.get("sleep_state") == "awake":
                    awake[engine] = sample.value
    except ValueError:
        return {}
    return {
        engine: EngineCounters(
            running=counted[_RUNNING],
            tokens=sum(counted[name] for name in _TOKENS),
            others=tuple(counted[name] for name in sorted(_OTHERS)),
            asleep=awake.get(engine, 1.0) == 0.0,
        )
        for engine, counted in found.items()
        if _RUNNING in counted and counted.keys() & _TOKENS
    }
