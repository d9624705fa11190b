/* What is asked of vector clocks (checks/clocks.py) for each access to shared memory. Each function says whether
 * anything is wrong, or does what is asked; what is wrong, and where, NumPy finds again, which has the words. A row
 * of `known` (lanes, columns) int32 has the times of the `group` lanes of a cluster, then the phases of mbarriers;
 * `floor` (clusters,) int32 is what all of a cluster know of all. Elements (n,) int64 have `per` cells each; of
 * lanes there is one for each element, or one for all.
 */
typedef struct {
    const int32_t *known, *floor;
    long columns, group;
} Clocks;

static Clocks clocks_of(const Array *known, const Array *floor, long group) {
    Clocks found = {PyArray_DATA(known), PyArray_DATA(floor), PyArray_DIM(known, 1), group};
    return found;
}

static inline int knows(const Clocks *c, long lane, long other, int32_t when) {
    return c->known[lane * c->columns + other] >= when || c->floor[lane / c->group] >= when;
}

#define EACH_COLUMN(n, ...) _Pragma("GCC ivdep") for (long k = 0; k < n; k++) { __VA_ARGS__; }

#define EACH_CELL(...) \
    { \
        const int64_t *elements = PyArray_DATA(element), *lanes = PyArray_DATA(lane); \
        long n = PyArray_DIM(element, 0), one = PyArray_DIM(lane, 0) == 1; \
        for (long i = 0; i < n; i++) { \
            long l = lanes[one ? 0 : i]; \
            for (long cell = elements[i] * per, end = cell + per; cell < end; cell++) __VA_ARGS__ \
        } \
    }

/* Whether the last write to one of the cells, by lane `who` (cells,) int32 at the time `when` (cells,) int32, 0 for
 * none, is not before what the lanes do now. */
long wrote_unordered(Array *who, Array *when, Array *element, Array *lane, long per, Array *known, Array *floor,
                     long group) {
    Clocks c = clocks_of(known, floor, group);
    const int32_t *by = PyArray_DATA(who), *at = PyArray_DATA(when);
    EACH_CELL(if (at[cell] && !knows(&c, l, by[cell] % group, at[cell])) return 1;)
    return 0;
}

/* The lanes write the cells now. */
long write_cells(Array *who, Array *when, Array *copied, Array *element, Array *lane, long per, long now, long copies) {
    int32_t *by = PyArray_DATA(who), *at = PyArray_DATA(when);
    uint8_t *copy = PyArray_DATA(copied);
    EACH_CELL({ by[cell] = (int32_t)l; at[cell] = (int32_t)now; copy[cell] = (uint8_t)copies; })
    return 0;
}

/* The lanes access the cells now. By warp of the cluster there is in `whens` and `bits` None, or for each cell the
 * time of its last access, int32, and a bit for each of its lanes then, uint32. Number + 1 of a warp that has none
 * yet, and nothing has happened. */
long note_cells(PyObject *whens, PyObject *bits, Array *element, Array *lane, long per, long group, long now) {
    const int64_t *all = PyArray_DATA(lane);
    for (long i = 0; i < PyArray_DIM(lane, 0); i++)
        if (PyList_GET_ITEM(whens, all[i] % group / THREADS_OF_WARP) == Py_None)
            return all[i] % group / THREADS_OF_WARP + 1;
    EACH_CELL({
        long warp = l % group / THREADS_OF_WARP;
        int32_t *when = PyArray_DATA((Array *)PyList_GET_ITEM(whens, warp));
        uint32_t *who = PyArray_DATA((Array *)PyList_GET_ITEM(bits, warp)), bit = 1u << l % THREADS_OF_WARP;
        who[cell] = when[cell] == now ? who[cell] | bit : bit;
        when[cell] = (int32_t)now;
    })
    return 0;
}

