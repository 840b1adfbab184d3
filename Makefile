# Every step leaves a stamp under .make/ and is skipped while nothing that it depends on has changed.
#
#   make run       set up .venv and start the broker
#   make install   set up .venv only; .venv/bin/penstock is the broker and its command line
#   make spark     set up .venv with Spark, Delta and Iceberg for pipelines, and Java if it is missing
#   make demo      a broker, clients that write to it and a Spark pipeline that reads, live, for a minute or two
#   make test      set up everything the tests need, then checks and tests
#   make check     formatting, lint, types, and the rules of who may import whom
#   make bench     measure against Apache Kafka, Redis and NATS, and write the results page
#   make lock      pin the newest versions that fit pyproject.toml into requirements.lock
#   make clean     remove what the above made, except the data of the broker
#
# PENSTOCK_PURE=1 builds and runs without compiled modules. PYTHON=... chooses the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

STAMPS := .make
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LEAVES := $(addprefix src/penstock/model/,record.py batch.py partitioner.py outgoing.py column_reader.py column_writer.py) $(addprefix src/penstock/wire/kafka/,plan.py reader.py writer.py)
PURE := $(if $(filter-out 0,$(PENSTOCK_PURE)),pure,compiled)
# Where compiled and pure code could differ; real servers are covered once, compiled.
PURE_TESTS := $(wildcard tests/model tests/wire tests/laws tests/log tests/doors)
TEST_WORKERS ?= 2
FETCH_JARS := tests/clients/java/fetch-jars.sh tests/pipeline/connector/fetch-jars.sh

.PHONY: run install spark demo test check bench lock clean
.DEFAULT_GOAL := install

run: install
	exec $(BIN)/penstock serve

install: $(STAMPS)/$(PURE)

spark: $(STAMPS)/java $(STAMPS)/spark $(STAMPS)/$(PURE)

demo: spark
	$(BIN)/python examples/demo.py $(if $(DEMO_SECONDS),--seconds $(DEMO_SECONDS))

test: $(STAMPS)/system $(STAMPS)/dev $(STAMPS)/$(PURE) $(STAMPS)/jars $(STAMPS)/spark-classes.jsa check
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadgroup
	PENSTOCK_PURE=1 $(BIN)/pytest -n $(TEST_WORKERS) $(PURE_TESTS)

check: $(STAMPS)/dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMPS)/system $(STAMPS)/bench-system $(STAMPS)/dev $(STAMPS)/$(PURE)
	$(BIN)/python -m bench

lock:
	rm -rf $(STAMPS)/lock && mkdir -p $(STAMPS)
	@$(find-python); "$$python" -m venv $(STAMPS)/lock
	PENSTOCK_PURE=1 $(STAMPS)/lock/bin/python -m pip install --quiet --upgrade pip setuptools '.[dev]'
	{ echo "# Made by 'make lock': the versions that install, tests and builds use."; \
	  $(STAMPS)/lock/bin/python -m pip freeze --all | grep -iv '^\(penstock\|pip\|wheel\)[ =]'; } > requirements.lock
	rm -rf $(STAMPS)/lock build

clean:
	rm -rf $(STAMPS) $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src -name '*.so' -delete
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# -- steps --------------------------------------------------------------------------------------------------

# Sets $$python to the newest interpreter that will do.
define find-python
python=; \
for name in $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
done; \
[ -n "$$python" ] || { echo "penstock needs Python 3.11 or newer; none was found"; exit 1; }
endef

# $(call apt-install,what a person calls it,words that print the packages once apt knows them)
define apt-install
if [ "$$(id -u)" = 0 ]; then as_root=; else as_root="sudo -n"; fi; \
if ! command -v apt-get >/dev/null || ! $$as_root true 2>/dev/null; then \
	echo "missing on this machine; install it and run make again: $(1)"; exit 1; \
fi; \
$$as_root apt-get update -qq; \
$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2)
endef

# The JDK's package is named by its version, and a release of Debian or Ubuntu has some versions only.
define jdk-package
$$(apt-cache show openjdk-17-jdk-headless >/dev/null 2>&1 && echo openjdk-17-jdk-headless || echo default-jdk-headless)
endef

