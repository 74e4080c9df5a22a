#!/usr/bin/env bash
# Resolve the pinned requirements anew, for every Python from 3.11 on, with hashes. Needs uv on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
flags=(--universal --python-version 3.11 --fork-strategy fewest --generate-hashes --quiet
  --custom-compile-command "make lock" "$@")
"$uv" pip compile pyproject.toml "${flags[@]}" -o requirements.lock
# One version of everything: the tests run with what is installed.
"$uv" pip compile pyproject.toml --group dev -c requirements.lock "${flags[@]}" -o requirements-dev.lock
