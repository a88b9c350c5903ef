# Everything runs from .venv, which `make setup` creates once from requirements.lock (network needed that one time).
VENV   := .venv
PYTHON := $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
STAMP  := $(VENV)/.stamp
BIN    := $(VENV)/bin
JUPYTER := .venv-notebooks
TORCH  := .venv-torch
MODELS := .venv-models
SITE   := .venv-site
EXACT  := --quiet --disable-pip-version-check --require-hashes

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-core test-slow tiers mutate fuzz lint bench notebooks notebooks-write modules import-table torch torch-setup torch-slow torch-write watch watch-seconds watch-write models models-write coq \
        browser playground site clean

help:       ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | while IFS='|' read -r a b; do printf '%-24s%s\n' "$$a" "$$b"; done

setup: $(STAMP)  ## create .venv from requirements.lock (done once)

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "placealg needs Python >= 3.11 with the venv module; none found on PATH" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)  ## derive, cost and prove zero3*tp_sp for Llama-3-70B, and refute a bug
	@$(BIN)/python -m placealg.cli.demo

test: $(STAMP)  ## the default suite, doctests included
	$(BIN)/python -m pytest -q -n 2 -p no:benchmark

test-core: $(STAMP)  ## the tests of the core, on a copy without the annexes: docs/core.md
	PYTHONPATH=tests $(BIN)/python tests/core.py -n 2

DRAW ?= few
SHARE ?= $(if $(filter-out few,$(DRAW)),1,6)
test-slow: $(STAMP)  ## the slow tier: of each test one case in SHARE, which the code's state shifts, and a few mutants and random programs (DRAW=all: everything, many hours); goes on where it ended
	PLACEALG_RESUME=1 PLACEALG_SHARE=$(SHARE) PLACEALG_ASSURE='test-slow$(if $(filter-out few,$(DRAW)), DRAW=$(DRAW))' PLACEALG_MUTANTS=$(DRAW) \
	PLACEALG_RANDOM_RUNS=$(if $(filter few,$(DRAW)),4,100) $(BIN)/python -m pytest -q -n 2 --dist worksteal -p no:benchmark -m "slow and not torch"

CASES ?= default
tiers: $(STAMP)  ## measure the default suite (CASES=all: every case), and list what is slow in tests/slow_cases.txt
	rm -f build/case_seconds.tsv
	PLACEALG_MEASURE=$(CASES) $(BIN)/python -m pytest -q -n 2 -p no:benchmark
	$(BIN)/python tests/tiers.py

MUTANTS ?=  # which, and how: placealg.prover.ops.redistributions --every 4; --help says more
mutate: $(STAMP)  ## how many mutants of the prover and the derivation the tests kill: long, on Linux, resumed
	PYTHONPATH=$$(find tests -type d ! -name "__pycache__" | paste -sd:) $(BIN)/python tests/mutation/mutate.py $(MUTANTS)

INPUTS ?= 20000
SEED ?= 1
FIRST ?= 0
fuzz: $(STAMP)  ## hostile inputs for the command line: INPUTS of SEED from FIRST on, one after the other
	PYTHONPATH=tests $(BIN)/python tests/programs/hostile.py --inputs $(INPUTS) --seed $(SEED) --first $(FIRST) --row

lint: $(STAMP)  ## ruff, mypy --strict, and what the tests call
	$(BIN)/ruff check .
	$(BIN)/mypy
	MYPYPATH=$$(find tests -type d ! -name "__pycache__" | paste -sd:) $(BIN)/mypy --config-file tests/mypy.ini $$(find tests -name "*.py")

bench: $(STAMP)  ## timings
	$(BIN)/python -m pytest -q tests/bench_*.py --benchmark-columns=min,median,rounds --benchmark-sort=name

