"""The page itself: start, loading, failing loads, looks, phones, and ``python app.py``."""

from __future__ import annotations

import threading

import pytest

from tests.browser.support.acting import send, set_number, wait_for_answers, wait_until_idle
from tests.browser.support.running_page import page_as_program, wait_until_ok

pytestmark = pytest.mark.browser


def test_the_page_opens_while_the_model_loads_and_a_prompt_waits_for_it(serve_page, open_tab):
    from micro_vllm.model_loader import load_model

    go_on = threading.Event()

    def slow_load(name, progress):
        assert go_on.wait(60)
        return load_model(name, progress=progress)

    page = serve_page(load=slow_load)
    tab = open_tab(page.url)
    assert page.health()["status"] == "loading"
    tab.wait_for_function("document.querySelector('#prompt textarea').placeholder.includes('Loading')")
    assert "tiny-llama" in tab.get_attribute("#prompt textarea", "placeholder")
    assert "Loading" in tab.inner_text(".mv-header")
    # The canvas is not empty, and says what it shows.
    assert tab.is_visible(".mv-sample")
    assert "Sample" in tab.inner_text(".mv-sample")

    set_number(tab, "max-tokens", "8")
    send(tab, "I am early")
    tab.wait_for_function(
        "document.querySelector('#chat .meta')?.innerText.includes('waiting for the model')"
    )
    tab.click("#stop")  # what waits can be stopped, and is not lost
    tab.wait_for_function("document.querySelector('#prompt textarea').value === 'I am early'")
    assert tab.locator("#chat .message").count() == 0
    wait_until_idle(tab)
    tab.click("#send")
    tab.wait_for_function(
        "document.querySelector('#chat .meta')?.innerText.includes('waiting for the model')"
    )
    go_on.set()
    tab.wait_for_function("document.querySelector('#chat .meta')?.innerText.includes('length limit')")
    wait_until_idle(tab)
    assert page.health()["status"] == "ok"
    tab.wait_for_selector(".mv-sample", state="hidden")
    tab.wait_for_function("document.querySelector('#prompt textarea').placeholder.includes('Ask')")


def test_a_failed_load_says_why_and_another_model_can_be_loaded(tiny_model, tmp_path, serve_page, open_tab):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    page = serve_page(str(tmp_path / "broken"), load=_load)
    health = page.wait_for(lambda h: h["status"] == "error", 30)
    assert health["detail"]
    tab = open_tab(page.url)
    tab.click("#model-panel-toggle")
    tab.wait_for_function("document.querySelector('#model-status')?.innerText.includes('no weights')")
    tab.wait_for_function(
        "document.querySelector('[data-pill=model]').innerText.includes('no model is loaded')"
    )
    send(tab, "hello?")
    words = tab.wait_for_selector(".toast-body").inner_text()
    assert "no model is loaded" in words
    assert "Load" in words
    assert tab.input_value("#prompt textarea") == "hello?"

    tab.fill("#model input", str(tiny_model))
    tab.press("#model input", "Enter")
    tab.click("#load-model")
    page.wait_for(lambda h: h["status"] == "ok", 30)
    tab.wait_for_function("document.querySelector('#model-status')?.innerText.includes('is ready')")
    set_number(tab, "max-tokens", "6")
    tab.click("#send")
    tab.wait_for_function("document.querySelector('#chat .meta')?.innerText.includes('length limit')")
    wait_until_idle(tab)

    # A second failure leaves the good one answering, and says so.
    tab.fill("#model input", str(tmp_path / "broken"))
    tab.press("#model input", "Enter")
    tab.click("#load-model")
    tab.wait_for_function("document.querySelector('#model-status')?.innerText.includes('still answers')")
    assert page.health()["status"] == "ok"


def _load(name, progress):
    from micro_vllm.model_loader import load_model

    return load_model(name, progress=progress)


def test_a_change_of_model_clears_the_charts(tiny_model, serve_page, open_tab):
    """P23, vllm-playground 0.1.7."""
    page = serve_page()
    tab = open_tab(page.url)
    set_number(tab, "max-tokens", "8")
    send(tab, "hello")
    tab.wait_for_selector(".mv-sample", state="hidden")
    wait_until_idle(tab)
    first = page.host.engine
    assert page.host.load(str(tiny_model))
    page.wait_for(lambda h: page.host.engine is not first, 30)
    # The new engine's own story, which is empty: not the old one's, and not the sample again.
    rows = "(document.querySelector('#scheduler-timeline .mv-plot').layout.yaxis.ticktext || []).length"
    tab.wait_for_function(f"{rows} === 0")
    assert not tab.is_visible(".mv-sample")
    send(tab, "again")
    tab.wait_for_function(f"{rows} === 1")
    wait_until_idle(tab)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_charts_follow_the_theme(served, open_tab, theme):
    tab = open_tab(served.url, query=f"?__theme={theme}")
    tab.wait_for_function("document.querySelectorAll('.mv-plot .main-svg').length >= 3")
    color = "document.querySelector('#kv-usage .mv-plot').layout.font.color"
    first = tab.evaluate(color)
    tab.click("[data-theme-toggle]")
    tab.wait_for_function(f"{color} !== '{first}'")
    assert (first == "#16202c") == (theme == "light")


