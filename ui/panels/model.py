"""The model panel: what can be loaded, how far it is, and why it failed."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import gradio as gr

from micro_vllm.model_loader.catalogue import CatalogueEntry, catalogue, find_here
from ui.fold import fold
from ui.host.engine_host import EngineHost, HostState
from ui.host.engine_options import in_mb
from ui.render.plain import plain

QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
_SHOW_STATES = """
const show = () => { for (const [name, [kind, words, title]] of Object.entries(props.value || {})) {
  const row = element.querySelector('[data-row="' + CSS.escape(name) + '"]');
  if (!row) continue;
  row.dataset.kind = kind;
  const cell = row.querySelector('[data-state]');
  if (cell.textContent !== words) cell.textContent = words;
  cell.title = title;
} };
watch('value', show);
show();
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-model]');
  if (button) trigger('select', { model: button.dataset.model });
});
"""
"""The rows stay where they are while states change: nothing jumps, and the focus is kept."""


@dataclass(frozen=True, slots=True)
class ModelPanel:
    host: EngineHost
    toggle: gr.Button
    choice: gr.Dropdown
    load: gr.Button
    cancel: gr.Button
    shelf: gr.HTML
    status: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        return [self.toggle, self.load, self.cancel, self.shelf, self.status]

    def updates(self, state: HostState) -> list[Any]:
        is_free = not self.host.settings.is_hosted
        is_loading = state.status == "loading"
        return [
            panel_label(state),
            gr.update(interactive=is_free and not is_loading and not state.is_rebuilding),
            gr.update(interactive=is_free and is_loading),
            shelf_states(state),
            status_html(state),
        ]


def build_model_panel(host: EngineHost) -> ModelPanel:
    is_fixed = host.settings.is_hosted
    state = host.state
    with fold(panel_label(state), "model-panel") as toggle:
        shelf = gr.HTML(
            shelf_states(state),
            html_template=shelf_html(is_fixed),
            js_on_load=_SHOW_STATES,
            apply_default_css=False,
            elem_id="model-list",
        )
        with gr.Row(elem_id="model-row"):
            choice = gr.Dropdown(
                label="model",
                choices=_choices(host.settings.model),
                value=host.settings.model,
                allow_custom_value=not is_fixed,
                interactive=not is_fixed,
                show_label=False,
                container=False,
                elem_id="model",
                scale=4,
                min_width=160,
            )
            load = gr.Button(
                "Load", size="sm", interactive=not is_fixed, elem_id="load-model", scale=0, min_width=72
            )
            cancel = gr.Button(
                "Cancel", size="sm", interactive=False, elem_id="cancel-load", scale=0, min_width=72
            )
        status = gr.HTML(status_html(state), elem_id="model-status")
        note = (
            "Everyone on this shared server talks to the same engine; its model and pool are fixed."
            if is_fixed
            else "A name of the list, the path of a folder with config.json and safetensors files, or a Hub id. The "
            "old model answers until the new one is ready."
        )
        gr.HTML(f"<p class='note'>{note}</p>")
    panel = ModelPanel(host, toggle, choice, load, cancel, shelf, status)

    def on_load(name: str | None) -> list[Any]:
        if is_fixed:
            raise _refusal("This shared server's model is fixed.")
        name = (name or "").strip()
        problem = ""
        if not name:
            problem = "No model is chosen: pick one of the list, or type a folder or a Hub id."
        elif not host.load(name):
            busy = "The engine is being rebuilt" if host.state.is_rebuilding else "A model is being loaded"
            problem = f"{busy} already; wait for that first, or press Cancel."
        updates = panel.updates(host.state)
        # Said in the panel and not by gr.Error, which outside of the queue is an error in the browser's console too.
        return [*updates[:-1], f'<p class="status error" role="status">{problem}</p>'] if problem else updates

    def on_cancel() -> list[Any]:
        if is_fixed:
            raise _refusal("This shared server's model is fixed.")
        host.cancel_load()
        return panel.updates(host.state)

    def on_pick(event: gr.EventData) -> Any:
        """A row of the list was clicked."""
        name = (event._data or {}).get("model") if isinstance(event._data, dict) else None
        return name if name in {entry.name for entry in catalogue()} else gr.skip()

    load.click(on_load, choice, panel.outputs, **QUIET)
    cancel.click(on_cancel, None, panel.outputs, **QUIET)
    if not is_fixed:
        shelf.select(on_pick, None, choice, **QUIET)
    return panel


def _refusal(words: str) -> gr.Error:
    return gr.Error(plain(words), title="Not loaded", print_exception=False)


# ---------------------------------------------------------------- the list


def shelf_html(is_fixed: bool) -> str:
    """The catalogue, without what changes: states are filled in by the script."""
    rows = "".join(_row(entry, is_fixed) for entry in catalogue())
    head = "".join(
        f'<th scope="col"{title}>{name}</th>'
        for name, title in (
            ("model", ""),
            ("size", ' title="bytes of the weights, on disk and to download"'),
            ("weights", ' title="numbers that the model learned: its parameters"'),
            ("licence", ""),
            ("state", ""),
        )
    )
    return f"<table class='mv-models'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(entry: CatalogueEntry, is_fixed: bool) -> str:
    name, note = html.escape(entry.name), html.escape(entry.note)
    shown = (
        name
        if is_fixed
        else f'<button type="button" data-model="{name}" title="{note}" aria-label="choose {name}">{name}</button>'
    )
    return (
        f'<tr data-row="{name}"><th scope="row" title="{note}">{shown}</th>'
        f'<td class="num">{in_mb(entry.size_bytes)}</td><td class="num">{_millions(entry.parameters)}</td>'
        f"<td>{html.escape(entry.license)}</td><td data-state></td></tr>"
    )


def shelf_states(state: HostState) -> dict[str, list[str]]:
    """Name -> [kind, words, tooltip] for each model of the catalogue."""
    return {entry.name: _state_of(entry, state) for entry in catalogue()}


def _state_of(entry: CatalogueEntry, state: HostState) -> list[str]:
    if state.status == "loading" and state.model.lower() in _names(entry):
        share = f" {state.progress:.0%}" if state.progress is not None else ""
        return ["loading", f"loading{share}", state.message]
    found = find_here(entry)
    if state.serving and state.serving.lower() in _names(entry):
        return [
            "serving",
            f"● answers · {found.badge}" if found else "● answers",
            "The model that answers now.",
        ]
    if found is not None:
        return ["here", f"✓ here · {found.badge}", f"{found.badge}; in {found.path}"]
    size = entry.hub_source.download_size if entry.hub_source else None
    return ["away", f"↓ {in_mb(size or entry.size_bytes)} to download", entry.note]


def _names(entry: CatalogueEntry) -> set[str]:
    return {entry.name.lower(), (entry.hub_id or entry.name).lower()}


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:,.0f} M"


def _choices(model: str) -> list[str]:
    """Names of the catalogue; and the one that the page was started with."""
    known = [entry.name for entry in catalogue()]
    return known if model in known else [*known, model]


# ---------------------------------------------------------------- words


def panel_label(state: HostState) -> str:
    if state.status == "loading":
        share = f" {state.progress:.0%}" if state.progress is not None else ""
        return f"Model · loading {state.model}{share}"
    if state.status == "error":
        return f"Model · {state.serving or 'none'} · the last load failed"
    return f"Model · {state.serving or 'none'}"


def status_html(state: HostState) -> str:
    """One line, and a bar while something is being fetched."""
    if state.status == "loading":
        share = state.progress
        bar = (
            f'<progress max="1" value="{share:.3f}" aria-label="loading"></progress>'
            if share is not None
            else '<progress aria-label="loading"></progress>'
        )
        percent = f" · {share:.0%}" if share is not None else ""
        return f'<p class="status loading" role="status">{html.escape(state.message)}{percent}</p>{bar}'
    if state.status == "error":
        still = f" {html.escape(state.serving)} still answers." if state.serving else ""
        return f'<p class="status error" role="status">Not loaded: {html.escape(state.message)}{still}</p>'
    if state.status == "ready":
        before = f"{html.escape(state.message)} " if state.message else ""
        words = "still answers" if state.message else "is ready"
        return f'<p class="status ready" role="status">{before}{html.escape(state.serving)} {words}.</p>'
    return '<p class="status">No model yet.</p>'
