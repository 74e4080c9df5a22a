#!/bin/sh
# Print each change of this machine's rules, whoever makes it. Needs socat, nc -U or ncat -U, and jq.
socket=${1:-/run/fwtop/api.sock}
if command -v socat > /dev/null; then talk="socat -t 86400 - UNIX-CONNECT:$socket"; else talk="nc -U $socket"; fi
echo '{"verb": "watch", "number": 1}' | $talk |
    jq --unbuffered -r 'select(.event) | "\(.seq) \(.event) \(.key // .id // "") \(.rule // "")"'
