"""Conditions on metadata tables choose the arrays and manifests that tasks open."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from tables.reading.test_plan import huge_dataset

from icechunk_format.encoding.ids import encode_many
from icechunk_format.options.metadata_tables import CHUNKS, VARIABLES
from icechunk_format.tables.metadata_tables.conditions import (
    InspectionConditions,
    prune_inspection,
)
from icechunk_format.tables.metadata_tables.manifests import cut_manifests, manifest_costs


def conditions_on(*conjuncts: str) -> InspectionConditions:
    return prune_inspection(conjuncts, CHUNKS, CHUNKS.names, "UTC")[0]


def parts(snapshot, conditions: InspectionConditions) -> list[tuple[int, int, int]]:
    arrays = conditions.arrays(snapshot, [1])
    tasks = cut_manifests(arrays, manifest_costs(snapshot, arrays), 1_000_000)
    return [part for task in conditions.parts(snapshot, tasks) for part in task]


def test_chunk_numbers_and_manifests_choose_manifests() -> None:
    dataset, _ = huge_dataset(
        shape=(1_000_000, 100, 100), chunks=(1, 10, 10), manifest_chunks=(1_000, 10, 10)
    )
    snapshot = dataset.snapshot
    [node] = [node for node in snapshot.nodes if node.array is not None]
    number = snapshot.nodes.index(node)
    assert number == 1
    count = len(node.array.manifests)
    assert count == 1_000
    assert sum(stop - start for _, start, stop in parts(snapshot, conditions_on())) == count
    [(_, start, stop)] = parts(snapshot, conditions_on("(`chunk`[0] = 123456L)"))
    assert (start, stop) == (123, 124)
    found = parts(snapshot, conditions_on("(`chunk`[0] IN (5L, 2500L))", "(`chunk`[1] < 99L)"))
    assert [(start, stop) for _, start, stop in found] == [(0, 1), (2, 3)]
    assert parts(snapshot, conditions_on("(`chunk`[1] = 10L)")) == []
    one = encode_many(node.array.manifests.ids[7:8])[0]
    assert parts(snapshot, conditions_on(f"(`manifest_id` = '{one}')")) == [(1, 7, 8)]
    assert parts(snapshot, conditions_on("(`path` = '/other')")) == []
    assert len(parts(snapshot, conditions_on("(`path` = '/v')", "(`kind` = 'native')"))) > 0


def test_conditions_on_rows_need_their_columns() -> None:
    conjuncts = ("(`path` = '/a')", "(`stored_chunks` > 2L)", "size(`shape`) = 1")
    chosen, pruned = prune_inspection(conjuncts, VARIABLES, ("path",), "UTC")
    assert set(chosen.by_column) == {"path"}
    assert pruned.used == ("(`path` = '/a')",)
    assert [sql for sql, _ in pruned.left] == list(conjuncts[1:])
    assert pruned.rows is not None
    kept = pruned.rows.evaluate({"path": pa.array(["/a", "/b", None])}, 3)
    assert np.array_equal(kept.to_numpy(zero_copy_only=False), [True, False, False])
