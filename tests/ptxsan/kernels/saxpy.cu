// comment with __global__ void saxpy(int wrong)
template <typename T>
__global__ void saxpy(int count, T factor, const T* __restrict__ x, T* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] += factor * x[i];
}
template __global__ void saxpy<float>(int, float, const float*, float*);
