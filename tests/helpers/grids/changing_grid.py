"""A group of two variables over (x, y), and random changes of cells, labels, shapes and nodes."""

from __future__ import annotations

import json
import random

from helpers.builder import new_repository
from helpers.sessions.model import group_document


class ChangingGrid:
    """A group of two variables over (x, y), whose labels are bytes."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shape = {"x": 5, "y": 4}
        self.repository = new_repository()
        session = self.repository.writable_session()
        session.create_group("/", group_document())
        self.session = session
        self.fill = {"a": 0, "b": 0}
        self.scale = {"a": self.random.choice([None, 2.0]), "b": None}
        for name in ("a", "b", "x", "y"):
            self.create(name)
        for dim in "xy":
            self.relabel(dim)

    def dims(self, name):
        return ("x", "y") if name in "ab" else (name,)

    def document(self, name):
        dims = self.dims(name)
        attributes = {"n": self.random.random()}
        if self.scale.get(name):
            attributes["scale_factor"] = self.scale[name]
        return json.dumps(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": [self.shape[d] for d in dims],
                "data_type": "uint8",
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [2 if name != "b" else 3 for _ in dims]},
                },
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
                "fill_value": self.fill.get(name, 0),
                "codecs": [{"name": "bytes"}],
                "dimension_names": dims,
                "attributes": attributes,
            }
        ).encode()

    def sizes(self, name):
        shape = tuple(self.shape[d] for d in self.dims(name))
        step = 2 if name != "b" else 3
        return {"shape": shape, "num_chunks": tuple(-(-n // step) for n in shape)}

    def create(self, name):
        names = {"dimension_names": self.dims(name)}
        self.session.create_array(f"/{name}", self.document(name), **self.sizes(name), **names)

    def relabel(self, dim, labels=None):
        size = self.shape[dim]
        labels = labels or self.random.sample(range(1, 200), size)
        chunks = [bytes(labels[i : i + 2]).ljust(2, b"\0") for i in range(0, size, 2)]
        self.session.set_chunks(f"/{dim}", [[i] for i in range(len(chunks))], chunks)
        self.labels = {**getattr(self, "labels", {}), dim: list(labels)}

    def set_chunks(self):
        name = self.random.choice("ab")
        step = 2 if name == "a" else 3
        coords = [self.random.randrange(n) for n in self.sizes(name)["num_chunks"]]
        self.session.set_chunks(f"/{name}", [coords], [self.random.randbytes(step * step)])

    def delete_chunks(self):
        name = self.random.choice("ab")
        coords = [self.random.randrange(n) for n in self.sizes(name)["num_chunks"]]
        self.session.delete_chunks(f"/{name}", [coords])

    def resize(self):
        dim = self.random.choice("xy")
        old = self.labels[dim]
        self.shape[dim] = size = max(1, self.shape[dim] + self.random.randint(-2, 3))
        for name in ("a", "b", dim):
            self.session.update_metadata(f"/{name}", self.document(name), **self.sizes(name))
        unused = [n for n in range(1, 200) if n not in old]
        fresh = self.random.sample(unused, max(0, size - len(old)))
        self.relabel(dim, [*old[:size], *fresh])

    def new_labels(self):
        dim = self.random.choice("xy")
        labels = list(self.labels[dim])
        if self.random.random() < 0.5:
            self.random.shuffle(labels)
        else:
            unused = [n for n in range(1, 256) if n not in labels]
            labels[self.random.randrange(len(labels))] = self.random.choice(unused)
        self.relabel(dim, labels)

    def recreate(self):
        self.session.delete("/b")
        self.create("b")

    def reinterpret(self):
        self.scale["a"] = self.scale["a"] and self.random.choice([2.0, 0.5])
        self.session.update_metadata("/a", self.document("a"), **self.sizes("a"))

    def attributes(self):
        self.session.update_metadata("/b", self.document("b"), **self.sizes("b"))

    def commit(self):
        self.session.commit("more")
        self.session = self.repository.writable_session()
        return self.repository.resolve()

    def change(self):
        kinds = [self.set_chunks] * 4 + [self.delete_chunks, self.resize, self.new_labels]
        kinds += [self.recreate, self.attributes, self.reinterpret]
        self.random.choice(kinds)()
