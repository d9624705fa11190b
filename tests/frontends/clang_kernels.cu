// Kernels for clang, which gets no headers of CUDA: what they need is declared here.
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))

typedef struct { int x, y; } Pair;

// The elements of a block in the opposite order.
extern "C" __global__ void reverse(const float* x, float* y) {
    __shared__ float cells[128];
    int i = __nvvm_read_ptx_sreg_tid_x();
    cells[i] = x[i];
    __syncthreads();
    y[i] = cells[127 - i];
}

// Sums of 32 values by shuffles, and how many of them are positive.
extern "C" __global__ void sums(const float* x, int n, float* total, int* positive) {
    int i = __nvvm_read_ptx_sreg_ctaid_x() * 128 + __nvvm_read_ptx_sreg_tid_x();
    float value = i < n ? x[i] : 0;
    int votes = __builtin_popcount(__nvvm_vote_ballot_sync(0xffffffff, value > 0));
    for (int step = 16; step > 0; step /= 2)
        value += __nvvm_shfl_sync_bfly_f32(0xffffffff, value, step, 31);
    if (i % 32 == 0) {
        __nvvm_atom_add_gen_f(total, value);
        __nvvm_atom_add_gen_i(positive, votes);
    }
}

// Pairs by value and in memory.
extern "C" __global__ void pairs(Pair shift, const Pair* from, Pair* to) {
    int i = __nvvm_read_ptx_sreg_tid_x();
    to[i].x = from[i].y + shift.x;
    to[i].y = from[i].x + shift.y;
}
