"""The shared server: limits are told before they are met, hold in a burst, and visitors learn nothing of each other."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request

import pytest

from micro_vllm.trace import PrefixLookup
from tests.browser.support.acting import send, set_number, wait_for_answers, wait_until_idle
from tests.browser.support.running_page import RunningPage, page_in_process
from ui.settings import Limits

pytestmark = pytest.mark.browser

LIMITS = Limits(max_prompt_tokens=300, max_answer_tokens=200, max_requests_per_visitor=2, max_waiting=5)


@pytest.fixture(scope="module")
def hosted(tiny_model):
    with page_in_process(str(tiny_model), pace=0.05, is_hosted=True, limits=LIMITS, num_blocks=600) as page:
        yield page


def call(page: RunningPage, path: str, body: object) -> tuple[int, str]:
    """POST as any client may."""
    request = urllib.request.Request(
        page.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def config(page: RunningPage) -> dict:
    with urllib.request.urlopen(page.url + "config", timeout=20) as answer:
        return json.load(answer)


def join(page: RunningPage, session: str, prompt: str, setup: dict, **asked: object) -> None:
    """Press Send without a browser."""
    (dependency,) = (d for d in setup["dependencies"] if d["api_name"] == "on_answer")
    by_id = {component["id"]: component for component in setup["components"]}
    values = [by_id[i]["props"].get("value") for i in dependency["inputs"]]
    ids = {by_id[i]["props"].get("elem_id"): n for n, i in enumerate(dependency["inputs"])}
    values[ids["max-tokens"]] = 150
    document = {"turns": [{"role": "user", "text": prompt}]}
    event = {"run": session, "do": "answer", "document": document, **asked}
    status, words = call(
        page,
        "gradio_api/queue/join",
        {
            "data": values,
            "event_data": event,
            "fn_index": dependency["id"],
            "session_hash": session,
            "trigger_id": None,
        },
    )
    assert status == 200, words


def ending(page: RunningPage, session: str) -> str:
    """Wait for the last word about a prompt sent with ``join``."""
    with urllib.request.urlopen(
        page.url + f"gradio_api/queue/data?session_hash={session}", timeout=30
    ) as stream:
        deadline = time.monotonic() + 30
        for line in stream:  # heartbeats come all the time
            assert time.monotonic() < deadline, f"{session} is still being answered"
            if b"process_completed" in line:
                return line.decode()
    raise AssertionError("the stream ended without news")


def test_a_burst_within_one_step_fills_the_seats_and_the_queue_and_no_more(hosted):
    """The published counts are as old as the last step: a long step must not let everybody in."""
    setup = config(hosted)
    seats = hosted.loop.engine.config.max_num_seqs
    gate = threading.Event()
    executor = hosted.loop.engine.executor
    execute = executor.execute

    def wait_and_execute(plan):
        gate.wait(60)
        return execute(plan)

    hosted.loop.call(lambda engine: setattr(executor, "execute", wait_and_execute))
    try:
        last = seats + LIMITS.max_waiting + 20
        for i in range(last + 1):
            join(hosted, f"burst-{i}", f"visitor {i}", setup)
        refusal = ending(hosted, f"burst-{last}")
    finally:
        gate.set()
        executor.execute = execute
    live = hosted.loop.call(lambda engine: list(engine.scheduler.requests))
    assert len(live) == seats + LIMITS.max_waiting
    assert "5 requests are waiting already" in refusal
    for request_id in live:
        hosted.loop.abort(request_id)
    hosted.wait_for(lambda h: h["running"] + h["waiting"] == 0, 20)


def test_one_visitor_gets_two_answers_at_a_time(hosted):
    setup = config(hosted)
    for i in range(6):
        join(hosted, "greedy", f"prompt {i}", setup)
    hosted.wait_for(lambda h: h["running"] == 2, 20)
    live = hosted.loop.call(lambda engine: list(engine.scheduler.requests))
    assert len(live) == 2
    for request_id in live:
        hosted.loop.abort(request_id)
    hosted.wait_for(lambda h: h["running"] == 0, 20)


def test_prefixes_are_shared_within_a_visitor_and_never_between_two(hosted, open_tab):
    tabs = [open_tab(hosted.url) for _ in range(2)]
    before = hosted.log.since()[-1].seq if hosted.log.since() else -1
    for tab in tabs:
        set_number(tab, "max-tokens", "20")
        send(tab, "the very same prompt, which is long enough to fill three blocks of slots")
        wait_for_answers(tab, 1)
    hits = [e.num_hit_tokens for e in hosted.log.since(before) if isinstance(e, PrefixLookup)]
    assert hits == [0, 0]
    send(tabs[0], "and on")
    wait_for_answers(tabs[0], 2)
    hits = [e.num_hit_tokens for e in hosted.log.since(before) if isinstance(e, PrefixLookup)]
    assert hits[-1] >= 64


def test_the_limits_are_told_first_and_the_long_prompt_is_kept(hosted, open_tab):
    tab = open_tab(hosted.url)
    tab.click("#sampling-panel-toggle")
    words = tab.inner_text("#limits")
    for number in ("300 tokens", "200", "2 answers", "5 waiting"):
        assert number in words
    set_number(tab, "max-tokens", "100")
    send(tab, "w" * 400)
    words = tab.wait_for_selector(".toast-body").inner_text()
    assert "at most 300" in words
    assert tab.input_value("#prompt textarea") == "w" * 400
    wait_until_idle(tab)


def test_no_client_changes_the_model_or_sends_what_no_page_sends(hosted):
    """Server functions and events are open to any client."""
    setup = config(hosted)
    events = {d["api_name"]: d["id"] for d in setup["dependencies"]}
    engine = hosted.host.engine
    status, words = call(
        hosted,
        "gradio_api/run/predict",
        {"data": ["/etc"], "fn_index": events["on_load"], "session_hash": "x"},
    )
    assert status >= 400, words
    for name, data in (
        ("apply_preset", ["no such preset"]),
        ("apply_preset", [{"a": 1}]),
        ("_system_label", [7]),
        ("on_halt", []),
        ("refresh", []),
        ("arrive", []),
        ("leave", []),
    ):
        call(hosted, "gradio_api/run/predict", {"data": data, "fn_index": events[name], "session_hash": "x"})
    odd: tuple[dict, ...] = (
        {"document": None},
        {"document": {"turns": [{"role": "assistant", "versions": [{"text": "x"}]}]}},
        {
            "document": {"turns": [{"role": "assistant", "versions": [{"text": "x"}]}]},
            "do": "branch",
            "index": -1,
        },
        {"do": "continue"},
        {"do": ["x"]},
        {"run": {"a": 1}, "document": {"turns": "x" * 100}},
    )
    for number, asked in enumerate(odd):
        join(hosted, f"odd-{number}", "x", setup, **asked)
        words = ending(hosted, f"odd-{number}")
        assert '"success":false' in words.replace(" ", "")
        assert "Traceback" not in words
    (view,) = (c["id"] for c in setup["components"] if c["props"].get("elem_id") == "chat")
    for document in (None, 7, {"turns": [7]}, {"turns": [{"role": "user", "text": "<b>"}]}):
        body = {"data": document, "component_id": view, "fn_name": "render", "session_hash": "x"}
        status, words = call(hosted, "gradio_api/component_server", body)
        assert status == 200, words
        assert ("error" in words) != ("&lt;b&gt;" in words)
    for ask in (None, [], "x", 1e308, {"viewer": {}}, {"charts": [1]}, {"charts": {"kv-usage": {"w": "a"}}}):
        status, words = call(hosted, "live", ask)
        assert status == 200, words
        assert "head" in words
    assert hosted.host.engine is engine
    assert hosted.health()["status"] == "ok"
    hosted.loop.check_integrity()
