"""Tables on disk in batches: the same whatever the format, the cut and the number of readers."""

import gzip

import numpy as np
import pandas as pd
import pytest

from sees_torch import SchemaError, SeesError, Source, SupportError, Target
from sees_torch.data.files import TableFile

WRITERS = {
    "t.csv": lambda frame, path: frame.to_csv(path, index=False),
    "t.csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "t.parquet": lambda frame, path: frame.to_parquet(path, index=False),
    "t.PQ": lambda frame, path: frame.to_parquet(path, index=False),
    "t.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "t.ndjson": lambda frame, path: frame.to_json(path, orient="records", lines=True),
}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = 103
    return pd.DataFrame(
        {
            "town": rng.choice(["Bern", "Genf", None], rows),
            "size": rng.integers(0, 4, rows),
            "age": np.where(rng.random(rows) < 0.1, np.nan, rng.integers(0, 400, rows) / 8),
            "member": rng.random(rows) < 0.5,
            "y": rng.choice(["no", "yes"], rows),
            "p": rng.integers(0, 65, rows) / 64,
            "id": np.arange(rows),
        }
    )


def whole(frame: pd.DataFrame) -> Source:
    return Source(frame.drop(columns=["y", "p", "id"]), frame["y"], frame["p"])


def rows_of(sample) -> list:
    merged, _ = sample.merged()
    rows = merged.rows
    return [
        rows.codes.tolist(),
        rows.values.tolist(),
        merged.labels.tolist(),
        merged.proba.tolist(),
        merged.count.tolist(),
    ]


@pytest.mark.parametrize("rows", [7, 103, 1000])
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_rows_in_memory(frame, tmp_path, name, rows):
    path = tmp_path / name
    WRITERS[name](frame, path)
    source = Source.from_batches(TableFile(path, ["p"], "y", drop=["id"], rows=rows))
    assert source.schema == whole(frame).schema
    assert rows_of(source) == rows_of(whole(frame))
    target = Target.from_batches(TableFile(path, ["p"], drop=["y", "id"], rows=rows), source)
    assert rows_of(target)[0] == rows_of(Target(features(frame), frame["p"], source))[0]


def features(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=["y", "p", "id"])


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
def test_batches_are_features_labels_and_probabilities(frame, tmp_path, name):
    WRITERS[name](frame, tmp_path / name)
    file = TableFile(str(tmp_path / name), ["p"], "y", drop=["id", "absent"], rows=50)
    assert file.columns == list(frame.columns)
    for _ in range(2):
        batches = list(file)
        assert [len(table) for table, _, _ in batches] == [50, 50, 3]
        assert all(list(table.columns) == list(features(frame)) for table, _, _ in batches)
        assert [y for _, labels, _ in batches for y in labels] == frame["y"].tolist()
        assert [p for *_, proba in batches for p in proba] == frame["p"].tolist()
    assert all(len(batch) == 2 for batch in TableFile(tmp_path / name, ["p"], rows=50))


def test_a_probability_column_a_class(frame, tmp_path):
    both = frame.assign(q=1 - frame["p"])
    both.to_csv(tmp_path / "t.csv", index=False)
    file = TableFile(tmp_path / "t.csv", ["q", "p"], "y", drop=["id"], rows=20)
    source = Source.from_batches(file, classes=["no", "yes"])
    assert rows_of(source) == rows_of(whole(frame))


# Columns whose type depends on the cut


@pytest.mark.parametrize("rows", [1, 3, 4, 100])
@pytest.mark.parametrize(
    "column",
    [
        ["1", "2", "3", "4", "x", "1", "2", "3"],
        ["x", "1", "2", "3", "1", "2", "3", "4"],
        ["", "", "", "", "7", "7", "8", "8"],
        ["", "", "", "", "a", "", "1", "1"],
        ["01", "1", "1.0", "2", "2", "2", "2", "z"],
        ["True", "False", "True", "True", "maybe", "True", "False", "True"],
    ],
)
def test_a_column_is_text_everywhere_or_nowhere(tmp_path, column, rows):
    path = tmp_path / "t.csv"
    lines = [f"{x},{i % 2},{i % 2},0.5" for i, x in enumerate(column)]
    path.write_text("\n".join(["x,z,y,p", *lines]) + "\n")
    read = pd.read_csv(path)
    source = Source.from_batches(TableFile(path, ["p"], "y", rows=rows))
    expected = Source(read[["x", "z"]], read["y"], read["p"])
    assert source.schema == expected.schema
    assert rows_of(source) == rows_of(expected)


