"use strict";
// Everything can be read without this: it sorts, filters and switches the theme.
const root = document.documentElement;
const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const theme = document.getElementById("theme");
const name = () => { theme.textContent = dark() ? "Light theme" : "Dark theme"; };
theme.hidden = false;
name();
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });

const value = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
};
const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? -1
  : typeof b === "number" ? 1 : a.localeCompare(b);
const absent = (value) => value === "" || value === "–";

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
      const body = table.tBodies[0];
      const sorted = [...body.rows].map((row) => ({ row, value: value(row, column) }));
      sorted.sort((a, b) => absent(a.value) - absent(b.value) || turn * compare(a.value, b.value));
      body.append(...sorted.map(({ row }) => row));
    });
  });
}

for (const filters of document.querySelectorAll(".filters")) {
  const rows = [...document.getElementById(filters.dataset.of).rows];
  const find = filters.querySelector("input");
  find.dir = "auto";
  const picks = [...filters.querySelectorAll("select")];
  for (const pick of picks) {
    const values = [...new Set(rows.map((row) => row.cells[pick.dataset.column].textContent))].sort();
    if (values.length > 100 || values.some((text) => text.length > 60)) pick.parentElement.remove();
    else pick.append(...values.map((text) => Object.assign(new Option(text, text), { dir: "auto" })));
  }
  const show = () => {
    const wanted = find.value.toLowerCase();
    for (const row of rows) {
      const picked = picks.every((pick) => !pick.value || row.cells[pick.dataset.column].textContent === pick.value);
      row.hidden = !(picked && row.textContent.toLowerCase().includes(wanted));
    }
    filters.querySelector("[role=status]").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} shown`;
  };
  filters.addEventListener("input", show);
  // A link to the list with data-gold and data-answer, such as a cell of the confusion matrix, selects these labels.
  for (const link of document.querySelectorAll("a[data-gold]")) {
    link.addEventListener("click", () => {
      find.value = "";
      for (const pick of picks) pick.value = pick.dataset.column === "1" ? link.dataset.gold : link.dataset.answer;
      show();
    });
  }
  filters.hidden = false;
  show();
}

addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });
