"""Numbers as people read them. Pure."""

from __future__ import annotations

_HOUR_SECONDS = 3600


def count(number: float) -> str:
    """Return a whole number with commas."""
    return f"{round(number):,}"


def short(number: float) -> str:
    """Return a number in three figures or so: 950, 1.2k, 45k, 3.1M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size * 0.9995:
            scaled = number / size
            return f"{scaled:.{1 if abs(scaled) < 99.95 else 0}f}".removesuffix(".0") + letter
    if number == int(number) or abs(number) >= 10:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 0.95 else f"{number:.2g}"


def percent(share: float) -> str:
    """Return a share: one decimal, and never 0 % or 100 % of what is not none or all."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share * 100:.0f} %" if share in (0, 1) else f"{share * 100:.1f} %"


def hours(seconds: float) -> str:
    """Return a time in hours, as GPU time is counted."""
    value = seconds / _HOUR_SECONDS
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def money(amount: float) -> str:
    """Return an amount without a currency, which is that of the price."""
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:,.2f}" if amount else "0"
