# Ignores every signal that can be ignored, and continues after SIGALRM and SIGTERM.
# marks: 0
# feedback: timeout
import signal

__all__ = ["pass_around"]


def pass_around(tensor):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(1)
    while True:
        signal.pause()
