"""Leading a roll-out over the transport in memory, with machines that do what their guardians would say."""

import argparse
import asyncio
import time

import pytest
from fleet_memory import Memory, MemoryTransport
from msgspec.structs import replace

from fwtop.cli.fleet.rollout import add_rollout, preview_lines
from fwtop.fleet import register, rollout
from fwtop.fleet.document import Action, Document, Sealed, encode, read_confirmation
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.register import Member, Register
from fwtop.fleet.rollout import Leader
from fwtop.fleet.signing import ConfirmKey
from fwtop.fleet.summary import Answer, Attack, Rollout, Summary, sealed_answer, sealed_summary
from fwtop.fleet.transport import WANTED
from fwtop.fleet.view import FLOODS, View
from fwtop.fleet.wanted import CONFIRMED, DOCUMENT, Question, Wanted
from fwtop.model.errors import FwtopError

FLOOD = Attack("udp_flood", "UDP flood", "all", "attack", 20_000.0)


class Machine:
    """A node with a guardian that installs what it is handed, and says how its clients fare."""

    def __init__(
        self, name: str, broker: Memory, *, attacked: bool = True, refuses: str = "", harm: str = ""
    ):
        self.key = MachineKey()
        self.name, self.broker, self.refuses, self.harm = name, broker, refuses, harm
        self.summary = Summary(
            fleet="prod", name=name, instance=name, number=0, at=0.0, labels=("web",), verdict="UNPROTECTED",
            attacks=(FLOOD,) if attacked else (), clients=20.0, arrives_pps=float(len(name)),
        )  # fmt: skip
        self.plan: dict[str, object] = {"refused": None}
        self.stage = ""
        self.mute = False
        self.wanted = Wanted()

    async def start(self) -> None:
        self.transport = await self.broker.connect()
        await self.transport.watch(WANTED, self.heard)
        await self.transport.answer(self.answered)

    async def answered(self, message: bytes) -> bytes:
        if self.mute:
            await asyncio.Event().wait()
        question = Question.of(message)
        refused = self.refuses if question.sealed else ""
        told = None if refused else {"plans": [self.plan]}
        return sealed_answer(
            Answer(summary=self.summary, question=question.nonce, told=told, refused=refused), self.key
        )

    def heard(self, name: str, document: bytes) -> None:
        self.wanted.take(name, document)
        for step in self.wanted.steps(self.name, frozenset({"web"})):
            if step.kind == DOCUMENT and not self.stage:
                self.stage = "trial"
            elif step.kind == CONFIRMED and self.stage:
                action = read_confirmation(step.sealed.text.encode()).action
                self.stage = {Action.KEEP: "kept", Action.UNDO: "undone", Action.RENEW: self.stage}[action]
        if self.stage and not self.mute:
            asyncio.get_running_loop().create_task(self.tell())

    async def tell(self) -> None:
        acting = self.stage in ("trial", "kept")
        here = Rollout("r1", self.stage, acting=acting, pps=1.0)
        harm = self.harm if acting else ""
        self.summary = replace(self.summary, number=self.summary.number + 1, rollouts=(here,), harm=harm)
        await self.transport.publish(self.name, sealed_summary(self.summary, self.key))


def document(**given) -> Document:
    now = time.time()
    waves = tuple(replace(wave, seconds=0.05) for wave in rollout.waves_of((1,), everywhere=False))
    made = {
        "fleet": "prod",
        "revision": 1,
        "rollout": "r1",
        "action": Action.RULES,
        "on": ("web",),
        "issued": now,
    }
    made |= {"not_after": now + 600, "rules": ({},), "waves": waves}
    return Document(**{**made, **given})


