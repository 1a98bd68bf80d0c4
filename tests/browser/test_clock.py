"""One step cursor for all charts: live, pause the view, step, drag, play, jump; and the card of a followed request."""

from __future__ import annotations

import pytest

from tests.browser.support.acting import send, set_number, wait_for_answers, wait_for_tokens, wait_until_idle
from tests.browser.support.clock import assert_charts_show, readout, wait_for_step, watch_steps
from ui.charts.focus import Focus
from ui.charts.timeline import TITLE as TIMELINE
from ui.host.engine_options import EngineOptions

pytestmark = pytest.mark.browser
PLACES = """JSON.stringify([
    '#composer', '#clock', '#kv-block-map .mv-plot', '#scheduler-timeline .mv-plot', '#live', '#step-cursor',
    '#jump-kind', '#trace-menu'
].map(s => { const r = document.querySelector(s).getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; }))"""
ZOOM = """range => Plotly.relayout(document.querySelector('#scheduler-timeline .mv-plot'),
    { 'xaxis.range[0]': range[0], 'xaxis.range[1]': range[1] }).then(() => null)"""
BAR_OF = """id => {
    const plot = document.querySelector('#scheduler-timeline .mv-plot');
    const box = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
    for (const t of plot._fullData) for (const [i, c] of (t.customdata || []).entries()) {
        if (t.type !== 'bar' || [].concat(c)[0] !== id) continue;
        return [box.x + xaxis._offset + xaxis.d2p(t.base[i] + t.x[i] / 2), box.y + yaxis._offset + yaxis.d2p(t.y[i])];
    } }"""


def pressed(tab, elem_id: str) -> bool:
    return tab.get_attribute(f"#{elem_id}", "aria-pressed") == "true"


def stop(tab) -> None:
    """If it has not ended by itself."""
    tab.evaluate("document.querySelector('#stop').click()")
    wait_until_idle(tab)


def mine(served) -> Focus:
    """Of a tab that has sent all requests of this page."""
    view = served.host.view()
    return Focus(frozenset(track.request_id for track in view.requests))


def test_the_view_is_paused_and_stepped_while_the_engine_goes_on_and_nothing_jumps(served, open_tab):
    tab = open_tab(served.url)
    watch_steps(tab)
    set_number(tab, "max-tokens", "900")
    send(tab, "Tell me about the sea")
    tab.wait_for_selector(".mv-sample", state="hidden")
    wait_for_tokens(tab, 20)
    assert pressed(tab, "live")
    places = {tab.evaluate(PLACES)}
    tab.click("#pause")
    step = readout(tab)[0]
    assert pressed(tab, "pause")
    assert not pressed(tab, "live")
    wait_for_step(tab, step)
    tab.wait_for_function("document.querySelector('#clock-note:not([hidden])')")
    places.add(tab.evaluate(PLACES))
    note = tab.inner_text("#clock-note .words")
    assert note.startswith(f"looking at step {step}; the engine is at ")
    wait_for_tokens(tab, 40)
    assert readout(tab)[0] == step, "the engine went on, the view did not"
    assert readout(tab)[1] > step + 5
    assert int(tab.inner_text("#clock-note .words").rsplit(" ", 1)[1]) > step + 5
    assert_charts_show(tab, served.host.replay().view(step), mine(served))

    for _ in range(3):
        tab.click("#step-back")
    wait_for_step(tab, step - 3)
    assert_charts_show(tab, served.host.replay().view(step - 3), mine(served))
    tab.click("#step-forward")
    wait_for_step(tab, step - 2)
    assert_charts_show(tab, served.host.replay().view(step - 2), mine(served))
    places.add(tab.evaluate(PLACES))

    tab.click("#back-to-live")
    tab.wait_for_function("step => window.shownStep > step + 10", arg=step)
    assert pressed(tab, "live")
    assert not tab.is_visible("#clock-note")
    stop(tab)
    places.add(tab.evaluate(PLACES))
    assert len(places) == 1


def test_the_slider_works_by_keyboard_and_by_dragging(served, open_tab):
    tab = open_tab(served.url)
    watch_steps(tab)
    last = served.host.replay().clock().last_step
    slider = tab.locator("#step-cursor")
    slider.focus()
    for key, step in (("Home", 1), ("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", last)):
        tab.keyboard.press(key)
        wait_for_step(tab, step)
        assert slider.get_attribute("aria-valuetext") == f"step {step} of {last}"
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + box["width"] - 7, middle)
    tab.mouse.down()
    for share in (0.8, 0.6, 0.3):
        tab.mouse.move(box["x"] + box["width"] * share, middle)
    tab.mouse.up()
    step = readout(tab)[0]
    assert abs(step - last * 0.3) < last * 0.08
    wait_for_step(tab, step)
    assert_charts_show(tab, served.host.replay().view(step))
    tab.click("#live")
    wait_for_step(tab, last)
    tab.click("#step-forward")
    assert pressed(tab, "live"), "there is nothing after the newest step"


