// ---------------------------------------------------------------- light and dark

function makeTheme() {
  const toggle = byId("theme");
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const say = () => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colors`);
  };
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    say();
  });
  dark.addEventListener("change", say);
  toggle.hidden = false;
  say();
}

// ---------------------------------------------------------------- totals

function drawTotals(state, column) {
  const bars = (title, names, of, paint) => {
    const bytes = names.map(() => 0);
    const count = names.map(() => 0);
    for (let tensor = 0; tensor < state.tensors; tensor++) {
      bytes[of[tensor]] += state.weight[tensor];
      count[of[tensor]]++;
    }
    const whole = bytes.reduce((sum, size) => sum + size, 0);
    const rows = names.map((name, index) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        element(
          "td",
          { class: "track" },
          ...(bytes[index]
            ? [element("span", { class: paint(index), style: `width:${(100 * bytes[index]) / whole}%` })]
            : []),
        ),
        element("td", { class: "number" }, readableBytes(bytes[index])),
        element("td", { class: "number note" }, counted(count[index], "tensor")),
      ),
    );
    return element("table", {}, element("caption", {}, title), element("tbody", {}, ...rows));
  };
  const side = state.placed.length ? ` (${state.words[column === state.placed ? 1 : 0]})` : "";
  byId("totals").replaceChildren(
    bars(`By device${side}`, state.devices, column, (index) => `d${index % 8}`),
    bars("By role", state.roles, state.role, () => "role"),
  );
  const sizes = state.devices.map(() => 0);
  for (let tensor = 0; tensor < state.tensors; tensor++) sizes[column[tensor]] += state.weight[tensor];
  byId("legend").replaceChildren(
    ...state.devices.map((name, index) =>
      element("li", {}, swatch(index), `${name} `, element("b", {}, readableBytes(sizes[index]))),
    ),
  );
}

// ---------------------------------------------------------------- start

function start() {
  makeTheme();
  const data = JSON.parse(byId("data").textContent);
  if (!data) return;
  const state = makeState(data);
  for (const section of document.querySelectorAll(".state, .tensors")) section.hidden = false;

  const light = (tensors) => {
    const together = tensors.length > 1 ? tensors : [];
    map.lightUp(together);
    rows.lightUp(together);
  };
  // Shows a tensor in the map and the list, with its details.
  const choose = (tensor, from) => {
    if (from === byId("map")) map.select(tensor);
    else map.reveal(tensor);
    rows.select(tensor);
    map.restore();
    if (!from) map.focus();
    byId("said").textContent = `${state.path(tensor)}, ${readableBytes(state.nbytes[tensor])}`;
  };
  const rows = { lightUp: () => {}, select: () => {} };
  const map = { lightUp: () => {} };
  Object.assign(map, makeMap(state, makeDetails(state, choose), choose, light));
  Object.assign(rows, makeRows(state, choose, light));

  const colorBy = (column, pressed) => {
    for (const each of byId("sides").children) each.setAttribute("aria-pressed", each === pressed);
    map.colorBy(column);
    drawTotals(state, column);
  };
  if (state.placed.length) {
    const sides = [state.device, state.placed].map((column, index) => {
      const made = button(state.words[index], () => colorBy(column, made));
      return made;
    });
    byId("sides").append(...sides);
    byId("sides").hidden = false;
    colorBy([state.device, state.placed][state.opened], sides[state.opened]);
  } else colorBy(state.device, null);

  let tensorOf = null;
  document.addEventListener("click", (event) => {
    const path = event.target.closest?.("[data-find]")?.dataset.find;
    if (path === undefined) return;
    tensorOf ||= new Map(Array.from({ length: state.tensors }, (_, tensor) => [state.path(tensor), tensor]));
    if (tensorOf.has(path)) choose(tensorOf.get(path));
    else {
      // A path that is not a tensor's: search for tensors below it, or below a path above it.
      const step = /(\.[^.[]*|\[[^[]*\])$/;
      let shorter = path;
      while (!rows.search(shorter) && step.test(shorter)) shorter = shorter.replace(step, "");
      byId("search").focus();
    }
  });
  document.documentElement.dataset.ready = "yes";
}

start();
