/* Products of tensor cores, mma and wmma.mma: a warp's fragments to matrices of float64, their product and sum,
 * and back to registers, as isa/fragments.py does it. Products are exact; the terms of an element are
 * added in the order of k, from 0 on, and then the accumulator's.
 */
enum { F16, BF16, TF32, EIGHT, S8, U8, S4, U4, F32, S32 };
enum { LANES_OF_WARP = 32, LARGEST = 4096, LARGEST_ROW = 256, LARGEST_TILE = 256 * 32 };

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FUSED(a, b, c) __builtin_fma(a, b, c)
#else
#define FUSED(a, b, c) ((a) * (b) + (c))
#endif

typedef struct {
    int32_t kind, registers;
    const int32_t *place; /* (32, elements) of each lane's elements in the matrix */
    const double *eights; /* the values of a type of 8 bits */
} Fragments;

typedef struct {
    int32_t copies, m, n, k, saturates;
    Fragments a, b, c, d;
} Product;

static inline double of_half(uint32_t h) {
    float magnitude = float_of((h & 0x7fff) << 13) * 0x1p112f;
    uint32_t bits = bits_of(magnitude);
    if (magnitude >= 0x1p16f) bits |= 0x7f800000; /* infinity, or NaN */
    return float_of(bits | (h & 0x8000) << 16);
}

static inline uint32_t half_of(double v) {
    uint64_t bits;
    memcpy(&bits, &v, 8);
    uint32_t sign = bits >> 63 << 15;
    bits &= ~0ull >> 1;
    memcpy(&v, &bits, 8);
    if (v != v) return 0x7fff;
    if (v >= 65520.0) return sign | 0x7c00;
    if (v < 0x1p-14) return sign | (uint32_t)(v * 0x1p24 + 0x1p52 - 0x1p52); /* nearest, ties to even */
    bits += (bits >> 42 & 1) + (1ull << 41) - 1;
    return sign | (uint32_t)((bits >> 42) - ((1023 - 15) << 10));
}

/* A warp's words, (32,) of one register, as elements of its matrix. */
static void decode(const Fragments *f, int r, const uint32_t *words, double *matrix) {
#define EACH_ELEMENT(per, value)                                             \
    for (int l = 0; l < LANES_OF_WARP; l++)                                  \
        for (int e = 0; e < (per); e++) {                                    \
            uint32_t w = words[l];                                           \
            matrix[f->place[(l * f->registers + r) * (per) + e]] = (value);  \
        }                                                                    \
    break;
    switch (f->kind) {
    case F16: EACH_ELEMENT(2, of_half(w >> 16 * e & 0xffff))
    case BF16: EACH_ELEMENT(2, float_of(w >> 16 * e << 16))
    case TF32: EACH_ELEMENT(1, float_of(w & 0xffffe000))
    case EIGHT: EACH_ELEMENT(4, f->eights[w >> 8 * e & 0xff])
    case S8: EACH_ELEMENT(4, (int8_t)(w >> 8 * e))
    case U8: EACH_ELEMENT(4, (uint8_t)(w >> 8 * e))
    case S4: EACH_ELEMENT(8, (int32_t)(w << (28 - 4 * e)) >> 28)
    case U4: EACH_ELEMENT(8, w >> 4 * e & 15)
    case F32: EACH_ELEMENT(1, float_of(w))
    default: EACH_ELEMENT(1, (int32_t)w)
    }
}

static uint32_t encode(const Product *p, const double *matrix, const int32_t *place) {
    double v = matrix[place[0]];
    if (p->d.kind == F32) return bits_of(one_nan((float)v));
    if (p->d.kind == F16) return half_of(v) | half_of(matrix[place[1]]) << 16;
    int64_t whole = (int64_t)v;
    if (p->saturates) whole = whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : whole;
    return (uint32_t)whole;
}

/* c + a·b of (rows, k), (k, n) and (rows, n). Products are exact: a fused multiply-add rounds as an addition. */
static inline __attribute__((always_inline)) void add_columns(const double *a, const double *b, double *c, long rows,
                                                              long n, long k) {
    for (long row = 0; row < rows; row++, a += k, c += n) {
        double sums[LARGEST_ROW];
        for (long j = 0; j < n; j++) sums[j] = 0;
        for (long t = 0; t < k; t += 4) { /* a multiple of 4 in every form */
            const double *x = b + t * n, *y = x + n, *z = y + n, *w = z + n;
            for (long j = 0; j < n; j++) {
                double sum = FUSED(a[t], x[j], sums[j]);
                sum = FUSED(a[t + 1], y[j], sum);
                sum = FUSED(a[t + 2], z[j], sum);
                sums[j] = FUSED(a[t + 3], w[j], sum);
            }
        }
        for (long j = 0; j < n; j++) c[j] = sums[j] + c[j];
    }
}

