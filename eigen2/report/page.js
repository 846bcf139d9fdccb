"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Charts have the colours of the page, or light ones in print.
  function config(onPaper) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name, paper) => (onPaper ? paper : style.getPropertyValue(name).trim());
    const ink = colour("--ink", "#1b1f24"), line = colour("--line", "#d9dee4");
    const axis = { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line };
    return {
      background: "transparent", font: "system-ui, sans-serif", view: { stroke: null }, axis,
      legend: { labelColor: ink, titleColor: ink, orient: "bottom" },
      range: { category: ["#2f7ed8", "#e07b39", "#2a9d5c", "#9b5de5", "#d1495b", "#00a6a6", "#8a8f98", "#c9a227", "#5c6bc0", "#7cb342", "#ec6fa8", "#6d4c41"] },
    };
  }

  function draw(onPaper = false) {
    for (const element of document.querySelectorAll("[data-chart]")) {
      const spec = { ...specs[element.dataset.chart], config: config(onPaper) };
      vegaEmbed(element, spec, { renderer: "svg", actions: false })
        .then(() => { element.dataset.drawn = "yes"; })
        .catch((error) => { console.error(element.dataset.chart, error); });
    }
  }
  draw();
  dark.addEventListener("change", () => draw());
  addEventListener("beforeprint", () => draw(true));
  addEventListener("afterprint", () => draw());

  const list = document.getElementById("trade-list");
  if (!list) return;
  const body = list.tBodies[0], rows = [...body.rows], shown = document.getElementById("shown");
  const heads = [...list.tHead.rows[0].cells];

  function key(row, column) {
    const cell = row.cells[column], text = cell.textContent, number = Number(text);
    return cell.classList.contains("word") || text === "" || Number.isNaN(number) ? text : number;
  }

  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const sign = falling ? -1 : 1;
      rows.sort((one, other) => {
        const a = key(one, column), b = key(other, column);
        return sign * (a < b ? -1 : a > b ? 1 : 0);
      });
      body.append(...rows);
    });
  });

  function filter() {
    const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    shown.textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} trades`;
  }
  document.getElementById("filter").addEventListener("input", filter);
  filter();
})();
