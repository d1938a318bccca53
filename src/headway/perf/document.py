"""Generated sections of a Markdown page, and their tables."""

from __future__ import annotations

from headway.core.errors import UserError


def markers(section: str) -> tuple[str, str]:
    """The comments between which a command writes."""
    return f"<!-- {section}: generated, do not edit -->", f"<!-- end of {section} -->"


def replace_section(page: str, section: str, text: str) -> str:
    """The page with new text between the markers of a section.

    Raises:
        UserError: the page has no such markers.
    """
    begin, end = markers(section)
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise UserError(f"expected the lines {begin} and {end}, once and in this order")
    return f"{page[: page.index(begin)]}{begin}\n\n{text}\n\n{page[page.index(end) :]}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
