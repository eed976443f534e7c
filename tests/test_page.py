"""The HTML page: complete, escaped, whole, discreet, and as a browser shows it."""

import html.parser
import os
import re
import stat
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from browser import Browser, browser_path

from sees_torch import SeesError, estimate_shift, make_sparse_joint_shift
from sees_torch.demo import churn_pair
from sees_torch.disclosure import pooled
from sees_torch.page.markup import Html, name, tag, text

NASTY = "<script>document.title='owned'</script>"
FEW = 10


def world(seed=0, rows=400, **options):
    generator = torch.Generator().manual_seed(seed)
    return make_sparse_joint_shift(rows, rows, generator=generator, **options).inputs()


def renamed(inputs, **names):
    return inputs | {part: inputs[part].rename(columns=names) for part in ("source", "target")}


@pytest.fixture(scope="module")
def churn():
    metrics = ["accuracy", "log_loss", "auroc"]
    return estimate_shift(**churn_pair(1000, 1000).inputs(), metric=metrics, replicates=FEW)


def saved(report, tmp_path, **options) -> str:
    place = tmp_path / "page.html"
    report.save_html(place, overwrite=True, **options)
    return place.read_text(encoding="utf-8")


class Outline(html.parser.HTMLParser):
    """Elements of a page, and whether they close in the order in which they open."""

    VOID = ("meta", "link", "br", "line", "rect", "circle")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.found, self.words = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def all(self, kind):
        return [attrs for tag, attrs in self.found if tag == kind]

    @property
    def said(self):
        return " ".join(" ".join(self.words).split())


# What the page says


@pytest.mark.parametrize(
    ("status", "doubt"),
    [
        ("identified", "The feature that moved: state."),
        ("weak", "The feature that moved, as far as the data can tell: state."),
        ("not_identified", "The feature that moved, if this story is the right one: state."),
    ],
)
def test_features_are_named_with_the_doubt_of_the_status(churn, tmp_path, status, doubt):
    assert churn.shifted_features == ("state",)
    said = Outline(saved(replace(churn, status=status), tmp_path)).said
    assert doubt in said.replace(" .", ".")


def test_verdict_gap_and_features_come_first(churn, tmp_path):
    said = Outline(saved(churn, tmp_path)).said
    order = [
        {"identified": "Identified", "weak": "Weak", "not_identified": "Not identified"}[
            churn.status
        ],
        f"from {100 * churn.source_value:.1f} % to {100 * churn.target_value:.1f} %",
        "95 % interval",
        "The features that moved" if len(churn.shifted_features) > 1 else "The feature that moved",
        "Every metric on the source",
        "How often resamples",
        "Weight by",
        "Label shares in the source",
        "under each hypothesis",
        "The weights leave the precision of",
        "estimate_shift(",
        "Advances in Neural Information Processing Systems",
    ]
    places = [said.index(words) for words in order]
    assert places == sorted(places)
    for reason in churn.reasons:
        assert reason in said
    for metric in ("accuracy", "log_loss", "auroc"):
        assert metric in said
    for feature in churn.source.schema.names:
        assert str(feature) in said


def test_heat_map_holds_the_weights(churn, tmp_path):
    page = saved(churn, tmp_path)
    for weight in churn.weight_function.weight.flatten().tolist():
        assert re.search(rf'<td class="h[0-6]">{weight:.2f}</td>', page)


def test_marginals_are_those_of_the_tables(churn):
    pair = churn_pair(1000, 1000)
    frame = churn.to_frame("marginals").set_index(["feature", "level"])
    for part, column in ((pair.source, "source_share"), (pair.target, "target_share")):
        for level, share in part["state"].value_counts(normalize=True).items():
            assert frame.loc[("state", level), column] == pytest.approx(share)
    assert frame.groupby("feature")["target_share"].sum().to_numpy() == pytest.approx(1)
    assert (frame.loc["tenure_months", "source_share"] > 0.1).all()  # Quantile bins.


@pytest.mark.parametrize("method", ["none", "bbse", "sees-c", "sees-d", "cbpe", "dlu"])
def test_every_kind_of_weights_has_a_page(tmp_path, method):
    report = estimate_shift(**world(features=3), method=method, replicates=0)
    outline = Outline(saved(report, tmp_path))
    assert f"Method {method}" in outline.said


def test_arrays_metrics_and_dates_have_a_page(tmp_path):
    given = world(features=3)
    arrays = given | {part: given[part].to_numpy() for part in ("source", "target")}
    report = estimate_shift(**arrays, metric=lambda p, y: p[:, 1], replicates=0, confidence=None)
    assert "<lambda>" in Outline(saved(report, tmp_path)).said
    for part in ("source", "target"):
        dated = given[part].assign(day=pd.date_range("2024-01-01", periods=len(given[part])))
        given = given | {part: dated}
    assert "2024-" in saved(estimate_shift(**given, replicates=0), tmp_path)


