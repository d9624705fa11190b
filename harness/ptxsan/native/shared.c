/* What is checked of each access to shared memory: where it lies, whether something was written there, and who
 * else was there. Each function does what the NumPy function does that calls it, in one pass over the lanes;
 * what it cannot do, an access out of bounds among it, it leaves to that one. Arrays are contiguous, but for
 * addresses; a cell is a granule of the storage, and an element has `per` of them.
 */
#include <stdlib.h>

enum { THREADS_OF_WARP = 32, SEVERAL_IN_WARP = -1, SEVERAL = -2, BANKS = 32 };

/* The block of a lane: nearly always that of the lane before, so that nothing is divided. */
typedef struct {
    int64_t number, first;
} Block;

static inline void enter_block(Block *block, int64_t lane, long threads) {
    if ((uint64_t)(lane - block->first) < (uint64_t)threads) return;
    block->number = lane / threads;
    block->first = block->number * threads;
}

static long all_of(const uint8_t *set, const int64_t *elements, long n, long per) {
    if (per == 4) { /* as of most accesses: all at once */
        uint32_t all = 0x01010101;
        for (long i = 0; i < n; i++) all &= ((const uint32_t *)set)[elements[i]];
        return all == 0x01010101;
    }
    if (per == 1) {
        uint8_t all = 1;
        for (long i = 0; i < n; i++) all &= set[elements[i]];
        return all;
    }
    for (long i = 0; i < n; i++)
        for (long j = 0; j < per; j++)
            if (!set[elements[i] * per + j]) return 0;
    return 1;
}

/* Of the addresses (lanes,) of the lanes (n,) int64: elements (n,) int64 of `width` bytes in the storage, and, where
 * there is an `index` (lanes,) int32, the elements there. `slots` (count, 3) int64: start, size and bias of each
 * variable. In `held`, of 64 bits each, a bit is set for each granule of a block, of 1 << `granule` bytes, that is
 * accessed in any block. 0 where one access is out of bounds, or not aligned; else twice the bytes of `held` that are of
 * use, and one more where all cells of `written`, if there are any, are set. */
long shared_places(Array *address, long item, Array *lane, Array *slots, long slot_bits, long reserved, long row,
                   long threads, long width, long granule, Array *written, Array *element, Array *index, Array *held) {
    const int64_t *lanes = PyArray_DATA(lane), *slot = PyArray_DATA(slots);
    const uint8_t *set = PyArray_DATA(written);
    int64_t *elements = PyArray_DATA(element);
    int32_t *indices = PyArray_DIM(index, 0) ? PyArray_DATA(index) : 0;
    uint64_t *bits = PyArray_DATA(held);
    const char *at = PyArray_DATA(address);
    long n = PyArray_DIM(lane, 0), count = PyArray_DIM(slots, 0), step = PyArray_STRIDE(address, 0), shift = 0;
    int64_t low = ((int64_t)1 << slot_bits) - 1, word = 0, last = 0;
    while (1L << shift < width) shift++;
    long per = width >> granule ? width >> granule : 1;
    uint64_t each = ((uint64_t)1 << per) - 1, found = 0;
    Block block = {0, 0};
    memset(bits, 0, PyArray_DIM(held, 0) * sizeof *bits);
    for (long i = 0; i < n; i++) {
        const char *from = at + lanes[i] * step;
        int64_t where = (int64_t)(item == 4 ? *(const uint32_t *)from : *(const uint64_t *)from) & 0xFFFFFFFF;
        where -= reserved;
        int64_t which = (where >> slot_bits) - 1;
        if (which < 0 || which >= count) return 0;
        int64_t within = (where & low) - slot[3 * which + 2];
        if (within < 0 || within + width > slot[3 * which + 1] || (within & (width - 1))) return 0;
        within += slot[3 * which];
        enter_block(&block, lanes[i], threads);
        elements[i] = (block.number * row + within) >> shift;
        if (indices) indices[lanes[i]] = (int32_t)elements[i];
        int64_t cell = within >> granule; /* aligned to `per`, which is 1, 2, 4, 8 or 16 */
        if (cell >> 6 != word) {
            bits[word] |= found;
            word = cell >> 6, found = 0;
            last = word > last ? word : last;
        }
        found |= each << (cell & 63);
    }
    bits[word] |= found;
    return 16 * (last + 1) + (PyArray_DIM(written, 0) && all_of(set, elements, n, per));
}

/* Whether all cells of these elements are set. */
long all_set(Array *cells, Array *element, long per) {
    return all_of(PyArray_DATA(cells), PyArray_DATA(element), PyArray_DIM(element, 0), per);
}

long set_all(Array *cells, Array *element, long per) {
    uint8_t *set = PyArray_DATA(cells);
    const int64_t *elements = PyArray_DATA(element);
    long n = PyArray_DIM(element, 0);
    if (per == 4)
        for (long i = 0; i < n; i++) ((uint32_t *)set)[elements[i]] = 0x01010101;
    else
        for (long i = 0; i < n; i++) memset(set + elements[i] * per, 1, per);
    return 0;
}

