# Every target works in a fresh clone: it makes .venv first if it is missing or out of date.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: help train dashboard test slow fuzz torture golden soak memory bench bench-control bench-swimmer bench-halfcheetah scaling bench-processes bench-fire \
  results planted ablations oracle study reference lint format clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "eigen2 needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

train: $(INSTALLED)  ## train 16 agents for 25 generations on the sample prices
	$(VENV)/bin/python -m eigen2.cli fit --config configs/erl.yaml

dashboard: $(INSTALLED)  ## show the curves of all runs in lightning_logs in a browser
	$(VENV)/bin/tensorboard --logdir lightning_logs

test: $(INSTALLED)  ## run the test suite
	$(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

slow: $(INSTALLED)  ## run the tests that take minutes
	$(VENV)/bin/python -m pytest -m slow

torture: $(INSTALLED)  ## kill runs fifty times, anywhere, one of them on several processes, and compare with whole ones; ten minutes
	$(VENV)/bin/python -m pytest -m slow -s -k "thirty_kills or twenty_faults" tests/runtime/test_resume.py tests/distributed/test_processes.py

golden: $(INSTALLED)  ## whether short runs compute the same bits as those of BASE=revision; eight minutes
	$(VENV)/bin/python -m tests.golden $(BASE)

fuzz: $(INSTALLED)  ## ten thousand bad price files, every key of the configuration set to anything; twenty minutes
	$(VENV)/bin/python -m pytest tests/fuzz --hypothesis-profile fuzz --hypothesis-show-statistics

soak: $(INSTALLED)  ## a thousand generations of a small run, 500 episodes of fuel breaks: memory must stay flat; a quarter of an hour
	$(VENV)/bin/python -m benchmarks.memory.soak --out docs/figures/soak.json
	$(VENV)/bin/python -m benchmarks.memory.soak --workload fire --out docs/figures/soak-fire.json

memory: $(INSTALLED)  ## measure and write the figures of docs/memory.md, after soak; half an hour
	$(VENV)/bin/python -m benchmarks.memory.estimate --out docs/figures/estimate.json
	$(VENV)/bin/python -m benchmarks.memory.hygiene --out docs/figures/hygiene.json
	$(VENV)/bin/python -m benchmarks.speed.bench --only overhead,profiler --json docs/figures/profiler.json
	$(VENV)/bin/python -m benchmarks.memory.full_run --threads 1 --out docs/figures/full-live.json
	$(VENV)/bin/python -m benchmarks.memory.fire_memory --out docs/figures/fire-memory.json
	$(VENV)/bin/python -m benchmarks.memory.tables

bench-control: $(INSTALLED)  ## plain DDPG against Stable-Baselines3's on Pendulum; three quarters of an hour
	$(VENV)/bin/python -m benchmarks.speed.control --out docs/figures/control.json
	$(VENV)/bin/python -m benchmarks.learning.control_tables

bench-swimmer: $(INSTALLED)  ## three seeds of configs/control_swimmer.yaml to their end; half an hour
	$(VENV)/bin/python -m benchmarks.learning.control_tasks --out docs/figures/swimmer.json
	$(VENV)/bin/python -m benchmarks.learning.control_tables

bench-halfcheetah: $(INSTALLED)  ## one seed of configs/control_halfcheetah.yaml to its end; two hours
	$(VENV)/bin/python -m benchmarks.learning.control_tasks --config configs/control_halfcheetah.yaml --goal 8000 --seeds 1 \
	  --folder lightning_logs/halfcheetah-seeds --out docs/figures/halfcheetah.json
	$(VENV)/bin/python -m benchmarks.learning.control_tables

bench: $(INSTALLED)  ## speed and size against references, in one process
	$(VENV)/bin/python -m benchmarks.speed.bench

scaling: $(INSTALLED)  ## time and memory as one size varies at a time, measured and drawn; a quarter of an hour
	$(VENV)/bin/python -m benchmarks.scale.scaling --out docs/figures/scaling.json
	$(VENV)/bin/python -m benchmarks.scale.scaling --draw docs/figures/scaling.json

bench-fire: $(INSTALLED)  ## five seeds of configs/dqn_fuel_breaks.yaml, and without what it is given; two hours
	$(VENV)/bin/python -m benchmarks.learning.fire --out docs/figures/fire.json
	$(VENV)/bin/python -m benchmarks.learning.fire --page docs/figures/fire.json

bench-processes: $(INSTALLED)  ## full scale in 1, 2 and 4 processes, and what a cluster would do; a quarter of an hour, two idle cores
	$(VENV)/bin/python -m benchmarks.scale.processes --out docs/figures/processes.json
	$(VENV)/bin/python -m benchmarks.scale.simulate_cluster docs/figures/processes.json --page docs/processes.md

results: $(INSTALLED)  ## measure and write the figures of docs/results.md; half an hour, on an idle machine
	for threads in 1 2; do \
	$(VENV)/bin/python -m benchmarks.speed.bench --threads $$threads --json docs/figures/bench-$$threads.json && \
	$(VENV)/bin/python -m benchmarks.memory.full_run --threads $$threads --out docs/figures/full-run-$$threads.json || exit 1; \
	done
	$(VENV)/bin/python -m benchmarks.speed.limit --threads 1 --compile --out docs/figures/limit-1.json
	$(VENV)/bin/python -m benchmarks.speed.limit --threads 2 --out docs/figures/limit-2.json
	$(VENV)/bin/python -m benchmarks.speed.families --threads 2 --out docs/figures/families-2.json
	$(VENV)/bin/python -m benchmarks.speed.tables

planted: $(INSTALLED)  ## ERL, gradients alone and evolution alone on markets with a hidden drift; five hours
	$(VENV)/bin/python -m benchmarks.learning.planted --variants erl "gradients alone" "evolution alone" --out docs/figures/planted.json
	$(VENV)/bin/python -m benchmarks.learning.planted --variants "evolution alone, as long" --out docs/figures/planted-long.json
	$(VENV)/bin/python -m benchmarks.learning.planted --first 5 --seeds 10 --variants erl "gradients alone" --out docs/figures/planted-fresh.json
	$(VENV)/bin/python -m benchmarks.learning.planted --first 15 --seeds 16 --generations 25 --variants erl "gradients alone" \
	  --out docs/figures/planted-short.json
	$(VENV)/bin/python -m benchmarks.learning.tables

ablations: $(INSTALLED)  ## each default against another value on one such market, some on two more; two hours
	$(VENV)/bin/python -m benchmarks.learning.planted --first 100 --seeds 1 --generations 20 --variants all --out docs/figures/ablations.json
	$(VENV)/bin/python -m benchmarks.learning.planted --first 101 --seeds 2 --generations 20 --variants promising --out docs/figures/ablations.json
	$(VENV)/bin/python -m benchmarks.learning.tables

oracle: $(INSTALLED)  ## whether agents use a feature that tells tomorrow's return; a quarter of an hour
	$(VENV)/bin/python -m benchmarks.learning.oracle --out docs/figures/oracle.json
	$(VENV)/bin/python -m benchmarks.learning.tables

study: $(INSTALLED)  ## champions on real prices, walking forward, against buy-and-hold, momentum and lots; an hour
	$(VENV)/bin/python -m benchmarks.learning.study --out docs/figures/study.json
	$(VENV)/bin/python -m benchmarks.learning.study_tables

reference: $(INSTALLED)  ## docs/configuration.md from the code
	$(VENV)/bin/python -m eigen2.cli.reference docs/configuration.md

lint: $(INSTALLED)  ## ruff and mypy
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy

format: $(INSTALLED)  ## let ruff format the code
	$(VENV)/bin/python -m ruff format .
	$(VENV)/bin/python -m ruff check --fix .

clean:  ## remove .venv and caches, not the runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
