#!/usr/bin/env bash
# A flood on a victim of its own, watched by fwtop: the screen in a terminal, the observation as JSON elsewhere.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
scenario=${SCENARIO:-udp_flood}
if [[ -t 0 && -t 1 ]]; then
  as_root "$command" lab "$scenario"
else
  as_root "$command" lab "$scenario" --json </dev/null
fi
