// ---------------------------------------------------------------- parts of the map

// An item of the map: a tensor, a subtree of the paths, or a run of small neighbors. `nodes` are the tree nodes in it.

const MOST = 48;

function itemOf(state, node) {
  let label = shown(state.label(node));
  let inside = state.children(node);
  // A node with a single child is merged with it.
  while (inside.length === 1 && state.tensorAt[node] < 0) {
    node = inside[0];
    const further = shown(state.label(node));
    label += further.startsWith("[") ? further : `.${further}`;
    inside = state.children(node);
  }
  const tensor = inside.length ? -1 : state.tensorAt[node];
  return { nodes: [node], label, tensor, bytes: state.bytes[node], count: state.count[node], depth: 0 };
}

// Labels are parts of a path: ".weight", "['step']"; and around the path of a key, "[model" and "]...".
function shown(label) {
  const plain = label.replace(/^\]+/, "").replace(/^\./, "");
  const key = /^\['(.*)'\]$/s.exec(plain);
  if (key) return key[1];
  return plain.startsWith("[") && !plain.endsWith("]") ? plain.slice(1) : plain || "itself";
}

function wholeOf(state) {
  const roots = state.children(-1);
  const sum = (column) => roots.reduce((total, node) => total + column[node], 0);
  return { nodes: roots, label: "everything", tensor: -1, bytes: sum(state.bytes), count: sum(state.count) };
}

function inside(state, item) {
  if (item.inside) return item.inside;
  let items;
  if (item.nodes.length > 1 || item.label === "everything") items = item.nodes.map((node) => itemOf(state, node));
  else {
    const [node] = item.nodes;
    items = state.children(node).map((child) => itemOf(state, child));
    const own = state.tensorAt[node];
    if (own >= 0 && state.weight[own] > 0) {
      items.unshift({ nodes: [node], label: "itself", tensor: own, bytes: state.weight[own], count: 1 });
    }
  }
  item.inside = inRuns(items, item.bytes);
  return item.inside;
}

function inRuns(items, whole) {
  if (items.length <= MOST) return items;
  const small = items.filter((item) => item.bytes < whole / MOST);
  const length = roundUp(small.length / (MOST / 2));
  const made = items.filter((item) => item.bytes >= whole / MOST);
  for (let start = 0; start < small.length; start += length) {
    const run = small.slice(start, start + length);
    if (run.length === 1) made.push(run[0]);
    else made.push(runOf(run));
  }
  return made;
}

function runOf(run) {
  const sum = (name) => run.reduce((total, item) => total + item[name], 0);
  const label = `${run[0].label} to ${run[run.length - 1].label}`;
  return {
    nodes: run.flatMap((item) => item.nodes),
    label,
    tensor: -1,
    bytes: sum("bytes"),
    count: sum("count"),
    inside: null,
  };
}

// The next of 2, 5, 10, 20, 50, ...: runs with round numbers are easier to read.
function roundUp(number) {
  for (let power = 1; ; power *= 10) {
    for (const step of [2, 5, 10]) if (step * power >= number) return step * power;
  }
}

// ---------------------------------------------------------------- layout of the map

// A squarified treemap, the largest item first. Calls place(item, x, y, width, height).
function squarify(items, x, y, width, height, place) {
  const sorted = [...items].sort((one, other) => other.bytes - one.bytes);
  let rest = sorted.reduce((sum, item) => sum + item.bytes, 0);
  for (let start = 0; start < sorted.length && rest > 0;) {
    const side = Math.min(width, height);
    const scale = (width * height) / rest;
    let stop = start;
    let area = 0;
    let worst = Infinity;
    while (stop < sorted.length) {
      const more = area + sorted[stop].bytes * scale;
      const ratio = worstRatio(sorted[start].bytes * scale, sorted[stop].bytes * scale, more, side);
      if (ratio > worst) break;
      [worst, area, stop] = [ratio, more, stop + 1];
    }
    const thick = side ? area / side : 0;
    let along = 0;
    for (const item of sorted.slice(start, stop)) {
      const length = thick ? (item.bytes * scale) / thick : 0;
      if (width >= height) place(item, x, y + along, thick, length);
      else place(item, x + along, y, length, thick);
      along += length;
      rest -= item.bytes;
    }
    if (width >= height) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
    start = stop;
  }
}

// The worst aspect ratio of the largest and the smallest item in a row with this area.
function worstRatio(largest, smallest, area, side) {
  const square = area * area;
  return Math.max((side * side * largest) / square, square / (side * side * smallest));
}

const HEADER = 20;
const GAP = 3;
const DEEPEST = 4;
const MOST_CELLS = 1400;

// The cells of a map, an open one before those inside it. `above` are the items between the whole map and the cell.
function cellsOf(state, item, width, height) {
  const cells = [];
  const boxes = [{ item, x: 0, y: 0, width, height, depth: 1, above: [] }];
  for (let at = 0; at < boxes.length && cells.length < MOST_CELLS; at++) {
    const box = boxes[at];
    squarify(inside(state, box.item), box.x, box.y, box.width, box.height, (part, x, y, wide, high) => {
      // The first level is always drawn, since the keyboard moves on it.
      if (box.depth > 1 && (wide < 3 || high < 3)) return;
      const open = part.tensor < 0 && box.depth < DEEPEST && wide >= 90 && high >= 64;
      cells.push({ item: part, x, y, width: wide, height: high, depth: box.depth, above: box.above, open });
      if (open) {
        const within = { x: x + GAP, y: y + HEADER, width: wide - 2 * GAP, height: high - HEADER - GAP };
        boxes.push({ item: part, ...within, depth: box.depth + 1, above: [...box.above, part] });
      }
    });
  }
  return cells;
}
