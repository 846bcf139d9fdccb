# Every target works in a fresh clone: it makes .venv first if it is missing or out of date.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: help train dashboard test slow faults fuzz torture golden soak memory bench bench-control bench-swimmer bench-halfcheetah scaling bench-processes bench-fire \
  results planted ablations oracle study reference docs lint format clean
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

faults: $(INSTALLED)  ## plant ninety faults of one line and see that the tests catch each; twenty minutes
	$(VENV)/bin/python -m tests.mutation

fuzz: $(INSTALLED)  ## ten thousand bad price files, every key of the configuration set to anything; twenty minutes
	$(VENV)/bin/python -m pytest tests/fuzz --hypothesis-profile fuzz --hypothesis-show-statistics

MEASURE = $(VENV)/bin/python -m benchmarks

soak: $(INSTALLED)  ## a thousand generations of a small run, 500 episodes of fuel breaks: memory must stay flat; a quarter of an hour
	$(MEASURE) soak soak-fire --out docs/figures

memory: $(INSTALLED)  ## measure and write the figures of docs/memory.md, after soak; a quarter of an hour
	$(MEASURE) estimate full-live --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages memory

bench-control: $(INSTALLED)  ## plain DDPG against Stable-Baselines3's on Pendulum; three quarters of an hour
	$(MEASURE) control --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages control

bench-swimmer: $(INSTALLED)  ## three seeds of configs/control_swimmer.yaml to their end; half an hour
	$(MEASURE) swimmer --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages control

bench-halfcheetah: $(INSTALLED)  ## one seed of configs/control_halfcheetah.yaml to its end; two hours
	$(MEASURE) halfcheetah --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages control

bench: $(INSTALLED)  ## speed and size against references
	$(MEASURE) bench

scaling: $(INSTALLED)  ## time and memory as one size varies at a time, measured and drawn; a quarter of an hour
	$(MEASURE) scaling --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages scaling

bench-fire: $(INSTALLED)  ## five seeds of configs/dqn_fuel_breaks.yaml; a quarter of an hour
	$(MEASURE) fire --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages fire

bench-processes: $(INSTALLED)  ## full scale in 1, 2 and 4 processes, and what a cluster would do; a quarter of an hour, two idle cores
	$(MEASURE) processes --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages processes

results: $(INSTALLED)  ## measure and write the figures of docs/results.md; a quarter of an hour, on an idle machine
	$(MEASURE) bench limit full-run-1 full-run-2 --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages results

planted: $(INSTALLED)  ## ERL, gradients alone and evolution alone on markets with a hidden drift; five hours
	$(MEASURE) planted planted-long planted-fresh planted-short --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages learning

ablations: $(INSTALLED)  ## what decides whether learning works, on one such market; half an hour
	$(MEASURE) ablations --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages learning

oracle: $(INSTALLED)  ## whether agents use a feature that shows tomorrow's return; a quarter of an hour
	$(MEASURE) oracle --out docs/figures
	$(VENV)/bin/python -m benchmarks.pages learning

study: $(INSTALLED)  ## champions on real prices, walking forward, against buy-and-hold, momentum and random entries; an hour
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