def test_many_features_levels_and_classes_stay_below_a_megabyte(tmp_path):
    rng = np.random.default_rng(0)
    rows, classes = 900, 40
    labels = np.arange(rows) % classes
    proba = rng.dirichlet(np.ones(classes), rows)
    table = pd.DataFrame(rng.integers(0, 60, (rows, 400)).astype(str))
    table.columns = [f"a long name of a column {j} " * 20 for j in range(400)]
    report = estimate_shift(
        table, labels, table, source_proba=proba, target_proba=proba, method="mlls", replicates=0
    )
    page = saved(report, tmp_path)
    assert len(page.encode()) < 1_000_000
    assert "labels that changed most of 40" in page
    assert "The other 364 features" in page


# Safety


def test_everything_is_escaped(tmp_path):
    given = renamed(world(features=3), x0=NASTY, x1='"><img src=x onerror=alert(1)>', x2="a\u202eb")
    for part in ("source", "target"):
        given[part][NASTY] = "</td></table>" + given[part][NASTY].astype(str) + "&amp;\x00"
    given["labels"] = np.array(["<b>no</b>", "yes"])[given["labels"]]
    given["classes"] = ["<b>no</b>", "yes"]
    report = estimate_shift(**given, metric=["accuracy", "brier"], replicates=FEW)
    page = saved(report, tmp_path, title="</title>" + NASTY)
    outline = Outline(page)
    assert outline.all("script") == []
    assert outline.all("img") == []
    assert outline.all("b") == []
    assert not any(key.startswith("on") for _, attrs in outline.found for key in attrs)
    assert NASTY in outline.said
    assert not {"\x00", "\u202e"} & set(page)


def test_markup_escapes_unless_it_is_markup():
    assert text("<&>\"'") == "&lt;&amp;&gt;&quot;&#x27;"
    assert text(Html("<p>")) == "<p>"
    assert tag("a", "x", href='"') == '<a href="&quot;">x</a>'
    assert tag("p", "x", class_="n", hidden=True, title=None) == '<p class="n" hidden>x</p>'
    assert len(name("x" * 500)) < 500 + 2 * len("<bdi></bdi>")
    assert text("\ud800\x01") == "\ufffd\ufffd"


def test_nothing_is_fetched(churn, tmp_path):
    outline = Outline(saved(churn, tmp_path))
    policy = next(a for a in outline.all("meta") if a.get("http-equiv"))
    assert policy["content"].startswith("default-src 'none'")
    links = [a.get("href") or a.get("src") for _, a in outline.found if "href" in a or "src" in a]
    assert all(link.startswith(("#", "data:")) for link in links)


# Reading with a keyboard, a screen reader, in print


def test_structure_for_assistive_technology(churn, tmp_path):
    outline = Outline(saved(churn, tmp_path))
    assert outline.all("html")[0]["lang"] == "en"
    kinds = [kind for kind, _ in outline.found]
    assert kinds.count("h1") == 1
    assert kinds.count("main") == 1
    levels = [int(kind[1]) for kind in kinds if re.fullmatch("h[1-6]", kind)]
    assert all(later - before <= 1 for before, later in pairwise(levels))
    tables = [a for a in outline.all("table") if a.get("role") != "presentation"]
    assert kinds.count("caption") == len(tables)
    assert all(attrs.get("scope") in ("row", "col") for attrs in outline.all("th"))
    for attrs in outline.all("svg"):
        assert attrs.get("role") == "img" or attrs.get("aria-hidden") == "true"
    assert kinds.count("title") >= 2  # That of the page, and that of the picture.
    assert kinds.count("desc") == 1
    assert ("a", "#answer") in [(k, a.get("href")) for k, a in outline.found]
    ids = [attrs["id"] for _, attrs in outline.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    anchors = [a["href"][1:] for a in outline.all("a")]
    assert set(anchors) <= set(ids)


def luminance(colour: str) -> float:
    parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_have_enough_contrast_in_every_scheme():
    style = files("sees_torch.page").joinpath("style.css").read_text()
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split(":root")[1:]]
    assert len(schemes) == 3
    for scheme in schemes:
        for ground in ("ground", "panel"):
            for ink in ("ink", "soft", "link", "target"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground)
            assert contrast(scheme["source"], scheme[ground]) >= 3
        for verdict in ("good", "care", "bad"):
            assert contrast(scheme[verdict], scheme[f"{verdict}-ground"]) >= 4.5
    steps = re.findall(r"\.h\d \{ background: (#\w{6}); color: (#\w{6})", style)
    assert len(steps) == 7
    for ground, ink in steps:
        assert contrast(ground, ink) >= 4.5


# Rare cells


def test_rare_cells_are_pooled_until_the_pool_is_not_rare():
    counts = torch.tensor([[90.0], [3.0], [7.0], [40.0], [0.0]])
    assert pooled(counts, 5).tolist() == [False, True, True, False, True]
    assert not pooled(counts, 3).any()
    assert not pooled(counts, 0).any()
    assert pooled(torch.tensor([[2.0], [1.0]]), 9).all()


