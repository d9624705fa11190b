// Attention forward, O = softmax(Q·Kᵀ·scale)·V for every head; a warp per query, with its scores in shared memory.

extern "C" __global__ void attention(const float* Q, const float* K, const float* V, float* O, int queries, int keys,
                                     int dim)
{
    const float scale = rsqrtf(dim);
    extern __shared__ float scores[];
    const size_t head = blockIdx.y, query = blockIdx.x;
    const float *q = Q + (head * queries + query) * dim, *k = K + head * keys * dim, *v = V + head * keys * dim;
    float largest = -INFINITY, sum = 0.0f;
    for (int key = threadIdx.x; key < keys; key += 32) {
        float score = 0.0f;
        for (int i = 0; i < dim; ++i) score += q[i] * k[(size_t)key * dim + i];
        scores[key] = score * scale;
        largest = fmaxf(largest, scores[key]);
    }
    for (int lanes = 16; lanes; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    for (int key = threadIdx.x; key < keys; key += 32) sum += scores[key] = expf(scores[key] - largest);
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    __syncwarp();
    for (int i = threadIdx.x; i < dim; i += 32) {
        float out = 0.0f;
        for (int key = 0; key < keys; ++key) out += scores[key] * v[(size_t)key * dim + i];
        O[(head * queries + query) * dim + i] = out / sum;
    }
}
