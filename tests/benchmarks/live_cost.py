"""``python -m tests.benchmarks.live_cost [--minutes 10] [--model NAME] [--json FILE]``: what the live charts cost.

Three questions, each to a page that serves a busy engine: how long from an engine step to its picture in a real
Chromium; how much of a step's time the server spends on charts with three tabs open; whether memory stays flat.
The share is measured inside the server, with the processor time of the threads that draw, and so is the time from a
step to the answer that shows it: a browser on the same cores would only blur them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.live_latency import (
    NUM_REQUESTS,
    LatencyFigures,
    busy_engine,
    executed,
    forward_elsewhere,
    last_step,
    latencies_of,
    measure_latency,
    wall_times,
)
from tests.browser.support.running_page import RunningPage, page_in_process
from tests.ui.support.looking import Tab
from ui.charts.registry import CHARTS
from ui.host.serving import load_for_good

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
NUM_TABS = 3
EARLY = 0.06
"""Seconds: ``EARLY`` of assets/live.js."""
TARGET_LATENCY, TARGET_SHARE, TARGET_GROWTH = 0.25, 0.05, 0.10
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu", "--js-flags=--expose-gc")


@dataclass(frozen=True, slots=True)
class ShareFigures:
    """Charts for NUM_TABS tabs, asked directly. Seconds of the processor, but for ``step_seconds``."""

    num_tabs: int
    num_steps: int
    step_seconds: float
    """All steps together, as the engine measured them."""
    chart_seconds: float
    """Views, figures and patches."""
    poll_seconds: float
    """These, and all else that the tabs asked for."""
    num_polls: int
    num_frames: int
    num_figures: int
    answers: LatencyFigures
    """From each step to the answer that shows it, in each tab."""

    @property
    def share(self) -> float:
        return self.chart_seconds / self.step_seconds


@dataclass(frozen=True, slots=True)
class BrowserFigures:
    """One tab in Chromium. The latencies are of a minute each, of all steps computed in it."""

    beside: LatencyFigures
    """The engine computes on the browser's cores."""
    apart: LatencyFigures
    """It waits as long instead: it could be on another machine."""
    minutes: float
    heap_megabytes: tuple[float, ...]
    """Of the page's script, after garbage was collected, at equal distances; the first after the first minute."""
    rss_megabytes: tuple[float, ...]
    """Of the server, engine and weights included."""
    dom_nodes: tuple[int, ...]

    @property
    def heap_growth(self) -> float:
        return self.heap_megabytes[-1] / self.heap_megabytes[0] - 1

    @property
    def rss_growth(self) -> float:
        return self.rss_megabytes[-1] / self.rss_megabytes[0] - 1


# ---------------------------------------------------------------- the server's share


