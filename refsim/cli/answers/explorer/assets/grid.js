// A grid of cells on a canvas that draws only the visible part: 64 x 256 elements scroll as fast as 8 x 8.

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () => document.documentElement.dataset.theme === "dark";
const colourOf = (number) => TABLES.palette[isDark() ? "dark" : "light"][((number % 32) + 32) % 32];
const MARGIN = { top: 20, left: 46 };

class Grid {
  // `show(row, col)` is called for the cell under the pointer or focus; `moved`, if set, for a cell that the user selects
  constructor(host, show) {
    this.host = host;
    this.show = show;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.extent = document.createElement("div");
    host.append(this.canvas, this.extent);
    host.tabIndex = 0;
    host.setAttribute("role", "application");
    host.setAttribute("aria-roledescription", "grid");
    this.at = [0, 0];
    this.pointed = null;
    host.addEventListener("scroll", () => this.draw());
    host.addEventListener("pointermove", (event) => this.point(this.cellUnder(event)));
    host.addEventListener("pointerleave", () => this.point(null));
    host.addEventListener("pointerdown", (event) => {
      const cell = this.cellUnder(event);
      if (!cell) return;
      this.move(...cell);
      this.moved?.(...cell);
    });
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("focus", () => this.draw());
    host.addEventListener("blur", () => this.draw());
    new ResizeObserver(() => this.layOut()).observe(host);
  }

  // {rows, cols, label, wide, texts(row, col), colour(row, col), mates(row, col)}: a new picture, at its first cell
  fill(picture) {
    this.picture = picture;
    this.at = [Math.min(this.at[0], picture.rows - 1), Math.min(this.at[1], picture.cols - 1)];
    this.pointed = null;
    this.host.setAttribute("aria-label", `${picture.label}; arrow keys move`);
    this.layOut();
    this.show(...this.at);
  }

  layOut() {
    const { picture, host } = this;
    if (!picture || !host.clientWidth) return;
    const room = host.clientWidth - MARGIN.left - 1;
    const fitting = Math.floor(room / picture.cols);
    this.isLabelled = fitting >= picture.wide || picture.cols <= 8 || picture.always;
    this.width = this.isLabelled ? Math.max(Math.min(fitting, picture.wide + 24), picture.wide) : Math.max(Math.min(fitting, 22), 6);
    this.height = this.isLabelled ? 30 : Math.max(Math.min(this.width, 18), 12);
    if (this.isLabelled && picture.lines === 1) this.height = 24;
    const full = [MARGIN.left + this.width * picture.cols + 2, MARGIN.top + this.height * picture.rows + 2];
    this.extent.style.cssText = `position:absolute;top:0;left:0;width:${full[0]}px;height:${full[1]}px`;
    host.style.height = `${full[1] + (full[0] > host.clientWidth ? 14 : 0)}px`;
    const shown = [Math.min(host.clientWidth, full[0]), Math.min(host.clientHeight, full[1])];
    const ratio = window.devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = shown.map((each) => Math.round(each * ratio));
    [this.canvas.style.width, this.canvas.style.height] = shown.map((each) => `${each}px`);
    this.draw();
  }

  draw() {
    const { picture, host, canvas, width, height } = this;
    if (!picture || !canvas.width) return;
    const paper = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    const [shownWidth, shownHeight] = [canvas.width / ratio, canvas.height / ratio];
    paper.setTransform(ratio, 0, 0, ratio, 0, 0);
    paper.fillStyle = style("--paper");
    paper.fillRect(0, 0, shownWidth, shownHeight);
    const first = [Math.floor(host.scrollTop / height), Math.floor(host.scrollLeft / width)];
    const last = [
      Math.min(picture.rows - 1, Math.floor((host.scrollTop + shownHeight - MARGIN.top) / height)),
      Math.min(picture.cols - 1, Math.floor((host.scrollLeft + shownWidth - MARGIN.left) / width)),
    ];
    const current = this.pointed ?? this.at;
    const isMate = picture.mates ? picture.mates(...current) : () => false;
    const corner = (row, col) => [MARGIN.left + col * width - host.scrollLeft, MARGIN.top + row * height - host.scrollTop];
    const inks = { ink: style("--ink"), soft: style("--soft"), hole: style("--hole"), paper: style("--paper"), mono: style("--mono") };
    paper.textAlign = "center";
    paper.textBaseline = "middle";
    for (let row = first[0]; row <= last[0]; row++)
      for (let col = first[1]; col <= last[1]; col++) {
        const [left, top] = corner(row, col);
        const colour = picture.colour(row, col);
        paper.fillStyle = colour === null ? inks.hole : colourOf(colour);
        paper.fillRect(left, top, width - 1, height - 1);
        if (this.isLabelled) this.write(paper, picture.texts(row, col), left, top, inks);
        if (isMate(row, col)) this.frame(paper, left, top, inks.ink, width < 14 ? 1 : 1.5);
      }
    this.headings(paper, first, last, corner, inks);
    const [left, top] = corner(...current);
    if (left >= MARGIN.left - width && top >= MARGIN.top - height) this.frame(paper, left, top, style("--accent"), 3);
  }

