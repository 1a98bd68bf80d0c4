"""The token strip and the tokens room, on the page: what is shown, what can be done with it, who may see it."""

from __future__ import annotations

import json

import pytest

from tests.browser.support.acting import send, set_number, wait_for_answers, wait_for_tokens

pytestmark = pytest.mark.browser

TOKENS = "#token-strip .token"


def answered(tab, tokens: int = 24, prompt: str = "say something") -> None:
    """One answer of so many tokens, and its strip complete."""
    set_number(tab, "max-tokens", str(tokens))
    send(tab, prompt)
    wait_for_answers(tab, 1, "length limit")
    wait_for_strip(tab, tokens)


def wait_for_strip(tab, tokens: int) -> None:
    tab.wait_for_function("n => document.querySelectorAll('#token-strip .token').length === n", arg=tokens)


def versions(tab) -> list[dict]:
    """The versions of the newest answer, as the page holds them."""
    return tab.evaluate("microVLLM.chat.document().turns.at(-1).versions")


def tip_box(tab) -> dict:
    tab.wait_for_selector("#token-tip:not([hidden])")
    return tab.evaluate("document.querySelector('#token-tip').getBoundingClientRect().toJSON()")


def record_replies(tab) -> None:
    """From now on what the server says to the pane of the strip is kept, in ``window.replies``."""
    tab.evaluate("""() => { window.replies = []; const ask = window.fetch;
        window.fetch = async (...asked) => { const reply = await ask(...asked);
            if (String(asked[0]).endsWith('live')) {
                const told = (await reply.clone().json()).panes?.strip;
                if (told) window.replies.push(told); }
            return reply; }; }""")


def replies(tab) -> list[dict]:
    return tab.evaluate("window.replies")


def ask_for_strip(tab, url: str, viewer: str, request_id: str):
    """As any program could ask, with the viewer token of some tab."""
    question = {"viewer": viewer, "panes": {"strip": {"request": request_id, "since": 0}}}
    reply = tab.request.post(
        url + "live", data=json.dumps(question), headers={"Content-Type": "application/json"}
    )
    return reply.json()["panes"]["strip"]


def viewer_of(tab) -> str:
    viewer = tab.evaluate("document.querySelector('#viewer').textContent.trim()")
    assert len(viewer) > 20
    return viewer


def test_tokens_joined_are_the_answer(served, open_tab):
    """P24, textgen #6485: as they arrive, blanks and broken characters included."""
    tab = open_tab(served.url)
    record_replies(tab)
    answered(tab, 60)
    held: list = []
    for told in replies(tab):
        if told.get("tokens"):
            held[told["from"] :] = told["tokens"]
    (version,) = versions(tab)
    assert "".join(piece for _, piece, *_ in held) == version["text"]
    assert [token_id for token_id, *_ in held] == version["token_ids"]
    assert (
        sum(len(told.get("tokens", ())) for told in replies(tab)) <= 60 + 2
    )  # each once, and the end of the text again


def test_the_strip_grows_with_the_answer_and_keeps_its_nodes(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "60")
    send(tab, "hello")
    wait_for_tokens(tab, 3)
    tab.wait_for_selector(TOKENS)
    tab.evaluate("() => { window.first = document.querySelector('#token-strip .token'); }")
    count = tab.locator(TOKENS).count()
    assert count < 60
    wait_for_strip(tab, 60)
    assert tab.evaluate("window.first === document.querySelector('#token-strip .token')")
    assert "60 tokens" in tab.inner_text("#token-strip")
    assert "likely" in tab.inner_text("#token-strip .legend")
    assert "surprising" in tab.inner_text("#token-strip .legend")


