"""Read YAML into dataclasses and name the file and line in every complaint.

Scalars follow the core schema of YAML 1.2: ``1e-3`` is a number, ``yes`` and ``1:30`` are text.  Anchors, aliases,
merge keys and tags are refused: a file inherits by lying ``over`` another one and in no other way.  Mappings are merged
key by key there, anything else is replaced, and a list with the tag ``!more`` continues the other file's list.
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from paper_repro.base.errors import UsageError, nearest

T = TypeVar("T")
_MORE = "!more"
_CORE = "tag:yaml.org,2002:"
_DEEPEST = 40
"""How many mappings and lists may lie in one another; the deepest file here has 9."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that knows the scalars of YAML 1.2's core schema and no others."""

    yaml_implicit_resolvers: typing.ClassVar[dict[str, Any]] = {}


_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_CORE + _kind, re.compile(rf"^(?:{_pattern})$"), _first)


class Node:
    """A YAML node that knows its file and line."""

    def __init__(self, path: Path, node: yaml.Node, name: str = "", library: "Library | None" = None) -> None:
        self.path, self.name, self._node, self._library = path, name, node, library or {}

    @property
    def line(self) -> int:
        return int(self._node.start_mark.line) + 1

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def error(self, message: str) -> UsageError:
        return UsageError(f"{self.where}: {message}")

    @property
    def is_mapping(self) -> bool:
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_sequence(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode)

    def items(self) -> dict[str, "Node"]:
        """Return the entries of a mapping in their order; a key given twice is an error."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error(f"{self.name or 'this'} must be a mapping of keys to values")
        result: dict[str, Node] = {}
        for key_node, value_node in self._node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UsageError(f"{self.path}:{line}: a key is one word, not a list or mapping")
            key = key_node.value
            if key == "<<":
                raise UsageError(f"{self.path}:{line}: merge keys (<<) are not read: inherit a whole file with 'like'")
            if key in result:
                raise UsageError(f"{self.path}:{line}: duplicate key '{key}' (first at line {result[key].key_line})")
            listed = key in self._library and isinstance(value_node, yaml.SequenceNode)
            kind = functools.partial(_Named, known=self._library[key]) if listed else Node
            result[key] = kind(self.path, value_node, key)
            result[key].key_line = line
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
        """Return the value as plain Python data."""
        if self.is_mapping:
            return {key: child.plain() for key, child in self.items().items()}
        if self.is_sequence:
            return [child.plain() for child in self.elements()]
        return self._construct(self._node)

    def plain_scalars(self) -> Iterator[tuple[int, str, str]]:
        """Yield line, text and tag of each scalar without quotes, keys among them."""
        stack = [self._node]
        while stack:
            node = stack.pop()
            if isinstance(node, yaml.MappingNode):
                stack += [child for pair in node.value for child in pair]
            elif isinstance(node, yaml.SequenceNode):
                stack += node.value
            elif isinstance(node, yaml.ScalarNode) and not node.style:
                yield int(node.start_mark.line) + 1, node.value, node.tag

    def text(self) -> str:
        """Return the words of a scalar as they stand in the file: ``1e-3``, not 0.001."""
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.error(f"{self.name or 'this'} must be one word or number")
        return str(self._node.value)

    def _construct(self, node: yaml.Node) -> Any:
        text = node.value
        try:
            match node.tag.removeprefix(_CORE):
                case "str":
                    return text
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
                case "float":
                    return float(text.replace(".inf", "inf").replace(".nan", "nan") if text[-1].isalpha() else text)
        except (KeyError, ValueError) as error:
            raise UsageError(f"{self.path}:{node.start_mark.line + 1}: not understood: {text!r}") from error
        raise UsageError(f"{self.path}:{node.start_mark.line + 1}: not understood: the tag {node.tag!r}")


Library = Mapping[str, Mapping[str, Node]]
"""Definitions by name, for each section whose list names them."""


class _Named(Node):
    """A list of names, ``[loss, {perplexity: {digits: 2}}]``, as the mapping of their definitions."""

    def __init__(self, path: Path, node: yaml.Node, name: str, known: Mapping[str, Node]) -> None:
        super().__init__(path, node, name)
        self._known = known

    is_mapping, is_sequence = True, False

    def items(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for child in self._own_elements():
            if not child.is_mapping and child.text() not in self._known:
                raise child.error(f"unknown '{child.text()}' in '{self.name}'{nearest(child.text(), self._known)}")
            own = child.items() if child.is_mapping else {child.text(): self._known[child.text()]}
            for name, node in own.items():
                found[name] = over(self._known[name], node) if name in self._known else node
        return found


class _Over(Node):
    """A mapping or list over that of another file."""

    def __init__(self, base: Node, own: Node) -> None:
        super().__init__(own.path, own._node, own.name)
        self.key_line, self._base, self._own = own.key_line, base, own

    @property
    def is_mapping(self) -> bool:
        return self._own.is_mapping

    def items(self) -> dict[str, Node]:
        found = self._base.items()
        for key, child in self._own.items().items():
            found[key] = over(found[key], child) if key in found else child
        return found

    def elements(self) -> list[Node]:
        return self._base.elements() + self._own_elements()


def over(base: Node, own: Node) -> Node:
    """Return ``own`` with what it leaves to ``base``; complaints name the file and line that an entry comes from."""
    if (base.is_mapping and own.is_mapping) or (base.is_sequence and own.continues):
        return _Over(base, own)
    return own


_SHARED = (
    "inherit with 'like', and give what scales share under 'runs', what tolerances share under 'tolerances: default'"
)


def read(path: Path, instead: str = _SHARED, library: Library | None = None) -> Node:
    """Return the root node of a YAML file.

    Args:
        instead: what to write in the place of an anchor.
        library: definitions that its sections may name in a list.

    Raises:
        UsageError: the file cannot be read, is no YAML or is empty, has an anchor or an alias, or lies too deep.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_anchors(path, text, instead)
        root = yaml.compose(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if root is None:
        raise UsageError(f"{path}: the file is empty")
    return Node(path, root, library=library)


def _refuse_anchors(path: Path, text: str, instead: str) -> None:
    """Raises UsageError for an anchor, an alias or too deep a nesting, before any node is built of them."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise UsageError(f"{path}:{line}: {sign}{event.anchor}: anchors and aliases are not read: {instead}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise UsageError(f"{path}:{line}: more than {_DEEPEST} mappings and lists lie in one another")


def build(kind: type[T], node: Node) -> T:
    """Return an instance of the dataclass ``kind`` from a mapping node.

    A class with its own ``from_yaml(node)`` builds itself.  Raises UsageError with file and line for an unknown key, a
    missing value or one of the wrong type.
    """
    own = getattr(kind, "from_yaml", None)
    if own is not None:
        return typing.cast(T, own(node))
    hints = _hints(kind)  # type: ignore[arg-type]
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    found = entries(node, required, [name for name in fields if name not in required])
    values = {name: convert(hints[name], found[name]) for name in fields if name in found}
    try:
        return kind(**values)
    except UsageError:
        raise
    except ValueError as error:
        raise node.error(str(error)) from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def entries(node: Node, required: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Node]:
    """Return the entries of a mapping.

    Raises:
        UsageError: with file and line, for one that is neither required nor optional, and for a required one missing.
    """
    found, known = node.items(), (*required, *optional)
    for key, child in found.items():
        if key not in known:
            raise UsageError(f"{child.path}:{child.key_line}: unknown key '{key}'{nearest(key, known)}")
    for key in required:
        if key not in found:
            raise node.error(f"missing '{key}'" + (f" in '{node.name}'" if node.name else ""))
    return found


def convert(hint: Any, node: Node) -> Any:
    """Return the value of ``node`` as the type ``hint``."""
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
