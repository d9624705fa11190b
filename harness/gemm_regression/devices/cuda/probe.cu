// The harness's own device code: hold the queue, keep the GPU busy, check a product.

// Holds the stream until the host sets *flag, so that launches queue up behind it and run back to
// back once released. Gives up after timeout_ns, and says so in *late: a host that died must not leave
// a GPU spinning.
extern "C" __global__ void gate(volatile unsigned* flag, unsigned token, unsigned long long timeout_ns,
                                unsigned* late)
{
    unsigned long long t0, t1;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
    bool expired = false;
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t1));
        expired = t1 - t0 > timeout_ns;
    } while (*flag != token && !expired);
    *late = expired;
}

// Leaves (cycles, nanoseconds, SM) at `out`: two stamps of one SM give its clock between them.
extern "C" __global__ void stamp(unsigned long long* out)
{
    unsigned sm;
    unsigned long long now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    out[0] = clock64();
    out[1] = now;
    out[2] = sm;
}

// Counts `cycles` of its SM and adds what it really took to spent[0], one to spent[1]: a slowdown whose size
// is known, for kernels that run behind it or before.
extern "C" __global__ void spin(long long cycles, unsigned long long* spent)
{
    const long long start = clock64();
    long long now;
    do now = clock64();  // once even for 0 cycles: what follows the last look is the same whatever is counted
    while (now - start < cycles);
    spent[0] += now - start;
    spent[1] += 1;
}

// Does nothing: what an event pair reads around it is the pair's own cost.
extern "C" __global__ void empty() {}

// Fused multiply-adds for about `nanoseconds` on every SM: brings the clock up from idle.
extern "C" __global__ void busy(unsigned long long nanoseconds, float* sink)
{
    unsigned long long t0, t1;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
    float x = threadIdx.x, y = 1.0f;
    do {
#pragma unroll
        for (int i = 0; i < 256; ++i) y = fmaf(y, 0.999f, x);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t1));
    } while (t1 - t0 < nanoseconds);
    if (y == 12345.0f) *sink = y;
}

// Elements of some buffers before a launch: to[i] = from[(i + start + shift) % period], of so many bytes each.
struct Fill
{
    unsigned long long to, from, elements;
    unsigned start, period, size, fixed;  // fixed: in each launch the same
};

template <typename T>
__device__ void repeat(const Fill& row, unsigned shift)
{
    T* to = reinterpret_cast<T*>(row.to);
    const T* from = reinterpret_cast<const T*>(row.from);
    const unsigned long long stride = 1ull * gridDim.x * blockDim.x;
    const unsigned long long first = 1ull * blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned step = stride % row.period;
    unsigned j = (first + row.start + (row.fixed ? 0 : shift)) % row.period;
    for (unsigned long long i = first; i < row.elements; i += stride) {
        to[i] = from[j];
        j += step;
        if (j >= row.period) j -= row.period;
    }
}

// Fills buffers, and undoes what a launch has asked L2 to keep of them (evict_last): a flush would not.
extern "C" __global__ void fill(const Fill* rows, int count, unsigned shift)
{
    for (int number = 0; number < count; ++number) {
        const Fill row = rows[number];
#if __CUDA_ARCH__ >= 800
        const unsigned long long end = row.to + row.elements * row.size, line = 128;
        for (unsigned long long at = row.to / line * line + line * (1ull * blockIdx.x * blockDim.x + threadIdx.x);
             at < end; at += line * gridDim.x * blockDim.x)
            asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(at) : "memory");
#endif
        if (row.size == 1) repeat<unsigned char>(row, shift);
        if (row.size == 2) repeat<unsigned short>(row, shift);
        if (row.size == 4) repeat<unsigned>(row, shift);
        if (row.size == 8) repeat<unsigned long long>(row, shift);
    }
}

// value of element i of a matrix of the given kind (0 float, 1 half, 2 bfloat16, 3 int8, 4 int32, 5 int16,
// 6 double, 7 FP8 E4M3), in double
__device__ double value(const void* p, int kind, long long i)
{
    if (kind == 0) return static_cast<const float*>(p)[i];
    if (kind == 3) return static_cast<const signed char*>(p)[i];
    if (kind == 4) return static_cast<const int*>(p)[i];
    if (kind == 5) return static_cast<const short*>(p)[i];
    if (kind == 6) return static_cast<const double*>(p)[i];
    if (kind == 7) {
        const int byte = static_cast<const unsigned char*>(p)[i], exponent = byte >> 3 & 15, fraction = byte & 7;
        const double size = exponent ? ldexp(8.0 + fraction, exponent - 10) : ldexp((double)fraction, -9);
        return (byte & 127) == 127 ? nan("") : byte & 128 ? -size : size;
    }
    const unsigned short bits = static_cast<const unsigned short*>(p)[i];
    float f;
    if (kind == 1) asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    else f = __uint_as_float(static_cast<unsigned>(bits) << 16);
    return f;
}

// y[row] = X[row, :] · x in double, one block a row, for each matrix of a batch one after the other. Rows, columns
// and matrices are so many elements apart. Exact for integers while sums stay below 2^53.
extern "C" __global__ void matvec(const void* X, int kind, int rows, int columns, long long row_step,
                                  long long column_step, long long matrix_step, const double* x, double* y)
{
    __shared__ double part[256];
    const long long matrix = blockIdx.x / rows;
    const long long start = matrix * matrix_step + blockIdx.x % rows * row_step;
    double sum = 0;
    for (int j = threadIdx.x; j < columns; j += 256)
        sum += value(X, kind, start + j * column_step) * x[matrix * columns + j];
    part[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (!threadIdx.x) y[blockIdx.x] = part[0];
}

// Counts |c - r| > tolerance (a NaN counts) into result[0]; result[1] is the first such index.
extern "C" __global__ void compare(const void* c, const void* r, int kind, int count, int rows, int columns,
                                   long long ld, long long stride, float tolerance, unsigned long long* result)
{
    for (long long row = blockIdx.x; row < (long long)count * rows; row += gridDim.x)
        for (int column = threadIdx.x; column < columns; column += blockDim.x) {
            const long long i = row / rows * stride + row % rows * ld + column;
            const double got = value(c, kind, i), want = value(r, kind, i);
            // An infinity is right where it is wanted.
            if (!(fabs(got - want) <= tolerance) && !(got == want)) {
                atomicAdd(&result[0], 1ull);
                atomicMin(&result[1], (unsigned long long)i);
            }
        }
}