async def led(machines: list[Machine], given: Document, during=None, connect=None):
    """Start the machines, ask them, lead; return the outcome and what was said."""
    for machine in machines:
        await machine.start()
    leading = await machines[0].broker.connect()
    view = View(Register("prod", {m.name: Member(m.key.public, "U", ("web",), "t-9", 0.0) for m in machines}))
    await view.follow(leading)
    sealed, said = Sealed(encode(given).decode(), ("signature",)), []
    asked = await rollout.preview(leading, view, given, sealed, 0.3)
    with ConfirmKey() as key:
        leader = Leader(leading, view, given, sealed, key=key, say=said.append, connect=connect)
        task = asyncio.create_task(leader.lead(asked))
        if during is not None:
            await during(leading, task)
        return await asyncio.wait_for(task, 60), said, asked


async def test_the_preview_says_what_the_rule_stops_on_each_machine_and_together():
    broker = Memory()
    machines = [Machine(name, broker) for name in ("web-1", "web-22", "web-333")]
    for machine, pps, share in zip(machines, (4.0, 3.0, None), (0.0, 0.25, 0.0), strict=True):
        told = {
            "pps": pps,
            "of_pps": float(len(machine.name)),
            "attack": "UDP flood",
            "attack_share": 1.0,
            "normal_share": share,
        }
        machine.plan["foreseen"] = told if pps is not None else None
    _, _, asked = await led(machines, document())
    one, two, three, together = [
        line.partition("; ")[2] or line for line in preview_lines(document(), asked)[1:]
    ]
    assert one == "it does not say what the rule stops"
    assert two == "the rule stops 50 %, and 25 % of what seems to be no attack"
    assert three == "the rule stops 80 %"
    assert together == "  together: stops 7 pps of 11 pps, as 2 machines say"


async def test_one_attacked_machine_first_then_all_that_are_attacked():
    broker = Memory()
    machines = [Machine("web-1", broker), Machine("web-22", broker), Machine("calm", broker, attacked=False)]
    outcome, said, _ = await led(machines, document())
    assert outcome.is_kept
    assert not outcome.reason
    assert [line for line in said if line.startswith("wave")] == ["wave 1: web-22", "wave 2: web-1"]
    assert [machine.stage for machine in machines] == ["kept", "kept", ""]
    assert (outcome.previewed, outcome.refused, len(outcome.applied)) == (3, 0, 2)
    assert outcome.seconds_to_first <= outcome.seconds_to_all


@pytest.mark.parametrize(
    ("first", "lines"),
    [
        ("all", ["wave 1: web-333, web-22, web-1"]),
        ("2", ["wave 1: web-333, web-22", "wave 2: web-1"]),
        ("web-1,1", ["wave 1: web-1", "wave 2: web-333", "wave 3: web-22"]),
    ],
)
async def test_waves_of_so_many_machines_or_of_those_with_a_label(first: str, lines: list[str]):
    broker = Memory()
    machines = [Machine(name, broker) for name in ("web-1", "web-22", "web-333")]
    parser = argparse.ArgumentParser()
    add_rollout(parser)
    args = parser.parse_args(["--on", "web", "--waves", first, "--measure", "0.05s"])
    waves = rollout.waves_of(args.waves, everywhere=False, seconds=args.measure)
    outcome, said, _ = await led(machines, document(waves=waves))
    assert (outcome.is_kept, [line for line in said if line.startswith("wave")]) == (True, lines)


@pytest.mark.parametrize("given", ["0", "", "1,,2", "1;2", "100001"])
def test_what_no_wave_is(given: str):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_rollout(parser)
    with pytest.raises(argparse.ArgumentError, match="numbers and labels"):
        parser.parse_args(["--on", "web", f"--waves={given}"])


async def test_harm_on_one_machine_has_all_revert():
    broker = Memory()
    machines = [Machine("web-22", broker), Machine("web-1", broker, harm="clients of 80/tcp 20/s → 0/s")]
    outcome, _, _ = await led(machines, document())
    assert not outcome.is_kept
    assert outcome.reason == "web-1: clients of 80/tcp 20/s → 0/s"
    assert [machine.stage for machine in machines] == ["undone", "undone"]


