// What both programs share: how they report to the workload that runs them, and how they end.
//
// Standard output has lines "aorta <key> <value>"; the workload ignores every other line. Exit status: 0 the program ran
// to its end, whatever it found; 2 it was started wrongly; 3 there is no device to run on; 4 a HIP call failed, which
// the line "aorta failed_call <call>: <error>" names.
#pragma once

#include <hip/hip_runtime.h>

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

constexpr int kStartedWrongly = 2;
constexpr int kNoDevice = 3;
constexpr int kCallFailed = 4;

// A macro, so that the report has the call as it is written.
#define CHECK_HIP(call)                                                             \
  do {                                                                              \
    const hipError_t status = (call);                                               \
    if (status != hipSuccess) {                                                     \
      std::printf("aorta failed_call %s: %s\n", #call, hipGetErrorString(status));  \
      std::exit(kCallFailed);                                                       \
    }                                                                               \
  } while (false)

// Says which library answers HIP calls, and which device there is; ends the program where there is none.
inline void report_runtime_and_device() {
  // hipMalloc is an overloaded function in C++, and its address may be the program's own stub: ask the loader.
  Dl_info found{};
  void* const address = dlsym(RTLD_DEFAULT, "hipMalloc");
  if (address != nullptr && dladdr(address, &found) != 0 && found.dli_fname != nullptr) {
    std::printf("aorta hip_runtime %s\n", found.dli_fname);
  }
  int count = 0;
  const hipError_t status = hipGetDeviceCount(&count);
  if (status != hipSuccess || count < 1) {
    std::printf("aorta no_device %s\n", status == hipSuccess ? "the runtime finds none" : hipGetErrorString(status));
    std::exit(kNoDevice);
  }
  hipDeviceProp_t properties;
  CHECK_HIP(hipGetDeviceProperties(&properties, 0));
  std::printf("aorta device_name %s\n", properties.name);
  std::fflush(stdout);
}

// Milliseconds of wall time from here until the device has done what it was given.
class DeviceTimer {
 public:
  DeviceTimer() : start_(std::chrono::steady_clock::now()) {}

  double stop() const {
    CHECK_HIP(hipDeviceSynchronize());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_;
};
