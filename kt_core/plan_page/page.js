"use strict";
// Search, filters and arrow keys. Without this script the tree is read as it is.
(() => {
  const nodes = [...document.querySelectorAll("details.n")];
  const find = document.getElementById("find");
  const found = document.getElementById("found");
  const picks = [...document.querySelectorAll("button.pick")];
  const first = new Map(nodes.map((node) => [node, node.open]));

  // "0-2,7" stands for the numbers 0, 1, 2 and 7.
  const holds = (ranges, number) => ranges.split(",").some((range) => {
    const [from, to] = range.split("-").map(Number);
    return number >= from && number <= (to ?? from);
  });

  const parentOf = (node) => node.parentElement.closest("details.n");
  // A closed element's content keeps its layout, so that only the elements above it tell.
  const isShown = (node) => {
    if (node.classList.contains("off")) return false;
    for (let at = parentOf(node); at; at = parentOf(at)) if (!at.open) return false;
    return true;
  };
  const words = (node) => {
    const above = parentOf(node);
    const own = node.dataset.p.split(".").pop();
    return [...(above ? words(above) : []), { text: own, ranges: node.dataset.n }];
  };
  const paths = new Map(nodes.map((node) => [node, words(node)]));
  const texts = new Map(nodes.map((node) => [
    node,
    `${node.dataset.p} ${node.firstElementChild.textContent}`.toLowerCase(),
  ]));

  // A dotted path may name any member of a list: layers.37.mlp finds layers.3–60.
  const fits = (word, query, exact) => {
    if (word.ranges && /^\d+$/.test(query)) return holds(word.ranges, Number(query));
    const text = word.text.toLowerCase();
    return exact ? text === query : text.startsWith(query);
  };
  const pathFits = (node, query) => {
    const parts = query.split(".");
    const path = paths.get(node);
    const start = path.length - parts.length;
    return start >= 0 && parts.every((part, index) =>
      fits(path[start + index], part, index < parts.length - 1));
  };
  const textFits = (node, query) =>
    texts.get(node).includes(query) || (query.includes(".") && pathFits(node, query));

  function apply() {
    const query = find.value.trim().toLowerCase();
    const wanted = picks.filter((b) => b.getAttribute("aria-pressed") === "true")
      .map((b) => b.dataset.f);
    const groups = ["D", "K"].map((kind) => wanted.filter((tag) => tag.startsWith(kind)))
      .filter((tags) => tags.length);
    if (!query && !groups.length) {
      nodes.forEach((node) => { node.classList.remove("off"); node.open = first.get(node); });
      found.textContent = "";
      return;
    }
    const shown = new Set();
    let hits = 0;
    for (const node of nodes) {
      const tags = node.dataset.t.split(" ");
      if (!groups.every((group) => group.some((tag) => tags.includes(tag)))) continue;
      if (query && !textFits(node, query)) continue;
      hits += 1;
      for (let at = node; at && !shown.has(at); at = parentOf(at)) shown.add(at);
    }
    for (const node of nodes) {
      node.classList.toggle("off", !shown.has(node));
      node.open = shown.has(node) && [...node.children].some((child) => shown.has(child));
    }
    found.textContent = `${hits} found`;
  }

  let timer = 0;
  find.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(apply, 80); });
  for (const button of picks) {
    button.disabled = false;
    button.title = "show only these modules";
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!on));
      apply();
    });
  }
  const openAll = (open) => nodes.forEach((node) => { node.open = open; });
  document.getElementById("all").addEventListener("click", () => openAll(true));
  document.getElementById("none").addEventListener("click", () => openAll(false));

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && document.activeElement !== find) {
      event.preventDefault();
      find.focus();
      return;
    }
    if (event.key === "Escape" && document.activeElement === find) {
      find.value = "";
      apply();
      return;
    }
    const row = document.activeElement.closest?.("details.n > summary");
    if (!row) return;
    const node = row.parentElement;
    const move = (step) => {
      const rows = nodes.filter(isShown);
      rows[rows.indexOf(node) + step]?.firstElementChild.focus();
    };
    const keys = {
      ArrowDown: () => move(1),
      ArrowUp: () => move(-1),
      ArrowRight: () => { if (node.open) move(1); else node.open = true; },
      ArrowLeft: () => {
        if (node.open) node.open = false;
        else parentOf(node)?.firstElementChild.focus();
      },
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  document.querySelector(".tools").hidden = false;

  // plan.html#find=layers.37 is a link to what a search finds.
  const search = () => {
    if (!location.hash.startsWith("#find=")) return;
    find.value = decodeURIComponent(location.hash.slice(6));
    apply();
  };
  window.addEventListener("hashchange", search);
  search();
})();
