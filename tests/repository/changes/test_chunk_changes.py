"""Changes of the chunks of one array mean what a dictionary of coordinates means."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.encoding.ids import ManifestId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.changes import ChunkChanges
from icechunk_format.repository.files import ManifestReceipt

GRID = (4, 3)
EVERYWHERE = [*product(*map(range, GRID))]
DELETED = object()


def rows(coords):
    return np.array(sorted(coords), np.uint32).reshape(-1, len(GRID))


def refs_of(lengths):
    """Return references at some coordinates with different lengths."""
    refs = ChunkRefs.blank(rows(lengths), KIND_NATIVE)
    return replace(refs, length=np.array([lengths[at] for at in sorted(lengths)], np.uint64))


class Model:
    """A ``ChunkChanges`` beside a dictionary, both changed at random."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.changes = ChunkChanges(len(GRID))
        self.state, self.left = {}, set()
        self.grid, self.is_reset, self.clip, self.count = GRID, False, None, 0

    def some(self, most=6):
        inside = [at for at in EVERYWHERE if all(np.less(at, self.grid))]
        count = self.random.integers(0, min(most, len(inside)) + 1)
        return [inside[i] for i in self.random.permutation(len(inside))[:count]]

    def lengths(self):
        self.count += 1
        return dict.fromkeys(self.some(), self.count)

    def set_refs(self):
        lengths = self.lengths()
        self.changes.set_refs(refs_of(lengths))
        self.state |= lengths
        return bool(lengths)

    def delete(self):
        coords = self.some(3)
        self.changes.delete(rows(coords))
        self.state |= dict.fromkeys(coords, DELETED)
        return bool(coords)

    def add_receipts(self):
        taken, receipts = set(), []
        for _ in range(self.random.integers(0, 3)):
            coords = {at for at in self.some(4) if at not in taken}
            # Chunks of another task would be written twice, unless they were changed since.
            coords = {a for a in coords if not isinstance(self.state.get(a), ManifestId)}
            taken |= coords
            if coords:
                manifest = ManifestId(self.random.bytes(12))
                receipts.append(ManifestReceipt.of(manifest, 1, rows(coords)))
                self.state |= dict.fromkeys(coords, manifest)
        self.changes.add_receipts(receipts)
        return bool(receipts)

    def yield_to_others(self):
        coords = self.some()
        self.changes.yield_to_others(rows(coords))
        for at in coords:
            self.state.pop(at, None)
        return True

    def resize(self):
        before = self.grid
        self.grid = tuple(int(self.random.integers(1, size + 1)) for size in GRID)
        self.clip = tuple(min(pair) for pair in zip(before, self.grid, strict=True))
        self.changes.resize(self.clip)
        inside = {at for at in EVERYWHERE if all(np.less(at, self.clip))}
        self.state = {at: value for at, value in self.state.items() if at in inside}
        self.left &= inside
        return True

    def replace_all(self):
        lengths, left = self.lengths(), self.some()
        self.changes.replace_all(refs_of(lengths), rows(left))
        self.left |= {*left, *(at for at, value in self.state.items() if value is DELETED)}
        self.state, self.is_reset = lengths, True
        return True

    def found(self):
        refs, deleted = self.changes.pending()
        found = {}
        for receipt in self.changes.receipts:
            assert receipt.coords.count
            for at in receipt.coords.coords().tolist():
                assert tuple(at) not in found
                found[tuple(at)] = receipt.manifest_id
        later = dict.fromkeys(map(tuple, deleted.tolist()), DELETED)
        for at, length in zip(refs.coords.tolist(), refs.length.tolist(), strict=True):
            assert tuple(at) not in later
            later[tuple(at)] = length
        return found | later


@pytest.mark.parametrize("seed", range(40))
def test_any_changes_are_those_of_a_dictionary(seed):
    model = Model(seed)
    steps = (model.set_refs, model.set_refs, model.delete, model.add_receipts)
    rare = (model.yield_to_others, model.resize, model.replace_all)
    assert model.changes.is_empty
    for _ in range(12):
        step = model.random.choice(steps if model.random.random() < 0.7 else rare)
        revision = model.changes.revision
        is_change = step()
        assert (model.changes.revision > revision) == is_change
        if model.random.random() < 0.3:
            continue  # calls are joined at the next read
        assert model.found() == model.state
        touched = model.left | model.state.keys()
        assert model.changes.touched().coords().tolist() == rows(touched).tolist()
        assert model.changes.touched().count == len(touched)
        mask = model.changes.touches(rows(EVERYWHERE))
        assert mask.tolist() == [at in touched for at in sorted(EVERYWHERE)]
        assert (model.changes.replaces_all, model.changes.clip) == (model.is_reset, model.clip)
        is_changed = model.state or model.is_reset or model.clip is not None
        assert model.changes.is_empty == (not is_changed)


def receipt(*coords):
    return ManifestReceipt.of(ManifestId(bytes(12)), 1, rows(coords))


def test_two_tasks_do_not_write_one_chunk():
    changes = ChunkChanges(2)
    changes.add_receipts([receipt((0, 0), (0, 1)), receipt((1, 1))])
    with raises(InvalidInputError, coords=(0, 1), count=1, match="1 chunks were written twice"):
        changes.add_receipts([receipt((0, 1), (0, 2))])
    with raises(InvalidInputError, coords=(3, 1), count=2):
        changes.add_receipts([receipt((3, 1), (3, 2)), receipt((3, 1), (3, 2))])
    # Two tasks of one call do not, either, if the session has changed the chunk before.
    changes.set_refs(refs_of({(3, 1): 1}))
    changes.delete(rows([(3, 2)]))
    for at in ((3, 1), (3, 2)):
        with raises(InvalidInputError, coords=at, count=1):
            changes.add_receipts([receipt(at), receipt(at)])
    changes.yield_to_others(rows([(3, 1), (3, 2)]))
    # A chunk that was changed since is another's.
    changes.set_refs(refs_of({(0, 1): 1}))
    changes.delete(rows([(1, 1)]))
    changes.add_receipts([receipt((0, 1), (0, 2), (1, 1))])
    assert changes.touched().count == 4
    assert [len(part) for part in changes.pending()] == [0, 0]


def test_chunks_of_the_base_that_a_resize_drops_are_deleted_unless_they_were_changed():
    changes = ChunkChanges(2)
    changes.set_refs(refs_of({(0, 0): 1}))
    changes.resize((2, 2), rows([(0, 0), (1, 1)]))
    refs, deleted = changes.pending()
    assert (refs.coords.tolist(), deleted.tolist()) == ([[0, 0]], [[1, 1]])
    assert not changes.is_empty
