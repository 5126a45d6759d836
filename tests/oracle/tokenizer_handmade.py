"""Small tokenizer.json files, each with one option that published vocabularies leave at its default."""

import random

import tokenizer_lines
from tokenizer_files import BYTE_LEVEL, added, byte_alphabet, tokenizer_json

REGEX = {"Regex": r"\d+|[,;]\s*"}
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
LINES = ["", " ", "Hello, hello; 42  apples,,pears 007.", "a1b22c333", ",,;;", "12,34;;56", "İSTANBUL Σίσυφος ŒUVRE", "Å A\u030a ﬁ ½ ㍿ ｶﾞ",
         "  lead and trail \t\n", "Word[W]word [W] x[W]", "<a> <b>  <a>\t<b>\n", "xAGAIN again Again", "日本語 [W] テスト", "e\u0301te\u0301", "a▁b ▁ c",
         "naïve\u200dword\u200c[W]", "٣٤ ४५ Ⅷ ²", "\u00a0x\u3000y", "<0x41> A", "unknown: ☃☃ ☃x☃", "x" * 50, "the cat <a>the<b> cat"]


def byte_vocab():
    """Bytes and a few merges; a merge of two spaces as a pair, since a string can't hold it."""
    alphabet = byte_alphabet()
    vocab = {alphabet[b]: b for b in range(256)}
    merges = [["h", "e"], ["t", "he"], ["Ġ", "Ġ"], ["Ġ", "the"], ["l", "l"], ["he", "ll"], ["hell", "o"], ["a", "t"], ["1", "2"], ["Ã", "©"]]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    return vocab, merges


def char_vocab(characters):
    vocab = {"<unk>": 0}
    for character in characters:
        vocab.setdefault(character, len(vocab))
    merges = ["t h", "th e", "c a", "ca t", "▁ the", "▁ cat", "▁ ▁"]
    for merge in merges:
        vocab.setdefault(merge.replace(" ", ""), len(vocab))
    return vocab, merges


def lines():
    rng = random.Random(7)
    characters = "".join(LINES)
    made = LINES + ["".join(rng.choice(characters) for _ in range(rng.randint(1, 40))) for _ in range(150)]
    made += [rng.choice(LINES) + rng.choice(["<a>", "<b>", "[W]", "AGAIN", " "]) + rng.choice(LINES) for _ in range(100)]
    made += [tokenizer_lines.random_unicode(rng, 30) for _ in range(60)]
    return [line.encode("utf-8") for line in made]


def every_code_point():
    """All code points of the planes in use, 64 to a line, each between letters so that classes show."""
    points = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200), *range(0xF0000, 0xF0040), 0x10FFFF]
    return ["".join(f"a{chr(c)}a1" for c in points[i:i + 64]).encode("utf-8") for i in range(0, len(points), 64)]