  write(paper, texts, left, top, inks) {
    texts.forEach((text, at) => {
      paper.font = `${at ? 10 : 12}px ${inks.mono}`;
      paper.fillStyle = inks.ink;
      const line = texts.length === 1 ? this.height / 2 : at ? this.height - 9 : 10;
      paper.fillText(text, left + (this.width - 1) / 2, top + line, this.width - 4);
    });
  }

  frame(paper, left, top, colour, thickness) {
    paper.strokeStyle = colour;
    paper.lineWidth = thickness;
    paper.strokeRect(left + thickness / 2 - 0.5, top + thickness / 2 - 0.5, this.width - thickness, this.height - thickness);
  }

  headings(paper, first, last, corner, inks) {
    paper.fillStyle = inks.paper;
    paper.fillRect(0, 0, this.canvas.width, MARGIN.top - 2);
    paper.fillRect(0, 0, MARGIN.left - 3, this.canvas.height);
    paper.fillStyle = inks.soft;
    paper.font = `11px ${inks.mono}`;
    const { picture } = this;
    const every = Math.ceil(34 / this.width);
    const step = [1, 2, 4, 8, 16].find((each) => each >= every) ?? 16;
    for (let col = first[1]; col <= last[1]; col++) {
      const left = corner(0, col)[0];
      if (col % step === 0 && left >= MARGIN.left - 4) paper.fillText(picture.colName?.(col) ?? col, left + this.width / 2, 9);
    }
    paper.textAlign = "right";
    for (let row = first[0]; row <= last[0]; row++) {
      const top = corner(row, 0)[1];
      if (top >= MARGIN.top - 6 && (this.height > 13 || row % 2 === 0)) paper.fillText(picture.rowName?.(row) ?? row, MARGIN.left - 9, top + this.height / 2);
    }
    paper.textAlign = "center";
  }

  cellUnder(event) {
    if (!this.picture) return null;
    const box = this.host.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - MARGIN.left, event.clientY - box.top - MARGIN.top];
    if (x < 0 || y < 0) return null;
    const cell = [Math.floor((y + this.host.scrollTop) / this.height), Math.floor((x + this.host.scrollLeft) / this.width)];
    return cell[0] < this.picture.rows && cell[1] < this.picture.cols ? cell : null;
  }

  // The place of a cell on the screen, for tests
  centre(row, col) {
    const box = this.host.getBoundingClientRect();
    return [
      box.left + MARGIN.left + (col + 0.5) * this.width - this.host.scrollLeft,
      box.top + MARGIN.top + (row + 0.5) * this.height - this.host.scrollTop,
    ];
  }

  point(cell) {
    if (String(cell) === String(this.pointed)) return;
    this.pointed = cell;
    this.show(...(cell ?? this.at));
    this.draw();
  }

  move(row, col) {
    this.at = [row, col];
    this.pointed = null;
    const { host } = this;
    const [top, left] = [row * this.height, col * this.width];
    const [tall, broad] = [host.clientHeight - MARGIN.top, host.clientWidth - MARGIN.left];
    host.scrollTop = Math.min(Math.max(host.scrollTop, top + this.height - tall), top);
    host.scrollLeft = Math.min(Math.max(host.scrollLeft, left + this.width - broad), left);
    this.show(row, col);
    this.draw();
  }

  key(event) {
    const [row, col] = this.at;
    const [bottom, right] = [this.picture.rows - 1, this.picture.cols - 1];
    const whole = event.ctrlKey || event.metaKey;
    const target = {
      ArrowUp: [row - 1, col], ArrowDown: [row + 1, col], ArrowLeft: [row, col - 1], ArrowRight: [row, col + 1],
      PageUp: [row - 8, col], PageDown: [row + 8, col], Home: [whole ? 0 : row, 0], End: [whole ? bottom : row, right],
    }[event.key];
    if (!target || event.altKey) return;
    event.preventDefault();
    this.move(Math.min(Math.max(target[0], 0), bottom), Math.min(Math.max(target[1], 0), right));
    this.moved?.(...this.at);
  }
}
