cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec *parts, int count, long long position)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef extern from *:
    """
    #include <fcntl.h>
    #ifdef SYNC_FILE_RANGE_WRITE
    static void firn_start_writing(int fd, long long position, long long size) {
        (void) sync_file_range(fd, position, size, SYNC_FILE_RANGE_WRITE);
    }
    #else
    static void firn_start_writing(int fd, long long position, long long size) {
        (void) fd; (void) position; (void) size;
    }
    #endif
    #ifdef FALLOC_FL_KEEP_SIZE
    static int firn_reserve(int fd, long long position, long long size) {
        return fallocate(fd, FALLOC_FL_KEEP_SIZE, position, size);
    }
    #else
    static int firn_reserve(int fd, long long position, long long size) {
        (void) fd; (void) position; (void) size;
        return 0;
    }
    #endif
    """
    void firn_start_writing(int fd, long long position, long long size) nogil
    int firn_reserve(int fd, long long position, long long size) nogil