def test_playing_goes_through_the_steps_to_the_end_and_then_is_live(served, open_tab):
    tab = open_tab(served.url)
    last = served.host.replay().clock().last_step
    tab.locator("#step-cursor").focus()
    tab.keyboard.press("End")
    for _ in range(25):
        tab.keyboard.press("ArrowLeft")
    watch_steps(tab)
    wait_for_step(tab, last - 25)
    tab.select_option("#play-speed", "5")
    tab.click("#play")
    assert pressed(tab, "play")
    tab.wait_for_function("document.querySelector('#live').getAttribute('aria-pressed') === 'true'")
    steps = tab.evaluate("window.shownSteps")
    steps = steps[steps.index(last - 25) :]
    assert steps == sorted(steps)
    assert len(set(steps)) >= 4, "some steps between were on show"
    assert steps[-1] == last
    # Playing again from the end begins at the start; Pause keeps the place.
    tab.click("#play")
    tab.wait_for_function("last => window.shownStep > 1 && window.shownStep < last", arg=last)
    tab.click("#pause")
    assert pressed(tab, "pause")
    assert not pressed(tab, "play")
    assert 1 < readout(tab)[0] < last


def test_jumps_say_where_they_went_and_when_there_is_nothing_to_jump_to(served, open_tab):
    tab = open_tab(served.url)
    watch_steps(tab)
    set_number(tab, "max-tokens", "4")
    for _ in range(2):
        send(tab, "The same beginning, long enough for some blocks of the cache")
        wait_until_idle(tab)
        tab.wait_for_function("document.querySelector('#stop').disabled")
    hits = served.host.replay().clock().marks["hit"]
    tab.wait_for_function("document.querySelectorAll('#clock .t-hit').length > 0")
    assert tab.locator("#clock .t-hit").last.get_attribute("title") == f"step {hits[-1]}: prefix hit"
    tab.select_option("#jump-kind", "hit")
    tab.click("#jump-back")
    wait_for_step(tab, hits[-1])
    tab.wait_for_function("document.querySelector('#clock-status').innerText.includes('prefix hit')")
    tab.click("#jump-forward")
    tab.wait_for_function("document.querySelector('#clock-status').innerText === 'no later prefix hit'")
    assert readout(tab)[0] == hits[-1]
    tab.click("#live")
    tab.locator("#clock .t-hit").last.click()
    wait_for_step(tab, hits[-1])


def test_a_click_on_a_request_follows_it_through_the_charts_and_its_card_tells_its_numbers(served, open_tab):
    tab = open_tab(served.url)
    watch_steps(tab)
    set_number(tab, "max-tokens", "30")
    send(tab, "Follow me")
    wait_for_answers(tab, 1)
    track = served.host.view().requests[-1]
    places = tab.evaluate(PLACES)
    row = tab.evaluate(BAR_OF, track.request_id)
    assert row, f"{TIMELINE} has no bar of {track.request_id}"
    tab.mouse.click(*row)
    tab.wait_for_selector("#focus-card:not([hidden])")
    card = tab.inner_text("#focus-card")
    assert card.split()[0] == track.label
    assert "yours" in card
    for words in (f"{track.num_prompt_tokens}", "finished (length limit)", "TTFT", "TPOT", "→"):
        assert words in card
    assert tab.evaluate(PLACES) == places
    focus = Focus(mine(served).mine & {track.request_id}, track.request_id)
    tab.wait_for_timeout(500)
    assert_charts_show(tab, served.host.view(), focus)

    tab.evaluate("id => window.microVLLM.focus({ request: id, position: 1 })", track.request_id)
    tab.wait_for_function("document.querySelector('#focus-card .token')?.innerText.includes('slot 1')")
    block = track.tables[0][0]
    assert f"block {block}, slot 1" in tab.inner_text("#focus-card .token")

    tab.keyboard.press("Escape")
    tab.wait_for_selector("#focus-card", state="hidden")
    tab.evaluate("id => window.microVLLM.focus({ request: id })", track.request_id)
    tab.click("#focus-close")
    tab.wait_for_selector("#focus-card", state="hidden")
    tab.evaluate("id => window.microVLLM.focus({ request: id })", track.request_id)
    tab.wait_for_selector("#focus-card:not([hidden])")
    corner = tab.locator("#scheduler-timeline .mv-plot").bounding_box()
    tab.mouse.click(corner["x"] + 4, corner["y"] + corner["height"] - 4)
    tab.wait_for_selector("#focus-card", state="hidden")