/* Whether one of the last accesses of warps to the cells is not before what the lanes do now. */
long accessed_unordered(PyObject *whens, PyObject *bits, Array *element, Array *lane, long per, Array *known,
                        Array *floor, long group) {
    Clocks c = clocks_of(known, floor, group);
    for (long warp = 0; warp < ((List *)whens)->size; warp++) {
        if (PyList_GET_ITEM(whens, warp) == Py_None) continue;
        const int32_t *when = PyArray_DATA((Array *)PyList_GET_ITEM(whens, warp));
        const uint32_t *who = PyArray_DATA((Array *)PyList_GET_ITEM(bits, warp));
        EACH_CELL({
            if (when[cell] <= c.floor[l / group]) continue;
            const int32_t *row = c.known + l * c.columns + warp * THREADS_OF_WARP;
            for (uint32_t left = who[cell]; left; left &= left - 1)
                if (row[__builtin_ctz(left)] < when[cell]) return 1;
        })
    }
    return 0;
}

/* Whether a copy to one of the cells, by its number in `written` (cells,) int32, 0 for none, has not ended as far as
 * the lanes know: `ends` (2, copies) int64 are the mbarrier and the phase of each. */
long copy_unseen(Array *written, Array *ends, Array *element, Array *lane, long per, Array *known, long group) {
    const int32_t *number = PyArray_DATA(written), *seen = PyArray_DATA(known);
    const int64_t *end_of = PyArray_DATA(ends);
    long columns = PyArray_DIM(known, 1), copies = PyArray_DIM(ends, 1);
    EACH_CELL(if (number[cell] && seen[l * columns + group + end_of[number[cell]]] <= end_of[copies + number[cell]])
                  return 1;)
    return 0;
}

/* Whether a read of one of the cells, by its number in `read` (cells,) int32, 0 for none, is not known to be over to
 * one of the lanes: `over` (reads, group) uint8. */
long read_unseen(Array *read, Array *over, Array *element, Array *lane, long per, long group) {
    const int32_t *number = PyArray_DATA(read);
    const uint8_t *is_over = PyArray_DATA(over);
    EACH_CELL(if (number[cell] && !is_over[number[cell] * group + l % group]) return 1;)
    return 0;
}

/* Whether the last write to one of the cells (n,) int64 is before what no lane of one of the actors does now:
 * `actors` (m,) int64, so many lanes of `each`. `fenced`: as known, or NULL's stand-in, the same. */
long write_uncovered(Array *who, Array *when, Array *cells, Array *actors, long each, Array *known, Array *floor,
                     Array *fenced, long group, long generic) {
    Clocks c = clocks_of(known, floor, group);
    const int32_t *by = PyArray_DATA(who), *at = PyArray_DATA(when), *shown = PyArray_DATA(fenced);
    const int64_t *cell = PyArray_DATA(cells), *lanes = PyArray_DATA(actors);
    long n = PyArray_DIM(cells, 0), m = PyArray_DIM(actors, 0);
    int32_t last = -1, then = 0;
    for (long i = 0; i < n; i++) {
        int32_t other = by[cell[i]], time = at[cell[i]];
        if (!time || (other == last && time == then)) continue;
        last = other, then = time;
        for (long first = 0; first < m; first += each) {
            int ordered = 0, seen = generic != 0;
            for (long j = first; j < first + each; j++) {
                ordered |= knows(&c, lanes[j], other % group, time);
                seen |= shown[lanes[j] * c.columns + other % group] >= time;
            }
            if (!ordered || !seen) return 1;
        }
    }
    return 0;
}

/* Whether of a copy to one of the cells (n,) int64, as of copy_unseen, no lane of one of the actors knows the end. */
long copy_uncovered(Array *written, Array *ends, Array *cells, Array *actors, long each, Array *known, long group) {
    const int32_t *number = PyArray_DATA(written), *seen = PyArray_DATA(known);
    const int64_t *end_of = PyArray_DATA(ends), *cell = PyArray_DATA(cells), *lanes = PyArray_DATA(actors);
    long columns = PyArray_DIM(known, 1), copies = PyArray_DIM(ends, 1);
    long n = PyArray_DIM(cells, 0), m = PyArray_DIM(actors, 0);
    int32_t last = 0;
    for (long i = 0; i < n; i++) {
        int32_t now = number[cell[i]];
        if (now == last || !now) continue;
        last = now;
        for (long first = 0; first < m; first += each) {
            int ended = 0;
            for (long j = first; j < first + each; j++)
                ended |= seen[lanes[j] * columns + group + end_of[now]] > end_of[copies + now];
            if (!ended) return 1;
        }
    }
    return 0;
}

