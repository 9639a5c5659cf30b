# Everything starts from a bare clone: `make demo`, `make test`. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
JOBS ?= 3
QUICK = not root and not service and not browser and not slow and not bench and not gpu
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export DO_NOT_TRACK = true
export MLFLOW_DISABLE_TELEMETRY = true
unexport PYTHONDONTWRITEBYTECODE  # each of a thousand processes would compile all that it imports

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

setup: $(VENV)/.installed  ## create the virtual environment with everything

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip uninstall --quiet --yes atelier 2>/dev/null || true  # its name before
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup  ## train a teacher, its student and a control, in four minutes on 2 cores
	$(BIN)/atelier distill experiment=demo

titan: setup  ## run ERNIE 3.0 Titan at laptop size, in eleven minutes on 2 cores
	$(BIN)/atelier titan experiment=laptop

test: setup  ## run the tests that need no root and no service, without slow ones (11 minutes on 2 quiet cores)
	ATELIER_BUDGET=1 tests/in_memory.sh $(BIN)/python -m pytest tests -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "$(QUICK)"

check: setup  ## check format, lint, types, import rule (2 minutes)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=typings $(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/engine/config tests/infra/store/test_store.py tests/test_structure.py -x

verify: setup  ## run the tests that make test leaves out: root, services, browser, slow ones (2 hours on 2 cores)
	bash tests/verify.sh

up: setup  ## start Prefect, MLflow and workers on this machine, with a form for every flow
	$(BIN)/atelier up

secrets:  ## write .env with random secrets for docker-compose (docs/operate/cluster.md)
	infra/docker/secrets

newest: setup  ## run the quick tests with the newest versions that pyproject.toml allows (needs a package index)
	bash tests/newest.sh

mutants: setup  ## break the code on purpose, one change at a time; its test must fail
	$(BIN)/python tests/mutants/run.py

bench: setup  ## run timings and long comparisons; results go to benchmarks/results
	for script in anchors mt_nlg goodput planner peers rows overhead orchestration checkpoint model_memory seeds online_distillation lesson_cost scarce_data objectives ernie_kind chain progressive uneven_pipeline sweeps submission ring tiers merged elastic embedding adopt serve moefy wind_tunnel inheritance prompts scale memories full_size claims; do $(BIN)/python benchmarks/$$script.py || exit 1; done
	$(BIN)/python benchmarks/seeds.py titan

soak: setup  ## run make test in random order in one process (SEED=number), then hours of kills, drawn layouts, foreign input
	ATELIER_SHUFFLE=$${SEED:-$$(date +%s)} $(BIN)/python -m pytest tests -m "$(QUICK)"
	ATELIER_STORM=60/30 $(BIN)/python -m pytest tests/faults/test_storm.py -rP
	$(BIN)/python benchmarks/products.py 60
	$(BIN)/python benchmarks/products.py 60 --inference
	$(BIN)/python benchmarks/foreign.py --minutes 60 --seed $${SEED:-$$(date +%s)}

.PHONY: help setup demo titan up secrets test check verify newest mutants bench soak
.DEFAULT_GOAL := help
