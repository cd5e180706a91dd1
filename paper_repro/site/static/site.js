// Two things: filters of lists, and the values of the marks of a figure.
"use strict";

function filterEntries() {
  const form = document.querySelector("form.filters");
  if (!form) return;
  const entries = [...document.querySelectorAll("[data-entry]")];
  const buttons = [...form.querySelectorAll("button[data-filter]")];
  const search = form.querySelector("[data-search]");
  const count = form.querySelector("[data-count]");

  function apply() {
    const wanted = {};
    for (const button of buttons.filter((one) => one.getAttribute("aria-pressed") === "true"))
      (wanted[button.dataset.filter] ||= []).push(button.dataset.value);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const entry of entries) {
      const fits = Object.entries(wanted).every(([name, values]) => {
        const own = (entry.dataset[name] || "").split("|");
        return values.some((value) => own.includes(value));
      });
      const text = entry.dataset.text || "";
      entry.hidden = !(fits && words.every((word) => text.includes(word)));
      shown += entry.hidden ? 0 : 1;
    }
    for (const section of new Set(entries.map((entry) => entry.closest("main > section")).filter(Boolean)))
      section.hidden = !section.querySelector("[data-entry]:not([hidden])") && !section.matches("[data-entry]:not([hidden])");
    count.textContent = `${shown} of ${entries.length} ${count.dataset.count}`;
    const state = new URLSearchParams();
    for (const [name, values] of Object.entries(wanted)) for (const value of values) state.append(name, value);
    if (search.value) state.set("search", search.value);
    const kept = state.toString();
    history.replaceState(null, "", kept ? `#${kept}` : location.pathname);
  }

  const state = new URLSearchParams(location.hash.slice(1));
  for (const button of buttons) {
    button.setAttribute("aria-pressed", String(state.getAll(button.dataset.filter).includes(button.dataset.value)));
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      apply();
    });
  }
  search.value = state.get("search") || "";
  search.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
}

function numbersBehindMarks() {
  const nearEnough = 18; // pixels
  for (const data of document.querySelectorAll("script.marks")) {
    const figure = data.closest("figure");
    const svg = figure.querySelector("svg");
    const marks = JSON.parse(data.textContent);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.append(tip);
    const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    ring.setAttribute("class", "ring");
    ring.setAttribute("r", "5");
    const hide = () => {
      tip.hidden = true;
      ring.remove();
    };
    const show = (event) => {
      const matrix = svg.getScreenCTM();
      if (!matrix) return;
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
      let best = null;
      let least = Infinity;
      for (const mark of marks) {
        const away = Math.hypot(mark[0] - at.x, mark[1] - at.y);
        if (away < least && away < nearEnough / matrix.a) [best, least] = [mark, away];
      }
      if (!best) return hide();
      tip.textContent = `${best[2]}\n${best[3]}, ${best[4]}`.trim();
      tip.hidden = false;
      ring.setAttribute("cx", best[0]);
      ring.setAttribute("cy", best[1]);
      svg.append(ring);
      const box = figure.getBoundingClientRect();
      const spot = new DOMPoint(best[0], best[1]).matrixTransform(matrix);
      const right = spot.x - box.left + 14;
      tip.style.left = `${Math.max(0, right + tip.offsetWidth > box.width ? right - tip.offsetWidth - 28 : right)}px`;
      tip.style.top = `${spot.y - box.top + 10}px`;
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", hide);
  }
}

filterEntries();
numbersBehindMarks();
