"""What can be done with the messages of a chat: answer again, go on, take back, edit, branch, copy."""

from __future__ import annotations

import pytest

from micro_vllm.trace import PrefixLookup, RequestQueued
from tests.browser.support.acting import (
    answer_line,
    answer_text,
    chat_texts,
    document,
    edit_message,
    message_button,
    send,
    set_number,
    wait_for_answers,
    wait_for_tokens,
    wait_until_idle,
)

pytestmark = pytest.mark.browser


@pytest.fixture
def chat(served, open_tab):
    """``chat(*prompts)`` -> a tab whose chat has these prompts, each answered with eight tokens."""

    def start(*prompts: str, tokens: int = 8):
        tab = open_tab(served.url)
        set_number(tab, "max-tokens", str(tokens))
        for number, prompt in enumerate(prompts, 1):
            send(tab, prompt)
            wait_for_answers(tab, number)
        return tab

    return start


def press(tab, elem_id: str) -> None:
    """Press a button that begins an answer, and wait for its end."""
    tab.click(f"#{elem_id}")
    tab.wait_for_function("!document.querySelector('#send').disabled")


def queued(served, after: int) -> list[RequestQueued]:
    return [event for event in served.log.since(after) if isinstance(event, RequestQueued)]


def newest(served) -> int:
    return served.log.since()[-1].seq


def test_retry_keeps_the_answers_and_arrows_go_through_them(served, chat):
    tab = chat("Say something", "And then?")
    texts = chat_texts(tab)
    press(tab, "retry")
    press(tab, "retry")
    versions = document(tab)["turns"][3]["versions"]
    assert len(versions) == 3
    assert len({version["text"] for version in versions}) == 3
    turn = tab.locator("#chat .turn.bot").nth(1)
    assert turn.locator(".versions").inner_text().split() == ["‹", "3", "/", "3", "›"]
    turn.get_by_label("the answer before").click()
    turn.get_by_label("the answer before").click()
    assert turn.get_by_label("the answer before").is_disabled()
    assert chat_texts(tab) == texts, "the first answer is there as it was"
    # The chat goes on from the answer that is shown.
    send(tab, "why?")
    wait_for_answers(tab, 3)
    assert chat_texts(tab)[:4] == texts
    assert [len(turn.get("versions", ())) for turn in document(tab)["turns"]] == [0, 1, 0, 3, 0, 1]


def test_stop_works_during_retry_and_during_continue(served, chat):
    """P2, open-webui #754."""
    tab = chat("Tell me a story")
    set_number(tab, "max-tokens", "900")
    for elem_id in ("retry", "continue"):
        tab.click(f"#{elem_id}")
        served.wait_for(lambda h: h["running"] == 1, 20)
        wait_for_tokens(tab, 4)
        tab.click("#stop")
        served.wait_for(lambda h: h["running"] == 0 and h["free_blocks"] == h["num_blocks"], 20)
        wait_until_idle(tab)
        assert "stopped" in answer_line(tab)


def test_continue_goes_on_with_the_answer_and_the_cache_has_what_is_there(served, chat):
    tab = chat("Count", tokens=40)
    first = document(tab)["turns"][1]["versions"][0]
    last = newest(served)
    press(tab, "continue")
    (version,) = document(tab)["turns"][1]["versions"]
    assert version["token_ids"][:40] == first["token_ids"]
    assert len(version["token_ids"]) == 80
    assert version["num_kept"] == 40
    assert version["text"].startswith(first["text"].rstrip("\ufffd"))
    assert "40 more tokens" in answer_line(tab)
    (lookup,) = (event for event in served.log.since(last) if isinstance(event, PrefixLookup))
    assert lookup.num_hit_tokens >= (lookup.num_tokens - 1) // 16 * 16 - 16, lookup


def test_continue_goes_on_from_the_edited_text(served, chat):
    """P6, open-webui #23496."""
    tab = chat("What is it?")
    edit_message(tab, "bot", 0, "It is **my** answer, and")
    tab.wait_for_selector("#chat .message.bot strong")
    assert "edited" in answer_line(tab)
    last = newest(served)
    press(tab, "continue")
    (version,) = document(tab)["turns"][1]["versions"]
    assert version["text"].startswith("It is **my** answer, and")
    assert len(version["text"]) > len("It is **my** answer, and")
    (request,) = queued(served, last)
    tokenizer = served.host.engine.loaded.tokenizer
    expected = tokenizer.encode_chat([{"role": "user", "content": "What is it?"}])
    assert request.num_prompt_tokens == len(expected) + len("It is **my** answer, and")


