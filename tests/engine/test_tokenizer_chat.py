"""Encoding, the chat template, and conversations that keep the ids of their answers."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from micro_vllm.errors import InvalidRequestError, ModelLoadError
from micro_vllm.tokenizer import IncrementalDetokenizer, Tokenizer
from tests.engine.support.vocabularies import (
    CHATML,
    FORGETFUL_CHATML,
    TRIMMING_CHATML,
    byte_level_folder,
    metaspace_folder,
)

TEXTS = [
    "",
    " ",
    "hello world",
    "  two  blanks ",
    "Grüße 😀 你好",
    "line\n\nline",
    "12,345",
    "<|im_end|> x</s>",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vocabularies")
    return {
        "chatml": byte_level_folder(root / "chatml"),
        "trimming": byte_level_folder(root / "trimming", TRIMMING_CHATML),
        "forgetful": byte_level_folder(root / "forgetful", FORGETFUL_CHATML),
        "no template": byte_level_folder(root / "none", None),
        "inst": metaspace_folder(root / "inst"),
        "inst, no bos": metaspace_folder(root / "no-bos", CHATML),
    }


@pytest.fixture(scope="module")
def make(folders: dict[str, Path]):
    made: dict[str, Tokenizer] = {}

    def get(name: str) -> Tokenizer:
        if name not in made:
            made[name] = Tokenizer.from_folder(folders[name])
        return made[name]

    return get


# ---------------------------------------------------------------- encode


@pytest.mark.parametrize("name", ["chatml", "inst"])
def test_ids_are_those_of_transformers(folders: dict[str, Path], make, name: str) -> None:
    reference, tokenizer = AutoTokenizer.from_pretrained(folders[name]), make(name)
    for text in TEXTS:
        for special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=special)
            assert ids == reference.encode(text, add_special_tokens=special)
            for skip in (True, False):
                assert tokenizer.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
    assert tokenizer.bos_token_id == reference.bos_token_id
    assert tokenizer.vocab_size == len(reference)


def test_a_text_that_begins_with_bos_gets_no_second_one(make) -> None:
    """E22, vllm #27486: an already rendered template given as a prompt."""
    tokenizer = make("inst")
    assert tokenizer.encode("hi")[0] == tokenizer.bos_token_id
    assert tokenizer.encode("<s>hi").count(tokenizer.bos_token_id) == 1
    assert tokenizer.encode("<s><s>hi").count(tokenizer.bos_token_id) == 2  # asked for twice, in the text
    # Where the tokenizer adds none, the text is what it is.
    assert make("chatml").encode("<|im_start|><|im_start|>") == [1, 1]


def test_many_threads_encode_at_once(make) -> None:
    """ "Already borrowed" of fast tokenizers: nothing here changes truncation or padding."""
    for name in ("chatml", "inst"):
        tokenizer = make(name)
        texts = [f"{text} number {i}" * (1 + i % 7) for i in range(40) for text in TEXTS]
        expected = [tokenizer.encode(text) for text in texts]
        chat = [{"role": "user", "content": "hello"}]
        expected_chat = tokenizer.encode_chat(chat)
        start = threading.Barrier(16)

        def work(worker: int, tokenizer=tokenizer, texts=texts, start=start, chat=chat):
            start.wait()
            order = list(range(len(texts)))
            random.Random(worker).shuffle(order)
            found = {i: tokenizer.encode(texts[i]) for i in order}
            decoded = {i: tokenizer.decode(found[i]) for i in order}
            return found, decoded, tokenizer.encode_chat(chat)

        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(work, range(16)))
        for found, decoded, chat_ids in results:
            assert [found[i] for i in range(len(texts))] == expected
            assert decoded[3] == tokenizer.decode(expected[3])
            assert chat_ids == expected_chat


@pytest.mark.parametrize("prompt", [None, 5, b"bytes", ["list"]])
def test_a_prompt_that_is_no_text_is_refused(make, prompt: object) -> None:
    with pytest.raises(InvalidRequestError, match=type(prompt).__name__):
        make("chatml").encode(prompt)


def test_a_lone_surrogate_is_refused(make) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        make("chatml").encode("a\ud800b")


def test_a_folder_without_a_tokenizer_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="skip_tokenizer_init=True"):
        Tokenizer.from_folder(tmp_path)


