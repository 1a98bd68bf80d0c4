"""Chats stay in the browser: over a reload, in a list of earlier ones, in files; and in no other tab."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.support.acting import (
    answer_line,
    chat_texts,
    document,
    edit_message,
    send,
    set_number,
    wait_for_answers,
    wait_for_tokens,
)

pytestmark = pytest.mark.browser


def chat_of(tab, *prompts: str) -> None:
    set_number(tab, "max-tokens", "8")
    for number, prompt in enumerate(prompts, 1):
        send(tab, prompt)
        wait_for_answers(tab, number)


def reload(tab) -> None:
    tab.reload()
    tab.wait_for_selector("#send")
    tab.wait_for_function("document.querySelector('#chat .log')?.dataset.mode")


def test_a_reload_keeps_chat_draft_and_system_prompt_and_the_chat_goes_on(served, open_tab):
    tab = open_tab(served.url, expect_offline=True)
    tab.click("#system-panel-toggle")
    tab.fill("#system-prompt textarea", "Be brief.")
    chat_of(tab, "first <b> *prompt*", "second")
    edit_message(tab, "bot", 0, "an **edited** answer")
    tab.wait_for_selector("#chat .message.bot strong")
    tab.fill("#prompt textarea", "not sent yet\nsecond line")
    texts, before = chat_texts(tab), document(tab)
    line = answer_line(tab)
    reload(tab)
    tab.wait_for_selector("#chat .message.bot strong")  # the server has drawn it again
    assert chat_texts(tab) == texts
    assert document(tab) == before
    assert answer_line(tab) == line
    assert tab.input_value("#prompt textarea") == "not sent yet\nsecond line"
    assert tab.input_value("#system-prompt textarea") == "Be brief."
    set_number(tab, "max-tokens", "6")
    tab.press("#prompt textarea", "Enter")
    wait_for_answers(tab, 3)
    assert len(document(tab)["turns"]) == 6


def test_a_reload_keeps_what_was_typed_into_the_other_rooms(served, open_tab):
    typed = {
        "compare-prompt": "which is <b>better</b>?",
        "compare-a-system-prompt": "Be brief.",
        "compare-b-system-prompt": "Be long.",
        "workload-lines": "one\ntwo",
        "tokenizer-input": "some words",
    }
    tab = open_tab(served.url, expect_offline=True)
    values = f"{list(typed)}.map(id => document.querySelector('#' + id + ' textarea').value)"
    tab.wait_for_function(f"{list(typed)}.every(id => document.querySelector('#' + id + ' textarea'))")
    for id_, text in typed.items():
        tab.evaluate(
            "([id, text]) => microVLLM.setText(document.querySelector('#' + id + ' textarea'), text)",
            [id_, text],
        )
    for _ in range(2):  # also if nothing was typed between
        reload(tab)
        tab.wait_for_function(f"{values}.every((text, i) => text === {json.dumps(list(typed.values()))}[i])")
    other = open_tab(served.url)
    other.wait_for_function(f"{list(typed)}.every(id => document.querySelector('#' + id + ' textarea'))")
    assert other.evaluate(values) == [""] * len(typed)


def test_two_tabs_of_one_browser_have_chats_of_their_own(served, open_tab):
    """P19, gradio #3824, #9983: also where they share the browser's storage."""
    one = open_tab(served.url, expect_offline=True)
    chat_of(one, "the first tab's")
    two = one.context.new_page()
    two.goto(served.url)
    two.wait_for_selector("#chat .example")
    chat_of(two, "the second tab's")
    two.click("#earlier-chats")
    assert two.locator("#earlier-chats-list .earlier").count() == 0
    two.keyboard.press("Escape")
    for tab, own in ((one, "the first tab's"), (two, "the second tab's")):
        reload(tab)
        assert chat_texts(tab)[0] == own
        assert tab.locator("#chat .message.user").count() == 1
    two.close()


def test_new_chat_keeps_the_old_one_in_a_list(served, open_tab):
    tab = open_tab(served.url, expect_offline=True)
    chat_of(tab, "the first chat")
    first = chat_texts(tab)
    tab.click("#new-chat")
    tab.wait_for_selector("#chat .example")
    assert tab.evaluate("document.activeElement.tagName") == "TEXTAREA"
    chat_of(tab, "the second chat")
    second = chat_texts(tab)
    tab.click("#earlier-chats")
    titles = tab.locator("#earlier-chats-list .earlier button:first-child").all_inner_texts()
    assert [title.split("\n")[0] for title in titles] == ["the first chat"]
    tab.click("#earlier-chats-list .earlier button:first-child")
    tab.wait_for_function("document.querySelector('#chat .message.user').innerText.includes('first')")
    assert chat_texts(tab) == first
    assert not tab.is_visible("#earlier-chats-list")
    # The one that was on show is in the list now; reopening and leaving a chat does not double it.
    reload(tab)
    assert chat_texts(tab) == first
    tab.click("#new-chat")
    tab.click("#earlier-chats")
    titles = tab.locator("#earlier-chats-list .earlier button:first-child").all_inner_texts()
    assert [title.split("\n")[0] for title in titles] == ["the first chat", "the second chat"]
    tab.get_by_label("delete the first chat").click()
    assert tab.locator("#earlier-chats-list .earlier").count() == 1
    tab.click("#earlier-chats-list .earlier button:first-child")
    tab.wait_for_selector("#chat .message.user")
    assert chat_texts(tab) == second


