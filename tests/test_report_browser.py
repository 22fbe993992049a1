"""The report in a real browser: nothing is loaded, nothing complains, charts are drawn and show values."""

import os
import re

import pytest

import browser
from made_runs import make_run, make_study, write
from oal import report

PROGRAM = browser.find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no browser: install Debian's package chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    make_study(folder / "runs")
    report.write([folder / "runs"], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    assert PROGRAM
    made = browser.Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def on_a_desk(request):
    if PROGRAM:
        chromium = request.getfixturevalue("chromium")
        chromium.resize(1200, 900)
        chromium.dark(False)


def box(chromium, selector: str) -> dict[str, float]:
    chromium.evaluate(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    return chromium.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")


def test_the_page_is_quiet_and_loads_nothing(chromium, page):
    chromium.open(page)
    assert chromium.evaluate("document.title") == "Report of runs"
    assert chromium.complaints() == []
    outside = [url for url in chromium.requests() if not url.startswith(("data:", page.as_uri()))]
    assert outside == []


def test_charts_are_drawn(chromium, page):
    chromium.open(page)
    sections = chromium.evaluate("[...document.querySelectorAll('section')].map(each => each.id)")
    assert sections == ["summary", "curves", "aggregates", "certificates", "costs", "films", "runs", "failures"]
    # Two tasks with two kinds of curves each; three algorithms in each.
    assert chromium.evaluate("document.querySelectorAll('#curves svg.chart').length") == 4
    assert chromium.evaluate("document.querySelectorAll('#curves polyline.line').length") == 12
    assert chromium.evaluate("document.querySelectorAll('#curves .rule.expert').length") == 4
    sizes = chromium.evaluate(
        "[...document.querySelectorAll('svg.chart polyline, svg.chart rect')].map(each => each.getBBox().width)"
    )
    assert len(sizes) > 30
    assert min(sizes) > 0
    # The first colour of the pictures is the first of the page.
    colour = chromium.evaluate("getComputedStyle(document.querySelector('#curves polyline.s0')).stroke")
    assert colour == "rgb(0, 114, 178)"


def test_pointing_at_a_chart_shows_its_values(chromium, page):
    chromium.open(page)
    place = box(chromium, "#curves svg.lines")
    assert chromium.evaluate("document.querySelector('#curves .tip').hidden")
    chromium.point(place["x"] + place["width"] * 0.9, place["y"] + place["height"] / 2)
    shown = chromium.evaluate("[...document.querySelectorAll('#curves .tip')[0].children].map(e => e.textContent)")
    assert re.fullmatch(r"environment steps: 1[5-9],\d{3}", shown[0])
    for name in ("gail", "linear", "neural"):
        assert any(re.fullmatch(name + r": [\d,]+ \[[\d,]+, [\d,]+\]", line) for line in shown), shown
    assert "expert: 4,200" in shown
    tip = chromium.evaluate("document.querySelector('#curves .tip').getBoundingClientRect().toJSON()")
    assert tip["width"] > 50
    assert place["left"] <= tip["left"] < tip["right"] <= place["right"]
    assert place["top"] <= tip["top"] < tip["bottom"] <= place["bottom"]
    chromium.point(1, 1)
    assert chromium.evaluate("document.querySelector('#curves .tip').hidden")
    assert chromium.complaints() == []


@pytest.mark.parametrize("width", [320, 390, 800, 1200])
def test_the_page_fits_the_screen(chromium, page, width):
    chromium.resize(width, 800, phone=width < 500)
    chromium.open(page)
    chromium.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    # Text in charts stays readable.
    letters = chromium.evaluate("document.querySelector('#curves .tick').getBoundingClientRect().height")
    assert letters >= 8


def luminance(colour: str) -> float:
    return sum(float(part) for part in re.findall(r"[\d.]+", colour)[:3]) / 3


def test_the_page_is_dark_where_the_reader_is(chromium, page):
    chromium.open(page)
    look = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    ground, ink = map(luminance, chromium.evaluate(look))
    assert ground > 200 > 60 > ink
    chromium.dark(True)
    ground, ink = map(luminance, chromium.evaluate(look))
    assert ground < 60 < 200 < ink


def test_what_is_folded_is_printed(chromium, page):
    chromium.open(page)
    assert chromium.evaluate("document.querySelectorAll('details[open]').length") == 0
    printed = chromium.call("Page.printToPDF", printBackground=True)["data"]
    assert len(printed) > 20_000
    assert chromium.evaluate("document.querySelectorAll('details:not([open])').length") == 0


def test_a_hostile_run_runs_nothing(chromium, tmp_path):
    attack = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\"'`]]>"
    names = {"env": attack, "policy": attack, "cost": attack}
    folder = make_run(
        tmp_path / "runs" / "<script>document.title='taken'<",
        metadata={"command": attack, "commit": attack, "versions": {attack: attack}},
        **names,
    )
    write(folder / "cost.json", {"features": [attack, "b"], "weights": [1, -1], "absorbing": None})
    write(folder / "certificate.json", {attack: {"value": 1.0, "verdict": attack}, "worst_simplex": attack})
    error = {"status": "failed", "step": 0, "error": attack}
    make_run(tmp_path / "runs" / "failed", status=error, seed=2, **names)
    (out,) = report.write([tmp_path / "runs"], tmp_path / "report.html", title=attack)
    chromium.open(out)
    assert chromium.evaluate("document.title") == attack
    assert chromium.evaluate("document.querySelectorAll('script').length") == 1
    assert chromium.evaluate("document.querySelectorAll('img').length") == 0
    place = box(chromium, "#curves svg.lines")
    chromium.point(place["x"] + place["width"] * 0.9, place["y"] + place["height"] / 2)
    assert attack in chromium.evaluate("document.querySelector('#curves .tip').textContent")
    assert chromium.evaluate("document.querySelectorAll('img').length") == 0
    assert chromium.complaints() == []


def test_a_screenshot_has_content(chromium, page):
    """A picture is kept for eyes where OAL_SCREENSHOTS names a folder."""
    for name, width in (("phone", 390), ("desk", 1200)):
        chromium.resize(width, 2400, phone=width < 500)
        chromium.open(page)
        picture = chromium.screenshot()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 50_000
        if folder := os.environ.get("OAL_SCREENSHOTS"):
            with open(os.path.join(folder, f"report-{name}.png"), "wb") as file:
                file.write(picture)
