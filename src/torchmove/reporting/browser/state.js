// ---------------------------------------------------------------- the state, from its columns

function makeState(data) {
  const { labels, parents, label, texts } = data.tree;
  const nodes = parents.length;
  const tensors = data.node.length;
  const weight = sharedOut(data);
  const tensorAt = new Int32Array(nodes).fill(-1);
  for (let tensor = 0; tensor < tensors; tensor++) tensorAt[data.node[tensor]] = tensor;

  // Children in one array: those of node n from starts[n + 1] to starts[n + 2]; the children of -1 are the roots.
  const starts = new Int32Array(nodes + 2);
  for (let node = 0; node < nodes; node++) starts[parents[node] + 2]++;
  for (let at = 1; at < starts.length; at++) starts[at] += starts[at - 1];
  const children = new Int32Array(nodes);
  const next = starts.slice();
  for (let node = 0; node < nodes; node++) children[next[parents[node] + 1]++] = node;

  // Bytes and tensors at and below each node; children come after their parents.
  const bytes = new Float64Array(nodes);
  const count = new Int32Array(nodes);
  for (let node = nodes - 1; node >= 0; node--) {
    const tensor = tensorAt[node];
    if (tensor >= 0) {
      bytes[node] += weight[tensor];
      count[node]++;
    }
    if (parents[node] >= 0) {
      bytes[parents[node]] += bytes[node];
      count[parents[node]] += count[node];
    }
  }

  const written = new Array(nodes);
  function text(node) {
    const chain = [];
    while (node >= 0 && written[node] === undefined) {
      chain.push(node);
      node = parents[node];
    }
    let before = node < 0 ? "" : written[node];
    while (chain.length) {
      node = chain.pop();
      before = written[node] = node in texts ? texts[node] : before + labels[label[node]];
    }
    return before;
  }

  const sums = new Map();
  // Bytes by device at and below each node; `column` has the device of each tensor.
  function byDevice(column) {
    if (sums.has(column)) return sums.get(column);
    const many = data.devices.length;
    const sum = new Float64Array(nodes * many);
    for (let tensor = 0; tensor < tensors; tensor++) sum[data.node[tensor] * many + column[tensor]] += weight[tensor];
    for (let node = nodes - 1; node >= 0; node--) {
      const parent = parents[node];
      if (parent >= 0)
        for (let device = 0; device < many; device++) sum[parent * many + device] += sum[node * many + device];
    }
    sums.set(column, sum);
    return sum;
  }

  const group = new Map();
  for (const [, members] of data.shared) {
    if (members.length > 1) for (const tensor of members) group.set(tensor, members);
  }
  const also = new Map();
  for (const [tensor, path] of data.also) also.set(tensor, [...(also.get(tensor) || []), path]);
  const stays = new Map(data.stays);

  return {
    ...data,
    tensors,
    weight,
    tensorAt,
    bytes,
    count,
    parents,
    text,
    byDevice,
    path: (tensor) => text(data.node[tensor]),
    label: (node) => labels[label[node]],
    // Only nodes with bytes: others have no area.
    children: (node) => [...children.subarray(starts[node + 1], starts[node + 2])].filter((child) => bytes[child] > 0),
    sharing: (tensor) => group.get(tensor) || [],
    also: (tensor) => also.get(tensor) || [],
    // What a move does with a tensor, as text; "" if there is no plan.
    fate(tensor) {
      if (!data.moves) return "";
      if (data.moves[tensor] === "1") return "moves";
      if (stays.has(tensor)) return `stays: ${data.reasons[stays.get(tensor)]}`;
      return data.device[tensor] === data.placed[tensor] ? "already there" : "does not move";
    },
  };
}

// The bytes of each tensor, or its share of the storage that it shares.
function sharedOut(data) {
  const weight = Float64Array.from(data.nbytes);
  for (const [size, members] of data.shared) {
    const seen = members.reduce((sum, tensor) => sum + data.nbytes[tensor], 0);
    for (const tensor of members) weight[tensor] = size * (seen ? data.nbytes[tensor] / seen : 1 / members.length);
  }
  return weight;
}

// ---------------------------------------------------------------- text

function readableBytes(count) {
  let size = count;
  let unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  return `${unit === "B" || size >= 999.5 ? Math.round(size) : Number(size.toPrecision(3))} ${unit}`;
}

function readableShare(part, whole) {
  const percent = whole ? (100 * part) / whole : 0;
  return percent > 0 && percent < 0.1 ? "< 0.1 %" : `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}

const counted = (count, thing) => `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- elements

const byId = (id) => document.getElementById(id);

// Strings are added as text, never as HTML.
function element(tag, options = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name === "on") for (const [event, heard] of Object.entries(value)) made.addEventListener(event, heard);
    else made.setAttribute(name, value);
  }
  made.append(...inside);
  return made;
}

const button = (words, clicked, options = {}) =>
  element("button", { type: "button", on: { click: clicked }, ...options }, words);

// Scrolling moves the page under a pointer at rest, which is not pointing.
let pointer = "";
let hasMoved = false;
const follow = ({ clientX, clientY }) => {
  hasMoved = pointer !== `${clientX} ${clientY}`;
  pointer = `${clientX} ${clientY}`;
};
document.addEventListener("pointermove", follow, { capture: true, passive: true });

const swatch = (device) => element("i", { class: `swatch d${device % 8}`, "aria-hidden": "true" });
