# What a user meets. People at work on Toehold find more in `cargo xtask help`.

PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release

bindir := $(DESTDIR)$(PREFIX)/bin
libdir := $(DESTDIR)$(PREFIX)/lib/toehold
sharedir := $(DESTDIR)$(PREFIX)/share
bash_completion := $(sharedir)/bash-completion/completions/toehold
zsh_completion := $(sharedir)/zsh/site-functions/_toehold
fish_completion := $(sharedir)/fish/vendor_completions.d/toehold.fish

# Where rustup puts cargo, for shells that have not read its settings.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: build
build: ## build the program and the library (release)
	@scripts/deps.sh rust
	cargo build --release -p toehold -p toehold-preload

.PHONY: demo
demo: ## install load generators, build, and show the kernel against Toehold
	@scripts/deps.sh rust demo
	cargo build --release -p toehold -p toehold-preload
	cargo xtask demo

.PHONY: test
test: ## everything that can be tested on this host; installs what that takes
	@scripts/deps.sh rust demo test suites deb
	@# Without --package: with the features of the whole workspace, as the tests are built then.
	cargo run --quiet --bin xtask -- test

.PHONY: test-pages
test-pages: ## the lab's pages in headless Chromium, with screenshots; installs it
	@scripts/deps.sh rust page
	TOEHOLD_PAGES='$(abspath $(TARGET))/pages' cargo test --release -p toehold-lab --lib -- --ignored browser_tests

.PHONY: suites
suites: ## the table of docs/suites.md: other projects' tests, both ways, about 40 minutes
	@scripts/deps.sh rust test suites
	cargo xtask suites $(SUITES)

.PHONY: check
check: ## formatting, lints, scripts, links in the documents
	cargo xtask check

.PHONY: sim
sim: ## the TCP engine in the deterministic simulator
	cargo xtask sim

.PHONY: nightly
nightly: ## a million seeds of the simulator, other ones each day; about half an hour on two cores
	cargo xtask sim nightly

.PHONY: interoperability
interoperability: ## the TCP engine against this kernel's: all of a matrix, in a minute
	cargo xtask interoperability

.PHONY: packetdrill
packetdrill: ## packetdrill's scripts against the engine; needs PACKETDRILL= and PACKETDRILL_SCRIPTS=
	@PACKETDRILL='$(PACKETDRILL)' PACKETDRILL_SCRIPTS='$(PACKETDRILL_SCRIPTS)' cargo xtask packetdrill

.PHONY: programs
programs: ## the table of docs/programs.md: some sixty programs, four ways each, about half an hour; installs them
	@scripts/deps.sh rust programs
	scripts/go-programs.sh $(TARGET)/programs
	scripts/rust-programs.sh $(TARGET)/programs
	scripts/dotnet-programs.sh $(TARGET)/programs
	scripts/released-programs.sh $(TARGET)/programs
	cargo xtask programs

.PHONY: bench
bench: ## the numbers of docs/benchmarks.md, about three quarters of an hour
	@scripts/deps.sh rust demo test bench
	cargo build --release -p toehold -p toehold-preload
	cargo xtask bench
	$(RELEASE)/toehold lab run headline --out $(TARGET)/bench/headline-$$(date +%Y%m%d-%H%M%S)

.PHONY: bench-offload
bench-offload: ## the numbers of docs/benchmarks/offload.md, about half an hour; needs root
	@scripts/deps.sh rust demo bench
	cargo build --release -p toehold -p toehold-preload
	cargo xtask bench-offload

.PHONY: matrix
matrix: ## the library in systems of several releases and C libraries; downloads them; root
	cargo build --release -p toehold -p toehold-preload
	scripts/matrix.sh $(TARGET)/matrix

.PHONY: deps
deps: ## install what the demonstration and the tests use (Debian)
	@scripts/deps.sh rust demo test

.PHONY: install
install: ## install under PREFIX (/usr/local) of DESTDIR; run `make build` first
	@test -x $(RELEASE)/toehold && test -f $(RELEASE)/libtoehold.so || { echo "nothing is built yet; run: make build" >&2; exit 1; }
	install -D -s -m 755 $(RELEASE)/toehold $(bindir)/toehold
	install -D -s -m 644 $(RELEASE)/libtoehold.so $(libdir)/libtoehold.so
	rm -rf $(RELEASE)/man && $(RELEASE)/toehold man --out $(RELEASE)/man
	install -d $(sharedir)/man/man1
	install -m 644 $(RELEASE)/man/*.1 $(sharedir)/man/man1/
	install -d $(sharedir)/man/man5
	install -m 644 $(RELEASE)/man/*.5 $(sharedir)/man/man5/
	install -D -m 644 THIRD-PARTY $(sharedir)/doc/toehold/THIRD-PARTY
	for shell in bash zsh fish; do $(RELEASE)/toehold completions $$shell > $(RELEASE)/toehold.$$shell || exit 1; done
	install -D -m 644 $(RELEASE)/toehold.bash $(bash_completion)
	install -D -m 644 $(RELEASE)/toehold.zsh $(zsh_completion)
	install -D -m 644 $(RELEASE)/toehold.fish $(fish_completion)

.PHONY: uninstall
uninstall: ## remove what `make install` put under PREFIX
	rm -f $(bindir)/toehold $(libdir)/libtoehold.so
	rm -f $(bash_completion) $(zsh_completion) $(fish_completion)
	rm -f $(sharedir)/man/man1/toehold.1 $(sharedir)/man/man1/toehold-*.1
	rm -f $(sharedir)/man/man5/toehold-engine.5 $(sharedir)/man/man5/toehold.conf.5
	rm -f $(sharedir)/doc/toehold/THIRD-PARTY
	-rmdir $(libdir) $(sharedir)/doc/toehold 2>/dev/null

.PHONY: deb
deb: build ## a Debian package of it, checked by lintian
	@scripts/deps.sh deb
	scripts/deb.sh $(RELEASE)

.PHONY: deb-test
deb-test: ## the package in a fresh Debian 12: install, upgrade, remove, purge; run `make deb` first; root
	@scripts/deps.sh deb
	scripts/deb-test.sh $(RELEASE)/deb/*.deb $(RELEASE)/deb-test

.PHONY: tour
tour: ## the tour of docs/operations.md in a Debian 12 that is booted for it; root
	@scripts/deps.sh rust demo test deb
	cargo xtask tour

.PHONY: tarball
tarball: build ## the installed tree as an archive: it runs from wherever it is unpacked
	scripts/tarball.sh $(RELEASE)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24
