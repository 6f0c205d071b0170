"""Read what the notebook sends to a rank that runs cells, also while it is in one.

A thread reads. It hands calls to the main thread, answers questions itself, and ends the call that
the main thread is in when the notebook says so: it interrupts it, and shuts the sockets of the
process groups, so that a collective that waits raises.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

from labkit.ranks.faults.frames import outwards
from labkit.ranks.faults.rank_watch import OWN_HANDLERS, WATCHES
from labkit.ranks.messages.connection import receive_message
from labkit.ranks.messages.message import EndCall, Message, Question

FIRST_INTERRUPT_S = 0.1  # so long the main thread may take to leave before its collectives are ended
SOON_S = 0.01
INTERRUPT_S = 0.5  # so often the main thread is interrupted after that


class CallReader:
    """The thread that reads, and the calls that it has read.

    ``end_waits(firmly)`` ends this rank's waits for other ranks. ``send`` sends a message to the
    notebook, and is never interrupted half-way.
    """

    def __init__(
        self,
        connection: socket.socket,
        send: Callable[[Message], None],
        end_waits: Callable[[bool], None],
    ):
        self._connection, self._send, self._end_waits = connection, send, end_waits
        self._calls: SimpleQueue[tuple[bytearray, bytearray] | None] = SimpleQueue()
        self._begun, self._ended = 0, 0  # calls, by the main thread
        self._has_left = threading.Event()
        self._interrupts = False
        OWN_HANDLERS.append(self.interrupt)
        threading.Thread(target=self._read, name=WATCHES, daemon=True).start()

    # --- in the main thread -----------------------------------------------------------------------

    def receive(self) -> tuple[bytearray, bytearray]:
        """Return the next call. EOFError once the notebook has gone."""
        call = self._calls.get()
        if call is None:
            raise EOFError
        return call

    def begin(self) -> None:
        """Note that the call begins: it may be interrupted from now on."""
        signal.signal(signal.SIGINT, self.interrupt)  # a cell may have set another
        self._has_left.clear()
        self._begun += 1

    def leave(self) -> None:
        """Note that the call has ended: what comes now is not interrupted."""
        self._ended = self._begun
        self._has_left.set()

    def interrupt(self, _number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt in a call that is to end, once for each signal sent for it."""
        if self._interrupts and self._ended < self._begun and not self._sends(frame):
            self._interrupts = False
            raise KeyboardInterrupt

    def _sends(self, frame: FrameType | None) -> bool:
        code = getattr(self._send, "__code__", None)
        return any(each.f_code is code for each in outwards(frame))

    # --- in the thread ----------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                message, call = receive_message(self._connection)
                if call:
                    self._calls.put((message, call))
                else:
                    self._handle(pickle.loads(message))
        except (EOFError, OSError):  # the notebook has gone
            self._calls.put(None)

    def _handle(self, request: EndCall | Question) -> None:
        if isinstance(request, EndCall):
            self._end(request.number)
            return
        with contextlib.suppress(Exception):  # then there is no answer
            self._send(request.answer(*request.args))

    def _end(self, number: int) -> None:
        """Have the main thread leave a call, which it may not have begun yet.

        It is interrupted first. A collective is ended only once it must have been waiting for a
        while: gloo may not notice that its sockets are shut while it begins.
        """
        main, tries = threading.main_thread().ident, 0
        assert main is not None
        while self._ended < number:
            if self._begun == self._ended:  # none has begun yet
                time.sleep(SOON_S)
                continue
            if tries > 0:
                with contextlib.suppress(Exception):  # this thread has to go on
                    self._end_waits(tries > 1)
            self._interrupts = True
            signal.pthread_kill(main, signal.SIGINT)
            self._has_left.wait(INTERRUPT_S if tries else FIRST_INTERRUPT_S)
            tries += 1
        self._interrupts = False
