"""What errors look like in real logs (tier 4), and what only looks like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.probe.logs import CHUNK_BYTES, MAX_LINE_BYTES, lines
from aorta.probe.signatures import MAX_COUNT, Scan

from .conftest import Judge

TIER4 = ["hip_error", "cuda_error", "rocm_error", "nccl_rccl_error", "collective_timeout", "nan_signature"]

ERRORS = [
    ("hip_error", "RuntimeError: HIP error: an illegal memory access was encountered"),
    ("hip_error", "[rank3]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total"),
    ("hip_error", "hipErrorLaunchFailure: unspecified launch failure at kernels/fused_attn.hip:210"),
    ("hip_error", "RuntimeError: CUDA-less build: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    ("hip_error", "HIP error 700 at csrc/quantize.cu:88"),
    ("cuda_error", "RuntimeError: CUDA error: device-side assert triggered"),
    ("cuda_error", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"),
    ("cuda_error", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
    ("cuda_error", "terminate called: cudaErrorIllegalAddress"),
    ("cuda_error", "RuntimeError: No CUDA GPUs are available"),
    ("rocm_error", "Memory access fault by GPU node-4 (Agent handle: 0x55d0) on address 0x7f2c. Reason: Unknown."),
    (
        "rocm_error",
        ":0:rocdevice.cpp            :2984: 102 us: [pid:7 tid:0x7f] Callback: Queue 0x7f aborting with error",
    ),
    ("rocm_error", "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources."),
    ("rocm_error", "HW Exception by GPU node-2 (Agent handle: 0x55) reason :GPU Hang"),
    ("rocm_error", "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat"),
    ("rocm_error", "MIOpen Error: /src/ocl/convolutionocl.cpp:558: Forward error: workspace too small"),
    ("nccl_rccl_error", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process"),
    ("nccl_rccl_error", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed"),
    ("nccl_rccl_error", "gpu07:911:1024 [3] misc/ibvwrap.cc:188 NCCL WARN Call to ibv_reg_mr failed"),
    (
        "nccl_rccl_error",
        "n1:5:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4791> with error 12, opcode 0",
    ),
    ("nccl_rccl_error", "[rank1]:[E] [PG 0 Rank 1] Process group watchdog thread terminated with exception: HIP"),
    (
        "collective_timeout",
        "[rank2]:[E] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=93,"
        " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600041 milliseconds before timing out.",
    ),
    (
        "collective_timeout",
        "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    ),
    (
        "collective_timeout",
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 7/8 joined.",
    ),
    ("collective_timeout", "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0"),
    ("nan_signature", "step 1200 | loss: nan | grad_norm: 0.91"),
    ("nan_signature", "{'loss': nan, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': 0.13}"),
    ("nan_signature", "Epoch 3 [ 40/500] train/loss=NaN lr=1.0e-4"),
    ("nan_signature", "iteration 200/ 5000 | lm loss: NAN | number of nan iterations:   0 |"),
    ("nan_signature", " iteration 7 | number of skipped iterations: 0 | number of nan iterations:   3 |"),
    ("nan_signature", "loss tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)"),
    ("nan_signature", "Loss is nan, stopping training"),
    ("nan_signature", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
    ("nan_signature", "ERROR: NaN detected in gradients of decoder.layers.3.mlp"),
    ("nan_signature", "grad_norm -nan at step 10"),
    ("nan_signature", "nan_count=14 in layer 3"),
]

HARMLESS = [
    "Downloading finance-alpaca (nanogpt) dataset: nan-free subset, 120 nanoseconds a token",
    "args: Namespace(check_for_nan_in_loss_and_grad=True, nan_to_num=False, loss='cross_entropy')",
    " iteration 7 | lm loss: 2.31 | number of skipped iterations: 0 | number of nan iterations:   0 |",
    "Checking for NaN in gradients every 100 steps",
    "No NaNs found in checkpoint; nan_count=0; NaN detected: False",
    "best_val_loss: nan, patience 3 (initial value)",
    "if loss is nan: skip the batch",
    "val/auc: nan (only one class present in y_true)",
    "Banana loss: 0.3, Nancy: 1",
    "gpu07:911:1024 [3] NCCL INFO NET/Plugin: Could not find: librccl-net.so. Using internal network plugin. error 2",
    "gpu07:911:1024 [3] NCCL INFO comm 0x55 rank 3 nranks 8 cudaDev 3 busId d3000 - Init COMPLETE",
    'gpu07:911:911 [0] NCCL WARN Missing "iommu=pt" from kernel command line which can lead to a hang!',
    "gpu07:911:911 [0] NCCL WARN NUMA auto balancing enabled which can lead to variability in the RCCL performance!",
    "Setting TORCH_NCCL_ASYNC_ERROR_HANDLING=1 NCCL_DEBUG=INFO TORCH_NCCL_BLOCKING_WAIT=0",
    "[rank0]:[I] ProcessGroupNCCL initialization options: size: 8, TIMEOUT(ms): 600000, USE_HIGH_PRIORITY_STREAM: 0",
    "init_process_group(backend='nccl', timeout=datetime.timedelta(seconds=1800))",
    ":3:hip_event.cpp            :450 : 311 us: [pid:9 tid:0x7f] hipEventQuery: Returned hipErrorNotReady : ",
    ":3:hip_memory.cpp :3700: 312 us: [pid:9 tid:0x7f] hipPointerGetAttributes: Returned hipErrorInvalidValue",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "HIP error checking enabled; hipError_t handlers installed; cudaErrorCheck on",
    "CUDA error: no error",
    "training error: 0.023, relative error at step 10: 1e-5, validation errors: 0",
    "WARNING: retry in case of ncclResult_t failure enabled",
    "rocblas_status_success",
    "MIOpen(HIP): Warning [IsEnoughWorkspace] [GetSolutionsFallback WTI] Solver <GemmFwdRest>, workspace required: 10",
    "UserWarning: expandable_segments not supported on this platform (CUDAAllocatorConfig.h:28)",
    "nan",
    "mean=0.1 std=nan",
]


def fired(judge: Judge, text: str) -> list[str]:
    """What of tier 4 fires on a log that holds a line between ordinary ones."""
    result = judge(f"step 1 loss 2.5\n{text}\nstep 2 loss 2.4\n")
    assert not result.error_detectors_fired
    return result.failure_detectors_fired


@pytest.mark.parametrize(("detector", "text"), ERRORS)
def test_an_error_fires_its_detector(judge: Judge, detector: str, text: str) -> None:
    """A line as the library prints it is found, in a command that ended with 0 too."""
    assert detector in fired(judge, text)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_line_fires_nothing(judge: Judge, text: str) -> None:
    """Settings, progress, advice and the runtime's trace are no errors."""
    assert fired(judge, text) == []


