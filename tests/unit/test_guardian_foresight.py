"""What a watcher is asked of rules, and what it told of them: for a while, and no more than a few."""

from __future__ import annotations

import pytest

from fwtop.guardian.serving import foresight
from fwtop.guardian.serving.foresight import Foresight
from fwtop.model.protocol import Foreseen

ONE = Foreseen(10.0, 11.0, "UDP flood", 0.9, 0.0)


def test_what_is_asked_is_told_with_the_next_word_and_lasts_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(foresight.time, "monotonic", lambda: now)
    made = Foresight()
    assert made.tell({"a": ONE}) == {}, "nobody asked"
    assert made.of("a", {"kind": "ipset"}) is None
    assert made.tell({}) == {"a": {"kind": "ipset"}}
    assert made.tell({"a": ONE}) == {}
    told = made.of("a", {"kind": "ipset"})
    assert told == {
        "pps": 10.0,
        "of_pps": 11.0,
        "attack": "UDP flood",
        "attack_share": 0.9,
        "normal_share": 0.0,
    }
    now += 6
    assert made.of("a", {}) is None
    now += 6
    assert made.tell({}) == {}, "whoever asked has gone"


def test_few_rules_are_asked_for_at_a_time() -> None:
    made = Foresight()
    for number in range(20):
        assert made.of(str(number), {}) is None
    assert len(made.tell({})) == 8
