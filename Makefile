# Every target sets up what it needs. `make demo` is the place to start.

CARGO ?= cargo
MUSTER := target/release/muster

.PHONY: help setup build demo test test-isa test-numa check gate manifests bench bench-kernels clean

help:
	@echo "make demo    fine-tune a small DeBERTa on financial headlines, then ask it (about two minutes after the build)"
	@echo "make test    all tests"
	@echo "make test-isa  kernels on emulated CPUs (AVX-512, BF16, AMX), a short set; FULL=1 for all"
	@echo "make test-numa  two ranks on an emulated machine of two sockets"
	@echo "make check   formatting, lints, docs, crate arrows, licences and sources of crates, the Helm chart"
	@echo "make manifests  deploy/manifests anew from deploy/chart"
	@echo "make bench   samples/s, tokens/s and share of the FMA peak for MiniLM and DeBERTa shapes"
	@echo "make bench-kernels  products, attention, AdamW and LayerNorm against FMA peak and memory bandwidth"

setup:
	@bash scripts/setup.sh

build: setup
	$(CARGO) build --release --locked -p muster

demo: build
	bash examples/headlines/demo.sh $(MUSTER)

# One build for the tests and the binary they start. nextest runs each test in a process of its own; without it cargo's
# runner does.
test: setup
	$(CARGO) build --release --locked --workspace --bins --tests
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		MUSTER_TEST_PREBUILT=1 $(CARGO) nextest run --release --locked --workspace --no-fail-fast; \
	else \
		MUSTER_TEST_PREBUILT=1 $(CARGO) test --release --locked --workspace --lib --bins --tests; \
	fi
	$(CARGO) test --release --locked --workspace --doc
	$(MAKE) test-isa

# Kernels on CPUs that this machine isn't: tests/isa/README.md.
test-isa: setup
	bash tests/isa/test.sh

check: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps --lib
	bash scripts/check-arrows.sh
	bash scripts/cargo-deny.sh
	bash scripts/check-chart.sh

manifests:
	@bash scripts/check-chart.sh render

# Two ranks on two sockets, which QEMU plays: tests/numa-vm/README.md. A minute or two, so `make test` leaves it out.
test-numa: build
	bash tests/numa-vm/test.sh $(MUSTER)

# Shares of the machine's peak against those in benches/gate.
gate: build
	bash scripts/bench-gate.sh $(MUSTER)

bench: setup
	$(CARGO) run --release --locked -p muster --bin muster -- bench step

# The same kernels in PyTorch, turn by turn: benches/peers/kernels_torch.py.
bench-kernels: setup
	$(CARGO) run --release --locked -p muster --bin muster -- bench kernels

clean:
	$(CARGO) clean
