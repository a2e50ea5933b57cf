// Live updates, countdowns and copy buttons. Every page works without it.
"use strict";
{
  const loaded = Date.now();
  const live = document.querySelector("[data-live]");
  // The page's GET address, also after a POST.
  const here = live ? live.dataset.here : location.pathname + location.search;
  const goOn = () => location.replace(here);
  const { lang } = document.documentElement;
  const pad = (number) => String(number).padStart(2, "0");

  // The server sends the seconds left, so a wrong clock is fine.
  for (const timer of document.querySelectorAll("[data-left]")) {
    const total = Number(timer.dataset.left);
    const show = () => {
      const left = Math.max(0, Math.ceil(total - (Date.now() - loaded) / 1000));
      const hours = Math.floor(left / 3600);
      const minutes = Math.floor(left / 60) % 60;
      timer.textContent = (hours ? hours + ":" + pad(minutes) : minutes) + ":" + pad(left % 60);
      if (left === 0) {
        clearInterval(ticking);
        // Else a page without time left reloads forever.
        if (total > 0) goOn();
      }
    };
    const ticking = setInterval(show, 1000);
    show();
  }
  for (const time of document.querySelectorAll("time")) {
    const when = new Date(time.dateTime);
    const today = when.toDateString() === new Date().toDateString();
    const clock = { hour: "2-digit", minute: "2-digit" };
    const isFull = "full" in time.dataset;
    const day = today && !isFull ? {} : { day: "numeric", month: "short" };
    if (isFull) day.year = "numeric";
    time.textContent = when.toLocaleString(lang === "en" ? "en-GB" : lang, { ...day, ...clock });
  }

  if (live) {
    const words = live.textContent;
    let pause = 1e4;
    // Return true if the page is final, false to listen again.
    const listen = () =>
      new Promise((done) => {
        const source = new EventSource(live.dataset.live);
        const end = (isOver) => {
          source.close();
          document.removeEventListener("visibilitychange", hide);
          done(isOver);
        };
        const hide = () => end(false);
        document.addEventListener("visibilitychange", hide);
        source.onopen = () => {
          pause = 1e4;
          live.textContent = live.dataset.listening;
        };
        source.onmessage = (event) => {
          // A sent form leads on by itself: going on here would stop it.
          if (event.data === live.dataset.status || document.querySelector("[data-sent]")) return;
          end(true);
          live.textContent = live.dataset.moving;
          goOn();
        };
        source.addEventListener("end", () => end(true));
        source.onerror = () => {
          // Unless closed, the browser reconnects.
          if (source.readyState !== EventSource.CLOSED) return;
          live.textContent = words;
          pause = Math.min(2 * pause, 3e5);
          setTimeout(hide, pause);
        };
      });
    // A browser opens six connections to a site, so only three visible pages listen.
    (async () => {
      for (let n = 0, isOver = false; !isOver; ) {
        if (document.hidden) {
          await new Promise((go) => addEventListener("visibilitychange", go, { once: true }));
        } else if (!navigator.locks) {
          isOver = await listen();
        } else {
          await navigator.locks.request("live" + (n % 3), { ifAvailable: n < 3 }, async (lock) => {
            if (lock) isOver = await listen();
            n = lock ? 0 : n + 1;
          });
        }
      }
    })();
  }

  // Ignore a second press for 8 seconds: then the first has probably failed.
  addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.sent) return event.preventDefault();
    const buttons = [...form.elements].filter((element) => element.type === "submit");
    form.dataset.sent = "yes";
    for (const button of buttons) button.setAttribute("aria-disabled", "true");
    setTimeout(() => {
      delete form.dataset.sent;
      for (const button of buttons) button.removeAttribute("aria-disabled");
    }, 8000);
  });
  for (const button of document.querySelectorAll("[data-reveal]")) {
    const field = document.getElementById(button.dataset.reveal);
    const show = button.firstChild.data;
    const hide = (isHidden) => {
      field.type = isHidden ? "password" : "text";
      button.firstChild.data = isHidden ? show : button.dataset.hide;
    };
    button.hidden = false;
    button.onclick = () => hide(field.type === "text");
    // Browsers store values that were sent in a plain text field.
    field.form.addEventListener("submit", () => hide(true));
  }
  // A password field holds one line, so store pasted lines here and send them.
  for (const field of document.querySelectorAll("[data-lines]")) {
    const note = document.getElementById(field.dataset.lines);
    let pasted = null;
    note.textContent = "";
    field.addEventListener("paste", (event) => {
      const text = event.clipboardData.getData("text/plain");
      const lines = text.trim().split(/\r\n?|\n/);
      if (lines.length < 2) return;
      event.preventDefault();
      pasted = text;
      field.value = lines.join(" ");
      note.textContent = note.dataset.pasted.replace("{number}", lines.length);
    });
    field.addEventListener("input", () => {
      pasted = null;
      note.textContent = "";
    });
    field.form.addEventListener("formdata", (event) => {
      if (pasted !== null) event.formData.set(field.name, pasted);
    });
  }
  // Choose the browser's zone, unless one is chosen.
  for (const list of document.querySelectorAll("[data-zone]")) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (list.value || !zone) continue;
    if (![...list.options].some((option) => option.value === zone)) list.add(new Option(zone), 1);
    list.value = zone;
  }
  for (const button of document.querySelectorAll("[data-print]")) {
    button.hidden = false;
    button.onclick = () => print();
  }
  // The back button can show an outdated page.
  addEventListener("pageshow", (event) => event.persisted && goOn());

  if (navigator.clipboard) {
    for (const button of document.querySelectorAll("[data-copy]")) {
      const label = button.firstChild;
      const copy = label.data;
      button.hidden = false;
      button.onclick = async () => {
        await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).innerText);
        const status = document.getElementById("copied");
        label.data = status.textContent = button.dataset.copied;
        setTimeout(() => {
          label.data = copy;
          status.textContent = "";
        }, 2000);
      };
    }
  }
}
