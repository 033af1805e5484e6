"""The pages in Chromium: what only a browser shows. `make test-browser` runs it.

Skipped without Chromium or Playwright; the rules of accessibility also without axe-core, which that command
installs into node_modules.
"""

import re
import shutil
from itertools import product
from pathlib import Path

import pytest
from cases import BY_ID, NAME, TEXTS, Case
from finished import finished
from small import ROOT

from bertkit.audits.audit import page as audit_page
from bertkit.audits.parts import Section
from bertkit.report.examples import write_explanations
from bertkit.report.html import compare, write_report
from bertkit.tasks import get_task

pytestmark = pytest.mark.rare

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
AXE = ROOT / "node_modules/axe-core/axe.min.js"
RULES = "wcag2a wcag2aa wcag21a wcag21aa wcag22aa best-practice".split()
PAPER = 718  # CSS pixels of A4 between margins of 1 cm
SCRIPT = f"<script>document.title='taken'</script>{'w' * 20}"
HOSTILE = f"{SCRIPT} <img src=https://example.org onerror=alert(1)> سلام {'long' * 40}"
LABELS = Case("labels", NAME, {"text": [*TEXTS, HOSTILE] * 4, "label": ["good", "bad", SCRIPT, "bad"] * 9})
REPORTS = [
    LABELS,
    *map(BY_ID.get, "ner-crf-windows-bioes qa-windows-or-none retrieval regression".split()),
]
PAGES = [*(case.id for case in REPORTS), "comparison", "audit"]
STOPS = """[...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
    .filter((stop) => stop.checkVisibility())"""
FOCUSED = f"""() => {{
    const stop = document.activeElement, box = stop.getBoundingClientRect(), style = getComputedStyle(stop);
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    return [{STOPS}.indexOf(stop), outlined, box.bottom > 0 && box.top < innerHeight];
}}"""
UNSEEN = """[...document.querySelectorAll("body *")].filter((part) => !part.checkVisibility()
    && [...part.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    && !part.closest("script, .filters, #theme")).map((part) => part.textContent)"""
COLORS = """(names) => Object.fromEntries(names.map((name) =>
    [name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`)]))"""


@pytest.fixture(scope="module")
def pages(tiny_encoder, tmp_path_factory):
    """The folder with the pages of models as they were drawn, which make mistakes."""
    folder = tmp_path_factory.mktemp("pages")
    for case in REPORTS:
        run = finished(case, tiny_encoder, folder / case.id).folder
        write_explanations(run)
        write_report(run, folder / f"{case.id}.html")
    finished(LABELS, tiny_encoder, folder / f"other{HOSTILE[-80:]}", seed=4)
    compare([folder / "labels", folder / f"other{HOSTILE[-80:]}"], folder / "comparison.html")
    rows = [
        {
            "location": f"{SCRIPT}.csv:{n}",
            "text": HOSTILE,
            "given": SCRIPT,
            "suggested": "good",
            "probability": n / 9,
        }
        for n in range(9)
    ]
    figures = {"rows": "36", "rows to check": "9"}
    columns = ["given", "suggested", "probability"]
    part = Section("labels", "Labels to check", f"9 of {HOSTILE}.", rows, columns, figures, [HOSTILE])
    schema = get_task("text-classification").schema
    (folder / "audit.html").write_text(audit_page(schema, [part], Path(HOSTILE[-80:]), ["a.yaml", HOSTILE]))
    return folder


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if not program:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as driver, driver.chromium.launch(executable_path=program) as chromium:
        yield chromium


@pytest.fixture
def opened(browser, pages):
    """Opens a page. Its console stays empty, and nothing but the file is requested."""
    noted = []
    contexts = []

    def open_page(name, width=1280, **settings):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **settings))
        page = contexts[-1].new_page()
        address = (pages / f"{name}.html").as_uri()
        page.on("console", lambda message: noted.append(message.text))
        page.on("pageerror", lambda error: noted.append(str(error)))
        page.on("request", lambda request: noted.append(request.url) if request.url != address else None)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not noted


def width_of(page):
    return page.evaluate("document.documentElement.scrollWidth")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_its_data_stay_text(name, opened):
    for width in (390, 768, 1280):
        page = opened(name, width)
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert width_of(page) == width
        assert page.title() != "taken"
        assert page.locator("img, main script").count() == 0
        if name in ("labels", "comparison", "audit"):
            assert SCRIPT in page.locator("main").inner_text()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_violation_of_the_rules_of_axe(name, opened):
    if not AXE.is_file():
        pytest.skip("no axe-core")
    for width, scheme in product((390, 1280), ("light", "dark")):
        page = opened(name, width, color_scheme=scheme)
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        result = page.evaluate("(tags) => axe.run(document, {runOnly: tags})", RULES)
        assert len(result["passes"]) > 20
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in result["violations"]] == []


