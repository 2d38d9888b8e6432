"""What a continued request finds inside vLLM: its output, its grammar, its draws."""
