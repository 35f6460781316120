/* Makes chosen system calls fail, write short, wait, or end the process. Loaded with LD_PRELOAD.
 *
 * What happens is said in a file that is mapped into every process that loads this library, so a
 * test changes it while they run. shim.py has the same layout.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, FAIL, END, HOLD };
enum { WRITE = 1, SYNC = 2, RENAME = 4, UNLINK = 8, TRUNCATE = 16, MAKE = 32, READ = 64 };
enum { EXIT_CODE = 77, HELD_US = 2000 };

struct control {
    int32_t action;     /* OFF, FAIL, END or HOLD */
    int32_t error;      /* errno of a failed call */
    uint32_t operations; /* which calls are meant: bits of the enum above */
    int32_t is_partial; /* the first write that is hit does half of its work before that */
    int64_t after;      /* matching calls that still pass */
    int64_t limit;      /* calls that are hit before all pass again; 0: no limit */
    int64_t matched;    /* matching calls seen */
    char path[256];     /* part of the path of the files that are meant */
};

static struct control *control;

__attribute__((constructor)) static void attach(void) {
    const char *name = getenv("FIRN_FAULT_CONTROL");
    if (name == NULL) return;
    int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) control = at;
    close(file);
}

/* Number of this hit from 1 on, 0 if the call passes. */
static int64_t hit_path(uint32_t operation, const char *path) {
    if (control == NULL || control->action == OFF) return 0;
    if (!(control->operations & operation)) return 0;
    if (strstr(path, control->path) == NULL) return 0;
    int64_t number = __atomic_add_fetch(&control->matched, 1, __ATOMIC_SEQ_CST) - control->after;
    if (number <= 0) return 0;
    if (control->limit && number > control->limit) return 0;
    if (control->action == HOLD) {
        while (__atomic_load_n(&control->action, __ATOMIC_SEQ_CST) == HOLD) usleep(HELD_US);
        return 0;
    }
    if (control->action == END && !(control->is_partial && operation == WRITE)) _exit(EXIT_CODE);
    return number;
}

static int64_t hit(uint32_t operation, int file) {
    if (control == NULL || control->action == OFF) return 0;
    if (!(control->operations & operation)) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return hit_path(operation, path);
}

static int failed(void) {
    errno = control->error;
    return -1;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (real == NULL) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* What a hit write returns; `half` is the call that writes half of the bytes. */
#define HIT_WRITE(number, half) do { \
    ssize_t done = control->is_partial && (number) == 1 ? (half) : -1; \
    if (control->action == END) _exit(EXIT_CODE); \
    return done >= 0 ? done : failed(); \
} while (0)

ssize_t write(int file, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int64_t number = hit(WRITE, file);
    if (number == 0) return real(file, data, size);
    HIT_WRITE(number, real(file, data, size / 2));
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    int64_t number = hit(WRITE, file);
    if (number == 0) return real(file, data, size, at);
    HIT_WRITE(number, real(file, data, size / 2, at));
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return pwrite64(file, data, size, at);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int64_t number = hit(WRITE, file);
    if (number == 0) return real(file, parts, count);
    HIT_WRITE(number, real(file, parts, count / 2));
}

static ssize_t half_of_first(int file, const struct iovec *parts, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return real(file, parts[0].iov_base, parts[0].iov_len / 2, at);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    int64_t number = hit(WRITE, file);
    if (number == 0) return real(file, parts, count, at);
    HIT_WRITE(number, half_of_first(file, parts, at));
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
    return pwritev64(file, parts, count, at);
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t at, int flags) {
    REAL(ssize_t, "pwritev64v2", int, const struct iovec *, int, off64_t, int);
    int64_t number = hit(WRITE, file);
    if (number != 0) HIT_WRITE(number, half_of_first(file, parts, at));
    /* A durable write is a write and a sync; like every sync that does not fail, it is left out. */
    ssize_t done = real(file, parts, count, at, flags & ~RWF_DSYNC);
    return done >= 0 && (flags & RWF_DSYNC) && hit(SYNC, file) ? failed() : done;
}

ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t at, int flags) {
    return pwritev64v2(file, parts, count, at, flags);
}

ssize_t read(int file, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    return hit(READ, file) ? failed() : real(file, data, size);
}

ssize_t pread64(int file, void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    return hit(READ, file) ? failed() : real(file, data, size, at);
}

ssize_t pread(int file, void *data, size_t size, off_t at) {
    return pread64(file, data, size, at);
}

ssize_t preadv64v2(int file, const struct iovec *parts, int count, off64_t at, int flags) {
    REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off64_t, int);
    return hit(READ, file) ? failed() : real(file, parts, count, at, flags);
}

ssize_t preadv2(int file, const struct iovec *parts, int count, off_t at, int flags) {
    return preadv64v2(file, parts, count, at, flags);
}

ssize_t preadv64(int file, const struct iovec *parts, int count, off64_t at) {
    return preadv64v2(file, parts, count, at, 0);
}

ssize_t preadv(int file, const struct iovec *parts, int count, off_t at) {
    return preadv64v2(file, parts, count, at, 0);
}

/* Syncs that do not fail are left out: processes end here, the machine does not, and a busy disk
 * would make every run ten times longer. */
int fsync(int file) { return hit(SYNC, file) ? failed() : 0; }

int fdatasync(int file) { return hit(SYNC, file) ? failed() : 0; }

int ftruncate64(int file, off64_t length) {
    REAL(int, "ftruncate64", int, off64_t);
    return hit(TRUNCATE, file) ? failed() : real(file, length);
}

int ftruncate(int file, off_t length) { return ftruncate64(file, length); }

int rename(const char *old, const char *new) {
    REAL(int, "rename", const char *, const char *);
    return hit_path(RENAME, new) ? failed() : real(old, new);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    return hit_path(UNLINK, path) ? failed() : real(path);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    int64_t number = path[0] == '/' ? hit_path(UNLINK, path) : hit(UNLINK, folder);
    return number ? failed() : real(folder, path, flags);
}

int rmdir(const char *path) {
    REAL(int, "rmdir", const char *);
    return hit_path(UNLINK, path) ? failed() : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return hit_path(MAKE, path) ? failed() : real(path, mode);
}

static int open_or_fail(const char *name, const char *path, int flags, mode_t mode) {
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
    if ((flags & O_CREAT) && hit_path(MAKE, path)) return failed();
    return real(path, flags, mode);
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        __builtin_va_list list; \
        __builtin_va_start(list, flags); \
        mode = __builtin_va_arg(list, mode_t); \
        __builtin_va_end(list); \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_or_fail("open", path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_or_fail("open64", path, flags, mode);
}
