#!/usr/bin/env python3
"""Which lines of the device code the simulator has executed, from what tests/simulator left behind.

    device_coverage.py FOLDER FLOOR

FOLDER holds the simulator's units (KEY.cpp, KEY.so) and profiles/. A line of kernels/*.cuh counts if the simulator's
compilers made code of it and a GPU's build contains it as well; lines that only NVIDIA's or only AMD's compilers see are
listed as a number. Templates that no plan instantiates have no code and do not count: that every variant is planned is
what crates/causeway-sim/tests/suite.rs checks. Exit status 1 if less than FLOOR percent were executed.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import sys

KERNELS = pathlib.Path(__file__).resolve().parent.parent / "kernels"
# What stands for a build on a GPU, and what for one in the simulator.
GPU_BUILDS = [
    {"CAUSEWAY_NVIDIA": 1, "__CUDACC__": 1, "__CUDA_ARCH__": 900, "CAUSEWAY_WAVE_SIZE": 32},
    {"CAUSEWAY_NVIDIA": 1, "__CUDACC__": 1, "__CUDA_ARCH__": 750, "CAUSEWAY_WAVE_SIZE": 32},
    {"CAUSEWAY_AMD": 1, "__AMDGCN__": 1, "CAUSEWAY_WAVE_SIZE": 32},
    {"CAUSEWAY_AMD": 1, "__AMDGCN__": 1, "CAUSEWAY_WAVE_SIZE": 64},
]
SIMULATOR = {"CAUSEWAY_HOST": 1, "CAUSEWAY_HOST_SIMULATION": 1, "CAUSEWAY_ASYNC_COPY": 1, "CAUSEWAY_WAVE_SIZE": 64}


def holds(condition, macros):
    """Whether the condition of an #if is true with these macros."""
    text = re.sub(r"defined\((\w+)\)", lambda m: str(m[1] in macros), condition)
    # Questions to the compiler, such as __has_builtin(..): taken as answered with no.
    text = re.sub(r"\b\w+\([^()]*\)", "0", text)
    text = text.replace("&&", " and ").replace("||", " or ").replace("!defined", "not defined")
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"\b(?!and\b|or\b|not\b|True\b|False\b)[A-Za-z_]\w*", lambda m: str(macros.get(m[0], 0)), text)
    return bool(eval(text, {"__builtins__": {}}))


def lines_of_build(path, macros):
    """Numbers of the lines that a build with these macros sees."""
    stack, seen = [], set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        directive = re.match(r"\s*#\s*(ifdef|ifndef|if|elif|else|endif)\b\s*(.*)", line)
        if directive is None:
            if all(branch[-1] for branch in stack):
                seen.add(number)
            continue
        kind, condition = directive[1], directive[2].split("//")[0]
        if kind == "if":
            stack.append([holds(condition, macros)])
        elif kind in ("ifdef", "ifndef"):
            stack.append([(condition.strip() in macros) == (kind == "ifdef")])
        elif kind == "elif":
            stack[-1].append(not any(stack[-1]) and holds(condition, macros))
        elif kind == "else":
            stack[-1].append(not any(stack[-1]))
        else:
            stack.pop()
    return seen


def origin_of_lines(unit):
    """For each line of a unit, the kernel's file and line that it comes from."""
    origin, file, line = {}, None, 0
    for number, text in enumerate(unit.read_text().splitlines(), 1):
        marker = re.match(r'#line (\d+) "(?:kernels/)?([^"]*)"', text)
        if marker:
            line, file = int(marker[1]), marker[2]
            continue
        origin[number] = (file, line)
        line += 1
    return origin


def counts(unit, profile):
    """Executions by kernel's file and line, of one unit."""
    command = ["llvm-cov-19", "export", "-format=lcov", f"-instr-profile={profile}", unit.with_suffix(".so")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    origin, found = origin_of_lines(unit), {}
    for line in text.splitlines():
        if line.startswith("DA:"):
            number, count = (int(part) for part in line[3:].split(",")[:2])
            # Lines that the compiler made up have no place in a kernel.
            if (place := origin.get(number)) is None:
                continue
            found[place] = max(found.get(place, 0), count)
    return found


def ranges(numbers):
    """12, 14-17, 20"""
    parts = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main():
    folder, floor = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    profile = folder / "all.profdata"
    raw = sorted((folder / "profiles").glob("*.profraw"))
    subprocess.run(["llvm-profdata-19", "merge", "-o", profile, *raw], check=True)
    executed = {}
    units = sorted(unit for unit in folder.glob("*.cpp"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for found in pool.map(lambda unit: counts(unit, profile), units):
            for place, count in found.items():
                executed[place] = max(executed.get(place, 0), count)
    total = covered = elsewhere = 0
    for path in sorted(KERNELS.glob("*.cuh")):
        on_gpu = set().union(*(lines_of_build(path, build) for build in GPU_BUILDS))
        elsewhere += len(on_gpu - lines_of_build(path, SIMULATOR))
        lines = {line: count for (file, line), count in executed.items() if file == path.name and line in on_gpu}
        missed = {line for line, count in lines.items() if count == 0}
        if not lines:
            continue
        total, covered = total + len(lines), covered + len(lines) - len(missed)
        note = f"   not executed: {ranges(missed)}" if missed else ""
        print(f"{path.name:45} {len(lines) - len(missed):5} of {len(lines):5} lines{note}")
    percent = 100 * covered / max(total, 1)
    print(f"{covered} of {total} lines of device code executed: {percent:.1f} %, at least {floor:g} % expected;")
    print(f"{elsewhere} more are for one vendor's compiler alone, which no simulator sees")
    return 0 if percent >= floor else 1


if __name__ == "__main__":
    sys.exit(main())