def test_another_model_leaves_nothing_of_the_old_charts_behind(tiny_model, serve_page, open_tab):
    """P23, vllm-playground 0.1.7: old figures, zoom and cursor go with the engine they were of."""
    page = serve_page()
    tab = open_tab(page.url)
    watch_steps(tab)
    set_number(tab, "max-tokens", "12")
    send(tab, "hello")
    wait_for_answers(tab, 1)
    tab.evaluate(ZOOM, [2, 6])
    last = page.host.replay().clock().last_step
    wait_for_step(tab, last)
    tab.click("#step-back")
    wait_for_step(tab, last - 1)
    first = page.host.engine
    assert page.host.load(str(tiny_model))
    page.wait_for(lambda h: page.host.engine is not first, 30)
    send(tab, "again")
    wait_for_answers(tab, 2)
    last = page.host.replay().clock().last_step
    wait_for_step(tab, last)
    assert pressed(tab, "live")
    view = page.host.view()
    (track,) = view.requests
    assert_charts_show(tab, view, Focus(frozenset({track.request_id})))
    shown = tab.evaluate("document.querySelector('#scheduler-timeline .mv-plot').layout.xaxis.range")
    held = tab.evaluate("window.microVLLM.figure('scheduler-timeline').figure.layout.xaxis.range")
    assert shown == held


def test_a_request_of_an_engine_that_is_gone_is_not_followed_any_more(serve_page, open_tab):
    """Its card stayed, over the charts of an engine that had never heard of it."""
    page = serve_page()
    tab = open_tab(page.url)
    set_number(tab, "max-tokens", "5")
    send(tab, "follow me")
    wait_for_answers(tab, 1)
    follow = "id => window.microVLLM.focus({ request: id })"
    tab.evaluate(follow, page.host.view().requests[-1].request_id)
    tab.wait_for_selector("#focus-card:not([hidden])")
    tab.evaluate("window.addEventListener('mv:focus', ({ detail }) => { window.followed = detail; })")
    page.host.rebuild(EngineOptions(num_blocks=32))
    tab.wait_for_function("document.querySelector('[data-head=total]').textContent === '32'")
    tab.wait_for_function("window.followed === null")
    assert tab.is_hidden("#focus-card")
    send(tab, "once more")
    wait_for_answers(tab, 2)
    tab.evaluate(follow, page.host.view().requests[-1].request_id)
    tab.wait_for_selector("#focus-card:not([hidden])")
    assert "yours" in tab.inner_text("#focus-card")


def test_no_button_of_a_chart_leads_away_from_this_page(served, open_tab):
    """Plotly has one that uploads the chart to its makers' servers."""
    tab = open_tab(served.url)
    names = set(tab.locator(".mv-plot .modebar-btn").all_inner_texts()) | set(
        tab.locator(".mv-plot .modebar-btn").evaluate_all("all => all.map(b => b.dataset.title || '')")
    )
    assert any("Show everything again" in name for name in names), names
    assert not [name for name in names if "Share" in name or "loud" in name]


def test_charts_that_live_long_keep_their_node_and_zoom_and_pile_up_nothing(served, open_tab):
    """P15, gradio #10252, trackio #7, in short: the long form is ``python -m tests.benchmarks.live_cost``."""
    tab = open_tab(served.url)
    watch_steps(tab)
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")

    def counts() -> dict[str, float]:
        session.send("HeapProfiler.collectGarbage")
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        return {name: metrics[name] for name in ("Nodes", "JSEventListeners", "Documents")}

    set_number(tab, "max-tokens", "900")
    send(tab, "Go on and on")
    tab.wait_for_function("window.shownSteps.length > 8")
    tab.evaluate("window.node = document.querySelector('#scheduler-timeline .main-svg'); null")
    tab.evaluate(ZOOM, [3, 9])
    before = counts()
    frames = tab.evaluate("window.shownSteps.length")
    tab.wait_for_function("n => window.shownSteps.length > n + 12", arg=frames)
    after = counts()
    stop(tab)
    timeline = "document.querySelector('#scheduler-timeline .mv-plot')"
    assert tab.evaluate(f"window.node.isConnected && window.node === {timeline}.querySelector('.main-svg')")

    assert tab.evaluate(f"{timeline}.layout.xaxis.range") == [3, 9]
    assert after["JSEventListeners"] <= before["JSEventListeners"] + 10
    assert after["Documents"] == before["Documents"]
    assert after["Nodes"] < before["Nodes"] * 1.5


def test_a_tab_under_a_server_that_ends_says_so_and_calls_gradio_no_more(serve_page, open_tab):
    """P4: Gradio would take the broken answer for a lost connection, and load the page anew, chat and all."""
    page = serve_page()
    tab = open_tab(page.url, expect_offline=True)
    joined = []
    tab.on("request", lambda r: joined.append(r.url) if "/queue/join" in r.url else None)
    page.host.close()
    tab.wait_for_function(
        "document.querySelector('.mv-header').innerText.includes('the server is shutting down')"
    )
    tab.wait_for_timeout(700)
    assert joined == []


def test_on_a_phone_the_clock_has_two_rows_and_stays_in_reach(served, open_tab):
    tab = open_tab(served.url, width=390, height=844)
    tab.click(".mv-tabs button:has-text('KV use')")
    tab.locator("#kv-usage").scroll_into_view_if_needed()
    bar = tab.locator("#clock").bounding_box()
    assert bar["height"] < 100
    rows = set()
    buttons = "step-back pause step-forward play play-speed live step-cursor jump-back jump-kind jump-forward"
    for name in buttons.split():
        box = tab.locator(f"#{name}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        rows.add(round(box["y"] / 30))
    assert len(rows) <= 3
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
