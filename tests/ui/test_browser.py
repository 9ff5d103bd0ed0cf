"""Paths of people through the page, in Chromium: what they see, and a screenshot of it.

`make test-ui` runs them; with ICEFLOE_SCREENSHOTS the screenshots are those of the documentation.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from benchmarks.page import FIRST_PAINT, VIEWS, large_table, served
from benchmarks.page import NAME as LARGE
from icefloe.lake import open_catalog
from support.page import SCRIPT, hostile
from support.page_lake import build

pytestmark = pytest.mark.browser
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZE = {"width": 1200, "height": 760}
_SQL_S = 120_000  # the first statement starts Spark

Shot = Callable[..., None]


@pytest.fixture(scope="module")
def folder(spark, tmp_path_factory) -> Path:
    """A folder with a lake that has something to see on every view."""
    made = tmp_path_factory.mktemp("ui")
    build(made / "lake", spark)
    return made


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    """The address that `icefloe ui` prints."""
    command = [sys.executable, "-m", "icefloe", "ui", "--no-browser"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def scheme() -> str:
    return "light"


@pytest.fixture
def page(browser: Browser, address: str, scheme: str) -> Iterator[Page]:
    """The page, opened by its address; scripts that fail, or try to run, fail the test."""
    context = browser.new_context(
        viewport=SIZE, color_scheme=scheme, timezone_id="UTC", reduced_motion="reduce"
    )
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "console",
        lambda message: errors.append(message.text) if "Content Security" in message.text else None,
    )
    opened.goto(address)
    expect(opened.get_by_role("navigation", name="Tables")).to_contain_text("orders")
    yield opened
    assert errors == []
    context.close()


@pytest.fixture
def shot(page: Page, tmp_path: Path) -> Shot:
    folder = Path(os.environ.get("ICEFLOE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str, of: Page = page) -> None:
        of.mouse.move(0, 0)
        of.wait_for_timeout(150)
        of.screenshot(path=folder / f"{name}.png")

    return take


def open_table(page: Page, name: str, tab: str = "Life") -> None:
    page.get_by_role("navigation", name="Tables").get_by_title(name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name.rpartition(".")[2])
    page.get_by_role("tab", name=tab).click()
    expect(page.locator("#panel .skeleton")).to_have_count(0)


def run_sql(page: Page, text: str) -> None:
    page.get_by_role("link", name="SQL").click()
    page.get_by_role("textbox", name="Statement").fill(text)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text(re.compile("^Running"))).to_have_count(0, timeout=_SQL_S)


def test_the_tables_are_listed_with_their_sizes(page, shot, address):
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(5)
    expect(rows.nth(1)).to_contain_text("shop.orders")  # the largest
    assert "token" not in page.url
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Tables")
    shot("tables")


def test_a_table_is_found_by_typing_its_name(page):
    page.get_by_role("searchbox", name="Filter tables").fill("led")
    expect(page.locator("#tables a")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("ledger")
    page.get_by_role("searchbox").fill("nothing has this name")
    expect(page.locator("#tables")).to_contain_text("No table has this in its name")


def test_the_content_is_reached_with_two_keys(page):
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.get_by_role("heading", level=1)).to_have_text("Tables")


def test_the_life_of_a_table_is_walked_with_the_arrow_keys(page, shot):
    open_table(page, "finance.ledger")
    slider = page.get_by_role("slider", name="Snapshots")
    chosen = page.get_by_label("The chosen snapshots")
    expect(chosen.get_by_role("heading")).to_have_text("update")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(chosen.get_by_role("heading")).to_have_text("delete")
    assert "rows 365 deleted" in (slider.get_attribute("aria-valuetext") or "")
    expect(chosen).to_contain_text("copy-on-write")
    page.keyboard.press("Home")
    expect(chosen).to_contain_text("+300")
    expect(
        page.get_by_role("region", name="Snapshots, the newest").get_by_role("row")
    ).to_have_count(32)
    page.keyboard.press("End")
    shot("life")


def test_partitions_are_tiles_that_open_their_files(page, shot):
    open_table(page, "shop.orders", "Files")
    tiles = page.get_by_role("group", name="Tiles by bytes").get_by_role("button")
    expect(tiles).to_have_count(12)
    expect(page.locator("#panel")).to_contain_text("of the rows in files are deleted")
    shot("files")
    tiles.first.focus()
    page.keyboard.press("ArrowRight")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Files of region=")).to_be_visible()
    assert label.startswith("region=")
    expect(tiles.first).to_have_attribute("aria-label", re.compile(r"\.parquet: "))
    page.get_by_role("button", name="All partitions").click()
    expect(tiles).to_have_count(12)


def test_file_sizes_are_judged_by_the_target(page, shot):
    open_table(page, "shop.orders", "Files")
    page.get_by_role("button", name="File sizes").click()
    expect(page.get_by_role("button", name="File sizes")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#panel")).to_contain_text("all small or large")
    page.get_by_text("Partitions as a list").click()
    expect(page.get_by_role("region", name="Partitions by bytes")).to_contain_text("small")
    expect(page.locator("#panel")).to_contain_text("are small for the target")
    page.get_by_text("Partitions as a list").click()
    page.get_by_role("heading", name="Partitions by bytes").scroll_into_view_if_needed()
    shot("sizes")


def test_a_condition_shows_which_files_it_would_open(page, shot):
    open_table(page, "shop.orders", "Columns")
    page.get_by_label("WHERE").fill("region = 'eu' AND id = 5700")
    page.get_by_role("button", name="Which files?").click()
    opened = page.locator("#panel .card").first
    expect(opened).to_contain_text("files would be opened")
    expect(opened).to_contain_text("skipped by partition")
    expect(opened).to_contain_text("skipped by column bounds")
    expect(page.get_by_role("combobox", name="Column")).to_have_value("id")
    page.get_by_role("combobox", name="Column").select_option("day")
    expect(page.get_by_role("img", name="Bounds of day")).to_be_visible()
    shot("columns")


def test_tabs_are_walked_with_the_arrow_keys(page):
    open_table(page, "shop.orders")
    page.get_by_role("tab", name="Life").focus()
    for name in ("Files", "Columns"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("heading", name="How the schema changed")).to_be_visible()
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_role("heading", name="How the schema changed")).to_be_visible()


def test_the_schema_shows_how_it_changed(page, shot):
    open_table(page, "shop.orders", "Columns")
    versions = page.get_by_role("region", name="Versions of the schema").get_by_role("row")
    expect(versions).to_have_count(4)
    expect(versions.nth(1)).to_contain_text("renamed amount to total")
    expect(versions.nth(2)).to_contain_text("added coupon string")
    versions.nth(3).scroll_into_view_if_needed()
    shot("schema")


def test_upkeep_shows_what_maintenance_would_do(page, shot):
    open_table(page, "shop.orders", "Upkeep")
    compact = page.get_by_role("region", name="Compact")
    expect(compact).to_contain_text("worth it")
    expect(compact).to_contain_text(re.compile(r"41→\d+ data files"))
    expect(page.get_by_role("region", name="Indexes")).to_contain_text("by_id")
    shot("upkeep")
    open_table(page, "finance.ledger", "Upkeep")
    expire = page.get_by_role("region", name="Expire")
    expect(expire).to_contain_text("of 31 snapshots would expire")
    expire.get_by_role("button", name="Count the files").click()
    expect(expire).to_contain_text("up to")
    open_table(page, "shop.clicks", "Upkeep")
    expect(page.get_by_role("region", name="Flush")).to_contain_text("120 inline rows")


def test_a_query_shows_its_rows(page, shot):
    run_sql(
        page,
        "SELECT region, count(*) AS orders, sum(total) AS total, max(coupon) AS coupon\n"
        "FROM shop.orders\nGROUP BY region ORDER BY region",
    )
    result = page.get_by_role("region", name="Result")
    expect(result.get_by_role("row")).to_have_count(5)
    expect(result.get_by_role("row").nth(1)).to_contain_text("apac")
    shot("query")
    run_sql(page, "SELECT id FROM shop.orders")
    expect(page.get_by_role("heading", name="The first 200 rows")).to_be_visible()


def test_a_table_leads_to_a_query_of_it(page):
    open_table(page, "shop.clicks")
    page.get_by_role("link", name="Query", exact=True).click()
    expect(page.get_by_role("textbox", name="Statement")).to_have_value(
        "SELECT * FROM shop.clicks LIMIT 50"
    )
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("heading", name="50 rows")).to_be_visible(timeout=_SQL_S)


def test_explain_is_drawn_as_a_plan(page, shot):
    run_sql(
        page,
        "EXPLAIN UPDATE shop.orders SET status = 'sent'\n"
        "WHERE day >= DATE'2026-03-20' AND region = 'eu'",
    )
    plan = page.locator("#plan")
    expect(plan).to_contain_text("What UPDATE would do")
    expect(plan).to_contain_text("skipped by partition")
    expect(plan.get_by_role("region", name="Files that the statement opens")).to_contain_text(
        "write deletes"
    )
    expect(plan.get_by_role("region", name="Files that the statement skips")).to_contain_text(
        "partition"
    )
    shot("plan")


def test_what_would_write_is_refused(page, shot, address):
    run_sql(page, "DROP TABLE shop.orders")
    expect(page.get_by_role("alert")).to_contain_text("read-only: DROP TABLE is refused")
    shot("refused")
    run_sql(page, "DELETE FROM shop.orders")
    expect(page.get_by_role("alert")).to_contain_text("put EXPLAIN before the statement")
    run_sql(page, "SELECT count(*) FROM shop.orders.snapshots")
    expect(page.get_by_role("region", name="Result")).to_contain_text("13")


def test_a_script_in_names_and_data_is_inert(page, folder, shot):
    catalog = open_catalog(folder / "lake", None, {})
    hostile(catalog, "other", SCRIPT)
    page.reload()
    for tab, shown in (
        ("Life", "#panel .card >> nth=1"),  # the statement, its mode and condition, and the tag
        ("Files", ".treemap"),
        ("Columns", "#panel [aria-label=Columns]"),
        ("Upkeep", "#panel"),
        ("Details", "#panel [aria-label='Properties of the table']"),
    ):
        open_table(page, f"other.{SCRIPT}", tab)
        expect(page.locator(shown)).to_contain_text(SCRIPT)
        refuses_scripts(page)
    open_table(page, f"other.{SCRIPT}", "Files")
    page.locator(".treemap button").first.hover()
    page.locator(".treemap button").first.click()
    expect(page.get_by_role("heading", name=f"Files of part {SCRIPT}={SCRIPT}")).to_be_visible()
    refuses_scripts(page)
    open_table(page, f"other.{SCRIPT}", "Columns")
    page.get_by_role("combobox", name="Column").select_option(SCRIPT)
    page.locator(".overlap").hover(position={"x": 20, "y": 80})
    bounds = page.get_by_role("img", name=f"Bounds of {SCRIPT}")
    expect(bounds).to_contain_text(SCRIPT[:16])  # as manifests keep them
    page.get_by_label("WHERE").fill(f"`{SCRIPT}` = '{SCRIPT}'")
    page.get_by_role("button", name="Which files?").click()
    expect(page.locator("#panel .card").first).to_contain_text("1 of 2 files would be opened")
    refuses_scripts(page)
    run_sql(page, f"EXPLAIN DELETE FROM other.`{SCRIPT}` WHERE `{SCRIPT}` = '{SCRIPT}'")
    expect(page.locator("#plan")).to_contain_text(SCRIPT)
    refuses_scripts(page)
    run_sql(page, f"SELECT `{SCRIPT}` AND 1 FROM other.`{SCRIPT}`")
    expect(page.get_by_role("alert")).to_contain_text(SCRIPT)
    refuses_scripts(page)
    run_sql(page, f"SELECT * FROM other.`{SCRIPT}`")
    expect(page.get_by_role("region", name="Result")).to_contain_text(SCRIPT)
    refuses_scripts(page)
    shot("script")
    catalog.drop_table(("other", SCRIPT))


def refuses_scripts(page: Page) -> None:
    """No element was made from text, and no script of a text ran."""
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("typeof window.pwned") == "undefined"


def test_without_the_token_the_page_asks_for_it(browser, address, page, shot):
    context = browser.new_context(viewport=SIZE)
    stranger = context.new_page()
    stranger.goto(address.partition("?")[0])
    expect(stranger.get_by_role("heading")).to_have_text("This page needs its token")
    assert "orders" not in stranger.content()
    shot("sign_in", stranger)
    stranger.get_by_label("Address or token").fill("wrong")
    stranger.get_by_role("button", name="Open the page").click()
    expect(stranger.get_by_role("alert")).to_contain_text("missing or wrong")
    stranger.get_by_label("Address or token").fill(address)
    stranger.get_by_role("button", name="Open the page").click()
    expect(stranger.get_by_role("navigation", name="Tables")).to_contain_text("orders")
    context.close()


def test_a_narrow_window_needs_no_scrolling_to_the_side(page):
    page.set_viewport_size({"width": 400, "height": 800})
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for tab in ("Life", "Files", "Columns", "Upkeep", "Details"):
        open_table(page, "shop.orders", tab)
        assert page.evaluate(wide) <= 0, tab


@pytest.mark.parametrize("view", ["life", "files", "columns", "upkeep", "details"])
def test_nothing_moves_while_a_view_is_loaded(page, address, view):
    page.add_init_script(
        "window.moved = 0; new PerformanceObserver((list) => {"
        " for (const shift of list.getEntries()) window.moved += shift.value;"
        "}).observe({ type: 'layout-shift', buffered: true })"
    )
    page.goto(f"{address}#/table/shop.orders/{view}")
    expect(page.locator("#panel .skeleton")).to_have_count(0)
    page.wait_for_timeout(300)
    assert page.evaluate("window.moved") < 0.02


@pytest.mark.parametrize("scheme", ["dark"])
def test_the_page_is_dark_where_the_system_is(page, shot, scheme):
    open_table(page, "shop.orders", "Files")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(10, 19, 26)"
    shot("dark")
    page.get_by_role("button", name="Theme").click()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(243, 247, 250)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible(browser, address, scheme):
    context = browser.new_context(viewport=SIZE, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(address)
    expect(page.get_by_role("table")).to_be_visible()
    found = {"tables": violations(page)}
    for tab in ("Life", "Files", "Columns", "Upkeep", "Details"):
        open_table(page, "shop.orders", tab)
        found[tab] = violations(page)
    open_table(page, "shop.clicks", "Upkeep")
    found["inline"] = violations(page)
    run_sql(page, "EXPLAIN DELETE FROM shop.orders WHERE id < 100")
    found["plan"] = violations(page)
    run_sql(page, "DROP TABLE shop.orders")
    found["refused"] = violations(page)
    context.close()
    assert {view: each for view, each in found.items() if each} == {}


@pytest.fixture(scope="module")
def large_lake(tmp_path_factory) -> Path:
    """A lake with a table of 10,000 files and 1,000 snapshots."""
    made = tmp_path_factory.mktemp("large")
    large_table(open_catalog(made / "lake", None, {}), LARGE)
    return made


@pytest.mark.parametrize("view", VIEWS)
def test_the_first_paint_of_a_large_table_takes_less_than_a_second(browser, large_lake, view):
    """In a new server, which has read nothing of the table; the best of three."""
    paints = []
    for _ in range(3):
        context = browser.new_context(viewport=SIZE)
        page = context.new_page()
        with served(str(large_lake)) as address:
            page.goto(f"{address}#/table/{LARGE}/{view}")
            page.wait_for_selector(VIEWS[view])
            paints.append(page.evaluate(FIRST_PAINT))
        context.close()
        if paints[-1] < 1000:
            break
    assert min(paints) < 1000, paints


def violations(page: Page) -> list[str]:
    results = Axe().run(page).response
    return [
        f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:200]}"
        for each in results["violations"]
        if each["impact"] in ("serious", "critical", "moderate")
    ]
