// The picture and its few controls alone, full screen: a page of 960 × 540 that grows with the screen, its letters too.

const [WIDE, HIGH] = [960, 540];
const REFUSED = "The browser does not let this page fill the screen.";

export class Projector {
  // onChange(): the picture is alone, or no longer; onRefused(why): it cannot be.
  constructor(root, onChange, onRefused) {
    Object.assign(this, { root, onRefused });
    root.addEventListener("fullscreenchange", () => {
      root.classList.toggle("lk-projected", this.isOn);
      this.fit();
      onChange();
    });
  }

  get isOn() {
    return this.root.matches(":fullscreen");
  }

  // How many times as large as in a page everything is.
  get enlargement() {
    return this.isOn ? Math.max(1, Math.min(this.root.clientWidth / WIDE, this.root.clientHeight / HIGH)) : 1;
  }

  fit() {
    this.root.style.setProperty("--lk-enlargement", this.enlargement);
  }

  turn() {
    const isDone = this.isOn ? document.exitFullscreen() : this.root.requestFullscreen?.() ?? Promise.reject();
    isDone.catch(() => this.onRefused(REFUSED));
  }
}
