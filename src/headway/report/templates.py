"""Where the pages' templates come from."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(name: str) -> Template:
    """The template of a page, such as `live.html.j2`: text is escaped, and a name that is not given is an error."""
    environment = Environment(
        loader=PackageLoader("headway.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(name)
