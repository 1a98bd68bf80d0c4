"""The engine panel: the pool, the budgets and the policies of the engine, and its own pace."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from micro_vllm.errors import ConfigError
from ui.charts.wording import counted
from ui.context import PageContext
from ui.fold import fold
from ui.host.engine_host import EngineHost, HostState
from ui.host.engine_options import (
    CHOICES,
    FIELDS,
    NUMBERS,
    SWITCHES,
    EngineOptions,
    OptionField,
    in_mb,
    pace_words,
    pool_bytes,
)

CLOCK_HELP = {
    "engine-pause": "Stops the engine itself, for everybody: no answer goes on until Resume. The clock below the "
    "charts only stops the picture.",
    "engine-step": "The engine computes one step and waits: each running request gets one token, or a chunk of its "
    "prompt is read.",
    "pace": "Least seconds from one engine step to the next, 0 to 2. Slow enough, and you can follow every block.",
}
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


@dataclass(frozen=True, slots=True)
class EnginePanel:
    """The components that follow the engine's state; those of the engine's own clock are missing on a shared server."""

    host: EngineHost
    toggle: gr.Button
    fields: tuple[Any, ...]
    """In the order of ``FIELDS``."""
    summary: gr.HTML
    status: gr.HTML
    seen: gr.State
    """The engine whose values the fields of this tab show: what is being typed is not overwritten."""
    apply: gr.Button | None = None
    clock: tuple[gr.Button, gr.HTML] | None = None
    """The pause button and the words about the pace."""

    @property
    def outputs(self) -> list[Any]:
        return [
            self.toggle,
            self.seen,
            *self.fields,
            self.summary,
            self.status,
            *([self.apply] if self.apply else []),
            *(self.clock or ()),
        ]

    def updates(self, state: HostState, seen: str | None) -> list[Any]:
        """Values for ``outputs``."""
        host = self.host
        now = engine_id(host)
        values = shown_values(host)
        fields: list[Any] = [gr.skip()] * (len(FIELDS) + 1)
        can_apply = host.engine is not None and not state.is_rebuilding and state.status != "loading"
        apply: dict[str, Any] = {"interactive": can_apply}
        if now != seen:
            fields = [*values, summary_html(host, values)]
            apply["variant"] = "secondary"
        return [
            gr.update(value=panel_label(host), elem_classes=toggle_classes(host)),
            now,
            *fields,
            status_html(state),
            *([gr.update(**apply)] if self.apply else []),
            *((gr.update(value=pause_label(host)), pace_html(host)) if self.clock else ()),
        ]


def build_engine_panel(context: PageContext) -> EnginePanel:
    """Called where the panel belongs on the page."""
    host = context.host
    is_fixed = host.settings.is_hosted
    values = shown_values(host)
    with fold(panel_label(host), "engine-panel") as toggle:
        clock = None if is_fixed else _build_clock(host)
        with gr.Row(elem_id="engine-fields", elem_classes="fields"):
            fields = tuple(
                _build_field(field, value, not is_fixed) for field, value in zip(FIELDS, values, strict=True)
            )
        summary = gr.HTML(summary_html(host, values), elem_id="engine-summary")
        apply = defaults = None
        if not is_fixed:
            with gr.Row(elem_id="engine-buttons"):
                defaults = gr.Button("Defaults", size="sm", elem_id="engine-defaults", min_width=80)
                apply = gr.Button("Apply", size="sm", elem_id="apply-engine", min_width=80)
        status = gr.HTML(status_html(host.state), elem_id="engine-status")
        note = (
            "Everyone on this shared server talks to this engine: its settings are shown, and fixed."
            if is_fixed
            else "Apply puts a new engine over the same weights. Answers that are being written end."
        )
        gr.HTML(f"<p class='note'>{note}</p>")
        helps = {field.elem_id: field.help for field in FIELDS} | ({} if is_fixed else CLOCK_HELP)
        gr.HTML(
            html_template="",
            js_on_load=f"window.microVLLM.tooltips({json.dumps(helps)})",
            apply_default_css=False,
            elem_classes="mv-hidden",
        )
    panel = EnginePanel(host, toggle, fields, summary, status, gr.State(None), apply, clock)
    if apply is not None and defaults is not None:
        _connect_fields(panel, apply, defaults)
    return panel


def _build_field(field: OptionField, value: Any, is_free: bool) -> Any:
    shared: dict[str, Any] = {"label": field.label, "elem_id": field.elem_id, "interactive": is_free}
    if field in NUMBERS:
        return gr.Number(value, info=field.hint, step=1, min_width=80, **shared)
    if field in CHOICES:
        return gr.Dropdown(list(field.choices), value=value, min_width=80, filterable=False, **shared)
    return gr.Checkbox(value, min_width=80, **shared)


def _connect_fields(panel: EnginePanel, apply: gr.Button, defaults: gr.Button) -> None:
    host, fields = panel.host, list(panel.fields)

    def on_change(*values: Any) -> list[Any]:
        is_new = tuple(values) != shown_values(host)
        return [summary_html(host, values), gr.update(variant="primary" if is_new else "secondary")]

    def on_apply(*values: Any) -> list[Any]:
        # Said in the panel and not by gr.Error, which outside of the queue is an error in the browser's console too.
        try:
            host.rebuild(to_options(values))
        except ConfigError as error:
            return [_problem(f"Not applied: {error}"), gr.skip()]
        return [status_html(host.state), gr.update(interactive=False)]

    gr.on(
        [field.change for field in fields],
        on_change,
        fields,
        [panel.summary, apply],
        trigger_mode="always_last",
        **QUIET,
    )
    apply.click(on_apply, fields, [panel.status, apply], **QUIET)
    defaults.click(lambda: list(default_values(host)), None, fields, **QUIET)


# ---------------------------------------------------------------- the engine's own clock


def _build_clock(host: EngineHost) -> tuple[gr.Button, gr.HTML]:
    with gr.Row(elem_id="engine-clock", elem_classes="fields"):
        pause = gr.Button(pause_label(host), size="sm", elem_id="engine-pause", scale=0, min_width=116)
        step = gr.Button("One step", size="sm", elem_id="engine-step", scale=0, min_width=80)
        pace = gr.Number(
            host.pace, label="pace", info="seconds a step, 0 to 2", step=0.05, elem_id="pace", min_width=120
        )
        words = gr.HTML(pace_html(host), elem_id="pace-words")

    def on_pause(label: str) -> list[Any]:
        """What the button said is what happens, whatever another tab did meanwhile."""
        return act(host.resume if label == RESUME else host.pause)

    def on_step() -> list[Any]:
        return act(host.step_once)

    def act(action: Any) -> list[Any]:
        try:
            words = pace_html(host, note=NOTHING_TO_DO if action() is False else "")
        except ConfigError as error:
            words = _problem(str(error))
        return [gr.update(value=pause_label(host)), words]

    def on_pace(seconds: Any) -> str:
        try:
            host.set_pace(seconds)
        except ConfigError as error:
            return _problem(str(error))
        return pace_html(host)

    pause.click(on_pause, pause, [pause, words], **QUIET)
    step.click(on_step, None, [pause, words], **QUIET)
    pace.input(on_pace, pace, words, trigger_mode="always_last", **QUIET)
    return pause, words


PAUSE, RESUME = "❚❚ Pause engine", "▶ Resume engine"


def pause_label(host: EngineHost) -> str:
    return RESUME if host.is_paused else PAUSE


PAUSED = "The engine is paused: press Resume or One step."
NOTHING_TO_DO = "The engine is paused, and there is nothing to compute: send a prompt, then step."


def pace_html(host: EngineHost, note: str = "") -> str:
    if host.is_paused:
        return f'<p class="status paused" role="status">{note or PAUSED}</p>'
    return f'<p class="status">now: {pace_words(host.pace)}</p>'


def paused_placeholder(host: EngineHost) -> str | None:
    """For the prompt, since a chat would seem stuck; None while the engine runs."""
    return "The engine is paused: Resume or One step under “Engine”" if host.is_paused else None


# ---------------------------------------------------------------- values and words


def engine_id(host: EngineHost) -> str:
    engine = host.engine
    return engine.loop.engine.engine_id if engine else ""


def shown_values(host: EngineHost) -> tuple[Any, ...]:
    """What the engine has, in the order of ``FIELDS``; before there is one, what the first will be asked for."""
    options, engine = host.options, host.engine
    if engine is not None:
        info = engine.loop.engine.info
        options = replace(options, num_blocks=min(info.num_blocks, 8192), max_model_len=info.max_model_len)
    return tuple(getattr(options, field.name) for field in FIELDS)


def default_values(host: EngineHost) -> tuple[Any, ...]:
    """What the page was started with, in the order of ``FIELDS``; None, before there is an engine, where the model
    or memory decide. The context is that of the model, not what somebody has made of it since."""
    options, engine = host.default_options, host.engine
    if engine is not None:
        options = replace(options, max_model_len=options.context_length(engine.longest_context))
    values = tuple(getattr(options, field.name) for field in FIELDS)
    return tuple(
        now if value is None else value for value, now in zip(values, shown_values(host), strict=True)
    )


def to_options(values: Sequence[Any]) -> EngineOptions:
    """Raises ConfigError with the field, its value and the allowed range."""
    settings = {field.name: value for field, value in zip(FIELDS, values, strict=True)}
    for field in NUMBERS:
        value = settings[field.name]
        if isinstance(value, float) and value.is_integer():
            settings[field.name] = int(value)
        if value is None:
            raise ConfigError(f"{field.label} is empty; allowed: {field.low:,} to {field.high:,}.")
    return EngineOptions(**settings)


def summary_html(host: EngineHost, values: Sequence[Any]) -> str:
    """What the numbers mean, or why they cannot be."""
    if any(value is None for value in values) and host.engine is None:
        return '<p class="status">The numbers of the engine show when a model is loaded.</p>'
    try:
        options = to_options(values)
        if host.engine is not None and not host.settings.is_hosted:
            host.check_options(options)
    except ConfigError as error:
        return _problem(str(error))
    assert options.num_blocks is not None
    tokens = options.num_blocks * options.block_size
    words = f"{counted(options.num_blocks, 'block')} × {options.block_size} slots = <b>{tokens:,} tokens</b>"
    engine = host.engine
    if engine is not None:
        size = pool_bytes(options.num_blocks, options.block_size, engine.bytes_per_token)
        words += f" · <b>{in_mb(size)}</b> of memory"
        if tuple(values) != shown_values(host):
            words += " · not applied yet"
    return f'<p class="status" role="status">{words}.</p>'


def status_html(state: HostState) -> str:
    if state.is_rebuilding:
        return '<p class="status loading" role="status">Rebuilding the engine …</p>'
    if state.engine_problem:
        return _problem(f"Not rebuilt: {state.engine_problem} The engine goes on as it was.")
    return ""


def panel_label(host: EngineHost) -> str:
    """ "Engine · 256 blocks × 16 · budget 256 · prefix cache on" """
    values = {field.name: value for field, value in zip(FIELDS, shown_values(host), strict=True)}
    blocks = values["num_blocks"]
    if host.is_paused:
        return "Engine · paused: press Resume or One step"
    parts = ["Engine"]
    if host.pace:
        parts.append(pace_words(host.pace))
    parts.append(
        f"{counted(blocks, 'block')} × {values['block_size']}" if blocks is not None else "no blocks yet"
    )
    parts.append(f"budget {values['max_num_batched_tokens']:,}")
    parts.append(f"prefix cache {'on' if values['enable_prefix_caching'] else 'off'}")
    return " · ".join(parts)


def toggle_classes(host: EngineHost) -> list[str]:
    return ["mv-fold", "mv-paused"] if host.is_paused else ["mv-fold"]


def _problem(words: str) -> str:
    return f'<p class="status error" role="status">{html.escape(words)}</p>'


assert len(FIELDS) == len(NUMBERS) + len(CHOICES) + len(SWITCHES)
