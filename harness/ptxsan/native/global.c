/* Who accessed each cell of a buffer in global memory last, by number (cells,) int64, and when. Each function answers
 * for the accesses that nobody disputes, nearly all of them; NumPy looks at the rest. An element (n,) int64 has `per`
 * cells.
 */

/* Elements (n,) int64 of `width` bytes in the storage of a buffer, of addresses (n,) int64. Of each lane, or of all,
 * `first` is the buffer's address and `start` its place in the storage, int64; `lane` (n,) int64 whose each is. Its
 * rows of `size` bytes are `pitch` bytes apart, `stored` in the storage. 1 where one is out of bounds. */
long global_places(Array *address, Array *first, Array *start, Array *lane, long rows, long size, long pitch, long stored,
                   long width, Array *element) {
    const int64_t *firsts = PyArray_DATA(first), *starts = PyArray_DATA(start), *lanes = PyArray_DATA(lane);
    const char *at = PyArray_DATA(address);
    int64_t *elements = PyArray_DATA(element), wrong = 0;
    long n = PyArray_DIM(address, 0), step = PyArray_STRIDE(address, 0), one = PyArray_DIM(first, 0) == 1, shift = 0;
    while (1L << shift < width) shift++;
    if (size < width) return 1;
    for (long i = 0; i < n; i++) {
        int64_t where = *(const int64_t *)(at + i * step), l = one ? 0 : lanes[i], within = where - firsts[l];
        int64_t row = rows > 1 ? within / pitch : 0, column = within - row * pitch;
        wrong |= (within < 0) | (row >= rows) | (column > size - width);
        elements[i] = (row * stored + column + starts[l]) >> shift;
    }
    return wrong;
}

/* Whether another thread than `number` (n,) was at one of these cells, of `strong` accesses (negative) none where the
 * new ones are. */
long disputed(Array *who, Array *element, Array *number, long per, long strong) {
    const int64_t *last = PyArray_DATA(who), *elements = PyArray_DATA(element), *numbers = PyArray_DATA(number);
    long n = PyArray_DIM(element, 0);
    for (long i = 0; i < n; i++)
        for (long j = 0; j < per; j++) {
            int64_t other = last[elements[i] * per + j];
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
    for (long i = 0; i < n; i++)
        for (long j = 0; j < per; j++)
            if (differ(last[elements[i] * per + j], numbers[i])) return 1;
    int64_t *before = malloc(n * per * sizeof *before + 1);
    if (!before) return 1;
    for (long i = 0; i < n * per; i++) before[i] = last[elements[i / per] * per + i % per];
    for (long i = 0; i < n; i++)
        for (long j = 0; j < per; j++) {
            int64_t *cell = last + elements[i] * per + j;
            bad |= differ(*cell, numbers[i]);
            *cell = numbers[i];
        }
    for (long i = 0; i < n * per; i++) {
        long cell = elements[i / per] * per + i % per;
        if (bad) last[cell] = before[i];
        else times[cell] = now;
    }
    free(before);
    return bad;
}

/* Notes readers, one after another: `who` and `when` (2, cells) int64, the last one and the last other one. */
long note_readers(Array *who, Array *when, Array *element, Array *number, long per, long now) {
    long cells = PyArray_DIM(who, 1), n = PyArray_DIM(element, 0);
    int64_t *last = PyArray_DATA(who), *times = PyArray_DATA(when);
    const int64_t *elements = PyArray_DATA(element), *numbers = PyArray_DATA(number);
    for (long i = 0; i < n; i++)
        for (long cell = elements[i] * per, end = cell + per; cell < end; cell++) {
            if (last[cell] != numbers[i]) {
                last[cells + cell] = last[cell];
                times[cells + cell] = times[cell];
            }
            last[cell] = numbers[i];
            times[cell] = now;
        }
    return 0;
}

/* Whether for one of the lanes (n,) a write by the thread `writer` (n,), 0 for none, at the time `when` (n,) may not
 * be ordered before now, all int64: of threads of the same block `met` (blocks,) and `warp_met` (warps,) are the last
 * barriers, of others `covered` (m, threads) the times before which writes are known, in the row that `index` (blocks,
 * others) says. `mine` (lanes,) are the numbers of the lanes' threads. */
long maybe_unordered(Array *lane, Array *writer, Array *when, Array *mine, Array *met, Array *warp_met, long threads,
                     Array *index, Array *covered) {
    const int64_t *lanes = PyArray_DATA(lane), *writers = PyArray_DATA(writer), *times = PyArray_DATA(when);
    const int64_t *numbers = PyArray_DATA(mine), *of_block = PyArray_DATA(met), *of_warp = PyArray_DATA(warp_met);
    const int64_t *row = PyArray_DATA(index), *known = PyArray_DATA(covered);
    long n = PyArray_DIM(lane, 0), others = PyArray_DIM(index, 1);
    for (long i = 0; i < n; i++) {
        int64_t l = lanes[i], number = numbers[l];
        if (!writers[i] || writers[i] == number) continue;
        int64_t block = (writers[i] - 1) / threads, thread = (writers[i] - 1) % threads;
        if (block == (number - 1) / threads) {
            int same_warp = thread / THREADS_OF_WARP == (number - 1) % threads / THREADS_OF_WARP;
            if (times[i] < of_block[l / threads] || (same_warp && times[i] < of_warp[l / THREADS_OF_WARP])) continue;
            return 1;
        }
        int64_t at = row[l / threads * others + (block < others ? block : others - 1)];
        if (times[i] >= known[at * threads + thread]) return 1;
    }
    return 0;
}