def test_a_broken_tokenizer_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{ not json")
    with pytest.raises(ModelLoadError, match=tmp_path.name):
        Tokenizer.from_folder(tmp_path)


def test_every_eos_of_the_folder_counts(tmp_path: Path) -> None:
    """E19: the union of tokenizer, config.json and generation_config.json."""
    folder = byte_level_folder(tmp_path)
    (folder / "config.json").write_text('{"eos_token_id": 7}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 9]}')
    assert Tokenizer.from_folder(folder).eos_token_ids == (0, 2, 7, 9)


def test_truncation_and_padding_in_the_file_are_off(tmp_path: Path) -> None:
    """A tokenizer.json saved during training may cut texts in silence."""
    from tokenizers import Tokenizer as Backend

    folder = byte_level_folder(tmp_path)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))
    assert len(Tokenizer.from_folder(folder).encode("hello world, hello there, hello all")) > 4
    assert len(Tokenizer.from_folder(folder).encode("hello")) < 4


@pytest.mark.parametrize("name", ["chatml", "inst"])
def test_pieces_joined_are_the_text(make, name: str) -> None:
    tokenizer = make(name)
    for text in TEXTS:
        pairs = tokenizer.tokenize_with_pieces(text)
        assert [token_id for token_id, _ in pairs] == tokenizer.encode(text, add_special_tokens=False)
        assert "".join(piece for _, piece in pairs) == text
    cut = tokenizer.encode("ab😀", add_special_tokens=False)[:-1]
    assert "".join(tokenizer.pieces(cut)) == tokenizer.decode(cut)


def test_single_tokens_are_readable(make) -> None:
    chatml, inst = make("chatml"), make("inst")
    assert chatml.token_text(chatml.encode(" the")[0]) == " the"
    assert chatml.token_text(2) == "<|im_end|>"
    assert inst.token_text(inst.encode("the", add_special_tokens=False)[0]).startswith(" ")
    assert inst.token_text(inst.encode("😀", add_special_tokens=False)[-1]) == "\\x80"
    assert inst.token_text(inst.encode("\n", add_special_tokens=False)[-1]) == "\n"
    assert chatml.token_text(chatml.vocab_size + 1) == ""
    byte = next(i for i in range(chatml.vocab_size) if chatml.token_bytes(i) == b"\xf0")
    assert chatml.token_text(byte) == "\\xf0"


def test_bad_words_are_found_with_and_without_a_blank(make) -> None:
    tokenizer = make("chatml")
    found = tokenizer.encode_bad_words(["hello", " world"])
    for text in ("hello", " hello", "world", " world"):
        assert tuple(tokenizer.encode(text)) in found
    assert len(found) == 4
    with pytest.raises(InvalidRequestError, match="bad_words"):
        tokenizer.encode_bad_words(["  "])


# ---------------------------------------------------------------- chat template

CHAT = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(("name", "count"), [("inst", 1), ("inst, no bos", 0)])
def test_a_chat_has_the_bos_of_its_template_and_no_other(make, name: str, count: int) -> None:
    """E22, vllm #27486, #2012, #55197: the tokenizer would add one to any text."""
    tokenizer = make(name)
    assert tokenizer.encode("hello")[0] == tokenizer.bos_token_id
    for ids in (tokenizer.encode_chat(CHAT), tokenizer.render_chat_with_ids(CHAT)):
        assert ids.count(tokenizer.bos_token_id) == count


@pytest.mark.parametrize("name", ["chatml", "inst", "trimming"])
@pytest.mark.parametrize("generate", [True, False])
def test_chat_ids_are_those_of_transformers(
    folders: dict[str, Path], make, name: str, generate: bool
) -> None:
    reference = AutoTokenizer.from_pretrained(folders[name])
    chat = [*CHAT, {"role": "assistant", "content": " the answer "}, {"role": "user", "content": "more"}]
    expected = reference.apply_chat_template(chat, add_generation_prompt=generate, return_dict=False)
    assert make(name).encode_chat(chat, add_generation_prompt=generate) == expected
    assert make(name).render_chat_with_ids(chat, add_generation_prompt=generate) == expected


def test_the_last_message_can_go_on(make) -> None:
    tokenizer = make("chatml")
    chat = [*CHAT, {"role": "assistant", "content": "once upon"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("assistant\nonce upon")
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        tokenizer.apply_chat_template(chat, continue_final_message=True)


def test_no_template_says_what_to_do(make) -> None:
    assert not make("no template").has_chat_template
    assert make("chatml").has_chat_template
    with pytest.raises(InvalidRequestError, match="no chat template; use generate"):
        make("no template").encode_chat(CHAT)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        {"role": "user", "content": "x"},
        ["hello"],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
    ],
)
def test_malformed_messages_are_refused(make, messages: object) -> None:
    with pytest.raises(InvalidRequestError, match="message"):
        make("chatml").render_chat_with_ids(messages)


def test_text_parts_are_joined_and_the_callers_messages_stay_as_they_are(make) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert "user\na\nb<|im_end|>" in make("chatml").apply_chat_template(parts)
    assert parts[0]["content"][0] == {"type": "text", "text": "a"}


