"""YAML with places, read without building anything but plain values: no tag is followed, no alias multiplies."""

from __future__ import annotations

from typing import Any

import yaml

from placealg.errors import InputError
from placealg.importers.document import MAX_DEPTH, MAX_NODES, Document, Include, Key

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "timestamp", "value")}
_MERGE = "tag:yaml.org,2002:merge"


def yaml_document(text: str, file: str) -> Document:
    r"""The value of a YAML text, `{}` where it holds none.

    Keys become strings; of a key that stands twice the last holds, and `twice` says so. `!include FILE` is kept as an
    Include. Any other tag, an alias that contains itself, aliases that multiply beyond bounds, and several documents
    are InputErrors with their lines.

    >>> yaml_document("zero_stage: 2\nmixed_precision: 'no'", "a.yaml").data
    {'zero_stage': 2, 'mixed_precision': 'no'}
    """
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        reader = _Reader(loader, file)
        value = {} if node is None else reader.value(node, (), ())
        return Document(file, {} if value is None else value, reader.lines, text, reader.twice)
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"not YAML: {error.problem or error.context}", where=f"{file}{line}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", where=file) from None
    except RecursionError:
        raise InputError("nested too deeply", where=file) from None
    finally:
        loader.dispose()


class _Reader:
    """Turns nodes into values, and keeps the line of every key."""

    def __init__(self, loader: Any, file: str):
        self.loader, self.file = loader, file
        self.lines: dict[Key, int] = {}
        self.twice: dict[Key, int] = {}
        self.count = 0

    def where(self, node: Any) -> str:
        return f"{self.file}:{node.start_mark.line + 1}"

    def value(self, node: Any, path: Key, above: tuple[int, ...]) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise InputError(f"more than {MAX_NODES} values, aliases written out", where=self.where(node))
        if id(node) in above:
            raise InputError("an alias is inside the node that it names", where=self.where(node))
        if len(path) > MAX_DEPTH:
            raise InputError(f"nested more than {MAX_DEPTH} deep", where=self.where(node))
        above = (*above, id(node))
        if node.tag == "!include" and isinstance(node, yaml.ScalarNode):
            return Include(str(node.value))
        if isinstance(node, yaml.MappingNode):
            self.plain(node, "map")
            return self.table(node, path, above)
        if isinstance(node, yaml.SequenceNode):
            self.plain(node, "seq")
            made = []
            for at, inner in enumerate(node.value):
                self.lines[(*path, at)] = inner.start_mark.line + 1
                made.append(self.value(inner, (*path, at), above))
            return made
        if node.tag not in _PLAIN:
            raise self.tagged(node)
        return self.scalar(node)

    def plain(self, node: Any, kind: str) -> None:
        if node.tag != f"tag:yaml.org,2002:{kind}":
            raise self.tagged(node)

    def tagged(self, node: Any) -> InputError:
        return InputError(f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} would build an object; plain "
                          "values "
                          "are read", where=self.where(node))

    def scalar(self, node: Any) -> Any:
        if node.tag.endswith(":timestamp") or node.tag.endswith(":value"):
            return node.value
        if node.tag.endswith(":int") and ":" in node.value:
            return node.value
        return self.loader.construct_object(node)

    def table(self, node: Any, path: Key, above: tuple[int, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        own: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                for inner in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    if not isinstance(inner, yaml.MappingNode):
                        raise InputError("'<<' merges tables alone", where=self.where(inner))
                    for name, value in self.table(inner, path, (*above, id(inner))).items():
                        merged.setdefault(name, value)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError("a key is a word, not a table or a list", where=self.where(key_node))
            name = str(key_node.value)
            if name in own:
                self.twice[(*path, name)] = own[name]
            own[name] = line
            made[name] = self.value(value_node, (*path, name), above)
            self.lines[(*path, name)] = line
        return {**{name: value for name, value in merged.items() if name not in made}, **made}
