#!/usr/bin/env bash
# Flood a victim in the lab and watch it with fwtop: on the screen in a terminal, otherwise as JSON.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
scenario=${SCENARIO:-udp_flood}
if [[ -t 0 && -t 1 ]]; then
  as_root "$command" lab "$scenario"
else
  as_root "$command" lab "$scenario" --json </dev/null
fi