def test_labels_that_look_like_numbers_in_one_part(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y,p\n" + "0,1,0.5\n" * 4 + "1,other,0.5\n" * 4)
    source = Source.from_batches(TableFile(path, ["p"], "y", rows=4))
    assert source.classes == ("1", "other")


def test_flags_and_numbers_are_text_as_in_one_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y,p\n" + "True,0,0.5\n" * 4 + "2,1,0.5\n" * 4)
    sources = [Source.from_batches(TableFile(path, ["p"], "y", rows=rows)) for rows in (4, 100)]
    assert sources[0].schema == sources[1].schema


@pytest.mark.parametrize("rows", [2, 100])
def test_text_of_json_lines_stays_text(tmp_path, rows):
    """Postcodes are no numbers, and a column may be called date without holding dates."""
    path = tmp_path / "t.jsonl"
    line = '{{"x": "{}", "date": "{}", "y": {}, "p": 0.5}}'
    lines = [line.format(f"0{i % 3}", f"202{i % 2}", i % 2) for i in range(6)]
    path.write_text("\n".join(lines) + "\n")
    source = Source.from_batches(TableFile(path, ["p"], "y", rows=rows))
    assert source.schema.columns[0].levels == ("00", "01", "02")
    assert source.schema.columns[1].levels == ("2020", "2021")


def test_json_lines_may_be_compressed(frame, tmp_path):
    frame.to_json(tmp_path / "t.jsonl.gz", orient="records", lines=True)
    source = Source.from_batches(TableFile(tmp_path / "t.jsonl.gz", ["p"], "y", drop=["id"]))
    assert rows_of(source) == rows_of(whole(frame))


# Shards


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
@pytest.mark.parametrize("of", [1, 2, 3, 13])
def test_shards_partition_the_rows(frame, tmp_path, name, of):
    WRITERS[name](frame, tmp_path / name)
    found = []
    for place in range(of):
        file = TableFile(tmp_path / name, ["p"], "y", rows=10, shard=(place, of))
        found += [i for table, _, _ in file for i in table["id"]]
    assert sorted(found) == list(range(len(frame)))


def test_shards_agree_on_what_is_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y,p\n" + "1,0,0.5\n" * 4 + "a,1,0.5\n" * 4)
    for place in range(2):
        ((table, _, _),) = TableFile(path, ["p"], "y", rows=4, shard=(place, 2))
        assert set(table["x"]) == {["1", "a"][place]}


# Refused


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SeesError, match="there is no file"):
        TableFile(tmp_path / "none.csv", ["p"])


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(SeesError, match="cannot be read as a table"):
        TableFile(tmp_path, ["p"])


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
@pytest.mark.parametrize("options", [(["q"], "y"), (["p"], "label"), (["p", "q"], None)])
def test_a_missing_column_is_named(frame, tmp_path, name, options):
    WRITERS[name](frame, tmp_path / name)
    with pytest.raises(SchemaError, match=r"has no column '(q|label)'; it has \['town'"):
        TableFile(tmp_path / name, *options)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl", "t.csv.gz"])
def test_an_empty_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(SeesError, match=name):
        TableFile(tmp_path / name, ["p"])


@pytest.mark.parametrize("name", ["t.parquet", "t.csv.gz", "t.jsonl"])
def test_noise_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"PAR1 this is no table \xff\xfe PAR1" * 30)
    with pytest.raises(SeesError, match="cannot be read as a table"):
        TableFile(tmp_path / name, ["p"])


@pytest.mark.parametrize("rows", [10, 10_000])
def test_an_archive_that_ends_early_is_refused(frame, tmp_path, rows):
    text = pd.concat([frame] * 50).to_csv(index=False).encode()
    packed = gzip.compress(text)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(SeesError, match="cannot be read as a table"):
        list(TableFile(path, ["p"], "y", rows=rows))


@pytest.mark.parametrize("rows", [10, 10_000])
def test_a_parquet_file_that_ends_early_is_refused(frame, tmp_path, rows):
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SeesError, match="cannot be read as a table"):
        TableFile(path, ["p"], "y", rows=rows)


def test_a_line_of_another_length_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y,p\n" + "1,0,0.5\n" * 20 + "1,0,0.5,7,7\n")
    with pytest.raises(SeesError, match="cannot be read as a table"):
        list(TableFile(path, ["p"], "y", rows=5))


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_without_rows_is_an_empty_sample(frame, tmp_path, name):
    WRITERS[name](frame[:0], tmp_path / name)
    file = TableFile(tmp_path / name, ["p"], "y")
    assert file.columns == list(frame.columns)
    assert list(file) == []
    with pytest.raises(SupportError, match="source is empty"):
        Source.from_batches(file)
    with pytest.raises(SupportError, match="target is empty"):
        Target.from_batches(TableFile(tmp_path / name, ["p"], drop=["y", "id"]), whole(frame))
