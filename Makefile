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

.PHONY: reproduce report docs verify test test-fast test-processors lint stress clean

reproduce: $(VENV)/.ready
	$(BIN)/python scripts/reproduce.py cem/table3 scale=$(SCALE)

# The site of all results; open site/index.html. It needs no network.
SITE ?= site
report: $(VENV)/.ready
	$(BIN)/python scripts/report.py to=$(SITE)

# The pages of docs/ as a site; open site-docs/index.html. The variable silences an advertisement.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# One cell of each kind, of experiments that need no prepared data but tiny Shakespeare.
VERIFIED := cem/table3 cem/table1 nrgpt/fig3 nrgpt/fig4 nrgpt/flops nrgpt/table7 cet/fig2 ebt/tableD1 ngpt/table3

verify: $(VENV)/.ready
	$(BIN)/python scripts/reproduce.py --verify $(VERIFIED)

test: $(VENV)/.ready
	$(PYTEST)

test-fast: $(VENV)/.ready
	$(PYTEST) --fast

test-processors: $(VENV)/.ready
	$(OLD) $(PYTEST) $(NUMERICS)
	$(AVX2) $(PYTEST) $(NUMERICS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/typecheck.py

stress: $(VENV)/.ready
	$(PYTEST) -m stress

# An environment without .ready is half built: it goes, and the next one is built from nothing.
$(VENV)/.ready: constraints.txt pyproject.toml setup.py
	[ -e $@ ] || rm -rf $(VENV)
	rm -f $@
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
