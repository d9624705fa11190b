/* Who accessed each cell of a buffer in global memory last, by number (cells,) int64, and when. Each function answers
 * for the accesses that nobody disputes, nearly all of them; NumPy looks at the rest. An element (n,) int64 has `per`
 * cells.
 */

/* Elements (n,) int64 of `width` bytes in the storage of a buffer, of addresses (n,) int64, or of those of all lanes where
 * they are `spread`. Of each lane, or of all, `first` is the buffer's address and `start` its place in the storage, int64;
 * `lane` (n,) int64 whose each is. Its rows of `size` bytes are `pitch` bytes apart, `stored` in the storage. 1 where one
 * is out of bounds, or not aligned. */
long global_places(Array *address, long spread, Array *first, Array *start, Array *lane, long rows, long size, long pitch,
                   long stored, long width, Array *element) {
    const int64_t *firsts = PyArray_DATA(first), *starts = PyArray_DATA(start), *lanes = PyArray_DATA(lane);
    const char *at = PyArray_DATA(address);
    int64_t *elements = PyArray_DATA(element), wrong = 0;
    long n = PyArray_DIM(lane, 0), step = PyArray_STRIDE(address, 0), one = PyArray_DIM(first, 0) == 1, shift = 0;
    while (1L << shift < width) shift++;
    if (size < width) return 1;
    for (long i = 0; i < n; i++) {
        int64_t where = *(const int64_t *)(at + (spread ? lanes[i] : i) * step), l = one ? 0 : lanes[i];
        int64_t within = where - firsts[l], row = rows > 1 ? within / pitch : 0, column = within - row * pitch;
        wrong |= (within < 0) | (row >= rows) | (column > size - width) | (where & (width - 1));
        elements[i] = (row * stored + column + starts[l]) >> shift;
    }
    return wrong != 0;
}

/* Whether another thread than `number` (n,) was at one of these cells, of `strong` accesses (negative) none where the
 * new ones are. */
long disputed(Array *who, Array *element, Array *number, long per, long strong) {
    const int64_t *last = PyArray_DATA(who), *elements = PyArray_DATA(element), *numbers = PyArray_DATA(number);
    long n = PyArray_DIM(element, 0);
    for (long i = 0; i < n; i++)
        for (long cell = elements[i] * per, end = cell + per; cell < end; cell++) {
            int64_t other = last[cell];
            if (other && other != numbers[i] && other != -numbers[i] && !(strong && other < 0)) return 1;
        }
    return 0;
}

static int differ(int64_t one, int64_t other) {
    return one && one != other && one != -other && (one > 0 || other > 0);
}

/* Notes writers of these numbers (n,), negative for atomics; 1 where two of them dispute a cell, or one does with who
 * was there before: then nothing has changed. */
long claim(Array *who, Array *when, Array *element, Array *number, long per, long now) {
    int64_t *last = PyArray_DATA(who), *times = PyArray_DATA(when);
    const int64_t *elements = PyArray_DATA(element), *numbers = PyArray_DATA(number);
    long n = PyArray_DIM(element, 0), bad = 0;
    int64_t *before = malloc(n * per * sizeof *before + 1), *next = before;
    if (!before) return 1;
    for (long i = 0; i < n && !bad; i++)
        for (long cell = elements[i] * per, end = cell + per; cell < end; cell++)
            bad |= differ(*next++ = last[cell], numbers[i]);
    if (!bad) {
        for (long i = 0; i < n; i++)
            for (long cell = elements[i] * per, end = cell + per; cell < end; cell++) {
                bad |= differ(last[cell], numbers[i]);
                last[cell] = numbers[i];
            }
        next = before;
        for (long i = 0; i < n; i++)
            for (long cell = elements[i] * per, end = cell + per; cell < end; cell++) {
                if (bad) last[cell] = *next++;
                else times[cell] = now;
            }
    }
    free(before);
    return bad;
}

/* Of a cell of checks/readers.py: the thread that read it last, and when; the last other one. */
typedef struct {
    int64_t who, when, other, earlier;
} Reader;