@pytest.mark.parametrize("width", [1440, 390])
def test_the_tooltip_is_wholly_on_screen_for_every_token(served, open_tab, width):
    """P22, vllm-playground 0.1.7: also on the first line, and at both edges."""
    tab = open_tab(served.url, width=width, height=844)
    answered(tab, 40)
    size = tab.evaluate("({ width: innerWidth, height: innerHeight })")
    for index in (0, 1, 7, 20, 38, 39):
        tab.locator(TOKENS).nth(index).hover()
        tab.wait_for_function(
            "i => { const n = document.querySelectorAll('#token-strip .token')[i];"
            "return n.getAttribute('aria-describedby') === 'token-tip'; }",
            arg=index,
        )
        box = tip_box(tab)
        assert box["left"] >= 0
        assert box["top"] >= 0
        assert box["right"] <= size["width"]
        assert box["bottom"] <= size["height"]
        covered = tab.evaluate(
            "() => { const r = document.querySelector('#token-tip').getBoundingClientRect();"
            "return [[r.left + 8, r.top + 8], [r.right - 8, r.bottom - 8]].some(([x, y]) =>"
            " !document.elementFromPoint(x, y).closest('#token-tip')); }"
        )
        assert not covered


def test_a_tooltip_says_how_likely_the_token_and_others_were(served, open_tab):
    tab = open_tab(served.url)
    record_replies(tab)
    answered(tab, 8)
    token_id, _, _, _, probability, rank, best = replies(tab)[-1]["tokens"][-1]
    tab.locator(TOKENS).last.hover()
    tab.wait_for_selector("#token-tip:not([hidden])")
    words = tab.inner_text("#token-tip")
    assert f"id {token_id}" in words
    assert f"rank {rank}" in words
    assert f"{100 * probability:.1f} %" in words or f"{100 * probability:.0f} %" in words
    rows = tab.locator("#token-tip .row")
    assert rows.count() == len({token_id, *(row[0] for row in best)})
    assert tab.locator("#token-tip .row.chosen").count() == 1
    assert rows.locator("i").first.evaluate("n => n.getBoundingClientRect().width") > 10
    assert tab.locator(TOKENS).last.get_attribute("aria-label").endswith("%")


def test_the_tooltip_goes_away_and_can_be_reached(served, open_tab):
    tab = open_tab(served.url)
    answered(tab, 8)
    tab.locator(TOKENS).nth(3).hover()
    box = tip_box(tab)
    tab.mouse.move(box["x"] + 20, box["y"] + 20, steps=4)
    tab.wait_for_timeout(400)
    assert tab.is_visible("#token-tip")
    tab.mouse.move(5, 5)
    tab.wait_for_selector("#token-tip", state="hidden")


