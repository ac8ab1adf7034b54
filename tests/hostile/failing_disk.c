/* A disk that fails on order, for one node under test: loaded before libc, it stands between the node and the files of
 * its message store. What it counts and when it fails lies in a file that the test has mapped too (disk_shim.py).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, READS = 4, OPENS = 8 };
enum { DESCRIPTORS = 4096 };

struct control {
    int64_t kinds;     /* which calls count, and may fail */
    int64_t fail_at;   /* the number of the first call that fails, from 1; 0: none */
    int64_t failures;  /* how many fail in a row */
    int64_t error;     /* with which errno */
    int64_t is_short;  /* half of the first failing write succeeds */
    int64_t calls;     /* counted so far */
    int64_t failed;
    int64_t syncs;     /* these two are counted always */
    int64_t opens;
};

static struct control *shared;
static const char *part_of_name;
static char is_ours[DESCRIPTORS];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("STAGEPOST_DISK_CONTROL");
    part_of_name = getenv("STAGEPOST_DISK_NAME");
    if (path == NULL || part_of_name == NULL) return;
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int descriptor = real(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) abort();
    void *mapped = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) abort();
    shared = mapped;
    close(descriptor);
}

static int ours(int descriptor) {
    return shared != NULL && descriptor >= 0 && descriptor < DESCRIPTORS && is_ours[descriptor];
}

/* 0: go on; 1: fail, errno is set. */
static int fails(int kind) {
    if (kind == SYNCS) __atomic_add_fetch(&shared->syncs, 1, __ATOMIC_SEQ_CST);
    if (kind == OPENS) __atomic_add_fetch(&shared->opens, 1, __ATOMIC_SEQ_CST);
    if (!(shared->kinds & kind)) return 0;
    int64_t number = __atomic_add_fetch(&shared->calls, 1, __ATOMIC_SEQ_CST);
    if (shared->fail_at == 0 || number < shared->fail_at || number >= shared->fail_at + shared->failures) return 0;
    __atomic_add_fetch(&shared->failed, 1, __ATOMIC_SEQ_CST);
    errno = (int)shared->error;
    return 1;
}

static int opened(const char *path, int flags, mode_t mode, const char *symbol) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, symbol);
    int counts = shared != NULL && strstr(path, part_of_name) != NULL && strstr(path, ".lock") == NULL;
    if (counts && fails(OPENS)) return -1;
    int descriptor = real(path, flags, mode);
    if (descriptor >= 0 && descriptor < DESCRIPTORS) is_ours[descriptor] = (char)counts;
    return descriptor;
}

#define OPEN(name)                                        \
    int name(const char *path, int flags, ...) {          \
        mode_t mode = 0;                                  \
        if (flags & (O_CREAT | O_TMPFILE)) {              \
            va_list more;                                 \
            va_start(more, flags);                        \
            mode = va_arg(more, mode_t);                  \
            va_end(more);                                 \
        }                                                 \
        return opened(path, flags, mode, #name);          \
    }
OPEN(open)
OPEN(open64)

int close(int descriptor) {
    int (*real)(int) = dlsym(RTLD_NEXT, "close");
    if (descriptor >= 0 && descriptor < DESCRIPTORS) is_ours[descriptor] = 0;
    return real(descriptor);
}

#define SYNC(name)                                        \
    int name(int descriptor) {                            \
        int (*real)(int) = dlsym(RTLD_NEXT, #name);       \
        if (ours(descriptor) && fails(SYNCS)) return -1;  \
        return real(descriptor);                          \
    }
SYNC(fsync)
SYNC(fdatasync)

#define WRITE_AT(name, offset_t)                                                        \
    ssize_t name(int descriptor, const void *data, size_t size, offset_t place) {       \
        ssize_t (*real)(int, const void *, size_t, offset_t) = dlsym(RTLD_NEXT, #name); \
        if (ours(descriptor) && fails(WRITES)) {                                        \
            if (!shared->is_short || size < 2) return -1;                               \
            shared->is_short = 0;                                                       \
            return real(descriptor, data, size / 2, place);                             \
        }                                                                               \
        return real(descriptor, data, size, place);                                     \
    }
WRITE_AT(pwrite, off_t)
WRITE_AT(pwrite64, off64_t)

ssize_t write(int descriptor, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (ours(descriptor) && fails(WRITES)) return -1;
    return real(descriptor, data, size);
}

#define CUT(name, offset_t)                                      \
    int name(int descriptor, offset_t size) {                    \
        int (*real)(int, offset_t) = dlsym(RTLD_NEXT, #name);    \
        if (ours(descriptor) && fails(WRITES)) return -1;        \
        return real(descriptor, size);                           \
    }
CUT(ftruncate, off_t)
CUT(ftruncate64, off64_t)

#define READ_AT(name, offset_t)                                                   \
    ssize_t name(int descriptor, void *data, size_t size, offset_t place) {       \
        ssize_t (*real)(int, void *, size_t, offset_t) = dlsym(RTLD_NEXT, #name); \
        if (ours(descriptor) && fails(READS)) return -1;                          \
        return real(descriptor, data, size, place);                               \
    }
READ_AT(pread, off_t)
READ_AT(pread64, off64_t)
