# Everything a person or CI does here. `make run` and `make test` work on a fresh Debian machine with Python 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install run test test-vllm check format bench superuser services

help: ## list what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED) ## make .venv with everything the server and its tests need

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: $(INSTALLED) ## migrate, then serve in the foreground
	@exec $(BIN)/python manage.py serve

test: $(INSTALLED) services ## run the whole suite but the vLLM part
	$(BIN)/python -m pytest

test-vllm: $(INSTALLED) ## run the tests that need vLLM
	@echo "There are no vLLM tests yet."

services: ## install Redis and PostgreSQL for the tests, where they are missing
	@sh tests/install_services.sh

check: $(INSTALLED) ## lint, format check, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) services ## measure; BENCH_JSON=file writes the numbers
	$(BIN)/python -m tests.bench

superuser: $(INSTALLED) ## make a user for the admin
	$(BIN)/python manage.py createsuperuser
