"""Tokenizers trained by `yoke tokenizer train` give the same ids in yoke and in Python's sentencepiece, and back.

Usage: tokenizer_trained.py YOKE
"""

import os
import subprocess
import sys
import tempfile

import sentencepiece

import tokenizer_lines


def yoke(*arguments, text=None):
    result = subprocess.run([sys.argv[1], "tokenizer", *arguments], input=text and text.encode("utf-8"), capture_output=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.decode("utf-8")


def main():
    verses = tokenizer_lines.english()
    # Lines that the command line can carry as they are: valid text, without the control tokens.
    lines = [line.decode("utf-8", errors="replace") for line in tokenizer_lines.make_lines([])]
    texts = ["".join(lines[i:i + 200]) for i in range(0, len(lines), 200)] + ["\n".join(verses[:3000]), " ", "a ", "  b"]
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        corpus = os.path.join(folder, "corpus.txt")
        with open(corpus, "w", encoding="utf-8") as file:
            file.write("\n".join(verses[:6000] + tokenizer_lines.CHINESE + tokenizer_lines.OTHER))
        for kind, options in (("bpe", []), ("unigram", []), ("bpe", ["--no-byte-fallback"])):
            output = os.path.join(folder, "-".join([kind, *options]))
            yoke("train", corpus, "--vocab-size", "1200", "--type", kind, "--output", output, *options)
            model = sentencepiece.SentencePieceProcessor(model_file=os.path.join(output, "tokenizer.model"))
            assert model.get_piece_size() == 1200
            for text in texts:
                path = os.path.join(folder, "text.txt")
                with open(path, "w", encoding="utf-8", newline="") as file:
                    file.write(text)
                ids = [int(id) for id in yoke("encode", output, "--file", path).split()]
                assert ids == model.encode(text), (kind, options, text[:200])
                if not options:
                    decoded = yoke("decode", output, text=" ".join(map(str, ids)))
                    assert decoded == model.decode(ids) + "\n", (kind, text[:200])
                compared += len(ids)
    print(f"{compared} ids of {len(texts)} texts and 3 tokenizers are equal")


if __name__ == "__main__":
    main()
