# Every command of the project. What takes more than three lines lives in scripts/.

PYTHON  ?= python3
BIN     := .venv/bin
# Tests run in this many processes.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup run check format test bench soak fresh lock clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with everything a developer needs (does nothing when it is up to date)
	@$(PYTHON) scripts/setup.py dev

run: ## Set up what the run needs, then talk to an agent on a real local model, without any key
	@$(PYTHON) scripts/setup.py run
	@# Left open (3) and left by Ctrl-C (130) are no errors; the trap has the shell wait for the chat after a Ctrl-C.
	@trap : INT; $(BIN)/ownloop chat examples/home.py || case $$? in 3|130) ;; *) exit 1 ;; esac

check: setup ## Format, lint, types, layers and the fast tests (two minutes at most)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q -m "not slow" -n $(WORKERS)

format: setup ## Format the code and repair what the linter can repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: check ## Set up and check, then the slow tests: real model, terminals, crashes, installs
	@$(BIN)/python -m pytest -q -m slow -n $(WORKERS)

bench: setup ## Compare the cost with raw aiohttp and other runtimes (some minutes; installs them at first)
	@$(BIN)/python -m bench

soak: setup ## Run for long: random walks of the machine, every kill point, and sessions under load
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -q --timeout 0 tests/core/test_run_properties.py tests/backends/wires/test_captures.py
	@$(BIN)/python -m ownloop.testing.crash tests.testing.crash_scenarios
	@$(BIN)/python -m bench.soak

fresh: ## Prove `make run` and `make test` on a bare Debian made for it (root only)
	@scripts/fresh.sh

lock: setup ## Make the hashed requirement files anew
	@scripts/lock.sh

clean: ## Remove the environment and the caches
	@rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache .hypothesis
