// Makes glibc's allocator return large buffers to the system when they're freed. By default, once glibc has freed one buffer of
// 6 MB, it takes the next ones from the heap, and keeps them there: after ten events of 6 MB, about 20 MB stayed resident.
//
// It's in C because Rust can call `mallopt` only in an `unsafe` block. build.rs links it into the program. The variables
// MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ do the same, but glibc reads them only when a process starts, and Lambda
// starts an extension itself. So the program would have to execute itself again, which takes about 0.8 ms of each cold start (the
// time of an empty start, measured once), and hide the variables from the function. A script in the program's place would leave out programs that start in another way.
// Another allocator is thousands of lines of C.

#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>

__attribute__((constructor)) static void return_large_buffers(void) {
    // A fixed threshold isn't raised when a buffer is freed (mallopt(3)). It's above the buffers of small events, so that
    // these cost no system calls.
    mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
}
#endif
