"""Files that are cut off, altered, hostile or of another version: one clear error, no code run."""

import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save

from sees_torch import SavedFileError, estimate_shift, load_report, load_weights, save_weights
from sees_torch.saving import container
from sees_torch.saving.container import read_content, write_content
from tests.golden.make import METHODS, world


@pytest.fixture(scope="module")
def report():
    return estimate_shift(**world(), method="mlls", replicates=0)


@pytest.fixture
def path(report, tmp_path):
    report.save(tmp_path / "report.sees")
    return tmp_path / "report.sees"


def refused(path, *words):
    with pytest.raises(SavedFileError) as caught:
        load_report(path)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message) < 400


def test_every_way_to_cut_a_file_off_is_refused(path):
    whole = path.read_bytes()
    lengths = {0, 1, 7, 8, 9, len(whole) - 1, *np.linspace(0, len(whole) - 1, 40).astype(int)}
    for length in lengths:
        path.write_bytes(whole[:length])
        refused(path)


def test_a_flipped_bit_anywhere_is_noticed(path):
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 150).astype(int):
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(bytes(altered))
        refused(path)


def test_bytes_after_the_end_are_refused(path):
    path.write_bytes(path.read_bytes() + b"more")
    refused(path, "damaged")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("how", ["pickle", "torch", "zip"])
def test_pickles_and_archives_are_never_opened(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.sees"
    if how == "pickle":
        path.write_bytes(pickle.dumps(Bomb()))
    elif how == "torch":
        torch.save(Bomb(), path)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros", bytes(10**7))
    refused(path, "never opened")
    assert not (tmp_path / "ran").exists()


def test_every_length_of_a_header_can_be_read(tmp_path):
    """The file begins with the header's length, whose bytes can be those of a pickle or a zip."""
    starts = set()
    for length in [*range(0, 264, 8), *range(18_900, 19_200, 8)]:
        write_content(tmp_path / "file", "report", 1, {"text": "x" * length}, {})
        starts.add((tmp_path / "file").read_bytes()[:2])
        assert len(read_content(tmp_path / "file", "report", 1).document["text"]) == length
    assert b"PK" in starts
    assert any(start[:1] == b"\x80" for start in starts)


@pytest.mark.parametrize("claimed", [2**63, 2**40, 10**6])
def test_a_header_longer_than_the_file_is_refused(claimed, tmp_path):
    path = tmp_path / "bad.sees"
    path.write_bytes(struct.pack("<Q", claimed) + b"{}")
    refused(path, "cut off")


def test_a_huge_header_is_refused_unread(path, monkeypatch):
    monkeypatch.setattr(container, "MAX_HEADER", 100)
    refused(path, "header")


def test_a_file_beyond_the_limit_is_refused_unread(path, monkeypatch):
    monkeypatch.setattr(container, "MAX_BYTES", 100)
    refused(path, "too large")


def headed(header: object) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"null",
        b"{}",
        {"__metadata__": None},
        {"__metadata__": {"format": "pt"}},
        b"\xff\xfe",
    ],
)
def test_other_headers_are_refused(header, tmp_path):
    path = tmp_path / "bad.sees"
    path.write_bytes(headed(header))
    refused(path, "no file of sees-torch")


@pytest.mark.parametrize("offsets", [[0, 10**12], [-8, 0], [8, 0]])
def test_tensors_that_reach_beside_the_file_are_refused(offsets, tmp_path):
    about = {"format": "sees-torch", "kind": "report", "version": "1", "document": "{}"}
    tensor = {"dtype": "F64", "shape": [1], "data_offsets": offsets}
    path = tmp_path / "bad.sees"
    path.write_bytes(headed({"__metadata__": about | {"sha256": ""}, "weights": tensor}) + bytes(8))
    refused(path, "damaged")


def test_other_peoples_safetensors_are_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(save({"weight": torch.ones(3)}))
    refused(path, "no file of sees-torch")


def test_a_newer_version_says_to_upgrade(tmp_path):
    write_content(tmp_path / "new", "report", 99, {}, {"weights": torch.ones(1)})
    refused(tmp_path / "new", "99", "upgrade")


@pytest.mark.parametrize("version", [0, -1, "1.0", "one", ""])
def test_a_version_that_never_was_is_refused(version, tmp_path):
    write_content(tmp_path / "odd", "report", version, {}, {"weights": torch.ones(1)})
    refused(tmp_path / "odd", "damaged", "version")


def test_another_kind_is_named(report, path, tmp_path):
    with pytest.raises(SavedFileError, match="holds a report, not a weight function"):
        load_weights(path)
    save_weights(report.weight_function, tmp_path / "w")
    refused(tmp_path / "w", "holds a weight function")


def test_what_is_no_ordinary_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "no ordinary file")
    refused(tmp_path, "no ordinary file")
    refused("/dev/zero", "no ordinary file")
    refused(tmp_path / "absent", "there is no file")


def reforged(path, change) -> None:
    """The file with another content and a right checksum, as someone hostile would make it."""
    content = read_content(path, "weight function", 1)
    document, tensors = json.loads(json.dumps(content.document)), dict(content.tensors)
    change(document, tensors)
    write_content(path, "weight function", 1, document, tensors)


@pytest.mark.parametrize(
    "change",
    [
        lambda document, tensors: document.pop("schema"),
        lambda document, tensors: document.update(form="Module"),
        lambda document, tensors: document.update(form=["TableWeights"]),
        lambda document, tensors: document.update(features=[99]),
        lambda document, tensors: document.update(classes=["only"]),
        lambda document, tensors: document["schema"]["columns"][0].update(kind="code"),
        lambda document, tensors: document["schema"]["columns"][0].update(more=1),
        lambda document, tensors: tensors.pop("weight"),
        lambda document, tensors: tensors.update(weight=tensors["weight"][:, :1]),
        lambda document, tensors: tensors.update(weight=tensors["weight"] * np.nan),
        lambda document, tensors: tensors.update(cells=tensors["cells"] + 10**6),
        lambda document, tensors: tensors.update(cells=tensors["cells"].double()),
    ],
)
@pytest.mark.filterwarnings("ignore::sees_torch.SeesWarning")
def test_contents_that_make_no_weights_are_refused(change, tmp_path):
    table = estimate_shift(**world(), method=METHODS["table"], confidence=None).weight_function
    assert type(table).__name__ == "TableWeights"
    save_weights(table, tmp_path / "w")
    reforged(tmp_path / "w", change)
    with pytest.raises(SavedFileError):
        load_weights(tmp_path / "w")


def test_places_beside_a_basis_are_refused(tmp_path):
    basis = estimate_shift(**world(), method="sees-c", confidence=None).weight_function
    save_weights(basis, tmp_path / "w")
    reforged(tmp_path / "w", lambda _, tensors: tensors["basis.slot"].add_(10**6))
    with pytest.raises(SavedFileError, match="out of range"):
        load_weights(tmp_path / "w")
