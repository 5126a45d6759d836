#!/usr/bin/env python3
"""No function compiled for a newer instruction set can replace one that every processor runs.

CPU kernels are compiled once for each instruction set (cmake/isa.cmake). An inline function or template of a shared
header that such an object holds as a weak symbol has the same name in other objects; the linker keeps any one of them,
and a program that kept the AVX-512 one crashes on an older processor. So the objects of avx2 and avx512 may define
only functions whose name carries their own namespace.

Usage: check_isa.py BUILD | --self-test
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

GUARDED = ("avx2", "avx512")
FUNCTION_TYPES = "TWi"  # nm: global, weak and indirect functions; data that is merged does no harm


def foreign_symbols(path, isa):
    """Functions that the object file defines for the linker outside yoke::<isa>, demangled."""
    output = subprocess.run(["nm", "--defined-only", "--extern-only", "--demangle", str(path)], check=True,
                            capture_output=True, text=True).stdout
    found = []
    for line in output.splitlines():
        fields = line.split(maxsplit=2)
        if len(fields) == 3 and fields[1] in FUNCTION_TYPES and f"yoke::{isa}::" not in fields[2]:
            found.append(fields[2])
    return found


def check(build):
    """(number of object files seen, violations)."""
    seen, problems = 0, []
    for isa in GUARDED:
        for path in sorted(build.glob(f"CMakeFiles/*_{isa}.dir/**/*.o")):
            seen += 1
            problems += [f"{path.name} ({isa}): defines {symbol}" for symbol in foreign_symbols(path, isa)]
    return seen, problems


def self_test():
    header = "template <class T> __attribute__((noinline)) T shared(T x) { return x + 1; }\n"
    body = "namespace yoke::{isa} {{ {inner} int kernel(int x) {{ return {call}(x); }} }}\n"
    own = "template <class T> __attribute__((noinline)) T own(T x) { return x + 2; }"
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder)

        def compile_kernel(isa, name, text):
            objects = build / "CMakeFiles" / f"yoke_ops_{isa}.dir"
            objects.mkdir(parents=True, exist_ok=True)
            source = build / f"{name}.cc"
            source.write_text(text)
            subprocess.run(["c++", "-O2", "-std=c++20", "-c", str(source), "-o", str(objects / f"{name}.cc.o")], check=True)

        compile_kernel("avx2", "good", body.format(isa="avx2", inner=own, call="own"))
        compile_kernel("avx2", "leaky", header + body.format(isa="avx2", inner="", call="shared"))
        compile_kernel("avx512", "stray", "namespace yoke { int stray() { return 1; } }\n")
        compile_kernel("generic", "anything", header + body.format(isa="generic", inner="", call="shared"))
        seen, problems = check(build)
    text = "\n".join(problems)
    if seen != 3 or len(problems) != 2 or "leaky" not in text or "stray" not in text:
        print(f"self-test failed: {seen} objects\n{text}")
        return 1
    print("self-test: the shared template and the stray function were found, the kernel's own template passed")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if arguments.build is None:
        parser.error("name the build folder")
    seen, problems = check(arguments.build)
    print("\n".join(problems))
    if seen == 0:
        print(f"no objects of {' or '.join(GUARDED)} below {arguments.build}: nothing was checked")
        return 1
    print(f"{seen} object files, {len(problems)} foreign functions")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
