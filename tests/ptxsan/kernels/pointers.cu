// Calls through pointers: functions in a table, virtual functions, a pointer that the host passes, recursion.
typedef float (*Function)(float, float);
typedef int (*Other)(int);

__device__ __noinline__ float add(float a, float b) { return a + b; }
__device__ __noinline__ float mul(float a, float b) { return a * b; }
__device__ __noinline__ int twice(int n) { return 2 * n; }
__device__ Function table[2] = {add, mul};
__device__ Other other = twice;

extern "C" __global__ void tables(const float* x, float* y, int which)
{
    int i = threadIdx.x;
    Function f = table[(i + which) % 2];
    if (i == 5) f = add;
    y[i] = f(x[i], 3.0f);
}

extern "C" __global__ void given(const float* x, float* y, Function f) { y[threadIdx.x] = f(x[threadIdx.x], 2.0f); }

extern "C" __global__ void lost(const float* x, float* y)
{
    Function f = reinterpret_cast<Function>(other);  // a function of other parameters
    y[threadIdx.x] = f(x[threadIdx.x], 2.0f);
}

struct Shape {
    __device__ virtual float area(int i) const = 0;
};

struct Square : Shape {
    float side;
    __device__ Square(float s) : side(s) {}
    __device__ float area(int i) const override { return side * side + i; }
};

struct Pair : Shape {
    const Shape *one, *two;
    __device__ Pair(const Shape* a, const Shape* b) : one(a), two(b) {}
    __device__ float area(int i) const override { return one->area(i) + two->area(i + 1); }
};

extern "C" __global__ void shapes(const float* x, float* y)
{
    int i = threadIdx.x;
    Square s(x[i]);
    Pair p(&s, &s), q(&p, &s);
    const Shape* of[3] = {&s, &p, &q};
    y[i] = of[i % 3]->area(i);
}

__device__ __noinline__ int fibonacci(int n)
{
    if (n < 2) return n;
    int one = fibonacci(n - 1);
    __syncwarp(__activemask());
    return one + fibonacci(n - 2);
}

extern "C" __global__ void recursion(int* y, int n) { y[threadIdx.x] = fibonacci(n); }
