// What pages gain with script: ages and countdowns by the server's clock, fresh
// figures without a reload, copy buttons, keys. Every page works without it.
"use strict";
(() => {
  const body = document.body;
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  // ---- time, by the server's clock
  let ahead = Number(body.dataset.now || Date.now()) - Date.now();
  const now = () => Date.now() + ahead;

  function span(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    const two = (a, an, b, bn) => (b ? `${a} ${an} ${b} ${bn}` : `${a} ${an}`);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return two(Math.floor(whole / 60), "min", whole < 600 ? whole % 60 : 0, "s");
    if (whole < 86400) return two(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
    return two(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
  }

  // A choice of this tab; what is drawn or typed stays in UTC.
  let isLocal = sessionStorage.getItem("times") === "local";
  const local = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" });
  const zone = () => (isLocal ? `Times are those of ${local.resolvedOptions().timeZone}; charts and filters are UTC.` : "Times are UTC.");
  function day(ms) {
    return isLocal ? local.format(ms).slice(0, 10) : new Date(ms).toISOString().slice(0, 10);
  }

  let askAt = Infinity;
  function tick() {
    for (const time of all("time[data-shows]")) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      if (!time.dataset.text) time.dataset.text = time.textContent;
      const seconds = (at - now()) / 1000;
      let more = seconds > 0.5 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
      if (time.dataset.shows === "countdown" && seconds <= 0.5) {
        more = "now";
        if (!time.dataset.over) {
          time.dataset.over = "yes";
          // Viewers do not all come back in the same instant.
          askAt = Math.min(askAt, Date.now() + 300 + Math.random() * 700);
        }
      }
      // A row has the time above its age, without the date of today.
      const said = isLocal ? local.format(at) : time.dataset.text;
      const text = time.closest("td, th") ? `${said.replace(" UTC", "").replace(`${day(now())} `, "")}\n${more}` : `${said} (${more})`;
      if (time.textContent !== text) time.textContent = text;
    }
    const stale = document.querySelector("[data-as-of]");
    if (stale && freshAt) {
      const age = (Date.now() - freshAt) / 1000;
      stale.textContent = age > 15 ? `${zone()} This page is ${span(age)} old.` : zone();
    }
  }

  // ---- fresh figures: the same page again, its regions replaced
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("pages", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const INTERVAL = 3000;
  let etag = null;
  let freshAt = Date.now();
  let wait = INTERVAL;
  let isOn = sessionStorage.getItem("refresh") !== "off";
  const hasRegions = () => document.querySelector("[data-live]") !== null;

  // Nothing moves under a hand: while something is pressed or typed, and a moment after each key.
  let isPressed = false;
  let handAt = 0;
  for (const kind of ["pointerdown", "pointerup", "pointercancel", "keydown"]) {
    document.addEventListener(kind, () => {
      handAt = Date.now();
      if (kind !== "keydown") isPressed = kind === "pointerdown";
    }, true);
  }
  const isTyping = (field) => field && field.matches("input, textarea") && field.value !== field.defaultValue;
  const isHandled = () => isPressed || Date.now() - handAt < 700 || isTyping(document.activeElement);

  function isBusy(region) {
    const active = document.activeElement;
    if (active && active !== body && region.contains(active) && active.matches("input, select, textarea, [contenteditable]")) return true;
    const chosen = document.getSelection();
    if (chosen && !chosen.isCollapsed && region.contains(chosen.anchorNode)) return true;
    return all("input, select, textarea", region).some((field) =>
      field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked
        : field.tagName === "SELECT" ? false : field.value !== field.defaultValue);
  }

  // The focus goes to the same element of the fresh region: the one with its id, else the
  // one that leads to the same address, else the one in its place.
  const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";
  function focusIn(region) {
    const active = document.activeElement;
    if (!region.contains(active)) return () => {};
    const isLike = (other) => other.tagName === active.tagName && other.id === active.id
      && other.getAttribute("href") === active.getAttribute("href");
    const before = all(FOCUSABLE, region);
    const [at, nth] = [before.indexOf(active), before.filter(isLike).indexOf(active)];
    return (fresh) => {
      const after = all(FOCUSABLE, fresh);
      const alike = after.filter(isLike);
      (alike[nth] || alike[0] || after[Math.min(at, after.length - 1)])?.focus({ preventScroll: true });
    };
  }

  // Returns whether every region is fresh now.
  function adopt(page) {
    if (isHandled()) return false;
    let isWhole = true;
    for (const region of all("[data-live]")) {
      const next = page.getElementById(region.id);
      if (next && isBusy(region)) isWhole = false;
      if (!next || isBusy(region)) continue;
      for (const open of all("details[open][id]", region)) {
        const same = next.querySelector(`#${CSS.escape(open.id)}`);
        if (same) same.open = true;
      }
      const restore = focusIn(region);
      const adopted = document.adoptNode(next);
      region.replaceWith(adopted);
      restore(adopted);
    }
    tick();
    return isWhole;
  }

  // Where this page can be asked for: an action may have answered with it, at an address of its own.
  const ownAddress = body.dataset.page ? new URL(body.dataset.page, location.href).href : location.href;
  const openAgain = () => (body.dataset.page ? location.replace(ownAddress) : location.reload());

  async function refresh() {
    const began = Date.now();
    try {
      const answer = await fetch(ownAddress, { headers: etag ? { "If-None-Match": etag } : {}, credentials: "same-origin" });
      const at = Number(answer.headers.get("x-server-time"));
      if (at) ahead = at - Date.now();
      if (answer.status === 200) {
        const isWhole = adopt(new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html"));
        // What was held back is asked for again.
        etag = isWhole ? answer.headers.get("etag") : null;
      } else if (answer.status === 401) {
        openAgain();
        return;
      }
      if (answer.ok || answer.status === 304) freshAt = Date.now();
      wait = Math.max(INTERVAL, (Date.now() - began) * 5);
    } catch {
      wait = Math.min(wait * 2, 60000);
    }
  }

  let nextAt = Date.now() + INTERVAL;
  let isAsking = false;
  async function beat() {
    tick();
    const isDue = Date.now() >= Math.min(nextAt, askAt);
    if (isOn && isDue && !isAsking && !isHandled() && !document.hidden && hasRegions()) {
      isAsking = true;
      askAt = Infinity;
      await refresh();
      isAsking = false;
      nextAt = Date.now() + wait;
    }
  }
  setInterval(beat, 500);
  tick();

  // What the footer switches, remembered in this tab.
  const areKeysOn = () => sessionStorage.getItem("keys") !== "off";
  function footerButton(label, change) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label();
    button.addEventListener("click", () => {
      change();
      button.textContent = label();
    });
    return button;
  }
  function showChoices() {
    const note = document.querySelector("[data-refresh-note]");
    const choices = [];
    if (document.querySelector("time[data-shows]")) {
      choices.push(footerButton(() => (isLocal ? "Show UTC" : "Show local times"), () => {
        isLocal = !isLocal;
        sessionStorage.setItem("times", isLocal ? "local" : "utc");
        tick();
      }));
    }
    if (hasRegions()) {
      choices.push(footerButton(() => (isOn ? "Stop refreshing" : "Refresh by itself"), () => {
        isOn = !isOn;
        sessionStorage.setItem("refresh", isOn ? "on" : "off");
      }));
    }
    choices.push(footerButton(() => (areKeysOn() ? "Switch keys off" : "Switch keys on"), () => {
      sessionStorage.setItem("keys", areKeysOn() ? "off" : "on");
    }));
    note?.replaceChildren(...choices);
  }
  showChoices();

  // ---- a one-time code in the fragment is posted once, and leaves the address
  const enter = document.querySelector("form[data-enter]");
  if (enter && location.hash.length > 1) {
    enter.elements.code.value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
    enter.submit();
  }

  // ---- copy, also without the clipboard of a secure context
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const from = document.getElementById(button.dataset.copy);
    const done = await copy(from ? from.textContent : "");
    const label = button.textContent;
    button.textContent = done ? "Copied" : "Copy it by hand";
    setTimeout(() => { button.textContent = label; }, 1500);
  });

  // ---- boxes that choose all rows
  document.addEventListener("change", (event) => {
    const box = event.target.closest("input[data-all]");
    if (!box) return;
    for (const other of all(`input[type=checkbox][name="${CSS.escape(box.dataset.all)}"]`)) other.checked = box.checked;
  });

  // ---- files that a form sends as text: forms have no files, so that they work alike without script
  for (const part of all("[data-needs-script]")) part.hidden = false;
  document.addEventListener("change", (event) => {
    const chosen = event.target.closest("input[type=file][data-fills]");
    if (!chosen?.files.length) return;
    const reader = new FileReader();
    reader.onload = () => { document.getElementById(chosen.dataset.fills).value = reader.result; };
    reader.readAsDataURL(chosen.files[0]);
  });

  // ---- keys, outside fields; `?` shows them, and they can be switched off
  const PAGES = { o: "", e: "endpoints", d: "deliveries", x: "dead-letters", j: "jobs", l: "live" };
  if (!body.classList.contains("portal")) PAGES.t = "tenants";
  let afterG = 0;
  function move(step) {
    const links = all("main tbody a[href]");
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !areKeysOn()) return;
    if (event.target.closest("input, select, textarea, [contenteditable]")) return;
    const key = event.key;
    if (Date.now() - afterG < 1000 && key in PAGES) {
      afterG = 0;
      const isHome = body.classList.contains("portal") && key === "o";
      location.href = body.dataset.root + (isHome ? "../portal" : PAGES[key]);
    } else if (key === "g") {
      afterG = Date.now();
    } else if (key === "/") {
      event.preventDefault();
      // On a narrow screen the search is in the menu.
      const menu = document.querySelector("details.menu");
      if (menu && menu.checkVisibility()) menu.open = true;
      document.getElementById("search")?.focus();
    } else if (key === "j") {
      move(1);
    } else if (key === "k") {
      move(-1);
    } else if (key === "r") {
      etag = null;
      handAt = 0;
      refresh();
    } else if (key === "?") {
      help();
    }
  });
  function help() {
    let dialog = document.getElementById("keys");
    if (!dialog) {
      dialog = document.createElement("dialog");
      dialog.id = "keys";
      const title = document.createElement("h2");
      title.textContent = "Keys";
      const list = document.createElement("dl");
      list.className = "facts";
      const rows = [["/", "find an id"], [`g then ${Object.keys(PAGES).join(", ")}`, "go to a page"], ["j, k", "next and previous row"], ["r", "refresh now"], ["?", "this list"]];
      for (const [keys, what] of rows) {
        const term = document.createElement("dt");
        term.textContent = keys;
        const detail = document.createElement("dd");
        detail.textContent = what;
        list.append(term, detail);
      }
      const off = document.createElement("button");
      off.textContent = "Switch keys off in this tab";
      off.addEventListener("click", () => { sessionStorage.setItem("keys", "off"); showChoices(); dialog.close(); });
      const close = document.createElement("button");
      close.textContent = "Close";
      close.addEventListener("click", () => dialog.close());
      dialog.append(title, list, close, off);
      body.append(dialog);
    }
    dialog.showModal();
  }

  // ---- the live tail: one stream while the page is seen
  const tail = document.querySelector("[data-tail]");
  if (tail) {
    const rows = tail.querySelector("tbody");
    const note = document.querySelector("[data-tail-note]");
    const pause = document.querySelector("[data-tail-pause]");
    let source = null;
    let isPaused = false;
    let told = "";
    const say = (text) => { if (note) note.textContent = text; };
    function add(row) {
      const line = document.createElement("tr");
      for (const [name, text] of row.cells) {
        const cell = document.createElement("td");
        cell.dataset.label = name;
        if (row.links && row.links[name]) {
          const link = document.createElement("a");
          link.href = row.links[name];
          link.textContent = text;
          cell.append(link);
        } else if (row.marks && row.marks[name]) {
          const mark = document.createElement("span");
          mark.className = row.marks[name];
          mark.textContent = text;
          cell.append(mark);
        } else {
          cell.textContent = text;
        }
        line.append(cell);
      }
      line.className = "fresh";
      rows.prepend(line);
      while (rows.children.length > 200) rows.lastChild.remove();
    }
    function open() {
      if (source || isPaused || document.hidden) return;
      source = new EventSource(tail.dataset.tail);
      source.addEventListener("row", (event) => add(JSON.parse(event.data)));
      source.addEventListener("note", (event) => say(told = JSON.parse(event.data)));
      source.addEventListener("skipped", (event) => say(`${told} ${event.data} more were not shown.`));
      source.onerror = () => {
        if (source?.readyState === EventSource.CLOSED) refused();
        else say("The connection was lost; trying again.");
      };
    }
    // The browser does not ask again where the answer was no stream.
    async function refused() {
      close();
      const page = await fetch(location.href, { credentials: "same-origin" }).catch(() => null);
      if (page?.status === 401) {
        location.reload();
        return;
      }
      say("No stream was given: too many are open, or the gateway is stopping. Trying again in 15 s.");
      setTimeout(open, 15000);
    }
    function close() {
      source?.close();
      source = null;
    }
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    pause?.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.textContent = isPaused ? "Go on" : "Pause";
      if (isPaused) { close(); say("Paused."); } else open();
    });
    open();
  }

  // ---- a portal in a frame tells its height to the page around it
  const origins = (body.dataset.frameOrigins || "").split(" ").filter(Boolean);
  if (window.parent !== window && origins.length) {
    // Its height is that of the content then, not that of the frame.
    body.classList.add("framed");
    // Not every browser says who holds the frame; messages to others are dropped.
    const around = location.ancestorOrigins?.[0];
    const told = around ? origins.filter((origin) => origin === around) : origins;
    const tell = () => told.forEach((origin) => window.parent.postMessage({ posthasteHeight: body.offsetHeight }, origin));
    new ResizeObserver(tell).observe(body);
  }
})();
