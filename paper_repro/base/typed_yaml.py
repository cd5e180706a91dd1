"""YAML into dataclasses, with the file and line in every complaint.

A file may lie ``over`` another: mappings are merged key by key, anything else is replaced, and a list with the tag
``!more`` follows the other file's.
"""

import dataclasses
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

from paper_repro.base.errors import UsageError, nearest

T = TypeVar("T")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MORE = "!more"


class Node:
    """A YAML node that knows its file and line."""

    def __init__(self, path: Path, node: yaml.Node, name: str = "") -> None:
        self.path, self.name, self._node = path, name, node

    @property
    def where(self) -> str:
        return f"{self.path}:{self._node.start_mark.line + 1}"

    def error(self, message: str) -> UsageError:
        return UsageError(f"{self.where}: {message}")

    @property
    def is_mapping(self) -> bool:
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_sequence(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode)

    def items(self) -> dict[str, "Node"]:
        """The entries of a mapping in their order; a key given twice is an error."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error(f"{self.name or 'this'} must be a mapping of keys to values")
        result: dict[str, Node] = {}
        for key_node, value_node in self._node.value:
            key = str(self._construct(key_node))
            if key in result:
                line = key_node.start_mark.line + 1
                raise UsageError(f"{self.path}:{line}: duplicate key '{key}' (first at line {result[key].key_line})")
            result[key] = Node(self.path, value_node, key)
            result[key].key_line = key_node.start_mark.line + 1
        return result

    key_line: int = 0

    def elements(self) -> list["Node"]:
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.error(f"{self.name or 'this'} must be a list")
        if self.continues:
            raise self.error(f"'{self.name}' is {_MORE} of a list, and there is none before it")
        return self._own_elements()

    def _own_elements(self) -> list["Node"]:
        return [Node(self.path, child, self.name) for child in self._node.value]

    @property
    def continues(self) -> bool:
        """Whether this is a list that follows the one it lies over."""
        return self.is_sequence and self._node.tag == _MORE

    def plain(self) -> Any:
        """The value as plain Python data."""
        if self.is_mapping:
            return {key: child.plain() for key, child in self.items().items()}
        if self.is_sequence:
            return [child.plain() for child in self.elements()]
        return self._construct(self._node)

    def _construct(self, node: yaml.Node) -> Any:
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            problem = getattr(error, "problem", None) or error
            raise UsageError(f"{self.path}:{node.start_mark.line + 1}: not understood: {problem}") from error
        finally:
            loader.dispose()


class _Over(Node):
    """A mapping or list over that of another file."""

    def __init__(self, base: Node, own: Node) -> None:
        super().__init__(own.path, own._node, own.name)
        self.key_line, self._base = own.key_line, base

    def items(self) -> dict[str, Node]:
        found = self._base.items()
        for key, child in super().items().items():
            found[key] = over(found[key], child) if key in found else child
        return found

    def elements(self) -> list[Node]:
        return self._base.elements() + self._own_elements()


def over(base: Node, own: Node) -> Node:
    """``own`` with what it leaves to ``base``; complaints name the file and line that an entry comes from."""
    if (base.is_mapping and own.is_mapping) or (base.is_sequence and own.continues):
        return _Over(base, own)
    return own


def read(path: Path) -> Node:
    """The root node of a YAML file.

    Raises:
        UsageError: the file cannot be read, is no YAML or is empty.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if root is None:
        raise UsageError(f"{path}: the file is empty")
    return Node(path, root)


def build(kind: type[T], node: Node) -> T:
    """An instance of the dataclass ``kind`` from a mapping node.

    A class with its own ``from_yaml(node)`` builds itself.  Raises UsageError with file and line for an unknown key, a
    missing value or one of the wrong type.
    """
    own = getattr(kind, "from_yaml", None)
    if own is not None:
        return typing.cast(T, own(node))
    entries = node.items()
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key, child in entries.items():
        if key not in fields:
            raise UsageError(f"{node.path}:{child.key_line}: unknown key '{key}'{nearest(key, fields)}")
    values = {}
    for name, field in fields.items():
        if name in entries:
            values[name] = convert(hints[name], entries[name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise node.error(f"missing '{name}'" + (f" in '{node.name}'" if node.name else ""))
    try:
        return kind(**values)
    except UsageError:
        raise
    except ValueError as error:
        raise node.error(str(error)) from error


def convert(hint: Any, node: Node) -> Any:
    """The value of ``node`` as the type ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if node.plain() is None:
            if type(None) in arguments:
                return None
            raise node.error(f"'{node.name}' must not be empty")
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return convert(hint, node)
    if origin in (list, tuple):
        items = [convert(arguments[0], child) for child in node.elements()]
        return items if origin is list else tuple(items)
    if origin is dict:
        return {key: convert(arguments[1], child) for key, child in node.items().items()}
    if hint is Any:
        return node.plain()
    if dataclasses.is_dataclass(hint) or hasattr(hint, "from_yaml"):
        return build(hint, node)
    return _scalar(hint, node)


def _scalar(hint: type, node: Node) -> Any:
    value = node.plain()
    if value is None:
        raise node.error(f"'{node.name}' must not be empty")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise node.error(f"'{node.name}' must be {_WORDS.get(hint, hint.__name__)}, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise node.error(f"'{node.name}' must be finite, not {value!r}")
    return value


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
