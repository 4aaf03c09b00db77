"""Checks the Markdown files: every relative link and anchor leads somewhere, and every generated table is what its source says.

    python3 tests/documentation.py           check
    python3 tests/documentation.py --write   write the tables anew

A table between one of these marks and `<!-- end -->` is generated:

    <!-- figures ENTRY -->      calls of a kernel in the saved runs of GPUs in docs/performance/, by the name of its entry point
    <!-- registers ENTRY -->    its registers, from crates/code-objects/snapshots/
    <!-- run NAME -->           all of one saved run
    <!-- spills all -->         what spills, by the tables in crates/code-objects/snapshots/
"""

import json
import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = ("h200-shapes", "h200-variants", "h200-gemm-shapes")
ARCHITECTURES = ("sm_80", "sm_90a", "sm_120", "gfx90a", "gfx942", "gfx1100", "gfx1201")
OPTIONS = ("initial_states", "final_states", "seq_idx", "cu_seqlens=", "residual", "dinitial_states", "dfinal_states")


def files(*suffixes):
    """The project's files with these suffixes: those that git knows or would add."""
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in names.stdout.splitlines()]
    return sorted(path for path in paths if path.suffix in suffixes and path.is_file())


# ---- links -----------------------------------------------------------------------------------------------------------


def prose(text):
    """The text without code, in which brackets are no links."""
    text = re.sub(r"^(```|~~~).*?^\1\s*?$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    """GitHub's anchors of a file's headings."""
    found, seen = set(), {}
    text = re.sub(r"^(```|~~~).*?^\1\s*?$", "", path.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def broken_links(path):
    text = prose(path.read_text())
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    targets += re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, flags=re.M)
    for target in targets:
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / urllib.parse.unquote(name)).resolve() if name else path
        if not file.exists():
            yield f"{target}: there is no such file"
        elif anchor and file.suffix == ".md" and urllib.parse.unquote(anchor) not in anchors(file):
            yield f"{target}: there is no such heading"


def broken_mentions(path):
    """Names of the documentation's files in comments of sources."""
    for number, line in enumerate(path.read_text().split("\n"), 1):
        for target in re.findall(r"\b(?:docs|kernels|suites)/[A-Za-z0-9_/-]+\.md(?:#[a-z0-9-]+)?", line):
            name, _, anchor = target.partition("#")
            file = ROOT / name
            if not file.exists() or (anchor and anchor not in anchors(file)):
                yield f"{number}: {target}: there is no such file or heading"


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def figures(entry):
    lines = []
    for name in RUNS:
        run = json.loads((ROOT / f"docs/performance/{name}.json").read_text())
        rows = [row for row in run["rows"] if any(launch["entry"] == entry for launch in row["launches"])]
        if not rows:
            continue
        device, build = run["device"].split("(")[-1].rstrip(")"), run["causeway"].split("(")[-1].rstrip(")")
        what = "µs (× cuBLASLt's speed)" if "gemm" in name else "µs (× floor)"
        lines += ["", f"`{name}.json`, {device}, build {build}; {what}:", ""]
        if "gemm" in name:
            lines += products(rows)
        elif name == "h200-variants":
            lines += variants(rows)
        else:
            lines += shapes(rows)
    return lines[1:] or ["No saved run has a call of this kernel."]


def cell(row, invert=False):
    ratio = 1 / row["ratio"] if invert else row["ratio"]
    return f"{row['time']['median'] * 1e6:.2f} ({ratio:.2f})"


def shapes(rows):
    columns = [(dtype, activation) for dtype in ("f32", "f16", "bf16") for activation in ("none", "silu")]
    found = {}
    for row in rows:
        found.setdefault(tuple(row["shape"]), {})[row["dtype"], row["activation"]] = cell(row)
    head = ["batch, dim, seqlen"] + [dtype + (" SiLU" if activation == "silu" else "") for dtype, activation in columns]
    return table(head, [[", ".join(map(str, shape))] + [cells.get(column, "") for column in columns] for shape, cells in found.items()])


def variants(rows):
    by_plain = lambda row: "" if row["by_plain"] is None else f"{row['by_plain']:.2f}"
    return table(["case", "µs (× floor)", "time / plain call"], [[row["case"], cell(row), by_plain(row)] for row in rows])


def whole_run(name):
    run = json.loads((ROOT / f"docs/performance/{name}.json").read_text())
    build = run["causeway"].split("(")[-1].rstrip(")")
    lines = [f"`{name}.json`, {run['threads']} cores of {run['host']['processor']}, {run['device']}, build {build}; ms (× floor):", ""]
    found = {}
    for row in run["rows"]:
        found.setdefault(row["case"], {})[row["call"]] = f"{row['time']['median'] * 1e3:.2f} ({row['ratio']:.2f})"
    calls = sorted({call for cells in found.values() for call in cells}, reverse=True)
    return lines + table(["case"] + calls, [[case] + [cells.get(call, "") for call in calls] for case, cells in found.items()])


def products(rows):
    found, calls = {}, []
    for row in rows:
        key = ("×".join(map(str, row["shape"])), row["dtype"])
        found.setdefault(key, {})[row["call"]] = cell(row, invert=True)
        if row["call"] not in calls:
            calls.append(row["call"])
    return table(["M×N×K", "dtype"] + calls, [[*key] + [cells.get(call, "") for call in calls] for key, cells in found.items()])


def registers(entry):
    """Least and most registers of a thread, by table: narrow kernels without and with options, and wide ones."""
    rows = []
    for architecture in ARCHITECTURES:
        text = (ROOT / f"crates/code-objects/snapshots/{architecture}.tsv").read_text().split("\n")[2:]
        plain, options, wide = [], [], []
        for line in text:
            words = line.split("\t")[0].split(" ")
            if words[0] != entry:
                continue
            width = next((int(word[6:]) for word in words if word.startswith("width=")), 0)
            has_options = any(word.startswith(option) for word in words for option in OPTIONS)
            (wide if width > 4 else options if has_options else plain).append(int(line.split("\t")[1]))
        span = lambda found: "" if not found else f"{min(found)}" if min(found) == max(found) else f"{min(found)} – {max(found)}"
        if plain or options or wide:
            rows.append([architecture, span(plain), span(options), span(wide)])
    head = ["registers of a thread", "plain", "with options", "width 5 to 8"]
    keep = [i for i in range(4) if i == 0 or any(row[i] for row in rows)]
    return table([head[i] for i in keep], [[row[i] for i in keep] for row in rows])


def spills(_):
    """Of each table, the variants that use private memory, by their widths, and those that spill scalar registers."""
    rows = []
    for path in sorted((ROOT / "crates/code-objects/snapshots").glob("*.tsv")):
        text = path.read_text().rstrip("\n").split("\n")[1:]
        columns = text[0].split("\t")
        variants = [dict(zip(columns, line.split("\t"))) for line in text[1:]]
        number = lambda variant, column: 0 if variant[column] == "-" else int(variant[column])
        reached = [variant for variant in variants if number(variant, "private_accesses") or number(variant, "vector_spills")]
        widths = sorted({int(width) for variant in reached for width in re.findall(r" width=(\d+)", variant["kernel"])})
        most = max((number(variant, "private") for variant in reached), default=0)
        idle = sum(number(variant, "private") > 0 for variant in variants if variant not in reached)
        scalar = sum(number(variant, "scalar_spills") > 0 for variant in variants)
        rows.append([path.stem, str(len(variants)), str(len(reached) or ""), ", ".join(map(str, widths)), str(most or ""), str(idle or ""), str(scalar or "")])
    head = ["table", "variants", "of them use private memory", "of widths", "bytes at most", "reserve it without use", "spill scalar registers"]
    return table(head, rows)


def renewed(text):
    def replace(match):
        lines = {"figures": figures, "registers": registers, "run": whole_run, "spills": spills}[match[1]](match[2])
        return f"<!-- {match[1]} {match[2]} -->\n" + "\n".join(lines) + "\n<!-- end -->"

    return re.sub(r"<!-- (figures|registers|run|spills) ([\w-]+) -->\n.*?<!-- end -->", replace, text, flags=re.S)


def main():
    write = "--write" in sys.argv[1:]
    failures = []
    pages = files(".md")
    for path in pages:
        text = path.read_text()
        new = renewed(text)
        if new != text and write:
            path.write_text(new)
        elif new != text:
            failures.append(f"{path.relative_to(ROOT)}: a table is not what its source says: python3 tests/documentation.py --write")
        failures += [f"{path.relative_to(ROOT)}: {link}" for link in broken_links(path)]
    for path in files(".rs", ".cuh", ".py", ".toml", ""):
        if path.read_bytes()[:512].isascii() or path.suffix:
            failures += [f"{path.relative_to(ROOT)}:{mention}" for mention in broken_mentions(path)]
    print("\n".join(failures) or f"{len(pages)} Markdown files: links lead somewhere, and tables are what their sources say")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