def test_undo_takes_the_last_turn_back_and_the_rest_stays(served, chat):
    """P3, textgen #5272: also after Stop."""
    tab = chat("first", "second")
    before = chat_texts(tab)
    set_number(tab, "max-tokens", "900")
    send(tab, "third, to be stopped")
    wait_for_tokens(tab, 4)
    tab.click("#stop")
    wait_until_idle(tab)
    tab.click("#undo")
    assert tab.input_value("#prompt textarea") == "third, to be stopped"
    assert chat_texts(tab) == before
    tab.fill("#prompt textarea", "")
    tab.click("#undo")
    assert tab.input_value("#prompt textarea") == "second"
    assert chat_texts(tab) == before[:2]


def test_after_undo_and_retry_page_and_engine_agree(served, chat):
    """P8, gradio #9227."""
    tab = chat("first", "second")
    tab.click("#undo")
    last = newest(served)
    press(tab, "retry")
    assert tab.locator("#chat .message.user").count() == 1
    (request,) = queued(served, last)
    tokenizer = served.host.engine.loaded.tokenizer
    assert request.num_prompt_tokens == len(tokenizer.encode_chat([{"role": "user", "content": "first"}]))


def test_an_edited_prompt_keeps_the_later_turns(served, chat):
    """P7, llama.cpp #19300, #18115."""
    tab = chat("first", "second")
    before = chat_texts(tab)
    edit_message(tab, "user", 0, "first, *edited* <b>")
    assert chat_texts(tab) == ["first, *edited* <b>", *before[1:]]
    last = newest(served)
    send(tab, "third")
    wait_for_answers(tab, 3)
    (request,) = queued(served, last)
    turns = document(tab)["turns"][:5]
    messages = [
        {"role": "user", "content": t["text"]}
        if t["role"] == "user"
        else {
            "role": "assistant",
            "content": t["versions"][0]["text"],
            "token_ids": t["versions"][0]["token_ids"],
        }
        for t in turns
    ]
    tokenizer = served.host.engine.loaded.tokenizer
    assert request.num_prompt_tokens == len(tokenizer.render_chat_with_ids(messages))


def test_answering_an_edited_prompt_again_asks_before_later_turns_go(served, chat):
    """P7: and then they are not lost."""
    tab = chat("first", "second")
    before = chat_texts(tab)
    edit_message(tab, "user", 0, "changed", press="Save and answer again")
    question = tab.locator("#chat .editor .question").inner_text()
    assert "2 later messages" in question
    assert chat_texts(tab)[2:] == before[2:], "nothing has happened yet"
    tab.locator("#chat .editor-buttons button", has_text="Cancel").click()
    assert chat_texts(tab) == before
    edit_message(tab, "user", 0, "changed", press="Save and answer again")
    tab.locator("#chat .editor-buttons button", has_text="Yes, answer again").click()
    wait_for_answers(tab, 1)
    assert chat_texts(tab)[0] == "changed"
    assert tab.locator("#chat .turn.bot .versions").inner_text().split()[1] == "2"
    tab.click("#earlier-chats")
    tab.locator("#earlier-chats-list .earlier button").first.click()
    tab.wait_for_function("document.querySelectorAll('#chat .message').length === 4")
    assert chat_texts(tab) == before


def test_the_last_prompt_is_answered_again_without_a_question(served, chat):
    tab = chat("first")
    edit_message(tab, "user", 0, "changed", press="Save and answer again")
    wait_for_answers(tab, 1)
    assert chat_texts(tab)[0] == "changed"
    assert len(document(tab)["turns"][1]["versions"]) == 2


