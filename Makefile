# What a user and a contributor type. Every target does its own set-up; all the work is in scripts/.

.PHONY: help up setup test test-vllm check lock bench soak

help:
	@echo "make up      install what is needed, start everything, say what to open"
	@echo "             ARGS='--model demo --api-port 9000' hands flags to 'tidegate up'"
	@echo "make setup   only the set-up: .venv with all that running and testing need"
	@echo "make test    all tests; ARGS='tests/http -k drain' hands arguments to pytest"
	@echo "make test-vllm  tests with real vLLM, which is installed once, outside the tree; ARGS as for test"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make bench   what the gateway costs beside a bare proxy; ARGS='--crowd' or '--memory' for the others' share"
	@echo "make soak    ten minutes of load while engines are killed; ARGS='--minutes 2'"
	@echo "make lock    write requirements/*.txt anew from pyproject.toml"

up:
	@scripts/up $(ARGS)

setup:
	@scripts/setup dev

test:
	@scripts/test $(ARGS)

test-vllm:
	@scripts/test-vllm $(ARGS)

check:
	@scripts/check

bench:
	@scripts/bench $(ARGS)

soak:
	@scripts/soak $(ARGS)

lock:
	@scripts/lock $(ARGS)