/* The numbers above 0 of the cells (n,) int64, each once, into `found` (most,) int32; how many, or -1 for more. */
long numbers_of(Array *plane, Array *cells, Array *found) {
    const int32_t *number = PyArray_DATA(plane);
    const int64_t *cell = PyArray_DATA(cells);
    int32_t *out = PyArray_DATA(found), last = 0;
    long n = PyArray_DIM(cells, 0), most = PyArray_DIM(found, 0), count = 0;
    for (long i = 0; i < n; i++) {
        int32_t now = number[cell[i]];
        if (now == last || !now) continue;
        last = now;
        long k = 0;
        while (k < count && out[k] != now) k++;
        if (k < count) continue;
        if (count == most) return -1;
        out[count++] = now;
    }
    return count;
}

/* The largest of the rows of `held` (lanes, columns) int32 of these lanes (n,) int64, (columns,). */
long largest_of(Array *held, Array *lane, Array *found) {
    const int32_t *from = PyArray_DATA(held);
    const int64_t *lanes = PyArray_DATA(lane);
    int32_t *out = PyArray_DATA(found);
    long n = PyArray_DIM(lane, 0), columns = PyArray_DIM(held, 1);
    memcpy(out, from + lanes[0] * columns, columns * sizeof *out);
    for (long i = 1; i < n; i++) {
        const int32_t *row = from + lanes[i] * columns;
        EACH_COLUMN(columns, out[k] = out[k] > row[k] ? out[k] : row[k])
    }
    return 0;
}

/* Each of these rows becomes at least the `least` (m,) of as many columns. */
long raise_to(Array *held, Array *lane, Array *least) {
    int32_t *to = PyArray_DATA(held);
    const int32_t *from = PyArray_DATA(least);
    const int64_t *lanes = PyArray_DATA(lane);
    long n = PyArray_DIM(lane, 0), columns = PyArray_DIM(held, 1), m = PyArray_DIM(least, 0);
    for (long i = 0; i < n; i++) {
        int32_t *row = to + lanes[i] * columns;
        EACH_COLUMN(m, row[k] = row[k] > from[k] ? row[k] : from[k])
    }
    return 0;
}

/* What these lanes (n,) int64 know, of themselves `now`, is fenced. */
long show_known(Array *known, Array *lane, Array *fenced, long group, long now) {
    const int32_t *from = PyArray_DATA(known);
    const int64_t *lanes = PyArray_DATA(lane);
    int32_t *to = PyArray_DATA(fenced);
    long n = PyArray_DIM(lane, 0), columns = PyArray_DIM(known, 1);
    for (long i = 0; i < n; i++) {
        const int32_t *row = from + lanes[i] * columns;
        int32_t *shown = to + lanes[i] * columns;
        EACH_COLUMN(columns, shown[k] = shown[k] > row[k] ? shown[k] : row[k])
        shown[lanes[i] % group] = (int32_t)now;
    }
    return 0;
}

/* All lanes of each of these warps (n,) int64 meet: their rows of `held` become the largest of them. Of what is
 * `known` also what all know, of the lanes themselves `now`, and of each lane itself `ever`. */
long meet_warps(Array *held, Array *warps, Array *floor, long group, long now, long known, long ever) {
    int32_t *all = PyArray_DATA(held);
    const int64_t *warp = PyArray_DATA(warps);
    const int32_t *floors = PyArray_DATA(floor);
    long n = PyArray_DIM(warps, 0), columns = PyArray_DIM(held, 1);
    for (long i = 0; i < n; i++) {
        long lane = warp[i] * THREADS_OF_WARP, own = lane % group;
        int32_t *first = all + lane * columns, least = floors[lane / group];
        for (long j = 1; j < THREADS_OF_WARP; j++) {
            const int32_t *row = first + j * columns;
            EACH_COLUMN(columns, first[k] = first[k] > row[k] ? first[k] : row[k])
        }
        if (known) {
            EACH_COLUMN(group, first[k] = first[k] > least ? first[k] : least)
            for (long j = 0; j < THREADS_OF_WARP; j++) first[own + j] = (int32_t)now;
        }
        for (long j = 1; j < THREADS_OF_WARP; j++) memcpy(first + j * columns, first, columns * sizeof *first);
        for (long j = 0; known && j < THREADS_OF_WARP; j++) first[j * columns + own + j] = (int32_t)ever;
    }
    return 0;
}
