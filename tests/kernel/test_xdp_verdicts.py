"""The compiled rules against a slow judgement in plain Python: same verdict for every packet and rule set."""

from __future__ import annotations

import os
import random

import pytest
from xdp_frames import random_frame, random_matches
from xdp_programs import Compiled, verdict

from fwtop.model.address import Prefix

pytestmark = pytest.mark.kernel
PACKETS = int(os.environ.get("FWTOP_XDP_PACKETS", "500"))
ALLOW = (Prefix.parse("192.0.2.7"), Prefix.parse("2001:db8:7::/48"), Prefix.parse("10.0.0.0/30"))


@pytest.mark.parametrize("seed", range(6))
def test_same_verdict_as_the_slow_reference(seed: int, root_required: None) -> None:
    chance = random.Random(seed)
    matches = random_matches(chance)
    expected = [0] * len(matches)
    with Compiled(matches, ALLOW, limit=chance.choice((0, 3, 64))) as compiled:
        for _ in range(PACKETS):
            frame = random_frame(chance)
            wanted = verdict(matches, ALLOW, frame)
            assert compiled.drops(frame) == (wanted is not None), (frame.hex(), matches)
            if wanted is not None:
                expected[wanted] += 1
        assert compiled.counts()[: len(matches)] == expected
    assert sum(expected) > PACKETS / 20  # the packets do meet the rules