$(STAMPS)/venv:
	@mkdir -p $(STAMPS)
	@$(find-python); \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
		package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
		$(call apt-install,$$package,$$package); \
	fi; \
	if [ ! -x $(BIN)/python ]; then echo "$$python -m venv $(VENV)"; "$$python" -m venv $(VENV); fi
	@touch $@

# The build's own tools come from the lock too, so nothing is fetched behind pip's back.
$(STAMPS)/deps: $(STAMPS)/venv requirements.lock pyproject.toml setup.py
	$(PIP) install --quiet -c requirements.lock setuptools 'mypy[mypyc]'
	PENSTOCK_PURE=1 $(PIP) install --quiet -c requirements.lock --no-build-isolation -e .
	@touch $@

$(STAMPS)/spark: $(STAMPS)/deps
	PENSTOCK_PURE=1 $(PIP) install --quiet -c requirements.lock --no-build-isolation -e '.[spark,delta,iceberg]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/deps
	PENSTOCK_PURE=1 $(PIP) install --quiet -c requirements.lock --no-build-isolation -e '.[dev]'
	@touch $@

# setup.py falls back to the plain sources, and says so, where there is no compiler.
$(STAMPS)/compiled: $(STAMPS)/deps $(LEAVES) setup.py pyproject.toml
	$(BIN)/python setup.py --quiet build_ext --inplace
	@rm -f $(STAMPS)/pure && touch $@

$(STAMPS)/pure: $(STAMPS)/deps
	find src -name '*.so' -delete
	@rm -f $(STAMPS)/compiled && touch $@

# Spark runs on any Java from 17 on; it needs no compiler.
$(STAMPS)/java: $(STAMPS)/venv
	@java_version=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' || true); \
	if [ "$${java_version:-0}" -lt 17 ]; then \
		$(call apt-install,Java 17 or newer,$(jdk-package)); \
	fi
	@touch $@

# Java 17 or newer and Maven for the Java client, kcat, curl and nc for
# themselves, a compiler and Python's headers for the leaves.
$(STAMPS)/system: $(STAMPS)/venv
	@java_version=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' || true); \
	if [ "$${java_version:-0}" -lt 17 ] || ! command -v javac >/dev/null; then \
		$(call apt-install,a JDK of version 17 or newer,$(jdk-package)); \
	fi
	@command -v mvn >/dev/null || { $(call apt-install,maven,maven); }
	@command -v kcat >/dev/null || { $(call apt-install,kcat,kcat); }
	@command -v curl >/dev/null || { $(call apt-install,curl,curl); }
	@nc -h 2>&1 | grep -q OpenBSD || { $(call apt-install,netcat-openbsd,netcat-openbsd); }
	@header=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")'); \
	if ! command -v gcc >/dev/null || [ ! -e "$$header" ]; then \
		package=$$($(BIN)/python -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])'); \
		$(call apt-install,gcc and $$package,gcc libc6-dev $$package); \
		rm -f $(STAMPS)/compiled; \
	fi
	@touch $@

# The servers that queues are measured against. Their packages start them as services; the bench starts its own.
$(STAMPS)/bench-system: $(STAMPS)/venv
	@for server in redis-server nats-server; do \
		if ! command -v $$server >/dev/null; then \
			$(call apt-install,$$server,$$server); \
			$$as_root systemctl disable --quiet --now $$server 2>/dev/null || true; \
		fi; \
	done
	@touch $@

$(STAMPS)/jars: $(STAMPS)/system $(FETCH_JARS) $(wildcard $(addsuffix pom.xml,$(dir $(FETCH_JARS))))
	@echo "fetching the jars of Kafka's Java client and of Spark's Kafka connector"
	@for fetch in $(FETCH_JARS); do sh $$fetch; done
	@touch $@

# Java loads Spark's classes from it in half the time.
$(STAMPS)/spark-classes.jsa: $(STAMPS)/system $(STAMPS)/dev tests/pipeline/archive_classes.py
	@echo "archiving Spark's classes"; $(BIN)/python tests/pipeline/archive_classes.py $@ >/dev/null 2>&1 || touch $@
