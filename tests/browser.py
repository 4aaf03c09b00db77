"""The page of a report in a headless browser: what a reader sees, reads, sorts and prints.

    python3 tests/browser.py target/release/causeway

Opens pages of the sample reports, of a new run and of a changed report: on a desk and on a phone, light and dark, printed,
and without scripts. Screenshots go to out/browser/.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from devtools import Browser, Page

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAMPLES, SPEED = ROOT / "docs/reports", ROOT / "docs/performance"
DESK, PHONE = (1280, 900), (390, 844)

# Every text that can be seen, by the least contrast that its size asks for (WCAG 2.2, 1.4.3) and what it has; shapes
# of plots ask for 3 (1.4.11). Colours are blended with what lies behind them.
CONTRAST = r"""
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const parse = (text) => {
    if (!known.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const found = new Map();
  const note = (what, least, colour, back) => {
    const has = ratio(over(colour, back), back);
    if (has < least) found.set(`${what}: ${has.toFixed(2)} of ${least}`, true);
  };
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("title, option, script, .skip")) continue;
    seen += 1;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const colour = parse(element.closest("svg") ? style.fill : style.color);
    note(`${element.tagName}.${element.className.baseVal ?? element.className} ${walker.currentNode.data.trim().slice(0, 30)}`,
      large ? 3 : 4.5, colour, behind(element));
  }
  for (const shape of document.querySelectorAll("svg circle, svg .full, svg .over, svg .roof, svg .limit, svg .one")) {
    if (!shape.checkVisibility()) continue;
    seen += 1;
    const style = getComputedStyle(shape);
    const drawn = style.fill === "none" || shape.tagName === "line" ? style.stroke : style.fill;
    const [r, g, b, a] = parse(drawn);
    note(`${shape.tagName}.${shape.className.baseVal}`, 3, [r, g, b, a * (style.fill === "none" ? 1 : style.fillOpacity)],
      behind(shape));
  }
  return { seen, low: [...found.keys()].slice(0, 20) };
})()
"""

# Elements that reach over the side of the window and are in nothing that scrolls.
OVERFLOW = r"""
(() => {
  const width = document.documentElement.clientWidth;
  const wide = document.documentElement.scrollWidth > width ? [`the page: ${document.documentElement.scrollWidth}`] : [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest(".scroll, nav, .skip, svg") || !element.checkVisibility()) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > width + 1 || box.left < -1)) wide.push(`${element.tagName}.${element.className} ${box.right}`);
  }
  return wide.slice(0, 10);
})()
"""

STRUCTURE = r"""
(() => {
  const all = (what, root = document) => [...root.querySelectorAll(what)];
  const wrong = [];
  const levels = all("h1, h2, h3, h4, h5, h6").map((heading) => Number(heading.tagName[1]));
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) wrong.push(`headings ${levels}`);
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) wrong.push(`h${levels[i - 1]}, then h${level}`); });
  for (const table of all("table.data")) {
    const heads = all("thead th[scope=col]", table).length;
    if (!heads || !table.caption) wrong.push("a table without heads or caption");
    for (const row of table.tBodies[0].rows) {
      if (row.cells.length !== heads || !row.cells[0].matches("th[scope=row]")) wrong.push(`a row of ${table.caption.textContent}`);
    }
  }
  if (all("main").length !== 1 || all("nav[aria-label]").length !== 1 || !document.documentElement.lang) wrong.push("landmarks");
  for (const link of all("nav a")) if (!document.querySelector(link.hash)) wrong.push(`a link to nothing: ${link.hash}`);
  return { wrong: wrong.slice(0, 10), tables: all("table.data").length, headings: levels.length };
})()
"""

# Numbers of many digits that nothing divides are hard to read; digests, names and paths are not numbers.
LONG_NUMBERS = r"""
[...document.querySelectorAll("td, dd, li, figcaption")].filter((element) => !element.closest("td")?.querySelector("code"))
  .map((element) => element.innerText).filter((text) => /(^|[\s(])\d{6,}($|[\s,.;)])/.test(text)).slice(0, 5)
