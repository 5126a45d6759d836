#!/usr/bin/env python3
"""Layers: includes point downwards only, and vendor headers stay in backend files.

Usage: check_includes.py [--root ROOT] | --self-test
"""
import argparse
import pathlib
import re
import sys
import tempfile

# What a folder of src/ may include directly or through what it includes. `cli` may include everything.
LAYERS = {
    "base": set(),
    "device": {"base"},
    "ops": {"device"},
    "comm": {"device"},
    "model": {"ops", "comm"},
    "data": {"base"},
    "checkpoint": {"model"},
    "monitor": {"base"},
    "train": {"model", "data", "checkpoint", "monitor"},
    "plan": {"train"},
    "launch": {"train"},
    "doctor": {"device"},
    "cli": {"train", "plan", "launch", "doctor", "monitor"},
}
ANYWHERE = "cli"  # files directly in src/ (main.cc) count as this layer

VENDOR = re.compile(r"^(oneapi/)?(dnnl|cuda|cublas|cudnn|nccl|mpi|cooperative_groups|curand|nvml)[\w/]*\.(h|hpp|cuh)$")
BACKEND_FILE = re.compile(r"_(onednn|cpu|cuda|mpi|nccl)\.(cc|cu)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def closure(layer):
    found, stack = {layer}, [layer]
    while stack:
        for below in LAYERS[stack.pop()] - found:
            found.add(below)
            stack.append(below)
    return found


def check(root):
    """Every violation as 'file:line: message'."""
    source = root / "src"
    allowed = {layer: closure(layer) for layer in LAYERS}
    problems = []
    for path in sorted(p for p in source.rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"}):
        relative = path.relative_to(source)
        layer = relative.parts[0] if len(relative.parts) > 1 else ANYWHERE
        if layer not in LAYERS:
            problems.append(f"src/{relative}: '{layer}' is no layer of scripts/check_includes.py")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, name = match.groups()
            where = f"src/{relative}:{number}"
            if VENDOR.match(name):
                if not BACKEND_FILE.search(path.name):
                    problems.append(f"{where}: {name} belongs in a backend file (*_onednn.cc, *_cuda.cu, *_mpi.cc ...)")
                continue
            if quote == "<":
                continue
            target = name.split("/")[0]
            if not (source / name).is_file():
                problems.append(f'{where}: "{name}" is no file below src/ (include by the path from src/)')
            elif target not in allowed[layer]:
                problems.append(f"{where}: {layer} may include {sorted(allowed[layer])}, not {name}")
    return problems


def self_test():
    legal = {
        "base/error.h": "#include <string>\n",
        "device/context.h": '#include "base/error.h"\n',
        "ops/matmul/matmul_onednn.cc": '#include <dnnl.hpp>\n#include "device/context.h"\n',
        "data/batch.h": '#include "base/error.h"\n',
        "model/block.cc": '#include "base/error.h"\n#include "ops/matmul/matmul.h"\n',
        "ops/matmul/matmul.h": "",
        "train/trainer.cc": '#include "data/batch.h"\n#include "device/context.h"\n',
        "main.cc": '#include "train/trainer.h"\n',
        "train/trainer.h": "",
    }
    wrong = {
        "base/log.h": '#include "device/context.h"\n',
        "data/reader.cc": '#include "model/config.h"\n',
        "ops/matmul/matmul_cases.cc": "#include <dnnl.hpp>\n",
        "device/dnnl.h": '#include "oneapi/dnnl/dnnl.hpp"\n',
        "comm/mesh.h": "#include <mpi.h>\n",
        "model/config.h": '#include "config.h"\n',
        "stray/a.cc": "\n",
        "checkpoint/a.cc": ' #  include "train/trainer.h"\n',
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {**legal, **wrong}.items():
            path = root / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        problems = check(root)
    named = {p.split(":")[0][len("src/"):] for p in problems}
    if named != set(wrong) or len(problems) != len(wrong):
        print("\n".join(problems))
        print(f"self-test: missed {sorted(set(wrong) - named)}, wrongly named {sorted(named - set(wrong))}")
        return 1
    print(f"self-test: all {len(wrong)} planted violations found, {len(legal)} legal files passed")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    problems = check(arguments.root)
    print("\n".join(problems) or "includes point downwards only")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
