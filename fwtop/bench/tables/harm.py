"""A rule's predicted harm to legitimate clients against the measured harm (A5)."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from fwtop.bench.frame import Document, Options, Result, number, progress
from fwtop.bench.measured_harm import BASELINE, GUESS, PHASES, Harm, Trial, chosen, run_trial
from fwtop.model.errors import FwtopError
from fwtop.model.text import aligned, safe_text
from fwtop.sandbox.child import ask

_SECONDS, _QUICK_SECONDS = 10.0, 3.0
_QUICK = ("ipset-block", "hashlimit-shared", "string-dns")
_LIMIT_POINTS = 2.0
_SHORT = ("quiet", "attacked", "ruled")


def run(options: Options) -> Document:
    """Run all trials (those named; with `quick`, a few) and compare prediction and measurement."""
    names = options.captures or (_QUICK if options.quick else ())
    harms: list[Harm] = []
    notes: list[str] = []
    picked = chosen(names)
    for place, trial in enumerate(picked, 1):
        progress(f"trial {place} of {len(picked)}: {trial.name}")
        try:
            seconds = _QUICK_SECONDS if options.quick else _SECONDS
            harms.append(_run_in_child(trial, seconds, learn=not options.quick))
        except FwtopError as error:  # the others can still be measured
            notes.append(f"{trial.name} is left out: {safe_text(error)}")
    progress("")
    if not harms:
        raise FwtopError(f"nothing was measured; {'; '.join(notes)}")
    results = tuple(result for harm in harms for result in _results(harm))
    return Document("harm", 1, results, (*notes, *missed(harms)), lines=tuple(_lines(harms)))


def _run_in_child(trial: Trial, seconds: float, *, learn: bool) -> Harm:
    """Run a trial in a forked child: baselines are stored by namespace name, which holds the lab's pid."""
    return ask(
        lambda: run_trial(trial, seconds, learn=learn),
        Harm,
        who=f"the process of {trial.name}",
        after="it was not measured",
        stop=signal.SIGTERM,
    )


def _results(harm: Harm) -> Iterator[Result]:
    measured = f"{harm.name}: measured"
    for when, share in harm.predicted.items():
        ratio = share / harm.measured if harm.measured else None
        yield Result(
            f"{harm.name}: predicted {when}",
            "share",
            (share,),
            ratio,
            measured if ratio is not None else None,
        )
    yield Result(measured, "share", (harm.measured,))
    yield Result(f"{harm.name}: clients cut", "share", (harm.cut,))
    for what, unit, values in (("success", "share", harm.success), ("latency", "ms", harm.latency_ms)):
        for phase, value in zip(PHASES, values, strict=True):
            yield Result(f"{harm.name}: {what} {phase}", unit, (value,))


def _lines(harms: list[Harm]) -> Iterator[str]:
    yield f"{'':<18}{'predicted harm':>22}{'':>10}{'success':>26}{'latency, ms':>28}"
    heads = ("baseline", "guess", "measured", "off by", *_SHORT, *_SHORT)
    yield f"{'':<18}" + "".join(f"{head:>10}" for head in heads)
    for harm in harms:
        predicted = [harm.predicted.get(BASELINE), harm.predicted.get(GUESS)]
        cells = ["" if share is None else f"{share:.1%}" for share in (*predicted, harm.measured)]
        cells.append(f"{harm.points:.1f}")
        cells += [f"{share:.1%}" for share in harm.success]
        cells += [number(round(value, 2)) for value in harm.latency_ms]
        yield f"{harm.name:<18}" + "".join(f"{cell:>10}" for cell in cells)
    yield ""
    yield from aligned([(harm.name, harm.title) for harm in harms])


def missed(harms: list[Harm]) -> list[str]:
    """Return a line for each prediction that was more than two points off."""
    return [
        f"A5 {harm.name}: predicted {share:.2%} {how}, measured {harm.measured:.2%} ({harm.tried} attempts)"
        for harm in harms
        for how, share in harm.predicted.items()
        if abs(share - harm.measured) * 100 > _LIMIT_POINTS
    ]
