"""One Chromium and one page of `refsim explore` for all tests in this folder."""

import json
import shutil
from importlib.util import find_spec

import pytest

from refsim.cli.answers.explorer.page import page as written

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ABSENT = [
    *(["Playwright is not installed (pip install 'refsim[dev]')"] if find_spec("playwright") is None else []),
    *(["there is no Chromium on this machine"] if CHROMIUM is None else []),
]


@pytest.fixture(scope="package")
def tab(tmp_path_factory):
    """One page in one Chromium for all tests, and what it said on its console or asked of a network: nothing."""
    if ABSENT:
        pytest.skip(" and ".join(ABSENT))
    from playwright.sync_api import sync_playwright

    path = tmp_path_factory.mktemp("explorer") / "page.html"
    path.write_text(written(), encoding="utf-8")
    said = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        page.goto(path.as_uri())
        yield page
        chromium.close()
    assert said == []


@pytest.fixture(scope="package")
def opened(tab):
    """open(hash, colours, width): the page as one who follows a link finds it; `anew` loads it once more."""

    def open_page(choice="fragment=mma.m16n8k16.bf16.a", colours="light", width=1100, *, anew=False):
        tab.emulate_media(color_scheme=colours)
        tab.set_viewport_size({"width": width, "height": 700})
        follow = """(choice) => new Promise((done) => { history.replaceState(null, "", "#");
            addEventListener("hashchange", () => done(), {once: true}); location.hash = choice; })"""
        tab.evaluate(follow, choice)
        if anew:
            tab.evaluate("(choice) => history.replaceState(null, '', '#' + choice)", choice)
            tab.reload()
        tab.wait_for_function("(theme) => document.documentElement.dataset.theme === theme", arg=colours)
        return tab

    return open_page


@pytest.fixture(scope="package")
def model(tab):
    """ask(script, argument): what the functions of the page return; NaN and infinities as text, a BigInt as digits."""

    def ask(script, argument=None):
        spelled = "(_, each) => typeof each === 'bigint' ? String(each) : each"
        return json.loads(tab.evaluate(f"async (given) => JSON.stringify(({script})(given), {spelled})", argument))

    return ask
