# Everything a contributor or CI runs. `make` alone lists the targets.
#
# The package is built as a release wheel and installed into .venv like any user's copy, so that
# tests, demo and benchmarks run what would be shipped. All state is in ignored folders of this
# checkout (.venv, .cache, target, dist): `make clean` is a fresh start.

PYTHON ?= python3

VENV := .venv
PY := $(VENV)/bin/python
CACHE := .cache
DIST := dist
# What a release would consist of, and what it is tried in; `make build` keeps away from it.
RELEASE := build/release
CHECK := build/check
# Where the tests look for the npm servers (tests/support/servers.py). Pinned: a mock that changes
# its behaviour is to be met in a commit, not in somebody else's build.
SERVERS := $(CACHE)/servers
KINESIS_LOCAL_VERSION := 0.6.2
DYNALITE_VERSION := 4.0.0

DEPS_STAMP := $(VENV)/.stamp-deps
WHEEL_STAMP := $(VENV)/.stamp-wheel
DOCS_STAMP := $(VENV)/.stamp-docs
RELEASE_STAMP := $(VENV)/.stamp-release
SERVERS_STAMP := $(SERVERS)/.stamp-kinesis-local-$(KINESIS_LOCAL_VERSION)-dynalite-$(DYNALITE_VERSION)

# The folders count too: their time changes when a file leaves them.
WHEEL_SOURCES := Cargo.toml Cargo.lock pyproject.toml README.md LICENSE \
	$(shell find src python -type f \( -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.html' -o -name py.typed \)) \
	$(shell find src python -type d ! -name __pycache__)
# Folders with Python code, as far as they have any.
CODE := $(foreach folder,python tests examples benches,$(if $(shell find $(folder) -name '*.py' 2>/dev/null | head -n 1),$(folder)))

# pip's progress and PyPI's latest pip are noise in a log.
PIP := $(PY) -m pip --disable-pip-version-check --quiet

# `cargo test` and clippy link and run against the venv's own interpreter, wherever it lives.
CARGO_ENV = PYO3_PYTHON="$(CURDIR)/$(PY)" \
	LD_LIBRARY_PATH="$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR") or "")')$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"

.DEFAULT_GOAL := help
# A recipe that fails must not leave a target that looks finished.
.DELETE_ON_ERROR:

.PHONY: help
help: ## Show this list
	@if [ -t 1 ]; then bold='\033[1m'; plain='\033[0m'; fi; \
	awk -F ':.*## ' -v bold="$$bold" -v plain="$$plain" \
		'/^[a-z-]+:.*## / { printf "  %s%-11s%s %s\n", bold, $$1, plain, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: $(WHEEL_STAMP) ## Set up .venv, build the release wheel and install it there with its extras

.PHONY: demo
demo: build ## Run the example service on the in-process log; ends by itself
	$(PY) -m examples.demo

# Processes that share the tests: some of those with real servers only wait for leases to run out.
JOBS ?= 2

.PHONY: test
test: build servers ## Run the Rust tests, then the Python suite (REQUIRE_LIVE=1: a missing server fails)
	$(CARGO_ENV) cargo test --locked
	$(PY) -m pytest -n $(JOBS) --dist worksteal

.PHONY: live-stock
live-stock: build servers ## Run the live suite with every call by aiobotocore's own way
	REQUIRE_LIVE=1 LIVE_TRANSPORT=botocore $(PY) -m pytest -n $(JOBS) --dist worksteal -m live

# A number of seeds, or `seed=N` to replay one of them.
SEEDS ?= 1000

.PHONY: sim
sim: build ## Run whole fleets in virtual time, from SEEDS=n seeds (SEEDS=seed=N replays one)
	$(PY) -m tests.sim --seeds $(SEEDS)

.PHONY: lint
lint: lint-rust lint-python typing docs ## Check formatting, clippy, ruff, mypy, pyright, the stub against the compiled module, and build the site

.PHONY: lint-rust
lint-rust: $(DEPS_STAMP)
	cargo fmt --check
	$(CARGO_ENV) cargo clippy --locked --all-targets -- -D warnings -W clippy::pedantic

.PHONY: lint-python
lint-python: build
	$(PY) -m ruff check $(CODE) docs/assets
	$(PY) -m ruff format --check $(CODE) docs/assets
	$(PY) -m mypy $(CODE)
	$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml ruststream_kinesis._core

.PHONY: typing
typing: build ## Check typical user code with pyright, as mypy does in lint
	$(PY) -m pyright --project tests/typing --pythonpath $(PY)

.PHONY: format
format: $(DEPS_STAMP) ## Format Rust and Python in place, with ruff's safe fixes
	cargo fmt
	$(PY) -m ruff check --fix-only $(CODE) docs/assets
	$(PY) -m ruff format $(CODE) docs/assets

.PHONY: docs
docs: $(DOCS_STAMP) ## Build the documentation site into site/; a link that leads nowhere fails
	$(MKDOCS) build --strict --quiet
	@# Whatever is shown comes with the site: nothing is fetched from another host.
	@! grep -rlE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' site --include='*.html'

.PHONY: docs-serve
docs-serve: $(DOCS_STAMP) ## Show the documentation site while it is written
	$(MKDOCS) serve

