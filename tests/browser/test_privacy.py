"""Two visitors on one server, and every byte that the server sends to each: nothing of the other's words is in it."""

from __future__ import annotations

import json
import re

import pytest

from micro_vllm.trace import RequestQueued, TokensSampled, decode_event
from tests.browser.support.acting import send, set_number, wait_for_answers
from tests.browser.support.clock import watch_steps
from ui.traces.redact import WITHHELD

pytestmark = pytest.mark.browser
SECRETS = {"ann": "Quokka lullaby violets", "bob": "Zeppelin marmalade turbine"}
RUN = 6
"""So many token ids in a row are no coincidence."""


LISTEN = """(() => {
    const ask = window.fetch;
    window.heard = [];
    window.fetch = async (...asked) => {
        const answer = await ask(...asked), at = window.heard.push("") - 1, words = new TextDecoder();
        const reader = answer.clone().body?.getReader();
        (async () => {
            for (let part = await reader?.read(); part && !part.done; part = await reader.read())
                window.heard[at] += words.decode(part.value, { stream: true });
        })().catch(() => null);
        return answer;
    };
    const Source = window.EventSource;
    window.EventSource = class extends Source {
        constructor(...where) { super(...where); this.addEventListener("message", e => window.heard.push(e.data)); }
    };
})()"""
"""Keeps all that the page is told, streams included, from the first byte on."""


def listening(tab):
    tab.add_init_script(LISTEN)
    tab.reload()
    tab.wait_for_selector("#send")
    tab.wait_for_selector("#kv-block-map .main-svg")
    return tab


def runs_of(ids: list[int]) -> set[tuple[int, ...]]:
    return {tuple(ids[i : i + RUN]) for i in range(len(ids) - RUN + 1)}


def holds_run(text: str, runs: set[tuple[int, ...]]) -> bool:
    """Whether the ids of a run stand in a row in ``text``, with anything but digits between them."""
    return any(re.search(r"(?<!\d)" + r"\D{1,40}".join(map(str, run)) + r"(?!\d)", text) for run in runs)


TAKE_HOME = """async ([viewer, request]) => {
    const post = (path, asked) => fetch(path, { method: 'POST', body: JSON.stringify(asked),
        headers: { 'X-Viewer': viewer } }).then(answer => answer.text());
    const events = { request, kinds: ['TokensSampled', 'RequestQueued'] };
    const panes = { strip: { request }, cards: { request }, events };
    return [await post('trace/save', { format: 'jsonl' }), await post('trace/save', { format: 'perfetto' }),
        await post('events.csv', {}), await post('events.csv', { request_id: request }),
        await post('live', { viewer, panes, focus: { request, position: 3 } })]; }"""


@pytest.mark.parametrize("is_hosted", [False, True], ids=["home", "hosted"])
def test_no_answer_to_one_visitor_holds_words_token_ids_or_alternatives_of_the_other(
    serve_page, open_tab, is_hosted
):
    page = serve_page(pace=0.02, is_hosted=is_hosted, num_blocks=256)
    tabs = {name: listening(open_tab(page.url, expect_offline=True)) for name in SECRETS}
    taken = {}
    texts = {}
    for name, tab in tabs.items():
        watch_steps(tab)
        set_number(tab, "max-tokens", "40")
        send(tab, SECRETS[name])
    for name, tab in tabs.items():
        wait_for_answers(tab, 1)
        texts[name] = tab.locator("#chat .message.bot, #chat .answer").last.inner_text()

    events = list(page.log.since())
    queued = [event for event in events if isinstance(event, RequestQueued)]
    assert len(queued) == 2
    tokenizer = page.host.engine.loaded.tokenizer
    owner = {q.request_id: next(n for n, s in SECRETS.items() if s in tokenizer.decode(list(q.prompt_token_ids)))
             for q in queued}  # fmt: skip
    ids = {owner[q.request_id]: list(q.prompt_token_ids) for q in queued}
    drawn = {name: [] for name in SECRETS}
    chances: dict[str, set[str]] = {name: set() for name in SECRETS}
    for event in events:
        for token in event.tokens if isinstance(event, TokensSampled) else ():
            drawn[owner[token.request_id]].append(token.token_id)
            chances[owner[token.request_id]] |= {repr(chance) for _, chance in token.alternatives}
    assert all(len(found) == 40 for found in drawn.values())

    # Each looks at everything, also at the request of the other, and takes it home as files.
    for name, tab in tabs.items():
        theirs = next(request for request, who in owner.items() if who != name)
        tab.evaluate("id => window.microVLLM.focus({ request: id, position: 3 })", theirs)
        tab.wait_for_selector("#focus-card:not([hidden])")
        assert "not yours" in tab.inner_text("#focus-card")
        for step in (2, 10, 30):
            tab.locator("#step-cursor").focus()
            tab.keyboard.press("Home")
            for _ in range(step - 1):
                tab.keyboard.press("ArrowRight")
            tab.wait_for_function("step => window.shownStep === step", arg=step)
        files = tab.evaluate(TAKE_HOME, [tab.evaluate("window.microVLLM.viewer()"), theirs])
        for event in map(decode_event, files[0].splitlines()):
            if isinstance(event, RequestQueued) and event.request_id == theirs:
                assert event.prompt_token_ids == ()
            if isinstance(event, TokensSampled):
                assert {t.token_id for t in event.tokens if t.request_id == theirs} <= {WITHHELD}
        taken[name] = files

    told = {name: "\n".join([*tab.evaluate("window.heard"), *taken[name]]) for name, tab in tabs.items()}
    for name, other in (("ann", "bob"), ("bob", "ann")):
        own, theirs = told[name], SECRETS[other]
        assert holds_run(own, runs_of(ids[name])), "the test hears what a tab is told"
        assert holds_run(own, runs_of(drawn[name]))
        for word in theirs.split():
            assert word not in own
        # Both prompts begin and end with the words of the template.
        assert not holds_run(own, runs_of(ids[other]) - runs_of(ids[name]))
        assert not holds_run(own, runs_of(drawn[other]))
        assert all(chance in own for chance in chances[name])
        assert len(chances[name]) > 100
        assert not any(chance in own for chance in chances[other] if len(chance) > 9)
        shown = [line for line in texts[other].split("\n") if len(line) > 12]
        assert not any(line in own or json.dumps(line)[1:-1] in own for line in shown)
