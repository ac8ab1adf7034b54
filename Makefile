# Everything runs from a fresh clone with git, make and Python 3.11 or newer. The virtual environment is .venv;
# a stamp per requirement set makes second runs quick.

PYTHON ?= python3.13 python3.12 python3.11 python3   # candidates; the first that is new enough is taken
VENV := .venv
BIN := $(VENV)/bin
CHECKED := $(wildcard src rigs tests tools bench examples)
SCALE ?= commit
# Two workers a core: half of the suite's time is waiting for processes, clocks and other people's start-up.
WORKERS ?= 4
# Every test of a process starts Python anew; compiled modules are kept, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo quick test check lint soak model bench bench-full bench-large docs site fuzz requirements release-check clean FORCE

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(firstword $(MAKEFILE_LIST)) | awk -F '|' '{printf "make %-14s%s\n", $$1, $$2}'

demo: $(VENV)/demo.stamp ## install with the spark and web extras, then run the demo
	$(BIN)/stagepost demo

quick: lint ## while you write: format, lint, types, tidiness, and the unit and property tests that are not slow; aim: under 90 s on two idle cores
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m 'not slow and not fuzz' --hypothesis-profile=quick tests/unit tests/property

test: lint ## format, lint, types, then the whole suite; SEED=n repeats a run, WORKERS=n sets the processes
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(if $(SEED),--hypothesis-seed=$(SEED))

check: lint ## format, lint, types, tidiness
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py

lint: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict $(CHECKED)

soak: $(VENV)/test.stamp ## long runs into results/; SCALE=release for the counts of a release
	$(BIN)/python tests/soak/run.py --scale $(SCALE)

model: $(VENV)/base.stamp ## check the models of the agreement with Spin (Debian packages spin and gcc)
	$(BIN)/python tools/model.py

bench: $(VENV)/bench.stamp ## measure and print; CHECK=1 fails when a budget is missed; PART=steps, path, node, remp, chain, network, bus, pipeline, freshness, web, kafka, cluster, scale, gouroboros or delivery for one part
ifneq ($(PART),delivery)
	$(BIN)/python bench/run.py $(if $(filter 1,$(CHECK)),--check) $(if $(PART),--only $(PART))
endif
ifneq ($(filter delivery,$(or $(PART),delivery)),)
	$(BIN)/python -m bench.delivery.install
	$(BIN)/python -m bench.delivery.beside $(if $(filter 1,$(CHECK)),--check)
endif

bench-full: $(VENV)/bench.stamp ## reliable publishing beside other systems: every payload and window, twenty seconds each
	$(BIN)/python -m bench.delivery.install
	$(BIN)/python -m bench.delivery.beside --full

bench-large: $(VENV)/bench.stamp ## ten million receipts through Spark against one million; 12 GB of disk
	$(BIN)/python -m bench.receipt_tables --large

docs: $(VENV)/base.stamp ## rewrite docs/protocols, docs/metrics.md, docs/tables.md and docs/images from the code, docs/promises.md from results
	$(BIN)/python tools/protocol_docs.py docs/protocols
	$(BIN)/python tools/metrics_docs.py docs/metrics.md
	$(BIN)/python tools/tables_docs.py docs/tables.md
	$(BIN)/python tools/cli_docs.py docs/cli
	$(BIN)/python tools/promises_docs.py docs/promises.md
	$(BIN)/python tools/trace_picture.py docs/images/trace.svg
	$(BIN)/python tools/scale_plan.py --update docs/scale.md

site: $(VENV)/test.stamp ## build the documentation with search, commands and Python API into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'look at it with: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site'

fuzz: $(VENV)/test.stamp ## a minute of mutated input into every decoder, and a minute guided by coverage; KEEP=1 adds to the corpus
	$(BIN)/python tests/soak/run.py --only fuzz --only guided --seconds 60
	$(if $(filter 1,$(KEEP)),$(BIN)/python -m tests.fuzz.guided --seconds 60 --keep)

