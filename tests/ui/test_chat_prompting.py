"""From a chat to prompt ids: answers keep their ids, go on from their end, and branch at a token."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from micro_vllm.errors import InvalidRequestError
from ui.chat.conversation import Answer, Chat, Turn
from ui.chat.prompting import Branch, PromptBuilder, model_key


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from micro_vllm.tokenizer import Tokenizer
    from tests.engine.support.models import save_tiny_tokenizer

    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(folder, 300)
    tokenizer = Tokenizer.from_folder(folder)
    loaded = SimpleNamespace(name="tiny", tokenizer=tokenizer, config=SimpleNamespace(vocab_size=300))
    return SimpleNamespace(loaded=loaded, model_key="tiny@/somewhere")


@pytest.fixture
def builder(engine):
    return PromptBuilder(engine, "")


def ids_of(engine, text: str) -> tuple[int, ...]:
    return tuple(engine.loaded.tokenizer.encode(text, add_special_tokens=False))


def chat_of(engine, answer: Answer, mode="chat") -> Chat:
    return Chat((Turn("user", "hi"), Turn("assistant", versions=(answer,))), mode)


def own(engine, text: str, ids=None) -> Answer:
    return Answer(text, ids_of(engine, text) if ids is None else ids, model_key=model_key(engine))


def test_the_next_turn_begins_with_the_ids_of_the_turn_before(engine, builder):
    first = builder.new_answer(Chat((Turn("user", "hi"),)))
    odd = (*ids_of(engine, "yo"), 3)  # 3 shows no text: encoding the text again could not give it
    chat = chat_of(engine, own(engine, "yo", odd))
    second = builder.new_answer(Chat((*chat.turns, Turn("user", "more"))))
    assert second.prompt_ids[: len(first.prompt_ids) + len(odd)] == (*first.prompt_ids, *odd)


def test_ids_go_to_the_model_that_wrote_them_only(engine, builder):
    foreign = chat_of(engine, Answer("yo", (7, 8), model_key="another"))
    assert "token_ids" not in builder.messages(foreign.turns)[1]
    assert builder.messages(chat_of(engine, own(engine, "yo")).turns)[1]["token_ids"] == list(
        ids_of(engine, "yo")
    )


def test_the_key_of_a_model_names_no_path(engine):
    assert "somewhere" not in model_key(engine)


def test_ids_outside_the_vocabulary_give_way_to_the_text(engine, builder):
    start = builder.going_on(chat_of(engine, own(engine, "yo", (*ids_of(engine, "yo"), 10**6))))
    assert start.kept_ids == ids_of(engine, "yo")


def test_a_system_prompt_comes_first(engine):
    messages = PromptBuilder(engine, "Be brief.").messages([Turn("user", "hi")])
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert PromptBuilder(engine, " \n").messages([Turn("user", "hi")])[0]["role"] == "user"


def test_going_on_is_the_prompt_of_the_answer_and_then_the_answer(engine, builder):
    before = builder.new_answer(Chat((Turn("user", "hi"),))).prompt_ids
    start = builder.going_on(chat_of(engine, own(engine, "yo ")))
    assert start.prompt_ids == (*before, *ids_of(engine, "yo "))
    assert (start.kept_ids, start.kept_text) == (ids_of(engine, "yo "), "yo ")


def test_an_edited_answer_goes_on_from_its_text(engine, builder):
    """P6, open-webui #23496."""
    start = builder.going_on(chat_of(engine, Answer("mine", is_edited=True)))
    assert (start.kept_ids, start.kept_text) == (ids_of(engine, "mine"), "mine")


def test_a_character_that_was_cut_in_half_is_finished_and_not_shown_twice(engine, builder):
    cut = ids_of(engine, "aé")[:-1]
    text = engine.loaded.tokenizer.decode(cut)
    assert text == "a\ufffd"
    start = builder.going_on(chat_of(engine, own(engine, text, cut)))
    assert (start.kept_ids, start.kept_text) == (cut, "a")
    stream = engine.loaded.tokenizer.text_stream(start.prompt_ids)
    assert start.kept_text + stream.push(ids_of(engine, "aé")[-1]) == "aé"


def test_a_branch_keeps_what_is_before_it(engine, builder):
    (other,) = ids_of(engine, "x")
    start = builder.going_on(chat_of(engine, own(engine, "yo")), Branch(1, other))
    assert start.kept_ids == (*ids_of(engine, "y"), other)
    assert start.kept_text == "yx"


@pytest.mark.parametrize("index", [2, 99])
def test_a_branch_at_no_token_is_refused_with_the_range(engine, builder, index):
    with pytest.raises(InvalidRequestError, match=f"tokens 0 to 1 .* {index}"):
        builder.going_on(chat_of(engine, own(engine, "yo")), Branch(index, 5))


def test_a_branch_of_an_edited_answer_is_refused_with_the_reason(engine, builder):
    with pytest.raises(InvalidRequestError, match="edited"):
        builder.going_on(chat_of(engine, Answer("yo", is_edited=True)), Branch(0, 5))


def test_a_completion_is_one_text_without_a_template(engine, builder):
    turns = (
        Turn("user", "Once"),
        Turn("assistant", versions=(own(engine, " upon"),)),
        Turn("user", " a time"),
    )
    assert builder.new_answer(Chat(turns, "completion")).prompt_ids == ids_of(engine, "Once upon a time")
    start = builder.going_on(Chat(turns[:2], "completion"))
    assert start.prompt_ids == ids_of(engine, "Once upon")


def test_nothing_to_answer_and_nothing_to_go_on_with_are_refused_in_words(engine, builder):
    with pytest.raises(InvalidRequestError, match="write one first"):
        builder.new_answer(Chat())
    with pytest.raises(InvalidRequestError, match="send a prompt first"):
        builder.going_on(Chat((Turn("user", "hi"),)))


def test_a_model_without_a_template_says_what_to_do(engine, monkeypatch):
    monkeypatch.setattr(type(engine.loaded.tokenizer), "has_chat_template", False)
    with pytest.raises(InvalidRequestError, match="Switch to Completion"):
        PromptBuilder(engine, "").new_answer(Chat((Turn("user", "hi"),)))
