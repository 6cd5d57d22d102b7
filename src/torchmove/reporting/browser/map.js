// ---------------------------------------------------------------- the map

function makeMap(state, details, choose, light) {
  const map = byId("map");
  const ring = byId("ring");
  const whole = wholeOf(state);
  let trail = [whole];
  let column = state.device;
  let cells = [];
  let drawn = [];
  let current = 0; // the cell that Tab leads to
  let selected = -1;

  const here = () => trail[trail.length - 1];

  // ---- drawing

  function draw() {
    cells = cellsOf(state, here(), map.clientWidth, map.clientHeight);
    drawn = cells.map(elementOf);
    map.replaceChildren(...drawn, ring);
    ring.hidden = true;
    current = Math.max(
      0,
      cells.findIndex((cell) => cell.depth === 1),
    );
    if (drawn[current]) drawn[current].tabIndex = 0;
    drawTrail();
    drawBranches();
    light([]);
  }

  function elementOf(cell, index) {
    const { item, x, y, width, height, depth, open } = cell;
    const top = depth === 1;
    const made = element("div", {
      class: `cell ${open ? "open" : "closed"}${item.tensor >= 0 ? " tensor" : ""}`,
      style: `left:${x.toFixed(1)}px;top:${y.toFixed(1)}px;width:${width.toFixed(1)}px;height:${height.toFixed(1)}px`,
      ...(top
        ? {
            role: "treeitem",
            tabindex: "-1",
            "aria-label": saidOf(item),
            ...(item.tensor < 0 && { "aria-expanded": "false" }),
          }
        : { "aria-hidden": "true" }),
      "data-cell": index,
    });
    if (!open) paint(made, item);
    // A name cut to its first letter is useless.
    const fits = width > 52 || width > 7 * item.label.length + 12;
    if (fits && height > 18) made.append(element("span", { class: "name" }, item.label));
    if (open ? width > 110 : width > 62 && height > 36)
      made.append(element("span", { class: "size" }, readableBytes(item.bytes)));
    return made;
  }

  function paint(made, item) {
    const devices = devicesOf(state, item, column);
    // A share of 1 % is too small to see in the map; the details list it.
    if (devices[0][1] > 0.99 * item.bytes) made.classList.add(`d${devices[0][0] % 8}`);
    else {
      let at = 0;
      const stops = devices.map(([device, size]) => {
        const from = at;
        at += (100 * size) / item.bytes;
        return `var(--d${device % 8}) ${from.toFixed(2)}% ${at.toFixed(2)}%`;
      });
      made.style.background = `linear-gradient(100deg, ${stops.join(", ")})`;
    }
  }

  function saidOf(item) {
    const devices = devicesOf(state, item, column).map(([device]) => state.devices[device]);
    const what =
      item.tensor >= 0
        ? `tensor, ${state.fate(item.tensor) || state.roles[state.role[item.tensor]]}`
        : counted(item.count, "tensor");
    return `${item.label}, ${readableBytes(item.bytes)}, on ${devices.join(" and ")}, ${what}`;
  }

  function drawTrail() {
    byId("crumbs").replaceChildren(
      ...trail.map((item, depth) => {
        const last = depth === trail.length - 1;
        const words = last
          ? element("span", { "aria-current": "location" }, item.label)
          : button(item.label, () => goTo(depth));
        return element("li", {}, words);
      }),
    );
  }

  function drawBranches() {
    const items = [...inside(state, here())].sort((one, other) => other.bytes - one.bytes);
    byId("branches").tBodies[0].replaceChildren(
      ...items.map((item) => {
        const opened = () => (item.tensor >= 0 ? choose(item.tensor) : open(item, byId("branches")));
        const devices = devicesOf(state, item, column).map(
          ([device, size]) => `${state.devices[device]} ${readableBytes(size)}`,
        );
        return element(
          "tr",
          {},
          element("th", { scope: "row" }, button(item.label, opened, { class: "find" })),
          element("td", { class: "number" }, readableBytes(item.bytes)),
          element("td", { class: "number" }, readableShare(item.bytes, here().bytes)),
          element("td", { class: "number" }, item.count.toLocaleString("en")),
          element("td", {}, devices.join(", ")),
        );
      }),
    );
  }

  // ---- navigation

  // A clicked cell may be several levels deep: the trail gets every item above it.
  function open(item, from, above = []) {
    trail.push(...above, item);
    draw();
    arrive(0, from);
  }

  function goTo(depth, from = map) {
    const left = trail[depth + 1];
    trail.length = depth + 1;
    draw();
    arrive(
      cells.findIndex((cell) => cell.depth === 1 && cell.item === left),
      from,
    );
  }

  // Moves the focus to the part that is shown.
  function arrive(index, from) {
    byId("said").textContent =
      `${here().label}, ${readableBytes(here().bytes)}, ${counted(inside(state, here()).length, "part")}`;
    details.ofGroup(here(), column, whole.bytes);
    if (from === map) focus(Math.max(0, index));
    else from.querySelector("button")?.focus();
  }

  function act(cell) {
    if (!cell) return;
    if (cell.item.tensor >= 0) choose(cell.item.tensor, map);
    else open(cell.item, map, cell.above);
  }

  function reveal(tensor) {
    const above = new Set();
    for (let node = state.node[tensor]; node >= 0; node = state.parents[node]) above.add(node);
    trail = [whole];
    for (;;) {
      const next = inside(state, here()).find((item) => item.tensor < 0 && item.nodes.some((node) => above.has(node)));
      if (!next || inside(state, here()).some((item) => item.tensor === tensor)) break;
      trail.push(next);
    }
    draw();
    selected = tensor;
    const index = cells.findIndex((cell) => cell.item.tensor === tensor);
    if (index >= 0) {
      drawn[index].classList.add("selected");
      step(index);
    }
    return index;
  }

  // ---- keyboard: arrows among the cells of the first level, Enter and Escape between levels

  function step(index) {
    if (drawn[current]) drawn[current].tabIndex = -1;
    current = index;
    drawn[current].tabIndex = 0;
  }

  function focus(index) {
    if (!drawn[index]) return;
    step(index);
    drawn[index].focus({ preventScroll: false });
  }

  const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function neighbor([right, down]) {
    const middle = ({ x, y, width, height }) => [x + width / 2, y + height / 2];
    const [x, y] = middle(cells[current]);
    let best = -1;
    let least = Infinity;
    cells.forEach((cell, index) => {
      if (cell.depth > 1 || index === current) return;
      const [dx, dy] = middle(cell).map((value, axis) => value - [x, y][axis]);
      const ahead = right * dx + down * dy;
      const distance = ahead + 2 * Math.abs(right ? dy : dx);
      if (ahead > 0.5 && distance < least) [best, least] = [index, distance];
    });
    return best;
  }

  map.addEventListener("keydown", (event) => {
    const top = cells.flatMap((cell, index) => (cell.depth === 1 ? [index] : []));
    if (event.key in DIRECTIONS) focus(neighbor(DIRECTIONS[event.key]));
    else if (event.key === "Home") focus(top[0]);
    else if (event.key === "End") focus(top[top.length - 1]);
    else if (event.key === "Enter" || event.key === " ") act(cells[current]);
    else if ((event.key === "Escape" || event.key === "Backspace") && trail.length > 1) goTo(trail.length - 2);
    else return;
    event.preventDefault();
  });

  // ---- pointer and focus

  const cellAt = (event) => cells[event.target.closest?.(".cell")?.dataset.cell];

  function preview(cell) {
    if (cell.item.tensor >= 0) details.ofTensor(cell.item.tensor);
    else details.ofGroup(cell.item, column, whole.bytes);
    light(cell.item.tensor >= 0 ? state.sharing(cell.item.tensor) : []);
  }

  function restore() {
    light(selected >= 0 ? state.sharing(selected) : []);
    if (selected >= 0) details.ofTensor(selected);
    else details.ofGroup(here(), column, whole.bytes);
  }

  map.addEventListener("click", (event) => act(cellAt(event)));
  let under = null;
  map.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!hasMoved || cell === under) return;
    under = cell;
    if (cell) preview(cell);
  });
  map.addEventListener("pointerleave", () => {
    under = null;
    restore();
  });
  map.addEventListener("focusin", (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    preview(cell);
    Object.assign(ring.style, {
      left: `${cell.x}px`,
      top: `${cell.y}px`,
      width: `${cell.width}px`,
      height: `${cell.height}px`,
    });
    ring.hidden = !event.target.matches(":focus-visible");
  });
  map.addEventListener("focusout", () => {
    ring.hidden = true;
  });
  // The observer also reports fractions of a pixel; only a changed width needs another layout.
  let width = 0;
  new ResizeObserver(() => {
    if (map.clientWidth === width) return;
    width = map.clientWidth;
    draw();
  }).observe(map);

  return {
    draw,
    reveal,
    restore,
    focus: () => focus(current),
    select: (tensor) => {
      selected = tensor;
      for (const made of map.querySelectorAll(".selected")) made.classList.remove("selected");
      const index = cells.findIndex((cell) => cell.item.tensor === tensor);
      if (index >= 0) drawn[index].classList.add("selected");
    },
    colorBy: (other) => {
      column = other;
      draw();
      restore();
    },
    // Highlights the cell of each tensor, or of the item that contains it.
    lightUp: (tensors) => {
      for (const made of map.querySelectorAll(".lit")) made.classList.remove("lit");
      if (!tensors.length) return;
      const byTensor = new Map();
      const byNode = new Map();
      cells.forEach(({ item }, index) => {
        if (item.tensor >= 0) byTensor.set(item.tensor, index);
        else for (const node of item.nodes) byNode.set(node, index);
      });
      for (const tensor of tensors.slice(0, 2000)) {
        let index = byTensor.get(tensor);
        for (let node = state.node[tensor]; index === undefined && node >= 0; node = state.parents[node])
          index = byNode.get(node);
        if (index !== undefined) drawn[index].classList.add("lit");
      }
    },
  };
}