async def test_who_floods_the_servers_is_named_and_holds_nobody_up():
    broker = Memory()
    machines = [Machine("web-22", broker), Machine("web-1", broker)]

    async def flood(*_) -> None:
        machines[1].mute = True
        async with asyncio.timeout(20):
            while not machines[1].stage:
                await asyncio.sleep(0.01)
        broker.flooded("web-1")

    outcome, said, _ = await led(machines, document(), flood)
    assert (outcome.is_kept, outcome.applied) == (True, ["web-22"])
    assert f"  web-1: {FLOODS}" in said


async def test_servers_that_do_not_take_the_document_are_asked_for_nothing_more(monkeypatch):
    asked = []

    async def refused(_, board: str, name: str, *__, **___) -> None:
        asked.append(name)
        raise FwtopError("no room")

    monkeypatch.setattr(MemoryTransport, "put", refused)
    outcome, _, _ = await led([Machine("web-1", Memory())], document())
    assert (outcome.is_kept, outcome.reason, asked) == (False, "no room", ["r1.document"])


@pytest.mark.parametrize("liar", [1e9, 0.0], ids=["many", "none"])
async def test_one_machines_word_on_its_clients_passes_no_gate(liar: float):
    """It has all clients, or none any more: what the others lose stops the roll-out all the same."""
    broker = Memory()
    machines = [Machine(f"web-{number}", broker) for number in range(3)]
    machines[0].summary = replace(machines[0].summary, clients=max(liar, 20.0))

    async def fall(*_) -> None:
        while not all(one.stage for one in machines):
            await asyncio.sleep(0.01)
        for one, clients in zip(machines, (liar, 5.0, 5.0), strict=True):
            one.summary = replace(one.summary, clients=clients)
            await one.tell()

    waves = rollout.waves_of(("all",), everywhere=False, seconds=2.0)
    outcome, _, _ = await led(machines, document(waves=waves), fall)
    assert (outcome.is_kept, "clients" in outcome.reason) == (False, True), outcome.reason


async def test_harm_in_the_first_wave_reaches_nobody_else():
    broker = Memory()
    machines = [Machine("web-22", broker, harm="clients lose"), Machine("web-1", broker)]
    outcome, _, _ = await led(machines, document())
    assert (outcome.is_kept, [machine.stage for machine in machines]) == (False, ["undone", ""])


async def test_who_refuses_is_counted_and_left_out():
    broker = Memory()
    machines = [Machine("web-1", broker), Machine("dns-1", broker, refuses="its resolver is listed")]
    outcome, _, asked = await led(machines, document())
    assert asked.refused == {"dns-1": "its resolver is listed"}
    assert (outcome.is_kept, outcome.refused, machines[1].stage) == (True, 1, "")


async def test_a_machine_that_falls_silent_never_counts_as_applied(monkeypatch):
    monkeypatch.setattr(rollout, "_APPLY_SECONDS", 0.3)
    broker = Memory()
    machines = [Machine("web-22", broker), Machine("web-1", broker)]

    async def falls_silent(_leading, _task):
        machines[1].mute = True

    outcome, _, _ = await led(machines, document(), falls_silent)
    assert not outcome.is_kept
    assert outcome.reason == "applied on 1 of 2: web-1: silent"
    assert machines[0].stage == "undone"


async def test_a_leader_without_servers_says_that_the_trials_end_by_themselves():
    broker = Memory()
    machines = [Machine("web-22", broker), Machine("web-1", broker)]
    waves = tuple(replace(wave, seconds=30.0) for wave in document().waves)

    async def loses(leading, _task):
        while not machines[0].stage:
            await asyncio.sleep(0.01)
        leading.lost.set()
        machines[0].mute = True

        async def fails(*_, **__):
            raise rollout.FwtopError("the fleet's servers can't be used")

        leading.put = fails

    outcome, _, _ = await led(machines, document(waves=waves), loses)
    assert not outcome.is_kept
    assert (
        outcome.reason == "the fleet's servers were lost; what is on trial ends on each machine within 30 s"
    )


