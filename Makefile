# `make run` and `make test` are all one needs; each sets up .venv first if it is missing.
SHELL := /bin/bash
LOCK ?= requirements/cpu.lock
# A folder of wheels that pip is configured with may hold the CPU build of torch; elsewhere PyTorch's own index has it.
FIND_LINKS := $(or $(PIP_FIND_LINKS),$(shell python3 -m pip config get global.find-links 2>/dev/null))
TORCH := $(if $(FIND_LINKS)$(filter %gpu.lock,$(LOCK)),,--torch-backend cpu)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONNOUSERSITE := 1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check oracle setup gpu ui lint params locks clean

run: setup
	snakemake --cores all target

# Some tests ask megatron-core itself, which has an environment of its own: pytest alone skips them.
test oracle: export DAGRPO_MEGATRON_PYTHON := $(CURDIR)/.venv-megatron/bin/python

test: setup lint .venv-megatron/.installed
	pytest

oracle: setup .venv-megatron/.installed
	pytest packages/dagrpo_megatron

.venv-megatron/.installed: requirements/megatron-test.lock | setup
	test -x .venv-megatron/bin/python || python3 -m venv .venv-megatron
	UV_FIND_LINKS="$(FIND_LINKS)" .venv/bin/uv pip install -q --python .venv-megatron/bin/python --no-deps $(TORCH) -r $<
	touch $@

CHECKED := tests/algorithms tests/execution tests/params tests/plugins tests/provenance tests/rewards/verifiers tests/screen tests/test_files.py \
  tests/test_console.py tests/workflow/test_dvc_file.py tests/workflow/test_finish.py tests/workflow/test_locks.py tests/workflow/test_stop.py

# The fast part of `make test`: under three minutes.
check: lint
	pytest $(CHECKED)

lint: setup
	ruff check . && ruff format --check .
	snakefmt --check Snakefile workflow
	mypy

setup: .venv/.installed

.venv/.installed: requirements/cpu.lock requirements/gpu.lock pyproject.toml $(shell find packages -name '*.py' -o -name '*.toml' -o -name '*.pth')
	test -x .venv/bin/python || python3 -m venv .venv
	.venv/bin/pip install -q --disable-pip-version-check uv==0.13.8
	UV_FIND_LINKS="$(FIND_LINKS)" .venv/bin/uv pip install -q --compile-bytecode --python .venv/bin/python --no-deps $(TORCH) -r $(LOCK)
	.venv/bin/uv pip install -q --python .venv/bin/python --no-deps -e .
	touch $@

gpu:
	rm -rf .venv
	$(MAKE) setup LOCK=requirements/gpu.lock

ui: setup
	dagrpo ui

params: setup
	dagrpo generate

locks: setup
	uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_34 --no-annotate --no-header \
	  requirements/gpu.in -o requirements/gpu.lock

clean:
	rm -rf data/* models/* results/* logs .state
