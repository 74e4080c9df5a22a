"""The playbook for a public DNS server: stop attacks through it and keep serving its clients."""

from __future__ import annotations

from fwtop.harden.playbook import Options, Plan, rule_of
from fwtop.model.errors import FwtopError
from fwtop.resolver.advice import Advice, Machine, advise
from fwtop.resolver.servers import find_servers
from fwtop.resolver.view import View

TITLE = "a server that answers DNS to the world: attacks through it stopped, its clients answered"
NAME = "resolver"
OBSERVE_SECONDS = 3.0


def plan(options: Options) -> Plan:
    """Watch port 53 of this network namespace for three seconds and plan; raises FwtopError."""
    try:
        machine = Machine.read()
        if not machine.servers:
            return _nobody()
    except OSError as error:
        raise FwtopError(f"the sockets can't be listed: {error.strerror}; try it as root", 3) from None
    from fwtop.resolver.observe import observe  # late: a console that proposes this never observes by it

    view = observe(OBSERVE_SECONDS)
    return plan_for(view, machine, advise(view, machine, options.ttl_seconds, options.created_by), options)


def _nobody() -> Plan:
    """Plan for a machine without a public DNS server."""
    stubs = [server.words for server in find_servers(local=True)]
    if not stubs:
        return Plan("nobody listens on port 53", refused="no process here waits on port 53")
    text = f"{'; '.join(stubs)}, of loopback addresses only: nobody but this machine can ask"
    return Plan(text, refused=f"{text}, so there is nothing to protect from the world")


def plan_for(view: View, machine: Machine, advice: Advice, options: Options) -> Plan:
    """Plan for the observed questions and answers."""
    servers = "; ".join(server.words for server in machine.servers)
    asked, count = view.rate(view.totals.questions), len(advice.steps)
    what = f"{asked:,.0f} questions a second, answers {view.factor:.1f} times as large"
    if not view.totals.questions:
        what = f"nobody asked by UDP in {view.seconds:g} s"
    return Plan(
        f"{servers}: {what}; {count} step{'' if count == 1 else 's'}",
        findings=view.lines(),
        steps=tuple(step.text for step in advice.steps),
        kept=advice.kept,
        snippets=advice.snippets,
        rule=rule_of(NAME, "protect the DNS server", tuple(step.rule for step in advice.steps), options),
        data={"servers": [server.words for server in machine.servers], **view.to_json()},
    )
