"""Produces hourly temperatures over North America for the examples.

The fields are those of a climate model (PyPI's ``iris-sample-data``): one model year represents one
day, with an added daily cycle and seeded noise. The grid is that of the model, the weather is
synthetic.
"""

from datetime import datetime, timedelta
from pathlib import Path

import iris_sample_data
import numpy as np
import pandas as pd
import xarray as xr
from pyspark.sql import DataFrame, SparkSession

FILE = Path(iris_sample_data.__file__).parent / "sample_data" / "A1B_north_america.nc"
FIRST = datetime(2024, 7, 1)  # a Monday


def field(at: datetime) -> xr.DataArray:
    """Return the temperature of an hour in kelvin; the noise changes every six hours."""
    run = xr.open_dataset(FILE, decode_timedelta=True)["air_temperature"]
    number = (at - FIRST).days
    year = run.isel(time=140 + number).reset_coords(drop=True)
    local_hour = at.hour + (year.longitude - 360) / 15
    cycle = 4 * np.cos((local_hour - 15) / 24 * 2 * np.pi)
    coarse = np.random.default_rng(10 * number + at.hour // 6).normal(0, 2, (5, 7))
    noise = np.kron(coarse, np.ones((8, 7)))[: year.sizes["latitude"], : year.sizes["longitude"]]
    values = (year + cycle + noise).astype("float32").rename("t2m")
    values.attrs = {"units": "K", "standard_name": "air_temperature"}
    # xarray converts times to nanoseconds.
    return values.expand_dims(time=[pd.Timestamp(at)])


def one_day(spark: SparkSession, day: str) -> DataFrame:
    """Return 24 hours of temperatures as rows: time, latitude, longitude, t2m."""
    start = datetime.fromisoformat(day)
    hours = xr.concat([field(start + timedelta(hours=hour)) for hour in range(24)], "time")
    rows = hours.to_dataframe().reset_index()
    schema = "time timestamp_ntz, latitude float, longitude float, t2m float"
    return spark.createDataFrame(rows[["time", "latitude", "longitude", "t2m"]], schema)