/* Notes readers, one after another, of cells (cells, 4) int64. */
long note_readers(Array *readers, Array *element, Array *number, long per, long now) {
    Reader *all = PyArray_DATA(readers);
    const int64_t *elements = PyArray_DATA(element), *numbers = PyArray_DATA(number);
    long n = PyArray_DIM(element, 0);
    for (long i = 0; i < n; i++)
        for (Reader *r = all + elements[i] * per, *end = r + per; r < end; r++) {
            if (r->who != numbers[i]) r->other = r->who, r->earlier = r->when;
            r->who = numbers[i], r->when = now;
        }
    return 0;
}

/* Whether another thread than `number` (n,) read one of these cells. */
long read_by_others(Array *readers, Array *element, Array *number, long per) {
    const Reader *all = PyArray_DATA(readers);
    const int64_t *elements = PyArray_DATA(element), *numbers = PyArray_DATA(number);
    long n = PyArray_DIM(element, 0);
    for (long i = 0; i < n; i++)
        for (const Reader *r = all + elements[i] * per, *end = r + per; r < end; r++)
            if ((r->who && r->who != numbers[i]) || (r->other && r->other != numbers[i])) return 1;
    return 0;
}

/* What orders accesses: `met` (blocks,) and `warp_met` (warps,) are the last barriers, of threads of the same block; of
 * others `covered` (m, threads) the times before which writes are known, in the row that `index` (blocks, others) says.
 * `mine` (lanes,) are the numbers of the lanes' threads. All int64. */
typedef struct {
    const int64_t *mine, *met, *warp_met, *row, *known;
    long threads, others;
} Ordering;

static Ordering ordering(Array *mine, Array *met, Array *warp_met, long threads, Array *index, Array *covered) {
    return (Ordering){PyArray_DATA(mine), PyArray_DATA(met), PyArray_DATA(warp_met), PyArray_DATA(index),
                      PyArray_DATA(covered), threads, PyArray_DIM(index, 1)};
}

/* Whether a write by the thread `writer`, 0 for none, at the time `when` may not be ordered before what a lane does. */
static int may_race(const Ordering *of, int64_t lane, int64_t writer, int64_t when) {
    int64_t number = of->mine[lane];
    if (!writer || writer == number) return 0;
    int64_t block = (writer - 1) / of->threads, thread = (writer - 1) % of->threads;
    if (block == (number - 1) / of->threads) {
        int same_warp = thread / THREADS_OF_WARP == (number - 1) % of->threads / THREADS_OF_WARP;
        return !(when < of->met[lane / of->threads] || (same_warp && when < of->warp_met[lane / THREADS_OF_WARP]));
    }
    int64_t at = of->row[lane / of->threads * of->others + (block < of->others ? block : of->others - 1)];
    return when >= of->known[at * of->threads + thread];
}

/* Whether that is so for one of the lanes (n,), of writers (n,) and times (n,). */
long maybe_unordered(Array *lane, Array *writer, Array *when, Array *mine, Array *met, Array *warp_met, long threads,
                     Array *index, Array *covered) {
    Ordering of = ordering(mine, met, warp_met, threads, index, covered);
    const int64_t *lanes = PyArray_DATA(lane), *writers = PyArray_DATA(writer), *times = PyArray_DATA(when);
    long n = PyArray_DIM(lane, 0);
    for (long i = 0; i < n; i++)
        if (may_race(&of, lanes[i], writers[i], times[i])) return 1;
    return 0;
}

/* The same of who wrote the cells of elements (n,) last, and of when, by `shift` bits; of `strong` accesses (negative) not
 * where the new ones are. */
long maybe_disordered(Array *who, Array *when, Array *element, Array *lane, long per, long strong, long shift, Array *mine,
                      Array *met, Array *warp_met, long threads, Array *index, Array *covered) {
    Ordering of = ordering(mine, met, warp_met, threads, index, covered);
    const int64_t *last = PyArray_DATA(who), *times = PyArray_DATA(when);
    const int64_t *elements = PyArray_DATA(element), *lanes = PyArray_DATA(lane);
    long n = PyArray_DIM(element, 0);
    for (long i = 0; i < n; i++)
        for (long cell = elements[i] * per, end = cell + per; cell < end; cell++) {
            int64_t writer = last[cell];
            if (strong && writer < 0) continue;
            if (may_race(&of, lanes[i], writer < 0 ? -writer : writer, times[cell] >> shift)) return 1;
        }
    return 0;
}
