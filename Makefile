# Thin: every target is one or two commands that can be typed by hand. See CONTRIBUTING.md.
.PHONY: all packages test test-quick check demo bench bench-memory bench-parallel bench-pipeline lint format clean cuda gpu-check

VENVS := .venv/models/installed .venv/tokenizers/installed

all:
	@cmake --preset release >/dev/null || { echo "make: libraries are missing? On Debian 12: make packages" >&2; exit 1; }
	cmake --build --preset release --target yoke

# Everything that building, the demo and the tests need (Debian 12).
packages:
	scripts/install_packages.sh build demo test

# The whole suite, then the whole suite again under AddressSanitizer and UndefinedBehaviorSanitizer.
test: packages $(VENVS)
	cmake --preset release
	cmake --build --preset release
	ctest --preset release
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan

# What builds and runs in about a minute once the tree is built: no sanitizers, no PyTorch oracles.
test-quick:
	cmake --preset release >/dev/null
	cmake --build --preset release
	ctest --preset release -LE 'oracle|slow'

# Oracles. Models: Debian's PyTorch, seen through --system-site-packages, and a pinned transformers. Tokenizers: newer
# libraries than that transformers takes.
.venv/models/installed: tests/oracle/requirements.txt
.venv/tokenizers/installed: tests/oracle/requirements-tokenizer.txt
$(VENVS):
	/usr/bin/python3 -m venv --clear --system-site-packages $(@D)
	$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	touch $@

# Rules that no compiler enforces: layers, documentation, formatting.
check:
	python3 scripts/check_includes.py
	python3 scripts/check_docs.py
	scripts/lint.sh format

lint:
	scripts/install_packages.sh build test
	cmake --preset release >/dev/null
	scripts/lint.sh format
	scripts/lint.sh tidy build

format:
	scripts/lint.sh fix

demo:
	scripts/demo.sh

# BENCH_ARGS="--python PATH" adds another PyTorch to the comparison.
bench: packages
	cmake --preset release >/dev/null
	cmake --build --preset release
	/usr/bin/python3 bench/bench.py --output build/bench.json $(BENCH_ARGS)

# Two ranks beside one, every ZeRO stage, and PyTorch's DistributedDataParallel; about six minutes on two cores, which want
# to be idle. BENCH_ARGS="--rounds N --rivals LIST" and more: bench/parallel.py --help.
bench-parallel: packages
	cmake --preset release >/dev/null
	cmake --build --preset release --target yoke_bench
	/usr/bin/python3 bench/parallel.py --output build/bench_parallel.json $(BENCH_ARGS)

# How long the ranks of each pipeline schedule stand still, beside the schedule's own bubble. Wants two idle cores.
bench-pipeline: packages
	cmake --preset release >/dev/null
	cmake --build --preset release --target yoke_pipeline_bench
	OMP_NUM_THREADS=1 mpirun --oversubscribe --bind-to none $(if $(filter 0,$(shell id -u)),--allow-run-as-root) \
	  -n 2 build/yoke_pipeline_bench

# What each way of saving memory saves, and what it costs; about ten minutes on two cores.
bench-memory: packages
	cmake --preset release >/dev/null
	cmake --build --preset release
	/usr/bin/python3 bench/memory_ladder.py --output build/memory_ladder.json

cuda:
	@echo "make cuda: training on CUDA is not built yet; this version trains on the CPU (make, make demo)." >&2; exit 1

gpu-check:
	@echo "make gpu-check: training on CUDA is not built yet, so there is nothing to check on a GPU." >&2; exit 1

clean:
	rm -rf build