def test_what_a_template_refuses_is_passed_on(tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    tokenizer = Tokenizer.from_folder(byte_level_folder(tmp_path, template))
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        tokenizer.encode_chat(CHAT)


# ---------------------------------------------------------------- kept ids


def sampled(tokenizer: Tokenizer, seed: int, length: int = 30) -> list[int]:
    """Ids as a hot model samples them: encoding their text gives others."""
    rng = random.Random(seed)
    plain = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
    while True:
        ids = rng.choices(plain, k=length)
        text = tokenizer.decode(ids)
        if tokenizer.encode(text, add_special_tokens=False) != ids and text.strip():
            return ids


def shown_text(tokenizer: Tokenizer, prompt: list[int], ids: list[int], **kwargs) -> str:
    """The text a page shows for an answer: what the engine's detokenizer gives."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, **kwargs)
    for token_id in ids:
        detokenizer.append(token_id)
    return detokenizer.finish()


@pytest.mark.parametrize(
    ("name", "ends_with_eos"),
    [
        ("chatml", True),
        ("chatml", False),
        ("trimming", True),
        ("trimming", False),
        ("inst", True),
        ("inst", False),
        ("inst, no bos", False),  # this template writes no EOS
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_every_turn_begins_with_the_ids_of_the_turn_before(
    make, name: str, ends_with_eos: bool, seed: int
) -> None:
    """Four turns of answers that do not survive decoding and encoding."""
    tokenizer = make(name)
    (eos,) = tokenizer.eos_token_ids
    chat: list[dict] = [{"role": "user", "content": "hello, who are you?"}]
    for turn in range(4):
        prompt = tokenizer.render_chat_with_ids(chat)
        answer = sampled(tokenizer, seed=10 * seed + turn)
        text = shown_text(tokenizer, prompt, answer)
        kept = [*answer, eos] if ends_with_eos else answer
        chat += [
            {"role": "assistant", "content": text, "token_ids": kept},
            {"role": "user", "content": f"and {turn}?"},
        ]
        following = tokenizer.render_chat_with_ids(chat)
        assert following[: len(prompt) + len(kept)] == prompt + kept
        assert following.count(eos) == tokenizer.encode_chat(chat).count(eos)  # none doubled, none lost
        # Without the ids the prefix would have been lost.
        assert tokenizer.encode_chat(chat)[: len(prompt) + len(answer)] != prompt + answer


@pytest.mark.parametrize("name", ["chatml", "trimming", "inst"])
def test_kept_ids_change_no_text(make, name: str) -> None:
    """Answers spelt letter by letter: other ids than encoding gives, but the same text."""
    tokenizer = make(name)
    chat: list[dict] = [{"role": "user", "content": "hello"}]
    for said in ("the capital", "of France", "is Paris."):
        spelt = [i for char in said for i in tokenizer.encode(char, add_special_tokens=False)]
        if name == "inst":  # each letter was encoded with a blank before it: keep only the first blank
            blank = spelt[0] if tokenizer.token_text(spelt[0]) == " " else None
            spelt = [i for i in spelt if i != blank or blank is None]
        text = tokenizer.decode(spelt)
        chat += [
            {"role": "assistant", "content": text, "token_ids": spelt},
            {"role": "user", "content": "go on"},
        ]
    kept, plain = tokenizer.render_chat_with_ids(chat), tokenizer.encode_chat(chat)
    assert kept != plain
    # Only the blank between "[/INST]" and the answer is the model's to generate.
    kept_text, plain_text = (tokenizer.decode(ids, skip_special_tokens=False) for ids in (kept, plain))
    assert kept_text.replace("[/INST] ", "[/INST]") == plain_text.replace("[/INST] ", "[/INST]")


def test_a_conversation_may_begin_with_an_answer(make) -> None:
    tokenizer = make("chatml")
    answer = sampled(tokenizer, seed=4)
    greeting = {"role": "assistant", "content": tokenizer.decode(answer), "token_ids": answer}
    ids = tokenizer.render_chat_with_ids([greeting, *CHAT])
    opening = tokenizer.encode("<|im_start|>assistant\n")
    assert ids[: len(opening) + len(answer)] == opening + answer


def test_a_continued_answer_goes_on_from_its_own_ids(make) -> None:
    tokenizer = make("chatml")
    prompt = tokenizer.render_chat_with_ids(CHAT)
    answer = sampled(tokenizer, seed=1)
    message = {"role": "assistant", "content": tokenizer.decode(answer), "token_ids": answer}
    again = tokenizer.render_chat_with_ids(
        [*CHAT, message], add_generation_prompt=False, continue_final_message=True
    )
    assert again == prompt + answer


def test_an_edited_answer_is_encoded_anew(make) -> None:
    tokenizer = make("chatml")
    answer = tokenizer.encode("the capital is Paris")
    message = {"role": "assistant", "content": "the capital is Rome", "token_ids": answer}
    chat = [*CHAT, message, {"role": "user", "content": "sure?"}]
    assert tokenizer.render_chat_with_ids(chat) == tokenizer.encode_chat(chat)
    # Only the edited one: the other keeps its ids.
    kept = sampled(tokenizer, seed=3)
    chat += [
        {"role": "assistant", "content": tokenizer.decode(kept), "token_ids": kept},
        {"role": "user", "content": "x"},
    ]
    ids = tokenizer.render_chat_with_ids(chat)
    before = tokenizer.encode_chat(chat[:3])
    assert ids[: len(before) + len(kept)] == before + kept


def test_an_answer_cut_at_a_stop_string_keeps_the_ids_before_it(make) -> None:
    tokenizer = make("chatml")
    prompt = tokenizer.render_chat_with_ids(CHAT)
    said = sampled(tokenizer, seed=5)
    stop = [token_id for char in "STOP" for token_id in tokenizer.encode(char)]
    text = shown_text(tokenizer, prompt, said + stop, stop=("STOP",))
    chat = [*CHAT, {"role": "assistant", "content": text, "token_ids": said + stop}, CHAT[0]]
    ids = tokenizer.render_chat_with_ids(chat)
    assert ids[: len(prompt) + len(said)] == prompt + said
    assert "STOP" not in tokenizer.decode(ids)


def test_another_eos_than_the_templates_gives_way_to_it(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    tokenizer = Tokenizer.from_folder(folder)
    prompt = tokenizer.render_chat_with_ids(CHAT)
    answer = sampled(tokenizer, seed=8)
    message = {"role": "assistant", "content": tokenizer.decode(answer), "token_ids": [*answer, 0]}
    ids = tokenizer.render_chat_with_ids([*CHAT, message, CHAT[0]])
    assert ids[: len(prompt) + len(answer) + 1] == [*prompt, *answer, 2]


def test_an_answer_the_template_rewrites_is_left_to_the_template(make) -> None:
    """Qwen3 drops what an earlier answer thought; its ids would bring the thoughts back."""
    tokenizer = make("forgetful")
    thought = tokenizer.encode("<think>hmm</think>hello")
    plain = sampled(tokenizer, seed=9)
    chat = [
        *CHAT,
        {"role": "assistant", "content": "<think>hmm</think>hello", "token_ids": thought},
        {"role": "user", "content": "more"},
    ]
    assert tokenizer.render_chat_with_ids(chat) == tokenizer.encode_chat(chat)
    prompt = tokenizer.render_chat_with_ids(chat)
    chat += [{"role": "assistant", "content": tokenizer.decode(plain), "token_ids": plain}, CHAT[0]]
    ids = tokenizer.render_chat_with_ids(chat)
    assert ids[: len(prompt) + len(plain)] == prompt + plain  # the other one keeps its ids
    assert "hmm" not in tokenizer.decode(ids)


def test_a_message_that_looks_like_a_marker_changes_nothing(make) -> None:
    tokenizer = make("chatml")
    answer = sampled(tokenizer, seed=2)
    chat = [
        {"role": "user", "content": "KEPTANSWER1Z KEPTANSWERX1Z"},
        {"role": "assistant", "content": tokenizer.decode(answer), "token_ids": answer},
        CHAT[0],
    ]
    prompt = tokenizer.encode_chat(chat[:1])
    assert tokenizer.render_chat_with_ids(chat)[: len(prompt) + 30] == prompt + answer


def test_ids_of_other_roles_are_ignored(make) -> None:
    tokenizer = make("chatml")
    chat = [{"role": "user", "content": "hello", "token_ids": tokenizer.encode("hello")[:1] * 5}]
    assert tokenizer.render_chat_with_ids(chat) == tokenizer.encode_chat(chat)


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(smollm2_folder)


@pytest.mark.real_model
@pytest.mark.parametrize("seed", range(10))
def test_smollm2_turns_keep_their_prefix(smollm2: Tokenizer, seed: int) -> None:
    tokenizer = smollm2
    chat: list[dict] = [{"role": "user", "content": "What is the capital of France?"}]
    for turn in range(3):
        prompt = tokenizer.render_chat_with_ids(chat)
        answer = sampled(tokenizer, seed=100 * seed + turn, length=80)
        text = shown_text(tokenizer, prompt, answer)
        chat += [
            {"role": "assistant", "content": text, "token_ids": [*answer, 2]},
            {"role": "user", "content": "Tell me more."},
        ]
        assert tokenizer.render_chat_with_ids(chat)[: len(prompt) + 81] == [*prompt, *answer, 2]
    assert prompt[:2] == [1, 9690]
