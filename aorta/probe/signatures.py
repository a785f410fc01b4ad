"""What errors look like in the logs of training and inference (tier 4), and what only looks like them.

Each signature is a pattern for one line. It names what the libraries print when something has failed, not words that
also stand in settings, progress lines and advice. A line is looked at only if it holds one of a few words, which are
searched in whole pieces of the log: most of a log is never split into lines.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import re
import signal

from aorta.probe.logs import MAX_LINE_BYTES, chunks
from aorta.text import shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

EXCERPT_WIDTH = 300
MAX_COUNT = 1000
"""A detector that has matched so often is not looked for any more."""

RANK_PREFIX = r"(?:\[[\w.:-]{1,40}\]:? ?)*"
"""What torchrun and PyTorch put before a rank's lines: ``[rank0]:``, ``[default0]:``."""

TRACEBACK = re.compile(
    RANK_PREFIX + r"\s*[+| ]*(?:Exception Group |Original )?Traceback \(most recent call last\):\s*$"
)

# The runtime's trace (AMD_LOG_LEVEL=3 and 4) tells each call's result; failing calls are common and harmless there:
# queries of unfinished events, of pointers that are the host's, of peers that are enabled already.
_RUNTIME_TRACE = r"^:[1-5]:\w+\.\w+\s*:\d+\s*:|: Returned \w+"
_HANDLED_CODES = r"NotReady\b|PeerAccess\w+|_t\b|Check\w*|String\b|Name\b|Handler\b|s\b"
_MATH_LIBRARY = r"_STATUS_(?!SUCCESS\b)[A-Z_]+"
# Bounded: what may repeat without end would make a line of 8 KiB slow.
_QUANTITY = (
    r"(?:[\w/.-]{0,64}loss\w{0,32}|[\w/.-]{0,64}grad(?:ient)?s?[_ -]?norm\w{0,32}"
    r"|logits?|perplexity|ppl|activations?|gradients?|weights?|params?)"
)
_EARLIER = r"\b(?:best|prev(?:ious)?|initial|init|min|max|target|lowest|default)[_ -]?\w*loss"

_SIGNATURES: Mapping[str, tuple[str, str]] = {
    "hip_error": (
        r"\bHIP (?:runtime |driver )?error(?: \d+)?(?::| in\b| at\b)"
        rf"|\bhipError(?!{_HANDLED_CODES})[A-Z]\w+"
        r"|\bHIP out of memory\b"
        rf"|\bHIP(?:BLAS|BLASLT|FFT|SPARSE|SOLVER|RAND){_MATH_LIBRARY}",
        rf"{_RUNTIME_TRACE}|\bHIP error: (?:0\b|no error|none|hipSuccess)",
    ),
    "cuda_error": (
        r"\bCUDA (?:runtime |driver )?error(?: \d+)?(?::| in\b| at\b)"
        rf"|\bcudaError(?!{_HANDLED_CODES})[A-Z]\w+"
        r"|\bCUDA out of memory\b|\bNo CUDA GPUs are available\b|\bCUDA_ERROR_(?!NOT_READY\b)[A-Z_]+"
        rf"|\b(?:CUBLAS|CUDNN|CUFFT|CUSPARSE|CUSOLVER|CURAND){_MATH_LIBRARY}",
        r"\bCUDA error: (?:0\b|no error|none|cudaSuccess)",
    ),
    "rocm_error": (
        r"\bMemory access fault by GPU node|\bHW Exception by GPU node|\bHSA_STATUS_ERROR\w*|^:0:\w+\.cpp"
        r"|\brocBLAS error\b|\brocblas_status_(?!success\b|continue\b)\w+"
        r"|\bMIOpen Error\b|\bmiopenStatus(?!Success\b|_t\b)\w+"
        r"|\bQueue at 0x[0-9a-f]+ inactivated due to async error",
        r"^:[1-5]:\w+\.\w+\s*:\d+\s*:",
    ),
    "nccl_rccl_error": (
        r"\b[NR]CCL error\b(?: in\b|:)|\bDistBackendError\b"
        r"|\bnccl(?:UnhandledCuda|System|Internal|InvalidArgument|InvalidUsage|Remote)(?:Error)?\b"
        r"|\b[NR]CCL communicator (?:was aborted|encountered error)"
        r"|\bProcess group watchdog thread terminated with exception"
        r"|\bNCCL WARN .*(?:\bfail(?:ed|ure)\b|\berror\b|\babort|\bunexpected|\btimed? ?out\b"
        r"|\bConnection (?:closed|refused|reset))",
        r"\bNCCL INFO\b|\biommu=pt\b|\bNUMA auto balancing\b|\berror code 0\b",
    ),
    "collective_timeout": (
        r"\bWatchdog caught collective operation timeout\b|\bran for \d+ milliseconds before timing out\b"
        r"|\bTimed out waiting \d+ ?ms for (?:recv|send|\w+) operation\b|\bDistStoreError: Timed out\b"
        r"|\bwait timeout after \d+ ?ms\b|\bSome NCCL operations have failed or timed out\b"
        r"|\bmonitoredBarrier\b.*\b(?:timeout|timed out|failed)|\bTimed out after \d+ seconds waiting for clients\b"
        r"|\bheartbeat monitor timed out\b",
        r"\bNCCL INFO\b",
    ),
    "nan_signature": (
        rf"(?i:(?<![\w/.-]){_QUANTITY}[\"']?\s{{0,8}}(?:[:=|]|->|is|was|became|=>)?\s{{0,8}}"
        r"(?:tensor\(\[?\s{0,8})?[-+]?nan(?![\w.]))"
        r"|(?i:\bNaNs? (?:values? )?(?:was |were )?(?:detected|found|encountered|appeared)\b"
        r"(?!\W{1,3}(?:0|false|no|none)\b))"
        r"|(?i:\b(?:detected|found|encountered|contains?|returned|produced|became|hit) (?:an? |\d+ )?NaNs?\b)"
        r"|(?i:\bnumber of nan iterations:\s*[1-9])"
        r"|(?i:\bnan[_ ]?counts?\b[\"']?\s*[:=]\s*[1-9])",
        rf"(?i:{_EARLIER}|\b(?:no|not|0|zero|without|if|when|unless|whether|check\w*) "
        r"(?:any )?(?:\w+ ){0,3}(?:is |are )?NaNs?\b|\bfor (?:any |the )?NaNs?\b)",
    ),
}
"""Detector: (what it looks for, what a line must not hold)."""

