// ---------------------------------------------------------------- details of a tensor or a group

function makeDetails(state, choose) {
  const panel = byId("details");

  function row(name, ...inside) {
    return [element("dt", {}, name), element("dd", {}, ...inside)];
  }

  function place(device) {
    return [swatch(device), state.devices[device]];
  }

  function links(title, tensors) {
    if (!tensors.length) return [];
    const shown = tensors.slice(0, 30).map((tensor) =>
      element(
        "li",
        {},
        button(state.path(tensor), () => choose(tensor), { class: "find" }),
      ),
    );
    if (tensors.length > 30) shown.push(element("li", { class: "note" }, `and ${tensors.length - 30} more`));
    return [element("h4", {}, title), element("ul", { class: "links" }, ...shown)];
  }

  function ofTensor(tensor) {
    const rows = [
      row("bytes", `${readableBytes(state.nbytes[tensor])} (${state.nbytes[tensor].toLocaleString("en")})`),
      row("role", state.roles[state.role[tensor]]),
    ];
    if (state.dtype.length)
      rows.push(row("dtype", state.dtypes[state.dtype[tensor]]), row("shape", state.shapes[state.shape[tensor]]));
    rows.push(row(state.words[0] || "device", ...place(state.device[tensor])));
    if (state.placed.length) rows.push(row(state.words[1], ...place(state.placed[tensor])));
    if (state.fate(tensor)) rows.push(row("move", state.fate(tensor)));
    const others = state.sharing(tensor).filter((other) => other !== tensor);
    const also = state.also(tensor);
    panel.replaceChildren(
      element("h3", {}, state.path(tensor)),
      element("dl", {}, ...rows.flat()),
      ...links(`Shares its storage with ${counted(others.length, "tensor")}`, others),
      ...(also.length
        ? [
            element("h4", {}, "Other paths"),
            element("ul", { class: "links" }, ...also.map((path) => element("li", {}, path))),
          ]
        : []),
    );
  }

  function ofGroup(item, column, whole) {
    const title = item.nodes.length === 1 ? state.text(item.nodes[0]) : item.label;
    const devices = devicesOf(state, item, column).map(([device, size]) =>
      row(state.devices[device], swatch(device), readableBytes(size)),
    );
    panel.replaceChildren(
      element("h3", {}, title),
      element(
        "dl",
        {},
        ...row("bytes", readableBytes(item.bytes)),
        ...row("share", readableShare(item.bytes, whole)),
        ...row("tensors", item.count.toLocaleString("en")),
        ...devices.flat(),
      ),
    );
  }

  return { ofTensor, ofGroup };
}

// The devices of an item and the bytes on each, in descending order.
function devicesOf(state, item, column) {
  if (item.tensor >= 0) return [[column[item.tensor], item.bytes]];
  const sums = state.byDevice(column);
  const many = state.devices.length;
  const sizes = state.devices.map((_, device) => [
    device,
    item.nodes.reduce((sum, node) => sum + sums[node * many + device], 0),
  ]);
  return sizes.filter(([, size]) => size > 0).sort((one, other) => other[1] - one[1]);
}
