// ---------------------------------------------------------------- the list of tensors: only visible rows exist

function makeRows(state, choose, light) {
  const box = byId("rows");
  const inner = byId("rows-inside");
  const columns = columnsOf(state);
  let order = Uint32Array.from({ length: state.tensors }, (_, tensor) => tensor);
  let sorted = { column: null, down: false };
  let active = -1; // in the order
  let words = null; // of each tensor, to search in; made by the first search
  let selected = -1;
  let lit = new Set();

  const height = () => parseFloat(getComputedStyle(box).getPropertyValue("--row")) || 30;

  // ---- visible rows

  let waiting = 0;
  function drawSoon() {
    waiting ||= requestAnimationFrame(draw);
  }

  function draw() {
    waiting = 0;
    const row = height();
    const first = Math.max(0, Math.floor(box.scrollTop / row) - 6);
    const last = Math.min(order.length, Math.ceil((box.scrollTop + box.clientHeight) / row) + 6);
    inner.style.height = `${order.length * row}px`;
    const rows = [];
    for (let at = first; at < last; at++) rows.push(rowAt(at, at * row));
    inner.replaceChildren(...rows);
    if (active >= 0) box.setAttribute("aria-activedescendant", `row-${active}`);
    else box.removeAttribute("aria-activedescendant");
  }

  function rowAt(at, top) {
    const tensor = order[at];
    const kind = ["row", at === active && "active", tensor === selected && "selected", lit.has(tensor) && "lit"];
    return element(
      "div",
      {
        class: kind.filter(Boolean).join(" "),
        role: "row",
        id: `row-${at}`,
        style: `top:${top}px`,
        "aria-rowindex": at + 2,
        "aria-selected": tensor === selected,
        "data-at": at,
      },
      ...columns.map((column) =>
        element("div", { role: "gridcell", class: column.kind || "" }, ...column.cell(tensor)),
      ),
    );
  }

  function drawHeader() {
    byId("columns").replaceChildren(
      ...columns.map((column) => {
        const way = sorted.column === column ? (sorted.down ? "descending" : "ascending") : "none";
        return element(
          "div",
          { role: "columnheader", class: column.kind || "", "aria-sort": way },
          button(column.name, () => sortBy(column)),
        );
      }),
    );
    box.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    box.setAttribute("aria-rowcount", order.length + 1);
    box.setAttribute("aria-colcount", columns.length);
  }

  // ---- search and order

  function sortBy(column) {
    const again = sorted.column === column;
    sorted =
      again && sorted.down === !column.number
        ? { column: null, down: false }
        : { column, down: again ? !sorted.down : !!column.number };
    refresh();
    [...byId("columns").querySelectorAll("button")][columns.indexOf(column)].focus();
  }

  function wordsOf(tensor) {
    const words = [
      state.path(tensor),
      state.roles[state.role[tensor]],
      state.devices[state.device[tensor]],
      state.fate(tensor),
    ];
    if (state.dtype.length) words.push(state.dtypes[state.dtype[tensor]], state.shapes[state.shape[tensor]]);
    if (state.placed.length) words.push(state.devices[state.placed[tensor]]);
    return words.join(" ").toLowerCase();
  }

  function refresh() {
    const terms = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = ONLY[byId("only").value];
    if (terms.length && !words) words = Array.from({ length: state.tensors }, (_, tensor) => wordsOf(tensor));
    const found = [];
    for (let tensor = 0; tensor < state.tensors; tensor++) {
      if (wanted.of(state, tensor) && terms.every((term) => words[tensor].includes(term))) found.push(tensor);
    }
    if (sorted.column) {
      const keys = new Map(found.map((tensor) => [tensor, sorted.column.key(tensor)]));
      const way = sorted.down ? -1 : 1;
      found.sort((one, other) => {
        const [a, b] = [keys.get(one), keys.get(other)];
        return a === b ? one - other : way * (a < b ? -1 : 1);
      });
    }
    order = Uint32Array.from(found);
    active = order.indexOf(selected);
    box.scrollTop = 0;
    const all = counted(state.tensors, "tensor");
    byId("count").textContent = found.length === state.tensors ? all : `${found.length.toLocaleString("en")} of ${all}`;
    drawHeader();
    draw();
  }

  // ---- keyboard and pointer

  function step(to) {
    if (!order.length) return;
    active = Math.max(0, Math.min(order.length - 1, to));
    see(active);
    light(state.sharing(order[active]));
    draw();
  }

  function see(at) {
    const row = height();
    const header = byId("columns").offsetHeight;
    if (at * row < box.scrollTop) box.scrollTop = at * row;
    else if ((at + 1) * row > box.scrollTop + box.clientHeight - header)
      box.scrollTop = (at + 1) * row - box.clientHeight + header;
  }

  box.addEventListener("keydown", (event) => {
    if (event.target !== box) return; // a button of the header
    const page = Math.max(1, Math.floor(box.clientHeight / height()) - 2);
    const steps = {
      ArrowDown: active + 1,
      ArrowUp: active - 1,
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: order.length - 1,
    };
    if (event.key in steps) step(steps[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && active >= 0) choose(order[active], box);
    else return;
    event.preventDefault();
  });
  const tensorOf = (event) => order[event.target.closest?.(".row")?.dataset.at];
  inner.addEventListener("click", (event) => {
    const tensor = tensorOf(event);
    if (tensor !== undefined) choose(tensor, box);
  });
  let under = -1;
  inner.addEventListener("pointermove", (event) => {
    const tensor = tensorOf(event);
    if (!hasMoved || tensor === under || tensor === undefined) return;
    under = tensor;
    light(state.sharing(tensor));
  });
  inner.addEventListener("pointerleave", () => {
    under = -1;
    light(selected >= 0 ? state.sharing(selected) : []);
  });
  box.addEventListener("scroll", drawSoon, { passive: true });
  new ResizeObserver(drawSoon).observe(box);
  byId("search").addEventListener("input", refresh);
  byId("only").addEventListener("change", refresh);

  byId("only").append(
    ...Object.entries(ONLY)
      .filter(([, { there }]) => there(state))
      .map(([name, { words: said }]) => element("option", { value: name }, said)),
  );
  refresh();

  return {
    search: (text) => {
      byId("search").value = text;
      byId("only").value = "all";
      refresh();
      return order.length;
    },
    select: (tensor) => {
      selected = tensor;
      active = order.indexOf(tensor);
      if (active >= 0) see(active);
      draw();
    },
    lightUp: (tensors) => {
      lit = new Set(tensors);
      for (const row of inner.children) row.classList.toggle("lit", lit.has(order[row.dataset.at]));
    },
  };
}

const ONLY = {
  all: { words: "all", there: () => true, of: () => true },
  moves: { words: "moving tensors", there: (state) => !!state.moves, of: (state, tensor) => state.moves[tensor] === "1" },
  stays: {
    words: "tensors that stay",
    there: (state) => !!state.moves,
    of: (state, tensor) => state.moves[tensor] === "0",
  },
  elsewhere: {
    words: "misplaced tensors",
    there: (state) => state.words[1] === "should be",
    of: (state, tensor) => state.device[tensor] !== state.placed[tensor],
  },
  shared: {
    words: "tensors that share storage",
    there: (state) => state.shared.some(([, members]) => members.length > 1),
    of: (state, tensor) => state.sharing(tensor).length > 0,
  },
};

function columnsOf(state) {
  const named = (name, names, column, width, kind) => ({
    name,
    width,
    kind,
    key: (tensor) => names[column[tensor]],
    cell: (tensor) => [names[column[tensor]]],
  });
  const device = (name, column) => ({
    ...named(name, state.devices, column, "minmax(5.5rem, .55fr)"),
    kind: "device",
    cell: (tensor) => [swatch(column[tensor]), state.devices[column[tensor]]],
  });
  const columns = [
    {
      name: "path",
      width: "minmax(14rem, 3fr)",
      kind: "path",
      key: (tensor) => state.path(tensor),
      cell: (tensor) => pathCell(state, tensor),
    },
    named("role", state.roles, state.role, "minmax(5.5rem, .5fr)"),
  ];
  if (state.dtype.length)
    columns.push(
      named("dtype", state.dtypes, state.dtype, "minmax(5rem, .5fr)", "kind"),
      named("shape", state.shapes, state.shape, "minmax(6rem, .7fr)", "kind"),
    );
  columns.push({
    name: "bytes",
    width: "minmax(5.5rem, .5fr)",
    kind: "number",
    number: true,
    key: (tensor) => state.nbytes[tensor],
    cell: (tensor) => [readableBytes(state.nbytes[tensor])],
  });
  columns.push(device(state.words[0] || "device", state.device));
  if (state.placed.length) columns.push(device(state.words[1], state.placed));
  if (state.moves)
    columns.push({
      name: "move",
      width: "minmax(7rem, 1.1fr)",
      kind: "fate",
      key: (tensor) => state.fate(tensor),
      cell: (tensor) => [state.fate(tensor)],
    });
  if (state.shared.length) {
    const others = (tensor) => Math.max(0, state.sharing(tensor).length - 1);
    columns.push({
      name: "shares with",
      width: "minmax(5.5rem, .5fr)",
      kind: "number shares",
      number: true,
      key: others,
      cell: (tensor) => [others(tensor) || ""],
    });
  }
  return columns;
}

// If a path does not fit, its end stays visible.
function pathCell(state, tensor) {
  const path = state.path(tensor);
  const end = Math.min(path.length, state.label(state.node[tensor]).length);
  return [
    element("span", { title: path }, path.slice(0, path.length - end)),
    element("span", {}, path.slice(path.length - end)),
  ];
}
