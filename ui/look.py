"""The page's look in Gradio's terms: one accent colour, system fonts, nothing fetched from elsewhere."""

from __future__ import annotations

import gradio as gr
from gradio.themes.utils import colors, sizes

from ui.charts.palette import NUM_SLOTS, slot_color
from ui.charts.theme import DARK, LIGHT, Look

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Liberation Sans", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")
TEAL = colors.Color(
    name="teal",
    c50="#effaf7",
    c100="#d6f3ec",
    c200="#aee6da",
    c300="#7cd5c4",
    c400="#4cc5b1",
    c500="#1d9c88",
    c600="#0b7a6b",
    c700="#0a6156",
    c800="#0b4d45",
    c900="#0c403a",
    c950="#052622",
)


def make_theme() -> gr.themes.Base:
    theme = gr.themes.Base(
        primary_hue=TEAL,
        secondary_hue=TEAL,
        neutral_hue=colors.slate,
        text_size=sizes.text_sm,
        spacing_size=sizes.spacing_sm,
        radius_size=sizes.radius_md,
        font=SANS,
        font_mono=MONO,
    )
    return theme.set(
        body_background_fill="#f4f6f9",
        body_background_fill_dark="#0c1117",
        body_text_color=LIGHT.text,
        body_text_color_dark=DARK.text,
        body_text_color_subdued=LIGHT.muted,
        body_text_color_subdued_dark=DARK.muted,
        background_fill_primary=LIGHT.card,
        background_fill_primary_dark=DARK.card,
        block_background_fill=LIGHT.card,
        block_background_fill_dark=DARK.card,
        block_border_width="0px",
        block_border_width_dark="0px",
        block_shadow="none",
        block_shadow_dark="none",
        block_label_text_color=LIGHT.muted,
        block_label_text_color_dark=DARK.muted,
        block_title_text_color=LIGHT.text,
        block_title_text_color_dark=DARK.text,
        block_info_text_color=LIGHT.muted,
        block_info_text_color_dark=DARK.muted,
        border_color_primary="#dfe4ea",
        border_color_primary_dark="#2a3542",
        input_background_fill="#ffffff",
        input_background_fill_dark="#0f151d",
        input_border_width="1px",
        input_border_color="#cfd6de",
        input_border_color_dark="#2f3b49",
        input_border_color_focus=LIGHT.accent,
        input_border_color_focus_dark=DARK.accent,
        input_placeholder_color=LIGHT.muted,
        input_placeholder_color_dark=DARK.muted,
        button_primary_background_fill=LIGHT.accent,
        button_primary_background_fill_dark=DARK.accent,
        button_primary_background_fill_hover="#0a6156",
        button_primary_background_fill_hover_dark="#7cd5c4",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#06211d",
        button_secondary_background_fill="transparent",
        button_secondary_background_fill_dark="transparent",
        button_secondary_background_fill_hover="#e9edf2",
        button_secondary_background_fill_hover_dark="#222c38",
        button_secondary_border_color="#cfd6de",
        button_secondary_border_color_dark="#2f3b49",
        button_secondary_text_color=LIGHT.text,
        button_secondary_text_color_dark=DARK.text,
        button_border_width="1px",
        checkbox_label_background_fill_selected="#d6f3ec",
        checkbox_label_background_fill_selected_dark="#0b4d45",
        checkbox_label_text_color_selected=LIGHT.text,
        checkbox_label_text_color_selected_dark=DARK.text,
    )


def palette_css() -> str:
    """Variables of both looks, and the request colours as classes, so that page and charts cannot differ."""
    rules = [f":root{{{_variables(LIGHT)}}}", f".dark{{{_variables(DARK)}}}"]
    for slot in range(NUM_SLOTS):
        color = slot_color(slot)
        rules.append(f".req-{slot}{{background:{color.fill};color:{color.text}}}")
    return "\n".join(rules)


def _variables(look: Look) -> str:
    names = ("card", "text", "muted", "grid", "accent", "danger", "cell_free", "cell_cached", "cell_used")
    return "".join(f"--mv-{name.replace('_', '-')}:{getattr(look, name)};" for name in names)
