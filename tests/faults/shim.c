/* Preloaded into a gateway: records what is done to the files below a folder,
 * and lets it fail when told to.
 *
 * FAULTS_SHIM_FOLDER     the folder whose files are meant
 * FAULTS_SHIM_RECORDING  the file that is appended to, one record for each act
 * FAULTS_SHIM_CONTROL    the file with the switches (struct control), which
 *                           the harness reads and writes while the gateway runs
 *
 * Every act and its record are made under one lock, so that the recording has
 * the order in which things were done. Memory maps are not seen; SQLite maps
 * its -shm file alone, which no power cut keeps.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC, RENAME, UNLINK };

/* What precedes each record: the name, then the data, follow. */
struct head {
    uint32_t kind;
    uint32_t name_bytes;
    uint64_t offset;
    uint64_t data_bytes;
    int32_t error;
    uint32_t padding;
};

struct control {
    int64_t syncs_to_fail;  /* so many more syncs of files fail with EIO */
    int64_t writes_to_fail; /* so many more writes fail with EIO */
    int64_t room_bytes;     /* files may grow by this much, then ENOSPC; less than 0 is no limit */
    int64_t skip;           /* so many syncs and writes are let through before any fails */
    int64_t failed;         /* how many acts have failed */
};

#define FILES 4096

static char *paths[FILES]; /* by descriptor: the name below the folder */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char folder[PATH_MAX];
static size_t folder_bytes;
static int recording = -1;
static struct control *control;

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);

static void prepare(void) {
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_close = dlsym(RTLD_NEXT, "close");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    const char *below = getenv("FAULTS_SHIM_FOLDER"), *record = getenv("FAULTS_SHIM_RECORDING");
    const char *switches = getenv("FAULTS_SHIM_CONTROL");
    if (!below || !record || !switches || !realpath(below, folder)) {
        fprintf(stderr, "shim: a folder, a recording and a control file are needed\n");
        _exit(70);
    }
    folder_bytes = strlen(folder);
    recording = real_open(record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int file = real_open(switches, O_RDWR | O_CLOEXEC);
    control = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (recording < 0 || control == MAP_FAILED) {
        fprintf(stderr, "shim: the recording or the control file cannot be opened\n");
        _exit(70);
    }
}

/* The name below the folder: "." for the folder itself, nothing for others
 * and for shared memory. */
static const char *name_of(const char *path, char *whole) {
    pthread_once(&once, prepare);
    if (!realpath(path, whole)) {
        /* Not there, or not yet: the folder it is in must be. */
        char above[PATH_MAX];
        const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
        if (!slash) strcpy(above, ".");
        else snprintf(above, sizeof above, "%.*s", (int)(slash == path ? 1 : slash - path), path);
        if (!realpath(above, whole) || strlen(whole) + strlen(last) + 2 > PATH_MAX) return NULL;
        strcat(whole, "/");
        strcat(whole, last);
    }
    size_t bytes = strlen(whole);
    if (bytes > 4 && !strcmp(whole + bytes - 4, "-shm")) return NULL;
    if (strncmp(whole, folder, folder_bytes)) return NULL;
    if (!whole[folder_bytes]) return ".";
    return whole[folder_bytes] == '/' ? whole + folder_bytes + 1 : NULL;
}

static void record(uint32_t kind, const char *name, uint64_t offset, const void *data, uint64_t bytes, int error) {
    struct head head = {kind, strlen(name), offset, bytes, error, 0};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)name, head.name_bytes}, {(void *)data, bytes}};
    ssize_t wanted = sizeof head + head.name_bytes + bytes;
    if (writev(recording, parts, 3) != wanted) {
        fprintf(stderr, "shim: the recording cannot be written\n");
        _exit(70);
    }
}

static const char *tracked(int file) {
    pthread_once(&once, prepare);
    return file >= 0 && file < FILES ? __atomic_load_n(&paths[file], __ATOMIC_ACQUIRE) : NULL;
}

/* Whether this act is one that fails; counts it if so. */
static int fails(int64_t *left) {
    if (*left <= 0) return 0;
    if (control->skip > 0) {
        control->skip--;
        return 0;
    }
    --*left;
    control->failed++;
    return 1;
}

static int opened(int file, const char *path, int flags, int existed) {
    if (file < 0) return file;
    int saved = errno;
    char whole[PATH_MAX];
    const char *name = name_of(path, whole);
    if (name && file < FILES) {
        pthread_mutex_lock(&lock);
        if (!existed) record(CREATE, name, 0, NULL, 0, 0);
        else if (flags & O_TRUNC) record(TRUNCATE, name, 0, NULL, 0, 0);
        __atomic_store_n(&paths[file], strdup(name), __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return file;
}

#define MODE_OF(flags)                                          \
    mode_t mode = 0;                                            \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                      \
        va_list rest;                                           \
        va_start(rest, flags);                                  \
        mode = va_arg(rest, mode_t);                            \
        va_end(rest);                                           \
    }

int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    pthread_once(&once, prepare);
    int existed = !(flags & O_CREAT) || access(path, F_OK) == 0;
    return opened(real_open(path, flags, mode), path, flags, existed);
}

