# Every target works in a fresh clone: it makes .venv first if it is missing or out of date.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: help train dashboard test slow faults fuzz torture golden soak memory bench bench-control bench-swimmer bench-mujoco bench-gpu scaling bench-processes bench-fire \
  results planted ablations power study reference docs lint format clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 19

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
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

slow: $(INSTALLED)  ## run the tests that take minutes, among them every call to the disk that can fail; hours
	$(VENV)/bin/python -m pytest -m slow

torture: $(INSTALLED)  ## kill runs fifty times at random, twenty of them with several processes, and compare with unbroken runs; ten minutes
	$(VENV)/bin/python -m pytest -m slow -s -k "thirty_kills or twenty_faults" tests/runtime/test_resume.py tests/distributed/test_processes.py

golden: $(INSTALLED)  ## check that short runs compute the same bits as at BASE=revision; eight minutes
	$(VENV)/bin/python -m tests.golden $(BASE)

faults: $(INSTALLED)  ## plant one-line faults and check that the tests catch each; an hour
	$(VENV)/bin/python -m tests.mutation

fuzz: $(INSTALLED)  ## try ten thousand bad price files, and bad values for every key of the configuration; twenty minutes
	$(VENV)/bin/python -m pytest tests/fuzz --hypothesis-profile fuzz --hypothesis-show-statistics

MEASURE = $(VENV)/bin/python -m benchmarks

soak: $(INSTALLED)  ## check that memory stays flat over 1,000 generations, and 500 episodes of fuel breaks; a quarter of an hour
	$(MEASURE) soak soak-fire --out docs/figures

memory: $(INSTALLED)  ## measure and write the figures of docs/memory.md; run soak and results first; ten minutes
	$(MEASURE) estimate memory-cost --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages memory

bench-control: $(INSTALLED)  ## compare DDPG on Pendulum and TD3 on HalfCheetah with Stable-Baselines3's; two hours, on an idle machine
	$(MEASURE) control control-td3-medium --out docs/figures
	$(MEASURE) control-td3 --threads 2 --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages control

bench-swimmer: $(INSTALLED)  ## compare ERL, with and without gradients, and a shared representation with TD3 and DDPG alone on Swimmer, five seeds; a day on two cores
	$(MEASURE) swimmer --processes 2 --rows docs/figures/rows --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages control

bench-mujoco: $(INSTALLED)  ## compare ERL and a shared representation with TD3 alone on four MuJoCo tasks, three seeds; a day on two cores
	$(MEASURE) mujoco --processes 2 --rows docs/figures/rows --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages control

bench-gpu: $(INSTALLED)  ## measure training on a GPU: one agent, populations, the full-scale run, resume; half an hour
	$(MEASURE) gpu --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages results

bench: $(INSTALLED)  ## compare speed and size with references
	$(MEASURE) bench

scaling: $(INSTALLED)  ## measure and plot time and memory, varying one size at a time; a quarter of an hour
	$(MEASURE) scaling --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages scaling

bench-fire: $(INSTALLED)  ## train five seeds of configs/dqn_fuel_breaks.yaml and changes of it, and compare placements with the optimum; four hours
	$(MEASURE) fire fire-optimum --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages fire

bench-processes: $(INSTALLED)  ## measure full scale in 1, 2 and 4 processes, and their memory; ten minutes, two idle cores
	$(MEASURE) processes process-memory --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages processes

results: $(INSTALLED)  ## measure and write the figures of docs/results.md; twenty minutes, on an idle machine
	$(MEASURE) bench limit full-run-1 full-run-2 full-own full-256 full-1000 --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages results

planted: $(INSTALLED)  ## compare ERL, its halves and a shared representation on markets with a hidden drift; five hours
	$(MEASURE) planted halves trunks --out docs/figures
	$(MEASURE) fresh --rows docs/figures/rows --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages learning

ablations: $(INSTALLED)  ## measure what learning depends on, on one such market; half an hour
	$(MEASURE) ablations --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages learning

power: $(INSTALLED)  ## measure the smallest edge that agents, ridge regression and a Kalman filter find; three hours
	$(MEASURE) weak power-rules --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages learning

study: $(INSTALLED)  ## compare champions on real prices, walking forward, with 1/N, minimum variance, momentum, ridge regression, boosted trees and random weights; two hours
	$(MEASURE) study --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages study

reference: $(INSTALLED)  ## write the table of modules in docs/architecture.md
	$(VENV)/bin/python -m eigen2.cli.reference docs

docs: $(INSTALLED)  ## build the documentation as a website in site/; a broken link fails
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(VENV)/bin/python -m mkdocs build --strict

lint: $(INSTALLED)  ## ruff and mypy
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy --num-workers 2

format: $(INSTALLED)  ## let ruff format the code
	$(VENV)/bin/python -m ruff format .
	$(VENV)/bin/python -m ruff check --fix .

clean:  ## remove .venv and caches, not the runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
