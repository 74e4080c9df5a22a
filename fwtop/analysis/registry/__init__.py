"""The registry: every explanation that fwtop knows, attacks and ordinary traffic; order means nothing.

Where to begin: `protocols.py` is the shortest whole example, each attack followed by what looks like it.
`udp.py` has floods of datagrams and reflected answers, `dns.py` queries, `tcp.py` handshakes and stray
packets, `web.py` requests and TLS, `connections.py` those that are hardly used, `steady.py` bots slower than
browsers, `rest.py` what none of these explains.

How to read an entry, such as `Hypothesis("IGMP flood", igmp_packets, 0.0, kind=..., needs=...)`:

- Its name; the cut (`fwtop/analysis/groups`) whose groups of packets it may explain; its prior in log-odds,
  against "nothing unusual", which has 0. CERTAIN is for proof: see below.
- With a `kind` it is an attack: `title` and `lead` are what the screen says of it, `details` what parsers
  add, `match` and `rows` which packets it takes, `stopped_by` what helps; with `joins`, several groups of its
  cut are one attack. Without a kind it is something ordinary that looks like an attack.
- `needs`: it is ruled out unless all are met, such as `at_least(sources, 8)`. `sources` is a feature: a
  function of a group, defined beside its cut, or in `groups/measures.py` if any group has it.
- `evidence`: what features add to its log-odds. `above(same_length, 0.9, 1.0)` adds 1 above 0.9,
  `if_so(empty, 1.5)` 1.5 for a yes; `Says(rate, 50, -2.0, 500, 0.0)` adds -2 up to 50, nothing from 500 on,
  and between them in proportion. A sentence beside it goes to the operator if it speaks for the attack.
- `settles`, of something ordinary: when cuts with weaker proof (`Proof`) may not take its packets; `()` is
  always.

CERTAIN, 20, marks ordinary traffic that its requirements prove: by a fact that settles the question, or by
bounds on rate and sources below which it does no harm. No attack is then named. What is only likely gets a
prior of a few units and evidence for and against it.

The numbers are the authors' guesses; `weights.toml` corrects them. docs/HYPOTHESES.md lists the result.
"""

from fwtop.analysis.engine.hypothesis import Hypothesis
from fwtop.analysis.engine.weights import WEIGHTS_FILE, FittedWeights
from fwtop.analysis.registry.connections import CONNECTION_ENTRIES
from fwtop.analysis.registry.dns import DNS_ENTRIES
from fwtop.analysis.registry.protocols import PROTOCOLS
from fwtop.analysis.registry.rest import REST_ENTRIES
from fwtop.analysis.registry.steady import STEADY_ENTRIES
from fwtop.analysis.registry.tcp import TCP_ENTRIES
from fwtop.analysis.registry.udp import UDP_ENTRIES
from fwtop.analysis.registry.web import WEB_ENTRIES

# What speaks neither for an attack nor for a known use: log-odds of attacks are against this.
NOTHING_UNUSUAL = Hypothesis("nothing unusual", None)

DECLARED = (
    NOTHING_UNUSUAL,
    *UDP_ENTRIES,
    *DNS_ENTRIES,
    *TCP_ENTRIES,
    *WEB_ENTRIES,
    *CONNECTION_ENTRIES,
    *STEADY_ENTRIES,
    *PROTOCOLS,
    *REST_ENTRIES,
)
# With the weights that the corpus gave them; read with the module: inside the sandbox no file can be opened
HYPOTHESES = FittedWeights.read(WEIGHTS_FILE).applied(DECLARED)