int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open64(path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...) {
    MODE_OF(flags)
    pthread_once(&once, prepare);
    if (at == AT_FDCWD || path[0] == '/') return open64(path, flags, mode);
    return real_openat(at, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...) {
    MODE_OF(flags)
    return openat64(at, path, flags, mode);
}

int creat64(const char *path, mode_t mode) { return open64(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat(const char *path, mode_t mode) { return creat64(path, mode); }

int close(int file) {
    if (tracked(file)) {
        pthread_mutex_lock(&lock);
        free(__atomic_exchange_n(&paths[file], NULL, __ATOMIC_ACQ_REL));
        pthread_mutex_unlock(&lock);
    }
    return real_close(file);
}

static uint64_t size_of(int file) {
    struct stat found;
    return fstat(file, &found) ? 0 : found.st_size;
}

/* Writes at a place; the current one if that is less than 0. */
static ssize_t write_at(int file, const char *name, const void *data, size_t bytes, off_t place) {
    pthread_mutex_lock(&lock);
    uint64_t size = size_of(file);
    uint64_t offset = place >= 0 ? (uint64_t)place
                      : fcntl(file, F_GETFL) & O_APPEND ? size
                                                        : (uint64_t)lseek(file, 0, SEEK_CUR);
    uint64_t growth = offset + bytes > size ? offset + bytes - size : 0;
    ssize_t done = -1;
    int error = 0;
    if (control->room_bytes >= 0 && growth > (uint64_t)control->room_bytes) {
        error = ENOSPC;
        control->failed++;
    } else if (fails(&control->writes_to_fail)) {
        error = EIO;
    } else {
        done = place >= 0 ? real_pwrite(file, data, bytes, place) : real_write(file, data, bytes);
        error = done < 0 ? errno : 0;
    }
    if (done > 0) {
        if (control->room_bytes >= 0) control->room_bytes -= growth;
        record(WRITE, name, offset, data, done, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

ssize_t write(int file, const void *data, size_t bytes) {
    const char *name = tracked(file);
    return name ? write_at(file, name, data, bytes, -1) : real_write(file, data, bytes);
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t place) {
    const char *name = tracked(file);
    return name ? write_at(file, name, data, bytes, place) : real_pwrite(file, data, bytes, place);
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t place) { return pwrite64(file, data, bytes, place); }

int ftruncate64(int file, off64_t size) {
    const char *name = tracked(file);
    if (!name) return real_ftruncate(file, size);
    pthread_mutex_lock(&lock);
    uint64_t before = size_of(file);
    int done = real_ftruncate(file, size), error = errno;
    if (!done) {
        if (control->room_bytes >= 0 && before > (uint64_t)size) control->room_bytes += before - size;
        record(TRUNCATE, name, size, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

static int sync_file(int file, const char *name, int (*real)(int)) {
    pthread_mutex_lock(&lock);
    int is_folder = !strcmp(name, ".");
    int done = -1, error = EIO;
    if (is_folder || !fails(&control->syncs_to_fail)) {
        done = real(file);
        error = done ? errno : 0;
    }
    record(SYNC, name, 0, NULL, 0, error);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int fsync(int file) {
    const char *name = tracked(file);
    return name ? sync_file(file, name, real_fsync) : real_fsync(file);
}

int fdatasync(int file) {
    const char *name = tracked(file);
    return name ? sync_file(file, name, real_fdatasync) : real_fdatasync(file);
}

int rename(const char *from, const char *to) {
    char whole_from[PATH_MAX], whole_to[PATH_MAX];
    const char *old = name_of(from, whole_from), *new = name_of(to, whole_to);
    if (!old || !new) return real_rename(from, to);
    pthread_mutex_lock(&lock);
    int done = real_rename(from, to), error = errno;
    if (!done) record(RENAME, old, 0, new, strlen(new), 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int unlink(const char *path) {
    char whole[PATH_MAX];
    const char *name = name_of(path, whole);
    if (!name) return real_unlink(path);
    pthread_mutex_lock(&lock);
    struct stat found;
    uint64_t bytes = stat(path, &found) ? 0 : found.st_size;
    int done = real_unlink(path), error = errno;
    if (!done) {
        if (control->room_bytes >= 0) control->room_bytes += bytes;
        record(UNLINK, name, 0, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}
