"""A JSON Schema of strategy files, made from the tables that read them: editors complete and check by it.

`python -m placealg.strategy.json_schema` prints it. What a schema cannot say is left to the reader of files: that an
axis is one of the mesh, that tables agree with each other, that a pattern matches an event.
"""

from __future__ import annotations

import json

from placealg.strategy.file import TOP
from placealg.strategy.kinds import Schema, by_name
from placealg.strategy.options import TABLES, Key, Table


def json_schema() -> Schema:
    """The schema of a whole file, as plain data.

    >>> json_schema()["properties"]["schedule"]["properties"]["sharing"]["enum"]
    ['shared', 'per_use']
    """
    properties = {name: {**kind.schema, "description": says} for name, (kind, says) in TOP.items()}
    for name, table in TABLES.items():
        made = _table(table)
        properties[name] = {**(by_name(made) if name == "groups" else made), "description": table.says}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a placealg strategy",
            "type": "object", "properties": properties, "additionalProperties": False,
            "anyOf": [{"required": ["base"]}, {"required": ["mesh", "dims"]}]}


def _table(table: Table) -> Schema:
    keys = {key: _value(row) for key, row in table.keys.items()}
    if "*" in keys:
        return by_name(keys["*"])
    return {"type": "object", "properties": keys, "additionalProperties": False}


def _value(key: Key) -> Schema:
    """What a key accepts, with what it says and the words in which its reader tells what is valid."""
    return {**key.kind.schema, "description": " ".join((*key.says, f"Accepted: {key.kind.words}."))}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
