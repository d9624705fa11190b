// tma: tiles of A and B brought into shared memory by the tensor memory accelerator (compute capability 9.0).
//
// One thread asks for a box of each matrix and says how many bytes an mbarrier is to wait for; the hardware
// computes the addresses and fills what lies past the edges with zeros.

#include <cuda.h>

static_assert(TILE == 32, "boxes of 32 rows of 128 bytes");

extern "C" __global__ void gemm_tma(int M, int N, int K, float alpha,
                                    const __grid_constant__ CUtensorMap A,
                                    const __grid_constant__ CUtensorMap B, float beta, float* C, int ldc)
{
    __shared__ alignas(128) float As[TILE][TILE];
    __shared__ alignas(128) float Bs[TILE][TILE];
    __shared__ alignas(8) unsigned long long arrived;

    const unsigned bar = static_cast<unsigned>(__cvta_generic_to_shared(&arrived));
    const bool leader = threadIdx.x == 0 && threadIdx.y == 0;
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    if (leader) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    float sum = 0;
    for (int k = 0, phase = 0; k < K; k += TILE, phase ^= 1) {
        if (leader) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                         "r"(int(sizeof As + sizeof Bs)));
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1, {%2, %3}], [%4];" ::"r"(unsigned(__cvta_generic_to_shared(As))),
                         "l"(&A), "r"(k), "r"(int(blockIdx.y * TILE)), "r"(bar) : "memory");
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1, {%2, %3}], [%4];" ::"r"(unsigned(__cvta_generic_to_shared(Bs))),
                         "l"(&B), "r"(int(blockIdx.x * TILE)), "r"(k), "r"(bar) : "memory");
        }
        unsigned done = 0;
        while (!done)
            asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(phase) : "memory");
        for (int i = 0; i < TILE; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];
        __syncthreads();  // before the next boxes overwrite what a slower thread still reads
    }
    if (row < M && column < N) {
        float* c = C + static_cast<size_t>(row) * ldc + column;
        *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
    }
}
