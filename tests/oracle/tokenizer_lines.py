"""Varied lines for comparing tokenizers: the same ones on every run. A line is bytes and may hold newlines."""

import os
import random
import subprocess
import sysconfig

CHINESE = ["模型在训练之前就知道需要多少内存。", "今天天气很好，我们去公园散步吧！", "人工智能（AI）正在改变世界：2024年，", "“你好”，他说。",
           "北京市海淀区中关村大街27号", "学而时习之，不亦说乎？有朋自远方来，不亦乐乎？", "繁體中文與簡體中文混排測試", "价格是￥1,234.56元／公斤"]
ARABIC = ["مرحبا بالعالم", "النموذج يتعلم من النصوص الطويلة", "اللُّغَةُ العَرَبِيَّةُ جَمِيلَةٌ", "١٢٣٤٥٦٧٨٩٠", "قال: «نعم، بالتأكيد؟»", "ﷺ ﻻ ﷲ",
          "كتاب‌خانه می‌شود"]
OTHER = ["Ünïcödé naïve façade", "Привет, мир! Съешь ещё этих булок", "Γειά σου Κόσμε", "שלום עולם", "नमस्ते दुनिया क्षेत्र", "こんにちは世界。カタカナ",
         "ｶﾞｷﾞｸﾞ ｆｕｌｌｗｉｄｔｈ １２３", "안녕하세요 세계", "สวัสดีชาวโลก", "İstanbul ISPARTA ığdır", "Å A\u030a é e\u0301 ﬁ ﬃ ² ½ Ⅷ ㍿", "ѐ ӂ \u1e9b\u0323",
         "Straße ẞ ſ K Ω", "'S 'T 'RE 'VE 'M 'LL 'D 'ſ it's IT'S we’ll", "don't I'll he'd they're we've I'm", "\u200fעברית\u200e mixed"]
EMOJI = ["👩‍👩‍👧‍👦", "👨🏽‍💻", "🏳️‍🌈", "🇩🇪🇯🇵", "❤️‍🔥", "1️⃣", "🧑🏿‍🤝‍🧑🏻", "👍🏾", "😀", "🫨", "🩷", "🫩", "🪿", "☕", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🐈‍⬛"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\t\t", "        ", "\u00a0", "\u3000", "\u2003", "\u2028",
          "\x0b", "\x0c", "\x85", "\u200b", "\u180e", "\ufeff"]


def english():
    """Verses from Debian's bible-kjv."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    return text.splitlines()


def source_code():
    """Lines of the Python library, in pieces of one to six."""
    folder = sysconfig.get_paths()["stdlib"]
    lines = []
    for name in ["argparse.py", "ast.py", "json/decoder.py", "random.py", "tarfile.py", "typing.py"]:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            lines += file.read().splitlines(keepends=True)
    return lines


def random_unicode(rng, count):
    """Any code points, unassigned and private ones too, but surrogates."""
    blocks = [(0x00, 0x7F), (0x80, 0x2FF), (0x300, 0x36F), (0x370, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0xD7FF), (0xE000, 0xFFFF),
              (0x10000, 0x1FFFF), (0x20000, 0x323AF), (0x0, 0x10FFFF)]
    text = ""
    while len(text) < count:
        low, high = rng.choice(blocks)
        code = rng.randint(low, high)
        if not 0xD800 <= code < 0xE000:
            text += chr(code)
    return text


def with_specials(rng, pieces, specials):
    """Pieces with special tokens in between: whole, doubled, cut short, spaced."""
    text = ""
    for piece in pieces:
        special = rng.choice(specials)
        text += piece + rng.choice(["", " ", "\n", "  "])
        text += rng.choice([special, special, special * 2, special[:-1], special[1:], special + " ", special.upper()])
    return text + rng.choice(["", " tail", rng.choice(pieces)])


def make_lines(specials, seed=20240):
    """At least 10,000 lines; `specials` are the tokens of the tokenizer that stand literally in text."""
    rng = random.Random(seed)
    verses, code = english(), source_code()
    prose = CHINESE + ARABIC + OTHER + EMOJI
    lines = [rng.choice(verses) for _ in range(1800)]
    for _ in range(1500):
        start = rng.randrange(len(code) - 6)
        lines.append("".join(code[start:start + rng.randint(1, 6)]))
    for kind in (CHINESE, ARABIC, OTHER, EMOJI):
        for _ in range(700):
            lines.append(rng.choice(["", " ", "\n"]).join(rng.choice(kind) for _ in range(rng.randint(1, 8))))
    for _ in range(900):
        lines.append("".join(rng.choice(SPACES) * rng.randint(1, 6) + rng.choice(["", "x", "Word", "12", ".", "é", "字"])
                             for _ in range(rng.randint(1, 10))))
    for _ in range(600):
        lines.append("".join(rng.choice(prose + verses[:50] + SPACES) for _ in range(rng.randint(2, 9))))
    for _ in range(400):
        lines.append("".join(rng.choice("0123456789.,-+eE xX_'\"/\\<>|[](){}") for _ in range(rng.randint(1, 60))))
    lines += [random_unicode(rng, rng.randint(1, 50)) for _ in range(1300)]
    for _ in range(1000):
        pieces = [rng.choice(prose + verses[:50] + SPACES + ["a", "Zz9"]) for _ in range(rng.randint(1, 4))]
        lines.append(with_specials(rng, pieces, specials) if specials else "".join(pieces))
    lines += ["a" * 5000, "ab" * 3000, " " * 4000, "\n" * 3000, "字" * 2000, "🤗" * 1500, "9" * 3000, "", " ", "\n", "'", "''", "\0", "a\0b"]
    lines = [line.encode("utf-8") for line in lines]
    lines += [rng.randbytes(rng.randint(1, 60)) for _ in range(500)]
    for _ in range(300):  # good UTF-8 with a few bytes broken
        line = bytearray(rng.choice(prose).encode("utf-8") + rng.choice(verses).encode("utf-8"))
        for _ in range(3):
            line[rng.randrange(len(line))] = rng.randrange(256)
        lines.append(bytes(line))
    assert len(lines) >= 10000, len(lines)
    return lines
