// The address holds the state of the page: #fragment=mma.m16n8k16.bf16.a&view=holder&at=9,3 restores it.

const MOST_ADDRESS = 4000; // characters; beyond it long values are left out, and the page says so
const MOST_VALUE = 400;
const PLACES = new Set(["at", "byte", "code", "word"]); // places in the view, written after its other choices
const shown = { view: "", isReading: true };
const choices = {};
const touched = {};

// The first choice of a view. It resets the other choices unless `keeps`.
function chosen(view, choice, keeps = false) {
  choices[view] = choice;
  if (!keeps) touched[view] = new Map();
  writeAddress();
}

// Records a change of the user in a view
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

// [[name, value], ...] of an address; a value with invalid escapes is taken literally
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

// Sets a control as a user would; an unknown choice changes nothing
function setControl(view, name, value) {
  const node = $(`${view}-${name}`);
  if (!node?.matches("select, input, textarea") || !node.closest(`#${view}`)) return;
  if (node.tagName === "SELECT" && ![...node.options].some((option) => option.value === value)) return;
  node.value = value;
  node.dispatchEvent(new Event(node.tagName === "SELECT" || node.tagName === "INPUT" ? "change" : "input", { bubbles: true }));
  if (node.tagName === "INPUT") node.dispatchEvent(new Event("input", { bubbles: true }));
}

// Restores the state of an address; `open` shows a view
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