$(JUPYTER)/.stamp: notebooks/requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "placealg needs Python >= 3.11 with the venv module; none found on PATH" >&2; exit 2; }
	$(PYTHON) -m venv $(JUPYTER)
	$(JUPYTER)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r notebooks/requirements.lock
	$(JUPYTER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

notebooks: $(JUPYTER)/.stamp  ## run the notebooks, and hold their outputs against the committed ones
	$(JUPYTER)/bin/python notebooks/run.py

notebooks-write: $(JUPYTER)/.stamp  ## run the notebooks, and keep their outputs
	$(JUPYTER)/bin/python notebooks/run.py --write

# torch, from an index of its own where it lies on no other: .venv-torch from torch.lock, .venv-models from models.lock
.venv-%/.stamp: %.lock pyproject.toml
	@command -v python3.11 > /dev/null || { echo "$< is for CPython 3.11 on Linux, x86-64; there is no python3.11" >&2; exit 2; }
	python3.11 -m venv $(@D)
	$(@D)/bin/python -m pip install $(EXACT) -r $< 2> /dev/null || $(@D)/bin/python -m pip install $(EXACT) --extra-index-url https://download.pytorch.org/whl/cpu -r $<
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

torch-setup: $(TORCH)/.stamp  # the environment alone

# Two shares of about the same work, one for each of two cores.
torch: $(TORCH)/.stamp  ## PyTorch run for real, held against the formulas, the verdicts and the committed tables
	@log=$$(mktemp); { $(TORCH)/bin/python -m pytest -q -m "torch and not slow" tests/measure/test_torch.py tests/measure/test_loss_memory.py tests/measure/test_reshard_torch.py tests/measure/test_schedules_torch.py tests/measure/test_rounding_torch.py; \
	code=$$?; $(TORCH)/bin/python tests/measure/torch_tables.py && exit $$code; } > $$log 2>&1 & tables=$$!; \
	$(TORCH)/bin/python -m pytest -q -m "torch and not slow" tests/watch/test_watch_torch.py tests/watch/test_lift_torch.py tests/watch/test_lift_rules.py; \
	code=$$?; wait $$tables || code=1; cat $$log; rm $$log; exit $$code

torch-slow: $(TORCH)/.stamp  ## 8 processes of every run; every set-up that is watched, and of each a recorder without an op: each that moves elements, one pair in SHARE of the others; and the faults that `torch` leaves (SHARE=1: all, two hours)
	$(TORCH)/bin/python tests/measure/torch_tables.py --every
	PLACEALG_SHARE=$(SHARE) PLACEALG_ASSURE='torch-slow' $(TORCH)/bin/python -m pytest -q -m "torch and slow" tests/watch/test_watch_torch.py tests/watch/test_lift_torch.py

watch-seconds: $(TORCH)/.stamp  ## what recording costs, of every right set-up, kept as the table of docs/watch.md
	$(TORCH)/bin/python tests/watch/write_recordings.py --seconds

watch: .venv-watch/.stamp  ## steps of transformers, torchtitan, Megatron-Core and DeepSpeed held against their programs: minutes
	PATH=$(CURDIR)/.venv-watch/bin:$$PATH .venv-watch/bin/python -m pytest -q -m torch tests/watch/test_frameworks.py

watch-write: .venv-watch/.stamp  ## verdicts and seconds of these steps, plain and recorded, kept as the table of docs/watch.md
	PATH=$(CURDIR)/.venv-watch/bin:$$PATH .venv-watch/bin/python tests/watch/framework_table.py --write

torch-write: $(TORCH)/.stamp  ## run PyTorch for real, and keep the tables
	$(TORCH)/bin/python tests/measure/torch_tables.py --write --every

ARGS ?=  # of models: types, --random N, --seed N; `make models ARGS=--help` says more
models: $(MODELS)/.stamp  ## every decoder of transformers, built without memory, held against the families: minutes
	PYTHONPATH=$$(find tests -type d ! -name "__pycache__" | paste -sd:) $(MODELS)/bin/python tests/models/real_models.py $(ARGS)

models-write: $(MODELS)/.stamp  ## the same, and keep the table and docs/models.md
	PYTHONPATH=$$(find tests -type d ! -name "__pycache__" | paste -sd:) $(MODELS)/bin/python tests/models/real_models.py --seed 24 --write

import-table: $(STAMP)  ## what is read from the configurations in DIR=..., held against its expected.json
	@$(BIN)/python tests/importers/import_table.py $(DIR) $(if $(PROVE),--prove)

modules: $(STAMP)  ## a line for every module, from its docstring
	@$(BIN)/python tests/module_index.py

coq:        ## the theory, checked by Coq, and the kernel's checker extracted; without coqc it says so and is no pass
	@build=$$(mktemp -d) && trap 'rm -rf "$$build"' EXIT && proofs/coq/check.sh "$$build" \
		&& $(or $(wildcard $(BIN)/python),python3) tests/coq/extracted.py "$$build"

PLAYGROUND ?= build/playground
NUMPY ?=  # a wheel of numpy for the browser's Python and its SHA-256: NUMPY='numpy-...wasm32.whl 9f86d0...'
playground: $(STAMP)  ## the page on which strategies are written and proved in a browser, in build/playground: needs npm and node, and once a network
	@$(BIN)/python -m placealg.playground $(PLAYGROUND) $(NUMPY)

$(SITE)/.stamp: docs/requirements.lock
	@command -v python3.11 > /dev/null || { echo "$< is for CPython 3.11 to 3.14 on Linux, x86-64; there is no python3.11" >&2; exit 2; }
	python3.11 -m venv $(SITE)
	$(SITE)/bin/python -m pip install $(EXACT) -r $<
	@touch $@

site: $(SITE)/.stamp  ## docs/ as a site with search and an API reference, in build/site; with the playground where that is built
	PYTHONPATH=. $(SITE)/bin/python docs/make_site.py build/site $(wildcard $(PLAYGROUND))

browser: $(STAMP)  ## the report's page and the playground in a headless Chromium: they render, prove, and agree with Python
	$(BIN)/python -m pytest -q -p no:benchmark -m browser tests/render/test_report.py tests/playground/test_playground.py

clean:      ## remove the environments and all caches
	rm -rf $(VENV) $(JUPYTER) $(TORCH) $(MODELS) $(SITE) build dist mutants .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