def measure_share(page: RunningPage, seconds: float) -> ShareFigures:
    """Tabs that ask for all charts as often as the page's script does."""
    over = threading.Event()
    tabs = [Tab(page.live) for _ in range(NUM_TABS)]
    seen: list[list[tuple[int, float]]] = [[] for _ in tabs]

    def look(tab: Tab, answers: list[tuple[int, float]]) -> None:
        while not over.is_set():
            asked = time.monotonic()
            time.sleep(page.live.seconds_to_hold({"early": True}))
            answer = tab.ask()
            if answer.get("charts"):
                answers.append((answer["clock"]["step"], time.time()))
            wait = answer.get("again", answer.get("next", 0)) / 1000
            over.wait(max(0.1 - (time.monotonic() - asked), wait - EARLY))

    with busy_engine(page):
        page.wait_for(lambda health: health["running"] == NUM_REQUESTS, 60)
        for tab in tabs:
            tab.ask()  # the first figures are whole, and come once
        before, first = page.live.counters(), last_step(page)
        threads = [
            threading.Thread(target=look, args=one, daemon=True) for one in zip(tabs, seen, strict=True)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        over.set()
        for thread in threads:
            thread.join()
        after, steps = page.live.counters(), executed(page, first)
        moments = wall_times(page, first)
    waits = [wait for answers in seen for wait in latencies_of(moments, answers)]
    spent = {name: after[name] - before[name] for name in after}
    return ShareFigures(
        num_tabs=NUM_TABS,
        num_steps=len(steps),
        step_seconds=sum(
            e.schedule_seconds + e.build_seconds + e.forward_seconds + e.sample_seconds for e in steps
        ),
        chart_seconds=spent["chart_seconds"],
        poll_seconds=spent["poll_seconds"],
        num_polls=int(spent["polls"]),
        num_frames=int(spent["live_views"]),
        num_figures=int(spent["shared_figures"] + spent["own_figures"]),
        answers=LatencyFigures.of(waits, sum(map(len, seen))),
    )


# ---------------------------------------------------------------- the browser


def measure_browser(page: RunningPage, tab: Any, minutes: float, samples: int = 20) -> BrowserFigures:
    """``tab``: a Playwright page that shows the charts. Latencies are measured in the first and the last minute (a
    tenth of the whole, if that is less). Memory is read between: to collect garbage first stops the page."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    warm_up = min(60.0, minutes * 6)
    heaps, sizes, nodes = [], [], []
    with busy_engine(page):
        page.wait_for(lambda health: health["running"] == NUM_REQUESTS, 60)
        begun = time.monotonic()
        beside = measure_latency(page, tab, warm_up)
        for i in range(samples):
            session.send("HeapProfiler.collectGarbage")
            metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
            heaps.append(metrics["JSHeapUsedSize"] / 2**20)
            nodes.append(int(metrics["Nodes"]))
            sizes.append(_rss() / 2**20)
            if i < samples - 1:
                tab.wait_for_timeout(1000 * (60 * minutes - warm_up) / (samples - 1))
        took = time.monotonic() - begun
        with forward_elsewhere(page):
            tab.wait_for_timeout(2000)
            apart = measure_latency(page, tab, warm_up)
    return BrowserFigures(
        beside=beside,
        apart=apart,
        minutes=took / 60,
        heap_megabytes=tuple(heaps),
        rss_megabytes=tuple(sizes),
        dom_nodes=tuple(nodes),
    )


def _rss() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---------------------------------------------------------------- the command


@contextlib.contextmanager
def chromium_tab(url: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_FLAGS))
        tab = browser.new_page(viewport={"width": 1440, "height": 960})
        tab.goto(url)
        tab.wait_for_selector("#kv-block-map .main-svg")
        yield tab
        browser.close()


def share_lines(found: ShareFigures) -> list[str]:
    frames = max(found.num_frames, 1)
    return [
        f"Charts for {found.num_tabs} tabs beside {NUM_REQUESTS} running requests, {found.num_steps:,} steps "
        f"of {1000 * found.step_seconds / max(found.num_steps, 1):.1f} ms:",
        f"  {100 * found.share:.1f} % of the steps' time for views, figures and patches "
        f"(target: under {100 * TARGET_SHARE:.0f} %); with all else that tabs ask for "
        f"{100 * found.poll_seconds / found.step_seconds:.1f} %",
        f"  {found.num_frames:,} frames of {len(CHARTS)} charts, {1000 * found.chart_seconds / frames:.1f} ms each; "
        f"{found.num_figures / frames:.1f} figures a frame, {found.num_polls:,} polls",
        f"  from an engine step to the answer that shows it: {_milliseconds(found.answers)}",
    ]


def browser_lines(found: BrowserFigures) -> list[str]:
    target = f"(target: under {1000 * TARGET_LATENCY:.0f} ms)"
    return [
        f"One tab in Chromium, from an engine step to its picture {target}:",
        f"  the engine on the same cores: {_milliseconds(found.beside)}; {found.beside.num_pictures:,} pictures",
        f"  its forward pass a wait of the same length, as if on another machine: {_milliseconds(found.apart)}; "
        f"{found.apart.num_pictures:,} pictures",
        f"{found.minutes:.1f} minutes: browser heap {found.heap_megabytes[0]:.1f} -> {found.heap_megabytes[-1]:.1f} MB "
        f"({100 * found.heap_growth:+.0f} %), server {found.rss_megabytes[0]:.0f} -> {found.rss_megabytes[-1]:.0f} MB "
        f"({100 * found.rss_growth:+.0f} %; target: under {100 * TARGET_GROWTH:.0f} %), "
        f"DOM nodes {found.dom_nodes[0]:,} -> {found.dom_nodes[-1]:,}",
    ]


def _milliseconds(found: LatencyFigures) -> str:
    return (
        f"{1000 * found.p50:.0f} ms in the middle, {1000 * found.p95:.0f} ms p95 of {found.num_steps:,} steps"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.live_cost", description=(__doc__ or "").split(":", 1)[1]
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="in the browser (default: 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the server's share (default: 20)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    spare = max(1, (os.cpu_count() or 2) - 1)
    parser.add_argument(
        "--threads",
        type=int,
        default=spare,
        help=f"of the engine (default: {spare}, which leaves a core to the browser, whose place is another machine)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    args = parser.parse_args(argv)
    os.environ.update(OMP_NUM_THREADS=str(args.threads), OMP_WAIT_POLICY="PASSIVE")  # before torch is loaded
    with page_in_process(args.model, load=load_for_good) as page:
        page.wait_for(lambda health: health["status"] == "ok", 120)
        share = measure_share(page, args.seconds)
        print(*share_lines(share), sep="\n", flush=True)
        with chromium_tab(page.url) as tab:
            browser = measure_browser(page, tab, args.minutes)
        print(*browser_lines(browser), sep="\n", flush=True)
    if args.json:
        figures = {"share": {**asdict(share), "share": share.share}, "browser": asdict(browser)}
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
