/* Straight-line code of a kernel over its lanes: operation after operation on strips of lanes that stay in the
 * nearest cache. The registers are the interpreter's own list: of NumPy arrays over all lanes, never changed in
 * place while anybody else holds them, and of scalars.
 */

static inline float one_nan(float r) {
    uint32_t bits = 0x7fffffff;
    float nan;
    memcpy(&nan, &bits, 4);
    return r == r ? r : nan;
}

static inline uint32_t bits_of(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }
static inline float float_of(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }
static inline float joined_or(float a, float b) { return float_of(bits_of(a) | bits_of(b)); }
static inline float joined_and(float a, float b) { return float_of(bits_of(a) & bits_of(b)); }

typedef struct {
    int32_t operations, inputs, values, outputs, loads, strip;
    const int32_t *operation; /* (operations, 5): code, result, a, b, c; of a gather a load, its stride, place */
    const int32_t *input;     /* (inputs,) registers; values 0 … are of these */
    const int32_t *size;      /* (values,) bytes of each */
    const int32_t *room;      /* (values,) where in the scratch, in lanes × 8 bytes */
    const int32_t *output;    /* (outputs, 5): register, value, kind, whether its array may be written over, the
                               * output before that has the same value, or -1 */
    char *scratch;
    char **place;    /* (values,) */
    intptr_t *step;  /* (values,) bytes a lane */
    uint8_t *same;   /* (values,) whether all lanes agree */
    PyObject **made; /* (outputs,) */
    char **target;   /* (outputs,) where a masked result goes */
} Program;

#define EACH _Pragma("GCC ivdep") for (long i = 0; i < n; i++)
#define CASE1(code, R, A, expression) \
    case code: { R *d = (R *)at[0]; const A *x = (const A *)at[1]; EACH { A a = x[i]; d[i] = (R)(expression); } break; }
#define CASE2(code, R, A, B, expression) \
    case code: { R *d = (R *)at[0]; const A *x = (const A *)at[1]; const B *y = (const B *)at[2]; \
        EACH { A a = x[i]; B b = y[i]; d[i] = (R)(expression); } break; }
#define CASE3(code, R, A, B, C, expression) \
    case code: { R *d = (R *)at[0]; const A *x = (const A *)at[1]; const B *y = (const B *)at[2]; \
        const C *z = (const C *)at[3]; \
        EACH { A a = x[i]; B b = y[i]; C c = z[i]; d[i] = (R)(expression); } break; }
#define GATHER(code, R) \
    case code: { R *d = (R *)at[0]; const R *from = (const R *)bytes[op[2]] + op[4]; \
        const int32_t *index = indices[op[2]] + start; long stride = op[3]; \
        EACH { d[i] = from[(long)index[i] * stride]; } break; }

static void fill(char *to, const char *value, int size, long n) {
    switch (size) {
#define FILL(T) { T *d = (T *)to, v; memcpy(&v, value, sizeof v); EACH { d[i] = v; } break; }
    case 1: FILL(uint8_t)
    case 2: FILL(uint16_t)
    case 4: FILL(uint32_t)
    default: FILL(uint64_t)
    }
}

static void merge(char *to, const char *from, const uint8_t *mask, int size, long n) {
    switch (size) {
#define MERGE(T) { T *d = (T *)to; const T *v = (const T *)from; EACH { d[i] = mask[i] ? v[i] : d[i]; } break; }
    case 1: MERGE(uint8_t)
    case 2: MERGE(uint16_t)
    case 4: MERGE(uint32_t)
    default: MERGE(uint64_t)
    }
}

/* Runs a program. `loaded` holds storage and indices (lanes,) int32 of each load. 0; or which input, from 1, is no
 * array over the lanes; or -2 for such a mask. */