"""


# Short words and numbers in more than one line: "2.6" and "7" below it are no number.
BROKEN = r"""
(() => {
  const broken = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    if (!text || text.length > 12 || /[\s-]/.test(text) || !walker.currentNode.parentElement.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (lines.size > 1) broken.push(text);
  }
  return broken.slice(0, 10);
})()
"""


class Checks:
    """Counts what was checked, and collects what failed."""

    def __init__(self):
        self.done, self.failed = 0, []

    def __call__(self, name, good, what=""):
        self.done += 1
        if not good:
            self.failed.append(f"{name}: {what}")
            print(f"FAILED  {name}: {what}")


def pages(causeway, folder):
    """Pages by name."""
    def command(*arguments):
        subprocess.run([causeway, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def page(name, *arguments):
        made[name] = folder / f"{name}.html"
        command("report", *arguments, "--out", made[name])

    made = {}
    h200, cpu = SAMPLES / "h200/run.json", SAMPLES / "cpu/run.json"
    page("h200", h200, SPEED / "h200-shapes.json", "--compare", SPEED / "h200-shapes.json")
    page("cpu", cpu, SPEED / "xeon-2-cores-cpu-large.json", SPEED / "h200-gemm-shapes.json")
    page("simulator", SAMPLES / "simulator/run.json")
    # A report that somebody changed: a case has failed, and the digest does not fit.
    changed = json.loads(cpu.read_text())
    changed["cases"] = changed["cases"][:12]
    changed["cases"][3]["passed"] = False
    changed["cases"][3]["error"] = "<b>a name that is no tag</b>, and " + "a_very_long_word_" * 20
    (folder / "changed.json").write_text(json.dumps(changed))
    page("changed", folder / "changed.json")
    command("bench", "--suite", "small", "--device", "cpu", "--seconds", "0", "--save", folder / "new.json")
    page("new", folder / "new.json")
    return made


def looks(browser, check, name, path, shots):
    """Every page in every light: nothing is too wide, too pale, without a name, or from elsewhere."""
    for (width, height), where in [(DESK, "desk"), (PHONE, "phone")]:
        for scheme in ["light", "dark"]:
            label = f"{name}-{where}-{scheme}"
            with Page(browser, path, width, height, scheme) as page:
                contrast = page.run(CONTRAST)
                check(f"{label}: contrast", not contrast["low"] and contrast["seen"] > 100, contrast)
                broken = page.run(BROKEN)
                check(f"{label}: words", not broken, broken)
                wide = page.run(OVERFLOW)
                check(f"{label}: width", not wide, wide)
                back = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
                check(f"{label}: scheme", (sum(back) > 384) == (scheme == "light"), back)
                structure = page.run(STRUCTURE)
                check(f"{label}: structure", not structure["wrong"] and structure["tables"], structure)
                numbers = page.run(LONG_NUMBERS)
                check(f"{label}: numbers", not numbers, numbers)
                complaints = page.complaints()
                check(f"{label}: quiet", not complaints, complaints)
                page.screenshot(shots / f"{label}.png", whole=where == "desk")


def verdicts(browser, check, made):
    """The page says at its top what is wrong with the report."""
    for name, path in made.items():
        with Page(browser, path) as page:
            badge = page.run("document.querySelector('.badge').innerText")
            check(f"{name}: verdict", badge.startswith("✗ NOT SOUND" if name == "changed" else "✓"), badge)


def names(browser, check, name, path):
    """What a screen reader is told: every control, table and picture has a name."""
    with Page(browser, path) as page:
        page.call("Accessibility.enable")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "textbox", "searchbox", "combobox", "link", "table", "img", "image", "region", "navigation"}
        seen = [node for node in nodes if node.get("role", {}).get("value") in roles and not node.get("ignored")]
        lacking = [node["role"]["value"] for node in seen if not node.get("name", {}).get("value")
                   and not (node["role"]["value"] == "table" and "facts" in json.dumps(node))]
        tables = sum(node["role"]["value"] == "table" for node in seen)
        check(f"{name}: names", len(seen) > 20 and tables and not lacking, lacking[:10])


def sorting(browser, check, path):
    """A click on a head sorts its column, a second one turns it round, and the keyboard does the same."""
    column = """(table, i) => [...table.tBodies[0].rows].map((row) => {
      const cell = row.cells[i];
      return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
    })"""
    with Page(browser, path) as page:
        tables = page.run("document.querySelectorAll('table.data').length")
        for table in range(tables):
            heads = page.run(f"document.querySelectorAll('table.data')[{table}].tHead.rows[0].cells.length")
            for head in range(heads):
                result = page.run(f"""(() => {{
                  const table = document.querySelectorAll("table.data")[{table}], column = {column};
                  const head = table.tHead.rows[0].cells[{head}], before = column(table, {head});
                  const states = [head.ariaSort], values = [];
                  for (const _ of [0, 1]) {{
                    head.querySelector("button").click();
                    states.push(head.ariaSort);
                    values.push(column(table, {head}));
                  }}
                  return {{ name: head.innerText, before, states, values }};
                }})()""")
                label = f"sorting column {result['name']!r} of table {table}"
                up, down = result["values"]
                check(f"{label}: said", result["states"] == ["none", "ascending", "descending"], result["states"])
                same = sorted(map(str, up)) == sorted(map(str, result["before"])) == sorted(map(str, down))
                check(f"{label}: rows", same and up == down[::-1], "rows were lost")
                if all(isinstance(value, (int, float)) for value in up):
                    check(f"{label}: order", up == sorted(up), up[:8])
        # The keyboard: to the first head, and Enter.
        page.run("document.querySelector('table.data thead button').focus()")
        page.press("Enter", 13, "\r")
        state = page.run("document.activeElement.closest('th').ariaSort")
        check("sorting: by keyboard", state == "ascending", state)
        outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
        check("sorting: focus is seen", outline != "none", outline)
        check("sorting: quiet", not page.complaints(), page.complaints())


def filters(browser, check, path):
    """Words and lists leave the rows that have them, say how many these are, and give all back."""
    with Page(browser, path) as page:
        shown = "[...document.querySelector('table[data-controls]').tBodies[0].rows].filter((row) => row.checkVisibility())"
        controls = "document.querySelector('.controls')"
        total = page.run(f"{shown}.length")
        word = page.run(f"{shown}[3].cells[0].innerText.trim().split(/\\s/)[0]")
        page.run(f"{controls}.querySelector('input').focus()")
        page.call("Input.insertText", text=word.upper())
        found = page.run(f"{shown}.map((row) => row.innerText.toLowerCase())")
        check("filter: words", 0 < len(found) < total and all(word.lower() in row for row in found), (word, len(found)))
        said = page.run(f"{controls}.querySelector('output').value")
        check("filter: says how many", said == f"{len(found)} of {total} rows", said)
        page.run(f"""{controls}.querySelector("input").value = "";
                     {controls}.querySelector("input").dispatchEvent(new Event("input"))""")
        check("filter: gives all back", page.run(f"{shown}.length") == total)
        lists = page.run(f"{controls}.querySelectorAll('select').length")
        for i in range(lists):
            select = f"{controls}.querySelectorAll('select')[{i}]"
            for value in page.run(f"[...{select}.options].slice(1).map((option) => option.value)"):
                page.run(f"{select}.value = {json.dumps(value)}; {select}.dispatchEvent(new Event('change'))")
                cells = page.run(f"{shown}.map((row) => row.cells[{select}.dataset.column].dataset.k)")
                check(f"filter: list {i}, {value}", cells and set(cells) == {value}, set(cells))
            page.run(f"{select}.value = ''; {select}.dispatchEvent(new Event('change'))")
        check("filter: lists give all back", lists > 1 and page.run(f"{shown}.length") == total)


def printed(browser, check, name, path, shots):
    """On paper: black on white whatever the screen, all of every table, and nothing to click."""
    # A4 on its side, between its margins, in the pixels of a style sheet.
    with Page(browser, path, 1047, 718, "dark", "print") as page:
        contrast = page.run(CONTRAST)
        check(f"{name} printed: contrast", not contrast["low"], contrast["low"])
        hidden = page.run("[...document.querySelectorAll('nav, .controls')].every((e) => !e.checkVisibility())")
        check(f"{name} printed: nothing to click", hidden)
        cut = page.run("[...document.querySelectorAll('.scroll')].filter((e) => getComputedStyle(e).overflowX !== 'visible' "
                       "|| e.scrollHeight > e.clientHeight + 2).length")
        check(f"{name} printed: tables are whole", cut == 0, cut)
        wide = page.run("[...document.querySelectorAll('table, figure, .panel')].map((e) => e.getBoundingClientRect().right)"
                        ".filter((right) => right > innerWidth + 1)")
        check(f"{name} printed: width", not wide, wide)
        broken = page.run(BROKEN)
        check(f"{name} printed: words", not broken, broken)
        page.screenshot(shots / f"{name}-print.png")
        pdf = page.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"]
        check(f"{name} printed: a document", len(pdf) > 10_000, len(pdf))


def without_script(browser, check, path):
    """Without scripts nothing is missing but the controls."""
    counts = "({ rows: document.querySelectorAll('tbody tr').length, text: document.body.innerText.length, " \
             "controls: [...document.querySelectorAll('.controls, th button')].filter((e) => e.checkVisibility()).length })"
    with Page(browser, path) as page:
        full = page.run(counts)
    with Page(browser, path, script=False) as page:
        bare = page.run(counts)
    check("without scripts: rows", bare["rows"] == full["rows"] > 100, (bare, full))
    check("without scripts: controls", bare["controls"] == 0 < full["controls"], (bare, full))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("causeway", help="the command")
    causeway = parser.parse_args().causeway
    shots = ROOT / "out/browser"
    shots.mkdir(parents=True, exist_ok=True)
    check = Checks()
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        made = pages(causeway, pathlib.Path(folder))
        for name, path in made.items():
            looks(browser, check, name, path, shots)
            names(browser, check, name, path)
            printed(browser, check, name, path, shots)
        verdicts(browser, check, made)
        sorting(browser, check, made["h200"])
        filters(browser, check, made["h200"])
        without_script(browser, check, made["h200"])
    print(f"{check.done} checks of {len(made)} pages, {len(check.failed)} failed; screenshots in {shots.relative_to(ROOT)}")
    return bool(check.failed)


if __name__ == "__main__":
    sys.exit(main())
