// The kernel of the launch probe: compiled into the program, and by itself as the code object of the `module` probe.
#include <hip/hip_runtime.h>

extern "C" __global__ void add_hundred(const int* in, int* out) { *out = *in + 100; }
