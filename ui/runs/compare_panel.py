"""The compare room: two answers side by side to one prompt, computed in one batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gradio as gr

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from micro_vllm.sampling.params import SamplingParams
from ui.context import PageContext
from ui.fold import fold
from ui.panels.sampling import FIELDS, NAMES, PRESETS, Controls, to_params
from ui.runs.prompting import encoder, ready_engine, refusal, visitor_of
from ui.runs.run import RunItem
from ui.settings import Limits
from ui.tokens.store import ALTERNATIVES

Side = Literal["a", "b"]
SIDES: tuple[Side, ...] = ("a", "b")
OWN = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
"""What each side sets for itself; everything else is as in the sampling panel."""
START: dict[Side, str] = {"a": next(iter(PRESETS)), "b": list(PRESETS)[-1]}
"""The presets furthest apart."""
MAX_TOKENS = 128
MAX_CHARACTERS = 100_000
CARDS = """
<div class="mv-pair" data-live="false">
  <p class="mv-pair-prompt" data-run="prompt" hidden></p>
  <div class="mv-pair-columns" data-run="grid">$columns</div>
  <p class="mv-pair-sum" data-run="sum">$empty</p>
  <div class="mv-pair-tokens" data-run="tokens"></div>
  <span class="mv-run-said" role="status" data-run="said"></span>
</div>
"""
COLUMN = """<section class="mv-pair-card" data-status="" aria-label="answer $name">
  <h2><b>$name</b> <span data-card="chip"></span><span data-card="label"></span>
    <span class="mv-status" data-card="status"></span></h2>
  <div class="mv-pair-text answer" data-card="text" tabindex="0" role="group" aria-label="text of answer $name"></div>
  <p class="mv-facts" data-card="facts"></p></section>"""
EMPTY = "Nothing compared yet: one prompt, two ways of sampling, and you see where the answers part."
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
MAY_FAIL: dict[str, Any] = {"concurrency_limit": None, "show_progress": "hidden", "api_visibility": "private"}
"""Through Gradio's queue: only from there the words of a gr.Error reach the page."""


@dataclass(frozen=True, slots=True)
class SideControls:
    """The components of one side; ``inputs`` in the order of OWN, then the system prompt."""

    preset: gr.Radio
    numbers: tuple[gr.Number | gr.Textbox, ...]
    system_prompt: gr.Textbox

    @property
    def inputs(self) -> list[Any]:
        return [*self.numbers, self.system_prompt]


@dataclass(frozen=True, slots=True)
class CompareRoom:
    """Its components; ``connect`` joins them to the sampling panel, which stands further down on the page."""

    context: PageContext
    sides: tuple[SideControls, SideControls]
    prompt: gr.Textbox
    run: gr.Button
    stop: gr.Button
    cards: gr.HTML

    def connect(self, controls: Controls) -> None:
        buttons = [self.run, self.stop]
        own = [component for side in self.sides for component in side.inputs]

        # Gradio finds gr.Request by the annotation of a named parameter: it cannot sit behind *values.
        def run_compare(request: gr.Request, prompt: Any, *values: Any) -> list[Any]:
            return self._start(request, prompt, values[: len(own)], values[len(own) :])

        def stop_compare(request: gr.Request) -> None:
            self.context.runs.stop(visitor_of(self.context, request), "compare")

        def compare_buttons(request: gr.Request) -> list[Any]:
            return self._buttons(request)

        started = gr.on(
            [self.run.click, self.prompt.submit],
            run_compare,
            [self.prompt, *own, *controls.inputs],
            buttons,
            **MAY_FAIL,
        )
        started.then(None, js="() => { window.microVLLM.pollSoon(); }")
        self.stop.click(stop_compare, None, None, **QUIET)
        self.cards.settle(compare_buttons, None, buttons, **QUIET)
        for side in self.sides:
            side.preset.input(apply_preset_to_side, side.preset, list(side.numbers[:4]), **QUIET)
            gr.on(
                [number.change for number in side.numbers[:4]],
                preset_of_side,
                list(side.numbers[:4]),
                side.preset,
                trigger_mode="always_last",
                **QUIET,
            )

    def _start(self, request: gr.Request, prompt: Any, own: Sequence[Any], panel: Sequence[Any]) -> list[Any]:
        context = self.context
        visitor = visitor_of(context, request)
        try:
            if not isinstance(prompt, str) or not prompt.strip():
                raise InvalidRequestError("There is nothing to compare yet: write a prompt.")
            check_room(context.host.settings.limits)
            engine = ready_engine(context)
            encode = encoder(engine)
            half = len(own) // 2
            items = []
            for side, values in zip(SIDES, (own[:half], own[half:]), strict=True):
                params = side_params(side, values[:-1], panel, context.admission.max_answer_tokens)
                system = str(values[-1] or "").strip()
                for text in (prompt, system):
                    if len(text) > MAX_CHARACTERS:
                        raise InvalidRequestError(
                            f"The prompt holds {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed."
                        )
                items.append(
                    RunItem(side_words(params, system), prompt, tuple(encode(system, prompt)), params)
                )
            context.runs.start(visitor, "compare", engine, items)
        except MicroVLLMError as error:
            raise refusal(error) from error
        return self._buttons(request)

    def _buttons(self, request: gr.Request) -> list[Any]:
        live = self.context.runs.is_live(visitor_of(self.context, request), "compare")
        return [gr.update(interactive=not live), gr.update(interactive=live)]


