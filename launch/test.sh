#!/usr/bin/env bash
# Usage: launch/test.sh [PYTEST ARGUMENT...]
# Sets up .venv, checks style, shell scripts and dependencies, and runs the tests.
set -euo pipefail

CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
launch/setup.sh dev

.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
.venv/bin/shellcheck launch/*.sh .ci/run
.venv/bin/python -m pip --disable-pip-version-check check

# A worker takes about a gigabyte, so a large machine does not get one for each core.
workers=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
if ((workers > 8)); then workers=8; fi

# The workers fill the cores, so each computes on one thread. NPROC is the size of XLA's thread pool on CPU, for which
# JAX has no setting and XLA_FLAGS no flag that works.
export NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# No JAX_COMPILATION_CACHE_DIR: JAX writes its entries in place, so a killed run leaves one that warns for ever after,
# and in the tests a warning is an error.
# A machine with an accelerator runs the same tests as one without; JAX_PLATFORMS=cuda ./launch/test.sh uses it.
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec .venv/bin/python -m pytest -n "$workers" --dist worksteal "$@"
