PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCALE ?= cpu
# Processes that run tests at once: one more than there are cores, since some tests wait. Each takes about 1 GB of memory.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$cores -gt 8 ] && cores=8; echo $$((cores + 1)))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
# What other processors compute with: vectors of 128 bits and products from before AVX, then AVX2.
# Each has a cache of compiled code of its own: torch.compile's keys do not know ATEN_CPU_CAPABILITY, and code with vectors
# of 512 bits does not build for a processor without them.
OLD := TORCHINDUCTOR_CACHE_DIR=$(abspath $(VENV))/inductor/default ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41
AVX2 := TORCHINDUCTOR_CACHE_DIR=$(abspath $(VENV))/inductor/avx2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
NUMERICS := --fast tests/models tests/kernels tests/training

.PHONY: reproduce environment report docs verify test test-fast test-processors lint stress clean

STARTED := $(shell date +%s)
reproduce: $(VENV)/.ready
	$(BIN)/python scripts/reproduce.py cem/table3 scale=$(SCALE)
	@echo "make reproduce took $$(( $$(date +%s) - $(STARTED) )) seconds"

environment: $(VENV)/.ready

# The site of all results; open site/index.html. It needs no network.
SITE ?= site
report: $(VENV)/.ready
	$(BIN)/python scripts/report.py to=$(SITE)

# The pages of docs/ as a site; open site-docs/index.html. The variable silences an advertisement.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# One cell of each kind, of experiments that need no prepared data but tiny Shakespeare.
VERIFIED := cem/table3 cem/table1 nrgpt/fig3 nrgpt/fig4 nrgpt/flops nrgpt/table7 cet/fig2 ebt/tableD1 ngpt/table3

verify: $(VENV)/.ready
	$(BIN)/python scripts/reproduce.py --verify $(VERIFIED)

test: $(VENV)/.dev
	$(PYTEST)

test-fast: $(VENV)/.dev
	$(PYTEST) --fast

test-processors: $(VENV)/.dev
	$(OLD) $(PYTEST) $(NUMERICS)
	$(AVX2) $(PYTEST) $(NUMERICS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/typecheck.py

stress: $(VENV)/.dev
	$(PYTEST) -m stress

# Built beside, and moved when whole: an installation that fails leaves what was there.  Commands and activate name the
# folder that they lie in, so their text is changed for the move.  Only what is imported is ever compiled: 0.4 GB less.
PART := $(abspath $(VENV)).part
RIGHT_PYTHON := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
OTHER := give one, for example: make $(or $(MAKECMDGOALS),reproduce) PYTHON=python3.12
$(VENV)/.ready: constraints.txt pyproject.toml setup.py
	@command -v $(PYTHON) >/dev/null || { echo "error: there is no $(PYTHON) here; Python 3.11 or 3.12 is needed: $(OTHER)" >&2; exit 1; }
	@$(PYTHON) -c '$(RIGHT_PYTHON)' || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or 3.12 is needed: $(OTHER)" >&2; exit 1; }
	rm -rf $(PART)
	$(PYTHON) -m venv $(PART)
	$(PART)/bin/pip install -q --no-compile -c constraints.txt torch
	$(PART)/bin/pip install -q --no-compile -c constraints.txt -e '.[images]'
	grep -lIs '$(PART)' $(PART)/bin/* $(PART)/pyvenv.cfg | xargs sed -i.part 's|$(PART)|$(abspath $(VENV))|g'
	rm -rf $(PART)/bin/*.part $(PART)/pyvenv.cfg.part $(VENV)
	mv $(PART) $(VENV)
	touch $@

# What tests, linters and the pages of docs/ need beyond what runs.  All is compiled, for tests limit what a start takes.
$(VENV)/.dev: $(VENV)/.ready
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true  # some packages bring files of other Pythons
	touch $@

clean:
	rm -rf $(VENV) $(PART)
