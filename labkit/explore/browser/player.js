// Playing a picture: a step by hand, or one after the other by a timer, and the button that says which.

import { Playback } from "./playback.js";

export class Player {
  // onStep(): another step is shown, or none.
  constructor(button, onStep) {
    Object.assign(this, { button, onStep, playback: new Playback([]) });
  }

  // Take the stops of another picture, and the step at which it rests.
  follow(positions, rest) {
    this.pause();
    this.playback = new Playback(positions, rest);
  }

  playOrPause() {
    if (this.timer) return this.pause();
    if (this.playback.isAtEnd) this.playback.step = -1;
    this.showTimer(setInterval(() => this.goOn(1), this.playback.intervalMs));
    this.goOn(1);
  }

  pause() {
    clearInterval(this.timer);
    this.showTimer(null);
  }

  // The button says what it would do now.
  showTimer(timer) {
    this.timer = timer;
    this.button.textContent = timer ? "❚❚" : "▶";
    this.button.ariaLabel = this.button.title = timer ? "Pause" : "Play";
  }

  stop() {
    this.pause();
    this.playback.stop();
    this.onStep();
  }

  moveStep(direction) {
    this.pause();
    this.goOn(direction);
  }

  // Go a step on or back.
  goOn(direction) {
    this.playback.move(direction);
    if (!this.playback.isOn) return this.stop();
    if (this.playback.isAtEnd) this.pause();
    this.onStep();
  }

  // Go to the last step before a place on the axis.
  goTo(place) {
    this.pause();
    this.playback.goTo(place);
    this.onStep();
  }
}