/* Whether each cell is of one lane alone; `last` (cells,) int32 is overwritten. */
long apart(Array *element, Array *lane, long per, Array *last) {
    const int64_t *elements = PyArray_DATA(element), *lanes = PyArray_DATA(lane);
    int32_t *of = PyArray_DATA(last);
    long n = PyArray_DIM(element, 0);
    for (long i = 0; i < n; i++)
        for (long j = 0; j < per; j++) of[elements[i] * per + j] = (int32_t)lanes[i];
    for (long i = 0; i < n; i++)
        for (long j = 0; j < per; j++)
            if (of[elements[i] * per + j] != lanes[i]) return 0;
    return 1;
}

/* Marks of checks/races.py: of the last access to each cell, (cells, 4) int32; an epoch is above 0. */
typedef struct {
    int32_t epoch, who, warp, step;
} Mark;

/* A write, or where `joins` a read, by these lanes: `epochs` of each block, `steps` of each warp, int32. */
long tag(Array *marks, Array *element, Array *lane, long per, long threads, Array *epochs, Array *steps, long joins) {
    Mark *all = PyArray_DATA(marks);
    const int64_t *elements = PyArray_DATA(element), *lanes = PyArray_DATA(lane);
    const int32_t *epoch = PyArray_DATA(epochs), *step = PyArray_DATA(steps);
    long n = PyArray_DIM(element, 0);
    Block block = {0, 0};
    for (long i = 0; i < n; i++) {
        enter_block(&block, lanes[i], threads);
        int32_t thread = lanes[i] - block.first, warp = thread / THREADS_OF_WARP;
        int32_t when = epoch[block.number], now = step[lanes[i] / THREADS_OF_WARP];
        for (long cell = elements[i] * per, end = cell + per; cell < end; cell++) {
            int32_t who = thread;
            Mark *m = all + cell;
            int own = m->who != SEVERAL && m->warp == warp;
            /* Those of its warp before a step are ordered before whatever comes after this one. */
            if (joins && m->epoch == when && m->who != thread && !(own && m->step < now))
                who = own ? SEVERAL_IN_WARP : SEVERAL;
            *m = (Mark){when, who, warp, now};
        }
    }
    return 0;
}

/* The first of the cells of these accesses, numbered one after another, that another thread was at in this
 * epoch, with no step of the warp between; -1 for none. */
long unordered(Array *marks, Array *element, Array *lane, long per, long threads, Array *epochs, Array *steps) {
    Mark *all = PyArray_DATA(marks);
    const int64_t *elements = PyArray_DATA(element), *lanes = PyArray_DATA(lane);
    const int32_t *epoch = PyArray_DATA(epochs), *step = PyArray_DATA(steps);
    long n = PyArray_DIM(element, 0);
    Block block = {0, 0};
    for (long i = 0; i < n; i++) {
        enter_block(&block, lanes[i], threads);
        int32_t thread = lanes[i] - block.first, warp = thread / THREADS_OF_WARP;
        int32_t when = epoch[block.number], now = step[lanes[i] / THREADS_OF_WARP];
        for (long j = 0; j < per; j++) {
            long cell = elements[i] * per + j;
            const Mark *m = all + cell;
            if (m->epoch != when || m->who == thread) continue;
            if (m->who != SEVERAL && m->warp == warp && m->step < now) continue;
            return i * per + j;
        }
    }
    return -1;
}

/* Of accesses at `offset` (n,) of lanes (n,), by groups (n,) that are served together, all ascending int64:
 * requests of warps, wavefronts, and groups, `found` (3,) int64. 1 where there is no memory for it. */
long wavefronts(Array *offset, Array *lane, Array *group, long words, Array *found) {
    const int64_t *offsets = PyArray_DATA(offset), *groups = PyArray_DATA(group);
    const int64_t *lanes = PyArray_DATA(lane);
    int64_t *result = PyArray_DATA(found), span = 0, warp = -1;
    long n = PyArray_DIM(offset, 0), start = 0;
    for (long i = 0; i < n; i++)
        if (offsets[i] / 4 + words > span) span = offsets[i] / 4 + words;
    uint32_t *seen = calloc(span, sizeof *seen); /* the last group that wanted a word */
    if (!seen) return 1;
    while (start < n) {
        long at = start;
        int64_t banks[BANKS] = {0}, most = 0;
        for (; at < n && groups[at] == groups[start]; at++) {
            result[0] += lanes[at] / THREADS_OF_WARP != warp;
            warp = lanes[at] / THREADS_OF_WARP;
            for (int64_t word = offsets[at] / 4, end = word + words; word < end; word++) {
                if (seen[word] == start + 1) continue;
                seen[word] = start + 1;
                if (++banks[word % BANKS] > most) most = banks[word % BANKS];
            }
        }
        result[1] += most;
        result[2]++;
        start = at;
    }
    free(seen);
    return 0;
}