@pytest.mark.parametrize(("detector", "text"), ERRORS)
def test_a_detector_can_be_disabled(judge: Judge, detector: str, text: str) -> None:
    """By its name, and with its tier."""
    assert detector not in judge(text, settings={"disable_detectors": [detector]}).failure_detectors_fired
    assert judge(text, settings={"disable_detector_tiers": ["tier4"]}).verdict == "pass"


def test_a_hip_memory_error_is_no_cuda_error(judge: Judge) -> None:
    """PyTorch's exception is of torch.cuda on ROCm too; only what it says counts."""
    assert fired(judge, "torch.cuda.OutOfMemoryError: HIP out of memory.") == ["hip_error"]


def test_the_capture_names_log_line_and_excerpt(judge: Judge) -> None:
    """The first match is shown, all are counted, and control characters are not passed on."""
    result = judge(stderr="a\nb\n\x1b[31mloss: nan\x1b[0m\nc\nloss: nan\n")
    assert result.capture["nan_signature"] == {"log": "stderr", "line": 3, "excerpt": "?[31mloss: nan?[0m", "count": 2}


def test_progress_bars_are_lines_of_their_own(judge: Judge) -> None:
    """What a carriage return overwrites is found, and its line number is an editor's."""
    result = judge("start\n 10%|# | loss: 2.1\r 20%|##| loss: nan\r 30%|##| loss: nan\rdone\n")
    assert result.capture["nan_signature"]["line"] == 2
    assert result.capture["nan_signature"]["excerpt"] == "20%|##| loss: nan"


def test_a_line_at_the_end_of_a_piece_keeps_its_number(judge: Judge) -> None:
    """Neither the number nor the line is lost where the log is cut into pieces."""
    filler = "x" * 99 + "\n"
    count = CHUNK_BYTES // 100
    for before in (count - 1, count, count + 1, 3 * count):
        assert judge(filler * before + "loss: nan\n" + filler).capture["nan_signature"]["line"] == before + 1


def test_a_log_without_a_line_end_is_searched(judge: Judge) -> None:
    """Megabytes on one line take no more memory, and what stands in them is found."""
    assert judge("x" * (3 * CHUNK_BYTES) + " loss: nan " + "y" * CHUNK_BYTES).verdict == "fail"


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Reading 32 MiB takes a few pieces' memory."""
    import tracemalloc

    path = tmp_path / "big.log"
    with path.open("wb") as file:
        for _ in range(32):
            file.write((b"step 17 loss 2.25 error 0.1 throughput 1200 tokens/s\n" * 20000)[: 1 << 20])
    tracemalloc.start()
    scan = Scan(TIER4)
    scan.read("stdout", str(path), None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scan.sightings == {}
    assert peak < 24 << 20


def test_counting_ends(judge: Judge) -> None:
    """A log that holds nothing else is not matched for ever."""
    assert judge("loss: nan\n" * 3000).capture["nan_signature"]["count"] == MAX_COUNT


def test_only_what_came_before_the_end_counts(judge: Judge) -> None:
    """What a command prints because it is being ended is no error of its own."""
    text = "step 1\nRuntimeError: HIP error: unspecified launch failure\n"
    assert judge(text, log_bytes={"stdout": 7}, timed_out=True, exit_code=-9).verdict == "error"
    assert judge(text, log_bytes={"stdout": len(text)}, timed_out=True, exit_code=-9).verdict == "fail"


def test_lines_are_bounded_and_numbered(tmp_path: Path) -> None:
    """A long line comes in pieces under one number, undecodable bytes are replaced."""
    path = tmp_path / "log"
    path.write_bytes(b"\xff\n\n" + b"z" * (MAX_LINE_BYTES + 1) + b"\nend")
    found = [(number, len(text)) for number, text in lines(str(path), None)]
    assert found == [(1, 1), (2, 0), (3, MAX_LINE_BYTES), (3, 1), (4, 3)]


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    """A command that could not be started has no logs."""
    assert list(lines(str(tmp_path / "none"), None)) == []
