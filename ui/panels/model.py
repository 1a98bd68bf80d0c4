"""The model panel: what can be loaded, how far it is, and why it failed."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import gradio as gr

from micro_vllm.model_loader.catalogue import catalogue, model_state
from ui.engine_host import EngineHost, HostState
from ui.fold import fold
from ui.markdown import plain


@dataclass(frozen=True, slots=True)
class ModelPanel:
    toggle: gr.Button
    choice: gr.Dropdown
    load: gr.Button
    status: gr.HTML
    is_read_only: bool

    @property
    def outputs(self) -> list[Any]:
        return [self.toggle, self.load, self.status]

    def updates(self, state: HostState) -> list[Any]:
        return [
            panel_label(state),
            gr.update(interactive=state.status != "loading" and not self.is_read_only),
            status_html(state),
        ]


def build_model_panel(host: EngineHost) -> ModelPanel:
    is_read_only = host.settings.is_hosted
    state = host.state
    with fold(panel_label(state), "model-panel") as toggle:
        with gr.Row(elem_id="model-row"):
            choice = gr.Dropdown(
                label="model",
                choices=_choices(host.settings.model),
                value=host.settings.model,
                allow_custom_value=not is_read_only,
                interactive=not is_read_only,
                show_label=False,
                container=False,
                elem_id="model",
                scale=4,
                min_width=160,
            )
            load = gr.Button(
                "Load", size="sm", interactive=not is_read_only, elem_id="load-model", scale=0, min_width=80
            )
        note = (
            "Everyone on this shared server talks to the same engine; its model and pool are fixed."
            if is_read_only
            else "A name of the list, the path of a folder with config.json and safetensors files, or a Hub id."
        )
        gr.HTML(f"<p class='note'>{note}</p>")
        status = gr.HTML(status_html(state), elem_id="model-status")
    result = ModelPanel(toggle, choice, load, status, is_read_only)

    def on_load(name: str | None) -> list[Any]:
        if is_read_only:
            raise _refusal("This shared server's model is fixed.")
        name = (name or "").strip()
        if not name:
            raise _refusal("No model is chosen: pick one of the list, or type a folder or a Hub id.")
        if not host.load(name):
            raise _refusal(f"{host.state.model} is still being loaded; wait for it first.")
        return result.updates(host.state)

    load.click(on_load, choice, result.outputs, queue=False, show_progress="hidden", api_visibility="private")
    return result


def _refusal(words: str) -> gr.Error:
    return gr.Error(plain(words), title="Not loaded", print_exception=False)


def panel_label(state: HostState) -> str:
    if state.status == "loading":
        return f"Model · loading {state.model}"
    if state.status == "error":
        return f"Model · {state.serving or 'none'} · the last load failed"
    return f"Model · {state.serving or 'none'}"


def status_html(state: HostState) -> str:
    """One line, and a bar while something is being fetched."""
    if state.status == "loading":
        share = state.progress
        bar = (
            f'<progress max="1" value="{share:.3f}"></progress>'
            if share is not None
            else "<progress></progress>"
        )
        percent = f" · {share:.0%}" if share is not None else ""
        return f'<p class="status loading">{html.escape(state.message)}{percent}</p>{bar}'
    if state.status == "error":
        still = f" {html.escape(state.serving)} still answers." if state.serving else ""
        reason = f"Could not load {html.escape(state.model)}: {html.escape(state.message)}{still}"
        return f'<p class="status error">{reason}</p>'
    if state.status == "ready":
        return f'<p class="status ready">{html.escape(state.serving)} is ready.</p>'
    return '<p class="status">No model yet.</p>'


def _choices(model: str) -> list[tuple[str, str]]:
    """Names of the catalogue, with what loading them means; and the one that the page was started with."""
    known = [(f"{entry.name} · {_where(entry)}", entry.name) for entry in catalogue()]
    return known if any(model == name for _, name in known) else [*known, (model, model)]


def _where(entry: Any) -> str:
    if model_state(entry) == "here":
        return "here"
    return f"{entry.size_bytes / 1e9:.1f} GB to download"
