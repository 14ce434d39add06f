"""Stores the references of a task's units as manifests, and makes the receipt of the task."""

from __future__ import annotations

from collections.abc import Iterable

from icechunk_format.dataset.writing.part import ArrayTarget, TaskReceipt, WritePart
from icechunk_format.repository.files.manifest_files import ManifestReceipt, store_manifests
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE, ChunkRefs


class UnitFiles:
    """Collects the references of one unit after another; memory is those of one unit."""

    def __init__(self, part: WritePart) -> None:
        self._part = part
        self._arrays = {array.name: array for array in part.arrays}
        self._refs: dict[str, list[ChunkRefs]] = {}
        self._receipts: dict[str, list[ManifestReceipt]] = {}
        self._files = self._nbytes = 0

    def add(self, array: ArrayTarget, refs: Iterable[ChunkRefs]) -> None:
        """Take in references of the current unit."""
        found = list(refs)
        if found:
            self._refs.setdefault(array.name, []).extend(found)
        for part in found:
            own = part.kind == KIND_NATIVE
            self._files += int(own.sum())
            self._nbytes += int(part.length[own].sum())

    def end_unit(self) -> None:
        """Store the references of the unit: one manifest for each array, or more where huge."""
        arrays = [self._arrays[name] for name in self._refs]
        parts = ((array.node_id, [ChunkRefs.concat(self._refs[array.name])]) for array in arrays)
        destination = self._part.destination
        stored = store_manifests(destination.open_storage(), destination.manifest_format, parts)
        for array, receipts in zip(arrays, stored, strict=True):
            self._receipts.setdefault(array.path, []).extend(receipts)
        self._refs = {}

    def receipt(self, rows: int, places: Iterable[str] = ()) -> TaskReceipt:
        """Store what is left and say what was written."""
        self.end_unit()
        return TaskReceipt(
            part=self._part.number,
            rows=rows,
            manifests={path: tuple(found) for path, found in self._receipts.items()},
            files=self._files,
            nbytes=self._nbytes,
            places=tuple(places),
        )
