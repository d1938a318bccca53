"""Who may use the cluster, and how much of it: `headway token`, `users`, `queues`. Thin, as `headway.cli`."""

import os
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli_output import AsJson, connect, note, out, print_columns, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.app.tokens import Tokens

TOKEN_COLUMNS = ("NAME", "USER", "ROLE", "CREATED", "EXPIRES")
USER_COLUMNS = ("USER", "RUNNING", "QUEUED", "MOST", "GPUS", "JOB-GPUS", "URGENCY", "ADMIN")
QUEUE_COLUMNS = ("QUEUE", "PARENT", "WEIGHT", "QUOTA", "LIMIT", "GPUS", "RUNNING", "QUEUED")
NUMBERS = ("RUNNING", "QUEUED", "MOST", "GPUS", "JOB-GPUS", "URGENCY", "WEIGHT", "QUOTA", "LIMIT")

token = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(token, name="token", short_help="Make, list and revoke tokens.", help="Make, list and revoke tokens.")
    app.command(short_help="Users: what they have, and may have.")(users)
    app.command(short_help="Queues: quotas, limits, and what they use.")(queues)


# -- tokens ----------------------------------------------------------------------------------------------------------
@token.command("create", short_help="Make a token; it is shown this once.")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it: letters, digits, '.', '@', '-'.")],
    user: Annotated[str, typer.Option(help="Whose jobs it hands in; default: its name.", metavar="USER")] = "",
    role: Annotated[str, typer.Option(help="user: own jobs; operator: all jobs and nodes; admin: all.", metavar="ROLE")] = "user",
    expires: Annotated[str, typer.Option(help="How long it works, such as 30d; default: always.", metavar="TIME")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a token for HEADWAY_TOKEN. It is printed this once and kept nowhere but as a hash.

    Where no controller runs, the token is made in HEADWAY_HOME, for the next one.
    """
    with _tokens() as tokens:
        made = tokens.create(name, user=user or name, role=role, expires=expires)
    if as_json:
        print_json(made)
        return
    note(f"a token for {made['user']} ({made['role']}); it is not shown again")
    out(made["token"])


@token.command("list", short_help="All tokens, without their secrets.")
def list_(as_json: AsJson = False) -> None:
    """Show all tokens, without their secrets."""
    with _tokens() as tokens:
        found = tokens.all()
    if as_json:
        print_json({"tokens": found})
        return
    rows = [(t["name"], t["user"], t["role"], _day(t["created_at"]), _day(t["expires_at"]) or "never") for t in found]
    print_columns(TOKEN_COLUMNS, rows)


@token.command("revoke", short_help="Have tokens be worth nothing.")
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of tokens, as `headway token list` shows them.")],
    as_json: AsJson = False,
) -> None:
    """Have tokens be worth nothing from now on."""
    with _tokens() as tokens:
        for name in names:
            tokens.revoke(name)
    if as_json:
        print_json({"revoked": names})
        return
    for name in names:
        out(f"{name}: revoked")


@contextmanager
def _tokens() -> "Iterator[Tokens]":
    """The tokens of the controller that runs; without one, those of the home."""
    from headway.app.client import NoControllerError
    from headway.app.tokens import HomeTokens, RemoteTokens

    try:
        client = connect()
    except NoControllerError:
        yield HomeTokens.of(os.environ)
        return
    with client:
        yield RemoteTokens(client)


def _day(time: str | None) -> str:
    return (time or "")[:16].replace("T", " ")


# -- users and queues ------------------------------------------------------------------------------------------------
def users(as_json: AsJson = False) -> None:
    """Show users: their jobs that run and wait, how many may wait (MOST), the GPUs that they use, those that one job
    of theirs may have, and their budget of urgency.
    """
    from headway.app import live

    with connect() as client:
        found = live.users(client)
    if as_json:
        print_json(found)
        return
    keys = ("user", "running", "queued", "queued_max", "gpus_used", "gpus_max", "urgency_budget", "admin")
    print_columns(USER_COLUMNS, _rows(found["users"], keys), numbers=NUMBERS)


def queues(as_json: AsJson = False) -> None:
    """Show queues: the GPUs that each is guaranteed (QUOTA), may have (LIMIT) and uses, and its jobs."""
    from headway.app import live

    with connect() as client:
        found = live.queues(client)
    if as_json:
        print_json(found)
        return
    keys = ("queue", "parent", "weight", "quota_gpus", "limit_gpus", "gpus_used", "running", "queued")
    print_columns(QUEUE_COLUMNS, _rows(found["queues"], keys), numbers=NUMBERS)


def _rows(found: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[list[str]]:
    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "-" if value in (None, "") else str(value)

    return [[cell(row[key]) for key in keys] for row in found]
