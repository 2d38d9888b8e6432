"""What a pool costs: beside scripted engines (``bench_pool``), and beside bare vLLM actors (``.against_bare``)."""
