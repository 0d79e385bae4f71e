# Everything a newcomer types. Each target makes .venv ready by itself; see scripts/setup.sh.
#
#   make demo ARGS="--keep"       arguments for the command behind a target
#   make PYTHON=/path/to/python   the interpreter that .venv is made of

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-again lint bench bench-kafka docs site package matrix lock sim sim-bugs \
	chaos failover steady setup clean
export PYTHON

ARGS ?=
HOURS ?= 1
MINUTES ?= 10
KILLS ?= 30
SEED ?=
RUN := scripts/with-env.sh
RUN_NO_JAVA := scripts/with-env.sh --no-java

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo:  ## Real flights through client, broker, disk, Spark and back (needs Java 17 or newer)
	@scripts/setup.sh --java demo
	@$(RUN) quiverlog demo $(ARGS)

test:  ## The tests before a commit: unit, model, simulation, broker processes, real Spark
	@scripts/setup.sh --java
	@$(RUN) scripts/test.sh $(ARGS)

test-long:  ## The other tests: more of each kind
	@scripts/setup.sh --java
	@$(RUN) scripts/test.sh --long $(ARGS)

test-again:  ## The tests that failed last, one by one: those that pass are flaky
	@$(RUN) scripts/test_again.sh

lint:  ## Style, types, import floors, tidiness (no Java)
	@scripts/setup.sh
	@$(RUN_NO_JAVA) scripts/lint.sh

bench:  ## Every budget against its bare baseline; writes benchmarks/results/latest.json
	@scripts/setup.sh --java
	@$(RUN) python -m benchmarks $(ARGS)
	@$(RUN_NO_JAVA) python scripts/build_docs.py

bench-kafka:  ## Beside Apache Kafka, 20 minutes; ARGS="read write", --quick, --help; writes benchmarks/results/kafka.json
	@scripts/setup.sh --java
	@$(RUN) python -m benchmarks.kafka $(ARGS); found=$$?; $(RUN_NO_JAVA) python scripts/build_docs.py; exit $$found

docs:  ## Regenerate the generated pages and check every link
	@scripts/setup.sh
	@$(RUN_NO_JAVA) python scripts/build_docs.py $(ARGS)

site:  ## The guides as a web site with search and an API reference, in site/
	@scripts/setup.sh docs
	@$(RUN_NO_JAVA) scripts/site.sh $(ARGS)

package:  ## Wheel and sdist in dist/, tried: tests from the sdist, a broker from the wheel
	@scripts/setup.sh
	@$(RUN_NO_JAVA) scripts/package.sh $(ARGS)

matrix:  ## The tests without Spark on every Python from 3.11 to 3.14 that this machine has
	@scripts/matrix.sh $(ARGS)

lock:  ## Work constraints.txt and the image's hashes out again (needs uv); ARGS=--upgrade takes the newest of all
	@scripts/lock.sh $(ARGS)

sim:  ## Simulated clusters with fresh seeds: make sim HOURS=8 (simulated hours)
	@scripts/setup.sh
	@$(RUN_NO_JAVA) python -m tests.sim.cluster --hours $(HOURS) $(ARGS)

sim-bugs:  ## The table of planted bugs and the checks that catch them
	@scripts/setup.sh
	@$(RUN_NO_JAVA) python -m tests.sim.raft --bugs --duration-ms 4000 $(ARGS)
	@$(RUN_NO_JAVA) python -m tests.sim.cluster --bugs $(ARGS)
	@$(RUN_NO_JAVA) python -m tests.sim --bugs $(ARGS)

chaos:  ## Real brokers under faults from a seed: make chaos MINUTES=10 SEED=7 (ARGS=--sink: Spark's sink, --rotate: certificates)
	@scripts/setup.sh $(if $(findstring --sink,$(ARGS)),--java)
	@$(if $(findstring --sink,$(ARGS)),$(RUN),$(RUN_NO_JAVA)) python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

failover:  ## How long writes stand still when their leader is killed: make failover KILLS=30
	@scripts/setup.sh
	@$(RUN_NO_JAVA) python -m tests.chaos --kills $(KILLS) $(ARGS)

steady:  ## Full load for so long without a false alarm: make steady MINUTES=10
	@scripts/setup.sh
	@$(RUN_NO_JAVA) python -m tests.chaos --steady --minutes $(MINUTES) $(ARGS)

setup:  ## Make .venv: the command quiverlog, PySpark, and what tests and checks need
	@scripts/setup.sh

clean:  ## Remove .venv and everything that tools leave behind
	rm -rf .venv .matrix .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf dist build site spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
