"""A table as plain text for people."""

from __future__ import annotations

from fwtop.bench.frame import Document, Result


def render(document: Document) -> str:
    """Write heading, rows and notes; figures aligned, ratios beside the published ones."""
    plural = "" if document.rounds == 1 else "s"
    heading = (
        f"{document.table} · {document.machine} · kernel {document.kernel} · {document.rounds} round{plural}"
    )
    lines = document.lines or _lines(document)
    return "\n".join([heading, "", *lines, *([""] if document.notes else []), *document.notes]) + "\n"


def _lines(document: Document) -> list[str]:
    has_ratio = any(result.ratio is not None for result in document.results)
    has_published = any(result.published is not None for result in document.results)
    titles = ["", "median", "low", "high", "unit"]
    titles += ["ratio"] if has_ratio else []
    titles += ["published"] if has_published else []
    titles += ["to"] if has_ratio else []
    rows = [titles]
    for result in document.results:
        cells = _figures(result)
        cells += [_ratio(result.ratio)] if has_ratio else []
        cells += [_ratio(result.published)] if has_published else []
        cells += [result.versus or ""] if has_ratio else []
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    left = {0, 4, len(titles) - 1} if has_ratio else {0, 4}
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _figures(result: Result) -> list[str]:
    figures = result.to_json()
    return [result.name, *(number(figures[name]) for name in ("median", "low", "high")), result.unit]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def number(value: float) -> str:
    """Write a figure with as many digits as it deserves."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
