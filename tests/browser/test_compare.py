"""The compare room: two answers side by side, computed in the same steps, each with its own sampling."""

from __future__ import annotations

import re

import pytest

from micro_vllm.trace import RequestQueued, StepPlanned

pytestmark = pytest.mark.browser

CARDS = "[...document.querySelectorAll('.mv-pair-card')]"
TEXTS = f"{CARDS}.map(card => card.querySelector('[data-card=text]').innerText)"
STATUSES = f"{CARDS}.map(card => card.dataset.status)"


def enter(tab) -> None:
    tab.click("[data-room=compare]")
    tab.wait_for_selector("#compare-cards .mv-pair")


def set_side(tab, side: str, **values: str) -> None:
    for name, value in values.items():
        field = f"#compare-{side}-{name.replace('_', '-')} :is(input, textarea)"
        if not tab.is_visible(field):
            tab.click(f"#compare-{side}-panel-toggle")
        tab.fill(field, value)
        tab.press(field, "Tab")


def compare(tab, prompt: str) -> None:
    tab.fill("#compare-prompt textarea", prompt)
    begin(tab, lambda: tab.click("#compare-run"))


def begin(tab, press) -> None:
    before = tab.get_attribute(".mv-pair", "data-run")
    press()
    tab.wait_for_function("before => document.querySelector('.mv-pair').dataset.run != before", arg=before)


def wait_for_end(tab) -> str:
    tab.wait_for_selector(".mv-pair[data-live=false]", timeout=60_000)
    tab.wait_for_selector("#compare-run:enabled")
    return tab.inner_text(".mv-pair-sum")


@pytest.fixture
def slow(served):
    """Few steps, so that a test on a busy machine is still in the middle of an answer."""
    served.loop.pace = 0.2
    yield served
    served.loop.pace = 0.05


def queued(page) -> list[RequestQueued]:
    return [event for event in page.log.since() if isinstance(event, RequestQueued)]


def test_both_answers_stream_and_share_every_step(served, open_tab):
    tab = open_tab(served.url)
    enter(tab)
    assert "Nothing compared yet" in tab.inner_text(".mv-pair-sum")
    set_side(tab, "a", max_tokens="120")
    # Far from the end token of a random model, which plain sampling may draw.
    set_side(tab, "b", max_tokens="120", min_p="0.3", seed="1")
    compare(tab, "compare this")
    tab.evaluate(
        f"""() => {{ window.seen = [[], []];
        new MutationObserver(() => {TEXTS.replace("innerText", "textContent")}.forEach((text, i) => {{
          if (text && text.length !== window.seen[i].at(-1)) window.seen[i].push(text.length);
        }})).observe(document.querySelector('.mv-pair'), {{subtree: true, childList: true, characterData: true}}); }}"""
    )
    summary = wait_for_end(tab)
    assert all(len(lengths) >= 3 for lengths in tab.evaluate("window.seen"))
    assert tab.evaluate(STATUSES) == ["done", "done"]

    a, b = (event.request_id for event in queued(served)[-2:])
    rows = [{r.request_id for r in e.rows} & {a, b} for e in served.log.since() if isinstance(e, StepPlanned)]
    both, either = rows.count({a, b}), sum(bool(row) for row in rows)
    assert both == either == 120, "the two did not share their steps"
    assert f"Computed together in {both} of {either} steps" in summary
    began = next(
        e.step
        for e in served.log.since()
        if isinstance(e, StepPlanned) and a in {r.request_id for r in e.rows}
    )
    assert f"read from step {began} on" in summary
    assert re.search(r"same for \d+ tokens?, then|part at the first token", summary)
    for card in tab.locator(".mv-pair-card").all():
        words = card.inner_text()
        for expected in ("TTFT", "120 tokens", "tok/s", "cached", "length limit"):
            assert expected in words
    assert tab.inner_text(".mv-pair-prompt") == "compare this"
    chips = tab.locator(".mv-pair-card .chip").all_inner_texts()
    assert len(set(chips)) == 2


def test_asked_again_both_prompts_come_from_the_cache_and_the_old_answers_go(served, open_tab):
    tab = open_tab(served.url)
    enter(tab)
    for side in "ab":
        set_side(tab, side, max_tokens="8")
    prompt = "a prompt that is long enough to fill two blocks of slots, whatever the template adds"
    compare(tab, prompt)
    first = wait_for_end(tab)
    assert "neither found the other's blocks" in first
    assert tab.locator(".mv-pair-card", has_text="0 of").count() == 2
    before = tab.evaluate(TEXTS)
    assert tab.input_value("#compare-prompt textarea") == prompt
    tab.focus("#compare-prompt textarea")
    begin(tab, lambda: tab.keyboard.press("Enter"))
    again = wait_for_end(tab)
    assert "was there before" in again
    cached = [
        int(re.search(r"(\d+) of \d+ cached", c.inner_text()).group(1))
        for c in tab.locator(".mv-pair-card").all()
    ]
    assert min(cached) >= 64
    assert tab.evaluate(TEXTS)[0] == before[0], "greedy gave another answer"