# Pins that still fit are kept; UPGRADE=1 moves to the newest. Files hold names, versions and hashes, never addresses.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make requirements' $(if $(UPGRADE),--upgrade)
requirements: $(VENV)/compile.stamp ## recompile requirements/*.txt; UPGRADE=1 moves every pin
	$(COMPILE) pyproject.toml --output-file requirements/base.txt
	$(COMPILE) pyproject.toml --extra spark --extra web --constraint requirements/base.txt --output-file requirements/demo.txt
	$(COMPILE) pyproject.toml --extra test --extra spark --extra web --extra kafka --extra otel --constraint requirements/demo.txt --output-file requirements/test.txt
	$(COMPILE) requirements/build.in --constraint requirements/test.txt --output-file requirements/build.txt
	$(COMPILE) requirements/compile.in --output-file requirements/compile.txt
	$(COMPILE) requirements/fuzz.in --output-file requirements/fuzz.txt
	$(COMPILE) requirements/release.in --constraint requirements/test.txt --constraint requirements/build.txt \
		--constraint requirements/compile.txt --output-file requirements/release.txt
	$(COMPILE) pyproject.toml --extra bench --constraint requirements/test.txt --output-file requirements/bench.txt

release-check: $(VENV)/release.stamp ## build wheel and sdist, try them on every Python, list and audit all components; ADVISORIES=FOLDER audits without a network, OFFLINE=1 leaves the audit out, PYTHONS=… adds Pythons
	$(BIN)/python -m tools.release_check $(if $(filter 1,$(OFFLINE)),--offline) $(PYTHONS:%=--python %) \
		$(if $(ADVISORIES),--advisories '$(ADVISORIES)') $(if $(ADVISORIES_DAYS),--advisories-days $(ADVISORIES_DAYS))

clean: ## remove the virtual environment, caches and results
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist results
	find src rigs tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment holds absolute paths, so one that came along with a copied folder is made anew.
ifneq ($(shell cat $(VENV)/made-for 2>/dev/null),$(CURDIR))
$(VENV)/made-for: FORCE
endif
$(VENV)/made-for:
	@for candidate in $(PYTHON); do \
	  if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    rm -rf $(VENV) && $$candidate -m venv $(VENV) && printf '%s\n' '$(CURDIR)' >$@ && exit 0; exit 1; \
	  fi; \
	done; \
	echo 'stagepost needs Python 3.11 or newer with its venv module; none of these is: $(strip $(PYTHON))' >&2; exit 1

$(VENV)/base.stamp: $(VENV)/made-for pyproject.toml requirements/base.txt requirements/build.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/build.txt -r requirements/base.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/demo.stamp: $(VENV)/base.stamp requirements/demo.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/demo.txt
	@touch $@

# Browser and model checker are the system's: their own packages bring them, where we may ask for one.
$(VENV)/browser.stamp: $(VENV)/made-for
	@if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo 'installing Chromium for the tests of the dashboard'; \
	  (apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium) >/dev/null 2>&1 \
	    || echo 'Chromium cannot be installed here: tests that need a browser are left out' >&2; \
	fi
	@if ! command -v spin >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo 'installing Spin for the models of the agreement'; \
	  (apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends spin) >/dev/null 2>&1 \
	    || echo 'Spin cannot be installed here: tests of the models are left out' >&2; \
	fi
	@touch $@

$(VENV)/test.stamp: $(VENV)/base.stamp $(VENV)/browser.stamp requirements/test.txt requirements/fuzz.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/test.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/fuzz.txt \
	  || echo 'atheris cannot be installed here: fuzzing guided by coverage is left out' >&2
	@touch $@

$(VENV)/bench.stamp: $(VENV)/test.stamp requirements/bench.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/bench.txt \
	  || echo 'other systems and their clients cannot be installed here: they are reported as not run' >&2
	@touch $@

$(VENV)/release.stamp: $(VENV)/test.stamp requirements/release.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/release.txt
	@touch $@

$(VENV)/compile.stamp: $(VENV)/made-for requirements/compile.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/compile.txt
	@touch $@
