# SPDX-License-Identifier: Apache-2.0
# A short front for CMake. `make train` and `make check` do everything on a fresh Debian 12 with make, as root.
# `make` builds the command and the libraries; `make check` also the tests, examples and benchmarks.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
RANKS ?= 2

.PHONY: build train check install clean
build:
	@tools/install-deps.sh
	@[ -f $(BUILD)/build.ninja ] || cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 2; }
	@rm -f $(BUILD).log
	@ninja -C $(BUILD) -j $(JOBS) --quiet kumi kumi_shared

train: build
	@$(BUILD)/kumi train configs/shakespeare-fast.json -n $(RANKS) --out runs/shakespeare-fast --overwrite
	@$(BUILD)/kumi sample runs/shakespeare-fast --prompt "ROMEO:" --tokens 300 --temperature 0.8 --seed 1

check: build
	@ninja -C $(BUILD) -j $(JOBS) --quiet
	@bash tools/check.sh $(BUILD) $(JOBS)

install: build
	@cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@ninja -C $(BUILD) -j $(JOBS) --quiet kumi kumi_shared
	@cmake --install $(BUILD)

clean:
	rm -rf $(BUILD)
