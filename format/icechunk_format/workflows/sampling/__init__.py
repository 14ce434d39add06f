"""Samples arrays at points: finds positions by labels, gathers values, and interpolates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.sampling.choices import SampleRequest
    from icechunk_format.workflows.sampling.plan import plan_sample
    from icechunk_format.workflows.sampling.sampled import SamplePlan
    from icechunk_format.workflows.sampling.sampler import Sampler

__all__ = ["SamplePlan", "SampleRequest", "Sampler", "plan_sample"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".choices": ["SampleRequest"],
        ".plan": ["plan_sample"],
        ".sampled": ["SamplePlan"],
        ".sampler": ["Sampler"],
    },
)
