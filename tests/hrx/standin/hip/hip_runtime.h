// A stand-in for the HIP runtime, for tests on machines without one: the device's memory is the host's, kernels run
// thread by thread on the CPU, and a "code object" is a shared library. It has what the programs of aorta/hrx/hip use,
// with HIP's own signatures, and nothing else.
//
// HIP_STANDIN_FAULT plants a fault of the runtime: see the names below.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __global__

enum hipError_t { hipSuccess = 0, hipErrorInvalidValue = 1, hipErrorOutOfMemory = 2, hipErrorFileNotFound = 301 };
enum hipMemcpyKind { hipMemcpyHostToHost, hipMemcpyHostToDevice, hipMemcpyDeviceToHost };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct hipDeviceProp_t {
  char name[256];
};
struct hipKernelNodeParams {
  dim3 blockDim;
  void** extra;
  void* func;
  dim3 gridDim;
  void** kernelParams;
  unsigned sharedMemBytes;
};
using hipStream_t = struct ihipStream_t*;
using hipModule_t = void*;
using hipFunction_t = void*;

// The only kernel that is launched other than by its name. HIP copies the arguments when the node gets them.
struct StandinNode {
  const int* in;
  int* out;
};
struct StandinGraph {
  StandinNode node;
};
using hipGraph_t = StandinGraph*;
using hipGraphExec_t = StandinGraph*;
using hipGraphNode_t = StandinNode*;

inline dim3 blockIdx, blockDim, threadIdx;

inline bool standin_fault(const char* name) {
  const char* const planted = std::getenv("HIP_STANDIN_FAULT");
  return planted != nullptr && std::strcmp(planted, name) == 0;
}

inline const char* hipGetErrorString(hipError_t status) {
  return status == hipSuccess ? "no error" : status == hipErrorFileNotFound ? "file not found" : "invalid argument";
}
inline int standin_launches = 0;

// The third launch is refused.
inline hipError_t hipGetLastError() {
  return standin_fault("launch_refused") && standin_launches >= 3 ? hipErrorInvalidValue : hipSuccess;
}
inline hipError_t hipGetDeviceCount(int* count) {
  *count = standin_fault("no_device") ? 0 : 1;
  return hipSuccess;
}
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int) {
  std::snprintf(properties->name, sizeof(properties->name), "stand-in device");
  return hipSuccess;
}
inline hipError_t hipMalloc(void** pointer, size_t bytes) {
  *pointer = std::malloc(bytes);
  return *pointer == nullptr ? hipErrorOutOfMemory : hipSuccess;
}
inline hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  std::memcpy(to, from, bytes);
  if (kind == hipMemcpyHostToDevice && standin_fault("input_zero")) std::memset(to, 0, bytes);
  if (kind == hipMemcpyDeviceToHost && standin_fault("garbage")) static_cast<unsigned char*>(to)[bytes - 1] ^= 0x10;
  if (kind == hipMemcpyDeviceToHost && standin_fault("swapped") && bytes >= 16) {
    // Elements 0 and 1: the sum does not see it.
    float* const values = static_cast<float*>(to);
    const float kept = values[0];
    values[0] = values[1];
    values[1] = kept;
  }
  return hipSuccess;
}
inline hipError_t hipMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return hipSuccess;
}
inline hipError_t hipDeviceSynchronize() {
  if (standin_fault("hang")) pause();
  if (standin_fault("crash")) std::raise(SIGSEGV);
  return hipSuccess;
}

template <typename Kernel, typename... Arguments>
void hipLaunchKernelGGL(Kernel kernel, dim3 grid, dim3 block, unsigned, int, Arguments... arguments) {
  ++standin_launches;
  if (standin_fault("not_launched")) return;
  blockDim = block;
  for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
      for (threadIdx.y = 0; threadIdx.y < block.y; ++threadIdx.y)
        for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) kernel(arguments...);
}

inline hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return *module == nullptr ? hipErrorFileNotFound : hipSuccess;
}
inline hipError_t hipModuleUnload(hipModule_t module) {
  dlclose(module);
  return hipSuccess;
}
inline hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  *function = dlsym(module, name);
  return *function == nullptr ? hipErrorInvalidValue : hipSuccess;
}
inline hipError_t standin_call(void* function, const StandinNode& node) {
  if (!standin_fault("not_launched")) reinterpret_cast<void (*)(const int*, int*)>(function)(node.in, node.out);
  return hipSuccess;
}
inline StandinNode standin_node(void** addresses) {
  return {*static_cast<int**>(addresses[0]), *static_cast<int**>(addresses[1])};
}
inline hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        unsigned, hipStream_t, void** addresses, void**) {
  return standin_call(function, standin_node(addresses));
}

inline void* standin_graph_kernel = nullptr;

inline hipError_t hipGraphCreate(hipGraph_t* graph, unsigned) {
  *graph = new StandinGraph{};
  return hipSuccess;
}
inline hipError_t hipGraphAddKernelNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*, size_t,
                                        const hipKernelNodeParams* params) {
  standin_graph_kernel = params->func;
  graph->node = standin_node(params->kernelParams);
  *node = &graph->node;
  return hipSuccess;
}
inline hipError_t hipGraphKernelNodeSetParams(hipGraphNode_t node, const hipKernelNodeParams* params) {
  if (!standin_fault("setparams_ignored")) *node = standin_node(params->kernelParams);
  return hipSuccess;
}
inline hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* instance, hipGraph_t graph, unsigned long long) {
  if (standin_fault("no_graphs")) return hipErrorInvalidValue;
  *instance = new StandinGraph(*graph);
  return hipSuccess;
}
inline hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t instance, hipGraphNode_t,
                                                  const hipKernelNodeParams* params) {
  if (!standin_fault("setparams_ignored")) instance->node = standin_node(params->kernelParams);
  return hipSuccess;
}
inline hipError_t hipGraphLaunch(hipGraphExec_t instance, hipStream_t) {
  return standin_call(standin_graph_kernel, instance->node);
}
inline hipError_t hipGraphExecDestroy(hipGraphExec_t instance) {
  delete instance;
  return hipSuccess;
}
inline hipError_t hipGraphDestroy(hipGraph_t graph) {
  delete graph;
  return hipSuccess;
}
