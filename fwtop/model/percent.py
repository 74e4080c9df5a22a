"""Shares as people read them, in every text the same."""


def percent(share: float, digits: int = 0) -> str:
    """Write a share of 0 to 1 as percent, never rounding something up to all or down to nothing.

    Near 0 and 100 % at least one digit follows the point, so that 99.7 % is not taken for all.
    """
    value = share * 100
    if value <= 0:
        return "0 %"
    if value >= 100:
        return f"{value:.0f} %"
    if value < 0.5 or value >= 99.5:
        digits = max(digits, 1)
    least = 10.0**-digits
    if value < least:
        return f"<{least:g} %"
    if digits and value > 100 - least:
        return f">{100 - least:g} %"
    return f"{value:.{digits}f} %"
