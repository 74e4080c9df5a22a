#!/usr/bin/env bash
# Run pytest as root (the kernel tests need it), leaving no root-owned files in the clone.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
cd "$clone"
flags=()
[[ $(id -u) == 0 ]] || flags=(-p no:cacheprovider)
as_root env PYTHONDONTWRITEBYTECODE=1 .venv/bin/python -m pytest "${flags[@]}" "$@"