async def test_a_leader_that_loses_a_server_goes_on_through_another():
    broker = Memory()
    machines = [Machine("web-22", broker), Machine("web-1", broker)]
    tries = []

    async def loses(leading, _task):
        while not machines[0].stage:
            await asyncio.sleep(0.01)
        leading.lost.set()

        async def fails(*_, **__):
            raise rollout.FwtopError("the fleet's servers can't be used")

        leading.put = fails

    async def connect():
        tries.append(time.monotonic())
        if len(tries) < 2:
            raise rollout.FwtopError("not yet")
        return await broker.connect()

    outcome, said, _ = await led(machines, document(), loses, connect)
    assert outcome.is_kept, outcome
    assert [machine.stage for machine in machines] == ["kept", "kept"]
    assert any("another connection" in line for line in said)


async def test_two_machines_with_one_key_are_left_out():
    broker = Memory()
    machines = [Machine("web-22", broker), Machine("web-1", broker)]
    twin = Machine("web-22", broker)
    twin.key, twin.summary = machines[0].key, replace(twin.summary, instance="twin")
    await twin.start()
    outcome, _, asked = await led(machines, document())
    assert list(asked.refused) == ["web-22"]
    assert "two machines" in asked.refused["web-22"]
    assert (outcome.is_kept, outcome.meant) == (True, ["web-1"])


async def test_an_interrupted_leader_takes_it_back():
    broker = Memory()
    machine = Machine("web-1", broker)
    waves = tuple(replace(wave, seconds=30.0) for wave in document().waves)

    async def interrupts(_leading, task):
        while not machine.stage:
            await asyncio.sleep(0.01)
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await led([machine], document(waves=waves), interrupts)
    assert machine.stage == "undone"


async def test_what_no_machine_signed_is_only_counted():
    broker = Memory()
    machine, rogue = Machine("web-1", broker), Machine("web-1", broker)
    view = View(Register("prod", {"web-1": Member(machine.key.public, "U", ("web",), "t-9", 0.0)}))
    view.take("web-1", sealed_summary(rogue.summary, rogue.key))
    view.take("web-2", sealed_summary(machine.summary, machine.key))
    assert (view.machines, view.forged) == ({}, 2)
    view.take("web-1", sealed_summary(machine.summary, machine.key))
    assert view.machines["web-1"].summary.clients == 20.0
    older = replace(machine.summary, number=-1, clients=0.0)
    view.take("web-1", sealed_summary(older, machine.key))
    assert view.machines["web-1"].summary.clients == 20.0


async def test_two_machines_with_one_key_are_told():
    machine = Machine("web-1", Memory())
    view = View(Register("prod", {"web-1": Member(machine.key.public, "U", ("web",), "t-9", 0.0)}))
    for instance in ("one", "other", "one"):
        assert not (view.machines and view.machines["web-1"].is_double)
        view.take("web-1", sealed_summary(replace(machine.summary, instance=instance), machine.key))
    assert view.machines["web-1"].is_double


async def test_a_register_of_somebody_else_is_refused():
    transport, registrar = await Memory().connect(), MachineKey()
    known = Register("prod", {"web-1": Member("key", "user", (), "t-1", 1.0)})
    await register.write(transport, known, registrar)
    assert (await register.read(transport, "prod", registrar)).machines == known.machines
    for other, fleet in ((MachineKey(), "prod"), (registrar, "test")):
        with pytest.raises(rollout.FwtopError, match="nothing was done"):
            await register.read(transport, fleet, other)
    with pytest.raises(rollout.FwtopError) as refused:  # somebody wrote in between
        await register.write(transport, known, registrar)
    assert refused.value.reason == "changed"
