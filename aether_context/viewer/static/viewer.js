"use strict";
// Comforts only: every page reads without this file.
(() => {
  const main = document.getElementById("main");
  const live = document.getElementById("live");

  // The page again every few seconds, where an agent may be at work; not while somebody selects or types.
  const seconds = Number(main.dataset.follow || 0);
  let tag = null;
  async function again() {
    if (document.hidden || String(getSelection()) || /^(INPUT|SELECT)$/.test(document.activeElement.tagName)) return;
    try {
      const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status === 304) return;
      if (!answer.ok) throw new Error(String(answer.status));
      const first = tag === null;
      tag = answer.headers.get("etag");
      const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
      if (!page || (first && page.innerHTML === main.innerHTML)) return;
      const href = document.activeElement.getAttribute("href");
      const scrolls = [...main.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
      main.replaceChildren(...page.childNodes);
      [...main.querySelectorAll(".scroll")].forEach((box, at) => scrolls[at] && box.scrollTo(...scrolls[at]));
      if (href) [...main.querySelectorAll("a")].find((a) => a.getAttribute("href") === href)?.focus();
      live.textContent = "up to date";
    } catch {
      live.textContent = "the server does not answer";
    }
  }
  if (seconds) setInterval(again, seconds * 1000);

  // j and k: from line to line of a table, or from pack to pack.
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const way = { j: 1, k: -1 }[event.key];
    if (!way) return;
    const lines = [...main.querySelectorAll("table.lines a.go")];
    if (lines.length) {
      const at = lines.indexOf(document.activeElement);
      lines[Math.max(0, Math.min(lines.length - 1, at + way))].focus();
    } else {
      main.querySelector(`a[rel=${way > 0 ? "next" : "prev"}]`)?.click();
    }
  });

  // What a link within the page leads to is opened where it is folded away.
  function unfold() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView({ block: "center" });
  }
  addEventListener("hashchange", unfold);
  unfold();
})();