def write(writer):
    vocab, merges = byte_vocab()
    words = [added("<a>", len(vocab)), added("<b>", len(vocab) + 1, lstrip=True, rstrip=True, special=False),
             added("[W]", len(vocab) + 2, single_word=True), added("Again", len(vocab) + 3, normalized=True, special=False)]
    sequence = lambda *members: {"type": "Sequence", "pretokenizers": list(members)}
    split = lambda pattern, behavior, invert=False: {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    plain = {**BYTE_LEVEL, "use_regex": False}
    replace = lambda pattern, content: {"type": "Replace", "pattern": pattern, "content": content}
    cases = {}

    for behavior in BEHAVIORS:
        for invert in (False, True):
            cases[f"split-{behavior}-{invert}"] = tokenizer_json(vocab, merges, sequence(split(REGEX, behavior, invert), plain), words)
        cases[f"split-string-{behavior}"] = tokenizer_json(vocab, merges, sequence(split({"String": ",."[:1]}, behavior), plain))
        cases[f"split-empty-matches-{behavior}"] = tokenizer_json(vocab, merges, sequence(split({"Regex": "x*"}, behavior), plain))
    cases["split-meta-string"] = tokenizer_json(vocab, merges, sequence(split({"String": "."}, "Isolated"), plain))
    cases["lookaround"] = tokenizer_json(vocab, merges, sequence(split({"Regex": r"(?<=\w),|^\s|\b\w\b"}, "Isolated"), BYTE_LEVEL))
    for individual in (False, True):
        cases[f"digits-{individual}"] = tokenizer_json(vocab, merges, sequence({"type": "Digits", "individual_digits": individual}, plain))
    cases["prefix-space"] = tokenizer_json(vocab, merges, {**BYTE_LEVEL, "add_prefix_space": True}, words)
    cases["split-prefix-space"] = tokenizer_json(
        vocab, merges, sequence(split(REGEX, "Isolated"), {**plain, "add_prefix_space": True}), words)
    cases["bytes-then-split"] = tokenizer_json(vocab, merges, sequence(BYTE_LEVEL, split({"String": "Ġ"}, "MergedWithPrevious")), words)
    cases["ignore-merges"] = tokenizer_json({**vocab, "apples": len(vocab)}, merges, BYTE_LEVEL, ignore_merges=True)
    cases["whitespace"] = tokenizer_json(vocab, merges, sequence({"type": "Whitespace"}, plain))
    cases["whitespace-split"] = tokenizer_json(vocab, merges, sequence({"type": "WhitespaceSplit"}, plain))
    cases["no-decoder"] = tokenizer_json(vocab, merges, BYTE_LEVEL, words, decoder=None)
    cases["merge-listed-twice"] = tokenizer_json(vocab, merges + [["h", "e"]], BYTE_LEVEL)
    cases["added-in-vocabulary"] = tokenizer_json(vocab, merges, BYTE_LEVEL, [added("hello", vocab["hello"], special=False)])

    for name, normalizer in {
            "nfc": {"type": "NFC"}, "nfd": {"type": "NFD"}, "nfkc": {"type": "NFKC"}, "nfkd": {"type": "NFKD"},
            "lowercase": {"type": "Lowercase"}, "strip": {"type": "Strip", "strip_left": True, "strip_right": False},
            "strip-right": {"type": "Strip", "strip_left": False, "strip_right": True}, "prepend": {"type": "Prepend", "prepend": "_"},
            "replace": replace({"Regex": r"\s+"}, " "), "replace-string": replace({"String": "the"}, "xx"),
            "empty-sequence": {"type": "Sequence", "normalizers": []},
            "sequence": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, replace({"String": " "}, "  ")]}}.items():
        cases[f"normalizer-{name}"] = tokenizer_json(vocab, merges, BYTE_LEVEL, words, normalizer)

    characters, char_merges = char_vocab("abcdefghijklmnopqrstuvwxyzABCWH ▁,.;0123456789[]<>")
    for fuse in (False, True):
        cases[f"unknown-fuse-{fuse}"] = tokenizer_json(characters, char_merges, None, (), None, {"type": "Fuse"}, unk_token="<unk>",
                                                       fuse_unk=fuse)
    cases["unknown-dropped"] = tokenizer_json(characters, char_merges, None, (), None, {"type": "Fuse"})
    spelled = dict(characters)
    for byte in range(256):
        spelled[f"<0x{byte:02X}>"] = len(spelled)
    special = [added("<a>", len(spelled)), added("<b>", len(spelled) + 1, normalized=True)]
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
            decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]}
            cases[f"metaspace-{scheme}-{cut}"] = tokenizer_json(spelled, char_merges, metaspace, special, None, decoder, unk_token="<unk>",
                                                                fuse_unk=True, byte_fallback=True)

    shared = lines()
    for name, content in cases.items():
        writer.hugging_face(f"handmade-{name}", writer.save_json(f"handmade/{name}", content), shared)
    for name in ("normalizer-nfc", "normalizer-nfkd", "normalizer-lowercase", "digits-False", "whitespace", "whitespace-split"):
        writer.hugging_face(f"code-points-{name}", f"{writer.folder}/handmade/{name}/tokenizer.json", every_code_point())
    classes = "|".join(rf"\p{{{name}}}+" for name in ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "M", "Nd", "N", "P", "S"))
    for name, pattern in {"classes": classes, "words": r"\w+|\d+|\s+", "negated": r"[^\p{L}\p{N}\s]+|\P{L}", "han": r"\p{Han}+"}.items():
        path = writer.save_json(f"handmade/classes-{name}",
                                tokenizer_json(vocab, merges, sequence(split({"Regex": pattern}, "Isolated"), plain)))
        writer.hugging_face(f"code-points-{name}", path, every_code_point())
