# Two commands on a fresh machine: `make quickstart` and `make test`. Both set up everything they need.
PYTHON ?= python3
BIN := .venv/bin
RUN := runs/quickstart

.PHONY: quickstart test lint format docs clean

quickstart: .venv/quickstart
	rm -rf $(RUN)
	$(BIN)/bertkit train quickstart --output-dir $(RUN)
	@echo
	$(BIN)/bertkit predict $(RUN) "Not bad at all, I could get used to this." "Oh great, another update that breaks everything." "Slow service, but the food made up for the wait."

test: .venv/dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/docs
	$(BIN)/sphinx-build --builder html --conf-dir docs --fail-on-warning --nitpicky --keep-going --quiet . docs/_build
	@echo docs/_build/index.html

.venv/quickstart: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[quickstart]"
	touch $@

.venv/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ .venv/quickstart

.venv/docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf .venv runs dist docs/_build
