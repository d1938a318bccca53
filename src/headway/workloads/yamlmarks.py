"""YAML that remembers where each value stands, so that an error names file, line and key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from headway.core.errors import UserError, did_you_mean, shown

FILE_BYTES_MAX = 1_000_000
DEPTH_MAX = 16
_TAG = "tag:yaml.org,2002:"
# What plain YAML can mean without naming a tag. `!!python/…` and other named tags are refused.
_NAMES = ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "seq", "map")
_TAGS = frozenset(_TAG + name for name in _NAMES)

T = TypeVar("T")
Parser = Callable[[yaml.Node, str], Any]


class _Loader(yaml.SafeLoader):
    """Composes nodes and builds no values; refuses aliases and deep nesting before either can grow."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused("anchors (&) and aliases (*) are not allowed", event.start_mark)
        if self.depth > DEPTH_MAX:
            raise _refused(f"nested over {DEPTH_MAX} deep", event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _refused(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def read_text(path: Path, file: str) -> str:
    """Return a small text file; one `UserError` for one that is missing, too large or not text."""
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", file=file) from None
    if len(data) > FILE_BYTES_MAX:
        raise UserError(f"over {FILE_BYTES_MAX} bytes", file=file)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError("not text in UTF-8", file=file, line=data.count(b"\n", 0, error.start) + 1) from None


def compose(text: str, file: str, what: str) -> yaml.Node:
    """Return the one document of a YAML text; `what` is what messages say was expected."""
    loader = None
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise UserError(f"not valid YAML: {problem}", file=file, line=mark.line + 1 if mark else 0) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"not text: a character U+{ord(text[error.position]):04X}", file=file, line=line) from None
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {error}", file=file) from None
    except (ValueError, OverflowError):
        # PyYAML turns escapes such as "\UFFFFFFFF" into characters without looking whether there are such.
        line = loader.line + 1 if loader else 0
        raise UserError("not valid YAML: a number or an escape out of range", file=file, line=line) from None
    if root is None:
        raise UserError(f"expected {what}, got an empty file", file=file)
    _refuse_tags(root, file)
    return root


def _refuse_tags(root: yaml.Node, file: str) -> None:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.tag not in _TAGS:
            raise UserError(f"the YAML tag {shown(node.tag)} is not allowed", file=file, line=node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


class Marks:
    """Reads the nodes of one file strictly. A scalar is taken as it was written: `8` and `"8"` are the same."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        """On which line each key stands that has been read."""

    def fail(self, message: str, node: yaml.Node, key: str) -> NoReturn:
        raise UserError(message, file=self.file, line=node.start_mark.line + 1, key=key)

    def scalar(self, node: yaml.Node, key: str) -> str:
        """The text of one value."""
        if not isinstance(node, yaml.ScalarNode):
            self.fail(f"expected one value, got {_kind(node)}", node, key)
        return str(node.value)

    def text_as(self, parse: Callable[[str], T]) -> Callable[[yaml.Node, str], T]:
        """A parser of scalars that tells a `ValueError` of `parse` with its place."""

        def read(node: yaml.Node, key: str) -> T:
            try:
                return parse(self.scalar(node, key))
            except ValueError as error:
                self.fail(str(error), node, key)

        return read

    def items(self, node: yaml.Node, key: str) -> Iterator[tuple[str, yaml.Node, yaml.Node, str]]:
        """Yield (name, its node, value node, key path) of a mapping; refuse repeated names."""
        if not isinstance(node, yaml.MappingNode):
            self.fail(f"expected keys and values, got {_kind(node)}", node, key)
        seen: dict[str, int] = {}
        for name_node, value in node.value:
            name = self.scalar(name_node, key)
            path = f"{key}.{name}" if key else name
            if name in seen:
                self.fail(f"given twice (first on line {seen[name]})", name_node, path)
            self.lines[path] = seen[name] = name_node.start_mark.line + 1
            yield name, name_node, value, path

    def section(self, node: yaml.Node, key: str, parsers: Mapping[str, Parser]) -> dict[str, Any]:
        """The values of the known keys that a mapping gives; a key without a value isn't given."""
        values: dict[str, Any] = {}
        for name, name_node, value, path in self.items(node, key):
            if name not in parsers:
                hint = did_you_mean(name, parsers) or f"; known: {', '.join(parsers)}"
                self.fail(f"unknown key{hint}", name_node, path)
            if value.tag != f"{_TAG}null":
                values[name] = parsers[name](value, path)
        return values

    def sequence(self, node: yaml.Node, key: str) -> list[yaml.Node]:
        """The nodes of a list."""
        if not isinstance(node, yaml.SequenceNode):
            self.fail(f"expected a list, got {_kind(node)}", node, key)
        return list(node.value)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return shown(node.value) if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "keys and values"
