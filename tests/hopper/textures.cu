// Fetches of every kind, a thread each, and a surface that is copied.
extern "C" __global__ void line(cudaTextureObject_t t, const float* at, float* out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = tex1D<float>(t, at[i]);
}

extern "C" __global__ void plane(cudaTextureObject_t t, const float2* at, float4* out, float4* gathered)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = tex2D<float4>(t, at[i].x, at[i].y);
    gathered[i] = tex2Dgather<float4>(t, at[i].x, at[i].y, 1);
}

extern "C" __global__ void solid(cudaTextureObject_t t, const float* at, float* out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = tex3D<float>(t, at[3 * i], at[3 * i + 1], at[3 * i + 2]);
}

extern "C" __global__ void layers(cudaTextureObject_t t, const float2* at, float* out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = tex2DLayered<float>(t, at[i].x, at[i].y, i % 3);
}

extern "C" __global__ void shorts(cudaTextureObject_t t, const float2* at, int* out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = tex2D<short>(t, at[i].x, at[i].y);
}

extern "C" __global__ void shifted(cudaSurfaceObject_t from, cudaSurfaceObject_t to)
{
    const int x = threadIdx.x, y = blockIdx.x;
    const float2 clamped = surf2Dread<float2>(from, (x - 1) * 8, y + 1, cudaBoundaryModeClamp);
    const float2 zero = surf2Dread<float2>(from, (x + 1) * 8, y - 1, cudaBoundaryModeZero);
    surf2Dwrite(make_float2(clamped.x + zero.y, clamped.y - zero.x), to, x * 8, y + 1, cudaBoundaryModeZero);
}