def luminance(color):
    """Relative luminance of #rrggbb, as WCAG 2.2 defines it."""
    parts = [int(part, 16) / 255 for part in re.findall("[0-9a-f]{2}", color)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_and_bars_have_contrast_in_both_themes(scheme, opened):
    """What axe-core does not judge: texts of an SVG, and those on a gradient."""
    page = opened("labels", color_scheme=scheme)
    light = {"page": 4.5, "panel": 4.5, "right": 4.5, "wrong": 4.5, "missed": 4.5}
    series = [f"s{n}" for n in range(1, 7)]
    wanted = {"ink": light, "faint": {"page": 4.5, "panel": 4.5}, "link": {"page": 4.5}}
    wanted |= {name: {"page": 3.0} for name in series}
    colors = page.evaluate(COLORS, [*wanted, *light])
    for name, grounds in wanted.items():
        for ground, least in grounds.items():
            dark, bright = sorted(luminance(colors[side]) for side in (name, ground))
            assert (bright + 0.05) / (dark + 0.05) >= least, (name, ground)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("key", ["click", "Enter", "Space"])
def test_a_table_is_sorted_by_mouse_and_keyboard(key, width, opened):
    page = opened("labels", width)
    table = page.get_by_role("table", name="Mistakes on validation")
    head = table.get_by_role("columnheader", name="row", exact=True)
    button = head.get_by_role("button")
    for direction in ("ascending", "descending"):
        button.click() if key == "click" else button.press(key)
        numbers = [int(text) for text in table.locator("[data-name=row]").all_inner_texts()]
        assert len(numbers) > 9
        assert numbers == sorted(numbers, reverse=direction == "descending")
        assert head.get_attribute("aria-sort") == direction
        assert table.locator("th[aria-sort]").count() == 1


def test_what_is_absent_is_sorted_last(opened):
    page = opened("labels")
    table = page.locator("table.bars")
    table.locator("td:nth-child(3)").first.evaluate("(cell) => { cell.textContent = '–'; }")
    for _ in range(2):
        table.get_by_role("button", name="precision").click()
        assert table.locator("td:nth-child(3)").last.inner_text() == "–"


def test_rows_are_filtered_by_words_labels_and_cells_of_the_matrix(opened):
    page = opened("labels")
    rows = page.locator("#mistake-rows tr:visible")
    total = rows.count()

    def cells(column):
        return {text for text in rows.locator(f"[data-name={column}]").all_inner_texts()}

    assert len(cells("gold")) > 1
    gold = min(cells("gold"))
    page.get_by_label("Gold").select_option(gold)
    assert cells("gold") == {gold}
    assert page.get_by_role("status").inner_text() == f"{rows.count()} of {total} shown"
    page.get_by_label("Gold").select_option("any")
    page.get_by_label("Search").fill("CAT")
    assert 0 < rows.count() < total
    assert all("cat" in text for text in rows.all_inner_texts())
    page.get_by_label("Search").fill("zebra")
    assert rows.count() == 0
    for link in page.locator("a[data-gold]").all():
        link.click()
        assert rows.count() == int(link.inner_text())
        assert cells("gold") == {link.get_attribute("data-gold")}
        assert cells("answer") == {link.get_attribute("data-answer")}


@pytest.mark.parametrize("name", ["labels", "comparison", "audit"])
def test_every_control_is_reached_by_tab_in_order_and_shows_its_focus(name, opened):
    page = opened(name)
    stops = page.evaluate(f"{STOPS}.length")
    assert stops > 9
    for place in range(stops):
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUSED) == [place, True, True]


def test_keys_open_details_and_change_the_theme(opened):
    page = opened("labels", color_scheme="dark")
    detail = page.locator("details").last
    for key, state in (("Enter", True), ("Space", False)):
        detail.locator("summary").press(key)
        assert detail.evaluate("(part) => part.open") == state
    grounds = []
    for name in ("Light theme", "Dark theme"):
        page.get_by_role("button", name=name).press("Space")
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


@pytest.mark.parametrize("name", PAGES)
def test_paper_shows_everything_in_dark_ink_within_its_width(name, opened):
    page = opened(name, PAPER, color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert width_of(page) == PAPER
    assert page.evaluate(UNSEEN) == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


def test_without_javascript_all_is_there_but_the_controls(opened):
    page = opened("labels", java_script_enabled=False)
    assert page.get_by_role("heading", name="Mistakes").is_visible()
    assert page.locator("#mistake-rows tr").last.is_visible()
    assert page.locator("button:visible, input:visible").count() == 0
