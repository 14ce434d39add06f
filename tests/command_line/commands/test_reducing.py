"""The command ``reduce`` stores statistics, and prints what it did."""

import json

import numpy as np
import pytest
from helpers.blocks import Source, days, opened

from icechunk_format.command_line.views.documents import document_keys

pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]


def test_statistics_are_stored(command, tmp_path):
    source = Source(tmp_path / "source", days(0, 40))
    to = str(tmp_path / "to")
    chosen = ("--statistic", "t2m=mean,std", "--over", "time", "--by", "time.month")
    planned = command("reduce", source.path, to, *chosen, "--dry-run")
    assert planned.code == 0, planned.err
    assert "t2m_mean (month, y, x) float64" in planned.out
    done = command("reduce", source.path, to, *chosen, "--follow", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document.keys() == document_keys("reduce").keys()
    assert document["arrays"] == ["/t2m_mean", "/t2m_std"]
    expected = opened(source.path)["t2m"].groupby("time.month").mean()
    np.testing.assert_allclose(opened(to)["t2m_mean"], expected)
    again = command("reduce", source.path, to, *chosen, "--follow")
    assert again.lines[-1] == f"nothing of {source.path} changed"
    other = command("reduce", source.path, to, "--statistic", "max", "--over", "time")
    assert "--overwrite" in other.err
    bins = ("--over", "y", "--by", "y=0,2.5,5", "--to-group", "bins", "--statistic")
    assert command("reduce", source.path, to, *bins, "t2m=quantile(q=0.5)").code == 0
    assert opened(to, "bins")["t2m"].sizes["y_bins"] == 2
    thirds = ("--over", "time", "--by", "time=4", "--to-group", "thirds", "--statistic", "count")
    assert command("reduce", source.path, to, *thirds).code == 0
    assert opened(to, "thirds").sizes["time"] == 10
    wrong = command("reduce", source.path, to, *chosen, "--statistic", "mean")
    assert "without a variable" in wrong.err
    assert "--by is" in command("reduce", source.path, to, *chosen[:-1], "y=a,b").err
