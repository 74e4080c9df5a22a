#!/bin/sh
# Keep a copy of this machine's rules, whoever changes them, and print each change. Needs socat or nc -U, and jq.
socket=${1:-/run/fwtop/api.sock}
if command -v socat > /dev/null; then talk="socat -t 86400 - UNIX-CONNECT:$socket"; else talk="nc -U $socket"; fi
echo '{"verb": "watch", "number": 1}' | $talk | jq --unbuffered -n -r 'foreach inputs as $doc ({};
    ($doc.key // $doc.id) as $key | ($doc.event + ($doc.change // "")) as $what |
    if $doc.ok == false then error($doc.reason + ": " + $doc.error)
    elif $what == "state" then reduce $doc.rules[] as $r ({}; .[$r.key] = $r.rule) |
        reduce $doc.fwtop_rules[].rule as $r (.; .[$r.id] = $r.summary)
    elif $what | test("^(fwtop_)?rule_?(added|changed)$") then .[$key] = $doc.rule
    elif $what | test("^(fwtop_)?rule_?removed$") then delpaths([[$key]]) else . end;
    if $doc.event then "\($doc.seq) \($doc.event) \($doc.key // $doc.id // "-") \(length)" else empty end)'
