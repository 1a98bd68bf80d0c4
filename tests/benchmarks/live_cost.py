"""``python -m tests.benchmarks.live_cost [--minutes 10] [--model NAME] [--json FILE]``: what the live charts cost.

Three questions, each to a page that serves a busy engine: how long from an engine step to its picture in a real
Chromium; how much of a step's time the server spends on charts with three tabs open; whether memory stays flat.
The share is measured inside the server, with the processor time of the threads that draw: a browser on the same
cores would only blur it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import EngineStarted, StepExecuted
from tests.browser.support.running_page import RunningPage, page_in_process
from tests.ui.support.looking import Tab
from ui.charts.registry import CHARTS
from ui.host.serving import load_for_good

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
NUM_REQUESTS = 4
NUM_TABS = 3
TARGET_LATENCY, TARGET_SHARE, TARGET_GROWTH = 0.25, 0.05, 0.10
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu", "--js-flags=--expose-gc")
LISTEN = """() => {
    window.pictures = [];
    const painted = new MessageChannel(), waiting = [];
    const now = () => (performance.timeOrigin + performance.now()) / 1000;
    painted.port1.onmessage = () => window.pictures.push([waiting.shift(), now()]);
    window.addEventListener('mv:drawn', ({ detail }) => {
        if (!detail.charts) return;
        waiting.push(detail.step);
        requestAnimationFrame(() => painted.port2.postMessage(null));
    });
}"""
"""A picture is there when the frame after its drawing is: a message sent in a frame arrives once that was painted."""


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

    @property
    def share(self) -> float:
        return self.chart_seconds / self.step_seconds


@dataclass(frozen=True, slots=True)
class BrowserFigures:
    """One tab in Chromium. Latency in seconds, of every step that was computed in the first minute."""

    num_steps: int
    num_pictures: int
    latency_p50: float
    latency_p95: float
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


# ---------------------------------------------------------------- an engine that never rests


@contextlib.contextmanager
def busy_engine(page: RunningPage, num_requests: int = NUM_REQUESTS, seed: int = 0) -> Iterator[None]:
    """So many requests at any time, with answers of different lengths."""
    rng = random.Random(seed)
    over = threading.Event()
    loop = page.loop
    longest = loop.engine.info.max_model_len // 2

    def submit() -> Any:
        prompt = [rng.randrange(3, 250) for _ in range(rng.randint(16, min(160, longest)))]
        params = SamplingParams(
            max_tokens=rng.randint(40, min(200, longest)), ignore_eos=True, detokenize=False, temperature=0
        )
        return loop.submit({"prompt_token_ids": prompt}, params)

    def feed() -> None:
        live: list[Any] = []
        while not over.wait(0.02):
            live = [handle for handle in live if not handle.finished]
            live += [submit() for _ in range(num_requests - len(live))]
        for handle in live:
            loop.abort(handle.request_id)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        yield
    finally:
        over.set()
        feeder.join(30)


def executed(page: RunningPage, since: int = 0) -> list[StepExecuted]:
    return [e for e in page.log.since() if isinstance(e, StepExecuted) and e.step > since]


def last_step(page: RunningPage) -> int:
    steps = executed(page)
    return steps[-1].step if steps else 0


# ---------------------------------------------------------------- the server's share


def measure_share(page: RunningPage, seconds: float) -> ShareFigures:
    """Tabs that ask for all charts as often as the page's script does."""
    over = threading.Event()
    tabs = [Tab(page.live) for _ in range(NUM_TABS)]

    def look(tab: Tab) -> None:
        while not over.is_set():
            answer = tab.ask()
            over.wait(max(0.1, answer.get("again", answer.get("next", 0)) / 1000))

    with busy_engine(page):
        page.wait_for(lambda health: health["running"] == NUM_REQUESTS, 60)
        for tab in tabs:
            tab.ask()  # the first figures are whole, and come once
        before, first = page.live.counters(), last_step(page)
        threads = [threading.Thread(target=look, args=(tab,), daemon=True) for tab in tabs]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        over.set()
        for thread in threads:
            thread.join()
        after, steps = page.live.counters(), executed(page, first)
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
    )


# ---------------------------------------------------------------- the browser


def measure_browser(page: RunningPage, tab: Any, minutes: float, samples: int = 20) -> BrowserFigures:
    """``tab``: a Playwright page that shows the charts. Latency is that of the first minute (of the first tenth, if
    it is all over sooner). Memory is read after that: to collect garbage first stops the page."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    warm_up = min(60.0, minutes * 6)
    heaps, sizes, nodes = [], [], []
    with busy_engine(page):
        page.wait_for(lambda health: health["running"] == NUM_REQUESTS, 60)
        tab.evaluate(LISTEN)
        begun, first = time.monotonic(), last_step(page)
        tab.wait_for_timeout(1000 * warm_up)
        steps, pictures = _wall_times(page, first), tab.evaluate("window.pictures")
        for i in range(samples):
            session.send("HeapProfiler.collectGarbage")
            metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
            heaps.append(metrics["JSHeapUsedSize"] / 2**20)
            nodes.append(int(metrics["Nodes"]))
            sizes.append(_rss() / 2**20)
            if i < samples - 1:
                tab.wait_for_timeout(1000 * (60 * minutes - warm_up) / (samples - 1))
        took = time.monotonic() - begun
    latencies = latencies_of(steps, pictures)
    cuts = quantiles(latencies, n=100)
    return BrowserFigures(
        num_steps=len(latencies),
        num_pictures=len(pictures),
        latency_p50=cuts[49],
        latency_p95=cuts[94],
        minutes=took / 60,
        heap_megabytes=tuple(heaps),
        rss_megabytes=tuple(sizes),
        dom_nodes=tuple(nodes),
    )


def latencies_of(steps: dict[int, float], pictures: Sequence[Sequence[float]]) -> list[float]:
    """Seconds from each step to the first picture that shows it or a later one; ``steps``: when each was computed."""
    found = []
    shown = iter(pictures)
    picture = next(shown, None)
    for step, moment in sorted(steps.items()):
        while picture is not None and picture[0] < step:
            picture = next(shown, None)
        if picture is None:
            break  # not drawn before the end
        found.append(picture[1] - moment)
    return found


def _wall_times(page: RunningPage, since: int) -> dict[int, float]:
    """Unix time of each step's end."""
    events = page.log.since()
    start = next((e for e in events if isinstance(e, EngineStarted)), None) or events[0]
    offset = start.wall_time - start.time
    return {e.step: e.time + offset for e in executed(page, since)}


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
    ]


def browser_lines(found: BrowserFigures) -> list[str]:
    return [
        f"One tab in Chromium on the same cores, {found.minutes:.1f} minutes, {found.num_steps:,} steps, "
        f"{found.num_pictures:,} pictures:",
        f"  from an engine step to its picture: {1000 * found.latency_p50:.0f} ms in the middle, "
        f"{1000 * found.latency_p95:.0f} ms p95 (target: under {1000 * TARGET_LATENCY:.0f} ms)",
        f"  browser heap {found.heap_megabytes[0]:.1f} -> {found.heap_megabytes[-1]:.1f} MB "
        f"({100 * found.heap_growth:+.0f} %), server {found.rss_megabytes[0]:.0f} -> {found.rss_megabytes[-1]:.0f} MB "
        f"({100 * found.rss_growth:+.0f} %; target: under {100 * TARGET_GROWTH:.0f} %), "
        f"DOM nodes {found.dom_nodes[0]:,} -> {found.dom_nodes[-1]:,}",
    ]


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
