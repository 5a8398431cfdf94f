// The page: tabs, theme, and the state in the address.

const dump = new DumpView();
const views = { fragment: new FragmentView(dump), format: new FormatView(), swizzle: new SwizzleView(), scales: new ScalesView(dump), descriptor: new DescriptorView(), dump };
const tabs = [...document.querySelectorAll("[role=tab]")];

function open(name) {
  for (const each of tabs) {
    const isChosen = each.getAttribute("aria-controls") === name;
    each.setAttribute("aria-selected", String(isChosen));
    each.tabIndex = isChosen ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !isChosen;
  }
  const view = views[name];
  (view.refresh ?? view.draw).call(view);
  shown.view = name;
  writeAddress();
}

tabs.forEach((tab, at) => {
  tab.addEventListener("click", () => open(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const target = tabs[(next + tabs.length) % tabs.length];
    open(target.getAttribute("aria-controls"));
    target.focus();
  });
});

// The address keeps every change of the user. The first control of a view is its choice, and the view keeps it.
for (const [name, view] of Object.entries(views)) {
  const keep = (event) => {
    const id = event.target.id.slice(name.length + 1);
    if (!["family", "name", "layout", "pattern", "kind"].includes(id) && !(id === "element" && ["format", "dump"].includes(name))) touch(name, id, event.target.value);
  };
  $(name).addEventListener("change", keep);
  $(name).addEventListener("input", (event) => event.target.matches("textarea, #descriptor-word") && keep(event));
  if (view.named)
    view.grid.moved = (row, col) => {
      const [id, value] = view.named(row, col);
      $(`${name}-${id}`).value = value;
      $(`${name}-${id}`).setAttribute("aria-invalid", "false");
      touch(name, id, value);
    };
}

const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";

function paint() {
  document.documentElement.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
  $("theme").textContent = theme[0].toUpperCase() + theme.slice(1);
  $("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "follows the system" : theme}`);
  views[shown.view]?.draw();
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  paint();
});
system.addEventListener("change", paint);
addEventListener("beforeprint", () => views[shown.view].grid?.layOut());
addEventListener("afterprint", () => views[shown.view].grid?.layOut());
addEventListener("hashchange", () => restore(location.hash, views, open));
paint();
restore(location.hash, views, open);
window.explorer = { TABLES, ELEMENTS, SWIZZLES, SCALES, DESCRIPTORS, decode, fieldsOf, fragment, coord, holders, placeOf, swizzled, tileOf, scalesOf, bankOf, explain, readDump, wordOf, DumpError, spelled, views };