long run(Program *p, PyObject *registers, PyObject *mask, PyObject *loaded, long lanes) {
    const uint8_t *bits = mask == Py_None ? 0 : PyArray_DATA((Array *)mask);
    if (bits && (PyArray_STRIDE((Array *)mask, 0) != 1 || PyArray_DIM((Array *)mask, 0) != lanes)) return -2;
    char scalars[p->inputs + 1][8];
    const char *bytes[p->loads + 1];
    const int32_t *indices[p->loads + 1];
    int whole = bits || p->loads;
    for (int i = 0; i < p->inputs; i++) {
        PyObject *value = PyList_GET_ITEM(registers, p->input[i]);
        if (!locate(value, lanes, p->size[i], scalars[i], &p->place[i], &p->step[i])) return i + 1;
        p->same[i] = p->step[i] == 0;
        whole |= !p->same[i];
    }
    for (int i = 0; i < p->loads; i++) {
        bytes[i] = PyArray_DATA((Array *)PyList_GET_ITEM(loaded, 2 * i));
        indices[i] = PyArray_DATA((Array *)PyList_GET_ITEM(loaded, 2 * i + 1));
    }
    long strip = p->strip, count = whole ? lanes : 1;
    long first = count < strip ? count : strip;
    for (int i = 0; i < p->inputs; i++)
        if (p->same[i]) { /* copied for each lane of a strip, so that every operand is an array */
            char *to = p->scratch + (long)p->room[i] * strip * 8;
            fill(to, p->place[i], p->size[i], first);
            p->place[i] = to;
        }
    for (int v = p->inputs; v < p->values; v++) {
        p->place[v] = p->scratch + (long)p->room[v] * strip * 8;
        p->step[v] = 0;
        p->same[v] = 1;
    }
    const int32_t *op = p->operation;
    for (int i = 0; i < p->operations; i++, op += 5) {
        int same = 0;
        if (op[0] < FIRST_GATHER) same = p->same[op[2]] & p->same[op[3]] & p->same[op[4]];
        p->same[op[1]] = same;
    }
    const int32_t *out = p->output;
    for (int k = 0; k < p->outputs; k++, out += 5) {
        int v = out[1], size = p->size[v];
        PyObject *now = PyList_GET_ITEM(registers, out[0]);
        p->made[k] = 0;
        if (bits) { /* merged at the end of each strip */
            char *old, scalar[8];
            intptr_t step;
            if (!(out[3] && ours(now, lanes, size))) {
                PyObject *fresh = p->made[k] = empty(out[2], lanes, 0);
                if (!fresh || !locate(now, lanes, size, scalar, &old, &step)) return -1;
                now = fresh;
                if (step) memcpy(PyArray_DATA((Array *)now), old, lanes * size);
                else fill(PyArray_DATA((Array *)now), old, size, lanes);
            }
            p->target[k] = PyArray_DATA((Array *)now);
        } else if (v < p->inputs) { /* a register moved */
            p->made[k] = Py_NewRef(PyList_GET_ITEM(registers, p->input[v]));
        } else if (p->same[v]) {
            if (!(p->made[k] = empty(out[2], lanes, 1))) return -1;
        } else if (out[4] >= 0) {
            PyObject *other = p->made[out[4]];
            p->made[k] = Py_NewRef(other ? other : PyList_GET_ITEM(registers, p->output[5 * out[4]]));
        } else {
            if (!(out[3] && ours(now, lanes, size)) && !(now = p->made[k] = empty(out[2], lanes, 0))) return -1;
            p->place[v] = PyArray_DATA((Array *)now);
            p->step[v] = size;
        }
    }
    for (long start = 0, n; start < count; start += n) {
        if (bits) { /* from an active lane to another one */
            const uint8_t *next = memchr(bits + start, 1, count - start);
            if (!next) break;
            start = next - bits;
        }
        n = count - start < strip ? count - start : strip;
        while (bits && !bits[start + n - 1]) n--;
        op = p->operation;
        for (int i = 0; i < p->operations; i++, op += 5) {
            char *at[4];
            at[0] = p->place[op[1]] + start * p->step[op[1]];
            if (op[0] < FIRST_GATHER)
                for (int j = 1; j < 4; j++) at[j] = p->place[op[j + 1]] + start * p->step[op[j + 1]];
            switch (op[0]) {
                OPERATIONS
            }
        }
        if (bits) {
            out = p->output;
            for (int k = 0; k < p->outputs; k++, out += 5) {
                int v = out[1], size = p->size[v];
                merge(p->target[k] + start * size, p->place[v] + start * p->step[v], bits + start, size, n);
            }
        }
    }
    out = p->output;
    for (int k = 0; k < p->outputs; k++, out += 5) {
        int v = out[1];
        if (!bits && v >= p->inputs && p->same[v] && p->made[k])
            memcpy(PyArray_DATA((Array *)p->made[k]), p->place[v], p->size[v]);
    }
    out = p->output;
    for (int k = 0; k < p->outputs; k++, out += 5)
        if (p->made[k]) PyList_SetItem(registers, out[0], p->made[k]);
    return 0;
}