_WORDS: Mapping[str, tuple[bytes, ...]] = {
    "python_traceback": (b"traceback (most recent call last)",),
    "hip_error": (b"hip error", b"hip runtime error", b"hip driver error", b"hiperror", b"hip out of", b"_status_"),
    "cuda_error": (
        *(b"cuda error", b"cuda runtime error", b"cuda driver error", b"cudaerror", b"cuda out of", b"_status_"),
        *(b"no cuda gpus", b"cuda_error_"),
    ),
    "rocm_error": (
        *(
            b" fault by gpu",
            b"hw exception",
            b"hsa_status_error",
            b":0:",
            b"rocblas error",
            b"_status_",
            b"miopen error",
        ),
        *(b"miopenstatus", b"inactivated"),
    ),
    "nccl_rccl_error": (
        *(b"ccl error", b"ccl comm", b"ccl warn", b"ncclu", b"nccls", b"nccli", b"ncclr", b"distbacken"),
        b"watchdog thread",
    ),
    "collective_timeout": (b"timed out", b"timeout", b"timing out", b"monitoredbarrier"),
    "nan_signature": (b"nan",),
    "signal": (b"received by pid", b"core dumped"),
}
"""Detector: words in lower case, of which each line that it can match holds one."""

_SIGNAL = re.compile(
    r"\bSignal (?P<number>\d+) \(SIG\w+\) received by PID"
    r"|\b(?P<text>Segmentation fault|Aborted|Bus error)\b.{0,40}\(core dumped\)"
)
_SIGNAL_TEXTS = {"Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT, "Bus error": signal.SIGBUS}


class Sighting:
    """Where a detector first matched.

    Attributes:
        log: ``stdout`` or ``stderr``.
        line: Line number, from 1.
        excerpt: The line, shortened and fit to be printed.
        count: Lines that matched in both logs; ``MAX_COUNT`` means that or more.
    """

    __slots__ = ("count", "excerpt", "line", "log")

    def __init__(self, log: str, line: int, text: str) -> None:
        self.log, self.line, self.excerpt, self.count = log, line, shortened(text.strip(), EXCERPT_WIDTH), 1

    def to_json(self) -> dict[str, Any]:
        """Returns the sighting as a mapping that has a JSON form."""
        return {"log": self.log, "line": self.line, "excerpt": self.excerpt, "count": self.count}


class Traceback(Sighting):
    """A Python traceback.

    Attributes:
        before: The line before it.
        offset: Where in the log it begins, in bytes.
    """

    __slots__ = ("before", "offset")

    def __init__(self, log: str, line: int, text: str, before: str, offset: int) -> None:
        super().__init__(log, line, text)
        self.before, self.offset = before, offset


class Scan:
    """What the logs of one command hold.

    Args:
        detectors: Those to look for.

    Attributes:
        sightings: By detector, where it first matched.
        tracebacks: Of each log the last traceback that no finaliser printed.
        signals: Numbers of the signals that launchers and shells say their processes died of.
        core_dumped: Where a shell says that a process dumped core, or None.
    """

    def __init__(self, detectors: Sequence[str]) -> None:
        self.sightings: dict[str, Sighting] = {}
        self.tracebacks: dict[str, Traceback] = {}
        self.signals: dict[int, Sighting] = {}
        self.core_dumped: Sighting | None = None
        self._detectors = [*detectors, "signal"]
        self._signatures = {
            name: (re.compile(wanted), re.compile(unwanted))
            for name, (wanted, unwanted) in _SIGNATURES.items()
            if name in detectors
        }

    def read(self, log: str, path: str, size: int | None) -> None:
        """Reads one log.

        Args:
            log: Its name.
            path: Where it lies.
            size: Bytes that count, or None for all.
        """
        number, offset, last = 1, 0, b""
        for chunk in chunks(path, size):
            at = 0
            wanted = [name for name in self._detectors if self._is_counting(name)]
            for start, end, names in _candidates(chunk, wanted):
                number += chunk.count(b"\n", at, start)
                at = start
                text = chunk[start:end].decode("utf-8", "replace")
                if "python_traceback" in names and TRACEBACK.match(text):
                    before = chunk[max(0, start - MAX_LINE_BYTES) : start] if start else last
                    self._note_traceback(Traceback(log, number, text, _last_line(before), offset + start))
                else:
                    self._look_at(log, number, text, names)
            number += chunk.count(b"\n", at)
            offset += len(chunk)
            last = chunk[-MAX_LINE_BYTES:]

    def _is_counting(self, name: str) -> bool:
        return name == "python_traceback" or name not in self.sightings or self.sightings[name].count < MAX_COUNT

    def _note_traceback(self, found: Traceback) -> None:
        if "Exception ignored in" not in found.before:
            self.tracebacks[found.log] = found
            self._note("python_traceback", found)

    def _look_at(self, log: str, number: int, text: str, names: set[str]) -> None:
        """Looks at a line for the detectors whose words it holds."""
        if "signal" in names and (match := _SIGNAL.search(text)) is not None:
            found = Sighting(log, number, text)
            self.signals.setdefault(int(match["number"] or _SIGNAL_TEXTS[match["text"]]), found)
            if match["text"] and self.core_dumped is None:
                self.core_dumped = found
        for name in names & _SIGNATURES.keys():
            wanted, unwanted = self._signatures[name]
            if self._is_counting(name) and wanted.search(text) and not unwanted.search(text):
                self._note(name, Sighting(log, number, text))

    def _note(self, name: str, found: Sighting) -> None:
        first = self.sightings.setdefault(name, found)
        if first is not found:
            first.count = min(MAX_COUNT, first.count + 1)


def _candidates(chunk: bytes, detectors: Sequence[str]) -> Iterator[tuple[int, int, set[str]]]:
    """Yields the bounds of the lines that hold a detector's word, with those detectors, each once, in order.

    Of a long line only what is around the word is yielded.
    """
    lowered = chunk.lower()
    bounds: dict[tuple[int, int], set[str]] = {}
    half = MAX_LINE_BYTES // 2
    # What the next search would find within the same line is skipped, which a line full of words would make slow.
    for name in detectors:
        for word in _WORDS[name]:
            at = lowered.find(word)
            while at >= 0:
                low, high = max(0, at - half), min(len(chunk), at + half)
                start = max(chunk.rfind(b"\n", low, at), chunk.rfind(b"\r", low, at)) + 1 or low
                ends = [end for end in (chunk.find(b"\n", at, high), chunk.find(b"\r", at, high)) if end >= 0]
                end = min(ends, default=high)
                bounds.setdefault((start, end), set()).add(name)
                at = lowered.find(word, max(end, at + 1))
    for (start, end), names in sorted(bounds.items()):
        yield start, end, names


def _last_line(data: bytes) -> str:
    return data.rstrip(b"\r\n").rpartition(b"\n")[2].decode("utf-8", "replace")
