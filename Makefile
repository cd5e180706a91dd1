# All names are relative, so that the path of the checkout may hold blanks and whatever else the shell or make would read.
ifeq ($(filter Makefile ./Makefile,$(lastword $(MAKEFILE_LIST))),)
$(error make -f would build and remove in the folder that you are in; use make -C CHECKOUT)
endif

PYTHON ?= python3
SCALE ?= cpu
RUN := .venv/bin/python
READY := .venv/.ready
DEV := .venv/.dev
# A git worktree, whose .git is a file, runs in the environment of the main checkout unless it has its own.
ifneq ($(wildcard .git),)
ifeq ($(wildcard .git/.),)
export MAIN_CHECKOUT := $(shell "$(PYTHON)" scripts/environment.py 2>/dev/null)
ifneq ($(MAIN_CHECKOUT),)
RUN := "$(PYTHON)" scripts/environment.py
READY :=
DEV := dev-of-main-checkout
endif
endif
endif
# Processes that run tests at once: one more than there are cores, since some tests wait. Each takes about 1 GB of memory.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$cores -gt 8 ] && cores=8; echo $$((cores + 1)))
FAST := -m "not slow and not stress"
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal
# What other processors compute with: vectors of 128 bits and products from before AVX, then AVX2.
# Each has a cache of compiled code of its own: torch.compile's keys do not know ATEN_CPU_CAPABILITY, and code with vectors
# of 512 bits does not build for a processor without them.
OLD := TORCHINDUCTOR_CACHE_DIR="$$(pwd)/.inductor/default" ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41
AVX2 := TORCHINDUCTOR_CACHE_DIR="$$(pwd)/.inductor/avx2" ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
NUMERICS := $(FAST) tests/models tests/kernels tests/training

.PHONY: reproduce environment report docs verify test test-slow test-processors lint lock stress clean dev-of-main-checkout

STARTED := $(shell date +%s)
# Four of the ten seeds of scale cpu: 4 to 10 minutes on two cores.
FOUR := seeds=0,1,2,3
reproduce: $(READY)
	$(RUN) scripts/reproduce.py cem/table3 scale="$(SCALE)" $(if $(filter cpu,$(SCALE)),$(FOUR))
	@echo "make reproduce took $$(( $$(date +%s) - $(STARTED) )) seconds"

environment: .venv/.ready

# The site of all results; open site/index.html. It needs no network.
SITE ?= site
report: $(READY)
	$(RUN) scripts/report.py to="$(SITE)"

# The pages of docs/ as a site; open site-docs/index.html. The variable silences an advertisement.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build -q

# One cell of each kind, of experiments that need no prepared data but tiny Shakespeare.
VERIFIED := cem/table3 cem/table1 nrgpt/fig3 nrgpt/fig4 nrgpt/flops nrgpt/table7 cet/fig2 ebt/tableD1 ngpt/table3

verify: $(READY)
	$(RUN) scripts/reproduce.py --verify $(VERIFIED)

test: $(DEV)
	$(PYTEST) $(FAST)

test-slow: $(DEV)
	$(PYTEST) -m slow

test-processors: $(DEV)
	$(OLD) $(PYTEST) $(NUMERICS)
	$(AVX2) $(PYTEST) $(NUMERICS)

lint: $(DEV)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) scripts/typecheck.py

# uv.lock has the hash of every file; constraints.txt has its versions, for pip. Needs uv.
lock:
	uv lock
	echo '# Made from uv.lock by `make lock`; without local tags, so a machine with CUDA takes the CUDA build of torch.' > constraints.txt
	uv export --frozen --all-extras --no-hashes --no-emit-project --no-annotate --no-header -q | sed 's/ ;.*//' >> constraints.txt

stress: $(DEV)
	$(PYTEST) -m stress

# Built beside, and moved when whole: an installation that fails leaves what was there.  Commands and activate name the
# folder that they lie in, so their text is changed for the move.  Only what is imported is ever compiled: 0.4 GB less.
RIGHT_PYTHON := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
OTHER := give one, for example: make $(or $(MAKECMDGOALS),reproduce) PYTHON=python3.12
.venv/.ready: constraints.txt pyproject.toml setup.py
	@case "$$(pwd)" in *:*) echo "error: $$(pwd): no environment can be built in a path with a colon; move the checkout" >&2; exit 1; esac
	@command -v "$(PYTHON)" >/dev/null || { echo "error: there is no $(PYTHON) here; Python 3.11 or 3.12 is needed: $(OTHER)" >&2; exit 1; }
	@"$(PYTHON)" -c '$(RIGHT_PYTHON)' || { echo "error: $(PYTHON) is $$("$(PYTHON)" -V 2>&1); Python 3.11 or 3.12 is needed: $(OTHER)" >&2; exit 1; }
	rm -rf .venv.part
	"$(PYTHON)" -m venv .venv.part
	.venv.part/bin/python -m pip install -q --no-compile -c constraints.txt torch
	.venv.part/bin/python -m pip install -q --no-compile -c constraints.txt -e '.[data,images,text]'
	grep -lIs '\.venv\.part' .venv.part/bin/* .venv.part/pyvenv.cfg | xargs sed -i.part 's|\.venv\.part|.venv|g'
	rm -rf .venv.part/bin/*.part .venv.part/pyvenv.cfg.part .venv
	mv .venv.part .venv
	touch $@

# What tests, linters and the pages of docs/ need beyond what runs.  All is compiled, because tests limit the time of a start.
.venv/.dev: .venv/.ready
	.venv/bin/python -m pip install -q -c constraints.txt -e '.[dev]'
	.venv/bin/python -m compileall -q -j 0 .venv/lib > /dev/null || true  # some packages bring files of other Pythons
	touch $@

dev-of-main-checkout:
	@[ -e "$$MAIN_CHECKOUT/.venv/.dev" ] || { echo "error: $$MAIN_CHECKOUT/.venv lacks what tests need: make -C '$$MAIN_CHECKOUT' .venv/.dev" >&2; exit 1; }

# Nothing is removed in a folder that is no checkout, whose Makefile is a link to ours.
clean: constraints.txt pyproject.toml setup.py
	rm -rf .venv .venv.part .inductor
