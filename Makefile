.PHONY: build
build:
	cargo build --release --workspace
