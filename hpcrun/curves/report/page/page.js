// The report's own script: it draws the data of the page, and hides runs that are unticked.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const curves = makeCurves(document.getElementById("drawn"), data);
  const boxes = [...document.querySelectorAll("input.run")];
  const hide = () => curves.hide(boxes.filter((box) => !box.checked).map((box) => Number(box.value)));
  const tickAll = (on) => {
    for (const box of boxes) box.checked = on;
    hide();
  };
  for (const box of boxes) box.addEventListener("change", hide);
  document.getElementById("all-runs")?.addEventListener("click", () => tickAll(true));
  document.getElementById("no-runs")?.addEventListener("click", () => tickAll(false));
})();
