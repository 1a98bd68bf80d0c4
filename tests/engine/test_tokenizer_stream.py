"""Text as it streams: whole characters, exact joins, stop strings, and a cost that does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from micro_vllm.tokenizer import IncrementalDetokenizer, Tokenizer
from tests.engine.support.vocabularies import (
    byte_level_folder,
    metaspace_folder,
    word_piece_folder,
)

KINDS = {"byte-level": byte_level_folder, "metaspace": metaspace_folder, "word pieces": word_piece_folder}
MANY = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEW = settings(MANY, max_examples=60)
RICH = [
    "hello 😀 world",
    "👩‍👩‍👧‍👦 family, 🇩🇪 flag, 👍🏽 thumb, ❤️ heart",
    "你好，世界。東京は晴れです。 안녕하세요",
    "e\u0301 is not é; \u202bעברית\u202c and العربية",
    " leading,  double   blanks \n\n\ttabs\t and a trailing one ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 🧑🏿‍🚀🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "",
    " ",
    "\x00 nul",
]


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(KINDS[request.param](tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(byte_level_folder(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(metaspace_folder(tmp_path_factory.mktemp("vocabulary")))


def stream(tokenizer: Tokenizer, ids: list[int], **kwargs) -> tuple[list[str], str]:
    """(text after each token, final text). The text may only grow."""
    detokenizer = IncrementalDetokenizer(tokenizer, **kwargs)
    shown: list[str] = []
    for token_id in ids:
        detokenizer.append(token_id)
        assert detokenizer.text.startswith(shown[-1] if shown else "")
        shown.append(detokenizer.text)
    final = detokenizer.finish()
    assert final == detokenizer.text
    assert final.startswith(shown[-1] if shown else "")
    return shown, final


# ---------------------------------------------------------------- whole characters


@MANY
@given(data=st.data(), skip=st.booleans())
def test_any_ids_streamed_are_any_ids_decoded(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    _, final = stream(tokenizer, ids, skip_special_tokens=skip)
    assert final == tokenizer.decode(ids, skip_special_tokens=skip)


@MANY
@given(text=st.text(max_size=30))
def test_no_replacement_character_while_a_character_is_unfinished(tokenizer: Tokenizer, text: str) -> None:
    """E21, exo #1691."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    shown, final = stream(tokenizer, ids)
    assert final == tokenizer.decode(ids)
    for part in shown:
        assert part.count("\ufffd") <= text.count("\ufffd")


@pytest.mark.parametrize("text", RICH)
def test_emoji_and_cjk_arrive_whole(byte_level: Tokenizer, metaspace: Tokenizer, text: str) -> None:
    """E21: emoji, ZWJ sequences, flags, CJK, right-to-left, blanks."""
    for tokenizer in (byte_level, metaspace):
        ids = tokenizer.encode(text, add_special_tokens=False)
        shown, final = stream(tokenizer, ids)
        assert final == text
        assert all(text.startswith(part) for part in shown)


def test_an_answer_that_ends_inside_a_character(byte_level: Tokenizer, metaspace: Tokenizer) -> None:
    """E21: the unfinished character shows only when the answer is over."""
    for tokenizer in (byte_level, metaspace):
        ids = tokenizer.encode("hello 🦜", add_special_tokens=False)
        cut = ids[:-1]
        assert len(ids) > len(tokenizer.encode("hello ", add_special_tokens=False)) + 1  # really several
        shown, final = stream(tokenizer, cut)
        assert shown[-1].strip() == "hello"
        assert final == tokenizer.decode(cut)
        assert "\ufffd" in final


def test_bytes_that_never_make_a_character_do_not_pile_up(byte_level: Tokenizer) -> None:
    bad = next(i for i in range(byte_level.vocab_size) if byte_level.token_bytes(i) == b"\xff")
    shown, final = stream(byte_level, [bad] * 100)
    assert final == "\ufffd" * 100 == byte_level.decode([bad] * 100)
    assert len(shown[-1]) == 100  # known to be wrong at once, so shown at once


def test_an_invalid_byte_late_in_a_run_does_not_take_back_shown_text(metaspace: Tokenizer) -> None:
    """With byte fallback one bad byte turns its whole run into U+FFFD: nothing of it may be shown before."""
    run = [*metaspace.encode("你好", add_special_tokens=False)[1:], metaspace.encode("\x00")[-1] + 0xFF]
    assert all(metaspace.is_byte_token(token_id) for token_id in run)
    after = metaspace.encode("a", add_special_tokens=False)
    shown, final = stream(metaspace, [*run, *after])
    assert set(shown[: len(run)]) == {""}
    assert final == metaspace.decode([*run, *after])
    assert final.startswith("\ufffd" * 7)


