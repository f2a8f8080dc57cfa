"use strict";
// Filters what is on the page already. Without this script everything is shown, and the bars stay hidden.
for (const bar of document.querySelectorAll(".filter")) {
  const section = document.getElementById(bar.dataset.of);
  const items = [...section.querySelectorAll("[data-item]")];
  const groups = [...section.querySelectorAll("[data-group]")];
  const controls = [...bar.querySelectorAll("[data-by]")];
  const texts = new Map();

  const textOf = (item) => {
    if (!texts.has(item)) {
      const question = item.closest("[data-group]")?.querySelector(".question")?.textContent ?? "";
      texts.set(item, `${question} ${item.textContent}`.toLowerCase());
    }
    return texts.get(item);
  };

  const fits = (item, control) => {
    const wanted = control.value;
    if (wanted === "") return true;
    switch (control.dataset.by) {
      case "text": return textOf(item).includes(wanted.toLowerCase());
      case "least": return Number(item.dataset.reward) >= Number(wanted);
      case "most": return Number(item.dataset.reward) <= Number(wanted);
      default: return item.dataset[control.dataset.by] === wanted;
    }
  };

  const apply = () => {
    for (const item of items) item.hidden = !controls.every((control) => fits(item, control));
    for (const group of groups) group.hidden = !group.querySelector("[data-item]:not([hidden])");
    const shown = items.filter((item) => !item.hidden).length;
    bar.querySelector("output").textContent = shown === items.length ? "" : `${shown} of ${items.length} shown`;
  };

  bar.addEventListener("input", apply);
  bar.hidden = false;
  apply();
}