/* The sums of 8 columns, as most forms have, stay in registers. */
static void add_product(const double *a, const double *b, double *c, long rows, long n, long k) {
    if (n == 8) add_columns(a, b, c, rows, 8, k);
    else if (n == 16) add_columns(a, b, c, rows, 16, k);
    else add_columns(a, b, c, rows, n, k);
}

/* Products of tiles, (tiles, rows, k) and (tiles, n, k) as (tiles, rows, n), all float64. 1 for other shapes. */
long multiply_tiles(Array *one, Array *other, Array *made) {
    long tiles = PyArray_DIM(made, 0), rows = PyArray_DIM(made, 1), n = PyArray_DIM(made, 2), k = PyArray_DIM(one, 2);
    double turned[LARGEST_TILE], *c = PyArray_DATA(made);
    const double *a = PyArray_DATA(one), *b = PyArray_DATA(other);
    if (k % 4 || n > LARGEST_ROW || n * k > LARGEST_TILE) return 1;
    memset(c, 0, tiles * rows * n * sizeof *c);
    for (long i = 0; i < tiles; i++, a += rows * k, b += n * k, c += rows * n) {
        for (long j = 0; j < n; j++)
            for (long t = 0; t < k; t++) turned[t * n + j] = b[j * k + t];
        add_product(a, turned, c, rows, n, k);
    }
    return 0;
}

/* Of the list of all registers those in `slots`, int32: of A, B and C, one after another, arrays over the lanes or scalars
 * of 32 bits; then by twos the registers of D, and their kinds: of fewer that are made the first ones again. `mask` (lanes,)
 * are the active lanes, None for all. 1 where a register is something else, or a part of a warp is active: then nothing
 * has changed. */
long multiply(const Product *p, PyObject *registers, Array *slots, PyObject *mask, long lanes) {
    double a[LARGEST], b[LARGEST], c[LARGEST];
    const Fragments *sources[] = {&p->a, &p->b, &p->c};
    double *matrices[] = {a, b, c};
    const uint8_t *active = mask == Py_None ? 0 : PyArray_DATA((Array *)mask);
    for (long l = 0; active && l < lanes; l += LANES_OF_WARP) {
        int count = 0;
        for (int i = 0; i < LANES_OF_WARP; i++) count += active[l + i];
        if (count && count != LANES_OF_WARP) return 1;
    }
    const int32_t *slot = PyArray_DATA(slots);
    int total = p->a.registers + p->b.registers + p->c.registers, results = (PyArray_DIM(slots, 0) - total) / 2;
    char *at[total], scalars[total][8], *old[results], scalar[results][8];
    intptr_t step[total], old_step[results];
    PyObject *made[results];
    uint32_t *result[results];
    for (int i = 0; i < total; i++)
        if (!locate(PyList_GET_ITEM(registers, slot[i]), lanes, 4, scalars[i], &at[i], &step[i])) return 1;
    const int32_t *out = slot + total;
    for (int r = 0; r < results; r++)
        if (!locate(PyList_GET_ITEM(registers, out[2 * r]), lanes, 4, scalar[r], &old[r], &old_step[r])) return 1;
    for (int r = 0; r < results; r++) {
        PyObject *now = PyList_GET_ITEM(registers, out[2 * r]);
        made[r] = 0;
        if (!ours(now, lanes, 4)) { /* else a warp's own are read before they are written over */
            if (!(now = made[r] = empty(out[2 * r + 1], lanes, 0))) return 1;
            uint32_t *to = PyArray_DATA((Array *)now);
            for (long l = 0; active && l < lanes; l++) memcpy(to + l, old[r] + l * old_step[r], 4);
        }
        result[r] = PyArray_DATA((Array *)now);
    }
    int per = p->d.kind == F16 ? 2 : 1;
    for (long warp = 0; warp < lanes / LANES_OF_WARP; warp++) {
        long first = warp * LANES_OF_WARP;
        if (active && !active[first]) continue;
        int i = 0;
        for (int s = 0; s < 3; s++)
            for (int r = 0; r < sources[s]->registers; r++, i++) {
                uint32_t words[LANES_OF_WARP];
                if (step[i] == 4) memcpy(words, at[i] + 4 * first, sizeof words);
                else for (int l = 0; l < LANES_OF_WARP; l++) memcpy(&words[l], at[i], 4);
                decode(sources[s], r, words, matrices[s]);
            }
        for (long copy = 0; copy < p->copies; copy++)
            add_product(a + copy * p->m * p->k, b + copy * p->k * p->n, c + copy * p->m * p->n, p->m, p->n, p->k);
        for (int r = 0; r < results; r++)
            for (int l = 0; l < LANES_OF_WARP; l++) {
                const int32_t *place = p->d.place + (l * p->d.registers + r % p->d.registers) * per;
                result[r][first + l] = encode(p, c, place);
            }
    }
    for (int r = 0; r < results; r++)
        if (made[r]) PyList_SetItem(registers, out[2 * r], made[r]);
    return 0;
}
