# Everything a developer or a visitor runs. `make` alone lists it.
#
# Nothing here installs anything into the system or touches a server that already runs:
# server binaries are looked for or unpacked into a cache folder (tests/support/servers.sh),
# tools go to target/tools.

.DEFAULT_GOAL := help
.PHONY: help demo test soak chaos ratio bench lint fmt servers

SERVERS := tests/support/servers.sh
# The same without what only some tests need.
SERVERS_ONLY := OUTBOX_RELAY_TEST_WITHOUT=pgbouncer,faketime,chromium,promtool $(SERVERS)
CARGO_DENY_VERSION := 0.20.2
TOOLS := target/tools
CARGO_DENY := $(shell command -v cargo-deny 2>/dev/null || echo $(TOOLS)/bin/cargo-deny)

help: ## list what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: ## 2,000 orders while relay and broker are killed: 30 s, after some minutes of building
	cargo build --locked --release --bin outbox-relay --example demo # minutes the first time
	@$(SERVERS_ONLY) run target/release/examples/demo

test: ## all tests; private servers, fetched without installing if they are missing
	$(SERVERS) run cargo test --locked --no-fail-fast

soak: ## the faults in full length, hundreds of kills; an hour or more
	OUTBOX_RELAY_TEST_SOAK=1 $(SERVERS) run cargo test --locked --release --test fault

chaos: ## writers and three relays under faults of every kind; ten minutes, or CHAOS_SECONDS
	OUTBOX_RELAY_CHAOS_SECONDS=$(or $(CHAOS_SECONDS),600) $(SERVERS) run \
		cargo test --locked --test fault -- chaos --nocapture

ratio: ## throughput and CPU of the relay beside a bare publisher; 1-2 minutes
	cargo build --locked --release --bin outbox-relay --example ratio
	@echo "Everybody on the same CPUs: a bare publisher leaves more of them to the broker."
	@OUTBOX_RELAY_RATIO=0 $(SERVERS_ONLY) run target/release/examples/ratio
	@echo "The broker on a CPU of its own, as on a host of its own; held against the finish line."
	@OUTBOX_RELAY_RATIO_APART=1 $(SERVERS_ONLY) run target/release/examples/ratio

bench: ## figures: insert tax, polls, hot key … (BENCH=--help lists them); some minutes
	cargo build --locked --release --bin outbox-relay --example bench
	@$(SERVERS_ONLY) run target/release/examples/bench $(BENCH)

lint: $(CARGO_DENY) ## format, clippy, documentation, dependencies
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --no-default-features --lib --example payments --example emails -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
	$(CARGO_DENY) --all-features --locked check bans licenses sources

fmt: ## format the code
	cargo fmt

servers: ## find or fetch PostgreSQL and RabbitMQ for tests and demo, and say where they are
	@$(SERVERS)

$(TOOLS)/bin/cargo-deny:
	cargo install --debug --locked --root $(TOOLS) --target-dir $(TOOLS)/build cargo-deny@$(CARGO_DENY_VERSION)
	rm -rf $(TOOLS)/build