def test_the_blank_between_prompt_and_answer_is_kept(metaspace: Tokenizer) -> None:
    """Decoding the answer alone would strip its first blank; vLLM keeps it too."""
    prompt = metaspace.encode("The capital of France is")
    answer = metaspace.encode("Paris", add_special_tokens=False)
    assert metaspace.decode(answer) == "Paris"
    shown, final = stream(metaspace, answer, prompt_ids=prompt)
    assert final == " Paris"
    assert shown[0].startswith(" ")
    # Special tokens at the end of the prompt do not hide what was said before them.
    _, after_special = stream(metaspace, answer, prompt_ids=[*prompt, 2])
    assert after_special == " Paris"


@MANY
@given(before=st.text(max_size=12), after=st.text(max_size=12))
def test_an_answer_continues_its_prompt(tokenizer: Tokenizer, before: str, after: str) -> None:
    """For every cut between two tokens: what is shown is what decoding the whole adds to the prompt."""
    ids = tokenizer.encode(before + after, add_special_tokens=False)
    cut = len(tokenizer.encode(before, add_special_tokens=False))
    prompt, answer = ids[:cut], ids[cut:]
    whole, said = tokenizer.decode(ids), tokenizer.decode(prompt)
    if whole.startswith(said) and not said.endswith("\ufffd"):
        assert stream(tokenizer, answer, prompt_ids=prompt)[1] == whole[len(said) :]


def test_an_answer_finishes_the_character_its_prompt_began(
    byte_level: Tokenizer, metaspace: Tokenizer
) -> None:
    for tokenizer in (byte_level, metaspace):
        ids = tokenizer.encode("hello 🦜 there", add_special_tokens=False)
        cut = next(i for i in range(len(ids)) if tokenizer.decode(ids[:i]).endswith("\ufffd"))
        assert stream(tokenizer, ids[cut:], prompt_ids=ids[:cut])[1] == "🦜 there"


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_skipped_or_shown(byte_level: Tokenizer, skip: bool) -> None:
    ids = byte_level.encode("hi<|im_end|> there<tool call>!", add_special_tokens=False)
    _, final = stream(byte_level, ids, skip_special_tokens=skip)
    assert final == ("hi there<tool call>!" if skip else "hi<|im_end|> there<tool call>!")


def test_ids_without_a_token_say_nothing(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.vocab_size + 5, 40, tokenizer.vocab_size, 41]
    assert stream(tokenizer, ids)[1] == tokenizer.decode(ids) == tokenizer.decode([40, 41])


def test_a_token_costs_the_same_however_long_the_answer(metaspace: Tokenizer, monkeypatch) -> None:
    """Counts the ids handed to decode: a window, never the whole answer."""
    longest = 0
    decode = metaspace.decode

    def counting(ids, skip_special_tokens=True):
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, skip_special_tokens)

    monkeypatch.setattr(metaspace, "decode", counting)
    ids = metaspace.encode("the quick brown fox   jumps 😀 over " * 30, add_special_tokens=False)
    stream(metaspace, ids)
    blanks = metaspace.encode("a b", add_special_tokens=False)[-1:] * 200
    stream(metaspace, blanks)
    assert longest <= 34


