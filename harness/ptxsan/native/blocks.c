/* Straight-line code of a kernel over its lanes: operation after operation on strips of lanes that stay in the
 * nearest cache. The registers are the interpreter's own list: of NumPy arrays over all lanes, never changed in
 * place while anybody else holds them, and of scalars.
 *
 * The few fields of Python's and NumPy's objects that are looked at are declared here, so that no header of
 * either is needed; build.py compares what `probe` finds in them with what Python says, and does without this
 * file where they differ.
 */
#include <stdint.h>
#include <string.h>

typedef struct {
    uint32_t references; /* the lower half; no array has more */
    uint32_t upper;
    void *type;
    char *data;
    int dimensions;
    intptr_t *shape;
    intptr_t *strides;
    void *base;
    void *dtype;
    int flags;
} Array;

typedef struct {
    uint32_t references, upper;
    void *type;
    union {
        char value[8];
        Array **items;
    } at[2]; /* a NumPy scalar's value; of a list its size, which `items` follow */
} Object;

extern Array *PyObject_CallObject(void *, void *);
extern int PyList_SetItem(void *, intptr_t, void *);
extern void Py_IncRef(void *);
extern void Py_DecRef(void *);

enum { OWNED = 0x4, WRITEABLE = 0x400 };
enum { KIND_SIZES = 6 };

/* The pointers of a list's items. */
static Array **items(Object *list) { return list->at[1].items; }

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

/* What the probe looks at, in the order of build.py. */
int probe(Array *array, Object *list, Object *scalar, intptr_t *found) {
    found[0] = (intptr_t)array->type;
    found[1] = (intptr_t)array->data;
    found[2] = array->dimensions;
    if (array->dimensions != 1) return 1;
    found[3] = (intptr_t)array->base;
    found[4] = array->flags & (OWNED | WRITEABLE);
    found[5] = (intptr_t)array->shape;
    found[6] = (intptr_t)array->strides;
    found[7] = (intptr_t)list->at[1].items;
    memcpy(&found[8], scalar->at[0].value, 8);
    return 0;
}

/* Numbers that probe gave as addresses, read only once they are known to be addresses. */
void follow(const intptr_t *found, intptr_t *there) {
    there[0] = *(intptr_t *)found[5];
    there[1] = *(intptr_t *)found[6];
    there[2] = *(intptr_t *)found[7];
    there[3] = (*(Array **)found[7])->references;
}

/* Whether multiply-adds are the processor's own: the C library's are right, too, but slow. */
int fused(void) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return 1;
#else
    return 0;
#endif
}

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
    Array **made;    /* (outputs,) */
    char **target;   /* (outputs,) where a masked result goes */
    void *array_type;
    void *empty;
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
    for (long i = 0; i < n; i++) memcpy(to + i * size, value, size);
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

/* Whether nobody but the list of registers has this array. */
static int ours(const Program *p, const Array *a, long lanes, int size) {
    return a->type == p->array_type && a->references == 1 && !a->base && a->dimensions == 1 &&
           (a->flags & (OWNED | WRITEABLE)) == (OWNED | WRITEABLE) && a->shape[0] == lanes && a->strides[0] == size;
}

/* A register's value: where it is and how far a lane is from the next. 0 for something else than expected. */
static int locate(const Program *p, Array *held, long lanes, int size, char **place, intptr_t *step) {
    if (held->type != p->array_type) { /* a scalar; None is no register's value here */
        *place = ((Object *)held)->at[0].value;
        *step = 0;
    } else {
        *place = held->data;
        *step = held->dimensions == 0 ? 0 : held->strides[0];
        if (held->dimensions > 1 || (held->dimensions == 1 && (held->shape[0] != lanes || (*step != size && *step)))) return 0;
    }
    return 1;
}

/* Runs a program. `arguments` of `empty` make a new array of each kind of register, over all lanes and for one
 * value; `loaded` holds storage and indices (lanes,) int32 of each load. 0; or which input, from 1, is no array
 * over the lanes; or -2 for such a mask. */
long run(Program *p, Object *registers, Object *arguments, Array *mask, Object *loaded, long lanes, void *none) {
    Array **held = items(registers);
    const uint8_t *bits = (void *)mask == none ? 0 : (const uint8_t *)mask->data;
    if (bits && (mask->strides[0] != 1 || mask->shape[0] != lanes)) return -2;
    const char *bytes[p->loads + 1];
    const int32_t *indices[p->loads + 1];
    int whole = bits || p->loads;
    for (int i = 0; i < p->inputs; i++) {
        Array *value = held[p->input[i]];
        if ((void *)value == none || !locate(p, value, lanes, p->size[i], &p->place[i], &p->step[i])) return i + 1;
        p->same[i] = p->step[i] == 0;
        whole |= !p->same[i];
    }
    for (int i = 0; i < p->loads; i++) {
        bytes[i] = items(loaded)[2 * i]->data;
        indices[i] = (const int32_t *)items(loaded)[2 * i + 1]->data;
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
        Array *now = held[out[0]];
        p->made[k] = 0;
        if (bits) { /* merged at the end of each strip */
            if (out[3] && ours(p, now, lanes, size)) {
                p->target[k] = now->data;
            } else {
                Array *fresh = PyObject_CallObject(p->empty, items(arguments)[out[2]]);
                char *old;
                intptr_t step;
                if (!fresh || !locate(p, now, lanes, size, &old, &step)) return -1;
                p->target[k] = fresh->data;
                if (step) memcpy(fresh->data, old, lanes * size);
                else fill(fresh->data, old, size, lanes);
                p->made[k] = fresh;
            }
        } else if (v < p->inputs) { /* a register moved */
            p->made[k] = held[p->input[v]];
            Py_IncRef(p->made[k]);
        } else if (p->same[v]) {
            p->made[k] = PyObject_CallObject(p->empty, items(arguments)[KIND_SIZES + out[2]]);
            if (!p->made[k]) return -1;
        } else {
            if (out[4] >= 0) {
                p->made[k] = p->made[out[4]] ? p->made[out[4]] : held[p->output[5 * out[4]]];
                Py_IncRef(p->made[k]);
                continue;
            }
            if (!(out[3] && ours(p, now, lanes, size))) {
                now = p->made[k] = PyObject_CallObject(p->empty, items(arguments)[out[2]]);
                if (!now) return -1;
            }
            p->place[v] = now->data;
            p->step[v] = size;
        }
    }
    for (long start = 0; start < count; start += strip) {
        long n = count - start < strip ? count - start : strip;
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
            memcpy(p->made[k]->data, p->place[v], p->size[v]);
    }
    out = p->output;
    for (int k = 0; k < p->outputs; k++, out += 5)
        if (p->made[k]) PyList_SetItem(registers, out[0], p->made[k]);
    return 0;
}
