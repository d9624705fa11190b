// Fetches from textures, and loads and stores of surfaces.
extern "C" __global__ void line(cudaTextureObject_t t, const float* at, float* out, int* whole) {
    int i = threadIdx.x;
    out[i] = tex1D<float>(t, at[i]);
    whole[i] = __float_as_int(tex1Dfetch<float>(t, i - 2));
}

extern "C" __global__ void plane(cudaTextureObject_t t, const float2* at, float4* out, float4* gathered) {
    int i = threadIdx.x;
    out[i] = tex2D<float4>(t, at[i].x, at[i].y);
    gathered[i] = tex2Dgather<float4>(t, at[i].x, at[i].y, 1);
}

extern "C" __global__ void solid(cudaTextureObject_t t, const float* at, float* out) {
    int i = threadIdx.x;
    out[i] = tex3D<float>(t, at[3 * i], at[3 * i + 1], at[3 * i + 2]);
}

extern "C" __global__ void layers(cudaTextureObject_t t, float* out) {
    int i = threadIdx.x;
    out[i] = tex2DLayered<float>(t, i % 4 + 0.5f, i / 4 % 4 + 0.5f, i / 16);
}

extern "C" __global__ void integers(cudaTextureObject_t t, int* out) {
    int i = threadIdx.x;
    out[i] = tex2D<short>(t, i % 8, i / 8);
}

extern "C" __global__ void scale(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int rows) {
    int x = threadIdx.x, y = blockIdx.x;
    float2 v = surf2Dread<float2>(from, x * 8, y, cudaBoundaryModeZero);
#ifdef CLAMP
    v = surf2Dread<float2>(from, (x - 1) * 8, y + 1, cudaBoundaryModeClamp);
#endif
#ifdef ODD
    x = 8 * x + 4;
    surf2Dwrite(v, to, x, y);
#elif defined(ZERO)
    surf2Dwrite(v, to, x * 8, y + 1, cudaBoundaryModeZero);
#elif defined(TRAP)
    surf2Dwrite(v, to, x * 8, y + 1);
#else
    surf2Dwrite(v, to, x * 8, y);
#endif
}

// Writes a surface and fetches from it in one launch.
extern "C" __global__ void coherent(cudaTextureObject_t t, cudaSurfaceObject_t s, float* out) {
    int i = threadIdx.x;
    surf2Dwrite(1.0f, s, i * 4, 0);
    __syncthreads();
#ifdef SURFACE
    float v;
    surf2Dread(&v, s, i * 4, 0);
    out[i] = v;
#elif defined(OTHER_ROW)
    out[i] = tex2D<float>(t, i, 1);
#else
    out[i] = tex2D<float>(t, i, 0);
#endif
}

extern "C" __global__ void undefined(cudaTextureObject_t t, const float* at, float* out) {
    out[threadIdx.x] = tex1D<float>(t, at[threadIdx.x]);
}