def test_axes_stay_where_nothing_is_drawn_on_them(served, open_tab):
    """Empty traces are not given to Plotly, except those that alone make it draw their axes: the rows that say what
    ran out are empty while a short answer runs in a roomy pool."""
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "12")
    send(tab, "one")
    wait_for_answers(tab, 1)
    asked, drawn, fewer = tab.evaluate(
        """() => { const asked = {}, drawn = {}; let fewer = 0;
        for (const id of ["kv-block-map", "prefix-cache", "scheduler-timeline", "step-budget", "kv-usage"]) {
            const data = microVLLM.figure(id).figure.data, box = document.querySelector(`#${id} .mv-plot`);
            asked[id] = [...new Set(data.flatMap(t => [t.xaxis || "x", t.yaxis || "y"]))].sort();
            drawn[id] = ["xaxis", "yaxis"].flatMap(kind => box._fullLayout._subplots[kind]).sort();
            fewer += data.length - box.data.length;
        }
        return [asked, drawn, fewer]; }"""
    )
    assert drawn == asked
    assert fewer > 5
    words = tab.locator("#step-budget .mv-words > span").all_text_contents()
    assert words[-4:] == ["no tokens", "no seats", "no blocks", "preempted"]


def test_on_a_phone_charts_are_tabs_of_full_size(served, open_tab):
    """P16, gradio #6850."""
    tab = open_tab(served.url, width=390, height=844)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    inside, header = tab.evaluate(
        "[[...document.querySelectorAll('.mv-header :is(h1, .pill, button)')].filter(n => n.offsetParent)"
        ".map(n => n.getBoundingClientRect()).map(box => [box.top, box.bottom]),"
        "document.querySelector('.mv-header').getBoundingClientRect().bottom]"
    )
    assert len(inside) > 6
    assert all(top >= 0 and bottom <= header for top, bottom in inside), "the header has room for two rows"
    tab.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    tab.wait_for_selector("#kv-block-map .main-svg")
    for title, chart in (("Scheduler timeline", "scheduler-timeline"), ("KV use", "kv-usage")):
        tab.click(f".mv-tabs button:has-text('{title}')")
        tab.wait_for_selector(f"#{chart} .main-svg", state="visible")
        assert not tab.is_visible("#kv-block-map .mv-plot")
        tab.wait_for_function(
            "id => { const p = document.querySelector(`#${id} .mv-plot`), s = p.querySelector('.main-svg');"
            "return Math.abs(s.getBoundingClientRect().width - p.clientWidth) < 2 && p.clientWidth > 300; }",
            arg=chart,
        )


@pytest.mark.parametrize("width", [1440, 1280])
def test_the_numbers_of_the_header_are_whole_however_wide_they_get(served, open_tab, width):
    """With three digits in use the last one was cut; of a paused engine nothing but the model was to be seen."""
    tab = open_tab(served.url, width=width)
    # In one go: the page writes its own numbers there again and again.
    cut = tab.evaluate(
        """wide => {
          const node = name => document.querySelector(`[data-head="${name}"]`);
          const box = one => one.getBoundingClientRect();
          for (const [name, text] of Object.entries(wide)) node(name).textContent = text;
          const right = box(document.querySelector(".mv-pills")).right;
          return Object.keys(wide).filter(name => !box(node(name)).width ||
            box(node(name)).right > Math.min(right, box(node(name).closest(".pill")).right) + 0.5);
        }""",
        {
            "running": "32",
            "waiting": "128",
            "used": "1,024",
            "total": "8,192",
            "hits": "100 %",
            "paused": " · engine paused",
        },
    )
    assert cut == []


def test_nothing_jumps_while_text_streams(served, open_tab):
    tab = open_tab(served.url)
    tab.wait_for_function("document.querySelectorAll('.mv-plot .main-svg').length >= 3")
    send(tab, "first, so that the sample note is gone")
    tab.wait_for_selector(".mv-sample", state="hidden")
    tab.wait_for_timeout(500)
    places = """JSON.stringify(
        ['#composer', '#kv-block-map .mv-plot', '#scheduler-timeline .mv-plot', '#kv-usage .mv-plot'].map(s => {
            const r = document.querySelector(s).getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; }))"""
    seen = set()
    for _ in range(15):
        seen.add(tab.evaluate(places))
        tab.wait_for_timeout(100)
    tab.click("#stop")
    wait_until_idle(tab)
    seen.add(tab.evaluate(places))
    assert len(seen) == 1


def test_a_hosted_page_tells_its_limits_and_its_engine_panel_is_read_only(serve_page, open_tab):
    from ui.settings import HOSTED_LIMITS

    page = serve_page(is_hosted=True, limits=HOSTED_LIMITS, num_blocks=64)
    tab = open_tab(page.url)
    tab.click("#sampling-panel-toggle")
    words = tab.inner_text("#limits")
    assert "1,536" in words
    assert "512" in words
    tab.click("#model-panel-toggle")
    assert tab.is_disabled("#load-model")
    assert tab.is_disabled("#model input")
    set_number(tab, "max-tokens", "5000")
    tab.wait_for_function("document.querySelector('#sampling-problem').innerText.includes('512')")
    send(tab, "hello")
    assert "512" in tab.wait_for_selector(".toast-body").inner_text()
    # The message stays for long; it once lay over the rooms.
    for room in ("workload", "chat"):
        tab.click(f'[data-room="{room}"]', timeout=3000)
    assert tab.is_visible(".toast-body")


def test_app_py_serves_page_and_health(tiny_model, open_tab):
    with page_as_program("--model", str(tiny_model)) as (process, url):
        health = wait_until_ok(url)
        assert set(health) == {"status", "model", "running", "waiting", "free_blocks", "num_blocks"}
        assert health["num_blocks"] == health["free_blocks"] == 256
        tab = open_tab(url)
        set_number(tab, "max-tokens", "6")
        send(tab, "hello")
        tab.wait_for_function("document.querySelector('#chat .meta')?.innerText.includes('length limit')")
        assert process.poll() is None
        tab.close()
