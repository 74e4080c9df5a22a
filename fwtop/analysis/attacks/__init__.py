"""Every explanation that fwtop knows, a file an attack or family, with what looks like it.

A file is part of the judgement by being here; order means nothing. The IGMP flood in
`control_protocols.py` is the shortest whole example. A file has

- its cuts: functions that yield groups of unclaimed packets which may have one cause;
- features of these groups that nobody else needs; what several attacks measure is in `analysis/measures`;
- ENTRIES: the explanations that compete for the groups.

How to read an entry, such as `Hypothesis("IGMP flood", igmp_packets, 0.0, kind=..., needs=...)`:

- Its name; the cut whose groups it may explain; its prior in log-odds, against "nothing unusual", which
  has 0.
- With a `kind` it is an attack: `title` and `lead` are what the screen says of it, `details` what parsers
  add, `match` and `rows` which packets it takes, `stopped_by` what helps, `traits` what the rest of the
  judgement has to know; `exhausts` the resources that it takes, with what a modest host has of each, and
  `otherwise` its class if it exhausts nothing (`analysis/severity.py`), which it does only near a resource's
  end where `bearable` holds, as of one program's stream; with `joins`, several groups of its cut are one
  attack. Without a kind it is something ordinary that looks like an attack.
- `needs`: it is ruled out unless all are met, such as `sources.at_least(8)`, or `echo_replies.yes`.
- `evidence`: what features add to its log-odds. `same_length.above(0.9, 1.0)` adds 1 above 0.9,
  `empty.if_so(1.5)` 1.5 for a yes; `rate.says(50, -2.0, 500, 0.0)` adds -2 up to 50, nothing from 500 on,
  and between them in proportion. A sentence beside it goes to the operator if it speaks for the attack.
- `settles`, of something ordinary: when cuts with weaker proof (`Proof`) may not take its packets; `()` is
  always.

CERTAIN, 20, marks ordinary traffic that its requirements prove: by a fact that settles the question, or by
bounds on rate and sources below which it does no harm. No attack is then named. What is only likely gets a
prior of a few units and evidence for and against it.

The numbers are the authors' guesses; `weights.toml` corrects them. docs/HYPOTHESES.md lists the result.
"""

from importlib import import_module
from pkgutil import iter_modules

from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.engine.weights import WEIGHTS_TEXT, FittedWeights

# What speaks neither for an attack nor for a known use: log-odds of attacks are against this.
NOTHING_UNUSUAL = Hypothesis("nothing unusual", None)


_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
DECLARED: tuple[Hypothesis, ...] = (
    NOTHING_UNUSUAL,
    *(entry for module in _MODULES for entry in getattr(module, "ENTRIES", ())),
)
HYPOTHESES = FittedWeights.parsed(WEIGHTS_TEXT).applied(DECLARED)  # with what the corpus gave them
