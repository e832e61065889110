"""What became of a candidate in the child process, in words that complete its name.

    torch's bf16 product: dies with SIGILL here

A verdict is FINE or one of: "dies with SIGILL", "hangs: no result within 20 s", "gives wrong numbers: off by 0.31",
"refused by torch: ..." (an error that a script would see as such), "not tried: ..." (the candidate is not to blame).
"""

import signal
from collections.abc import Mapping

FINE = "fine"
_DIES, _HANGS, _WRONG, _REFUSED, _NOT_TRIED = (
    "dies with ", "hangs: ", "gives wrong numbers: ", "refused by torch: ", "not tried: ",
)  # fmt: skip
_NOT_ITS_FAULT = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # sent by others: out of memory, say
_OWNERS = {"torch": "torch's", "onednn": "oneDNN's", "native": "our"}
OPERATIONS = ("matmul", "convolution", "attention", "LSTM")  # of torch's, that models run in bf16 besides products


def product_name(precision: str, backend: str) -> str:
    """ "torch's bf16 product", of a backend of ops/linear.py."""
    return f"{_OWNERS[backend]} {precision} product"


def operation_name(precision: str, operation: str) -> str:
    return f"torch's {precision} {operation}"


def of_signal(number: int, limit: float) -> str:
    """Of a candidate whose process was ended by a signal; its own alarm, set to `limit` seconds, among them."""
    if number == signal.SIGALRM:
        return f"{_HANGS}no result within {limit:g} s"
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    return f"{_NOT_TRIED}its process was ended by {name}" if number in _NOT_ITS_FAULT else f"{_DIES}{name}"


def of_exit(code: int) -> str:
    return f"{_DIES}exit code {code}"


def of_error(error: float, tolerance: float) -> str:
    """Of a result that is off by so much, relative to its size. NaN is wrong."""
    return FINE if error <= tolerance else f"{_WRONG}off by {error:.2g}"


def of_exception(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, MemoryError) or "can't allocate memory" in lines[0]:  # the latter is torch's RuntimeError
        return f"{_NOT_TRIED}no memory"
    return f"{_REFUSED}{lines[0][:200]}"


def not_tried(why: str) -> str:
    return f"{_NOT_TRIED}{why}"


def is_settled(verdict: str) -> bool:
    """Whether it need not be asked for again."""
    return not verdict.startswith(_NOT_TRIED)


def is_harmful(verdict: str) -> bool:
    """Whether a model that runs into it is worse off than with an error message."""
    return verdict != FINE and not verdict.startswith(_REFUSED)


def lines(verdicts: Mapping[str, str]) -> list[str]:
    """Those that are not fine, as sentences."""
    bad = {name: verdict for name, verdict in verdicts.items() if verdict != FINE}
    return [f"{name}: {verdict}" + " here" * verdict.startswith(_DIES) for name, verdict in bad.items()]