@pytest.mark.parametrize("least", [5, 40])
def test_no_table_tells_of_fewer_rows(tmp_path, least):
    pair = churn_pair(300, 300)
    given = pair.inputs()
    towns = np.where(np.arange(300) < 3, "Rareville", "Bern")
    for part in ("source", "target"):
        given[part] = given[part].assign(town=towns)
    given["target"].loc[5, "town"] = "Nowhere"
    report = estimate_shift(**given, replicates=0)
    page = saved(report, tmp_path, min_cell_count=least)
    frame = report.to_frame("marginals", min_cell_count=least)
    for share in ("source_share", "target_share"):
        rows = 300 * frame[share]
        assert ((rows < 1e-9) | (rows > least - 1e-9)).all()
    assert "Rareville" in str(report.to_frame("marginals"))
    for told in (page, str(frame), str(report.to_dict(min_cell_count=least))):
        assert "Rareville" not in told
        assert "town: " not in told
    cells = report.cells(min_cell_count=least)
    assert (300 * cells["source_share"] > least - 1e-9).all()
    assert cells["source_share"].sum() == pytest.approx(1)
    assert cells["target_share"].sum() == pytest.approx(1)
    low = pair.source["tenure_months"].min()
    assert f"{low:g} to" not in str(frame.query("feature == 'tenure_months'"))


def test_rare_classes_are_pooled_with_the_next_smallest(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(["maybe", "no", "yes"], [3, 197, 100])
    classes = ["maybe", "no", "yes"]
    report = estimate_shift(
        rng.integers(0, 2, (300, 1)),
        labels,
        rng.integers(0, 2, (300, 1)),
        source_proba=rng.dirichlet(np.ones(3), 300),
        target_proba=rng.dirichlet(np.ones(3), 300),
        classes=classes,
        method="none",
        replicates=0,
    )
    assert list(report.to_frame("labels")["label"]) == classes
    frame = report.to_frame("labels", min_cell_count=5)
    assert list(frame["label"]) == ["no", "pooled"]
    assert list(frame["source_share"]) == pytest.approx([197 / 300, 103 / 300])
    assert frame["target_share"].sum() == pytest.approx(1)


@pytest.mark.parametrize("least", [-1, 2.5, True, "5"])
def test_a_least_count_that_is_none_is_refused(churn, tmp_path, least):
    with pytest.raises(SeesError, match="min_cell_count must be a whole number"):
        churn.save_html(tmp_path / "page.html", min_cell_count=least)
    assert list(tmp_path.iterdir()) == []


# The file


def test_files_are_replaced_only_if_asked(churn, tmp_path):
    place = tmp_path / "page.html"
    place.write_text("mine")
    with pytest.raises(
        SeesError, match=r"page\.html exists: choose another name, or say overwrite"
    ):
        churn.save_html(place)
    assert place.read_text() == "mine"
    churn.save_html(str(place), overwrite=True)
    assert place.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [place]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(place.stat().st_mode) == 0o666 & ~mask


def test_a_failed_write_leaves_the_old_file(churn, tmp_path, monkeypatch):
    place = tmp_path / "page.html"
    place.write_text("mine")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SeesError, match="no space left"):
        churn.save_html(place, overwrite=True)
    assert place.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("place", [".", "no/page.html"])
def test_places_that_are_no_file(churn, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SeesError, match="folder"):
        churn.save_html(place)


def test_equal_reports_make_equal_pages(churn, tmp_path):
    assert saved(churn, tmp_path) == saved(churn, tmp_path)


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if browser_path() is None:
        pytest.skip("no Chromium or Chrome on this machine")
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def nasty_page(tmp_path_factory) -> Path:
    given = renamed(world(1, features=9), x0=NASTY, x1="longword" * 60, x2="many words " * 60)
    report = estimate_shift(**given, method="sees-d", metric=["accuracy", "brier"], replicates=0)
    place = tmp_path_factory.mktemp("page") / "nasty.html"
    report.save_html(place)
    return place


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1100])
def test_a_browser_shows_it_and_nothing_leaves(browser, nasty_page, width, dark):
    browser.open(nasty_page, width=width, dark=dark)
    assert browser.messages == []
    assert browser.requests == [nasty_page.resolve().as_uri()]
    assert browser.evaluate("document.title") == "Shift report"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert browser.picture().startswith(b"\x89PNG")


def test_the_first_stop_of_the_keyboard_skips_to_the_answer(browser, nasty_page):
    browser.open(nasty_page)
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
        )
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the answer"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0


def test_what_is_folded_is_printed(browser, nasty_page):
    browser.open(nasty_page)
    assert browser.evaluate("document.querySelectorAll('details:not([open])').length") >= 2
    hidden = "[...document.querySelectorAll('details table')].pop().checkVisibility()"
    assert browser.evaluate(hidden) is False
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(hidden) is True
    assert browser.printed().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="")
