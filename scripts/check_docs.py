#!/usr/bin/env python3
"""What the documentation names exists: paths of this tree, `make` targets, yoke's commands.

Looks at README.md, CONTRIBUTING.md and docs/**/*.md: inline code, code blocks and links. A name with a placeholder
(<name>, NAME, NNNN, *, ...) is matched as a pattern or left out. Nor may a merge leave its markers there.

Usage: check_docs.py [--root ROOT] [--yoke BINARY] | --self-test
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDERS = ("src", "docs", "scripts", "tests", "bench", "examples", "cmake", ".ci")
PATH = re.compile(r"(?<![\w./-])(?:\./)?((?:%s)/[\w.*<>{},/-]*|[A-Z]\w+\.(?:md|txt|json)|Makefile)" %
                  "|".join(re.escape(f) for f in FOLDERS))
MAKE = re.compile(r"(?:^\s*|[`;&(]\s*)make ([a-z][a-z-]*)")
YOKE = re.compile(r"(?:^|[\s`;&(/])yoke ([a-z]+)(?: ([a-z]+))?")
CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.M)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
GENERATED = {"CMakeLists.txt"}  # names that the tree holds in many places
# Parents whose second word is a command of its own.
NESTED = {"tokenizer", "data", "launch"}


def code_of(text):
    """(line number, code) of every fenced line and inline code span."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced:
            yield number, line
        else:
            for span in re.findall(r"`([^`]+)`", line):
                yield number, span


def path_exists(root, name):
    name = name.rstrip(".,:;")
    if "<" in name or "{" in name or "NNNN" in name or "..." in name:
        return True
    if "*" in name:
        return any(root.glob(name))
    if name in GENERATED:
        return True
    return (root / name).exists()


def commands(yoke):
    """Predicate: does the binary know this command line?"""
    known = {}

    def exists(*words):
        if words not in known:
            known[words] = subprocess.run([str(yoke), *words, "--help"], capture_output=True).returncode == 0
        return known[words]

    return exists


def check(root, yoke=None):
    makefile = (root / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
    exists = commands(yoke) if yoke else None
    problems = []
    pages = [p for p in (root / "README.md", root / "CONTRIBUTING.md") if p.exists()]
    pages += sorted((root / "docs").rglob("*.md"))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        where = page.relative_to(root)
        for number, code in code_of(text):
            for name in PATH.findall(code):
                if not path_exists(root, name):
                    problems.append(f"{where}:{number}: no file {name}")
            for target in MAKE.findall(code):
                if target not in targets:
                    problems.append(f"{where}:{number}: the Makefile has no target '{target}'")
            for command, second in YOKE.findall(code) if exists else []:
                words = (command, second) if command in NESTED and second else (command,)
                if not exists(*words):
                    problems.append(f"{where}:{number}: yoke has no command '{' '.join(words)}'")
        for marker in CONFLICT.finditer(text):
            problems.append(f"{where}:{text.count(chr(10), 0, marker.start()) + 1}: a merge was not finished")
        for link in LINK.findall(text):
            if ":" not in link and not (page.parent / link).exists():
                problems.append(f"{where}: broken link {link}")
    return problems


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "src").mkdir()
        (root / "src/main.cc").write_text("")
        (root / "Makefile").write_text("test: all\n\ntrue\n")
        (root / "README.md").write_text(
            "See `src/main.cc`, `src/*.cc` and `src/<layer>/`; `make test`, then `yoke train x`.\n[here](docs)\n"
            "words like make believe or yoke is a program outside code count for nothing\n")
        yoke = root / "yoke"
        yoke.write_text('#!/bin/sh\n[ "$1" = train ]\n')
        yoke.chmod(0o755)
        good = check(root, yoke)
        (root / "docs/bad.md").write_text("`src/gone.cc`\n```sh\nmake gone && yoke vanish a\n```\n[x](y.md)\n" + "<" * 7 + " HEAD\n")
        bad = check(root, yoke)
    if good or len(bad) != 5:
        print("\n".join(["self-test failed:", *good, *bad]))
        return 1
    print("self-test: a missing file, target, command and link and an unfinished merge were found")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--yoke", type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    problems = check(arguments.root, arguments.yoke and arguments.yoke.resolve())
    print("\n".join(problems) or "everything that the documentation names exists")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
