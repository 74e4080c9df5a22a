#!/usr/bin/env python3
"""Keep a copy of this machine's rules, whoever changes them, and print each change. FWTOP_RUN: for tests."""

import os
import pathlib
import sys

sys.path.insert(0, "/usr/local/lib/fwtop/app")
from fwtop.client import connect

rules = {}
for doc in connect(run_directory=pathlib.Path(os.environ.get("FWTOP_RUN", "/run/fwtop"))).watch():
    if doc["event"] == "state":
        rules = {rule["key"]: rule["rule"] for rule in doc["rules"]}
        rules |= {status["rule"]["id"]: status["rule"]["summary"] for status in doc["fwtop_rules"]}
    key = doc.get("key", doc.get("id"))
    if doc["event"] in ("rule_added", "rule_changed") or doc.get("change") in ("added", "changed"):
        rules[key] = doc["rule"]
    elif doc["event"] == "rule_removed" or doc.get("change") == "removed":
        rules.pop(key, None)
    print(doc["seq"], doc["event"], key or "-", len(rules), flush=True)