.PHONY: wheel
wheel: $(RELEASE_STAMP) ## Build the wheel for Linux that a release has, for glibc 2.17 and later, into build/release
	rm -f $(RELEASE)/*.whl
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m maturin build --release --locked --zig \
		--compatibility manylinux2014 --out $(RELEASE) --interpreter $(PY)

.PHONY: wheel-check
wheel-check: wheel ## Look at that wheel, install it without an index into a fresh venv, and run a service there
	$(PY) -m auditwheel show $(RELEASE)/*.whl
	$(PY) -m twine check --strict $(RELEASE)/*.whl
	$(call try_wheel,$(RELEASE)/ruststream_kinesis-*.whl)

# pip gets no index, cargo no network: only what was unpacked beside the sdist.
.PHONY: sdist-check
sdist-check: $(RELEASE_STAMP) ## Build the sdist, a wheel from it offline with vendored crates, and run a service on that
	rm -rf $(RELEASE)/*.tar.gz $(CHECK)/sdist
	$(PY) -m maturin sdist --out $(RELEASE)
	$(PY) -m twine check --strict $(RELEASE)/*.tar.gz
	mkdir -p $(CHECK)/sdist/cargo
	tar -xzf $(RELEASE)/*.tar.gz -C $(CHECK)/sdist --strip-components 1
	cargo vendor --locked --quiet --manifest-path $(CHECK)/sdist/Cargo.toml $(CHECK)/sdist/crates
	printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "%s"\n' \
		"$(CURDIR)/$(CHECK)/sdist/crates" > $(CHECK)/sdist/cargo/config.toml
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" CARGO_HOME="$(CURDIR)/$(CHECK)/sdist/cargo" CARGO_NET_OFFLINE=true \
		CARGO_TARGET_DIR="$(CURDIR)/build/target" \
		$(PIP) wheel --no-index --no-deps --no-build-isolation --wheel-dir $(CHECK)/sdist/wheel $(RELEASE)/*.tar.gz
	$(call try_wheel,$(CHECK)/sdist/wheel/ruststream_kinesis-*.whl)

.PHONY: bench
bench: build ## Run the benchmarks: JSON in .benchmarks and a table with the ratios
	$(PY) -m benches

# The length of a chaos run; SEED=… repeats one.
MINUTES ?= 1

.PHONY: chaos
chaos: build servers ## Kill, pause, stop and start real processes and reshard their stream, for MINUTES=1
	$(PY) -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: servers
servers: $(SERVERS_STAMP) ## Install the Kinesis and DynamoDB servers from npm that the live tests start

.PHONY: clean
clean: ## Remove everything that was built or downloaded, .venv included
	rm -rf $(VENV) $(CACHE) $(DIST) target build site .benchmarks .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f python/ruststream_kinesis/*.so python/ruststream_kinesis/*.pyd

# -- what the targets above are made of ------------------------------------------------------------

# A venv whose interpreter is gone (moved checkout, upgraded system) is made anew; one that works is
# kept, whoever made it.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

# `pip install --group` came with pip 25.1.
$(DEPS_STAMP): pyproject.toml | $(PY)
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install --group build --group test --group lint --group bench
	@touch $@

MKDOCS := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs

# Groups that only their own targets need.
$(DOCS_STAMP): pyproject.toml | $(DEPS_STAMP)
	$(PIP) install --group docs
	@touch $@

$(RELEASE_STAMP): pyproject.toml | $(DEPS_STAMP)
	$(PIP) install --group release
	@touch $@

# $(call try_wheel,WHEEL): dependencies come from a folder that was filled before; the service runs in
# an empty one, where nothing of the checkout can be imported.
define try_wheel
	rm -rf $(CHECK)/venv $(CHECK)/empty && mkdir -p $(CHECK)/empty
	wheel="$$(echo $(1))" && $(PIP) download --dest $(CHECK)/wheelhouse "$$wheel[cli]"
	$(PYTHON) -m venv $(CHECK)/venv
	wheel="$$(echo $(1))" && $(CHECK)/venv/bin/python -m pip --disable-pip-version-check --quiet \
		install --no-index --find-links $(CHECK)/wheelhouse "$$wheel[cli]"
	cd $(CHECK)/empty && ../venv/bin/python -I "$(CURDIR)/tests/smoke.py"
endef

# An editable install (`maturin develop`) hides the wheel: replace it, however new the stamp is.
ifneq ($(shell grep -ls '"editable"' $(VENV)/lib/python*/site-packages/ruststream_kinesis-*.dist-info/direct_url.json),)
.PHONY: $(WHEEL_STAMP)
endif

# Uninstalled first, so that a file that left the package leaves the venv too. The last line proves
# that what imports is the wheel: it runs away from the checkout, and in isolated mode.
$(WHEEL_STAMP): $(DEPS_STAMP) $(WHEEL_SOURCES)
	rm -rf $(DIST)
	$(PY) -m maturin build --release --locked --out $(DIST) --interpreter $(PY)
	$(PIP) uninstall --yes ruststream-kinesis
	wheel="$$(echo $(DIST)/ruststream_kinesis-*.whl)" && $(PIP) install "$$wheel[cli,prometheus]"
	@$(PY) -I -c 'import ruststream_kinesis._core as core; assert "site-packages" in core.__file__, core.__file__'
	@touch $@

# Without Node the live tests of these servers are skipped with the reason, unless CI insists. One
# command for both: npm removes what it is not asked for.
$(SERVERS_STAMP):
	@mkdir -p $(SERVERS)
	npm install --prefix $(SERVERS) --no-save --no-package-lock --no-audit --no-fund --loglevel=error \
		kinesis-local@$(KINESIS_LOCAL_VERSION) dynalite@$(DYNALITE_VERSION) && touch $@ \
		|| { echo "the servers from npm could not be installed: their live tests cannot run" >&2; test -z "$(REQUIRE_LIVE)"; }
