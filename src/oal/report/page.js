"use strict";
// Values under the pointer: each chart carries its numbers and the place of its axes in data-chart.
for (const svg of document.querySelectorAll("svg.lines")) {
  const chart = JSON.parse(svg.dataset.chart);
  const cursor = svg.querySelector(".cursor");
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  svg.after(tip);

  const [x0, x1, left, right] = chart.x;
  const nearest = (xs, x) =>
    xs.reduce((best, each, place) => (Math.abs(each - x) < Math.abs(xs[best] - x) ? place : best), 0);
  const number = (value) =>
    value.toLocaleString("en", Math.abs(value) >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
  const row = (text, style) => {
    const line = document.createElement("div");
    line.className = style;
    line.textContent = text;
    tip.append(line);
  };

  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const pointer = x0 + (((event.clientX - box.left) * scale - left) / (right - left)) * (x1 - x0);
    const all = chart.series.flatMap((series) => series.x);
    const x = all[nearest(all, pointer)];
    const place = left + ((x - x0) / (x1 - x0)) * (right - left);
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    cursor.style.visibility = "visible";
    tip.replaceChildren();
    row(`${chart.label}: ${number(x)}`, "head");
    for (const series of chart.series) {
      const at = nearest(series.x, x);
      // A line that ended before this place, or has not begun, has nothing to say.
      if (Math.abs(series.x[at] - x) > (x1 - x0) / 40 || series.y[at] === null) continue;
      const limits = series.low[at] === null ? "" : ` [${number(series.low[at])}, ${number(series.high[at])}]`;
      const note = series.notes[at] ? ` (${series.notes[at]})` : "";
      row(`${series.label}: ${number(series.y[at])}${limits}${note}`, series.style);
    }
    for (const rule of chart.rules) row(`${rule.label}: ${number(rule.y)}`, rule.style);
    tip.hidden = false;
    const frame = svg.parentElement.getBoundingClientRect();
    const middle = place / scale;
    const start = middle > box.width / 2 ? middle - tip.offsetWidth - 10 : middle + 10;
    tip.style.left = `${box.left - frame.left + Math.max(0, Math.min(start, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${box.top - frame.top + 12}px`;
  };
  const hide = () => {
    tip.hidden = true;
    cursor.style.visibility = "hidden";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}

// What is folded away on the screen is wanted on paper.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
