"""Plots of a few lines on a terminal: bars of Unicode blocks, or of `#` where a terminal shows only ASCII."""

from __future__ import annotations

from collections.abc import Sequence

EIGHTHS_UP = " ▁▂▃▄▅▆▇█"
EIGHTHS_RIGHT = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """A horizontal bar of `share` (0 to 1) of `width` characters; a share above 0 is never invisible."""
    if ascii_only:
        return "#" * (max(round(share * width), 1) if share > 0 else 0)
    eighths = max(round(share * width * 8), 1) if share > 0 else 0
    return "█" * (eighths // 8) + EIGHTHS_RIGHT[eighths % 8].strip()


def columns(values: Sequence[float], height: int, *, ascii_only: bool = False) -> list[str]:
    """Lines, from the top, of a column for each value; the largest is `height` lines tall."""
    most = max(values, default=0)
    eighths = [max(round(value / most * height * 8), 1) if value > 0 else 0 for value in values]
    lines = []
    for line in range(height - 1, -1, -1):
        levels = [min(max(tall - 8 * line, 0), 8) for tall in eighths]
        if ascii_only:
            lines.append("".join("#" if level >= 4 or (level and not line) else " " for level in levels))
        else:
            lines.append("".join(EIGHTHS_UP[level] for level in levels))
    return lines