def test_the_editor_can_be_left_by_keyboard_and_refuses_nothing_at_all(served, chat):
    tab = chat("first")
    before = chat_texts(tab)
    message_button(tab, "user", 0, "Edit").click()
    tab.keyboard.type(" and more")
    tab.keyboard.press("Escape")
    assert chat_texts(tab) == before
    assert tab.evaluate("document.activeElement.textContent") == "Edit", "the keyboard stays where it was"
    message_button(tab, "user", 0, "Edit").click()
    tab.fill("#chat .editor textarea", "  ")
    tab.keyboard.press("Control+Enter")
    assert tab.is_visible("#chat .editor")
    tab.fill("#chat .editor textarea", "by keyboard")
    tab.keyboard.press("Control+Enter")
    assert chat_texts(tab)[0] == "by keyboard"


def test_a_branch_keeps_the_tokens_before_it_and_the_answer_beside_it(served, chat):
    tab = chat("Say it", tokens=12)
    first = document(tab)["turns"][1]["versions"][0]
    other = 40 if first["token_ids"][5] != 40 else 41
    tab.evaluate("branch => microVLLM.chat.branch(branch)", {"turn": 1, "index": 5, "token_id": other})
    tab.wait_for_function("document.querySelector('#send').disabled")
    wait_until_idle(tab)
    old, new = document(tab)["turns"][1]["versions"]
    assert old == first
    assert new["token_ids"][:6] == [*first["token_ids"][:5], other]
    assert len(new["token_ids"]) == 6 + 12
    # In the new version, tokens are counted from the first one of its request.
    tab.evaluate("branch => microVLLM.chat.branch(branch)", {"turn": 1, "index": 1, "token_id": other})
    wait_for_tokens(tab, 1)
    wait_until_idle(tab)
    third = document(tab)["turns"][1]["versions"][2]
    assert third["token_ids"][:8] == [*new["token_ids"][:7], other]


def test_a_branch_of_an_edited_answer_says_why_not(served, chat):
    tab = chat("Say it")
    edit_message(tab, "bot", 0, "my own words")
    tab.evaluate("microVLLM.chat.branch({turn: 1, index: 0, token_id: 40})")
    assert "edited" in tab.wait_for_selector(".toast-body").inner_text()
    wait_until_idle(tab)
    assert chat_texts(tab)[1] == "my own words"
    assert len(document(tab)["turns"][1]["versions"]) == 1


def test_the_tokens_of_an_answer_joined_are_its_text(served, chat):
    """P24, textgen #6485: after Stop and Continue, with characters that were cut in half."""
    tab = chat("Say it", tokens=9)
    for _ in range(3):
        press(tab, "continue")
    (version,) = document(tab)["turns"][1]["versions"]
    assert len(version["token_ids"]) == 36
    assert served.host.engine.loaded.tokenizer.decode(version["token_ids"]) == version["text"]


def test_messages_and_code_are_copied_as_they_were_written(served, open_tab):
    tab = open_tab(served.url, permissions=["clipboard-read", "clipboard-write"])
    set_number(tab, "max-tokens", "4")
    send(tab, "a *prompt*\n  with <b>")
    wait_for_answers(tab, 1)
    raw = "Use **this**:\n\n```python\nif a < b:\n    pass\n```\n"
    edit_message(tab, "bot", 0, raw)
    tab.wait_for_selector("#chat .message.bot .code-head button")
    clipboard = "navigator.clipboard.readText()"
    message_button(tab, "user", 0, "Copy").click()
    tab.wait_for_function(f"{clipboard}.then(t => t === 'a *prompt*\\n  with <b>')")
    message_button(tab, "bot", 0, "Copy").click()
    tab.wait_for_function("raw => navigator.clipboard.readText().then(t => t === raw)", arg=raw)
    tab.click("#chat .code-head button")
    tab.wait_for_function(f"{clipboard}.then(t => t.trim() === 'if a < b:\\n    pass')")
    assert answer_text(tab).count("Copied") == 1


def test_buttons_are_off_where_they_would_do_nothing(served, open_tab):
    tab = open_tab(served.url)
    for elem_id in ("stop", "retry", "continue", "undo"):
        assert tab.is_disabled(f"#{elem_id}"), elem_id
    set_number(tab, "max-tokens", "900")
    send(tab, "hello")
    wait_for_tokens(tab, 2)
    for elem_id in ("send", "retry", "continue", "undo"):
        assert tab.is_disabled(f"#{elem_id}"), elem_id
    tab.click("#stop")
    wait_until_idle(tab)
    for elem_id in ("send", "retry", "continue", "undo"):
        assert tab.is_enabled(f"#{elem_id}"), elem_id
