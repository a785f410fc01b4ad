// Times a matrix product or a triad, and compares every element of the last result with whole-number arithmetic.
//
// usage: perf gemm|triad SIZE ITERS WARMUP
//
// gemm: C = A B for square float32 matrices of SIZE rows. triad: a = b + 3 c for float32 vectors of SIZE elements. All
// inputs are small whole numbers and no sum reaches 2^24, so float32 holds each value exactly and the order of the
// additions is of no matter. aorta/workloads/hrx_perf.py computes the checksum by itself, from the same formulas.
#include "report.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace {

constexpr int kTile = 4;     // each thread computes kTile x kTile elements of C from registers
constexpr int kThreads = 16;  // threads a side of a block
constexpr int kBlock = 256;  // threads of a triad's block
constexpr float kFactor = 3.0f;

int a_value(size_t i, size_t k) { return static_cast<int>((i + k) % 4); }
int b_value(size_t k, size_t j) { return static_cast<int>((2 * k + j) % 3); }
int triad_b_value(size_t i) { return static_cast<int>(i % 7); }
int triad_c_value(size_t i) { return static_cast<int>(i % 5); }

__global__ void gemm(const float* a, const float* b, float* c, size_t n) {
  const size_t row = (static_cast<size_t>(blockIdx.y) * blockDim.y + threadIdx.y) * kTile;
  const size_t column = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kTile;
  float sum[kTile][kTile] = {};
  for (size_t k = 0; k < n; ++k) {
    float left[kTile];
    float right[kTile];
    for (int t = 0; t < kTile; ++t) {
      left[t] = row + t < n ? a[(row + t) * n + k] : 0.0f;
      right[t] = column + t < n ? b[k * n + column + t] : 0.0f;
    }
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < kTile; ++j) {
        sum[i][j] += left[i] * right[j];
      }
    }
  }
  for (int i = 0; i < kTile; ++i) {
    for (int j = 0; j < kTile; ++j) {
      if (row + i < n && column + j < n) {
        c[(row + i) * n + column + j] = sum[i][j];
      }
    }
  }
}

__global__ void triad(float* a, const float* b, const float* c, size_t n) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) {
    a[i] = b[i] + kFactor * c[i];
  }
}

// A device array of `count` floats, element i from value(i).
template <typename Value>
float* device_array(size_t count, Value value) {
  std::vector<float> host(count);
  for (size_t i = 0; i < count; ++i) {
    host[i] = static_cast<float>(value(i));
  }
  float* pointer = nullptr;
  CHECK_HIP(hipMalloc(reinterpret_cast<void**>(&pointer), count * sizeof(float)));
  CHECK_HIP(hipMemcpy(pointer, host.data(), count * sizeof(float), hipMemcpyHostToDevice));
  return pointer;
}

// Runs `launch` WARMUP + ITERS times and reports the wall time of each of the last ITERS, launch included.
template <typename Launch>
void time_it(Launch launch, float* result, size_t count, long iters, long warmup) {
  for (long i = 0; i < warmup; ++i) {
    launch();
    CHECK_HIP(hipGetLastError());
  }
  // All bytes 0xff are a NaN, so that what the timed iterations do not write cannot pass for a result of the warm-up.
  CHECK_HIP(hipMemset(result, 0xff, count * sizeof(float)));
  CHECK_HIP(hipDeviceSynchronize());
  for (long i = 0; i < iters; ++i) {
    const DeviceTimer timer;
    launch();
    CHECK_HIP(hipGetLastError());
    std::printf("aorta step_ms %.6f\n", timer.stop());
  }
}

// Compares each element, and adds up those that are finite numbers of a size that a right element can have.
template <typename Expected>
void check(const float* result, size_t count, Expected expected) {
  std::vector<float> host(count);
  CHECK_HIP(hipMemcpy(host.data(), result, count * sizeof(float), hipMemcpyDeviceToHost));
  long long checksum = 0;
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(host[i]) && std::fabs(host[i]) < 16777216.0f) {
      checksum += static_cast<long long>(host[i]);
    }
    const float right = static_cast<float>(expected(i));
    if (host[i] != right && wrong++ == 0) {
      std::printf("aorta first_wrong %zu: expected %.9g, found %.9g\n", i, right, host[i]);
    }
  }
  std::printf("aorta wrong_elements %zu\n", wrong);
  std::printf("aorta checksum %lld\n", checksum);
}

void run_gemm(size_t n, long iters, long warmup) {
  const size_t count = n * n;
  float* const a = device_array(count, [n](size_t at) { return a_value(at / n, at % n); });
  float* const b = device_array(count, [n](size_t at) { return b_value(at / n, at % n); });
  float* const c = device_array(count, [](size_t) { return 0; });
  const unsigned blocks = static_cast<unsigned>((n + kThreads * kTile - 1) / (kThreads * kTile));
  time_it([=] { hipLaunchKernelGGL(gemm, dim3(blocks, blocks), dim3(kThreads, kThreads), 0, 0, a, b, c, n); }, c, count,
          iters, warmup);

  // A row of A repeats every 4 rows, a column of B every 3 columns: C holds 12 different values.
  long long table[4][3] = {};
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < 4; ++i) {
      for (size_t j = 0; j < 3; ++j) {
        table[i][j] += static_cast<long long>(a_value(i, k)) * b_value(k, j);
      }
    }
  }
  check(c, count, [n, &table](size_t at) { return table[(at / n) % 4][(at % n) % 3]; });
}

void run_triad(size_t n, long iters, long warmup) {
  float* const a = device_array(n, [](size_t) { return 0; });
  float* const b = device_array(n, triad_b_value);
  float* const c = device_array(n, triad_c_value);
  const unsigned blocks = static_cast<unsigned>((n + kBlock - 1) / kBlock);
  time_it([=] { hipLaunchKernelGGL(triad, dim3(blocks), dim3(kBlock), 0, 0, a, b, c, n); }, a, n, iters, warmup);
  check(a, n, [](size_t i) { return triad_b_value(i) + 3 * triad_c_value(i); });
}

}  // namespace

int main(int argc, char** argv) {
  const long long size = argc == 5 ? std::atoll(argv[2]) : 0;
  const long iters = argc == 5 ? std::atol(argv[3]) : 0;
  const long warmup = argc == 5 ? std::atol(argv[4]) : -1;
  const bool is_gemm = argc == 5 && std::strcmp(argv[1], "gemm") == 0;
  const bool is_triad = argc == 5 && std::strcmp(argv[1], "triad") == 0;
  if (!(is_gemm || is_triad) || size < 1 || iters < 1 || warmup < 0) {
    std::fprintf(stderr, "usage: %s gemm|triad SIZE ITERS WARMUP\n", argv[0]);
    return kStartedWrongly;
  }
  report_runtime_and_device();
  if (is_gemm) {
    run_gemm(static_cast<size_t>(size), iters, warmup);
  } else {
    run_triad(static_cast<size_t>(size), iters, warmup);
  }
  return 0;
}
