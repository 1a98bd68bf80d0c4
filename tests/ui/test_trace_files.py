"""Traces as files: what is saved, for whom, and what may be opened."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace

import msgspec
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import ui.traces.files
import ui.traces.opened
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import (
    BlocksAllocated,
    EngineStarted,
    Fold,
    RequestQueued,
    StepPlanned,
    TokensSampled,
    chrome_events,
    decode_event,
    encode_event,
)
from tests.ui.support.handles import handle_of
from tests.ui.support.looking import StandInHost, Tab
from tests.ui.support.scripted_engine import make_engine, params
from ui.feed.live import Live
from ui.settings import Settings
from ui.traces.files import add_trace_routes, safe_name
from ui.traces.opened import OpenedTraces
from ui.traces.redact import WITHHELD, without_tokens
from ui.visitors import Visitors


class Site:
    """The routes over a stepped engine, with two visitors who each sent one request."""

    def __init__(self, *, is_hosted: bool = False) -> None:
        self.host = StandInHost(num_blocks=40)
        self.host.settings = Settings(is_hosted=is_hosted)
        self.visitors = Visitors()
        self.ann = self.visitors.of_session("tab of Ann")
        self.bob = self.visitors.of_session("tab of Bob")
        asked = SamplingParams(max_tokens=30, detokenize=False, ignore_eos=True, logprobs=3)
        self.host.scripted.add_request([*range(100, 150)], asked, request_id="of Ann")
        self.host.scripted.add_request([*range(600, 640)], asked, request_id="of Bob")
        self.visitors.begin(self.ann, handle_of("of Ann"))
        self.visitors.begin(self.bob, handle_of("of Bob"))
        for _ in range(20):
            self.host.scripted.step()
        self.opened = OpenedTraces(self.visitors)
        self.live = Live(self.host, self.visitors, opened=self.opened)
        app = FastAPI()
        context = SimpleNamespace(host=self.host, visitors=self.visitors)
        add_trace_routes(app, context, self.live, self.opened)
        self.client = TestClient(app)

    def post(self, path: str, visitor=None, **more):
        headers = {"X-Viewer": visitor.token if visitor else "nobody", **more.pop("headers", {})}
        return self.client.post(path, headers=headers, **more)

    def saved(self, visitor, kind: str = "jsonl", source: str = "live") -> bytes:
        answer = self.post("/trace/save", visitor, json={"format": kind, "source": source})
        assert answer.status_code == 200, answer.text
        return answer.content

    def open(self, visitor, content: bytes, name: str = "lesson.jsonl"):
        return self.post("/trace/open", visitor, content=content, headers={"X-File-Name": name})


@pytest.fixture(params=[False, True], ids=["home", "hosted"])
def site(unhurried, request) -> Site:
    return Site(is_hosted=request.param)


@pytest.fixture
def home(unhurried) -> Site:
    return Site()


# ---------------------------------------------------------------- saving


def test_a_saved_trace_holds_all_events_and_the_words_of_its_owner_only(site):
    events = [decode_event(line) for line in site.saved(site.ann).splitlines()]
    assert [e.seq for e in events] == [e.seq for e in site.host.log.since()]
    queued = {e.request_id: e for e in events if isinstance(e, RequestQueued)}
    assert queued["of Ann"].prompt_token_ids == (*range(100, 150),)
    assert queued["of Bob"].prompt_token_ids == ()
    assert queued["of Bob"].num_prompt_tokens == 40
    tokens = [t for e in events if isinstance(e, TokensSampled) for t in e.tokens]
    told = [t for e in site.host.log.since() if isinstance(e, TokensSampled) for t in e.tokens]
    assert [t for t in tokens if t.request_id == "of Ann"] == [t for t in told if t.request_id == "of Ann"]
    of_bob = [t for t in tokens if t.request_id == "of Bob"]
    assert len(of_bob) == sum(t.request_id == "of Bob" for t in told) > 10
    assert {(t.token_id, t.logprob, t.alternatives) for t in of_bob} == {(WITHHELD, None, ())}


def test_what_is_withheld_does_not_change_the_story():
    engine, log = make_engine(24)
    for n in range(6):
        engine.add_request([*range(n * 40, n * 40 + 60)], params(20))
    for _ in range(40):
        engine.step()
    whole, told = Fold(), Fold()
    for event, bare in zip(log.since(), without_tokens(log.since()), strict=True):
        whole.apply(event)
        told.apply(bare)
        if isinstance(event, StepPlanned):
            assert whole.state() == told.state()


def test_the_perfetto_export_is_that_of_the_engine(home):
    document = json.loads(home.saved(home.bob, "perfetto"))
    assert document["displayTimeUnit"] == "ms"
    assert document["traceEvents"] == json.loads(json.dumps(list(chrome_events(home.host.log.since()))))


def test_a_download_has_a_name(home):
    for kind, name in (("jsonl", "trace.jsonl"), ("perfetto", "trace.perfetto.json")):
        answer = home.post("/trace/save", home.ann, json={"format": kind})
        assert f'filename="{name}"' in answer.headers["content-disposition"]


@pytest.mark.parametrize("path", ["/trace/save", "/trace/open", "/trace/close", "/events.csv"])
@pytest.mark.parametrize("viewer", [None, "", "nobody", "tab of Ann"])
def test_strangers_get_nothing(home, path, viewer):
    headers = {} if viewer is None else {"X-Viewer": viewer}
    answer = home.client.post(path, headers=headers, content=b"{}")
    assert answer.status_code == 403
    assert set(answer.json()) == {"error"}


def test_an_unknown_format_is_refused_with_those_there_are(home):
    answer = home.post("/trace/save", home.ann, json={"format": "pickle"})
    assert answer.status_code == 400
    assert "jsonl, perfetto" in answer.json()["error"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"5", b"\xff", b"{" * 100_000, b'{"format": null, "source": []}']
)
def test_odd_questions_are_answered_or_refused(home, body):
    for path in ("/trace/save", "/events.csv"):
        answer = home.client.post(path, headers={"X-Viewer": home.ann.token}, content=body)
        assert answer.status_code in (200, 400)


def test_the_csv_is_filtered_and_private(home):
    table = home.post("/events.csv", home.ann, json={"kinds": ["TokensSampled"], "until": 5}).text
    assert "text/csv" in home.post("/events.csv", home.ann, json={}).headers["content-type"]
    whole = home.post("/events.csv", home.ann, json={}).text
    assert len(whole.splitlines()) > len(table.splitlines()) > 1
    of_bob = [t.token_id for e in home.host.log.since() if isinstance(e, TokensSampled) for t in e.tokens
              if t.request_id == "of Bob"]  # fmt: skip
    assert str(of_bob[:5])[1:-1] not in whole
    assert "600, 601" not in whole
    assert home.post("/events.csv", home.ann, json={"kinds": ["Nothing"]}).status_code == 400


# ---------------------------------------------------------------- opening


def test_a_saved_trace_is_walked_through_without_a_model_in_that_tab_only(site):
    saved = site.saved(site.ann)
    answer = site.open(site.bob, saved)
    assert answer.json() == {"title": "lesson.jsonl · 20 steps · opened file", "steps": 20}
    for _ in range(5):
        site.host.scripted.step()  # the engine goes on meanwhile
    bob, ann = Tab(site.live, site.bob.token), Tab(site.live, site.ann.token)
    clock = bob.ask(source="file", cursor=7)["clock"]
    assert (clock["step"], clock["last"], clock["is_file"]) == (7, 20, True)
    assert clock["title"] == "lesson.jsonl · 20 steps · opened file"
    assert bob.figures["kv-usage"]["data"][0]["x"][-1] == 8
    clock = ann.ask(source="file")["clock"]
    assert (clock["step"], clock["is_file"]) == (25, False), "nobody else sees it"
    assert bob.ask()["clock"]["step"] == 25
    assert site.post("/trace/close", site.bob).status_code == 200
    assert bob.ask(source="file")["clock"]["is_file"] is False


def test_an_opened_trace_can_be_saved_again(home):
    saved = home.saved(home.ann)
    home.open(home.bob, saved)
    assert home.saved(home.bob, source="file").count(b"\n") == saved.count(b"\n")


def lines(site: Site) -> list[bytes]:
    return [encode_event(event) for event in site.host.log.since()]


def changed(site: Site, kind: type, **fields) -> bytes:
    """The trace, with the first event of that kind changed."""
    found = list(site.host.log.since())
    at = next(i for i, event in enumerate(found) if isinstance(event, kind))
    if "info" in fields:
        fields["info"] = msgspec.structs.replace(found[at].info, **fields["info"])
    found[at] = msgspec.structs.replace(found[at], **fields)
    return b"\n".join(encode_event(event) for event in found)


WRONG = {
    "empty": lambda site: b"",
    "blank": lambda site: b"\n\n\n",
    "binary": lambda site: bytes(range(256)) * 50,
    "pickle": lambda site: pickle.dumps({"a": [1, 2, 3]}),
    "other JSON": lambda site: b'{"messages": []}',
    "perfetto": lambda site: site.saved(site.ann, "perfetto"),
    "no beginning": lambda site: b"\n".join(lines(site)[5:]),
    "a hole": lambda site: b"\n".join(lines(site)[:20] + lines(site)[25:]),
    "twice": lambda site: b"\n".join(lines(site) * 2),
    "no step": lambda site: lines(site)[0],
    "garbage in the middle": lambda site: b"\n".join([*lines(site)[:20], b"{]", *lines(site)[20:]]),
    "another format": lambda site: changed(site, EngineStarted, format=99),
    "a thousand million blocks": lambda site: changed(site, EngineStarted, info={"num_blocks": 10**9}),
    "no blocks": lambda site: changed(site, EngineStarted, info={"num_blocks": 0}),
    "blocks of nothing": lambda site: changed(site, EngineStarted, info={"block_size": 0}),
    "an endless table": lambda site: changed(site, BlocksAllocated, logical_start=10**12),
    "a block that is not there": lambda site: changed(site, BlocksAllocated, block_ids=(41,)),
    "a negative block": lambda site: changed(site, BlocksAllocated, block_ids=(-1,)),
    "a request that is not there": lambda site: changed(site, RequestQueued, request_id="x"),
    "an endless number": lambda site: changed(site, RequestQueued, arrival=10**400),
    "a step out of range": lambda site: changed(site, StepPlanned, step=10**300),
    "nested": lambda site: lines(site)[0].replace(
        b'"config":{', b'"config":{"x":' + b"[" * 50_000 + b"]" * 50_000 + b","
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_in_plain_words_and_what_was_open_stays(home, what):
    assert home.open(home.ann, home.saved(home.ann), "good.jsonl").status_code == 200
    answer = home.open(home.ann, WRONG[what](home), "wrong.jsonl")
    assert answer.status_code == 400, answer.text
    words = answer.json()["error"]
    assert len(words) > 20
    assert "Traceback" not in words
    assert "/tmp" not in words
    clock = Tab(home.live, home.ann.token).ask(source="file")["clock"]
    assert clock["title"].startswith("good.jsonl")


def test_a_trace_whose_writer_was_killed_can_be_opened(home):
    answer = home.open(home.ann, home.saved(home.ann)[:-60])
    assert answer.status_code == 200


@pytest.mark.parametrize("is_hosted", [False, True])
def test_a_large_file_is_refused_before_it_is_read(unhurried, monkeypatch, is_hosted):
    monkeypatch.setattr(ui.traces.files, "MAX_FILE_BYTES", 200_000)
    monkeypatch.setattr(ui.traces.files, "MAX_HOSTED_FILE_BYTES", 50_000)
    site = Site(is_hosted=is_hosted)
    most = 50_000 if is_hosted else 200_000

    def pieces():  # without a Content-Length
        for _ in range(most // 1000 + 1):
            yield b"x" * 1000

    for content in (b"x" * (most + 1), pieces()):
        answer = site.open(site.ann, content)
        assert answer.status_code == 413
        assert "MB" in answer.json()["error"]
    assert site.ann.opened is None


def test_the_number_of_open_traces_is_bounded_and_idle_ones_make_room(home, monkeypatch):
    monkeypatch.setattr(ui.traces.opened, "MAX_OPENED", 1)
    saved = home.saved(home.ann)
    assert home.open(home.ann, saved).status_code == 200
    assert home.open(home.ann, saved).status_code == 200, "another one of the same visitor"
    answer = home.open(home.bob, saved)
    assert answer.status_code == 400
    assert "Try again" in answer.json()["error"]
    home.ann.opened.last_seen -= 1000
    assert home.open(home.bob, saved).status_code == 200
    assert home.ann.opened is None


def test_an_opened_trace_goes_with_its_visitor(home):
    home.open(home.ann, home.saved(home.ann))
    home.visitors.forget("tab of Ann")
    assert [visitor.opened for visitor in home.visitors.all()] == [None]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("trace.jsonl", "trace.jsonl"),
        ("..%2F..%2Fetc%2Fpasswd", "passwd"),
        ("C:\\Users\\me\\a.jsonl", "a.jsonl"),
        ("%3Cb%3Ex%3C%2Fb%3E.jsonl", "b_.jsonl"),
        ("", "trace.jsonl"),
        ("..", "trace.jsonl"),
        ("%00%0A.jsonl", "__.jsonl"),
        ("Messung%20%C3%BC.jsonl", "Messung ü.jsonl"),
        ("x" * 500 + ".jsonl", "x" * 74 + ".jsonl"),
    ],
)
def test_file_names_are_harmless(header, name):
    assert safe_name(header) == name
