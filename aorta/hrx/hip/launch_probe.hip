// Launches one kernel in one of five ways and reports what it left in memory: 7 + 100 where the launch works.
//
// usage: launch_probe static|module|graph_add|graph_setparams|graph_execsetparams CODE_OBJECT
//
// 100 means that the kernel ran and read 0 where 7 was; 0 that nothing reached the output. The graph probes that change
// a node's parameters begin with those of a decoy, so that a change without effect leaves the output at 0.
#include "add_hundred.hip"
#include "report.h"

#include <cstring>

namespace {

constexpr int kInput = 7;
constexpr int kDecoyInput = 1000;

// One int on the device.
int* device_int(int value) {
  int* pointer = nullptr;
  CHECK_HIP(hipMalloc(reinterpret_cast<void**>(&pointer), sizeof(int)));
  CHECK_HIP(hipMemcpy(pointer, &value, sizeof(int), hipMemcpyHostToDevice));
  return pointer;
}

// A kernel's two arguments, in the form that HIP takes them: addresses of values that live as long as this does.
class Arguments {
 public:
  Arguments(int* in, int* out) : in_(in), out_(out), addresses_{&in_, &out_} {}
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  void** addresses() { return addresses_; }

  hipKernelNodeParams node() {
    hipKernelNodeParams params{};
    params.func = reinterpret_cast<void*>(add_hundred);
    params.gridDim = dim3(1);
    params.blockDim = dim3(1);
    params.sharedMemBytes = 0;
    params.kernelParams = addresses_;
    params.extra = nullptr;
    return params;
  }

 private:
  int* in_;
  int* out_;
  void* addresses_[2];
};

double launch_static(int* in, int* out) {
  const DeviceTimer timer;
  hipLaunchKernelGGL(add_hundred, dim3(1), dim3(1), 0, 0, in, out);
  CHECK_HIP(hipGetLastError());
  return timer.stop();
}

double launch_module(int* in, int* out, const char* code_object) {
  hipModule_t module;
  hipFunction_t function;
  CHECK_HIP(hipModuleLoad(&module, code_object));
  CHECK_HIP(hipModuleGetFunction(&function, module, "add_hundred"));
  Arguments arguments(in, out);
  const DeviceTimer timer;
  CHECK_HIP(hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments.addresses(), nullptr));
  const double elapsed_ms = timer.stop();
  CHECK_HIP(hipModuleUnload(module));
  return elapsed_ms;
}

enum class Change { kNothing, kNode, kInstance };

double launch_graph(int* in, int* out, Change change) {
  Arguments wanted(in, out);
  Arguments decoy(device_int(kDecoyInput), device_int(0));
  const hipKernelNodeParams wanted_node = wanted.node();
  const hipKernelNodeParams first_node = change == Change::kNothing ? wanted_node : decoy.node();

  hipGraph_t graph;
  hipGraphNode_t node;
  hipGraphExec_t instance;
  CHECK_HIP(hipGraphCreate(&graph, 0));
  CHECK_HIP(hipGraphAddKernelNode(&node, graph, nullptr, 0, &first_node));
  if (change == Change::kNode) {
    CHECK_HIP(hipGraphKernelNodeSetParams(node, &wanted_node));
  }
  CHECK_HIP(hipGraphInstantiateWithFlags(&instance, graph, 0));
  if (change == Change::kInstance) {
    CHECK_HIP(hipGraphExecKernelNodeSetParams(instance, node, &wanted_node));
  }
  const DeviceTimer timer;
  CHECK_HIP(hipGraphLaunch(instance, nullptr));
  const double elapsed_ms = timer.stop();
  CHECK_HIP(hipGraphExecDestroy(instance));
  CHECK_HIP(hipGraphDestroy(graph));
  return elapsed_ms;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s PROBE CODE_OBJECT\n", argv[0]);
    return kStartedWrongly;
  }
  const char* const probe = argv[1];
  report_runtime_and_device();
  int* const in = device_int(kInput);
  int* const out = device_int(0);
  CHECK_HIP(hipDeviceSynchronize());

  double elapsed_ms = 0;
  if (std::strcmp(probe, "static") == 0) {
    elapsed_ms = launch_static(in, out);
  } else if (std::strcmp(probe, "module") == 0) {
    elapsed_ms = launch_module(in, out, argv[2]);
  } else if (std::strcmp(probe, "graph_add") == 0) {
    elapsed_ms = launch_graph(in, out, Change::kNothing);
  } else if (std::strcmp(probe, "graph_setparams") == 0) {
    elapsed_ms = launch_graph(in, out, Change::kNode);
  } else if (std::strcmp(probe, "graph_execsetparams") == 0) {
    elapsed_ms = launch_graph(in, out, Change::kInstance);
  } else {
    std::fprintf(stderr, "%s: no probe %s\n", argv[0], probe);
    return kStartedWrongly;
  }

  int result = -1;
  CHECK_HIP(hipMemcpy(&result, out, sizeof(int), hipMemcpyDeviceToHost));
  std::printf("aorta result %d\n", result);
  std::printf("aorta step_ms %.6f\n", elapsed_ms);
  return 0;
}
