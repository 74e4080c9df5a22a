#!/usr/bin/env bash
# Update the pinned requirements, with hashes, for Python 3.11 and later. Needs uv.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
flags=(--universal --python-version 3.11 --fork-strategy fewest --generate-hashes --quiet
  --custom-compile-command "make lock" "$@")
"$uv" pip compile pyproject.toml "${flags[@]}" -o requirements.lock
# The same versions for both, so that tests run with what gets installed.
"$uv" pip compile pyproject.toml --group dev -c requirements.lock "${flags[@]}" -o requirements-dev.lock
