// A product of NVFP4 of a warp, as CUDA C++ of sm_120a has it.
#include <cstdint>
extern "C" __global__ void nvfp4(const uint32_t* a, const uint32_t* b, const uint32_t* sa, const uint32_t* sb, float* d) {
  int t = threadIdx.x; float c[4] = {0,0,0,0};
  asm volatile("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 "
   "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%11,%12}, {%13}, {%14,%15};"
   : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[4*t]), "r"(a[4*t+1]), "r"(a[4*t+2]), "r"(a[4*t+3]), "r"(b[2*t]), "r"(b[2*t+1]),
   "r"(sa[t]), "h"((uint16_t)0), "h"((uint16_t)0), "r"(sb[t]), "h"((uint16_t)0), "h"((uint16_t)0));
  for (int i=0;i<4;i++) d[4*t+i]=c[i];
}
