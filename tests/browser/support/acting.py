"""What a visitor does with the page, and what they read from it."""

from __future__ import annotations


def send(tab, text: str) -> None:
    tab.fill("#prompt textarea", text)
    tab.click("#send")


def wait_until_idle(tab) -> None:
    """No answer is being written. Right after a send wait for its message first: the buttons follow it."""
    tab.wait_for_function(
        "document.querySelector('#stop').disabled && !document.querySelector('#send').disabled"
    )


def answer_text(tab) -> str:
    """What the last answer says, without the line and the tokens below it."""
    bodies = tab.locator("#chat .message.bot .body")
    return bodies.last.inner_text() if bodies.count() else ""


def answer_line(tab) -> str:
    """The line under the last answer."""
    lines = tab.locator("#chat .meta")
    return lines.last.inner_text() if lines.count() else ""


def set_number(tab, elem_id: str, value: str) -> None:
    if not tab.is_visible(f"#{elem_id}"):
        tab.click("#sampling-panel-toggle")
    field = tab.locator(f"#{elem_id} input, #{elem_id} textarea").first
    field.fill(value)
    field.press("Tab")


def plotted(tab, chart: str) -> str:
    """What a chart shows, as one comparable string."""
    return tab.evaluate(
        "id => { const p = document.querySelector(`#${id} .mv-plot`);"
        "return JSON.stringify([p.data.map(t => [t.x, t.y, t.z, t.base, t.text]), p.layout.annotations, "
        "p.querySelector('.mv-words').innerHTML, p.querySelector('.mv-letters').innerHTML, "
        "p.querySelector('.mv-quiet').toDataURL()]); }",
        chart,
    )


def chat_texts(tab) -> list[str]:
    """What all messages say, from the top."""
    return tab.locator("#chat .message .body").all_inner_texts()


def document(tab) -> dict:
    """The chat as the page holds it: what it sends, keeps and exports."""
    return tab.evaluate("microVLLM.chat.document()")


def message_button(tab, role: str, number: int, name: str):
    """A button below the number-th message (from 0) of "user" or "bot"."""
    turn = tab.locator(f"#chat .turn.{role}").nth(number)
    turn.hover()
    return turn.locator(".actions button", has_text=name)


def edit_message(tab, role: str, number: int, text: str, press: str = "Save") -> None:
    message_button(tab, role, number, "Edit").click()
    tab.fill("#chat .editor textarea", text)
    tab.locator("#chat .editor-buttons button", has_text=press).first.click()


def wait_for_answers(
    tab, count: int, ending: str = "finished|length limit|stopped|broke off|stop string"
) -> str:
    """Until ``count`` answers are there and the last one has ended; its line."""
    tab.wait_for_function(
        "([n, ending]) => { const m = document.querySelectorAll('#chat .meta');"
        "return m.length === n && new RegExp(ending).test(m[n - 1].innerText); }",
        arg=[count, ending],
    )
    wait_until_idle(tab)
    return tab.locator("#chat .meta").last.inner_text()


def wait_for_tokens(tab, at_least: int) -> None:
    """Until the last answer holds so many tokens."""
    tab.wait_for_function(
        "n => { const m = [...document.querySelectorAll('#chat .meta')].pop();"
        "const [, count] = (m && /([\\d,]+) (?:more )?tokens? ·/.exec(m.innerText)) || [0, '0'];"
        "return Number(count.replace(',', '')) >= n; }",
        arg=at_least,
    )
