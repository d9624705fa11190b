/* What is used of Python and NumPy, declared here so that a compiler is enough and no header of either is needed:
 * functions of Python's stable ABI, the table of functions that NumPy gives to extensions, and those fields of
 * objects that `prepare` has looked at before anything relies on them.
 */
#include <stdint.h>
#include <string.h>

typedef struct {
    uint32_t references, upper; /* of the count the lower half: no array has more */
    void *type;
} PyObject;

typedef struct {
    PyObject object;
    intptr_t size;
    PyObject **items;
} List;

typedef struct {
    PyObject object;
    char *data;
    int dimensions;
    intptr_t *shape, *strides;
    PyObject *base;
    void *dtype;
    int flags;
} Array;

extern PyObject _Py_NoneStruct, PyList_Type;
extern PyObject *PyImport_ImportModule(const char *), *PyObject_GetAttrString(PyObject *, const char *);
extern PyObject *PyList_GetItem(PyObject *, intptr_t);
extern void *PyCapsule_GetPointer(PyObject *, const char *);
extern void PyErr_Clear(void), Py_IncRef(PyObject *), Py_DecRef(PyObject *);
extern int PyList_SetItem(PyObject *, intptr_t, PyObject *), PyType_IsSubtype(void *, void *);

#define Py_None (&_Py_NoneStruct)

enum { OWNED = 0x4, WRITEABLE = 0x400, ABI_OF_NUMPY_1 = 0x01000009, ABI_OF_NUMPY_2 = 0x02000000 };
/* Where they are in NumPy's table, the same in both. */
enum { ABI_VERSION = 0, ARRAY_TYPE = 2, GENERIC_TYPE = 10, DESCRIBE = 45, SCALAR_VALUE = 62, EMPTY = 184 };
/* NumPy's numbers of the KINDS of __init__.py: bool, uint16, int32, int64, float32, float64. */
static const int types[] = {0, 4, 5, 7, 11, 12};
static void **numpy;

static inline PyObject *PyList_GET_ITEM(PyObject *list, long i) { return ((List *)list)->items[i]; }
static inline PyObject *Py_NewRef(PyObject *o) { Py_IncRef(o); return o; }
static inline void *PyArray_DATA(const Array *a) { return a->data; }
static inline long PyArray_DIM(const Array *a, int axis) { return a->shape[axis]; }
static inline long PyArray_STRIDE(const Array *a, int axis) { return a->strides[axis]; }
static inline int is_array(const PyObject *o) { return o->type == numpy[ARRAY_TYPE]; }

/* Whether nobody but the list of registers has this array, of which each lane has `size` bytes. */
static int ours(PyObject *held, long lanes, int size) {
    Array *a = (Array *)held;
    return is_array(held) && held->references == 1 && !a->base && a->dimensions == 1 &&
           (a->flags & (OWNED | WRITEABLE)) == (OWNED | WRITEABLE) && a->shape[0] == lanes && a->strides[0] == size;
}

/* A register's value: where it is, `scalar` (8 bytes) for one of NumPy's scalars, and how far a lane is from the
 * next. 0 for something else than expected. */
static int locate(PyObject *held, long lanes, int size, char *scalar, char **place, intptr_t *step) {
    *step = 0;
    if (is_array(held)) {
        Array *a = (Array *)held;
        *place = a->data;
        if (a->dimensions == 0) return 1;
        *step = a->strides[0];
        return a->dimensions == 1 && a->shape[0] == lanes && (*step == size || !*step);
    }
    if (!PyType_IsSubtype(held->type, numpy[GENERIC_TYPE])) return 0;
    *place = scalar;
    ((void (*)(PyObject *, void *))numpy[SCALAR_VALUE])(held, scalar);
    return 1;
}

/* A new array over all lanes, or where it is the `same` in all of them of one value. */
static PyObject *empty(int kind, intptr_t lanes, int same) {
    void *dtype = ((void *(*)(int))numpy[DESCRIBE])(types[kind]);
    return ((PyObject * (*)(int, const intptr_t *, void *, int)) numpy[EMPTY])(!same, &lanes, dtype, 0);
}

/* Of a list of one array, int32 of 7 elements that nobody else has, at `data`, and `scalar` of int64, -7: 0 once
 * all is ready; 1 where multiply-adds are not the processor's own: the C library's are right, but slow; 2 where
 * objects or NumPy's table are not as declared. Nothing is followed that is not known to be an address. */
long prepare(List *list, void *data, PyObject *scalar) {
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath");
    PyErr_Clear();
    if (!module) module = PyImport_ImportModule("numpy.core._multiarray_umath"); /* of NumPy 1 */
    PyObject *table = module ? PyObject_GetAttrString(module, "_ARRAY_API") : 0;
    numpy = table ? PyCapsule_GetPointer(table, 0) : 0;
    PyErr_Clear();
    unsigned abi = numpy ? ((unsigned (*)(void))numpy[ABI_VERSION])() : 0;
    if (abi != ABI_OF_NUMPY_1 && abi != ABI_OF_NUMPY_2) return 2;
    if (list->object.type != (void *)&PyList_Type || list->size != 1) return 2;
    PyObject *first = PyList_GetItem(&list->object, 0);
    Array *a = (Array *)first;
    if (list->items[0] != first || !is_array(first) || a->data != data || a->dimensions != 1) return 2;
    if (a->shape[0] != 7 || a->strides[0] != 4 || !ours(first, 7, 4)) return 2;
    Py_IncRef(first);
    int taken = ours(first, 7, 4);
    Py_DecRef(first);
    char value[8], *place;
    int64_t minus;
    intptr_t step;
    if (taken || !locate(scalar, 1, 8, value, &place, &step)) return 2;
    memcpy(&minus, place, 8);
    if (minus != -7) return 2;
    for (int kind = 0; kind < sizeof types / sizeof *types; kind++) {
        static const int sizes[] = {1, 2, 4, 8, 4, 8};
        PyObject *made = empty(kind, 3, 0);
        int right = made && ours(made, 3, sizes[kind]);
        if (made) Py_DecRef(made);
        if (!right) return 2;
    }
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return 0;
#else
    return 1;
#endif
}

