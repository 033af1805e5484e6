# Two commands on a fresh machine: `make quickstart` and `make test`. Both set up everything they need.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
RUN := runs/quickstart
PYTEST := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

.PHONY: quickstart test test-all test-browser margins lint format docs clean test-avx2 test-sse test-newest test-oldest test-colab wheel-check release-check downstream image

quickstart: $(VENV)/quickstart
	rm -rf $(RUN)
	$(BIN)/bertkit train quickstart --output-dir $(RUN)
	@echo
	$(BIN)/bertkit predict $(RUN) "Not bad at all, I could get used to this." "Oh great, another update that breaks everything." "Slow service, but the food made up for the wait."

test: $(VENV)/dev
	$(PYTEST)

test-all: $(VENV)/dev
	$(PYTEST) --all

# The pages in Chromium, Debian's or Chrome, with the rules of axe-core from npm; skipped with a reason where one is absent.
AXE := axe-core@4.14.1
test-browser: $(VENV)/dev
	[ -e node_modules/axe-core ] || npm install --prefix . --no-save --no-package-lock $(AXE) || true
	$(PYTEST) --all -n 0 tests/test_browser.py

# Fails where a comparison uses more than a third of its tolerance, as test-avx2 and test-sse do.
margins: $(VENV)/dev
	$(PYTEST) --margins

# What other tools read of ours: transformers' pipelines, sentence-transformers, InferenceClient, openai, skops.
DOWNSTREAM := serve_clients features few_shot sentence_similarity text_ranking predict pretraining text2text_generation
downstream: $(VENV)/dev
	$(PYTEST) $(DOWNSTREAM:%=tests/test_%.py) -k "clients or transformers or pipeline or layout or skops"

image:
	docker build --file deploy/Dockerfile --tag bertkit-serve:local .
	docker image inspect --format '{{.Size}} bytes' bertkit-serve:local

# In benchmarks/, only whether what they call exists and takes these arguments.
UNTYPED := arg-type assignment call-overload dict-item import-not-found import-untyped index misc no-any-return no-untyped-call operator return-value type-arg union-attr unreachable
lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	MYPYPATH=benchmarks:tests $(BIN)/mypy --no-warn-unused-ignores $(addprefix --disable-error-code=,$(UNTYPED)) benchmarks

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/docs
	$(BIN)/sphinx-build --builder html --conf-dir docs --fail-on-warning --nitpicky --keep-going --quiet . docs/_build
	@echo docs/_build/index.html

# Other machines: the whole suite as on an older processor, with other versions, from the wheel. Another Python:
# make test PYTHON=python3.12 VENV=.venv-3.12

test-avx2: $(VENV)/dev
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(PYTEST) --precision fp32 --margins

test-sse: $(VENV)/dev
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 $(PYTEST) --precision fp32 --margins

test-newest:
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=/dev/null

test-colab:
	$(MAKE) test PYTHON=python3.13 VENV=.venv-colab CONSTRAINTS=constraints-colab.txt

test-oldest:
	$(MAKE) test PYTHON=python3.11 VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

wheel-check: $(VENV)/dev
	rm -rf dist .venv-wheel
	$(BIN)/python -m hatchling build --target wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[quickstart]"
	root=$$PWD && room=$$(mktemp -d) && cd $$room && trap "rm -rf $$room" EXIT && \
	$$root/.venv-wheel/bin/bertkit train quickstart --output-dir run training.num_train_epochs=1 && \
	$$root/.venv-wheel/bin/bertkit predict run "Not bad at all." && $$root/.venv-wheel/bin/bertkit report run && \
	for name in $$($$root/.venv-wheel/bin/bertkit recipes | sed '1,2d' | cut -d' ' -f1); do $$root/.venv-wheel/bin/bertkit show $$name > shown || exit 1; done

release-check: $(VENV)/dev
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist/first
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist
	for file in dist/first/*; do cmp $$file dist/$$(basename $$file) || exit 1; done; rm -r dist/first
	$(BIN)/twine check --strict dist/*
	$(PYTEST) -n 0 tests/test_readme.py

$(VENV)/dev: WHAT := -e ".[torch,quickstart,excel,ray,retrieval,onnx,sweep,serve,translation]" --group dev
$(VENV)/docs: WHAT := -e ".[torch]" --group docs
$(VENV)/quickstart: WHAT := -e ".[quickstart]"
$(VENV)/%: pyproject.toml $(wildcard constraints*.txt)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"  # which knows groups
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) $(WHAT)
	touch $@
	[ $* != dev ] || touch $(VENV)/quickstart  # which dev contains

clean:
	rm -rf .venv .venv-* runs dist docs/_build
