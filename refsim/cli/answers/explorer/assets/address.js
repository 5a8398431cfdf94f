// The address holds what is shown: #fragment=mma.m16n8k16.bf16.a&view=holder&at=9,3 opens the page so again.

const MOST_ADDRESS = 4000; // characters; what is long is left out then, and said
const MOST_VALUE = 400;
const PLACES = new Set(["at", "byte", "code", "word"]); // what means a place of the rest, and comes behind it
const shown = { view: "", isReading: true };
const choices = {};
const touched = {};

// A view's first choice; the others begin anew with it, unless `keeps`
function chosen(view, choice, keeps = false) {
  choices[view] = choice;
  if (!keeps) touched[view] = new Map();
  writeAddress();
}

// What a person changed in a view
function touch(view, name, value) {
  (touched[view] ??= new Map()).set(name, value);
  writeAddress();
}

function writeAddress() {
  const { view, isReading } = shown;
  if (isReading || !view) return;
  const own = [[view, choices[view] ?? ""], ...[...(touched[view] ?? [])].sort(([one], [other]) => PLACES.has(one) - PLACES.has(other))];
  const isLaid = view !== "dump" && ["row", "holder", "memory"].includes($(`${view}-codes`)?.value);
  const laid = isLaid ? [...(touched.dump ?? [])].filter(([name]) => name === "text" || name === "reading").map(([name, value]) => [`dump.${name}`, value]) : [];
  const spelledOut = (pairs) => pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  const whole = [...own, ...laid];
  const isLong = whole.reduce((length, [, value]) => length + value.length, 0) > MOST_ADDRESS;
  $("address-note").hidden = !isLong;
  history.replaceState(null, "", `#${spelledOut(isLong ? whole.filter(([, value]) => value.length < MOST_VALUE) : whole)}`);
}

// [[name, value], ...] of an address; what no browser wrote is read as it stands
function readAddress(hash) {
  const plain = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  return hash.replace(/^#/, "").split("&").filter((part) => part).map((part) => {
    const [name, ...value] = part.split("=");
    return [plain(name), plain(value.join("="))];
  });
}

// Sets a control as if a person had: a choice that there is not is left as it was
function setControl(view, name, value) {
  const node = $(`${view}-${name}`);
  if (!node?.matches("select, input, textarea") || !node.closest(`#${view}`)) return;
  if (node.tagName === "SELECT" && ![...node.options].some((option) => option.value === value)) return;
  node.value = value;
  node.dispatchEvent(new Event(node.tagName === "SELECT" || node.tagName === "INPUT" ? "change" : "input", { bubbles: true }));
  if (node.tagName === "INPUT") node.dispatchEvent(new Event("input", { bubbles: true }));
}

// Opens what an address says; `open` shows a view
function restore(hash, views, open) {
  const [[view, choice] = ["", ""], ...rest] = readAddress(hash);
  shown.isReading = true;
  if (Object.hasOwn(views, view)) {
    for (const [name, value] of rest) if (name.startsWith("dump.")) setControl("dump", name.slice(5), value);
    if (choice) views[view].pick(choice);
    const says = $(`${view}-says`).cloneNode(true);
    open(view);
    if (says.querySelector(".bad")) $(`${view}-says`).replaceChildren(...says.childNodes);
    for (const [name, value] of rest) if (!name.startsWith("dump.")) setControl(view, name, value);
  } else open(Object.keys(views)[0]);
  shown.isReading = false;
}
