# Every target works from a fresh checkout: its dependencies are installed into .venv first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=
# More processes than cores: some tests wait. A file stays in one process, which shares its fixtures.
PARALLEL := -n $(shell echo $$(( 2 * $$(nproc) < 8 ? 2 * $$(nproc) : 8 ))) --max-worker-restart 0 \
	--dist loadfile --no-loadscope-reorder
# Without compiled modules, every process of a test run would compile all of them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run test test-under-load test-slow coverage mutants lint format bench docs proto sync lock clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with the server, the stock clients and the test tools

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup .venv
	@touch $(STAMP)

run: $(STAMP) ## Start the server with embedded defaults (ARGS="--port 4300" passes flags)
	@$(BIN)/swanlake serve $(ARGS)

test: $(STAMP) lint ## Lint, type-check and run the tests
	$(BIN)/pytest $(PARALLEL) --durations 20 $(ARGS)

test-under-load: $(STAMP) ## Run the tests next to four busy loops
	scripts/under-load 4 $(BIN)/pytest $(PARALLEL) $(ARGS)

coverage: $(STAMP) ## Run the tests and show which lines of src/ no test runs
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PARALLEL) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

test-slow: $(STAMP) ## Run the slow tests
	$(BIN)/pytest -m slow --timeout 3600 $(ARGS)

mutants: $(STAMP) ## Find changes of the pure modules that no unit test notices (15 minutes)
	$(BIN)/python scripts/mutants.py $(ARGS)

lint: $(STAMP) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run the benchmarks and print their ratios
	@for b in benchmarks/[a-z]*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

docs: $(STAMP) ## Regenerate docs/configuration.md
	$(BIN)/python -m swanlake config docs > docs/configuration.md

proto: $(STAMP) ## Regenerate the Flight SQL messages from the .proto file
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --plugin=../$(BIN)/protoc-gen-mypy \
		--python_out=. --mypy_out=. swanlake/protocol/flight_sql.proto

sync: $(STAMP) ## Regenerate client/sync from client/aio
	$(BIN)/python scripts/generate_sync_client.py

lock: $(STAMP) ## Pin the installed versions in constraints.txt
	$(BIN)/pip freeze --exclude-editable --exclude swanlake | grep -vE '^-e |^#' > constraints.txt

clean: ## Remove .venv and caches (never swanlake-home)
	rm -rf .venv .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
