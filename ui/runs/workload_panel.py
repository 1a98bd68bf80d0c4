"""The workload room: many requests at once on the live engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from micro_vllm.sampling.params import SamplingParams
from ui.context import PageContext
from ui.panels.sampling import Controls, to_params
from ui.runs.prompting import encoder, ready_engine, refusal, visitor_of
from ui.runs.workloads import MOST_LINES, SIZES, WORKLOADS, Setting, workload
from ui.settings import Limits

CARDS = """
<div class="mv-run" data-live="false">
  <p class="mv-run-sum" data-run="sum">$empty</p>
  <p class="mv-run-note" data-run="note"></p>
  <span class="mv-run-said" role="status" data-run="said"></span>
  <div class="mv-run-grid" data-run="grid" role="list" aria-label="answers"></div>
</div>
"""
EMPTY = "Nothing has run yet: choose a workload and press Run; every request gets a card here."
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
MAY_FAIL: dict[str, Any] = {"concurrency_limit": None, "show_progress": "hidden", "api_visibility": "private"}
"""Through Gradio's queue: only from there the words of a gr.Error reach the page."""


@dataclass(frozen=True, slots=True)
class WorkloadRoom:
    """Its components; ``connect`` joins them to the sampling panel, which stands further down on the page."""

    context: PageContext
    choice: gr.Radio
    size: gr.Number
    lines: gr.Textbox
    watch: gr.HTML
    run: gr.Button
    stop: gr.Button
    cards: gr.HTML

    def connect(self, controls: Controls) -> None:
        buttons = [self.run, self.stop]

        # Gradio finds gr.Request by the annotation of a named parameter: it cannot sit behind *values.
        def run_workload(request: gr.Request, name: Any, size: Any, lines: Any, *values: Any) -> list[Any]:
            return self._start(request, name, size, lines, values)

        def stop_workload(request: gr.Request) -> None:
            self.context.runs.stop(visitor_of(self.context, request), "workload")

        def workload_buttons(request: gr.Request) -> list[Any]:
            return self._buttons(request)

        started = self.run.click(
            run_workload, [self.choice, self.size, self.lines, *controls.inputs], buttons, **MAY_FAIL
        )
        started.then(None, js="() => { window.microVLLM.pollSoon(); }")
        self.stop.click(stop_workload, None, None, **QUIET)
        self.cards.settle(workload_buttons, None, buttons, **QUIET)
        self.choice.change(describe_workload, self.choice, [self.watch, self.size], **QUIET)

    def _start(
        self, request: gr.Request, name: Any, size: Any, lines: Any, values: Sequence[Any]
    ) -> list[Any]:
        context = self.context
        visitor = visitor_of(context, request)
        try:
            engine = ready_engine(context)
            chosen = workload(name)
            setting = Setting(
                engine.loop.engine.info,
                context.host.settings.limits,
                encoder(engine),
                size=0 if chosen.size is None else _checked_size(size),
                lines=lines if isinstance(lines, str) else "",
                params=_own_params(chosen.name, values, context.admission.max_answer_tokens),
            )
            built = chosen.build(setting)
            context.runs.start(visitor, "workload", engine, built.items, f"{chosen.title}: {built.note}")
        except MicroVLLMError as error:
            raise refusal(error) from error
        return self._buttons(request)

    def _buttons(self, request: gr.Request) -> list[Any]:
        live = self.context.runs.is_live(visitor_of(self.context, request), "workload")
        return [gr.update(interactive=not live), gr.update(interactive=live)]


def build_workload_room(context: PageContext) -> WorkloadRoom:
    """Called where the room belongs on the page."""
    first = WORKLOADS[0]
    with gr.Column(elem_id="workload-form"):
        choice = gr.Radio(
            [(f"{w.title}\n{w.description}", w.name) for w in WORKLOADS],
            value=first.name,
            label="workload",
            show_label=False,
            container=False,
            elem_id="workload",
        )
        lines = gr.Textbox(
            label="your lines",
            show_label=False,
            container=False,
            placeholder=f"One prompt a line, up to {MOST_LINES}.",
            lines=4,
            max_lines=8,
            elem_id="workload-lines",
        )
        watch = gr.HTML(_watch(first.watch), elem_id="workload-watch")
        if words := limits_words(context.host.settings.limits):
            gr.HTML(f"<p class='note'>{words}</p>", elem_id="workload-limits")
        with gr.Row(elem_id="workload-buttons"):
            # Without Gradio's own bounds: it refuses in words without the range, with a traceback in the server's log.
            size = gr.Number(
                first.size,
                label="requests",
                step=1,
                min_width=80,
                elem_id="workload-size",
            )
            stop = gr.Button("Stop all", size="sm", interactive=False, elem_id="stop-workload")
            run = gr.Button("Run", size="sm", variant="primary", elem_id="run-workload")
    cards = gr.HTML(
        html_template=CARDS.replace("$empty", EMPTY),
        js_on_load="window.microVLLM.cards(element, 'workload', () => trigger('settle'))",
        apply_default_css=False,
        elem_id="workload-cards",
    )
    return WorkloadRoom(context, choice, size, lines, watch, run, stop, cards)


def describe_workload(name: Any) -> list[Any]:
    """What to watch, and the number of requests."""
    chosen = next((w for w in WORKLOADS if w.name == name), WORKLOADS[0])
    size = chosen.size
    return [
        _watch(chosen.watch),
        gr.update(visible="hidden") if size is None else gr.update(visible=True, value=size),
    ]


def limits_words(limits: Limits) -> str:
    """How a shared server runs a workload; "" where there are no limits."""
    most = limits.max_requests_per_visitor
    if most is None:
        return ""
    return (
        f"This shared server computes {most} of your requests at a time. The others wait here, on their cards, and "
        "follow one by one."
    )


def _watch(words: str) -> str:
    return f"<p class='note'>{words}</p>"


def _own_params(name: str, values: Sequence[Any], max_answer_tokens: int | None) -> SamplingParams:
    """The sampling panel counts for the visitor's own lines only: the other workloads bring their own."""
    return to_params(values, max_answer_tokens) if name == "lines" else SamplingParams()


def _checked_size(size: Any) -> int:
    """Raises InvalidRequestError with the value and the range."""
    low, high = SIZES
    if size is None:
        raise InvalidRequestError(f"requests is empty; allowed: {low} to {high}.")
    if isinstance(size, bool) or not isinstance(size, int | float) or not low <= size <= high:
        raise InvalidRequestError(f"requests={size} is out of range; allowed: {low} to {high}.")
    if size != int(size):
        raise InvalidRequestError(f"requests={size} is not a whole number; allowed: {low} to {high}.")
    return int(size)
