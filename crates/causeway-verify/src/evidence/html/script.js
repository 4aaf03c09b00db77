"use strict";
// The page is complete without this: it adds sorting and filters to the tables.
for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = rows.map((row) => [value(row, column), row]);
      order.sort(([a], [b]) => (typeof a === "number" && typeof b === "number"
        ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
      if (down) order.reverse();
      body.append(...order.map(([, row]) => row));
    });
  });
  const controls = document.getElementById(table.dataset.controls);
  if (!controls) continue;
  controls.hidden = false;
  const text = controls.querySelector("input");
  const selects = [...controls.querySelectorAll("select")];
  const count = controls.querySelector("output");
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const apply = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      const fits = words.every((word) => texts[i].includes(word))
        && selects.every((select) => !select.value || row.cells[select.dataset.column].dataset.k === select.value);
      row.hidden = !fits;
      shown += fits;
    });
    count.value = `${shown} of ${rows.length} rows`;
  };
  text.addEventListener("input", apply);
  selects.forEach((select) => select.addEventListener("change", apply));
  apply();
}
