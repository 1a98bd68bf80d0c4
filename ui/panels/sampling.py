"""The sampling panel: its fields, its presets, the sentence that sums it up, and SamplingParams from it."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from micro_vllm.errors import InvalidRequestError
from micro_vllm.sampling.params import SamplingParams
from ui.fold import fold


@dataclass(frozen=True, slots=True)
class Field:
    """One number of the panel. ``off`` is the value that changes nothing."""

    name: str
    label: str
    hint: str
    help: str
    default: float | None
    off: float | None
    step: float = 0.05
    is_whole: bool = False
    highest: float | None = None
    """Where the page allows less than the engine does."""

    @property
    def elem_id(self) -> str:
        return self.name.replace("_", "-")


FIELDS = (
    Field(
        "temperature",
        "temperature",
        "0 is greedy",
        "How freely the next token is drawn. 0 always takes the likeliest one; 1 draws as the model learned; "
        "2, the highest, is wild.",
        0.7,
        None,
        highest=2.0,
    ),
    Field(
        "top_p",
        "top-p",
        "1 is off",
        "Draw only among the likeliest tokens that together have this probability: 0.9 leaves the unlikely "
        "tenth out.",
        0.95,
        1.0,
    ),
    Field(
        "top_k", "top-k", "0 is off", "Draw only among this many tokens, the likeliest ones.", 0, 0, 1, True
    ),
    Field(
        "min_p",
        "min-p",
        "0 is off",
        "Leave out tokens that are less likely than this share of the likeliest one: 0.1 means a tenth as likely.",
        0.0,
        0.0,
    ),
    Field(
        "max_tokens",
        "max tokens",
        "answer's limit",
        "The answer ends after this many tokens, finished or not. A token is about three quarters of a word.",
        256,
        None,
        16,
        True,
    ),
    Field(
        "seed",
        "seed",
        "empty: random",
        "A whole number. The same seed, prompt and settings give the same answer again.",
        None,
        None,
        1,
        True,
    ),
    Field(
        "repetition_penalty",
        "repetition penalty",
        "1 is off",
        "Above 1, tokens that the chat or the answer already holds become less likely; 1.1 is a mild value.",
        1.0,
        1.0,
    ),
    Field(
        "presence_penalty",
        "presence penalty",
        "0 is off",
        "Above 0, tokens that the answer has used become less likely, however often it used them. From -2 to 2.",
        0.0,
        0.0,
    ),
    Field(
        "frequency_penalty",
        "frequency penalty",
        "0 is off",
        "Above 0, tokens become less likely with every time that the answer uses them. From -2 to 2.",
        0.0,
        0.0,
    ),
)
NAMES = tuple(field.name for field in FIELDS)
STOP_HELP = (
    r"For example END; \n and \t stand for a line break and a tab. The stop string itself is not shown."
)

PRESETS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
    "precise": {"temperature": 0.2, "top_p": 0.9, "top_k": 0, "min_p": 0.0},
    "balanced": {"temperature": 0.7, "top_p": 0.95, "top_k": 0, "min_p": 0.0},
    "creative": {"temperature": 1.1, "top_p": 1.0, "top_k": 0, "min_p": 0.05},
}
DEFAULT_PRESET = "balanced"
PRESET_HELP = (
    "Four starting points for temperature, top-p, top-k and min-p. Greedy always takes the likeliest token; precise "
    "strays little from it; balanced is for chatting; creative is for ideas."
)


@dataclass(frozen=True, slots=True)
class Controls:
    """The components, in the order in which their values reach ``to_params``."""

    toggle: gr.Button
    """Its label is the sentence that sums the panel up."""
    preset: gr.Radio
    numbers: tuple[gr.Number | gr.Textbox, ...]
    stop_strings: gr.Textbox

    @property
    def inputs(self) -> list[Any]:
        return [*self.numbers, self.stop_strings]


def build_sampling_panel(note: str = "", max_answer_tokens: int | None = None) -> Controls:
    """Must be called where the panel belongs on the page. ``note`` tells the limits of a shared server, of which
    ``max_answer_tokens`` is one."""
    defaults = [field.default for field in FIELDS]
    with fold(sentence(*defaults, ""), "sampling-panel") as toggle:
        with gr.Row(elem_id="preset-row"):
            preset = gr.Radio(
                list(PRESETS),
                value=DEFAULT_PRESET,
                label="preset",
                show_label=False,
                container=False,
                elem_id="preset",
            )
            reset = gr.Button("Reset", size="sm", elem_id="reset-sampling", scale=0, min_width=64)
        with gr.Row(elem_classes="fields"):
            numbers = tuple(_build_field(field) for field in FIELDS)
        stop_strings = gr.Textbox(
            label="stop strings",
            info="one a line; the answer ends before the first that comes up",
            lines=1,
            max_lines=4,
            elem_id="stop-strings",
        )
        problem = gr.HTML("", elem_id="sampling-problem")
        # Gradio has no tooltips: the browser's own carry the longer words.
        helps = {field.elem_id: field.help for field in FIELDS} | {
            "stop-strings": STOP_HELP,
            "preset": PRESET_HELP,
            "reset-sampling": "All fields of this panel as they were at the start.",
        }
        gr.HTML(
            html_template="",
            js_on_load=f"window.microVLLM.tooltips({json.dumps(helps)})",
            apply_default_css=False,
            elem_classes="mv-hidden",
        )
        if note:
            gr.HTML(f"<p class='note'>{note}</p>", elem_id="limits")
    controls = Controls(toggle, preset, numbers, stop_strings)
    preset.input(
        apply_preset,
        [preset],
        list(numbers[:4]),
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )
    reset.click(
        lambda: ["" if value is None else value for value in (*defaults, "")],
        None,
        controls.inputs,
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )
    gr.on(
        [component.change for component in controls.inputs],
        lambda *values: (sentence(*values), preset_of(*values), problem_html(values, max_answer_tokens)),
        controls.inputs,
        [toggle, preset, problem],
        queue=False,
        show_progress="hidden",
        trigger_mode="always_last",
        api_visibility="private",
    )
    return controls


def _build_field(field: Field) -> gr.Number | gr.Textbox:
    info = field.hint
    if field.default is None:
        # gr.Number shows an empty value as 0, which would be a seed.
        return gr.Textbox("", label=field.label, info=info, max_lines=1, elem_id=field.elem_id, min_width=80)
    return gr.Number(
        field.default, label=field.label, info=info, step=field.step, elem_id=field.elem_id, min_width=80
    )


def apply_preset(name: str) -> list[float]:
    """Values of temperature, top-p, top-k and min-p."""
    chosen = PRESETS.get(name, PRESETS[DEFAULT_PRESET])
    return [chosen[field] for field in NAMES[:4]]


def preset_of(*values: Any) -> str | None:
    """The preset that these values are, if any."""
    now = dict(zip(NAMES, values, strict=False))
    for name, preset in PRESETS.items():
        if all(now.get(field) == value for field, value in preset.items()):
            return name
    return None


def sentence(*values: Any) -> str:
    """ "Sampling balanced · temperature 0.7 · top-p 0.95": what is on, in one line."""
    parts = [f"Sampling {preset_of(*values) or 'your own'}"]
    for field, value in zip(FIELDS, values, strict=False):
        if value is None or value == "" or value == field.off:
            continue
        if field.name == "max_tokens" and value == field.default:
            continue
        parts.append(
            f"{field.label} {value:g}" if isinstance(value, int | float) else f"{field.label} {value}"
        )
    stops = parse_stop_strings(values[len(FIELDS)] if len(values) > len(FIELDS) else "")
    if stops:
        parts.append(f"{len(stops)} stop string{'s' if len(stops) > 1 else ''}")
    return " · ".join(parts)


def to_params(values: Sequence[Any], max_answer_tokens: int | None = None) -> SamplingParams:
    """Raises InvalidRequestError with the field, its value and the allowed range."""
    settings: dict[str, Any] = {}
    for field, value in zip(FIELDS, values, strict=False):
        if value is None or value == "":
            if field.name not in ("seed", "max_tokens"):
                raise InvalidRequestError(f"{field.label} is empty; {field.hint}.")
            settings[field.name] = None
        else:
            settings[field.name] = _whole(field, value) if field.is_whole else value
            if field.highest is not None and not _is_at_most(value, field.highest):
                raise InvalidRequestError(
                    f"{field.label}={value:g} is out of range; allowed: 0 to {field.highest:g} ({field.hint})."
                )
    asked = settings["max_tokens"]
    if asked is not None and asked < 1:
        raise InvalidRequestError(
            f"max tokens={asked} is out of range; allowed: 1 or more (empty: as many as fit)."
        )
    if max_answer_tokens is not None:
        if asked is None:
            settings["max_tokens"] = max_answer_tokens
        elif asked > max_answer_tokens:
            raise InvalidRequestError(
                f"max tokens={asked} is more than this shared server allows ({max_answer_tokens}); lower it."
            )
    settings["stop"] = parse_stop_strings(values[len(FIELDS)]) or None
    return SamplingParams(**settings)


def problem_html(values: Sequence[Any], max_answer_tokens: int | None = None) -> str:
    """Why these values would be refused, as soon as they are typed; "" if they would not."""
    try:
        to_params(values, max_answer_tokens)
    except InvalidRequestError as error:
        return f'<p class="status error" role="status">{html.escape(str(error))}</p>'
    return ""


def _is_at_most(value: Any, highest: float) -> bool:
    """What is no number is left to SamplingParams, which says so."""
    return not isinstance(value, int | float) or value != value or value <= highest


def _whole(field: Field, value: Any) -> int:
    try:
        number = float(value)
        if not math.isfinite(number) or number != int(number):
            raise ValueError
    except ValueError:
        raise InvalidRequestError(f"{field.label}={value} is not a whole number.") from None
    return int(value) if isinstance(value, str) and value.strip().lstrip("+-").isdigit() else int(number)


def parse_stop_strings(text: str | None) -> list[str]:
    r"""One a line, empty lines left out; ``\n`` and ``\t`` written out mean the characters."""
    lines = (text or "").split("\n")
    return [line.replace("\\n", "\n").replace("\\t", "\t") for line in lines if line]
