"""A repository's contents as a plain dictionary, and random changes to it.

The model says what every version must hold: each key of the Zarr store with its bytes. Changes are
drawn from the model, applied to it, and handed to a driver that makes the same changes through a
library. Also here: the rules that the files of a version must keep, whoever reads them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import dataclass, field

import numpy as np

from icechunk_format.encoding.object_keys import manifest_key

ROOT_GROUP = "/"


def group_document(version: int = 0) -> bytes:
    """Return a ``zarr.json`` of a group."""
    return json.dumps(
        {"zarr_format": 3, "node_type": "group", "attributes": {"version": version}}
    ).encode()


def array_document(shape, chunk_shape, version: int = 0, dimension_names=None) -> bytes:
    """Return a ``zarr.json`` of an array of bytes."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {"version": version},
    }
    if dimension_names is not None:
        document["dimension_names"] = list(dimension_names)
    return json.dumps(document).encode()


@dataclass
class ModelNode:
    """A group, or an array with its chunks by coordinate."""

    version: int = 0
    shape: tuple[int, ...] | None = None
    chunk_shape: tuple[int, ...] = ()
    chunks: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    @property
    def is_array(self):
        return self.shape is not None

    @property
    def num_chunks(self):
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))

    @property
    def document(self):
        if self.is_array:
            return array_document(self.shape, self.chunk_shape, self.version)
        return group_document(self.version)

    def copy(self):
        return ModelNode(self.version, self.shape, self.chunk_shape, dict(self.chunks))


@dataclass
class Model:
    """Nodes by path."""

    nodes: dict[str, ModelNode] = field(default_factory=dict)

    def copy(self):
        return Model({path: node.copy() for path, node in self.nodes.items()})

    def keys(self) -> dict[str, bytes]:
        """Return every key of the Zarr store with its bytes."""
        found = {}
        for path, node in self.nodes.items():
            base = f"{path[1:]}/" if path != "/" else ""
            found[f"{base}zarr.json"] = node.document
            for coords, payload in node.chunks.items():
                found[f"{base}{'/'.join(['c', *map(str, coords)])}"] = payload
        return found

    def below(self, path):
        return [p for p in self.nodes if p == path or p.startswith(path.rstrip("/") + "/")]

    def groups(self):
        return sorted(p for p, node in self.nodes.items() if not node.is_array)

    def arrays(self):
        return sorted(p for p, node in self.nodes.items() if node.is_array)


def join(parent, name):
    return f"{parent.rstrip('/')}/{name}"


class RandomChanges:
    """Draws changes that fit a model, and makes them in the model and through a driver."""

    def __init__(self, model, seed):
        self.model = model
        self.random = random.Random(seed)
        self._resized = set()

    def session(self, driver, steps):
        """Make the changes of one session."""
        self._resized = set()
        if not self.model.nodes:
            self._create_group(driver, "/")
        weights = self.weights()
        for _ in range(steps):
            choice = self.random.choices(list(weights), list(weights.values()))[0]
            choice(driver)

    def weights(self):
        """Return how often each kind of change is drawn."""
        return {
            self.grow: 3,
            self.set_chunks: 10,
            self.delete_chunks: 2,
            self.attributes: 1,
            self.resize: 2,
            self.shift: 1,
            self.delete: 0.7,
            self.recreate: 0.5,
        }

    def grow(self, driver):
        parent = self.random.choice(self.model.groups())
        path = join(parent, self.random.choice("abcdefg") + self.random.choice(["", "-1", "ö"]))
        if path in self.model.nodes:
            return
        if self.random.random() < 0.3:
            self._create_group(driver, path)
        else:
            self._create_array(driver, path)

    def _create_group(self, driver, path):
        self.model.nodes[path] = ModelNode()
        driver.create_group(path, self.model.nodes[path].document)

    def _create_array(self, driver, path):
        ndim = self.random.choice([0, 1, 1, 2, 2, 3])
        shape = tuple(self.random.randint(1, 12) for _ in range(ndim))
        chunk_shape = tuple(self.random.randint(1, 3) for _ in range(ndim))
        node = ModelNode(shape=shape, chunk_shape=chunk_shape)
        self.model.nodes[path] = node
        driver.create_array(path, node)

    def _some_array(self):
        arrays = self.model.arrays()
        return self.random.choice(arrays) if arrays else None

    def _some_coords(self, node):
        grid = node.num_chunks
        total = math.prod(grid)
        if not total:
            return []
        if self.random.random() < 0.3:
            # A block, as appends and region writes have it.
            lo = [self.random.randrange(n) for n in grid]
            hi = [self.random.randint(a + 1, n) for a, n in zip(lo, grid, strict=True)]
            ranges = [range(a, b) for a, b in zip(lo, hi, strict=True)]
            return list(itertools.product(*ranges))
        count = self.random.randint(1, min(total, 6))
        rows = self.random.sample(range(total), count)
        return [tuple(int(i) for i in np.unravel_index(row, grid)) if grid else () for row in rows]

    def set_chunks(self, driver):
        path = self._some_array()
        if path is None:
            return
        node = self.model.nodes[path]
        coords = self._some_coords(node)
        if not coords:
            return
        payloads = [self.random.randbytes(self.random.choice([1, 7, 40, 600])) for _ in coords]
        node.chunks.update(zip(coords, payloads, strict=True))
        driver.set_chunks(path, coords, payloads)

    def delete_chunks(self, driver):
        path = self._some_array()
        if path is None:
            return
        node = self.model.nodes[path]
        coords = self._some_coords(node)
        if self.random.random() < 0.2:
            coords = sorted(node.chunks)
        if coords:
            for place in coords:
                node.chunks.pop(place, None)
            driver.delete_chunks(path, coords)

    def attributes(self, driver):
        path = self.random.choice(sorted(self.model.nodes))
        self.model.nodes[path].version += 1
        driver.update(path, self.model.nodes[path])

    def resize(self, driver):
        path = self._some_array()
        # One resize for each array and session: what a second one does to dropped chunks is a
        # matter on which libraries may differ.
        if path is None or path in self._resized or not self.model.nodes[path].shape:
            return
        self._resized.add(path)
        node = self.model.nodes[path]
        node.shape = tuple(max(1, n + self.random.randint(-5, 6)) for n in node.shape)
        grid = node.num_chunks
        node.chunks = {
            coords: payload
            for coords, payload in node.chunks.items()
            if all(i < n for i, n in zip(coords, grid, strict=True))
        }
        driver.update(path, node)

    def shift(self, driver):
        path = self._some_array()
        if path is None or not self.model.nodes[path].shape:
            return
        node = self.model.nodes[path]
        offset = tuple(self.random.randint(-2, 2) for _ in node.shape)
        moved = {}
        for coords, payload in node.chunks.items():
            place = tuple(i + o for i, o in zip(coords, offset, strict=True))
            if all(0 <= i < n for i, n in zip(place, node.num_chunks, strict=True)):
                moved[place] = payload
        node.chunks = moved
        driver.shift(path, offset)

    def delete(self, driver):
        paths = sorted(p for p in self.model.nodes if p != "/")
        if not paths:
            return
        path = self.random.choice(paths)
        for gone in self.model.below(path):
            del self.model.nodes[gone]
        driver.delete(path)

    def recreate(self, driver):
        path = self._some_array()
        if path is None:
            return
        del self.model.nodes[path]
        driver.delete(path)
        self._create_array(driver, path)

    def move(self, driver):
        """Make one move, for a session of moves alone; tell whether there was any."""
        paths = sorted(p for p in self.model.nodes if p != "/")
        if not paths:
            return False
        source = self.random.choice(paths)
        parent = self.random.choice(self.model.groups())
        target = join(parent, self.random.choice("mnopq"))
        inside = parent == source or parent.startswith(f"{source}/")
        if inside or target in self.model.nodes:
            return False
        for path in self.model.below(source):
            self.model.nodes[target + path[len(source) :]] = self.model.nodes.pop(path)
        driver.move(source, target)
        return True