# ---------------------------------------------------------------- stop strings


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, int, str] | None:
    """Reading character by character: the stop that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return end - len(stop), end, stop
    return None


@MANY
@given(data=st.data(), include=st.booleans())
def test_text_is_cut_exactly_at_the_stop_however_tokens_fall(
    tokenizer: Tokenizer, data: st.DataObject, include: bool
) -> None:
    """E20, vllm #3672, #8468."""
    text = data.draw(st.text(alphabet="abhello the😀你 .\n", min_size=1, max_size=40))
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids)
    if not whole:
        return
    stops = []
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(whole) - 1))
        part = whole[start : start + data.draw(st.integers(1, 8))]
        stops.append(part if data.draw(st.booleans()) else f"{part}~")  # some are never completed
    expected = first_stop(whole, tuple(stops))
    detokenizer = IncrementalDetokenizer(tokenizer, (), True, tuple(stops), include)
    cut = whole if expected is None else whole[: expected[1 if include else 0]]
    for token_id in ids:
        detokenizer.append(token_id)
        assert cut.startswith(detokenizer.text)
    assert detokenizer.finish() == cut
    assert detokenizer.stop_string == (expected[2] if expected else None)


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token for each character, so that a test knows what each token adds."""
    return [token_id for char in text for token_id in tokenizer.encode(char, add_special_tokens=False)]


def test_a_stop_that_spans_tokens_is_never_shown_in_part(byte_level: Tokenizer) -> None:
    """E20."""
    ids = spell(byte_level, "one STOP two")
    shown, final = stream(byte_level, ids, stop=("STOP",))
    assert shown == ["o", "on", "one", "one ", *["one "] * 8]
    assert final == "one "


def test_what_looked_like_a_stop_and_was_none_is_shown(byte_level: Tokenizer) -> None:
    shown, final = stream(byte_level, spell(byte_level, "a STORM"), stop=("STOP",))
    assert shown == ["a", "a ", "a ", "a ", "a ", "a STOR", "a STORM"]
    assert final == "a STORM"


def test_held_back_text_is_shown_at_the_end(byte_level: Tokenizer) -> None:
    """E20: nothing is lost where the answer ends with the beginning of a stop string."""
    shown, final = stream(byte_level, spell(byte_level, "so STO"), stop=("STOP",))
    assert shown[-1] == "so "
    assert final == "so STO"


def test_a_stop_inside_a_token(byte_level: Tokenizer) -> None:
    """E20: the token that holds the stop has text before and behind it."""
    (the,) = byte_level.encode(" the", add_special_tokens=False)
    assert stream(byte_level, [the], stop=("h",)) == ([" t"], " t")
    assert stream(byte_level, [the], stop=("h",), include_stop_str_in_output=True) == ([" th"], " th")


def test_after_a_stop_nothing_changes(byte_level: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(byte_level, (), stop=("b",))
    for token_id in spell(byte_level, "abc"):
        detokenizer.append(token_id)
    assert (detokenizer.text, detokenizer.stop_string) == ("a", "b")
    assert detokenizer.finish() == "a"


@pytest.mark.parametrize(
    ("min_tokens", "cut"), [(0, ""), (1, "ab"), (2, "ab"), (3, "ab"), (4, "abxab"), (6, "abxab")]
)
def test_stops_within_min_tokens_do_not_count(byte_level: Tokenizer, min_tokens: int, cut: str) -> None:
    """vLLM's meaning: a stop that is complete within the first min_tokens tokens is text like any other."""
    text = "abxabxx"
    stops = ("a",) if min_tokens == 0 else ("x",)
    _, final = stream(byte_level, spell(byte_level, text), stop=stops, min_tokens=min_tokens - 1)
    if min_tokens == 0:
        assert final == ""
    else:
        assert final == cut


def test_a_stop_in_bytes_is_found_where_the_answer_ends(metaspace: Tokenizer) -> None:
    ids = metaspace.encode("hello 😀", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(metaspace, (), stop=("😀",))
    for token_id in ids:
        detokenizer.append(token_id)
    assert detokenizer.finish() == "hello "
    assert detokenizer.stop_string == "😀"


# ---------------------------------------------------------------- the real vocabulary


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(smollm2_folder)


@pytest.mark.real_model
@FEW
@given(data=st.data(), skip=st.booleans())
def test_smollm2_any_ids_streamed_are_any_ids_decoded(
    smollm2: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, smollm2.vocab_size - 1), max_size=60))
    _, final = stream(smollm2, ids, skip_special_tokens=skip)
    assert final == smollm2.decode(ids, skip_special_tokens=skip)


@pytest.mark.real_model
@FEW
@given(
    text=st.text(
        st.characters(
            max_codepoint=0x1FFFF, exclude_categories=("Cs",), exclude_characters="\x04\x06\x13\x14\x16\x1d"
        ),
        max_size=60,
    )
)
def test_smollm2_any_text_streams_whole(smollm2: Tokenizer, text: str) -> None:
    """Of what it can write: the vocabulary lacks six control characters and the lead bytes of planes 4 to 15."""
    ids = smollm2.encode(text)
    shown, final = stream(smollm2, ids, skip_special_tokens=False)
    assert final == text
    assert all(text.startswith(part) for part in shown)
    pieces = smollm2.tokenize_with_pieces(text)
    assert "".join(piece for _, piece in pieces) == text
    assert [token_id for token_id, _ in pieces] == ids


def test_support_folders_are_the_kinds_they_claim(tmp_path: Path) -> None:
    """Guards the tests above: each vocabulary takes the path it stands for."""
    byte_level = Tokenizer.from_folder(byte_level_folder(tmp_path / "a"))
    metaspace = Tokenizer.from_folder(metaspace_folder(tmp_path / "b"))
    assert type(byte_level.text_stream()).__name__ == "ByteLevelStream"
    assert type(metaspace.text_stream()).__name__ == "WindowStream"
    assert any(metaspace.is_byte_token(i) for i in metaspace.encode("😀"))
