"""The registry: every explanation that fwtop knows, attacks and ordinary traffic; order means nothing."""

from fwtop.analysis.engine.hypothesis import Hypothesis
from fwtop.analysis.engine.weights import WEIGHTS_FILE, FittedWeights
from fwtop.analysis.registry.dns import DNS_ENTRIES
from fwtop.analysis.registry.protocols import PROTOCOLS
from fwtop.analysis.registry.rest import REST_ENTRIES
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
    *PROTOCOLS,
    *REST_ENTRIES,
)
# With the weights that the corpus gave them; read with the module: inside the sandbox no file can be opened
HYPOTHESES = FittedWeights.read(WEIGHTS_FILE).applied(DECLARED)
