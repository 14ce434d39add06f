"""Writers of the two pre-1.0 drafts, by their texts, and one history to write with them.

No library writes the drafts, so these writers are the tests' reading of the texts; where a text
leaves something open they follow the decisions at the head of the reading modules.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000
START = 1_719_792_000 * SECOND
CROCKFORD = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)


@dataclass
class Group:
    number: int
    attributes: dict = field(default_factory=dict)


@dataclass
class Array:
    """An array whose chunks are the plain little-endian bytes of their elements.

    ``places`` says of a chunk how it is stored: native (the default), packed, inline, virtual or
    missing; missing chunks must hold the fill value.
    """

    number: int
    values: np.ndarray
    chunk_shape: tuple
    fill: object = 0
    places: dict = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)
    dimension_names: list | None = None

    def chunks(self):
        shape = self.values.shape
        counts = [-(-n // c) for n, c in zip(shape, self.chunk_shape, strict=True)]
        for at in np.ndindex(*counts):
            start = [i * c for i, c in zip(at, self.chunk_shape, strict=True)]
            chunk = np.full(self.chunk_shape, self.fill, dtype=self.values.dtype)
            part = self.values[
                tuple(slice(s, s + c) for s, c in zip(start, self.chunk_shape, strict=True))
            ]
            chunk[tuple(slice(0, n) for n in part.shape)] = part
            yield at, self.places.get(at, "native"), chunk.tobytes()

    @property
    def codecs(self):
        codec = {"name": "bytes"}
        if self.values.dtype.itemsize > 1:
            codec["configuration"] = {"endian": "little"}
        return [codec]


@dataclass
class Version:
    name: str
    parent: str | None
    time: int
    nodes: dict
    message: str = ""
    properties: dict = field(default_factory=dict)


@dataclass
class History:
    versions: list
    branches: dict
    tags: dict

    def of(self, name):
        return next(v for v in self.versions if v.name == name)

    def line(self, name):
        while name is not None:
            yield name
            name = self.of(name).parent


def some_history():
    """Return three versions on two branches and a tag, with chunks of all kinds."""
    t2m = np.arange(20, dtype="float32").reshape(4, 5) / 8
    places = {(0, 0): "packed", (0, 1): "packed", (1, 0): "inline", (1, 1): "virtual"}
    first = {
        "/": Group(0, {"title": "ü"}),
        "/g": Group(1),
        "/g/t2m": Array(2, t2m, (2, 3), np.nan, places, {"units": "K"}, ["y", None]),
        "/scalar": Array(3, np.array(7, dtype="int64"), ()),
        "/flags": Array(4, np.array([True, False, False]), (2,), False, {(1,): "missing"}),
    }
    changed = t2m.copy()
    changed[0, 4] = -1
    second = first | {
        "/": Group(0, {"title": "changed"}),
        "/g/t2m": Array(2, changed, (2, 3), np.nan, places, {"units": "K"}, ["y", None]),
    }
    longer = np.concatenate([t2m, t2m])
    third = {key: first[key] for key in ("/", "/g")} | {
        "/g/t2m": Array(2, longer, (2, 3), np.nan, places, {"units": "K"}, ["y", None]),
        "/g/new/complex": Array(5, np.array([1 + 2j, 3, 4], dtype="complex64"), (2,)),
        "/g/new/words": Array(6, np.array([1, -2, 2**62], dtype="int64"), (5,), -2),
    }
    return History(
        versions=[
            Version("first", None, START, first, "one", {"user": "a", "n": [1, 2.5, None]}),
            Version("second", "first", START + 2 * SECOND, second, "two"),
            # The clock of this writer was late: before its parent.
            Version("third", "first", START - 5 * SECOND, third, "three"),
        ],
        branches={"main": "second", "development": "third"},
        tags={"v1": "first"},
    )


def instant(time):
    return datetime.fromtimestamp(time / SECOND, UTC).isoformat().replace("+00:00", "Z")


def id16(name):
    return name.encode().ljust(16, b"-")[:16]


def crockford(raw):
    return base64.b32encode(raw).rstrip(b"=").translate(CROCKFORD).decode()


def float_json(value):
    return value if np.isfinite(value) else None


class Placing:
    """Gives chunks a place: in objects of their own, packed, or in files elsewhere."""

    def __init__(self, put, folder, outside, key_of):
        self.put, self.folder, self.outside, self.key_of = put, folder, outside, key_of
        self.count = 0

    def place(self, name, kind, data):
        """Return (name of the object or URL, offset) of a chunk."""
        self.count += 1
        if kind == "virtual":
            file = self.outside / f"{name}.bin"
            file.write_bytes(b"before" + data)
            return file.as_uri(), 6
        if kind == "packed":
            self.put(self.folder + self.key_of(name), b"x" * 10 + data + b"rest")
            return name, 10
        self.put(self.folder + self.key_of(name), data)
        return name, 0


def write_numbered(
    storage, history, outside, *, encode=json.dumps, name_of=crockford, ending="", keys="{0}/{1}"
):
    """Write a history by the draft with numbered branch files; ``encode`` makes the records."""
    binary = encode is not json.dumps

    def put(key, value):
        data = encode(value)
        storage.put(key, data if isinstance(data, bytes) else data.encode())

    def raw(data):
        return data if binary else list(data)

    placing = Placing(storage.put, "c/", outside, lambda name: name_of(id16(name)) + ending)
    meta = {
        v.name: {"id": list(id16(v.name)), "message": v.message, "written_at": instant(v.time)}
        for v in history.versions
    }
    for version in history.versions:
        nodes = {}
        for path, node in version.nodes.items():
            entry = {"id": node.number, "path": path, "user_attributes": None}
            if node.attributes:
                entry["user_attributes"] = {"Inline": node.attributes}
            entry["node_data"] = "Group"
            if isinstance(node, Array):
                manifest = f"m{version.name}{node.number}"
                refs = {}
                for at, kind, data in node.chunks():
                    if kind == "missing":
                        continue
                    key = keys.format(node.number, "/".join(map(str, at))).rstrip("/")
                    if kind == "inline":
                        refs[key] = {"Inline": raw(data)}
                        continue
                    name, offset = placing.place(f"{version.name[:2]}{placing.count}", kind, data)
                    if kind == "virtual":
                        ref = {"location": name, "offset": offset, "length": len(data)}
                        refs[key] = {"Virtual": ref}
                    else:
                        ref = {"id": raw(id16(name)), "offset": offset, "length": len(data)}
                        refs[key] = {"Ref": ref}
                refs[keys.format(99, "0")] = {"Inline": [1]}
                put(f"m/{name_of(id16(manifest))}{ending}", {"chunks": refs})
                ref = {"object_id": raw(id16(manifest)), "extents": [[0], [9]], "flags": []}
                entry["node_data"] = {"Array": [array_metadata(node, binary), [ref]]}
            nodes[path] = entry
        ancestors = list(history.line(version.name))[1:]
        put(
            f"s/{name_of(id16(version.name))}{ending}",
            {
                "metadata": meta[version.name],
                "nodes": nodes,
                "properties": version.properties,
                "short_term_history": [meta[name] for name in ancestors],
                "short_term_parents": len(ancestors),
                "started_at": instant(version.time),
                "total_parents": len(ancestors),
            },
        )

    def ref(name, **properties):
        return {
            "properties": properties,
            "snapshot": list(id16(name)),
            "timestamp": instant(START),
        }

    for branch, tip in history.branches.items():
        for number, name in enumerate(reversed(list(history.line(tip)))):
            data = json.dumps(ref(name, sequence=number)).encode()
            storage.put(f"r/{branch}/{branch_file(number)}.json", data)
    for tag, name in history.tags.items():
        storage.put(f"r/{tag}.json", json.dumps(ref(name)).encode())


def branch_file(number):
    left, text = 1_099_511_627_775 - number, ""
    while left:
        left, digit = divmod(left, 32)
        text = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[digit] + text
    return text.rjust(8, "0")


def array_metadata(node, binary):
    dtype = node.values.dtype
    name = dtype.name
    tag = {"bool": "Bool"}.get(name) or name.replace("uint", "UInt").replace("int", "Int")
    tag = tag.replace("UInt", "UInt").replace("float", "Float").replace("complex", "Complex")
    fill = node.fill
    if dtype.kind == "f":
        fill = float(fill) if binary else float_json(fill)
    elif dtype.kind == "c":
        fill = [complex(fill).real, complex(fill).imag]
    return {
        "shape": list(node.values.shape),
        "chunk_shape": list(node.chunk_shape),
        "data_type": name,
        "fill_value": {tag.replace("UInt", "UInt"): fill},
        "codecs": node.codecs,
        "chunk_key_encoding": "Slash",
        "dimension_names": node.dimension_names,
        "storage_transformers": None,
    }


def pack(value):
    return msgpack.packb(value, use_bin_type=True)


STRUCTURE = pa.schema(
    [
        pa.field("id", pa.uint16(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field(
            "array_metadata",
            pa.struct(
                [
                    pa.field("shape", pa.list_(pa.uint16()), nullable=False),
                    pa.field("data_type", pa.string(), nullable=False),
                    pa.field("fill_value", pa.binary()),
                    pa.field("dimension_names", pa.list_(pa.string())),
                    pa.field(
                        "chunk_grid",
                        pa.struct(
                            [
                                pa.field("name", pa.string(), nullable=False),
                                pa.field(
                                    "configuration",
                                    pa.struct(
                                        [
                                            pa.field(
                                                "chunk_shape",
                                                pa.list_(pa.uint16()),
                                                nullable=False,
                                            )
                                        ]
                                    ),
                                    nullable=False,
                                ),
                            ]
                        ),
                    ),
                    pa.field(
                        "chunk_key_encoding",
                        pa.struct(
                            [
                                pa.field("name", pa.string(), nullable=False),
                                pa.field(
                                    "configuration",
                                    pa.struct([pa.field("separator", pa.string(), nullable=False)]),
                                    nullable=False,
                                ),
                            ]
                        ),
                    ),
                    pa.field(
                        "codecs",
                        pa.list_(
                            pa.struct(
                                [
                                    pa.field("name", pa.string(), nullable=False),
                                    pa.field("configuration", pa.binary()),
                                ]
                            )
                        ),
                    ),
                ]
            ),
        ),
        pa.field("inline_attrs", pa.binary()),
        pa.field(
            "attrs_reference",
            pa.struct(
                [
                    pa.field("attrs_file", pa.string(), nullable=False),
                    pa.field("row", pa.uint16(), nullable=False),
                    pa.field("flags", pa.uint16()),
                ]
            ),
        ),
        pa.field(
            "inventories",
            pa.list_(
                pa.struct(
                    [
                        pa.field("inventory_file", pa.string(), nullable=False),
                        pa.field("row", pa.uint16(), nullable=False),
                        pa.field("extent", pa.list_(pa.list_(pa.uint16(), 2)), nullable=False),
                        pa.field("flags", pa.uint16()),
                    ]
                )
            ),
        ),
    ]
)
MANIFEST = pa.schema(
    [
        pa.field("id", pa.uint32(), nullable=False),
        pa.field("array_id", pa.uint32(), nullable=False),
        pa.field("coord", pa.binary(), nullable=False),
        pa.field("inline_data", pa.binary()),
        pa.field("chunk_file", pa.string()),
        pa.field("offset", pa.uint64()),
        pa.field("length", pa.uint32(), nullable=False),
    ]
)


def parquet(rows, schema):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    return sink.getvalue().to_pybytes()


def write_state_file(storage, history, outside, *, width=1, data=None, **state):
    """Write a history by the draft with a state file; a version has one manifest for all arrays."""
    files = storage if data is None else data
    placing = Placing(files.put, "c/", outside, str)
    for version in history.versions:
        rows, refs = [], []
        for path, node in version.nodes.items():
            row = {"id": node.number, "type": "group", "path": path}
            if node.attributes:
                row["inline_attrs"] = json.dumps(node.attributes).encode()
            if isinstance(node, Array):
                row["type"] = "array"
                row["array_metadata"] = parquet_metadata(node)
                extent = [[0, 9]] * node.values.ndim
                row["inventories"] = [
                    {"inventory_file": f"i-{version.name}", "row": len(refs), "extent": extent}
                ]
                for at, kind, content in node.chunks():
                    if kind == "missing":
                        continue
                    ref = {
                        "id": len(refs),
                        "array_id": node.number,
                        "coord": b"".join(i.to_bytes(width, "big") for i in at),
                        "length": len(content),
                    }
                    if kind == "inline":
                        ref["inline_data"] = content
                    else:
                        name = f"{version.name}-{placing.count}.chunk"
                        ref["chunk_file"], offset = placing.place(name, kind, content)
                        ref["offset"] = offset or None
                    refs.append(ref)
            rows.append(row)
        files.put(f"s/s-{version.name}.parquet", parquet(rows, STRUCTURE))
        files.put(f"i/i-{version.name}", parquet(refs, MANIFEST))
    snapshots = [
        {
            "snapshot-id": v.name,
            "parent-snapshot-id": v.parent,
            "timestamp-ms": v.time // 1000,
            "structure-file": f"s-{v.name}.parquet",
            "properties": v.properties | {"message": v.message},
        }
        for v in history.versions
    ]
    refs = {
        name: {"name": name, "snapshot-id": tip, "type": kind}
        for kind, found in (("branch", history.branches), ("tag", history.tags))
        for name, tip in found.items()
    }
    document = {"id": "dataset", "generation": 3, "snapshots": snapshots, "refs": refs} | state
    storage.put("state.json", json.dumps(document).encode())


def parquet_metadata(node):
    dtype = node.values.dtype
    return {
        "shape": list(node.values.shape),
        "data_type": dtype.name,
        "fill_value": np.array(node.fill, dtype=dtype).tobytes(),
        "dimension_names": node.dimension_names,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(node.chunk_shape)},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [
            {
                "name": codec["name"],
                "configuration": json.dumps(codec["configuration"]).encode()
                if "configuration" in codec
                else None,
            }
            for codec in node.codecs
        ],
    }
