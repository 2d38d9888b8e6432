"""Processes with vLLM imported, from which engine cores start in two seconds."""
