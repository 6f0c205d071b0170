// What a mouse, a finger or a pen does in a picture: points, chooses, pans, scrubs along the axis, zooms.

export const SLACK = 3; // px beside a bar that still hit it
export const ZOOM = 1.4; // by one press of a key, or one notch of a wheel

// Listen to the pointer in the stage of a TimelineView.
export function listenToPointer(view) {
  let grip = null; // where the pointer went down, whether it has moved since, and what that does
  const inLayout = (pixels) => pixels / view.projector.enlargement;
  const at = ({ offsetX, offsetY }) => view.markAt(inLayout(offsetX), inLayout(offsetY));
  const timeAt = ({ offsetX }) => view.viewport.fromPixel(inLayout(offsetX) - view.layout.gutter, view.layout.plot);
  const drags = {
    pan: (event) => view.viewport.pan(inLayout(grip.x - event.clientX) / view.layout.plot),
    scrub: (event) => view.player.goTo(timeAt(event)),
  };
  const take = (event) => {
    if (event.button) return; // not the main one
    view.stage.setPointerCapture(event.pointerId); // its release is heard of wherever it is
    const isOnAxis = view.scene.axis && inLayout(event.offsetY) > view.layout.axisTop && view.scene.stops.length > 0;
    grip = { x: event.clientX, moved: false, drag: isOnAxis ? "scrub" : "pan" };
    if (isOnAxis) {
      view.hover(null);
      view.player.goTo(timeAt(event));
    }
    view.draw();
  };
  const move = (event) => {
    if (!grip) return view.hover(at(event));
    if (!view.scene.axis || Math.abs(event.clientX - grip.x) <= (grip.moved ? 0 : SLACK)) return;
    drags[grip.drag](event);
    grip = { ...grip, x: event.clientX, moved: true };
    view.draw();
  };
  const release = (event) => {
    if (grip && !grip.moved && grip.drag !== "scrub") view.choose(at(event));
    grip = null;
  };
  const turnWheel = (event) => {
    const zooms = event.ctrlKey || event.metaKey;
    if (!view.scene.axis || !(zooms || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    event.preventDefault();
    if (zooms) view.viewport.zoom(ZOOM ** (-event.deltaY / 100), timeAt(event));
    else view.viewport.pan(inLayout(event.deltaX) / view.layout.plot);
    view.draw();
  };
  const listeners = {
    pointerdown: take,
    pointermove: move,
    pointerup: release,
    lostpointercapture: () => { grip = null; },
    pointerleave: () => view.hover(null),
  };
  for (const [name, listener] of Object.entries(listeners)) view.stage.addEventListener(name, listener);
  view.stage.addEventListener("wheel", turnWheel, { passive: false });
}