def test_a_full_storage_breaks_nothing(served, open_tab):
    tab = open_tab(served.url, expect_offline=True)
    tab.evaluate(
        """() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; }"""
    )
    chat_of(tab, "one", "two")
    tab.click("#new-chat")
    tab.wait_for_selector("#chat .example")
    chat_of(tab, "three")
    assert chat_texts(tab)[0] == "three"


def test_nonsense_in_the_storage_breaks_nothing(served, open_tab):
    tab = open_tab(served.url, expect_offline=True)
    for nonsense in (
        "{",
        "[]",
        '{"format": "micro-vllm-chat", "version": 1, "mode": "chat", "turns": [{"role": "assistant", "versions": []}]}',
        '{"format": "micro-vllm-chat", "version": 1, "mode": "chat", "turns": 7}',
    ):
        # After the page has written what it knows, and before the next one reads it.
        tab.evaluate(
            "text => addEventListener('pagehide', () => { sessionStorage.setItem('mv-chat', text);"
            "localStorage.setItem('mv-earlier-chats', text); })",
            nonsense,
        )
        reload(tab)
        assert tab.is_visible("#chat .example")
    chat_of(tab, "still fine")


def test_a_reload_in_the_middle_of_an_answer_keeps_what_had_come(served, open_tab):
    tab = open_tab(served.url, expect_offline=True)
    set_number(tab, "max-tokens", "900")
    send(tab, "Go on and on")
    wait_for_tokens(tab, 5)
    reload(tab)
    assert len(document(tab)["turns"][1]["versions"][0]["token_ids"]) >= 5
    tab.wait_for_function("document.querySelector('#chat .meta').innerText.includes('broke off')")
    served.wait_for(lambda h: h["running"] == 0, 20)
    set_number(tab, "max-tokens", "6")
    tab.click("#continue")
    tab.wait_for_function("document.querySelector('#chat .meta').innerText.includes('length limit')")


# ---------------------------------------------------------------- files


def menu(tab, elem_id: str) -> None:
    tab.click("#chat-menu")
    tab.click(f"#{elem_id}")


def import_file(tab, path: Path) -> None:
    tab.click("#chat-menu")
    with tab.expect_file_chooser() as chooser:
        tab.click("#import-chat")
    chooser.value.set_files(path)


def test_an_exported_chat_comes_back_in_another_browser(served, open_tab, tmp_path):
    tab = open_tab(served.url)
    tab.click("#system-panel-toggle")
    tab.fill("#system-prompt textarea", "Be brief.")
    chat_of(tab, "a prompt with <b> and *stars*")
    tab.click("#retry")
    tab.wait_for_function("!document.querySelector('#send').disabled")
    with tab.expect_download() as download:
        menu(tab, "export-chat")
    assert download.value.suggested_filename.endswith(".json")
    file = tmp_path / "chat.json"
    download.value.save_as(file)
    content = json.loads(file.read_text())
    assert (content["format"], content["version"]) == ("micro-vllm-chat", 1)
    assert content["system_prompt"] == "Be brief."
    assert "html" not in file.read_text()

    other = open_tab(served.url)
    chat_of(other, "what was there before")
    import_file(other, file)
    other.wait_for_function("document.querySelector('#chat .message.user').innerText.includes('stars')")
    assert document(other) == document(tab)
    assert other.input_value("#system-prompt textarea") == "Be brief."
    other.click("#earlier-chats")
    assert "what was there before" in other.inner_text("#earlier-chats-list")
    other.keyboard.press("Escape")
    other.click("#continue")  # its token ids have come along
    other.wait_for_function("!document.querySelector('#send').disabled")
    assert document(other)["turns"][1]["versions"][1]["num_kept"] == 8


def test_a_chat_can_be_taken_along_as_markdown(served, open_tab, tmp_path):
    tab = open_tab(served.url)
    chat_of(tab, "a *prompt*")
    edit_message(tab, "bot", 0, "an **answer**")
    with tab.expect_download() as download:
        menu(tab, "export-markdown")
    download.value.save_as(tmp_path / "chat.md")
    assert (tmp_path / "chat.md").read_text() == "## Prompt\n\na *prompt*\n\n## Answer\n\nan **answer**\n"


def test_wrong_files_are_refused_in_words_and_the_chat_stays(served, open_tab, tmp_path):
    tab = open_tab(served.url)
    chat_of(tab, "mine")
    before = document(tab)
    files = {
        "picture.json": ("\x89PNG", "not JSON"),
        "trace.json": ('{"kind": "EngineStarted"}', "no chat that was exported here"),
        "later.json": ('{"format": "micro-vllm-chat", "version": 2, "turns": []}', "reads version 1"),
        "broken.json": ('{"format": "micro-vllm-chat", "version": 1, "turns": [{"role": "user"}]}', "turn 1"),
        "<b>.json": ("[]", "<b>.json"),
    }
    for name, (content, words) in files.items():
        (tmp_path / name).write_text(content)
        import_file(tab, tmp_path / name)
        tab.wait_for_function(
            "words => { const notice = document.querySelector('#chat .notice');"
            "return !notice.hidden && notice.innerText.includes(words); }",
            arg=words,
        )
        tab.click("#chat .notice button")
        assert document(tab) == before
    send(tab, "goes on")
    wait_for_answers(tab, 2)
