"""The tokens room's answers to its script: any client may ask anything, and nothing is kept."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from micro_vllm.errors import InvalidRequestError
from micro_vllm.tokenizer import Tokenizer
from tests.engine.support.models import save_tiny_model
from ui.chat.conversation import Chat, Turn
from ui.chat.document import to_document
from ui.chat.prompting import PromptBuilder
from ui.tokens import tokenizer_panel
from ui.tokens.tokenizer_panel import previewed, tokenized


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = save_tiny_model(
        tmp_path_factory.mktemp("models") / "tiny", tokenizer=True, vocab_size=300, eos_token_id=299
    )
    return Tokenizer.from_folder(folder)


def make_context(tokenizer):
    loaded = SimpleNamespace(
        tokenizer=tokenizer, name="tiny", path="/x", config=SimpleNamespace(vocab_size=300)
    )
    engine = SimpleNamespace(
        loaded=loaded,
        model_key="tiny@/x",
        loop=SimpleNamespace(engine=SimpleNamespace(info=SimpleNamespace(block_size=16))),
    )
    return SimpleNamespace(admission=SimpleNamespace(engine=lambda: engine))


@pytest.fixture
def context(tokenizer):
    return make_context(tokenizer)


def document(*turns: Turn, mode="chat"):
    return to_document(Chat(turns, mode))


def test_the_tokens_of_a_text_give_it_back(context, tokenizer):
    text = "Hi  é🧱\n<b>"
    told = tokenized(context, {"text": text})
    assert "".join(piece for _, piece, _, _ in told["tokens"]) == text
    assert [row[0] for row in told["tokens"]] == tokenizer.encode(text, add_special_tokens=False)
    assert told["characters"] == len(text)
    assert told["count"] == len(told["tokens"])
    parts = [word for _, piece, word, _ in told["tokens"] if not piece]
    assert parts
    assert all(word.startswith("\\x") for word in parts)


def test_special_tokens_are_added_on_demand_and_marked(context, tokenizer):
    plain, special = (tokenized(context, {"text": "a", "special": on}) for on in (False, True))
    assert [row[0] for row in special["tokens"]] == tokenizer.encode("a")
    assert sum(row[3] for row in special["tokens"]) == len(special["tokens"]) - len(plain["tokens"])


def test_a_long_text_is_counted_whole_and_shown_in_part(context):
    told = tokenized(context, {"text": "x" * tokenizer_panel.MAX_CHARACTERS})
    assert told["count"] == tokenizer_panel.MAX_CHARACTERS
    assert len(told["tokens"]) == tokenizer_panel.MAX_SHOWN
    error = tokenized(context, {"text": "x" * (tokenizer_panel.MAX_CHARACTERS + 1)})["error"]
    assert "20,001" in error
    assert "20,000" in error


def test_the_preview_is_what_the_engine_would_get(context):
    turns = (Turn("user", "one"),)
    told = previewed(context, {"document": document(*turns), "system": "Be brief."})
    start = PromptBuilder(context.admission.engine(), "Be brief.").new_answer(Chat(turns, "chat"))
    assert [row[0] for row in told["tokens"]] == list(start.prompt_ids)
    assert told["block_size"] == 16
    assert "Be brief." in "".join(row[1] for row in told["tokens"])


def test_what_is_being_typed_is_the_next_message(context):
    typed = previewed(context, {"document": document(), "prompt": "one"})
    assert typed == previewed(context, {"document": document(Turn("user", "one"))})


def test_a_completion_has_no_template(context):
    told = previewed(context, {"document": document(mode="completion"), "prompt": "Once upon"})
    assert "".join(row[1] for row in told["tokens"] if not row[3]) == "Once upon"


@pytest.mark.parametrize("ask", [None, 7, "x", [], {}, {"text": 7}, {"text": None}, {"text": ["a"]}])
def test_odd_questions_for_tokens_get_words(context, ask):
    assert tokenized(context, ask)["error"]


@pytest.mark.parametrize(
    "ask",
    [
        None, 7, [], {}, {"prompt": 7}, {"system": ["x"], "prompt": "a"}, {"document": 7}, {"document": {"turns": 7}},
        {"document": {"turns": [{"role": "evil"}]}}, {"document": {"turns": []}},
        {"prompt": "x" * 300_000},
    ],
)  # fmt: skip
def test_odd_questions_for_a_preview_get_words(context, ask):
    assert previewed(context, ask)["error"]


def test_half_a_character_pair_breaks_nothing(context):
    json.dumps([tokenized(context, {"text": "\ud800"}), previewed(context, {"prompt": "\ud800"})])


def test_without_a_model_or_a_tokenizer_the_room_says_so(context):
    assert "no tokenizer" in tokenized(make_context(None), {"text": "a"})["error"]
    assert "no tokenizer" in previewed(make_context(None), {"prompt": "a"})["error"]

    def none():
        raise InvalidRequestError("no model is loaded.")

    empty = SimpleNamespace(admission=SimpleNamespace(engine=none))
    assert tokenized(empty, {"text": "a"}) == {"error": "no model is loaded."}