def test_each_side_has_its_own_sampling_and_system_prompt(slow, open_tab):
    served = slow
    tab = open_tab(served.url)
    enter(tab)
    tab.click("#compare-a-preset label:has-text('balanced')")
    tab.wait_for_function("document.querySelector('#compare-a-temperature input').value === '0.7'")
    set_side(tab, "a", seed="11", max_tokens="800")
    set_side(tab, "b", temperature="0.3", top_p="0.5", seed="12", max_tokens="700", system_prompt="Be brief.")
    assert tab.locator("#compare-b-preset input:checked").count() == 0
    compare(tab, "sampled")
    tab.wait_for_function(f"{STATUSES}.every(status => status === 'writing')")
    requests = served.loop.call(lambda engine: list(engine.scheduler.requests.values()))
    specs = [(r.sampling.temperature, r.sampling.top_p, r.sampling.seed, r.stop.max_tokens) for r in requests]
    assert specs == [(0.7, 0.95, 11, 800), (0.3, 0.5, 12, 700)]
    assert len(requests[1].prompt_token_ids) >= len(requests[0].prompt_token_ids) + len("Be brief.")
    labels = tab.locator(".mv-pair-card [data-card=label]").all_inner_texts()
    assert labels == [
        "temperature 0.7 · top-p 0.95 · seed 11",
        "temperature 0.3 · top-p 0.5 · min-p 0.05 · seed 12 · own system prompt",
    ]
    tab.click("#compare-stop")
    wait_for_end(tab)
    assert tab.evaluate(STATUSES) == ["stopped", "stopped"]
    assert all(tab.evaluate(TEXTS))
    served.wait_for(lambda h: h["free_blocks"] == h["num_blocks"], 2)


def test_the_tokens_of_either_answer_can_be_seen(served, open_tab):
    tab = open_tab(served.url)
    enter(tab)
    for side in "ab":
        set_side(tab, side, max_tokens="12")
    compare(tab, "tokens")
    wait_for_end(tab)
    tab.click(".mv-pair-card >> nth=1 >> .chip")
    tab.wait_for_function("document.querySelectorAll('.mv-pair-tokens .token').length === 12")


def test_wrong_values_name_their_side_and_the_prompt_stays(served, open_tab):
    tab = open_tab(served.url)
    enter(tab)
    tab.click("#compare-run")
    assert "write a prompt" in tab.wait_for_selector(".toast-body").inner_text()
    tab.click(".toast-close")
    tab.wait_for_selector(".toast-body", state="detached")
    set_side(tab, "b", temperature="-1")
    tab.fill("#compare-prompt textarea", "kept")
    tab.click("#compare-run")
    words = tab.wait_for_selector(".toast-body").inner_text()
    assert "B: temperature=-1" in words
    assert tab.input_value("#compare-prompt textarea") == "kept"
    assert tab.is_enabled("#compare-run")


def test_a_side_that_is_too_long_is_refused_and_the_other_answers(served, open_tab):
    tab = open_tab(served.url)
    enter(tab)
    set_side(tab, "a", max_tokens="8")
    set_side(tab, "b", system_prompt="w" * 1200)
    compare(tab, "only one fits")
    wait_for_end(tab)
    assert tab.evaluate(STATUSES) == ["done", "refused"]
    assert "1,023" in tab.inner_text(".mv-pair-card >> nth=1")


def test_two_tabs_compare_apart(slow, open_tab):
    served = slow
    tabs = [open_tab(served.url) for _ in range(2)]
    for number, tab in enumerate(tabs):
        enter(tab)
        for side in "ab":
            set_side(tab, side, max_tokens="800")
        compare(tab, f"of tab {number}")
    for number, tab in enumerate(tabs):
        tab.wait_for_function(f"{STATUSES}.every(status => status === 'writing')")
        assert tab.inner_text(".mv-pair-prompt") == f"of tab {number}"
    tabs[0].click("#compare-stop")
    wait_for_end(tabs[0])
    assert tabs[1].evaluate(STATUSES) == ["writing", "writing"]
    tabs[1].click("#compare-stop")
    wait_for_end(tabs[1])


def test_it_fits_a_phone(served, open_tab):
    tab = open_tab(served.url, width=390, height=844)
    tab.evaluate("window.microVLLM.room('compare')")
    for side in "ab":
        set_side(tab, side, max_tokens="30")
    compare(tab, "small screen")
    wait_for_end(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = [card.bounding_box() for card in tab.locator(".mv-pair-card").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] > 100 for box in boxes)
