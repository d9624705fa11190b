// The device's own heap: lists that threads build and free, and mistakes with them, by macro.
struct Node {
    int value;
    Node* next;
};

extern "C" __global__ void lists(const int* lengths, int* out)
{
    Node* head = nullptr;
    int n = lengths[threadIdx.x];
    for (int i = 0; i < n; i++) {
        Node* node = new Node;
#ifdef UNSET
        node->value = i;
        if (i) node->next = head;
#else
        node->value = i;
        node->next = head;
#endif
        head = node;
    }
    int sum = 0;
    for (Node* p = head; p; p = p->next) sum += p->value;
    out[threadIdx.x] = sum;
#ifdef LEAK
    if (threadIdx.x == 3) return;
#endif
    while (head) {
        Node* next = head->next;
        delete head;
#ifdef AFTER
        next = head->next;
#endif
        head = next;
    }
}

extern "C" __global__ void mistakes(int* out, int n)
{
    int* p = static_cast<int*>(malloc(n * sizeof(int)));
    int* q = static_cast<int*>(malloc(n * sizeof(int)));
    out[blockIdx.x * blockDim.x + threadIdx.x] = p != nullptr;
    if (!p || !q) return;
#ifdef PAST
    for (int i = 0; i <= n; i++) p[i] = i;
#else
    for (int i = 0; i < n; i++) p[i] = i;
#endif
#ifdef TWICE
    free(p);
#endif
#ifdef MIDDLE
    free(p + 4);
#endif
#ifdef UNWRITTEN
    out[blockIdx.x * blockDim.x + threadIdx.x] = q[n - 1];
#endif
    free(p);
    free(q);
}

__device__ int* shared_block;

extern "C" __global__ void fill(int n)
{
    if (threadIdx.x == 0) {
        shared_block = static_cast<int*>(malloc(n * sizeof(int)));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) shared_block[i] = i * i;
#ifdef EARLY
    if (threadIdx.x == 0) free(shared_block);
#endif
}

extern "C" __global__ void drain(int n, int* out)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = shared_block[i];
    __syncthreads();
    if (threadIdx.x == 0) free(shared_block);
}
