"""Pictures as PNG, by resvg: an extra (`pip install 'headway[report]'`)."""

from __future__ import annotations

from headway.core.errors import UserError

ZOOM = 2
"""Pixels for each unit of a picture: sharp on today's screens and in print."""


def check_png() -> None:
    """Raise `UserError`, in one line, if the library that draws PNG is not installed."""
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        raise UserError("needs resvg, which is an extra: pip install 'headway[report]'", key="png") from None


def png(svg: str) -> bytes:
    """A picture of its own (`Figure.draw(…, alone=True)`) as PNG. Its letters are of the machine's fonts."""
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=ZOOM, font_family="DejaVu Sans", sans_serif_family="DejaVu Sans"))
