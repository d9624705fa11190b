// y[i] = table[index[i]]·weight: rows of a table, by index.

extern "C" __global__ void gather(float* y, const float* table, const int* index, const float* weight, int columns)
{
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        y[(size_t)blockIdx.x * columns + i] = table[(size_t)index[blockIdx.x] * columns + i] * weight[blockIdx.x];
}