def build_compare_room(context: PageContext) -> CompareRoom:
    """Called where the room belongs on the page."""
    columns = "".join(COLUMN.replace("$name", side.upper()) for side in SIDES)
    cards = gr.HTML(
        html_template=CARDS.replace("$columns", columns).replace("$empty", EMPTY),
        js_on_load="window.microVLLM.cards(element, 'compare', () => trigger('settle'))",
        apply_default_css=False,
        elem_id="compare-cards",
    )
    with gr.Row(elem_id="compare-sides"):
        sides = (_build_side("a"), _build_side("b"))
    with gr.Column(elem_id="compare-composer"):
        prompt = gr.Textbox(
            label="prompt for both",
            placeholder="One prompt for both …",
            show_label=False,
            container=False,
            lines=1,
            max_lines=6,
            elem_id="compare-prompt",
        )
        with gr.Row(elem_id="compare-buttons"):
            stop = gr.Button("Stop", size="sm", interactive=False, elem_id="compare-stop")
            run = gr.Button("Compare", size="sm", variant="primary", elem_id="compare-run")
    return CompareRoom(context, sides, prompt, run, stop, cards)


def _build_side(side: Side) -> SideControls:
    name = side.upper()
    preset = START[side]
    fields = {field.name: field for field in FIELDS}
    with gr.Column(elem_id=f"compare-{side}", elem_classes="mv-side", min_width=140):
        chosen = gr.Radio(
            list(PRESETS),
            value=preset,
            label=f"sampling of {name}",
            container=False,
            elem_id=f"compare-{side}-preset",
        )
        with fold(f"{name}: more", f"compare-{side}-panel"), gr.Row(elem_classes="fields"):
            numbers = tuple(_build_number(side, field) for field in OWN)
            system_prompt = gr.Textbox(
                label=f"system prompt of {name}",
                placeholder="Empty: the model's own.",
                lines=2,
                max_lines=4,
                elem_id=f"compare-{side}-system-prompt",
            )
    helps = {f"compare-{side}-{fields[own].elem_id}": fields[own].help for own in OWN}
    gr.HTML(
        html_template="",
        js_on_load=f"window.microVLLM.tooltips({json.dumps(helps)})",
        apply_default_css=False,
        elem_classes="mv-hidden",
    )
    return SideControls(chosen, numbers, system_prompt)


def _build_number(side: Side, name: str) -> gr.Number | gr.Textbox:
    field = next(field for field in FIELDS if field.name == name)
    elem_id = f"compare-{side}-{field.elem_id}"
    value = PRESETS[START[side]].get(name, MAX_TOKENS if name == "max_tokens" else field.default)
    if field.default is None:
        # gr.Number shows an empty value as 0, which would be a seed.
        return gr.Textbox("", label=field.label, info=field.hint, max_lines=1, elem_id=elem_id, min_width=80)
    return gr.Number(
        value, label=field.label, info=field.hint, step=field.step, elem_id=elem_id, min_width=80
    )


# ---------------------------------------------------------------- what the values mean


def apply_preset_to_side(name: Any) -> list[float]:
    """Values of temperature, top-p, top-k and min-p."""
    chosen = PRESETS.get(name) if isinstance(name, str) else None
    return [(chosen or PRESETS[START["a"]])[field] for field in OWN[:4]]


def preset_of_side(*values: Any) -> str | None:
    """The preset that these values are, if any."""
    return next(
        (name for name, preset in PRESETS.items() if all(map(_same, values, (preset[f] for f in OWN[:4])))),
        None,
    )


def _same(one: Any, two: float) -> bool:
    return not isinstance(one, bool) and isinstance(one, int | float) and one == two


def side_params(
    side: Side, own: Sequence[Any], panel: Sequence[Any], max_answer_tokens: int | None
) -> SamplingParams:
    """The side's own values in place of the panel's. Raises InvalidRequestError that names the side."""
    values = list(panel)
    for name, value in zip(OWN, own, strict=True):
        values[NAMES.index(name)] = value
    try:
        return to_params(values, max_answer_tokens).clone(logprobs=ALTERNATIVES)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{side.upper()}: {error}") from error


def side_words(params: SamplingParams, system: str) -> str:
    """What stands above an answer: how it was drawn."""
    if params.is_greedy:
        parts = ["greedy"]
    else:
        parts = [f"temperature {params.temperature:g}"]
        if params.top_p < 1:
            parts.append(f"top-p {params.top_p:g}")
        if params.top_k:
            parts.append(f"top-k {params.top_k}")
        if params.min_p:
            parts.append(f"min-p {params.min_p:g}")
        if params.seed is not None:
            parts.append(f"seed {params.seed}")
    if system:
        parts.append("own system prompt")
    return " · ".join(parts)


def check_room(limits: Limits) -> None:
    """Two answers at a time is what this room is about."""
    most = limits.max_requests_per_visitor
    if most is not None and most < 2:
        raise InvalidRequestError(
            f"This shared server computes {most} answer at a time for each visitor; comparing needs 2."
        )
