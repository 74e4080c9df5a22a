from __future__ import annotations

import pytest

from fwtop.bench.measured_harm import Harm, chosen, measured_harm
from fwtop.bench.tables.harm import missed
from fwtop.lab import scenario
from fwtop.lab.traffic.pools import PAGES, draw_clients, request
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError


def _fared(http: tuple[int, int], dns: tuple[int, int] = (10, 10)) -> list[dict[str, object]]:
    return [
        {"client": "192.0.2.1", "work": work, "tried": tried, "succeeded": succeeded}
        for work, (tried, succeeded) in (("http", http), ("dns", dns))
    ]


_USUAL = {("192.0.2.1", "http"): 50.0, ("192.0.2.1", "dns"): 10.0, ("192.0.2.2", "http"): 40.0}


def test_measured_harm_weighs_extra_failures_by_usual_packets() -> None:
    # Half of the traffic is that client's HTTP, of which 8 % more fail; the other one was not seen again.
    assert measured_harm(_USUAL, _fared((100, 98)), _fared((100, 90))) == pytest.approx(0.5 * 0.08)
    assert measured_harm(_USUAL, _fared((100, 90)), _fared((100, 98))) == 0.0
    assert measured_harm(_USUAL, _fared((9, 9)), _fared((9, 0), (10, 0))) == pytest.approx(0.6)
    assert measured_harm({}, _fared((0, 0)), _fared((0, 0))) == 0.0


def _harm(baseline: float, guess: float) -> Harm:
    predicted = {"from a baseline": baseline, "by guess": guess}
    return Harm("xdp-length", "by length", predicted, 0.25, 100, (1.0, 0.5, 0.75), (1.0, 9.0, 2.0))


def test_a_wrong_prediction_is_listed_with_its_basis() -> None:
    right, wrong = _harm(0.24, 0.26), _harm(0.26, 0.2)
    assert (right.points, missed([right])) == (pytest.approx(1.0), [])
    (line,) = missed([wrong])
    assert "20.00% by guess" in line
    assert "measured 25.00%" in line


def test_trials_hit_the_clients_they_claim_to_hit() -> None:
    found = {trial.name: trial for trial in chosen(())}
    clients = draw_clients(scenario.parse(found["ipset-block"].scenario, "t").seed)
    blocked = [Prefix.parse(word) for word in found["ipset-block"].rule if "/" in word]
    hit = [one for one in clients.clients if any(net.contains(Prefix.parse(one)) for net in blocked)]
    assert len(hit) == len(blocked) == 4
    assert not any(net.contains(Prefix.parse(clients.operator)) for net in blocked)
    low, high = (int(end) for end in found["xdp-length"].rule[-3].split(":"))
    lengths = [52 + len(request(page)) for page in PAGES]
    assert sum(low <= length <= high for length in lengths) == 2
    assert [trial.name for trial in chosen(("notrack",))] == ["notrack"]
    with pytest.raises(FwtopError, match="no trial 'x'"):
        chosen(("x",))