def test_a_click_follows_the_token_into_its_block(served, open_tab):
    """Clicking a token shows its block and slot; they are those of the engine's own block table."""
    tab = open_tab(served.url)
    answered(tab, 40)
    request_id = versions(tab)[0]["request_id"]
    view = served.host.engine.replay.follow(served.log)
    track = view.request(request_id)
    index = 30
    position = track.num_prompt_tokens + index
    block, slot = track.tables[0][position // view.info.block_size], position % view.info.block_size
    tab.locator(TOKENS).nth(index).click()
    tab.wait_for_function(
        "words => document.querySelector('#token-tip').innerText.includes(words)",
        arg=f"block {block}, slot {slot}",
    )
    tab.wait_for_function(
        "words => document.querySelector('#focus-card').innerText.includes(words)",
        arg=f"block {block}, slot {slot}",
    )
    assert tab.locator("#token-strip .followed").count() == 1
    tab.mouse.move(5, 5)
    tab.wait_for_timeout(400)
    assert tab.is_visible("#token-tip"), "what was clicked stays until it is let go"
    tab.locator(TOKENS).nth(index).click()
    tab.wait_for_selector("#token-tip", state="hidden")


def test_with_the_keyboard_to_an_alternative_and_on_from_there(served, open_tab):
    tab = open_tab(served.url)
    answered(tab, 12)
    (before,) = versions(tab)
    tab.focus("#token-strip .toggle")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.dataset.index") == "0"
    for key in (
        "ArrowRight",
        "ArrowRight",
        "ArrowRight",
        "ArrowLeft",
        "End",
        "Home",
        "ArrowRight",
        "ArrowRight",
    ):
        tab.keyboard.press(key)
    assert tab.evaluate("document.activeElement.dataset.index") == "2"
    tip_box(tab)
    tab.keyboard.press("Escape")
    assert tab.is_hidden("#token-tip")
    tab.keyboard.press("ArrowDown")
    chosen = int(tab.evaluate("document.activeElement.dataset.id"))
    assert chosen != before["token_ids"][2]
    tab.keyboard.press("Enter")
    wait_for_answers(tab, 1, "length limit")
    tab.wait_for_function("microVLLM.chat.document().turns.at(-1).versions.length === 2")
    wait_for_strip(tab, 2 + 1 + 12)
    old, new = versions(tab)
    assert old["token_ids"] == before["token_ids"]
    assert new["token_ids"][:3] == [*before["token_ids"][:2], chosen]
    kept = tab.locator("#token-strip .kept")
    assert kept.count() == 3, "what was there before has no probability"


def test_only_a_finished_answer_goes_on_from_another_token(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "200")
    send(tab, "hello")
    wait_for_tokens(tab, 3)
    tab.locator(TOKENS).first.hover()
    tab.wait_for_selector("#token-tip:not([hidden])")
    row = tab.locator("#token-tip button.row").first
    assert row.get_attribute("aria-disabled") == "true"
    row.dispatch_event("click")
    assert len(versions(tab)) == 1
    tab.click("#stop")
    wait_for_answers(tab, 1, "stopped")


def test_folded_stays_folded_and_asks_for_nothing(served, open_tab):
    tab = open_tab(served.url)
    answered(tab, 8)
    tab.click("#token-strip .toggle")
    assert tab.is_hidden("#token-strip .list")
    assert tab.get_attribute("#token-strip .toggle", "aria-expanded") == "false"
    tab.reload()
    tab.wait_for_selector("#send")
    record_replies(tab)
    tab.click("#new-chat")
    answered_folded(tab)
    assert replies(tab) == []
    tab.click("#token-strip .toggle")
    wait_for_strip(tab, 8)


def answered_folded(tab) -> None:
    set_number(tab, "max-tokens", "8")
    send(tab, "again")
    wait_for_answers(tab, 1, "length limit")
    assert tab.is_hidden("#token-strip .list")


def test_nobody_reads_the_tokens_of_another_tab(served, open_tab):
    """Whoever knows the name of a request still gets nothing of it, and nothing of it is in what they are sent."""
    owner, other = open_tab(served.url), open_tab(served.url)
    answered(owner, 16, "a secret prompt")
    request_id = versions(owner)[0]["request_id"]
    for viewer in (viewer_of(other), "", "x"):
        assert ask_for_strip(other, served.url, viewer, request_id) == {"request": request_id, "gone": True}
    assert len(ask_for_strip(owner, served.url, viewer_of(owner), request_id)["tokens"]) == 16


def test_an_answer_from_before_a_reload_says_that_its_tokens_are_gone(served, open_tab):
    tab = open_tab(served.url)
    answered(tab, 8)
    tab.reload()
    tab.wait_for_selector("#chat .meta")
    tab.get_by_role("button", name="Tokens", exact=True).last.click()
    tab.wait_for_selector("#token-strip .gone:not([hidden])")
    assert "not kept" in tab.inner_text("#token-strip .gone")


@pytest.mark.slow
def test_a_thousand_tokens_do_not_make_the_page_slow(served, open_tab):
    """Counted in what is touched: every token is added once, and moving the pointer adds nothing to the strip."""
    tab = open_tab(served.url)
    tab.set_default_timeout(120_000)
    pace, served.loop.pace = served.loop.pace, 0.0
    try:
        tab.evaluate("""() => { window.added = 0; window.removed = 0;
            new MutationObserver((all) => { for (const m of all) {
                const own = (n) => n.classList && n.classList.contains('token');
                window.added += [...m.addedNodes].filter(own).length;
                window.removed += [...m.removedNodes].filter(own).length; } })
            .observe(document.querySelector('#chat'), {subtree: true, childList: true}); }""")
        answered(tab, 900)
    finally:
        served.loop.pace = pace
    added, removed = tab.evaluate("[window.added, window.removed]")
    assert added - removed == 900
    assert removed <= 2  # the last ones, whose pieces the end may complete
    assert tab.locator("#token-strip .list").evaluate("n => n.scrollHeight > n.clientHeight + 100")
    for index in (890, 899):
        tab.locator(TOKENS).nth(index).hover()
        tip_box(tab)
    assert tab.evaluate("[window.added, window.removed]") == [added, removed]


# ---------------------------------------------------------------- the tokens room


def open_room(tab) -> None:
    tab.click('[data-room="tokens"]')
    tab.wait_for_selector("#tokenizer-input textarea")


def shown_pieces(tab, where: str) -> str:
    """The text that the pieces stand for."""
    pieces = tab.locator(f"{where} .piece").all_text_contents()
    return "".join(pieces).replace("·", " ").replace("↵", "\n").replace("→", "\t")


def test_a_text_is_shown_as_its_tokens(served, open_tab):
    tab = open_tab(served.url)
    open_room(tab)
    text = "Two  blanks,\n\ta tab <b>&amp;</b>"
    tab.fill("#tokenizer-input textarea", text)
    ids = served.host.engine.loaded.tokenizer.encode(text, add_special_tokens=False)
    tab.wait_for_function(
        "n => document.querySelectorAll('#tokenizer-pieces .chip-token').length === n", arg=len(ids)
    )
    assert shown_pieces(tab, "#tokenizer-pieces") == text
    assert [int(t) for t in tab.locator("#tokenizer-pieces small").all_text_contents()] == ids
    assert "position 1 " in tab.locator("#tokenizer-pieces .chip-token").nth(1).get_attribute("title")
    counts = tab.inner_text(".pieces-part .counts")
    assert f"{len(text)} characters" in counts
    assert f"{len(ids)} tokens" in counts
    assert tab.locator("#tokenizer-pieces b").count() == 0
    tab.check("#tokenizer-special")
    with_special = served.host.engine.loaded.tokenizer.encode(text, add_special_tokens=True)
    tab.wait_for_function(
        "n => document.querySelectorAll('#tokenizer-pieces .chip-token').length === n", arg=len(with_special)
    )


def test_the_prompt_as_the_model_reads_it(served, open_tab):
    """The preview is, token for token, what the engine gets when it is sent."""
    tab = open_tab(served.url)
    answered(tab, 20, "first question")
    tab.fill("#prompt textarea", "and a second one")
    open_room(tab)
    tab.wait_for_selector("#template-preview .block")
    titles = tab.locator("#template-preview .chip-token").evaluate_all("nodes => nodes.map(n => n.title)")
    previewed = [int(title.split("· id ")[1].split(" ")[0]) for title in titles]
    rows = tab.locator("#template-preview .block").evaluate_all(
        "rows => rows.map(r => r.querySelectorAll('.chip-token').length)"
    )
    assert rows[:-1] == [16] * (len(rows) - 1)
    assert tab.locator("#template-preview .block .name").nth(1).inner_text().startswith("block 1")
    sent: list[list[int]] = []
    submit = served.loop.submit

    def record(prompt, *args, **kwargs):
        sent.append(list(prompt["prompt_token_ids"]))
        return submit(prompt, *args, **kwargs)

    served.loop.submit = record
    try:
        tab.click('[data-room="chat"]')
        tab.click("#send")
        wait_for_answers(tab, 2, "length limit")
    finally:
        del served.loop.submit
    assert sent == [previewed]


def test_an_empty_chat_and_a_text_that_is_too_long_say_so(served, open_tab):
    tab = open_tab(served.url)
    open_room(tab)
    tab.wait_for_selector("#template-preview .note:not([hidden])")
    assert "empty" in tab.inner_text("#template-preview .note")
    tab.evaluate("document.querySelector('#tokenizer-input textarea').removeAttribute('maxlength')")
    tab.fill("#tokenizer-input textarea", "x" * 20_001)
    tab.wait_for_selector(".pieces-part .note:not([hidden])")
    assert "20,001 characters" in tab.inner_text(".pieces-part .note")
    tab.fill("#tokenizer-input textarea", "x" * 19_000)
    tab.wait_for_selector("#tokenizer-pieces .rest")
    assert "17,000 more tokens" in tab.inner_text("#tokenizer-pieces .rest")