class OurDriver:
    """Makes changes in a ``WriteSession``."""

    def __init__(self, session):
        self.session = session

    def create_group(self, path, document):
        self.session.create_group(path, document)

    def create_array(self, path, node):
        self.session.create_array(path, node.document, shape=node.shape, num_chunks=node.num_chunks)

    def set_chunks(self, path, coords, payloads):
        at = np.array(coords, dtype=np.int64).reshape(len(coords), -1 if coords[0] else 0)
        self.session.set_chunks(path, at, payloads)

    def delete_chunks(self, path, coords):
        at = np.array(coords, dtype=np.int64).reshape(len(coords), -1 if coords[0] else 0)
        self.session.delete_chunks(path, at)

    def update(self, path, node):
        sizes = {"shape": node.shape, "num_chunks": node.num_chunks} if node.is_array else {}
        self.session.update_metadata(path, node.document, **sizes)

    def shift(self, path, offset):
        self.session.shift(path, offset)

    def delete(self, path):
        self.session.delete(path)

    def move(self, source, target):
        self.session.move(source, target)


def stored_contents(repository, snapshot_id, authorized=()) -> dict[str, bytes]:
    """Return every key of a version with its bytes, found as a reader finds them.

    Checks the rules of the format on the way: one manifest for each place, tight extents, complete
    and exact lists of files.
    """
    snapshot = repository.snapshot(snapshot_id)
    source = repository.chunk_source(authorized=authorized)
    contents: dict[str, bytes] = {}
    used: dict[bytes, int] = {}
    paths = {node.path for node in snapshot.nodes}
    assert len(paths) == len(snapshot.nodes)
    for node in snapshot.nodes:
        assert node.path == "/" or (node.path.rpartition("/")[0] or "/") in paths
        base = f"{node.path[1:]}/" if node.path != "/" else ""
        contents[f"{base}zarr.json"] = node.user_data
        if node.array is None:
            continue
        manifests = node.array.manifests
        for row in range(len(manifests)):
            manifest_id = manifests.manifest_id(row)
            [size] = snapshot.manifest_files.sizes_of(manifests.ids[row : row + 1])
            assert repository.storage.head(manifest_key(manifest_id)).size == size
            refs = repository.manifest(manifest_id).array(node.id).refs
            assert len(refs) > 0
            assert (refs.extents() == manifests.extents[row]).all()
            used[manifest_id.raw] = used.get(manifest_id.raw, 0) + len(refs)
            payloads = source.fetch(refs, np.arange(len(refs)))
            for coords, payload in zip(refs.coords.tolist(), payloads, strict=True):
                key = f"{base}{'/'.join(['c', *map(str, coords)])}"
                assert key not in contents
                contents[key] = payload
        assert_apart(manifests.extents)
    files = snapshot.manifest_files
    assert [files.ids[i].tobytes() for i in range(len(files))] == sorted(used)
    assert {files.ids[i].tobytes(): int(files.num_chunk_refs[i]) for i in range(len(files))} == used
    return contents


def assert_apart(extents):
    """Assert that no two extents share a coordinate."""
    for left in range(len(extents)):
        for right in range(left + 1, len(extents)):
            shared = np.minimum(extents[left, :, 1], extents[right, :, 1]).astype(int)
            shared -= np.maximum(extents[left, :, 0], extents[right, :, 0])
            assert (shared <= 0).any(), (extents[left], extents[right])
