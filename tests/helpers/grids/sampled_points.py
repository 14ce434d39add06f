"""Samples points in this process, without Spark."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_format.options.read import ReadRequest
from icechunk_format.workflows.sampling import Sampler, SampleRequest, plan_sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_format.tables import Dataset

_OF_READ = {field.name for field in fields(ReadRequest)}


def sampled(dataset: Dataset, on: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the sampled values of points as lists, by variable.

    ``on`` maps dimensions to NumPy or Arrow arrays, which are the points' columns.
    """
    columns = {
        key: values if isinstance(values, pa.Array) else pa.array(values)
        for key, values in on.items()
    }
    given = {name: options.pop(name) for name in _OF_READ & options.keys()}
    request = SampleRequest(
        read=ReadRequest(path="", **given),
        points={key: (f"{key}_of_point", column.type) for key, column in columns.items()},
        **options,
    )
    sampler = Sampler(plan_sample(dataset, request))
    positions = sampler.find(list(columns.values()))
    if request.outside == "error":
        sampler.check_outside(positions, list(columns.values()))
    plan = sampler.plan
    found = {}
    for variable, values in zip(plan.variables, sampler.sample(positions), strict=True):
        assert values.type == variable.arrow_type
        found[variable.column.name] = values.to_pylist()
    return found
